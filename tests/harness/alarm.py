"""A signal handler that interrupts the main thread again and again, between any two instructions."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardwrightError

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_NESTED = 3  # handlers that interrupt each other; where a call waits, without a limit they fill the stack
_AFTER_S = 1e-3


class Alarm:
    """A context within which ``handler`` is called, also while it runs, until it ends or ``is_over`` is set.
    ``answers``: what it has returned, or the type of the error of ours that it raised."""

    def __init__(self, handler: Callable[[], Any]) -> None:
        self.handler, self.answers = handler, []
        self.is_over = False
        self._nested = 0

    def __call__(self, *_: object) -> None:
        self._nested += 1
        if self._nested < MOST_NESTED:
            self._set()
        try:
            self.answers.append(self.handler())
        except ShardwrightError as error:
            self.answers.append(type(error))
        finally:
            self._nested -= 1
            self._set()

    def _set(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0 if self.is_over else _AFTER_S)

    def __enter__(self) -> Alarm:
        self.before = signal.signal(signal.SIGALRM, self)
        self._set()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        self._set()
        signal.signal(signal.SIGALRM, self.before)
