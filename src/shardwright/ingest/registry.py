"""The registry of open sessions, found by token, identity or path, and the receipts of those that ended last.
Ingest thread only."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ClosedError

from .daemon_totals import DaemonTotals
from .totals import FrameRate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.model.receipt import Receipt

    from .session import ClientLease, Session

ENDED_REMEMBERED = 64


@dataclass(frozen=True)
class Ended:
    """The end of an acquisition, kept for a client that comes back."""

    client_epoch: int
    receipt: Receipt
    why: ErrorText


class Sessions:
    """Iterates over the open ones."""

    def __init__(self) -> None:
        self._by_identity: dict[str, Session] = {}
        self._by_token: dict[int, Session] = {}
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        self.totals = DaemonTotals((), {})  # may be read from any thread
        self.rate = FrameRate(time.monotonic())  # of all acquisitions; may be read from any thread
        self._ended_frames = self._ended_bytes = 0  # that came to acquisitions that have ended

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_identity.values()))

    def __len__(self) -> int:
        return len(self._by_identity)

    def add(self, session: Session) -> None:
        self._by_identity[session.acquisition.identity] = session
        self.totals = self.totals.with_one_more(session)

    def attached(self, session: Session, lease: ClientLease) -> None:
        """Makes the token of ``lease`` find the session, in place of an earlier one."""
        for token in [token for token, other in self._by_token.items() if other is session]:
            del self._by_token[token]
        self._by_token[lease.token] = session

    def of_token(self, token: int) -> Session | None:
        """The session that a client is attached to by this token."""
        session = self._by_token.get(token)
        return (
            session
            if session is not None and session.lease is not None and session.lease.token == token
            else None
        )

    def of_identity(self, identity: str) -> Session | None:
        return self._by_identity.get(identity)

    def of_path(self, path: Path) -> Session | None:
        return next(
            (session for session in self._by_identity.values() if session.acquisition.path == path), None
        )

    def of_opening(self, opening: str | None) -> Session | None:
        """The session that an OPEN with this token has got already."""
        return next((session for session in self if None is not opening == session.opening), None)

    def ended(self, identity: str) -> Ended | None:
        return self._ended.get(identity)

    def forget(self, session: Session) -> None:
        """Drops a session that has ended; its receipt is kept for a while."""
        identity = session.acquisition.identity
        del self._by_identity[identity]
        self.totals = self.totals.with_ended(session)
        self._ended_frames += session.frames_received
        self._ended_bytes += session.bytes_received
        self._by_token = {token: other for token, other in self._by_token.items() if other is not session}
        why = session.why_ended or ErrorText(ClosedError, "this acquisition was finished and sealed")
        self._ended[identity] = Ended(session.acquisition.client_epoch, session.acquisition.receipt(), why)
        while len(self._ended) > ENDED_REMEMBERED:
            self._ended.popitem(last=False)

    def sample_rates(self, now_s: float) -> None:
        """Measures the rate of each acquisition, and of all together, with those that have ended since."""
        frames, nbytes = self._ended_frames, self._ended_bytes
        for session in self:
            session.rate.sample(now_s, session.frames_received, session.bytes_received)
            frames, nbytes = frames + session.frames_received, nbytes + session.bytes_received
        self.rate.sample(now_s, frames, nbytes)
