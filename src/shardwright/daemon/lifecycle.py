"""The life of a daemon process: threads that must not die unseen, the signals that end it, and its exit code.

    running    SIGTERM, SIGINT or SIGHUP ──▶ draining    the stop event is set: open acquisitions are sealed
    running    somebody asks to drain    ──▶ draining    the same; a signal after this is the first one
    running    SIGHUP                    ──▶ running     where it asks for a reload: see take_signals
    running    a thread dies             ──▶ draining    what can be sealed is sealed, the exit code is 1
    draining   the ingest thread ends    ──▶ exit        0; 1 when a thread died, 3 when stores are left
    draining   a second signal           ──▶ exit        at once, 128 + its number; the rest is recovery's

Signals come to the main thread as bytes in a pipe, and it does nothing but wait for them: no handler ever
interrupts other code. (Blocking them and waiting with sigtimedwait is not enough: threads that libraries
started while they were imported do not have them blocked and would take the default.)
"""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .events import EventLog

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_S = 0.1
_LAST_WORDS_S = 2.0  # how long an exit waits for whoever reads the events


def has_terminal() -> bool:
    """Whether a terminal controls this process: its SIGHUP then means that the terminal is gone."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class Lifecycle:
    """Owned by the main thread; ``died``, ``drain`` and ``spawn``'s threads may report from anywhere. Starts
    the thread that writes ``events``."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self.stop = threading.Event()
        self._deaths: list[str] = []
        self._helpers: list[threading.Thread] = []  # must live as long as the daemon
        self._ending = False  # whether a signal has come
        self._on_hangup: Callable[[], None] | None = None
        self._signals = -1  # the pipe's reading end
        self._helpers.append(self.spawn("events", events.run))

    def take_signals(self, on_hangup: Callable[[], None] | None = None) -> None:
        """From now on signals end the daemon in good order; SIGHUP calls ``on_hangup`` instead where there is
        one. Call in the main thread."""
        self._on_hangup = on_hangup
        self._signals, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # the byte in the pipe is all that matters

    def spawn(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Start a thread whose exception ends the daemon with a non-zero code."""

        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (the whole point: nothing ends in silence)
                self.died(name, error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def died(self, name: str, error: BaseException | None = None) -> None:
        """A thread is gone that should not be. The daemon drains what it can and exits with 1."""
        self._deaths.append(name)
        facts = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
        self._events.emit(
            "thread_died", {"thread": name, **facts, "exc_info": error} if error else {"thread": name}
        )
        self.stop.set()

    def drain(self) -> None:
        """End in good order, as a signal would. From any thread."""
        if not self.stop.is_set():
            self._events.emit("stopping", {"request": "drain"})
            self.stop.set()

    def watch_uncaught(self) -> None:
        """Take uncaught exceptions of threads that others started."""

        def hook(facts: threading.ExceptHookArgs) -> None:
            self.died(facts.thread.name if facts.thread else "unknown", facts.exc_value)

        threading.excepthook = hook

    def supervise(self, ingest: threading.Thread, dead_threads: Callable[[], Iterable[str]]) -> int:
        """Wait in the main thread until ``ingest`` has ended; returns the exit code. ``dead_threads`` names
        those of other rooms that are gone."""
        while ingest.is_alive():
            for number in self._received():
                self._signalled(number)
            if not self._deaths:
                self._look_for_deaths(dead_threads)
        ingest.join()
        if not self.stop.is_set():
            self.died(ingest.name)  # it returned although nobody asked it to
        return 1 if self._deaths else 0

    def end(self) -> None:
        """The last events are written, unless nobody takes them."""
        self._events.close(_LAST_WORDS_S)

    def _look_for_deaths(self, dead_threads: Callable[[], Iterable[str]]) -> None:
        """Threads that ended without an exception that anybody could see."""
        for name in (*dead_threads(), *(helper.name for helper in self._helpers if not helper.is_alive())):
            self.died(name)

    def _received(self) -> list[int]:
        """Signals that have come, after waiting for one for a moment."""
        ready, _, _ = select.select([self._signals], [], [], _POLL_S)
        return [number for number in os.read(self._signals, 64) if number in SIGNALS] if ready else []

    def _signalled(self, number: int) -> None:
        if number == signal.SIGHUP and self._on_hangup is not None:
            self._on_hangup()
            return
        name = signal.Signals(number).name
        if self._ending:
            self._events.emit("stopped_by_force_warning", {"signal": name})
            self._events.flush(_LAST_WORDS_S)
            os._exit(128 + number)
        self._ending = True
        self._events.emit(
            "stopping",
            {"signal": name, "hint": "a second signal ends at once and leaves what is open to recovery"},
        )
        self.stop.set()
