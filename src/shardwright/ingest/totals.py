"""What the streams of this daemon have come to since it started: acquisitions that run, and the sums over those that have ended."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from shardwright.model.receipt import Receipt
from shardwright.pipeline.measures import Measures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .session import Session

CLIENT_STREAM = "client"  # of acquisitions whose client brought its own array: one name for all, so that there are not more and more of them
_COUNTS = tuple(f.name for f in fields(Receipt) if f.name != "path")
_FATES_WITH_BYTES = ("durable", "missing", "duplicate", "late", "dropped", "lost")  # received and stored ones are counted where they come from
_BYTE_COUNTS = tuple(f"bytes_{fate}" for fate in _FATES_WITH_BYTES)


@dataclass(frozen=True)
class Totals:
    """``counts`` are those of the receipts: exactly their sums once the acquisitions have ended; and the pixel bytes of frames by their fate."""

    acquisitions: int = 0
    acquisitions_failed: int = 0
    bytes_received: int = 0
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys((*_COUNTS, *_BYTE_COUNTS), 0))
    measures: Measures = field(default_factory=Measures)

    @classmethod
    def of(cls, receipt: Receipt, before: Receipt | None, *, failed: bool, bytes_received: int, frame_bytes: int, measures: Measures) -> Totals:
        """``before``: what an earlier process had done of it, which that one has counted. Missing are the frames that are missing now."""
        counts = {name: getattr(receipt, name) for name in _COUNTS}
        if before is not None:
            counts = {name: count if name == "frames_missing" else count - getattr(before, name) for name, count in counts.items()}
        pixels = {f"bytes_{fate}": counts[f"frames_{fate}"] * frame_bytes for fate in _FATES_WITH_BYTES}
        return cls(1, int(failed), bytes_received, {**counts, **pixels}, measures)

    def plus(self, others: Iterable[Totals]) -> Totals:
        """New ones of all of them."""
        others = list(others)
        everyone = (self, *others)
        return Totals(
            sum(each.acquisitions for each in everyone),
            sum(each.acquisitions_failed for each in everyone),
            sum(each.bytes_received for each in everyone),
            {name: sum(each.counts[name] for each in everyone) for name in self.counts},
            self.measures.plus(each.measures for each in others),
        )

    def to_dict(self) -> dict[str, Any]:
        counts = {"shards_sealed" if name == "shards" else name: count for name, count in self.counts.items()}
        return {
            "acquisitions": self.acquisitions,
            "acquisitions_failed": self.acquisitions_failed,
            "bytes_received": self.bytes_received,
            **counts,
            "histograms": self.measures.to_dict(),
        }


@dataclass(frozen=True)
class Book:
    """Never changed, only replaced by the ingest thread: whoever reads one finds each acquisition in it once, running or ended."""

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
