"""What ingest shows of itself, as JSON: streams, acquisitions, memory. Built in the thread that asks, from numbers that are written elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shardwright.model.names import STORE_SUFFIX
from shardwright.pipeline.limits import RUNTIME_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .session import Session
    from .totals import Book


def streams_snapshot(book: Book, names: Iterable[str]) -> dict[str, Any]:
    """Totals since this daemon started and gauges of now, by the names of streams."""
    return {name: {**book.totals(name).to_dict(), **_gauges([s for s in book.running if s.stream == name])} for name in names}


def acquisitions_snapshot(book: Book) -> list[dict[str, Any]]:
    return [_acquisition(session) for session in book.running]


def used_bytes(book: Book) -> int:
    """What counts against the memory budget."""
    return RUNTIME_BYTES + sum(session.memory_bytes for session in book.running)


def stall_s(book: Book) -> float:
    """Of the keepers that are at the same call for the longest time."""
    return max((session.acquisition.keeper_busy_s for session in book.running), default=0.0)


def _gauges(sessions: list[Session]) -> dict[str, int]:
    return {
        "ring_frames": sum(session.credit.ring_slots for session in sessions),
        "ring_used": sum(session.credit.frames_in_flight for session in sessions),
        "slabs_total": sum(session.acquisition.limits.rows for session in sessions),
        "slabs_used": sum(session.acquisition.slabs_used for session in sessions),
    }


def _acquisition(session: Session) -> dict[str, Any]:
    """``frames_...`` as in the receipt: of the whole acquisition, an earlier daemon's part included."""
    acquisition, attachment, receipt = session.acquisition, session.attachment, session.acquisition.receipt()
    return {
        "name": acquisition.path.name.removesuffix(STORE_SUFFIX),
        "path": str(acquisition.path),
        "stream": session.stream,
        "state": session.state.value,
        "frames_received": receipt.frames_received,
        "frames_in_flight": session.credit.frames_in_flight,
        "frames_stored": receipt.frames_stored,
        "frames_durable": receipt.frames_durable,
        "frames_missing": receipt.frames_missing,
        "frames_expected": acquisition.grid.total_frames,
        "rate_hz": session.rate.hz,
        "bytes_per_s": session.rate.bytes_per_s,
        "ring_fill": session.ring_fill,
        "client": None if attachment is None else {"host": attachment.client.hello.host, "pid": attachment.client.hello.pid},
        "since_s": time.monotonic() - session.begun_s,
    }
