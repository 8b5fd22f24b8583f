"""Renewal in a forked child, which has none of its parent's other threads, but the locks that these held, for
ever, and what they had half changed."""

from __future__ import annotations

import os
import threading
from inspect import ismethod
from typing import TYPE_CHECKING
from weakref import WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable

_functions: list[Callable[[], object]] = []
_methods: set[WeakMethod[Callable[[], object]]] = set()


def renew_in_child(renew: Callable[[], object]) -> None:
    """Has ``renew`` called in each child that is forked from now on: it makes new locks, and forgets what
    another thread may have left half changed. A method is called as long as its object lives. In the child no
    other thread runs meanwhile; ``renew`` must take no lock."""
    if ismethod(renew):
        _methods.add(WeakMethod(renew, _methods.discard))
    else:
        _functions.append(renew)


class RenewedLock:
    """A lock of the process that is free in a forked child, whoever held it in the parent."""

    def __init__(self) -> None:
        self._begin()
        renew_in_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _renew_all() -> None:
    for function in _functions:
        function()
    for method in list(_methods):
        if (renew := method()) is not None:
            renew()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_renew_all)
