"""The record of the files that references lead to, with their states, which a check compares later.

    {"format": 1, "files": {path or address: [inode, bytes, mtime_ns]}, "arrays": [path or address]}

The inode of an object stands for its ETag; then there is no time. The record is the last member of a JSON
file of kerchunk, and the file ``shardwright.json`` in a folder of Parquet or a repository of icechunk. It has
each zarr.json, too: a store that went on has another. Of ``arrays`` a shard without a record is new: what
refers to them shows fill value in its place.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from shardwright.disk import beneath
from shardwright.disk.files import NO_FILE, FileIdentity, read_regular, storage_errors
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import LinkError, ShardFormatError
from shardwright.model.json_text import parse_json
from shardwright.model.names import DOCUMENT
from shardwright.read.store import parse_array
from shardwright.remote.source_path import source_path
from shardwright.rework.runtime.job_report import no_progress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.rework.runtime.job_report import OnProgress

RECORD = "shardwright"  # the member of a JSON file; with .json the file in a folder
_FORMAT = 1
_MOST_BYTES = 8 << 30
_AT_ONCE = 16

State = tuple[int, ...]  # inode, bytes, mtime_ns
_GONE: State = NO_FILE[1:]


def url_of(path: Path, *, escaped: bool = False) -> str:
    """Returns the URL of a file; of HTTP it is escaped in any case, as readers take it."""
    scheme, _, rest = (str(path) if isinstance(path, RemotePath) else f"file://{path}").partition("://")
    return f"{scheme}://{quote(rest, safe='/:') if escaped or scheme.startswith('http') else rest}"


def address_of(path: Path) -> str:
    """Returns a path or an address as ``source_path`` takes it."""
    return url_of(path).removeprefix("file://")


def _state_at(path: Path) -> State:
    with storage_errors("look at", path), suppress(FileNotFoundError, LinkError):
        if not isinstance(path, RemotePath):
            return FileIdentity.at(path)[1:]
        return FileIdentity.of(beneath.stat(path))[1:]
    return _GONE


@dataclass(frozen=True)
class FileRecord:
    """The files that references point into. ``files``: their states, by ``address_of``. ``arrays``: the
    folders of those that are referred to."""

    files: dict[str, State] = field(default_factory=dict)
    arrays: list[str] = field(default_factory=list)

    def add(self, path: Path, version: Any = None) -> None:
        """Records a file as it is now, or in the ``version`` of its index (``shard.sealed_shard``). Raises
        ``StorageError``."""
        if isinstance(path, RemotePath) and version is not None:
            version = FileIdentity.of(version.status)
        state = _state_at(path) if version is None else version[1:]
        self.files.setdefault(address_of(path), state)  # of a store that is given twice

    def encode(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}).encode()

    def changes(self, on_progress: OnProgress = no_progress) -> Iterator[tuple[str, str]]:
        """Yields each file that is not as it was, and what it is: changed, gone or new. Raises
        ``StorageError``, ``ShardFormatError``."""
        with ThreadPoolExecutor(_AT_ONCE, "shardwright-states") as pool:
            found = pool.map(lambda file: _state_at(source_path(file)), self.files)
            for done, ((file, known), now) in enumerate(zip(self.files.items(), found, strict=True), 1):
                if now != known:
                    yield file, "gone" if now == _GONE else "changed"
                on_progress(done, len(self.files))
        for folder in map(source_path, self.arrays):
            if _state_at(folder / DOCUMENT) != self.files.get(address_of(folder / DOCUMENT)):
                continue  # told above
            array = parse_array(folder)
            for key, shard in array.shard_files():
                file = address_of(folder / key)
                if shard is not None and array.contains_shard(shard) and file not in self.files:
                    yield file, "new"


def check_references(path: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Compares each file that the references at ``path`` lead to with its record. Returns a report: ``ok``,
    ``files``, and ``stale``: what has become of each file that is not as it was. Raises
    ``ShardFormatError``, ``StorageError``."""
    file = path / f"{RECORD}.json" if beneath.is_dir(path) else path
    with storage_errors("read", file):
        text = read_regular(file, _MOST_BYTES)
    try:
        found = parse_json(text)
        found = found[RECORD] if file == path else found
        files = {
            str(name): tuple(map(int, state))
            for name, state in {_FORMAT: found["files"]}[found["format"]].items()  # another: KeyError
        }
        record = FileRecord(files, list(map(str, found["arrays"])))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ShardFormatError(
            f"{file} has no record of files that is understood",
            expected="references that `shardwright refs` has written",
            got=repr(error)[:160],
        ) from None
    stale = dict(record.changes(on_progress))
    return {"ok": not stale, "path": str(path), "files": len(files), "stale": stale}
