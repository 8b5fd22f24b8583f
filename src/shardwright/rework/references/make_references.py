"""The job that refers to stores: reads the index of each shard, writes what readers open, and gives it its
name once all files were found as they were."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.model.errors import ConfigError, OutputExistsError, ShardChangedError
from shardwright.store.new_store import making_folder, publish

from .chunk_ranges import chunk_ranges, listed_shards
from .kerchunk_files import KerchunkJson, KerchunkParquet
from .staleness import changes
from .virtual_tree import ReferredStore, VirtualTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .chunk_ranges import ChunkRanges
    from .staleness import States
    from .virtual_tree import VirtualArray

ICECHUNK = "icechunk:"
_OF_KERCHUNK = (KerchunkJson, KerchunkParquet)
_PYTHON: tuple[int, ...] = (3, 12)
_LONGEST_WAIT_S = 2.0  # for the second of a change; later times are of another clock


def place_of(text: str) -> Path:
    """Returns the path of references by what a user gives: ``icechunk:PATH`` or a path."""
    return beneath.user_path(text.removeprefix(ICECHUNK))


def make_references(
    paths: Sequence[str],
    to: str,
    on_progress: Callable[[int, int], None],
    *,
    urls: Sequence[str] = (),
    axis: str | None = None,
) -> dict[str, Any]:
    """Writes references to the chunks of stores. ``to``: NAME.json, NAME.parquet or icechunk:PATH. ``urls``:
    where readers find each store. ``axis``: along which several are joined. Returns a report.

    Raises ``ConfigError`` for stores that do not join, and with kerchunk for chunks that could move
    unnoticed; ``OutputExistsError``, ``LockedError``, ``ShardChangedError``, ``ShardFormatError``,
    ``StorageError``."""
    place, kind = place_of(to), _kind(to)
    if beneath.exists(place):
        raise OutputExistsError("the output exists already", got=place, hint="Choose another name")
    if urls and len(urls) != len(paths):
        raise ConfigError("--url is given once for each store", expected=len(paths), got=len(urls))
    if len(paths) > 1 and axis is None:
        raise ConfigError("several stores become one by an axis", hint="Give --concat AXIS, as --concat t")
    sources = list(map(ReferredStore.open, paths, urls or [""] * len(paths)))
    for source in sources:
        source.store.check_outside(place)
    # A server of plain files may ignore the condition that icechunk sends.
    compares = kind not in _OF_KERCHUNK and not any(each.url.startswith("http") for each in sources)
    tree = VirtualTree.of_store(sources[0]) if axis is None else VirtualTree.joined(sources, axis)
    listed = [listed_shards(array) for array in tree.arrays]
    done, chunks, total = 0, 0, sum(map(len, listed))
    with making_folder(place) as folder:
        target = kind(folder / place.name, tree)
        for array, shards in zip(tree.arrays, listed, strict=True):
            for ranges in chunk_ranges(array, shards):
                if not compares:
                    _check_noticed(array, ranges)
                target.add(array, ranges)
                done, chunks = done + 1, chunks + int((ranges.nbytes > 0).sum())
                on_progress(done, total)
        states: States = {}
        for source in sources:
            states.setdefault(str(source.store.root), {}).update(source.states)
        _check_unchanged(states, waits=compares)
        target.finish(states)
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
    if to.endswith((".parquet", ".parq")):
        import pyarrow as pa  # noqa: F401  (before any work)

        return KerchunkParquet
    if to.endswith(".json"):
        return KerchunkJson
    raise ConfigError(
        "unknown kind of references", expected="NAME.json, NAME.parquet or icechunk:PATH", got=to
    )


def _check_noticed(array: VirtualArray, ranges: ChunkRanges) -> None:
    """Raises ``ConfigError`` for a shard whose chunks may move while the reader does not notice: kerchunk
    compares nothing, and uncompressed pixels of another place are pixels, too."""
    if not (_is_noticed(array) or (ranges.source.is_seen and not ranges.may_move)):
        raise ConfigError(
            f"{ranges.source.store.root / ranges.key} has gaps or is elsewhere, and its chunks no checksum: "
            "once it is packed, readers would show other pixels without an error",
            hint="Pack the store first (`shardwright compact STORE`), or write icechunk:PATH: it refuses "
            "files that have changed",
        )


def _is_noticed(array: VirtualArray) -> bool:
    stored = array.parts[0].stored
    return stored.codecs.checksum or not stored.is_sharded


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


def _check_unchanged(states: States, *, waits: bool) -> None:
    """Looks at all files again: once the second is over in which one was changed last, so that every later
    change has a later one, if it ``waits``. Raises ``ShardChangedError``."""
    newest_ns = max((state[2] for files in states.values() for state in files.values()), default=0)
    left_s = newest_ns // 10**9 + 1 - time.time()
    if waits:
        time.sleep(min(max(0.0, left_s + 0.01), _LONGEST_WAIT_S))
    for file, what in changes(states):
        if what is not None:
            raise ShardChangedError(
                f"{file} has {'gone' if what == 'gone' else 'changed'} while references to it were made",
                hint="Run the command again",
            )
