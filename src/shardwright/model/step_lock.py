"""The lock of an object whose methods any thread may call at any moment: several threads at once, a signal
handler or a finalizer, which interrupts a thread within a call of the same object, and the copy of the object
in a forked child.

    with lock.turn(), lock:  # one step: the state is whole before and after it, never within
        ...
        lock.wait(1.0)       # whole here too: other threads take their steps meanwhile

A plain lock would make a signal handler wait for the call that it interrupts, for ever. A reentrant lock
alone would let it into the middle of that call. Here such a call is refused (``NestedCallError``).

Python runs the handlers of signals between any two instructions of the main thread, so an exception that one
raises (Ctrl-C) may leave the first half of a step. What half a step leaves behind could hand one slot to two
frames: the object is then *broken*, and every later step raises that error. The same holds for a defect.
"""

from __future__ import annotations

import os
import sys
import threading
from threading import get_ident
from typing import TYPE_CHECKING

from .error_text import ErrorText
from .errors import ForkedError, NestedCallError, ShardwrightError, WorkerError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType, TracebackType

_NOBODY = 0
_PACKAGE = f"{__name__.partition('.')[0]}."


class _Process:
    """The id of this process, without a system call at each look."""

    def __init__(self) -> None:
        self.look()
        if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
            os.register_at_fork(after_in_child=self.look)

    def look(self) -> None:
        self.id = os.getpid()


_process = _Process()


def interrupts_package() -> bool:
    """Returns whether the caller, a finalizer, has interrupted code of this package in its thread: that may
    hold any lock of ours, so the caller must not wait for another thread of ours."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - of what called the finalizer
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


def _leaves_half(error: BaseException) -> bool:
    return not isinstance(error, ShardwrightError) or isinstance(error, NestedCallError)


class ProcessBound:
    """Something that threads of this process keep alive: a copy of it in a forked child can do nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._process_id = _process.id

    @property
    def is_forked(self) -> bool:
        """True in a child that was forked after the object was made."""
        return _process.id != self._process_id

    def check_process(self) -> None:
        """Raises ``ForkedError`` in a forked child: the threads that do the work exist in its parent only,
        and its copy of the locks may be taken for ever."""
        if _process.id != self._process_id:
            raise ForkedError(
                f"this {self._what} belongs to another process, of which this one is a forked child",
                expected=f"process {self._process_id}",
                got=f"process {_process.id}",
                hint="Use it in its own process only: send the frames there, or start the child with "
                f'multiprocessing.get_context("spawn") and make a {self._what} of its own in it',
            )


class _Anyway:
    """The steps of a broken object: those that free what it has."""

    def __init__(self, lock: StepLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.begin_step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)


class StepLock(ProcessBound):
    """The lock of one object, and its state: whole, within a step, or broken. ``what`` names the object in
    messages, such as "writer"; ``hint``: what to do once it is broken."""

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(what)
        # ``with`` on this lock itself, never on a method in Python: a signal between taking it and the block
        # would leave it taken
        self.held = threading.RLock()
        self.changed = threading.Condition(self.held)
        self.broken: ErrorText | None = None
        self._hint = hint
        self._inside = _NOBODY  # the thread whose step it is; under ``held``
        self.anyway = _Anyway(self)

    @property
    def is_mine(self) -> bool:
        """True if this thread is within a step: it was interrupted there by what calls now."""
        return self._inside == get_ident() and self.held._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001

    def turn(self, *, also_broken: bool = False) -> AbstractContextManager[bool]:
        """Returns the lock to take for a step. Raises ``ForkedError``, ``NestedCallError``, and what has
        broken the object unless ``also_broken``."""
        if self._inside or self._process_id != _process.id or self.broken is not None:
            self._look(also_broken=also_broken)
        return self.held

    def _look(self, *, also_broken: bool) -> None:
        self.check_process()
        if self._inside == get_ident():
            if self.is_mine:
                raise NestedCallError(
                    f"this call interrupted another one of this thread in the middle of the {self._what}",
                    expected="no call from a signal handler or a finalizer at such a moment",
                    hint="Set a flag in the handler, and act on it where frames are appended",
                )
            self._break(None)  # its step ended without ``__exit__``
        if self.broken is not None and not also_broken:
            raise self.broken.to_error()

    def __enter__(self) -> None:
        if self._inside or self.broken is not None:
            self.begin_step()
            self._inside = _NOBODY
            if self.broken is not None:
                raise self.broken.to_error()
        self._inside = get_ident()

    def begin_step(self) -> None:
        """As ``__enter__``, also of a broken object."""
        if self._inside != _NOBODY:  # of a thread that does not hold the lock any more
            self._break(None)
        self._inside = get_ident()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # errors of ours are raised where the state is whole, but for the one of a handler's own call
        if error is not None and self._inside and _leaves_half(error):
            self._break(error)
        self._inside = _NOBODY

    def wait(self, timeout_s: float, *, also_broken: bool = False) -> None:
        """Lets others take their steps until one notifies, or the time is over. Within a step. Raises what
        has broken the object meanwhile, unless ``also_broken``."""
        self._inside = _NOBODY
        self.changed.wait(timeout_s)  # an exception from here finds the state whole
        self._inside = get_ident()
        if self.broken is not None and not also_broken:
            raise self.broken.to_error()

    def break_by(self, error: BaseException) -> None:
        """Breaks the object, unless it is: the thread that worked for it died of this error."""
        with self.held:
            self._break(error)

    def _break(self, error: BaseException | None) -> None:
        """Under ``held``, or without it, when no other thread can be within a step."""
        self._inside = _NOBODY
        if self.broken is None:
            is_defect = isinstance(error, Exception) and not isinstance(error, ShardwrightError)
            message = f"a call of this {self._what} was interrupted in the middle of a step"
            why = WorkerError(
                f"a defect has ended this {self._what}" if is_defect else message,
                got=None if error is None else repr(error),
                hint=self._hint,
            )
            self.broken = ErrorText.of(error, why) if is_defect and error is not None else ErrorText.of(why)
        with self.held:
            self.changed.notify_all()
