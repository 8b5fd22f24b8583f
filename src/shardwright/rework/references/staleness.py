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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.files import NO_FILE, FileIdentity, read_regular, storage_errors
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import LinkError, ShardFormatError
from shardwright.remote.source_path import source_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RECORD = "shardwright"  # the member of a JSON file; with .json the file in a folder
FORMAT = 1
_MOST_BYTES = 8 << 30
_AT_ONCE = 16

State = tuple[int, ...]  # inode, bytes, mtime_ns
_GONE: State = NO_FILE[1:]


def state_of(version: Any) -> State:
    """Returns the state of a file by the version of its index (``shard.sealed_shard``)."""
    return (version if isinstance(version, FileIdentity) else FileIdentity.of(version.status))[1:]


def state_at(path: Path) -> State:
    """Returns the state of the file that has this name now, zeros if there is none. Raises
    ``StorageError``."""
    if not isinstance(path, RemotePath):
        with suppress(LinkError):  # of a spilled shard whose file has gone
            return FileIdentity.at(path)[1:]
        return _GONE
    with storage_errors("look at", path):
        try:
            return FileIdentity.of(beneath.stat(path))[1:]
        except FileNotFoundError:
            return _GONE


@dataclass
class FileStates:
    """Of the files of one store, by their keys."""

    root: Path
    files: dict[str, State] = field(default_factory=dict)

    def changes(self) -> Iterator[tuple[str, str | None]]:
        """Yields the path of each file, and what has become of it: None if nothing. Raises
        ``StorageError``."""
        with ThreadPoolExecutor(_AT_ONCE, "shardwright-states") as pool:
            states = pool.map(state_at, (self.root / key for key in self.files))
            for (key, known), now in zip(self.files.items(), states, strict=True):
                what = None if now == tuple(known) else "gone" if now == _GONE else "changed"
                yield str(self.root / key), what


def as_record(stores: Sequence[FileStates]) -> bytes:
    facts = [{"root": str(states.root), "files": states.files} for states in stores]
    return json.dumps({"format": FORMAT, "stores": facts}).encode()


def _read_record(path: Path) -> list[FileStates]:
    file = path / f"{RECORD}.json" if beneath.is_dir(path) else path
    with storage_errors("read", file):
        text = read_regular(file, _MOST_BYTES)
    try:
        found = json.loads(text)
        record = found if file != path else found[RECORD]
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r}")
        return [
            FileStates(source_path(each["root"]), {key: tuple(state) for key, state in each["files"].items()})
            for each in record["stores"]
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ShardFormatError(
            f"{file} has no record of files", expected="references that `shardwright refs` made", got=repr(error)
        ) from None


def check_references(path: Path, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Compares each file that the references at ``path`` lead to with its record. Returns a report: ``ok``,
    ``files``, ``stale`` with the path of each file that is not as it was, and what has become of it. Raises
    ``ShardFormatError``, ``StorageError``."""
    stores, done, stale = _read_record(path), 0, {}
    total = sum(len(states.files) for states in stores)
    for states in stores:
        for file, what in states.changes():
            done += 1
            on_progress(done, total)
            if what is not None:
                stale[file] = what
    return {"ok": not stale, "path": str(path), "files": total, "stale": stale}
