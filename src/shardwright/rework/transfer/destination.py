"""A destination: where a store goes when it leaves the rig: a folder, one file, or a bucket of an object
store.

It is a flat space of keys such as ``0/c/0/1`` or ``zarr.json``. A key appears whole or not at all, and is
never replaced.

    .compact/claim       a record (job_record.py) of the job that writes here. Deleted when the job has ended
    .compact/*.part      parts being sent. Those of a killed job are deleted when it is run again

A claim admits one job of two:

    look that nothing is there ──▶ put the claim, on condition that it is new
    ──▶ look again: another job may have come and gone in between

It carries its job's token. The job keeps the token on the source's side, and finds its own claim and
unfinished output by it when it is run again. What lies beside a claim belongs to its job.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardwright.model.errors import (
    FormatVersionError,
    LockedError,
    OutputExistsError,
    ShardwrightError,
    StorageError,
)
from shardwright.rework.runtime.job_record import JobRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator

Part = bytes | bytearray  # of a key's bytes, as it is sent; its owner does not change it afterwards
WORK_PREFIX = ".compact"
CLAIM_KEY = f"{WORK_PREFIX}/claim"
MOST_CLAIM_BYTES = 4096
PART_SUFFIX = ".part"
_KIND = "claim"


@dataclass(frozen=True)
class Claim:
    """A claim. ``token``: the job's, whichever process it runs in; the rest is for people."""

    token: str
    host: str
    pid: int
    since: str

    @classmethod
    def of_this_process(cls, token: str) -> Claim:
        return cls(token, socket.gethostname(), os.getpid(), datetime.now(UTC).isoformat(timespec="seconds"))

    def encode(self) -> bytes:
        return JobRecord(asdict(self)).encode(_KIND)

    @classmethod
    def decode(cls, url: str, data: bytes) -> Claim:
        """Raises ``StorageError`` for bytes that are no claim, ``FormatVersionError``."""
        try:
            facts = JobRecord.decode(data, _KIND, f"{url}/{CLAIM_KEY}").facts
            return cls(
                str(facts["token"]), str(facts["host"])[:255], int(facts["pid"]), str(facts["since"])[:64]
            )
        except FormatVersionError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError):
            raise StorageError(f"{url}/{CLAIM_KEY} is not the claim of a job", got=repr(data[:80])) from None


class Destination(ABC):
    """The destination of one store. Safe to use from several threads and processes at once. All methods raise
    ``StorageError`` when the other side refuses.

    ``shows_parts``: readers see each key once it is there, so that zarr.json come last. Else they see none
    before ``finish``."""

    shows_parts = True

    @property
    @abstractmethod
    def url(self) -> str:
        """The address by which ``open_destination`` opens it, wherever a task runs."""

    @abstractmethod
    def put_new(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        """Store ``nbytes`` that come in parts. Raises ``OutputExistsError`` when the key exists with other
        bytes. On any other error the key is as it was, or has all of these bytes: the answer was lost, and so
        is the connection by which one could look."""

    def keep(self, key: str) -> None:  # noqa: B027  (what a bucket has, it keeps)
        """Make sure that a power cut leaves a key that another process put: it may have died right after."""

    @abstractmethod
    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        """Bytes of a key, fewer at its end: from what was stored, not from a cache of ours."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Bytes of a key, None when there is none."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Bytes of every key outside of ``WORK_PREFIX``, by one listing."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete a key, if it is there."""

    def cut(self, keep: Container[str]) -> None:  # noqa: B027  (where keys do not depend on each other)
        """Delete the first key that is not to be kept, and all that were put after it."""

    def finish(self, expected: Collection[str]) -> None:  # noqa: B027  (readers have seen each since its put)
        """Let readers see the keys, all at once, durably, which are the ``expected`` ones. Does nothing if
        readers see them. Raises ``OutputExistsError``."""

    @abstractmethod
    def _claim_bytes(self) -> bytes | None:
        """The bytes under ``CLAIM_KEY``."""

    @abstractmethod
    def _first_found(self) -> str | None:
        """The name of anything that is there outside of ``WORK_PREFIX``."""

    @abstractmethod
    def _delete_parts(self) -> None:
        """Delete what was being sent."""

    def _clear_up_after_death(self) -> None:
        """The job was killed and is resumed."""
        self._delete_parts()

    def _check_claim_holds(self, claim: bytes) -> None:  # noqa: B027  (a folder has nothing to check)
        """Raises ``StorageError`` when the other side would let two jobs make a claim."""

    def _delete_claim(self, token: str) -> None:
        """Delete the claim, which was this token's a moment ago."""
        self.delete(CLAIM_KEY)

    def _leave(self) -> None:  # noqa: B027  (a bucket has nothing to clear)
        """The claim is gone."""

    def claim(self, token: str) -> bool:
        """Claim an empty destination. False: this token's claim exists already, beside the files that its job
        has sent.

        Raises ``OutputExistsError`` when something else is there, ``LockedError`` naming the other job when
        there is one.
        """
        if (held := self._read_claim()) is not None:
            self._check_ours(held, token)
            # The token is known to this job alone, and the job's lock is held: whoever made this claim is
            # dead.
            self._clear_up_after_death()
            return False
        self._check_empty()
        data = Claim.of_this_process(token).encode()
        try:
            self.put_new(CLAIM_KEY, iter((data,)), len(data))
        except OutputExistsError:
            if (held := self._read_claim()) is None:  # another job has come and gone
                raise
            self._check_ours(held, token)
        # Looked at once more: another job may have claimed, sent and released between the first look and the
        # put. A claim that is left now would make a later run take those files for its own.
        try:
            self._check_claim_holds(data)
            self._check_empty()
        except ShardwrightError:
            self.release(token)
            raise
        return True

    def release(self, token: str) -> None:
        """Release the claim, and delete the parts of unfinished keys. Does nothing when the claim is not this
        token's."""
        held = self._read_claim()
        if held is not None:
            if held.token != token:
                return
            # The parts first: once the claim is gone another job may be sending, and its parts lie beside
            # these.
            self._delete_parts()
            self._delete_claim(token)
        self._leave()

    def _read_claim(self) -> Claim | None:
        data = self._claim_bytes()
        return None if data is None else Claim.decode(self.url, data)

    def _check_ours(self, held: Claim, token: str) -> None:
        if held.token != token:
            raise LockedError(
                f"another job writes to {self.url}: process {held.pid} on {held.host!r} since {held.since}",
                hint=f"Wait for it, or choose another destination. If that job will never be run again, "
                f"delete {self._claimed_place}",
            )

    @property
    def _claimed_place(self) -> str:
        """Names what a user deletes of a job that will never run again."""
        return f"{self.url} with its {CLAIM_KEY}"

    def _check_empty(self) -> None:
        found = self._first_found()
        if found is not None:
            raise OutputExistsError(
                f"the destination {self.url} is not empty",
                got=found,
                hint="Choose another one: nothing is ever overwritten",
            )


def key_exists(url: str, key: str) -> OutputExistsError:
    return OutputExistsError("the destination has this key already", got=f"{url}/{key}")


def check_size(url: str, key: str, expected: int, got: int) -> None:
    """Raises ``StorageError`` when the parts of a key did not add up."""
    if got != expected:
        raise StorageError(
            f"cannot write {url}/{key}: the size of its source changed meanwhile",
            expected=f"{expected} bytes",
            got=got,
        )


def part_key(key: str, random: str) -> str:
    return f"{WORK_PREFIX}/{key.replace('/', '.')}.{random}{PART_SUFFIX}"
