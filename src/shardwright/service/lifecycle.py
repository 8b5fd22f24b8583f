"""The life of a daemon process: threads that must not die unseen, the signals that end it, and its exit code.

    running    SIGTERM, SIGINT or SIGHUP ──▶ draining    the stop event is set: no new acquisitions, open ones are sealed
    running    a thread dies             ──▶ draining    what can be sealed is sealed, the exit code is 1
    draining   the ingest thread ends    ──▶ exit        0 after a signal, 1 after a death
    draining   a second signal           ──▶ exit        at once, 128 + the signal's number

Signals are blocked in every thread and taken synchronously by the main thread, which does nothing else: no handler ever interrupts other code.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_S = 0.1

Emit = Callable[[str, Mapping[str, Any]], None]


class Lifecycle:
    """Owned by the main thread; ``died`` and ``spawn``'s threads may report from anywhere."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.stop = threading.Event()
        self._deaths: list[str] = []

    @staticmethod
    def block_signals() -> None:
        """Call before the first thread starts: threads inherit the mask."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

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
        self._emit("thread_died", {"thread": name, **facts, "exc_info": error} if error else {"thread": name})
        self.stop.set()

    def watch_uncaught(self) -> None:
        """Take uncaught exceptions of threads that others started."""

        def hook(facts: threading.ExceptHookArgs) -> None:
            self.died(facts.thread.name if facts.thread else "unknown", facts.exc_value)

        threading.excepthook = hook

    def supervise(self, ingest: threading.Thread, helpers_alive: Callable[[], bool]) -> int:
        """Wait in the main thread until ``ingest`` has ended; returns the exit code."""
        received: int | None = None
        while ingest.is_alive():
            taken = signal.sigtimedwait(SIGNALS, _POLL_S)
            if taken is not None and received is not None:
                self._leave_at_once(taken.si_signo)
            if taken is not None:
                received = taken.si_signo
                self._emit("stopping", {"signal": signal.Signals(received).name, "hint": "a second signal ends at once, without sealing"})
                self.stop.set()
            if not self._deaths and not helpers_alive():
                self.died("worker")
        ingest.join()
        if not self.stop.is_set():
            self.died(ingest.name)  # it returned although nobody asked it to
        return 1 if self._deaths else 0

    def _leave_at_once(self, signal_number: int) -> None:
        self._emit("stopped_by_force_warning", {"signal": signal.Signals(signal_number).name})
        os._exit(128 + signal_number)
