"""The job that refers to stores: reads the index of each shard, writes what readers open, and gives it its
name once all files were found as they were."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.filesystems import synced_as_one
from shardwright.model.errors import ConfigError, OutputExistsError, ShardChangedError
from shardwright.store.new_store import making_folder, publish

from .chunk_ranges import chunk_ranges, listed_shards
from .file_record import FileRecord, address_of
from .kerchunk_files import KerchunkJson, KerchunkParquet
from .virtual_tree import VirtualTree, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .virtual_tree import VirtualArray

ICECHUNK = "icechunk:"
_PYTHON: tuple[int, ...] = (3, 12)
_LONGEST_WAIT_S = 2.0  # for the second of a change; later times are of another clock


def place_of(text: str) -> Path:
    """Returns the path of references by what a user gives: ``icechunk:PATH`` or a path."""
    return beneath.user_path(text.removeprefix(ICECHUNK))


def make_references(
    paths: Sequence[str], to: str, on_progress: Callable[[int, int], None], *, axis: str | None = None
) -> dict[str, Any]:
    """Writes references to the chunks of stores. ``to``: NAME.json, NAME.parquet or icechunk:PATH. ``axis``:
    along which several are joined. Returns a report.

    Raises ``ConfigError`` for stores that do not join, and with kerchunk for chunks that could move
    unnoticed; ``OutputExistsError``, ``LockedError``, ``ShardChangedError``, ``StoreChangingError``,
    ``ShardFormatError``, ``StorageError``."""
    place, kind = place_of(to), _kind(to)
    if beneath.exists(place):
        raise OutputExistsError("the output exists already", got=place, hint="Choose another name")
    if len(paths) > 1 and axis is None:
        raise ConfigError("several stores become one by an axis", hint="Give --concat AXIS, as --concat t")
    stores = list(map(open_source, paths))
    for store in stores:
        store.check_outside(place)
    # A server of plain files may ignore the condition that icechunk sends.
    compares = to.startswith(ICECHUNK) and not any(str(store.root).startswith("http") for store in stores)
    record, chunks = FileRecord(), 0
    tree = VirtualTree.joined(stores, axis, record) if axis else VirtualTree.of_store(stores[0], record)
    record.arrays.extend(address_of(part.stored.path) for array in tree.arrays for part in array.parts)
    listed = [(array, listed_shards(array)) for array in tree.arrays]
    done, total = 0, sum(len(shards) for _, shards in listed)
    with making_folder(place) as folder:
        with synced_as_one(folder, "references"):
            target = kind(folder / place.name, tree)
            for array, shards in listed:
                for ranges in chunk_ranges(shards):
                    if not (compares or ranges.is_packed or _is_noticed(array)):
                        raise ConfigError(
                            f"{ranges.path} has gaps, and its chunks no checksum: once it is packed, "
                            "readers would show other pixels without an error",
                            hint="Pack the store first (`shardwright compact STORE`), or write icechunk:PATH",
                        )
                    record.add(ranges.path, ranges.version)
                    target.add(array, ranges)
                    done, chunks = done + 1, chunks + int((ranges.nbytes > 0).sum())
                    on_progress(done, total)
            if compares:
                _wait_for_another_second(record)
            for file, what in record.changes():
                raise ShardChangedError(
                    f"{file} is {what} since references to it were begun", hint="Run the command again"
                )
            target.finish(record)
        publish(folder / place.name, place)
    return {
        "ok": True,
        "path": str(place),
        "arrays": len(tree.arrays),
        "shards": done,
        "chunks": chunks,
        "containers": getattr(target, "containers", []),
        "warnings": _warnings(tree, compares=compares),
    }


def _kind(to: str) -> Any:
    if to.startswith(ICECHUNK):
        if sys.version_info < _PYTHON:
            raise ConfigError("icechunk 2 needs Python 3.12", got=sys.version.split()[0])
        from .icechunk_repository import IcechunkRepository

        return IcechunkRepository
    for ending, kind in ((".json", KerchunkJson), (".parquet", KerchunkParquet)):
        if to.endswith(ending):
            return kind
    raise ConfigError(
        "unknown kind of references", expected="NAME.json, NAME.parquet or icechunk:PATH", got=to
    )


def _is_noticed(array: VirtualArray) -> bool:
    """Returns whether a reader notices that a chunk has moved: kerchunk compares nothing, and uncompressed
    pixels of another place are pixels, too."""
    return all(part.stored.codecs.checksum or not part.stored.is_sharded for part in array.parts)


def _warnings(tree: VirtualTree, *, compares: bool) -> list[str]:
    found = []
    if not compares and not all(map(_is_noticed, tree.arrays)):
        found.append(
            "the chunks have no checksum. Once `compact`, `update`, `erase`, `sw.resume` or another program "
            "has changed a store, readers may show wrong pixels without an error. Write the "
            "references again then; `shardwright refs --check` says what is stale"
        )
    if any(array.document["chunk_grid"]["name"] == "rectilinear" for array in tree.arrays):
        found.append(
            "chunks differ along the axis: zarr-python 3.4 reads that, with "
            'zarr.config.set({"array.rectilinear_chunks": True})'
        )
    return found


def _wait_for_another_second(record: FileRecord) -> None:
    """Waits until every later change of a file has a later second than the last one of any."""
    left_s = max(state[2] for state in record.files.values()) // 10**9 + 1 - time.time()
    time.sleep(min(max(0.0, left_s + 0.01), _LONGEST_WAIT_S))
