"""A simulated disk on which a power cut leaves what was synced, and nothing else."""

from __future__ import annotations

import errno
import os
import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.world.disk import SimulatedDisk, Wrong

from shardwright.disk import failpoints, system

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Caller:
    wrong: Wrong | None


class _Least(random.Random):
    def random(self) -> float:
        return 0.99

    def getrandbits(self, k: int, /) -> int:  # for choices other than of what is left
        return super().getrandbits(k)


@contextmanager
def disk_at(root: Path) -> Iterator[SimulatedDisk]:
    """A context in which all below a new folder is on this disk."""
    root.mkdir(parents=True)
    before, disk = system.calls, SimulatedDisk(root, _Least(0))
    system.use(disk)
    try:
        yield disk
    finally:
        system.use(before)
        disk.end()


@contextmanager
def failing_folder(disk: SimulatedDisk, way: str, number: int) -> Iterator[list[str]]:
    """A context in which the making of a folder fails once: of the one with this number, counted from 0. It
    is made all the same, and its name is not durable. ``way``: "answer lost", or "sync fails", that of the
    folder above it. Yields all failpoints that were reached."""
    reached: list[str] = []

    def look(point: str) -> None:
        reached.append(point)
        if point == "directory.before_create" and reached.count(point) == number + 1:
            if way == "answer lost":
                disk.caller = Caller(Wrong(done=True))
            else:
                failpoints.set_hook("directory.before_sync", fail)

    def fail() -> None:
        failpoints.set_hook("directory.before_sync", None)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    failpoints.watch_all(look)
    try:
        yield reached
    finally:
        failpoints.watch_all(None)
        failpoints.set_hook("directory.before_sync", None)
