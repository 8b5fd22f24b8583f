"""The list of shards that a compaction has recompressed, so that a run after an interrupt does not do them
again: ARRAY/.compact/done, JSON lines.

    {"version": 1, "key": "c/0/0/0", "file_bytes": 1234, "mtime_ns": 1790000000000000000, "options": {...}}

Only for work whose result does not show in the shard itself: a packed shard is seen to be packed, a recoded
one looks like any other. A shard that was written since then has another size or time, and is done again. A
line that a crash cut short is ignored. Lines without a version are of version 1.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardwright.model.json_text import parse_json
from shardwright.model.versions import check_version
from shardwright.storage import beneath
from shardwright.storage.failpoints import reach
from shardwright.storage.files import append_file, read_regular, storage_errors

if TYPE_CHECKING:
    from pathlib import Path

DONE_NAME = "done"
VERSION = 1
_MOST_BYTES = 512 << 20  # of two million shards
_FIELDS = {"key": str, "file_bytes": int, "mtime_ns": int, "options": dict}


class DoneList:
    """The list of one array, for one set of options. ``path`` need not exist. Only the holder of the work
    folder's lock writes to it."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self._path = path
        self._options = options
        self._known = {
            (line["key"], line["file_bytes"], line["mtime_ns"])
            for line in self._lines()
            if line["options"] == options
        }

    def _lines(self) -> list[dict[str, Any]]:
        """Raises ``FormatVersionError``, ``ShardFormatError`` for a list that is too long,
        ``StorageError``."""
        found = []
        with storage_errors("read", self._path):
            try:
                text = read_regular(self._path, _MOST_BYTES).decode("utf-8", "replace")
            except (FileNotFoundError, NotADirectoryError):
                return []
        for line in text.splitlines():
            try:
                facts = parse_json(line)
            except ValueError:
                continue
            if isinstance(facts, dict):
                check_version(facts.get("version", VERSION), VERSION, self._path)
                if all(type(facts.get(name)) is kind for name, kind in _FIELDS.items()):
                    found.append(facts)
        return found

    def has(self, key: str, shard: Path) -> bool:
        """Whether the shard is done, and has not changed since."""
        try:
            return (key, *_facts_of(shard)) in self._known
        except OSError:
            return False

    def add(self, key: str, shard: Path) -> None:
        """Durably. Raises ``StorageError``."""
        with storage_errors("look at", shard):
            file_bytes, mtime_ns = _facts_of(shard)
        line = {
            "version": VERSION,
            "key": key,
            "file_bytes": file_bytes,
            "mtime_ns": mtime_ns,
            "options": self._options,
        }
        with storage_errors("write", self._path):
            reach("compact.before_record")
        # in front too: a line that a crash cut short ends there
        append_file(self._path, f"\n{json.dumps(line)}\n".encode(), "done_list")

    def forget(self) -> None:
        """Delete the list: the job is done, and the next one begins anew. Raises ``StorageError``."""
        with storage_errors("delete", self._path):
            reach("compact.before_forget")
            beneath.unlink(self._path, missing_ok=True)


def _facts_of(shard: Path) -> tuple[int, int]:
    status = beneath.stat(shard)
    return status.st_size, status.st_mtime_ns
