"""The result of a request to another thread: a value, or the reason why there is none, as text
(``ErrorText``).

It replaces ``concurrent.futures.Future``, which keeps the exception with its traceback, and so all objects
that the other thread used.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from .error_text import ErrorText

T = TypeVar("T")


class Promise(Generic[T]):
    """A value to come. Thread-safe. The first of ``keep``, ``fail`` and ``cancel`` counts."""

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._value: list[T] = []  # one, or none
        self._failure: ErrorText | None = None
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` once, in the thread that settles the promise, or now if it is settled. It must
        not raise."""
        with self._lock:
            if not self._settled.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def _settle(self, change: Callable[[], None]) -> bool:
        """Settles it by ``change``, then calls who waits for it. Returns False if it is settled already."""
        with self._lock:
            if self._settled.is_set():
                return False
            change()
            self._settled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return True

    def keep(self, value: T) -> bool:
        """Sets the value. Returns False if the promise is settled already: ``value`` then stays the
        caller's."""
        return self._settle(lambda: self._value.append(value))

    def fail(self, why: ErrorText) -> None:
        def change() -> None:
            self._failure = why

        self._settle(change)

    def cancel(self) -> None:
        """Cancels the request, from either side. Does nothing once it is settled."""

        def change() -> None:
            self._cancelled = True

        self._settle(change)

    def done(self) -> bool:
        return self._settled.is_set()

    def cancelled(self) -> bool:
        return self._cancelled

    def failure(self, timeout_s: float | None = None) -> ErrorText | None:
        """Waits until it is settled; returns the reason why there is no value, or None. Raises
        ``TimeoutError``."""
        if not self._settled.wait(timeout_s):
            raise TimeoutError
        return self._failure

    def result(self, timeout_s: float | None = None) -> T:
        """Waits for the value and returns it. Raises ``TimeoutError``, or a fresh error with the reason why
        there is none."""
        if (failure := self.failure(timeout_s)) is not None:
            raise failure.to_error()
        assert self._value, "a cancelled promise has no value to ask for"
        return self._value[0]
