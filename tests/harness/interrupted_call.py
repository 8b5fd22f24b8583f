"""A call that Ctrl-C interrupts at one place after another."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

# where a frame passes on its way into the order; below them a step is whole or its object is broken
_MODULES = (
    "writer.writer",
    "writer.driver",
    "client.stream",
    "client.outbox",
    "client.send_queue",
    "array.frame_order",
    "wire.in_flight",
)


def interruptions(
    make_call: Callable[[], Callable[[], None]], *, instructions: bool = False
) -> Iterator[int]:
    """Makes a call again and again, and raises ``KeyboardInterrupt`` once in each: at the beginning, a line
    (or each of its ``instructions``) or the end of the functions that handle frames, as a signal's handler
    may. Yields after each, until one goes through."""
    at = 0
    gc.collect()  # writers that other tests have forgotten
    while _interrupted(make_call(), at, instructions):
        yield at
        at += 1
    assert at > 20, "nothing was interrupted"


def _interrupted(call: Callable[[], None], at: int, instructions: bool) -> bool:
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if not frame.f_globals.get("__name__", "").endswith(_MODULES):
            return None
        frame.f_trace_opcodes = instructions
        # a function that an exception leaves returns, too
        if event != "exception":
            seen += 1
            if seen == at + 1:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    gc.disable()  # a finalizer within the call would be interrupted in its place
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
    return False
