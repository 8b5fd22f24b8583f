"""Acquisitions that are ended before they are full, die of it, and go on all the same: what the processes of
``test_going_on`` run."""

from __future__ import annotations

import errno
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.array.grid import Grid
from shardwright.model.errors import LayoutWarning, ShardwrightError
from shardwright.storage import failpoints
from shardwright.writer.in_process import create, resume

from .kills.processes import Flushed, Refused, Sealed, kill_at
from .kills.scenes import pixels_of, spec_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fork_server import Channel

    import shardwright as sw
    from shardwright.writer.writer import Writer

FAILURES = (
    "shard.before_sync",
    "shard.before_rename",
    "log.before_append",
    "journal.before_delete",
    "table.before_create",
)
QUICK: dict[str, Any] = {"threads": 1, "store_within_ms": 1, "sync_interval_ms": 2}


@dataclass(frozen=True)
class Case:
    """``first`` frames in order before the end, then frames up to ``last``."""

    spec: sw.ArraySpec
    first: int
    last: int
    io: str = "pwrite"

    @property
    def frames(self) -> range:
        return range(self.last)


CASES = {
    "a frame a chunk": Case(spec_of(("t", None, 1, 16), ("y", 8, 8, 1), ("x", 12, 12, 1)), 20, 40),
    "deep chunks, several files": Case(
        spec_of(("t", None, 3, 3), ("y", 20, 8, 2), ("x", 24, 8, 2), chunk_checksum=True), 13, 25, io="mmap"
    ),
    "several slabs and rows at once": Case(
        spec_of(("t", None, 4, 1), ("z", 5, 1, 2), ("y", 8, 8, 1), ("x", 12, 6, 1), index_location="start"),
        31,
        65,
        io="direct",
    ),
    "further fields, stored as it is": Case(
        spec_of(("t", 12, 5, 2), ("y", 8, 4, 1), ("x", 12, 6, 2), codec=None, frame_fields=("dose",)), 7, 12
    ),
}


def append(writer: Writer, frames: range) -> None:
    for n in frames:
        writer.append(pixels_of(writer.spec, n + 1))


def end(channel: Channel, case: Case, path: Path, death: int | str) -> None:
    """Its first frames, then ``close``, dying at the n-th storage call of it, or at the first of that
    name."""
    warnings.simplefilter("ignore", LayoutWarning)
    writer = create(path, case.spec, io=case.io, **QUICK)
    append(writer, range(case.first))
    writer.flush()
    channel.send(Flushed(case.first))
    points = kill_at(death) if isinstance(death, int) else kill_at(1, frozenset({death}))
    channel.send(Sealed(writer.close().to_dict(), tuple(points)))


def fail(channel: Channel, case: Case, path: Path, point: str) -> None:
    """Its first frames, then an I/O error in ``close`` whenever it gets to ``point``."""
    warnings.simplefilter("ignore", LayoutWarning)
    writer = create(path, case.spec, io=case.io, **QUICK)
    append(writer, range(case.first))
    writer.flush()
    channel.send(Flushed(case.first))
    failpoints.set_hook(point, _eio)
    try:
        writer.close()
    except ShardwrightError as error:
        channel.send(Refused(error.code, str(error)))


def _eio() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def go_on(
    channel: Channel, case: Case, path: Path, take_over: bool, first: int, last: int, close: bool, call: int
) -> None:
    """Frames ``first`` to ``last`` in order, dying at the ``call``-th storage call; then ``close``, or only a
    flush."""
    points = kill_at(call)
    writer = resume(path, take_over=take_over, **QUICK)
    assert writer.frames == first, f"{writer.frames} frames were there, not {first}"
    append(writer, range(first, last))
    writer.flush()
    watermark, receipt = writer.watermark, writer.receipt
    channel.send(Flushed(watermark.stored))
    if close:
        receipt = writer.close()
    channel.send(Sealed(receipt.to_dict(), tuple(points)))
    if not close:
        os._exit(0)  # before the writer is sealed because nothing refers to it any more


def send_again(channel: Channel, case: Case, path: Path, first: int) -> None:
    """Every frame from ``first`` on by its place, as a client does that never heard of it; then ``close``."""
    writer = resume(path, **QUICK)
    grid = Grid.of(case.spec)
    for n in range(first, case.last):
        writer.append(pixels_of(case.spec, n + 1), index=grid.index_of(n))
    channel.send(Sealed(writer.close().to_dict(), ()))
