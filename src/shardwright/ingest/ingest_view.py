"""The view of ingest for a status page, as JSON: streams, acquisitions, memory, previews. Built in the thread
that asks, from numbers that other threads write."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shardwright.acquire.limits import RUNTIME_BYTES
from shardwright.acquire.measures import BusyClock
from shardwright.model.disk_full import DISK_FULL
from shardwright.model.errors import UnknownStreamError
from shardwright.model.names import store_name

from .totals import CLIENT_STREAM

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardwright.acquire.workers import WorkerPool

    from .registry import Sessions
    from .session import Session
    from .totals import DaemonTotals


class IngestView:
    """All methods may be called from any thread. ``busy`` is entered by the ingest thread for
    each of its rounds."""

    def __init__(
        self, sessions: Sessions, pool: WorkerPool, stream_names: Iterable[str], budget_bytes: int
    ) -> None:
        self.busy = BusyClock()
        self._sessions = sessions
        self._pool = pool
        self._stream_names = (*stream_names, CLIENT_STREAM)
        self._budget_bytes = budget_bytes

    def snapshot(self) -> dict[str, Any]:
        """Each number is current; together they are not one instant. Totals count from the start of this
        daemon."""
        totals = self._sessions.totals
        return {
            "memory": {"used_bytes": _used_bytes(totals), "budget_bytes": self._budget_bytes},
            "stall_s": max(
                self.busy.busy_s(),
                self._pool.busy_s(),
                *(session.acquisition.sealer_busy_s for session in totals.running),
            ),
            "streams": {
                name: {**totals.of_stream(name).to_dict(), **_gauges(totals.running_of(name))}
                for name in self._names(totals)
            },
            "acquisitions": [_acquisition(session) for session in totals.running],
        }

    def _names(self, totals: DaemonTotals) -> list[str]:
        """The streams of the configuration, and those that only unfinished stores of an earlier one have."""
        gone = (*(session.stream for session in totals.running), *totals.ended)
        return list(dict.fromkeys((*self._stream_names, *gone)))

    def preview(self, stream: str | None, name: str | None) -> dict[str, Any] | None:
        """The preview of the running acquisition of that name, or else of the stream's that began last."""
        names = self._names(self._sessions.totals)
        if name is not None:
            chosen = self._sessions.totals.running_named(store_name(name))
        elif stream is not None and stream in names:
            chosen = self._sessions.totals.running_of(stream)
        else:
            raise UnknownStreamError(
                "unknown stream", expected=f"one of {', '.join(names)}", got=repr(stream)
            )
        taken = chosen[-1].preview.ask() if chosen else None
        return None if taken is None else taken.to_dict()


def _used_bytes(totals: DaemonTotals) -> int:
    """Bytes that count against the memory budget."""
    return RUNTIME_BYTES + sum(session.memory_bytes for session in totals.running)


def _gauges(sessions: list[Session]) -> dict[str, int]:
    return {
        "ring_frames": sum(session.credit.ring_slots for session in sessions),
        "ring_used": sum(session.credit.frames_in_flight for session in sessions),
        "slabs_total": sum(session.acquisition.limits.rows for session in sessions),
        "slabs_used": sum(session.acquisition.slabs_used for session in sessions),
        "degrade_level": max((int(session.acquisition.degrade_level) for session in sessions), default=0),
    }


def _acquisition(session: Session) -> dict[str, Any]:
    """``frames_...`` as in the receipt: of the whole acquisition, an earlier daemon's part included."""
    acquisition, lease, receipt = session.acquisition, session.lease, session.acquisition.receipt()
    return {
        "name": session.name,
        "path": str(acquisition.path),
        "stream": session.stream,
        "state": DISK_FULL if acquisition.waits_for_disk else session.state.value,
        "frames_received": receipt.frames_received,
        "frames_in_flight": session.credit.frames_in_flight,
        "frames_stored": receipt.frames_stored,
        "frames_durable": receipt.frames_durable,
        "frames_missing": receipt.frames_missing,
        "frames_expected": session.frames_expected,
        "rate_hz": session.rate.hz,
        "bytes_per_s": session.rate.bytes_per_s,
        "ring_fill": session.ring_fill,
        "degrade_level": acquisition.degrade_level.label,
        "frames_faster": receipt.frames_faster,
        "frames_uncompressed": receipt.frames_uncompressed,
        "client": None if lease is None else {"host": lease.client.hello.host, "pid": lease.client.hello.pid},
        "since_s": time.monotonic() - session.begun_s,
    }
