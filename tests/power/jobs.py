"""Power cuts while a store is moved away, rechunked or given levels: what readers find afterwards, and the
job that is run again.

P13  at any moment every store and level that a reader finds has all of its values, and the image is
     somewhere; once the job said that it is done,
     it is done. Stores, jobs and most of the judging are those of ``tests/compaction``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.compaction.jobs import WHOLE, run_job
from tests.compaction.judge import judge_end, judge_moment
from tests.compaction.stores import Ground, read_stores, tree_of, write_store

from . import machine
from .judge import UnmountableError

if TYPE_CHECKING:
    from .recording import Promised

_FOLDER = "stores"  # below the root of the disk, which has a lost+found


def lay(root: Path, job: str) -> None:
    """What the job works on."""
    write_store(root / _FOLDER, is_spilled=job not in WHOLE)


def do(root: Path, job: str) -> None:
    """All is durable when it returns."""
    _, report = run_job(job, root / _FOLDER)
    assert report["ok"], report


class JobJudge:
    """See ``judge.Judge``."""

    def __init__(self, job: str, filesystem: str, folder: Path) -> None:
        self._job = job
        self._filesystem = filesystem
        self._folder = folder
        self._scratch = tempfile.TemporaryDirectory(prefix="ground-")
        self._ground = Ground.of(job, Path(self._scratch.name))

    def judge(self, loop: machine.LoopDevice, promised: Promised, *, independently: bool) -> list[str]:
        """What is wrong; the job is run again on every image. Raises ``UnmountableError``."""
        del independently  # zarr-python reads each of them
        try:
            machine.mount(loop.device, self._folder, self._filesystem)
        except OSError as error:
            raise UnmountableError(str(error)) from error
        try:
            return self._judge_mounted(self._folder / _FOLDER, promised)
        finally:
            machine.unmount(self._folder)

    def _judge_mounted(self, stores: Path, promised: Promised) -> list[str]:
        faults = judge_moment(self._ground, stores)
        if promised.packed and not faults and not self._is_done(stores):
            faults.append("it was done, and is not any more")
        if faults:
            return faults
        _, report = run_job(self._job, stores)
        if not report["ok"]:
            return [f"run again: {report}"]
        return [f"run again: {fault}" for fault in judge_end(self._ground, stores, {})]

    def _is_done(self, stores: Path) -> bool:
        if self._job == "merge":  # the values are the same before
            return self._ground.tree <= tree_of(stores)
        found, end = read_stores(stores), self._ground.end
        if self._ground.tree - tree_of(stores):  # such as the dataset over the shards
            return False
        return found.keys() == end.keys() and all(
            found[name].keys() == levels.keys()
            and all(np.array_equal(found[name][level], values) for level, values in levels.items())
            for name, levels in end.items()
        )
