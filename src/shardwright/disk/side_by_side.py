"""Runs calls of the filesystem in a few threads at once, where they wait in the kernel: for a disk that looks
through many freed inodes before it makes a file, for a server, for a sync.

Where they do not, threads are in each other's way: each call gives the interpreter's lock away, and to get it
back from a thread on another core takes a wake-up. Names of 384 images took one thread 1.9 to 2.1 s and four
threads 2.2 to 2.6 s on an ext4 that had deleted nothing for minutes; where it just had, a file took half a
millisecond, and two threads made twice as many. So the first calls are made alone, and timed."""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_THREADS, MOST_WAITING = 4, 8
LEAST_EACH = 4  # calls; a thread for fewer gains nothing
SLOW_S = 0.0005  # a call; most of it is then spent in the kernel
_CORES = os.cpu_count() or 1  # the system reads a file for it


def side_by_side(action: Callable[[int], Any], count: int, *, syncs: bool = False) -> None:
    """Calls ``action`` with each of 0 ... ``count`` - 1, once and in any order; returns when all are done.
    The first error ends it: raised here once no thread is in a call any more, so that what was done can be
    undone. The threads, of which the caller is one, end with it. ``syncs``: the calls mostly wait for the
    disk, which makes what several threads wait for durable at once."""
    numbers = itertools.count()  # next() on it is atomic under the interpreter's lock
    if syncs:
        _in_threads(action, numbers, count, min(MOST_WAITING, count))
        return
    begun_s = time.perf_counter()
    for number in numbers:
        if number == count:
            return
        action(number)
        done = number + 1
        left = count - done
        if done >= LEAST_EACH <= left and time.perf_counter() - begun_s > SLOW_S * done:
            _in_threads(action, numbers, count, min(MOST_THREADS, _CORES, left // LEAST_EACH))
            return


def _in_threads(action: Callable[[int], Any], numbers: Iterator[int], count: int, threads: int) -> None:
    """Makes the calls for the rest of ``numbers``, below ``count``."""
    errors: list[BaseException] = []
    over = False

    def work() -> None:
        try:
            while not (errors or over) and (number := next(numbers)) < count:
                action(number)
        except BaseException as error:  # noqa: BLE001  (raised by the caller)
            errors.append(error)

    others: list[threading.Thread] = []
    try:
        for i in range(1, threads):
            other = threading.Thread(target=work, name=f"{threading.current_thread().name}-files-{i}")
            others.append(other)  # before it starts: Ctrl-C ends the wait for that
            with suppress(RuntimeError):  # no more threads here: those that there are do it
                other.start()
        work()
    except BaseException as error:  # noqa: BLE001  (Ctrl-C between two calls)
        errors.append(error)
    while others:
        try:
            with suppress(RuntimeError):  # one that has not begun: if it still does, it makes no call
                others[-1].join()
            others.pop()
        except BaseException as error:  # noqa: BLE001  (likewise: raised once no call is under way)
            errors.append(error)
    over = True
    if errors:
        first = errors[0]
        errors.clear()
        try:
            raise first
        finally:
            del first  # its traceback would hold itself, and all that these calls had, for ever
