"""The record of a move on the source's side, by which a run continues an interrupted one: for each
destination STORE/.compact/move.HASH.job, a record of a job (job_record.py).

    facts      the destination, the job's token, whether its claim was made at an empty destination, its state
    entries    each file that was sent and verified. Those that were appended are not synced: a file whose
               entry is lost is verified again

    sending ◀──▶ complete: all has arrived, no shard is damaged
    complete ──▶ deleting: files of the source are gone, or will be

A job that is complete goes back to sending when the destination has lost something or the source has changed.
There is no way back from deleting: a file that is missing here then was deleted by this job, whatever else is
found in the folder.

An earlier release wrote two files, which are read where the one is not there: move.HASH.json with what is
now ``facts``, and ``sent``, the entries, once all had arrived; until then they were in move.HASH.sent.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import storage_errors, sync_directory
from shardwright.model.errors import FormatVersionError, LockedError, ShardFormatError, StorageError
from shardwright.model.local_path import can_be_path
from shardwright.model.names import MOVE_PREFIX, WORK_FOLDER
from shardwright.rework.runtime.job_record import (
    JobRecord,
    add_entry,
    delete_job,
    read_job,
    readable_job,
    write_job,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_KIND = "move"
_SUFFIX = ".job"
_OLD_SUFFIXES = (".sent", ".json")  # in the order in which they are deleted: the first means nothing alone


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
    _is_written: bool = False  # to the file of this release

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
        try:
            found = read_job(record._path, _KIND) or record._of_old_files()
            if found is None:
                return None
            facts = found.facts
            record.token, record.claimed, record.complete, record.deleting = (
                str(facts["token"]),
                bool(facts["claimed"]),
                bool(facts["complete"]),
                bool(facts.get("deleting", False)),
            )
            record.sent = {sent.key: sent for sent in map(SentFile.of, found.entries)}
        except FormatVersionError:
            raise
        except (ValueError, TypeError, KeyError) as error:  # ``ShardFormatError`` is a ``ValueError``
            raise record._damaged(error) from None
        # A record is no proof of what the destination has now, nor is a length: a key that was damaged since
        # would cost its source. With ``delete_source`` each is read back (``move_store``).
        record.unproved = set(record.sent)
        record._is_written = beneath.exists(record._path)
        return record

    def _of_old_files(self) -> JobRecord | None:
        """The record of an earlier release. Raises as ``read_job``, and ``KeyError``."""
        found = read_job(self._path.with_suffix(".json"), _KIND)
        if found is None:
            return None
        if found.facts["complete"]:
            return JobRecord(found.facts, found.facts["sent"])
        log = readable_job(self._path.with_suffix(".sent"), _KIND)
        return JobRecord(found.facts, log.entries if log is not None else [])

    def _damaged(self, error: Exception) -> ShardFormatError:
        files = self._path if beneath.exists(self._path) else self._path.with_suffix(".*")
        message = error.message if isinstance(error, ShardFormatError) else f"{files} is damaged: {error!r}"
        return ShardFormatError(
            message,
            hint=f"If the zarr.json of the store is still here, nothing of it was deleted: delete {files} "
            f"and all that the unfinished job has left at {self.destination}, and run the same `shardwright "
            f"compact STORE --to {self.destination}` again. If it is gone, the store is there, whole: check "
            "it with `shardwright verify`",
        )

    @staticmethod
    def destinations_in(folder: Path) -> list[str]:
        """The destinations of all jobs that have a record in a folder, as far as they can be read."""
        found = set()
        for suffix in (_SUFFIX, ".json"):
            for path in beneath.matching(folder, f"{MOVE_PREFIX}*{suffix}"):
                with suppress(StorageError, ShardFormatError, KeyError):
                    record = read_job(path, _KIND)
                    found.add(str(record.facts["destination"]) if record is not None else "")
        return sorted(found - {""})

    @classmethod
    def check_none_in(cls, store: Path) -> None:
        """Raises ``LockedError`` for a store of which a move or a copy was interrupted."""
        if destinations := cls.destinations_in(store / WORK_FOLDER):
            raise LockedError(
                f"a move or a copy of {store} to {destinations[0]} was interrupted",
                hint=f"End it first: `shardwright compact {store} --to {destinations[0]}`",
            )

    def add(self, sent: SentFile) -> None:
        """A file was sent and verified. Raises ``StorageError``."""
        self.sent[sent.key] = sent
        self.unproved.discard(sent.key)
        if self._is_written:
            add_entry(self._path, asdict(sent), synced=False)
        else:
            self.save()

    def save(self) -> None:
        """Write it durably. Raises ``StorageError``."""
        facts = {
            "destination": self.destination,
            "token": self.token,
            "claimed": self.claimed,
            "complete": self.complete,
            "deleting": self.deleting,
        }
        write_job(self._path, _KIND, facts, map(asdict, self.sent.values()))
        if not self._is_written:
            self._delete_old_files()
            self._is_written = True

    def reopen(self, without: Iterable[str] = ()) -> None:
        """Go back to sending, at least the files of ``without``. Durably."""
        assert not self.deleting
        for key in without:
            self.drop(key)
        self.complete = False
        self.save()

    def begin_deleting(self) -> None:
        """Record it durably, before anything of the source is deleted; once more where it is on record: a run
        that was killed right after the rename has not made the name durable."""
        # On record, and not inferred from a zarr.json that is missing: whoever put that back made the next
        # run delete at the destination what this job had deleted here.
        with storage_errors("write", self._path):
            reach("compact.before_deleting")
        self.deleting = True
        self.save()

    def drop(self, key: str) -> None:
        """A file is to be sent again, or is gone."""
        self.sent.pop(key, None)
        self.unproved.discard(key)

    def forget(self) -> None:
        """Drop all files: none is at the destination any more. Durably: an entry that is left would count
        again once its key has come back."""
        self.sent, self.unproved = {}, set()
        self.save()

    def delete(self) -> None:
        """Delete it, if it is there; what an earlier release wrote first, which would count without it."""
        if not beneath.is_dir(self.folder):
            return  # it went with the name of the store
        self._delete_old_files()
        delete_job(self._path)
        sync_directory(self.folder)

    def _delete_old_files(self) -> None:
        for suffix in _OLD_SUFFIXES:
            delete_job(self._path.with_suffix(suffix))

    @property
    def _path(self) -> Path:
        name = hashlib.sha256(self.destination.encode()).hexdigest()[:16]
        return self.folder / f"{MOVE_PREFIX}{name}{_SUFFIX}"
