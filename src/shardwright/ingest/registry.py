"""The registry of open sessions, found by token, identity or path, and the ends of the last that have ended.
Ingest thread only, but for fields that say otherwise."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ClosedError

from .daemon_totals import DaemonTotals
from .totals import FrameRate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardwright.model.receipt import Receipt

    from .session import ClientLease, Session

ENDED_REMEMBERED = 64


@dataclass(frozen=True)
class Ended:
    """The end of an acquisition, kept for a client that comes back, and for those who ask by its name.
    ``account``: as of ``IngestServer.account``; None once the name is of another acquisition."""

    folder: str
    client_epoch: int
    receipt: Receipt
    why: ErrorText
    account: dict[str, Any] | None


class Sessions:
    """Iterates over the open ones."""

    def __init__(self) -> None:
        self._by_identity: dict[str, Session] = {}
        self._by_token: dict[int, Session] = {}
        # By identity, the newest last. Replaced, never changed: read from any thread.
        self._ended: Mapping[str, Ended] = {}
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

    def account_of_ended(self, folder: str) -> dict[str, Any] | None:
        """The account of the last of this folder name that has ended. From any thread."""
        return next(
            (ended.account for ended in self._ended.values() if ended.account and ended.folder == folder),
            None,
        )

    def name_goes_to_another(self, folder: str) -> None:
        """Drops the account of an earlier acquisition: it is not that of the one which has the name now."""
        self._ended = {
            identity: replace(ended, account=None) if ended.folder == folder else ended
            for identity, ended in self._ended.items()
        }

    def forget(self, session: Session) -> None:
        """Drops a session that has ended; its receipt and its account are kept for a while."""
        identity, folder = session.acquisition.identity, session.acquisition.path.name
        why = session.why_ended or ErrorText(ClosedError, "this acquisition was finished and sealed")
        receipt, epoch = session.acquisition.receipt(), session.acquisition.client_epoch
        self.name_goes_to_another(folder)
        others = [(name, ended) for name, ended in self._ended.items() if name != identity]
        ended = Ended(folder, epoch, receipt, why, session.account())
        self._ended = dict([*others, (identity, ended)][-ENDED_REMEMBERED:])
        # behind that: others find it in one of the two
        del self._by_identity[identity]
        self.totals = self.totals.with_ended(session)
        self._ended_frames += session.frames_received
        self._ended_bytes += session.bytes_received
        self._by_token = {token: other for token, other in self._by_token.items() if other is not session}

    def sample_rates(self, now_s: float) -> None:
        """Measures the rate of each acquisition, and of all together, with those that have ended since."""
        frames, nbytes = self._ended_frames, self._ended_bytes
        for session in self:
            session.rate.sample(now_s, session.frames_received, session.bytes_received)
            frames, nbytes = frames + session.frames_received, nbytes + session.bytes_received
        self.rate.sample(now_s, frames, nbytes)
