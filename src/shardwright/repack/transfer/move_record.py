"""The record of a move on the source's side, by which a run continues an interrupted one: two files in
STORE/.compact/ for each destination.

    move.HASH.json    the job's token, whether its claim was made at an empty place, and, once all has
                      arrived, every file that was sent
    move.HASH.sent    a JSON line for each file that was sent and verified. Files whose lines are lost are
                      verified again

    sending ◀──▶ complete: all has arrived, no shard is damaged
    complete ──▶ deleting: files of the source are gone, or will be

A job that is complete goes back to sending when the destination has lost something or the source has changed.
There is no way back from deleting: a file that is missing here then was deleted by this job, whatever else is
found in the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import FormatVersionError, ShardFormatError, StorageError
from shardwright.model.json_text import parse_json
from shardwright.model.local_path import can_be_path
from shardwright.model.names import MOVE_PREFIX
from shardwright.model.versions import check_version
from shardwright.storage import beneath
from shardwright.storage.failpoints import reach
from shardwright.storage.files import (
    open_to_write,
    read_regular,
    replace_file,
    storage_errors,
    sync_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_MOST_BYTES = 512 << 20  # of two million files
VERSION = 1  # of both files; also of records that name none


@dataclass(frozen=True)
class SentFile:
    """A file that was sent and verified. ``source``: facts of the file as it was sent, see ``is_as_sent``.
    ``nbytes``, ``crc32c``: of the key at the destination. ``order``: of a shard's chunks. ``damaged``: why a
    shard was sent as it is."""

    key: str
    source: list[int]
    nbytes: int
    crc32c: int
    order: str | None = None
    damaged: dict[str, Any] | None = None

    @classmethod
    def of(cls, facts: dict[str, Any]) -> SentFile:
        """Raises ``ValueError`` and ``TypeError`` for facts of no file of the store: what they name is
        deleted in the end."""
        sent = cls(**facts)
        numbers = [*sent.source, sent.nbytes, sent.crc32c]
        if not all(type(number) is int for number in numbers) or min(sent.nbytes, sent.crc32c) < 0:
            raise ValueError(f"no numbers of a file: {numbers!r:.80}")
        if not can_be_path(sent.key) or {"", ".", ".."} & set(sent.key.split("/")):
            raise ValueError(f"no key of a file: {sent.key!r:.80}")
        if not isinstance(sent.order, str | None) or not isinstance(sent.damaged, dict | None):
            raise TypeError(f"no facts of a file: {facts!r:.80}")
        return sent


@dataclass
class MoveRecord:
    """The state of one job. Only for the holder of the store's move lock. ``unproved``: keys that an earlier
    run has sent, and this one has not read back."""

    folder: Path
    destination: str
    token: str
    claimed: bool = False
    complete: bool = False
    deleting: bool = False
    sent: dict[str, SentFile] = field(default_factory=dict)
    unproved: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, folder: Path, destination: str) -> MoveRecord:
        """The record of an earlier job to this destination, or a new one, which is on disk before its token
        claims anything."""
        found = cls.find(folder, destination)
        if found is not None:
            return found
        record = cls(folder, destination, secrets.token_hex(16))
        record.save()
        return record

    @classmethod
    def find(cls, folder: Path, destination: str) -> MoveRecord | None:
        """The record of an earlier job to this destination, if there is one. Raises ``ShardFormatError`` when
        it is damaged, ``FormatVersionError``, ``StorageError``."""
        record = cls(folder, destination, "")
        text = _read(record._path)
        if text is None:
            return None
        try:
            facts = parse_json(text)
            check_version(facts.get("version", VERSION), VERSION, record._path)
            record.token, record.claimed, record.complete = (
                str(facts["token"]),
                bool(facts["claimed"]),
                bool(facts["complete"]),
            )
            record.deleting = bool(facts.get("deleting", False))
            lines = facts["sent"] if record.complete else _whole_lines(_read(record._log_path) or "")
            record.sent = {sent.key: sent for sent in map(SentFile.of, lines)}
            record.unproved = set(record.sent)
        except FormatVersionError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ShardFormatError(
                f"{record._path} is damaged: {error!r}",
                hint="Delete it, and the files that the unfinished job has left at the destination",
            ) from None
        return record

    @staticmethod
    def destinations_in(folder: Path) -> list[str]:
        """The destinations of all jobs that have a record in a folder, as far as they can be read."""
        found = []
        for path in sorted(beneath.matching(folder, f"{MOVE_PREFIX}*.json")):
            with suppress(StorageError, ValueError, TypeError, KeyError):
                found.append(str(parse_json(_read(path) or "")["destination"]))
        return found

    def add(self, sent: SentFile) -> None:
        """A file was sent and verified. Raises ``StorageError``."""
        self.sent[sent.key] = sent
        self.unproved.discard(sent.key)
        with storage_errors("write", self._log_path):
            descriptor = open_to_write(self._log_path, os.O_CREAT | os.O_APPEND)
            try:
                reach("compact.before_record")
                os.write(descriptor, f"{json.dumps(asdict(sent))}\n".encode())
            finally:
                beneath.close(descriptor)

    def save(self) -> None:
        """Write it durably. The list of files is in it only when all has arrived."""
        facts: dict[str, Any] = {
            "version": VERSION,
            "destination": self.destination,
            "token": self.token,
            "claimed": self.claimed,
            "complete": self.complete,
            "deleting": self.deleting,
        }
        if self.complete:
            facts["sent"] = [asdict(sent) for sent in self.sent.values()]
        replace_file(self._path, json.dumps(facts).encode())

    def reopen(self, without: Iterable[str] = ()) -> None:
        """Go back to sending, at least the files of ``without``. Durably; the list is in one of the two files
        at any time."""
        assert not self.deleting
        for key in without:
            self.drop(key)
        replace_file(
            self._log_path, "".join(json.dumps(asdict(sent)) + "\n" for sent in self.sent.values()).encode()
        )
        self.complete = False
        self.save()

    def begin_deleting(self) -> None:
        """Record it durably, before anything of the source is deleted."""
        if not self.deleting:
            with storage_errors("write", self._path):
                reach("compact.before_deleting")
            self.deleting = True
            self.save()

    def drop(self, key: str) -> None:
        """A file is to be sent again, or is gone."""
        self.sent.pop(key, None)
        self.unproved.discard(key)

    def forget(self) -> None:
        """Drop all files: none is at the destination any more. Durably: a line that is left in the log would
        count again once its key has come back."""
        if beneath.exists(self._log_path):
            replace_file(self._log_path, b"")
        self.sent, self.unproved = {}, set()

    def delete(self) -> None:
        """Delete both files, if they are there, the log first: without the other one it means nothing."""
        if not beneath.is_dir(self.folder):
            return  # it went with the name of the store
        for path in (self._log_path, self._path):
            with storage_errors("delete", path):
                reach("compact.before_delete_record")
                beneath.unlink(path, missing_ok=True)
        sync_directory(self.folder)

    @property
    def _path(self) -> Path:
        return self.folder / f"{MOVE_PREFIX}{hashlib.sha256(self.destination.encode()).hexdigest()[:16]}.json"

    @property
    def _log_path(self) -> Path:
        return self._path.with_suffix(".sent")


def _read(path: Path) -> str | None:
    with storage_errors("read", path):
        try:
            return read_regular(path, _MOST_BYTES).decode()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise StorageError(f"{path} is damaged: {error}") from None


def _whole_lines(text: str) -> list[dict[str, Any]]:
    """The lines that are whole. A killed job or a power cut may leave a torn line, also in the middle once
    the job was resumed: it is ignored."""
    lines = []
    for line in text.splitlines():
        try:
            lines.append(parse_json(line))
        except ValueError:
            continue
    return [line for line in lines if isinstance(line, dict)]
