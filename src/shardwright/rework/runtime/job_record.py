"""The record of a job, by which a later run finds what an earlier one was at: one format for all of them.

    {"check": 2165842213, "job": "move", "version": 2, "entries": 1, "facts": {...}}    what the job is
    {"check": 3021857442, "key": "c/0/0/0", ...}                                        what is done of it
    ...                                                                                 appended since

JSON lines. ``check`` is the crc32c of a line's other fields, as JSON with sorted keys, without spaces, in
ASCII. ``entries``: the number of lines that were written with the first one, all at once; if one of these
does not hold, the record is damaged. Of the lines that were appended since, one that does not hold was cut
short by a crash, and is passed over: what it said is done once more.

Version 1 had a file format for each kind: a JSON object, or JSON lines, without a check. It is read, and
never written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    append_file,
    new_name,
    read_range,
    read_regular,
    replace_file,
    storage_errors,
)
from shardwright.model.errors import FormatVersionError, ShardFormatError
from shardwright.model.json_text import parse_json
from shardwright.model.versions import check_version
from shardwright.shard.checked_json import checksum

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    Facts = dict[str, Any]

VERSION = 2
MOST_BYTES = 512 << 20  # of two million entries
_MOST_HEADER_BYTES = 4096  # of a record that is read while it grows


@dataclass(frozen=True)
class JobRecord:
    """The record of one job. ``version``: of the file that it was read from. ``facts``: what the job is.
    ``entries``: what is done of it. ``nbytes``: of its whole lines in that file."""

    facts: Facts
    entries: list[Facts] = field(default_factory=list)
    version: int = VERSION
    nbytes: int = field(default=0, compare=False)

    def encode(self, kind: str) -> bytes:
        """Returns the bytes of the record of a job of this kind."""
        header = {"job": kind, "version": VERSION, "entries": len(self.entries), "facts": self.facts}
        return b"".join(map(_line, (header, *self.entries)))

    @classmethod
    def decode(cls, data: bytes, kind: str, location: Path | str) -> JobRecord:
        """Returns the record in ``location``. Raises ``ShardFormatError`` when it is damaged, or another
        kind's, ``FormatVersionError``."""
        lines = [line for line in data.split(b"\n") if line]
        header = _parsed(lines[0]) if lines else None
        if header is None or "job" not in header:
            return _of_version_1(lines, location)
        if not _holds(lines[0], header):  # before the version: a damaged one is not that of a later release
            raise _damaged(location, f"its first line does not hold: {lines[0][:80]!r}")
        check_version(header.get("version"), VERSION, location)
        if header["job"] != kind:
            raise _damaged(location, f"its first line is {lines[0][:80]!r}, and not that of the job {kind!r}")
        facts, whole = header.get("facts"), header.get("entries")
        if not isinstance(facts, dict) or type(whole) is not int:
            raise _damaged(location, f"its first line is {lines[0][:80]!r}")
        found = [_entry(line) for line in lines[1:]]
        if len(found) < whole or None in found[:whole]:
            raise _damaged(location, f"of its first {whole} entries one is missing or does not hold")
        entries = [entry for entry in found if entry is not None]
        return cls(facts, entries, nbytes=data.rfind(b"\n") + 1)


def read_job(path: Path, kind: str, most_bytes: int = MOST_BYTES) -> JobRecord | None:
    """Returns the record in a file, None if there is none. Raises as ``decode``, and ``StorageError``."""
    with storage_errors("read", path):
        try:
            data = read_regular(path, most_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
    return JobRecord.decode(data, kind, path)


def readable_job(path: Path, kind: str, most_bytes: int = MOST_BYTES) -> JobRecord | None:
    """As ``read_job``, and None for a record that is damaged: what it said is done once more. Raises
    ``FormatVersionError``, ``StorageError``."""
    try:
        return read_job(path, kind, most_bytes)
    except FormatVersionError:
        raise
    except ShardFormatError:
        return None


def read_added(path: Path, kind: str, known: JobRecord, nbytes: int) -> JobRecord | None:
    """Returns what was appended to a record since it was ``known``, up to ``nbytes``, as a record of these
    entries alone; None if it was written anew since, so that it is to be read whole. Its owner puts something
    into ``facts`` that no two have. Raises ``StorageError``."""
    head = read_range(path, 0, min(_MOST_HEADER_BYTES, nbytes)).partition(b"\n")[0]
    header = _parsed(head)
    if header is None or header.get("job") != kind or header.get("facts") != known.facts:
        return None
    data = read_range(path, known.nbytes, nbytes - known.nbytes)
    end = data.rfind(b"\n") + 1
    found = (_entry(line) for line in data[:end].split(b"\n") if line)
    entries = [entry for entry in found if entry is not None]
    return JobRecord(known.facts, entries, nbytes=known.nbytes + end)


def write_job(path: Path, kind: str, facts: Facts, entries: Iterable[Facts] = ()) -> None:
    """Writes a record whole, durably. Raises ``StorageError``."""
    replace_file(path, JobRecord(facts, list(entries)).encode(kind))


def add_entry(path: Path, entry: Facts, *, synced: bool) -> None:
    """Appends an entry to a record of this version. ``synced``: durably. Raises ``StorageError``."""
    with storage_errors("write", path):
        reach("compact.before_record")
    # a line end in front too: a line that a crash cut short ends there
    append_file(path, b"\n" + _line(entry), "job_record", synced=synced)


def delete_job(path: Path) -> None:
    """Deletes a record, and before it what a run that was killed left as it wrote it. Raises
    ``StorageError``."""
    for name in (new_name(path), path):
        with storage_errors("delete", name):
            reach("compact.before_forget")
            beneath.unlink(name, missing_ok=True)


def _line(facts: Facts) -> bytes:
    return json.dumps({"check": checksum(facts), **facts}).encode() + b"\n"


def _entry(line: bytes) -> Facts | None:
    """Returns the entry of a line, None if the line does not hold."""
    facts = _parsed(line)
    return facts if facts is not None and _holds(line, facts) else None


def _holds(line: bytes, facts: Facts) -> bool:
    """Returns whether a line is that of these facts, from which its checksum is taken out."""
    facts.pop("check", None)
    return _line(facts) == line + b"\n"


def _parsed(line: bytes) -> Facts | None:
    try:
        facts = parse_json(line)
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def _of_version_1(lines: list[bytes], location: Path | str) -> JobRecord:
    """Returns the record of an earlier release: the first line as ``facts``, all lines as ``entries``; which
    of the two it is depends on the kind. Raises ``ShardFormatError`` for a file without any line."""
    found = [facts for line in lines if (facts := _parsed(line)) is not None]
    for facts in found:
        version = facts.pop("version", 1)
        check_version(version, VERSION, location)
        if version != 1 or "check" in facts:
            raise _damaged(location, "it has lost its first line")
    if not found:
        raise _damaged(location, "no line of it is a JSON object")
    return JobRecord(found[0], found, 1)


def _damaged(location: Path | str, why: str) -> ShardFormatError:
    return ShardFormatError(f"{location} is damaged: {why}")
