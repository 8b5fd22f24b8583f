"""The order of frames that several threads append: that in which their calls began. The same for the client
and for the writer in this process.

    in line    calls that wait for slots; the first of them gets the next ones that are free
    begun      frames that have their slots: their pixels are being copied, by several threads at once, or
               they are complete and an earlier one is not

A frame gets its number when it is complete and every frame that began before it has its own, or was given up.
So numbers have no holes, however the threads run and whichever of them fails. Nothing is held while a call
waits in line: frames in ``begun`` only wait for a copy, which ends by itself.

A call that interrupts another one of its own thread (a signal handler) cannot wait for it: it goes first.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """Frames of one call, which makes this before it begins them: an exception of a signal handler, which may
    come between any two instructions, then finds what is to be given up.

    ``serial``: the rank of the call; 0 before they have begun. ``slots``: in the form of their owner, or
    none if they are to be dropped. ``facts``: what their owner needs to submit them, once they are complete.
    ``is_given_up``: they have no number and get none."""

    __slots__ = ("facts", "frames", "is_given_up", "serial", "slots", "thread")

    def __init__(self) -> None:
        self.thread = 0
        self.serial = 0
        self.slots: Any = None
        self.frames = 0
        self.facts: T | None = None
        self.is_given_up = False


class FrameOrder(Generic[T]):
    """The lock of its owner guards all of it."""

    def __init__(self) -> None:
        self._line: deque[Begun[T]] = deque()  # of each call that waits for slots
        self._begun: deque[Begun[T]] = deque()
        self._serial = 0
        self.frames = 0  # that have begun and have no number yet

    # ------------------------------------------------------------------ in line

    def is_next(self, thread: int) -> bool:
        """Returns whether a call of a thread may take free slots: nobody but calls of this thread, which it
        may have interrupted, are before it."""
        return not self._line or self._line[0].thread == thread

    @property
    def is_waiting(self) -> bool:
        """True if any call stands in line."""
        return bool(self._line)

    def stand_in_line(self, begun: Begun[T], thread: int) -> None:
        """``leave_line`` follows."""
        begun.thread = thread
        self._line.append(begun)

    def leave_line(self, begun: Begun[T]) -> None:
        """Removes a call, unless it was interrupted before it stood in line."""
        with suppress(ValueError):
            self._line.remove(begun)

    # ------------------------------------------------------------------ begun

    def begin(self, begun: Begun[T], thread: int, slots: Any, frames: int) -> None:
        """Enters frames in their order. ``complete`` or ``give_up`` follows."""
        begun.thread, begun.slots, begun.frames = thread, slots, frames
        self._begun.append(begun)
        self.frames += frames
        self._serial += 1
        begun.serial = self._serial

    def complete(self, begun: Begun[T], facts: T) -> list[Begun[T]]:
        """Returns the frames that get their numbers now, in their order."""
        begun.facts = facts
        return self._take_complete()

    def complete_alone(self, begun: Begun[T], facts: T) -> bool:
        """As ``complete`` where no other frame has begun, at the least cost; else changes nothing and returns
        False."""
        if len(self._begun) != 1:
            return False
        begun.facts = facts
        self._begun.clear()
        self.frames = 0
        return True

    def give_up(self, begun: Begun[T]) -> list[Begun[T]]:
        """Removes frames that were not complete; returns as ``complete`` does."""
        begun.is_given_up = True
        self._begun.remove(begun)
        self.frames -= begun.frames
        return self._take_complete()

    def let_pass(self, thread: int) -> list[Begun[T]]:
        """Puts unfinished frames of this thread, whose call was interrupted, behind those that are complete.
        Returns as ``complete`` does."""
        for begun in self.unfinished_of(thread):
            self._begun.remove(begun)
            self._serial += 1
            begun.serial = self._serial
            self._begun.append(begun)
        return self._take_complete()

    def unfinished_of(self, thread: int) -> list[Begun[T]]:
        return [begun for begun in self._begun if begun.facts is None and begun.thread == thread]

    def last_complete(self) -> int:
        """Returns the serial of the last frames that are complete, 0 without any."""
        return max((begun.serial for begun in self._begun if begun.facts is not None), default=0)

    def has_begun(self, serial: int | None = None) -> bool:
        """Returns whether any frame that has begun has no number yet; only of those up to ``serial``."""
        return bool(self._begun) and (serial is None or self._begun[0].serial <= serial)

    def _take_complete(self) -> list[Begun[T]]:
        complete = []
        while self._begun and self._begun[0].facts is not None:
            complete.append(self._begun.popleft())
            self.frames -= complete[-1].frames
        return complete
