"""Makes a stream's link from the daemon's answer to its first OPEN: checks the sizes, and fits the batches to
the ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.array.grid import Grid
from shardwright.array.spec import parse_spec
from shardwright.model.errors import ProtocolError

from .link import Link
from .outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.wire.controls import Open, Opened, Welcome

    from .frame_ring import FrameRing

BATCH_BYTES = 32 << 20  # of pixels: enough that the cost of a message is small


def new_link(
    request: Open,
    session: int,
    opened: Opened,
    welcome: Welcome,
    *,
    wake: Callable[[], None],
    keep_ring: Callable[[FrameRing], None],
) -> Link:
    """Makes a link. ``wake`` wakes the I/O thread; ``keep_ring`` gets the ring when the stream has ended
    well. Raises ``ProtocolError``, or the error of the array."""
    spec = parse_spec(opened.spec)
    if opened.slot_bytes != spec.frame_bytes or opened.credit_bytes != opened.ring_slots * opened.slot_bytes:
        raise ProtocolError(
            "OPENED whose sizes contradict each other",
            expected=f"slots of {spec.frame_bytes} bytes",
            got=opened,
        )
    outbox = Outbox(
        slot_count=opened.ring_slots,
        batch_frames=batch_frames(opened, welcome),
        check_position=Grid.of(spec).check_position,
        wake=wake,
        further_fields=len(spec.frame_fields),
        first_sequence=opened.next_sequence,
        overload=opened.overload,
        keep_ring=keep_ring,
    )
    return Link(request, session, opened, spec, welcome, outbox)


def batch_frames(opened: Opened, welcome: Welcome) -> int:
    """The number of frames in a batch: up to 32 MiB of pixels, at most a quarter of the ring (so that
    filling, sending, storing and release overlap)."""
    by_bytes = max(1, BATCH_BYTES // opened.slot_bytes)
    by_ring = max(1, opened.ring_slots // 4)
    return min(by_bytes, by_ring, welcome.max_batch_frames, 1024)
