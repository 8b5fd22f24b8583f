"""The list of shards that a compaction has recompressed, so that a run after an interrupt does not do them
again: ARRAY/.compact/done, a record of a job (job_record.py).

    facts      {"options": {...}}    of the compaction; one with others begins anew
    entries    {"key": "c/0/0/0", "file_bytes": 1234, "mtime_ns": 1790000000000000000}

Only for work whose result does not show in the shard itself: a packed shard is seen to be packed, a recoded
one looks like any other. A shard that was written since then has another size or time, and is done again; so
are all where the list is damaged. Version 1 has the options in each entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.files import storage_errors

from .job_record import VERSION, JobRecord, add_entry, delete_job, readable_job, write_job

if TYPE_CHECKING:
    from pathlib import Path

DONE_NAME = "done"
_KIND = "done"
_FIELDS = {"key": str, "file_bytes": int, "mtime_ns": int}


class DoneList:
    """The list of one array, for one set of options. ``path`` need not exist. Only the holder of the work
    folder's lock writes to it."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        """Raises ``FormatVersionError``, ``StorageError``."""
        self._path = path
        self._options = options
        found = readable_job(path, _KIND) or JobRecord({})
        self._begun = found.version == VERSION and found.facts.get("options") == options
        self._done = [
            {name: entry[name] for name in _FIELDS}
            for entry in found.entries
            if (found.facts if found.version == VERSION else entry).get("options") == options
            and all(type(entry.get(name)) is kind for name, kind in _FIELDS.items())
        ]
        self._known = {tuple(entry.values()) for entry in self._done}

    def has(self, key: str, shard: Path) -> bool:
        """Returns whether the shard is done, and has not changed since."""
        try:
            return (key, *_facts_of(shard)) in self._known
        except OSError:
            return False

    def add(self, key: str, shard: Path) -> None:
        """Durably. Raises ``StorageError``."""
        with storage_errors("look at", shard):
            try:
                entry = dict(zip(_FIELDS, (key, *_facts_of(shard)), strict=True))
            except FileNotFoundError:  # an edit has deleted it since: the other shards are still to be done
                return
        if self._begun:
            add_entry(self._path, entry, synced=True)
        else:
            write_job(self._path, _KIND, {"options": self._options}, [*self._done, entry])
            self._begun = True

    def forget(self) -> None:
        """Delete the list: the job is done, and the next one begins anew. Raises ``StorageError``."""
        delete_job(self._path)


def _facts_of(shard: Path) -> tuple[int, int]:
    status = beneath.stat(shard)
    return status.st_size, status.st_mtime_ns
