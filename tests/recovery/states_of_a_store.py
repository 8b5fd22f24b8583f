"""Stores in every state in which a kill can leave one: each job is run to its end, and copied at each of its
storage calls at which a file or folder of a new kind is there."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tests.compaction.jobs import JOBS, STORE, run_job
from tests.compaction.stores import write_store
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import failpoints

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ALIKE = (
    (re.compile(r"\b[0-9a-f]{8}(?:[0-9a-f]{8})?\b"), "HEX"),
    (re.compile(r"\d+"), "0"),
    (re.compile(r"/frames/[a-z]\w*"), "/frames/COLUMN"),
)
_FRAMES = 10
_LOOKS = 4


def kind_of(path: Path, root: Path) -> str:
    """What a path below ``root`` is, whatever its numbers are, and of the frame table whichever column."""
    kind = path.relative_to(root).as_posix()
    for part, name in _ALIKE:
        kind = part.sub(name, kind)
    return kind


@dataclass(frozen=True)
class State:
    """``new``: the paths in it whose kind no earlier state has, relative to the root."""

    name: str
    saved: Path
    new: tuple[str, ...]

    def lay(self, root: Path) -> None:
        """Puts it where it was made: spilled shards are named by absolute paths."""
        clear(root)
        shutil.copytree(self.saved, root, symlinks=True)

    def paths(self) -> list[str]:
        return sorted(path.relative_to(self.saved).as_posix() for path in self.saved.rglob("*"))


def clear(root: Path) -> None:
    """Deletes everything, also while the thread of a writer that has failed is still at its last call."""
    for _ in range(100):
        shutil.rmtree(root, ignore_errors=True)
        if not root.exists():
            return
    raise AssertionError(f"{root} is written to")


class States:
    """All states of a store that is made in ``root``; each is saved below ``folder``."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._seen: set[str] = set()
        self._one_at_a_time = threading.Lock()  # sealers make storage calls, too
        self.all: list[State] = []

    def save(self, name: str) -> None:
        """Keeps the present state if a path of a new kind is in it."""
        with self._one_at_a_time, suppress(OSError):  # another thread has just deleted a file or a folder
            self._save(name)

    def _save(self, name: str) -> None:
        if {kind_of(path, self._root) for path in self._root.rglob("*")} <= self._seen:
            return
        saved = self._folder / str(len(self.all))
        try:
            shutil.copytree(self._root, saved, symlinks=True)
        except OSError:
            shutil.rmtree(saved)
            raise
        new: dict[str, str] = {}
        for path in sorted(saved.rglob("*")):
            if (kind := kind_of(path, saved)) not in self._seen:
                new.setdefault(kind, path.relative_to(saved).as_posix())
        if not new:
            shutil.rmtree(saved)
            return
        self._seen |= new.keys()
        self.all.append(State(name, saved, tuple(new.values())))

    def looking(self, name: str) -> Callable[[str], None]:
        """What saves the state at the first few calls of each kind."""
        calls: Counter[str] = Counter()

        def look(point: str) -> None:
            calls[point] += 1
            if calls[point] <= _LOOKS:
                self.save(f"{name} at {point}")

        return look

    def watch(self, name: str, job: Callable[[Path], object]) -> None:
        """Runs a job, and looks at each of its storage calls."""
        failpoints.watch_all(self.looking(name))
        try:
            job(self._root)
        finally:
            failpoints.watch_all(None)
        self.save(name)


def all_states(root: Path, folder: Path) -> list[State]:
    states = States(root, folder)
    for name, settings in WRITERS.items():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        states.watch(f"write {name}", lambda root, settings=settings: write(root, settings))
    states.watch("overwrite", lambda root: write(root, {"overwrite": True}))
    for job in JOBS:
        shutil.rmtree(root)
        write_store(root)
        look = states.looking(job)
        run_job(job, root, lambda _number, point, look=look: look(point))
        states.save(job)
    for name, edit in EDITS.items():
        shutil.rmtree(root)
        write_store(root)
        states.watch(name, edit)
    return states.all


WRITERS: dict[str, dict] = {
    "spilling": {"on_full": "spill"},
    "live": {"live": "index"},
    "growing": {"live": "append", "io": "pwrite"},
    "plain": {},
}
EDITS: dict[str, Callable[[Path], object]] = {
    strategy: lambda root, strategy=strategy: sw.update(
        root / STORE, {"z": slice(2, 4)}, 1, strategy=strategy
    )
    for strategy in ("in_place", "rewrite")
}


def no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write(root: Path, settings: dict) -> None:
    """Writes a store of three shards; of one that spills the first is in the second root."""
    spills = "on_full" in settings
    spill = {"spill_root": root / "spill"} if spills else {}
    (root / "spill").mkdir(exist_ok=True)
    if spills:
        failpoints.set_hook("shard.before_preallocate", failpoints.at_time(1, no_room))
    try:
        with warnings.catch_warnings(action="ignore", category=sw.errors.LayoutWarning):
            writer = sw.create(
                root / STORE,
                shape=(None, 16, 16),
                dtype="uint16",
                axes="tyx",
                chunks={"t": 2, "y": 8, "x": 8},
                shards={"t": 2},
                threads=1,
                frame_json_bytes=32,
                **how(store_within_ms=20, sync_interval_ms=20, **spill, **settings),
            )
        with writer:
            for number in range(_FRAMES):
                writer.append(np.full((16, 16), number + 1, np.uint16))
            writer.flush()
    finally:
        failpoints.set_hook("shard.before_preallocate", None)
