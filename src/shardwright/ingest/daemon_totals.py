"""The totals of a daemon, and what is shown of its running acquisitions."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .totals import AcquisitionTotals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardwright.model.receipt import Receipt

    from .session import Session


@dataclass(frozen=True)
class DaemonTotals:
    """The running acquisitions, and for each stream the sums over those that have ended.

    Never changed, only replaced by the ingest thread: any thread that reads one finds each acquisition in it
    once, running or ended.
    """

    running: tuple[Session, ...]
    ended: Mapping[str, AcquisitionTotals]

    def with_one_more(self, session: Session) -> DaemonTotals:
        return replace(self, running=(*self.running, session))

    def with_ended(self, session: Session) -> DaemonTotals:
        total = self.ended.get(session.stream, AcquisitionTotals()).plus(
            [session.totals(session.acquisition.receipt())]
        )
        running = tuple(other for other in self.running if other is not session)
        return DaemonTotals(running, {**self.ended, session.stream: total})

    def running_named(self, folder: str) -> list[Session]:
        """The running acquisitions of this folder name."""
        return [session for session in self.running if session.acquisition.path.name == folder]

    def running_of(self, stream: str) -> list[Session]:
        return [session for session in self.running if session.stream == stream]

    @property
    def bytes_stored(self) -> int:
        ended = sum(each.counts["bytes_stored"] for each in self.ended.values())
        running = (session.totals(session.acquisition.receipt()) for session in self.running)
        return ended + sum(each.counts["bytes_stored"] for each in running)

    def stream_names(self, configured: Iterable[str]) -> list[str]:
        """The streams of the configuration, and those that only unfinished stores of an earlier one have."""
        return list(dict.fromkeys((*configured, *(session.stream for session in self.running), *self.ended)))

    def to_dict(self, configured: Iterable[str]) -> dict[str, Any]:
        """JSON values: of each stream, of all streams, of each running acquisition."""
        # one of each acquisition, so that it and its stream have the same numbers
        receipts = {session: session.acquisition.receipt() for session in self.running}
        streams = {
            name: {**self._of_stream(name, receipts).to_dict(), **_gauges(self.running_of(name))}
            for name in self.stream_names(configured)
        }
        return {
            "streams": streams,
            "sums": _sums(list(streams.values())),
            "acquisitions": [_acquisition(session, receipt) for session, receipt in receipts.items()],
        }

    def _of_stream(self, stream: str, receipts: Mapping[Session, Receipt]) -> AcquisitionTotals:
        """Of all acquisitions of this stream, ended and running."""
        ended, running = self.ended.get(stream) or AcquisitionTotals(), self.running_of(stream)
        return ended.plus(session.totals(receipts[session]) for session in running) if running else ended


def _sums(streams: list[dict[str, Any]]) -> dict[str, int]:
    sums = {name: sum(stream[name] for stream in streams) for name in streams[0] if name != "histograms"}
    return {**sums, "degrade_level": max(stream["degrade_level"] for stream in streams)}


def _gauges(sessions: list[Session]) -> dict[str, int]:
    return {
        "ring_frames": sum(session.credit.ring_slots for session in sessions),
        "ring_used": sum(session.credit.frames_in_flight for session in sessions),
        "slabs_total": sum(session.acquisition.limits.rows for session in sessions),
        "slabs_used": sum(session.acquisition.slabs_used for session in sessions),
        "degrade_level": max((int(session.acquisition.degrade_level) for session in sessions), default=0),
    }


def _acquisition(session: Session, receipt: Receipt) -> dict[str, Any]:
    """``frames_...`` as in the receipt: of the whole acquisition, an earlier daemon's part included."""
    acquisition, lease, expected = session.acquisition, session.lease, session.frames_expected
    return {
        "name": session.name,
        "path": str(acquisition.path),
        "stream": session.stream,
        "state": session.shown_state,
        "frames_received": receipt.frames_received,
        "frames_in_flight": session.credit.frames_in_flight,
        "frames_stored": receipt.frames_stored,
        "frames_durable": receipt.frames_durable,
        "frames_missing": receipt.frames_missing,
        "frames_expected": None if expected is None else expected * acquisition.spec.frame_places,
        "rate_hz": session.rate.hz,
        "bytes_per_s": session.rate.bytes_per_s,
        "ring_fill": session.ring_fill,
        "degrade_level": acquisition.degrade_level.label,
        "frames_faster": receipt.frames_faster,
        "frames_uncompressed": receipt.frames_uncompressed,
        "client": None if lease is None else {"host": lease.client.hello.host, "pid": lease.client.hello.pid},
        "since_s": time.monotonic() - session.begun_s,
    }
