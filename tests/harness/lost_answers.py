"""A disk whose answers get lost: it renames, links or deletes, and says that it could not."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardwright.disk import system
from shardwright.disk.system import OperatingSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The client of a network disk asks again, and meets what it has done itself; or the disk is failing.
MOVED, MADE = (errno.ENOENT, errno.EIO), (errno.EEXIST, errno.EIO)
ANSWERS = {
    "rename": (*MOVED, errno.EEXIST),
    "add_name": MADE,
    "make_link": MADE,
    "unlink": MOVED,
    "remove_folder": MOVED,
    "make_folder": MADE,
}


class LosesAnswers(OperatingSystem):
    """Does everything; to the call of this number among those that change names, counted from 0, it answers
    with an error. ``choice``: with which of those that its kind has. ``asked``: the names of these calls."""

    def __init__(self, number: int = -1, choice: int = 0) -> None:
        self.asked: list[str] = []
        self._number, self._choice = number, choice
        self._lock = threading.Lock()

    def _answer(self, name: str, call: Callable[..., None], *arguments: object) -> None:
        call(*arguments)
        with self._lock:
            self.asked.append(name)
            is_lost = len(self.asked) - 1 == self._number
        if is_lost:
            answers = ANSWERS[name]
            number = answers[self._choice % len(answers)]
            raise OSError(number, os.strerror(number))

    def rename(self, old: int, old_name: str, new: int, new_name: str, flags: int = 0) -> None:
        self._answer("rename", super().rename, old, old_name, new, new_name, flags)

    def add_name(self, old: int, old_name: str, new: int, new_name: str) -> None:
        self._answer("add_name", super().add_name, old, old_name, new, new_name)

    def make_link(self, folder: int, name: str, target: Path) -> None:
        self._answer("make_link", super().make_link, folder, name, target)

    def unlink(self, folder: int, name: str) -> None:
        self._answer("unlink", super().unlink, folder, name)

    def remove_folder(self, folder: int, name: str) -> None:
        self._answer("remove_folder", super().remove_folder, folder, name)

    def make_folder(self, folder: int, name: str, mode: int) -> None:
        self._answer("make_folder", super().make_folder, folder, name, mode)


@contextmanager
def losing(number: int, choice: int = 0) -> Iterator[LosesAnswers]:
    """A context in which that answer is lost."""
    before, disk = system.calls, LosesAnswers(number, choice)
    system.use(disk)
    try:
        yield disk
    finally:
        system.use(before)


def each_lost(job: Callable[[str | None], None]) -> None:
    """Runs ``job(None)`` while nothing is lost, then ``job(kind)`` once for each answer that is lost, in one
    of its ways: of the calls of one kind in a row the first and the last one."""
    with losing(-1) as disk:
        job(None)
    assert disk.asked, "the job has changed no names"
    kinds = [None, *disk.asked, None]
    for number in range(len(disk.asked)):
        before, kind, after = kinds[number : number + 3]
        if kind != before or kind != after:
            with losing(number, number) as disk:
                job(kind)
