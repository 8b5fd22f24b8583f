"""The claim on a destination, made and given back: who writes there, so that of two jobs one is refused.

    look that nothing is there ──▶ put the claim, on condition that it is new
    ──▶ look again: another job may have come and gone in between

Whatever lies at a destination beside a claim is its job's. A job that is run again finds its own claim by the
token, and goes on.
"""

from __future__ import annotations

import json
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
from shardwright.model.versions import check_version

from .destination import CLAIM_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .destination import Part


VERSION = 1  # claims without one are of this, too


@dataclass(frozen=True)
class Claim:
    """What a claim says of the job that made it. ``token``: the job's, whichever process it goes on in."""

    token: str
    host: str
    pid: int
    since: str

    @classmethod
    def of_this_process(cls, token: str) -> Claim:
        return cls(token, socket.gethostname(), os.getpid(), datetime.now(UTC).isoformat(timespec="seconds"))

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, url: str, data: bytes) -> Claim:
        """Raises ``StorageError`` for what no job of ours wrote, ``FormatVersionError``."""
        try:
            facts = json.loads(data)
            check_version(facts.get("version", VERSION), VERSION, f"{url}/{CLAIM_KEY}")
            return cls(
                str(facts["token"]), str(facts["host"])[:255], int(facts["pid"]), str(facts["since"])[:64]
            )
        except FormatVersionError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError):
            raise StorageError(f"{url}/{CLAIM_KEY} is no claim of a job", got=repr(data[:80])) from None


class ClaimedPlace(ABC):
    """What destinations of every kind do alike; the rest of ``Destination`` is theirs."""

    def claim(self, token: str) -> bool:
        if (held := self._read_claim()) is not None:
            self._check_ours(held, token)
            self._clear_up_after_death()
            return False
        self._check_empty()
        data = Claim.of_this_process(token).encode()
        try:
            self.put_new(CLAIM_KEY, iter((data,)), len(data))
        except OutputExistsError:
            if (held := self._read_claim()) is None:  # another job has come and gone
                raise
            self._check_ours(held, token)  # the answer to our own put was lost, and it was sent again
        try:
            self._check_claim_holds(data)
            self._check_empty()
        except ShardwrightError:
            self.release(token)
            raise
        return True

    def release(self, token: str) -> None:
        held = self._read_claim()
        if held is not None:
            if held.token != token:
                return
            self._delete_parts()
            self.delete(CLAIM_KEY)
        self._leave()

    def _read_claim(self) -> Claim | None:
        data = self._claim_bytes()
        return None if data is None else Claim.decode(self.url, data)

    def _check_ours(self, held: Claim, token: str) -> None:
        if held.token != token:
            raise LockedError(
                f"another job writes to {self.url}: process {held.pid} on {held.host!r} since {held.since}",
                hint=f"Wait for it, or choose another destination. If that job will never be run again, "
                f"delete {self.url} with its {CLAIM_KEY}",
            )

    def _check_empty(self) -> None:
        found = self._first_found()
        if found is not None:
            raise OutputExistsError(
                f"the destination {self.url} is not empty",
                got=found,
                hint="Choose another one: nothing is ever overwritten",
            )

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def put_new(self, key: str, parts: Iterator[Part], nbytes: int) -> None: ...

    @abstractmethod
    def delete(self, key: str) -> None: ...

    @abstractmethod
    def _claim_bytes(self) -> bytes | None:
        """What lies under ``CLAIM_KEY``."""

    @abstractmethod
    def _first_found(self) -> str | None:
        """Anything at all that is there and is no work of a job's."""

    @abstractmethod
    def _delete_parts(self) -> None:
        """What was being sent."""

    def _clear_up_after_death(self) -> None:
        """The job goes on after it was killed."""
        self._delete_parts()

    def _check_claim_holds(self, claim: bytes) -> None:  # noqa: B027  (not every kind has something to check)
        """Raises ``StorageError`` when the other side would let two jobs make one."""

    def _leave(self) -> None:  # noqa: B027  (not every kind has something to clear)
        """The claim is gone."""
