"""Runs calls of the filesystem in a few threads at once. To make, name or delete a file costs time in the
kernel, without the GIL and in each folder by itself: half a millisecond on ext4 of a virtual disk, where two
threads make twice as many."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_THREADS, MOST_WAITING = 4, 8
LEAST_EACH = 4  # calls; a thread for fewer gains nothing


def side_by_side(action: Callable[[int], Any], count: int, *, syncs: bool = False) -> None:
    """Calls ``action`` with each of 0 ... ``count`` - 1, once and in any order; returns when all are done.
    The first error ends it: raised here once no thread is in a call any more, so that what was done can be
    undone. The threads, of which the caller is one, end with it. ``syncs``: the calls mostly wait for the
    disk, which makes what several threads wait for durable at once."""
    threads = min(MOST_THREADS, os.cpu_count() or 1, count // LEAST_EACH)
    if syncs:
        threads = min(MOST_WAITING, count)
    numbers = itertools.count()  # next() on it is atomic under the interpreter's lock
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not errors and (number := next(numbers)) < count:
                action(number)
        except BaseException as error:  # noqa: BLE001  (raised by the caller)
            errors.append(error)

    others: list[threading.Thread] = []
    try:
        for i in range(1, threads):
            other = threading.Thread(target=work, name=f"{threading.current_thread().name}-files-{i}")
            with suppress(RuntimeError):  # no more threads here: those that there are do it
                other.start()
                others.append(other)
        work()
    except BaseException as error:  # noqa: BLE001  (Ctrl-C between two calls)
        errors.append(error)
    while others:
        try:
            others[-1].join()
            others.pop()
        except BaseException as error:  # noqa: BLE001  (likewise: raised once no call is under way)
            errors.append(error)
    if errors:
        first = errors[0]
        errors.clear()
        try:
            raise first
        finally:
            del first  # its traceback would hold itself, and all that these calls had, for ever
