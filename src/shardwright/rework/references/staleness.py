"""The states of the files that references lead to: on record with the references, and compared later.

    {"format": 1, "stores": [{"root": path or address, "files": {key: [inode, bytes, mtime_ns]}}]}

The inode of an object stands for its ETag; then there is no time. The record is the last member of a JSON
file of kerchunk, and the file ``shardwright.json`` in a folder of Parquet or a repository of icechunk. It has
each zarr.json, too: a store that went on has another.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.files import NO_FILE, FileIdentity, read_regular, storage_errors
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import LinkError, ShardFormatError
from shardwright.remote.source_path import source_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RECORD = "shardwright"  # the member of a JSON file; with .json the file in a folder
_FORMAT = 1
_MOST_BYTES = 8 << 30
_AT_ONCE = 16

State = tuple[int, ...]  # inode, bytes, mtime_ns
States = dict[str, dict[str, State]]  # by the root of each store, by keys
_GONE: State = NO_FILE[1:]


def state_of(version: Any) -> State:
    """Returns the state of a file by the version of its index (``shard.sealed_shard``)."""
    return (version if isinstance(version, FileIdentity) else FileIdentity.of(version.status))[1:]


def state_at(path: Path) -> State:
    """Returns the state of the file that has this name now, zeros if there is none. Raises
    ``StorageError``."""
    with storage_errors("look at", path), suppress(FileNotFoundError, LinkError):
        is_here = not isinstance(path, RemotePath)
        return (FileIdentity.at(path) if is_here else FileIdentity.of(beneath.stat(path)))[1:]
    return _GONE


def record_of(states: States) -> bytes:
    stores = [{"root": root, "files": files} for root, files in states.items()]
    return json.dumps({"format": _FORMAT, "stores": stores}).encode()


def changes(states: States) -> Iterator[tuple[str, str | None]]:
    """Yields the path of each file on record, and what has become of it: None if nothing. Raises
    ``StorageError``."""
    with ThreadPoolExecutor(_AT_ONCE, "shardwright-states") as pool:
        for root, files in states.items():
            folder = source_path(root)
            found = pool.map(lambda key, folder=folder: state_at(folder / key), files)
            for (key, known), now in zip(files.items(), found, strict=True):
                what = None if now == known else "gone" if now == _GONE else "changed"
                yield str(folder / key), what


def check_references(path: Path, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Compares each file that the references at ``path`` lead to with its record. Returns a report: ``ok``,
    ``files``, and ``stale``: what has become of each file that is not as it was. Raises
    ``ShardFormatError``, ``StorageError``."""
    file = path / f"{RECORD}.json" if beneath.is_dir(path) else path
    with storage_errors("read", file):
        text = read_regular(file, _MOST_BYTES)
    try:
        found = json.loads(text)
        record = found[RECORD] if file == path else found
        states = {
            str(each["root"]): {key: tuple(map(int, state)) for key, state in each["files"].items()}
            for each in {_FORMAT: record["stores"]}[record["format"]]  # of another format: KeyError
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ShardFormatError(
            f"{file} has no record of files that is understood",
            expected="references that `shardwright refs` has written",
            got=repr(error)[:160],
        ) from None
    total, stale = sum(map(len, states.values())), {}
    for done, (name, what) in enumerate(changes(states), 1):
        on_progress(done, total)
        if what is not None:
            stale[name] = what
    return {"ok": not stale, "path": str(path), "files": total, "stale": stale}
