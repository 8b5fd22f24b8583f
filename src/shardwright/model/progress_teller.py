"""Tells a user's function how far a writer or a stream is."""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from .errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    OnProgress = Callable[[int, int | None], object]  # frames stored, of all: None if nobody knows

INTERVAL_S = 0.5
LAST_CALL_S = 2.0  # the longest that ``close`` waits for the function
log = logging.getLogger("shardwright")


class ProgressTeller:
    """Calls ``on_progress`` from a thread of its own, at most twice a second, if more frames are ``stored``
    than the last time, and so at the end. A function that is slow, hangs or fails delays no frame; one that
    fails is not called again. The thread does not keep the function alive, since that may know the writer or
    the stream, which would then never be freed: these do. Nor may ``stored`` and ``total`` know them."""

    def __init__(
        self, on_progress: OnProgress, stored: Callable[[], int], total: Callable[[], int | None]
    ) -> None:
        # not an Event, whose own lock a finalizer could find taken by the call that it interrupts
        self._ended: SimpleQueue[None] = SimpleQueue()
        try:
            function: Callable[[], OnProgress | None] = weakref.ref(on_progress)
        except TypeError:  # of a class without weak references
            function = partial(_same, on_progress)
        work = partial(_work, function, stored, total, self._ended)
        self._thread = threading.Thread(target=work, name="shardwright-progress", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Asks for the last call. From any thread."""
        self._ended.put(None)

    def wait(self) -> None:
        """Waits for the last call, ``LAST_CALL_S`` at most; not within a call."""
        if threading.current_thread() is not self._thread:
            self._thread.join(LAST_CALL_S)


def check_on_progress(on_progress: object) -> None:
    """Raises ``SpecError`` unless it is a function, or None."""
    if on_progress is not None and not callable(on_progress):
        raise SpecError(
            "on_progress is called with two numbers",
            expected="a function, such as lambda done, total: print(done, total)",
            got=repr(on_progress)[:80],
        )


def _same(function: OnProgress) -> OnProgress:
    return function


def _work(
    function: Callable[[], OnProgress | None],
    stored: Callable[[], int],
    total: Callable[[], int | None],
    ended: SimpleQueue[None],
) -> None:
    told, is_over = -1, False
    while not is_over:
        with suppress(Empty):
            ended.get(timeout=INTERVAL_S)
            is_over = True
        # duplicates count as stored: they need no more waiting for
        most = total()  # more with each image that is added
        if (done := stored() if most is None else min(stored(), most)) == told:
            continue
        if (on_progress := function()) is None:
            return
        try:
            on_progress(done, most)
        except BaseException as error:
            log.warning("on_progress failed, and is not called again: %r", error, exc_info=True)
            return
        finally:
            del on_progress
        told = done
