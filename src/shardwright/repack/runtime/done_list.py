"""What a job has finished already, so that one that was interrupted does not do it again:
ARRAY/.compact/done, JSON lines.

    {"version": 1, "key": "c/0/0/0", "file_bytes": 1234, "mtime_ns": 1790000000000000000, "options": {...}}

Only for work whose result does not show in the shard itself (a packed shard is seen to be packed; a recoded
one looks like any other). A shard that was written since then has another size or time, and is done again; a
line that was cut short by a crash says nothing. Lines without a version are of version 1.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from shardwright.model.versions import check_version
from shardwright.storage.failpoints import reach
from shardwright.storage.files import read_regular, storage_errors

if TYPE_CHECKING:
    from pathlib import Path

DONE_NAME = "done"
VERSION = 1


class DoneList:
    """The record of one array, for one set of options. ``path`` need not be there; whoever holds the work
    folder's lock may write to it."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self._path = path
        self._options = options
        self._known = {
            (line["key"], line["file_bytes"], line["mtime_ns"])
            for line in self._lines()
            if line["options"] == options
        }

    def _lines(self) -> list[dict[str, Any]]:
        """Raises ``FormatVersionError``, ``StorageError``."""
        found = []
        with storage_errors("read", self._path):
            try:
                text = read_regular(self._path).decode("utf-8", "replace")
            except (FileNotFoundError, NotADirectoryError):
                return []
        for line in text.splitlines():
            try:
                facts = json.loads(line)
            except ValueError:
                continue
            if isinstance(facts, dict):
                check_version(facts.get("version", VERSION), VERSION, self._path)
                if {"key", "file_bytes", "mtime_ns", "options"} <= facts.keys():
                    found.append(facts)
        return found

    def has(self, key: str, shard: Path) -> bool:
        """Whether the file that is there now is the one that was finished."""
        try:
            return (key, *_facts_of(shard)) in self._known
        except OSError:
            return False

    def add(self, key: str, shard: Path) -> None:
        """Raises ``StorageError``. Not synced: what a power cut takes from it is done again."""
        with storage_errors("write", self._path):
            file_bytes, mtime_ns = _facts_of(shard)
            line = json.dumps(
                {
                    "version": VERSION,
                    "key": key,
                    "file_bytes": file_bytes,
                    "mtime_ns": mtime_ns,
                    "options": self._options,
                }
            )
            reach("compact.before_record")
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # in front too: a line that a crash cut short ends there
                os.write(descriptor, f"\n{line}\n".encode())
            finally:
                os.close(descriptor)

    def forget(self) -> None:
        """The job has ended: the next one begins anew. Raises ``StorageError``."""
        with storage_errors("delete", self._path):
            reach("compact.before_forget")
            self._path.unlink(missing_ok=True)


def _facts_of(shard: Path) -> tuple[int, int]:
    status = shard.stat()
    return status.st_size, status.st_mtime_ns
