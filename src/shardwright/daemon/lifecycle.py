"""The life of a daemon process: the supervision of its threads, the signals that end it, and its exit code.

    running    SIGTERM, SIGINT or SIGHUP ──▶ draining    the stop event is set: open acquisitions are sealed
    running    a request to drain        ──▶ draining    the same; a signal after this is the first one
    running    SIGHUP                    ──▶ running     where it means a reload: see take_signals
    any        an ignored signal         ──▶ the same    as under nohup: see take_signals
    running    a thread dies             ──▶ draining    what can be sealed is sealed, the exit code is 1
    draining   the ingest thread ends    ──▶ exit        0; 1 when a thread died, 3 when stores are left
    draining   SIGTERM or SIGINT         ──▶ exit        at once, 128 + its number; recovery does the rest.
                                                         From FORCE_AFTER_S after the first signal on
    draining   any other signal          ──▶ draining    it says the same as the first one

The main thread reads signals as bytes from a pipe and only waits for them: no handler ever interrupts other
code. (Blocking them and waiting with sigtimedwait is not enough: threads that libraries started at import
have not blocked them, and would run the default action.)
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .events import EventLog

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# One end may send several signals. Both the kernel and the shell report a terminal that closes, 0.2 ms apart;
# timeout(1) signals its child and then its group. To take the second for an order to end at once would lose
# frames that were accepted.
FORCE_AFTER_S = 1.0
_POLL_S = 0.1
_LAST_WORDS_S = 2.0  # time that an exit waits for the reader of the events


def has_terminal() -> bool:
    """True if a terminal controls this process: its SIGHUP then means that the terminal is gone."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class Lifecycle:
    """The life of the daemon. Owned by the main thread; ``died`` and ``drain`` may be called from any thread.
    Starts the thread that writes ``events``."""

    def __init__(self, events: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._clock = clock
        self.stop = threading.Event()
        self._deaths: list[str] = []
        self._helpers: list[threading.Thread] = []  # must live as long as the daemon
        self._ending_since_s: float | None = None  # when the first signal came that ends
        self._on_hangup: Callable[[], None] | None = None
        self._signals = -1  # the pipe's reading end
        self._helpers.append(self.spawn("events", events.run))

    def take_signals(self, on_hangup: Callable[[], None] | None = None) -> None:
        """Makes signals end the daemon in good order from now on; SIGHUP calls ``on_hangup`` instead if it is
        given. A signal that is ignored stays ignored. Call it in the main thread."""
        self._on_hangup = on_hangup
        self._signals, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in SIGNALS:
            # Ignored as the daemon started: whoever started it means it to outlive this signal. nohup does so
            # for SIGHUP, and the shell of a script for SIGINT in its background jobs. That holds also where
            # SIGHUP would only reload: a daemon under nohup is restarted for another configuration.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)  # only the byte in the pipe matters

    def spawn(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Starts a thread whose exception ends the daemon with a non-zero code."""

        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (no thread may end in silence)
                self.died(name, error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def died(self, name: str, error: BaseException | None = None) -> None:
        """Reports a thread that ended unexpectedly. The daemon drains what it can and exits with 1."""
        self._deaths.append(name)
        facts = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
        self._events.emit(
            "thread_died", {"thread": name, **facts, "exc_info": error} if error else {"thread": name}
        )
        self.stop.set()

    def drain(self) -> None:
        """Ends the daemon in good order, as a signal would. From any thread."""
        if not self.stop.is_set():
            self._events.emit("stopping", {"request": "drain"})
            self.stop.set()

    def watch_uncaught(self) -> None:
        """Reports uncaught exceptions of threads that other code started."""

        def hook(facts: threading.ExceptHookArgs) -> None:
            self.died(facts.thread.name if facts.thread else "unknown", facts.exc_value)

        threading.excepthook = hook

    def supervise(self, ingest: threading.Thread, dead_threads: Callable[[], Iterable[str]]) -> int:
        """Waits in the main thread until ``ingest`` has ended; returns the exit code. ``dead_threads``
        returns the names of dead threads of other rooms."""
        while ingest.is_alive():
            self.act_on_signals(_POLL_S)
            if not self._deaths:
                self._look_for_deaths(dead_threads)
        ingest.join()
        if not self.stop.is_set():
            self.died(ingest.name)  # it returned although no stop was requested
        return 1 if self._deaths else 0

    def act_on_signals(self, wait_s: float = 0.0) -> None:
        """Acts on the signals that have come since ``take_signals``, after waiting for one for ``wait_s`` at
        most. In the main thread."""
        ready, _, _ = select.select([self._signals], [], [], wait_s)
        for number in os.read(self._signals, 64) if ready else b"":
            if number in SIGNALS:
                self._signalled(number)

    def end(self) -> None:
        """Waits until the last events are written, or their reader is too slow."""
        self._events.close(_LAST_WORDS_S)

    def _look_for_deaths(self, dead_threads: Callable[[], Iterable[str]]) -> None:
        """Reports threads that ended without an uncaught exception."""
        for name in (*dead_threads(), *(helper.name for helper in self._helpers if not helper.is_alive())):
            self.died(name)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGHUP and self._on_hangup is not None:
            self._on_hangup()
            return
        name, now_s = signal.Signals(number).name, self._clock()
        if self._ending_since_s is not None:
            if number == signal.SIGHUP or now_s < self._ending_since_s + FORCE_AFTER_S:
                return
            self._events.emit("stopped_by_force_warning", {"signal": name})
            self._events.flush(_LAST_WORDS_S)
            os._exit(128 + number)
        self._ending_since_s = now_s
        self._events.emit(
            "stopping",
            {
                "signal": name,
                "hint": "Another SIGTERM or SIGINT, a second later or more, ends the daemon at once; the "
                "next start recovers the open stores",
            },
        )
        self.stop.set()
