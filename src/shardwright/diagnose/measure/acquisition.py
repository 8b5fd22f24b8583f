"""Short real acquisitions at full speed: the only measurement in which all stages share the machine as they
will."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shardwright.array.grid import Grid
from shardwright.model.errors import ShardwrightError, StorageError

from .results import AcquisitionRun
from .scratch import free_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from shardwright.config.plan import StreamPlan
    from shardwright.model.receipt import Receipt


LEAST_SLABS = 8
PATIENCE = 4.0


class Target(Protocol):
    """A ``Writer`` or a ``Stream``."""

    @property
    def receipt(self) -> Receipt: ...
    def append(self, frame: np.ndarray[Any, Any], /) -> None: ...
    def close(self) -> object: ...


@dataclass(frozen=True)
class Mark:
    """A moment of an acquisition: how many frames were sent, and what CPU time its processes had taken."""

    when_s: float
    sent: int
    cpu_s: float


@dataclass(frozen=True)
class Extent:
    """How long one acquisition is: ``seconds``, but until its ring was full for ``LEAST_SLABS``, unless that
    takes ``PATIENCE`` times as long.

    It ends after a whole slab, before it has more than ``most_frames``, and when less than
    ``low_water_bytes`` of the disk are free.
    """

    seconds: float
    most_frames: int
    low_water_bytes: int


def extent_of(stream: StreamPlan, seconds: float, room_bytes: int, low_water_bytes: int) -> Extent:
    """``room_bytes``: what may be written. At least a slab, at most what the array takes."""
    grid = Grid.of(stream.spec)
    frames = max(grid.frames_per_slab, room_bytes // stream.limits.frame_bytes)
    return Extent(seconds, min(frames, grid.last_position + 1), low_water_bytes)


def run(
    open_target: Callable[[], Target],
    frames: np.ndarray[Any, Any],
    stream: StreamPlan,
    extent: Extent,
    folder: Path,
    pids: tuple[int, ...],
    *,
    deferred: bool,
) -> AcquisitionRun:
    """Open, append ``frames`` in turns until ``extent`` is reached, close. ``folder``: on the disk written
    to; ``pids``: whose CPU time counts; ``deferred``: chunks go through the page cache, so that the disk has
    its share only once all is synced.

    Raises what broke the acquisition, and ``StorageError`` when frames were lost.
    """
    begin = Mark(time.perf_counter(), 0, cpu_seconds(pids))
    target = open_target()
    try:
        marks, sent = _append(target, frames, stream, extent, folder, pids, begin.when_s)
        target.close()
    except BaseException:
        with suppress(ShardwrightError):
            target.close()
        raise
    end = Mark(time.perf_counter(), sent, cpu_seconds(pids))
    receipt = target.receipt
    if receipt.frames_stored != sent:
        raise StorageError(
            f"stream {stream.name} could not be measured: frames were not stored",
            expected=f"{sent}",
            got=receipt.frames_stored,
        )
    first, last, count = steady(begin, marks, end, stream.limits.ring_frames, deferred=deferred)
    raw_bytes = count * stream.limits.frame_bytes
    return AcquisitionRun(
        frames=sent,
        raw_bytes=receipt.bytes_raw,
        stored_bytes=receipt.bytes_stored,
        seconds=end.when_s - begin.when_s,
        sustained_bytes_per_s=raw_bytes / max(last.when_s - first.when_s, 1e-9),
        cpu_s_per_gb=(last.cpu_s - first.cpu_s) / raw_bytes * 1e9,
    )


def _append(
    target: Target,
    frames: np.ndarray[Any, Any],
    stream: StreamPlan,
    extent: Extent,
    folder: Path,
    pids: tuple[int, ...],
    begin_s: float,
) -> tuple[list[Mark], int]:
    """(a mark after each slab since the ring was full once, frames that were sent)."""
    slab, ring, distinct = stream.limits.frames_per_slab, stream.limits.ring_frames, len(frames)
    marks: list[Mark] = []
    sent = 0
    while sent < extent.most_frames:
        target.append(frames[sent % distinct])
        sent += 1
        if sent % slab == 0:
            now_s = time.perf_counter()
            if sent >= ring:
                marks.append(Mark(now_s, sent, cpu_seconds(pids)))
            so_far = (now_s - begin_s) / extent.seconds
            if (
                so_far > (1 if len(marks) > LEAST_SLABS else PATIENCE)
                or free_bytes(folder) < extent.low_water_bytes
            ):
                break
    return marks, sent


def steady(
    begin: Mark, marks: list[Mark], end: Mark, ring_frames: int, *, deferred: bool
) -> tuple[Mark, Mark, int]:
    """(from when, until when, frames stored meanwhile) of the time that tells the rate: from a quarter of the
    way after the ring was full until the last frame was taken. The ring is full at both, so that as many were
    stored as were sent. ``deferred``: until all is sealed and synced.

    All of it for an acquisition that fits its ring: no ``marks``, or one.
    """
    if len(marks) < 2:
        return begin, end, end.sent
    after_s = marks[0].when_s + (marks[-1].when_s - marks[0].when_s) / 4
    first = next(mark for mark in marks[:-1] if mark.when_s >= after_s or mark is marks[-2])
    if deferred:
        return first, end, end.sent - max(0, first.sent - ring_frames)
    return first, marks[-1], marks[-1].sent - first.sent


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """User and system time of these processes so far."""
    return sum(_cpu_seconds(pid) for pid in pids)


def _cpu_seconds(pid: int) -> float:
    fields = (
        Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
