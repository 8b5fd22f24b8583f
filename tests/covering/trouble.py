"""What a writer of a life meets: a disk without room for more shards, frames that come faster than they are
stored, and a frame whose place has one."""

from __future__ import annotations

import errno
import logging
import os
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.json_process import TIMEOUT_S, wait_for

from shardwright.disk import failpoints, slot_file
from shardwright.model.errors import DuplicateFrameError, OverloadError, StorageError, StorageFullError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.properties.image_acquisitions import Frame

    import shardwright as sw

    from .lives import Life

WORK = ("slots.before_store", "slots.before_part")  # of workers, on frames that can leave the ring


@dataclass
class Met:
    """The account of one writer. ``stored``: so many first frames of the life are. ``lost``: those of the
    writer before it that came and are not, as far as that is recorded."""

    path: str = ""
    beyond: list[bool] = field(default_factory=list)  # by frame: whether it needs more shards than the first
    needs_files: bool = False  # of these
    stored: int = 0
    lost: int = 0
    no_room: int = 0  # times that shards found none
    spilled: int = 0  # times that they found it elsewhere
    full: str = ""  # the error of a full disk
    crowded: bool = False  # a frame came while no frame buffer was free
    waited: bool = False  # which had to wait for one
    dropped: int = 0
    overloads: int = 0  # errors
    duplicates: int = 0
    refused: int = 0  # of these, with an error
    events: list[str] = field(default_factory=list)

    @property
    def frames(self) -> int:
        return self.stored + self.duplicates + self.dropped


class Listener(logging.Handler):
    """Keeps the names of the events of writers, as a context manager."""

    def __init__(self, met: Met) -> None:
        super().__init__()
        self._met = met

    def emit(self, record: logging.LogRecord) -> None:
        if name := getattr(record, "event", None):
            self._met.events.append(name)

    def __enter__(self) -> None:
        logging.getLogger("shardwright").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("shardwright").removeHandler(self)


class NoRoom:
    """A disk that has no room for new shards below ``root``, but for ``second``, until a writer says that it
    waits, or ``ends``. For a process that dies: this one is never given back its own."""

    def __init__(self, root: Path, second: Path, met: Met) -> None:
        self.ends = False
        self._root, self._second, self._met = root, second, met
        self._preallocate, slot_file.preallocate = slot_file.preallocate, self._try

    def _try(self, descriptor: int, nbytes: int, *, start: int = 0) -> bool:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(self._second):
            self._met.spilled += 1
        elif path.is_relative_to(self._root) and not (start or self.ends or "disk_full" in self._met.events):
            self._met.no_room += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._preallocate(descriptor, nbytes, start=start)


def is_flushed(writer: sw.Writer) -> bool:
    """Whether there is room for what came."""
    try:
        writer.flush()
    except StorageFullError:  # the end of the writer
        raise
    except StorageError:
        return False
    return True


class Crowd:
    """Hands frames to a writer. The first one that a worker gets is held there until one more has come than
    there are buffers. That one is for a place that has a frame, so that it changes nothing where the policy
    lets it in. ``finish`` sends such a one in any case."""

    def __init__(self, life: Life, writer: sw.Writer, met: Met) -> None:
        self._life, self._writer, self._met = life, writer, met
        self._driver = writer._driver
        self._is_held, self._goes_on = threading.Event(), threading.Event()
        self._has_waited = False

    def send(self, frame: Frame) -> None:
        if self._met.crowded:
            self._life.send(self._writer, [frame])
            return
        wait_for(self._is_idle, "idle workers")
        self._goes_on.clear()
        for point in WORK:
            failpoints.set_hook(point, self._hold)
        try:
            self._life.send(self._writer, [frame])
            wait_for(lambda: self._is_held.is_set() or self._is_idle(), "a worker that is held")
            if self._is_held.is_set() and self._is_at_work():
                self._send_one_more(self._full_ring())
                self._met.crowded, self._met.waited = True, self._has_waited
        finally:
            for point in WORK:
                failpoints.set_hook(point, None)
            self._goes_on.set()
            self._is_held.clear()

    def finish(self) -> None:
        if not self._met.duplicates:
            self._send_one_more()

    def _hold(self) -> None:
        self._is_held.set()
        assert self._goes_on.wait(TIMEOUT_S)

    def _is_idle(self) -> bool:
        with self._driver.lock.turn(), self._driver.lock:
            self._driver._collect()
            return not self._driver.acquisition.in_flight and not self._is_at_work()

    def _is_at_work(self) -> bool:
        """Whether there are frames that surely do not wait for the rest of their slab. Of those that wait
        some are staged and in no buffer: the acquisition's own count takes off all staged ones, also those of
        a slab that a worker has."""
        return self._driver.ring.submitted > self._driver.acquisition._core.table.held_frames

    @contextmanager
    def _full_ring(self) -> Iterator[None]:
        """No buffer is free until whoever wants one waits for it: cameras are writing into the others."""
        driver, wait = self._driver, self._driver.lock.wait

        def go_on(*arguments: Any, **more: Any) -> None:
            self._has_waited = True
            self._goes_on.set()
            wait(*arguments, **more)

        with driver.lock.turn(), driver.lock:
            claimed = driver.ring.take(driver.acquisition.limits.ring_frames)
            driver.ring.claim(claimed)
        driver.lock.wait = go_on
        try:
            yield
        finally:
            driver.lock.wait = wait
            driver.give_back_claimed(claimed)
            self._goes_on.set()

    def _send_one_more(self, meanwhile: AbstractContextManager[None] = nullcontext()) -> None:
        met, before = self._met, self._writer.frames_dropped
        first = self._life.frames[0]
        again = replace(first, content="noise", seed=first.seed + 50)
        try:
            with meanwhile:
                self._life.send(self._writer, [again], by_index=True)
            wait_for(lambda: is_flushed(self._writer), "room on the disk")
        except OverloadError:
            met.overloads += 1
        except DuplicateFrameError:
            met.duplicates += 1
            met.refused += 1
        else:
            dropped = self._writer.frames_dropped - before
            met.dropped += dropped
            met.duplicates += 1 - dropped
