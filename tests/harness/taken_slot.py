"""A frame that has begun in an outbox, as a stream begins one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.array.frame_order import Begun

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.client.outbox import Outbox


def take_slot(outbox: Outbox, *, counted: bool = False) -> Begun[Callable[[], None]]:
    begun: Begun[Callable[[], None]] = Begun()
    outbox.take_slot(begun, counted=counted)
    return begun
