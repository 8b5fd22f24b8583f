"""The account of this daemon since it started: the acquisitions that run, and for each stream the sums over
those that have ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .totals import Totals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .session import Session


@dataclass(frozen=True)
class Book:
    """Never changed, only replaced by the ingest thread: whoever reads one finds each acquisition in it once,
    running or ended."""

    running: tuple[Session, ...]
    ended: Mapping[str, Totals]

    def with_one_more(self, session: Session) -> Book:
        return replace(self, running=(*self.running, session))

    def with_ended(self, session: Session) -> Book:
        total = self.ended.get(session.stream, Totals()).plus([session.totals()])
        running = tuple(other for other in self.running if other is not session)
        return Book(running, {**self.ended, session.stream: total})

    def running_of(self, stream: str) -> list[Session]:
        return [session for session in self.running if session.stream == stream]

    def totals(self, stream: str) -> Totals:
        """Of all acquisitions of this stream."""
        ended, running = self.ended.get(stream) or Totals(), self.running_of(stream)
        return ended.plus(session.totals() for session in running) if running else ended
