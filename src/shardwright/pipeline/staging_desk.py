"""The staging desk: which frames of unfinished slabs go to the staging area, and when. Owned by the acquisition's thread; workers do the writing.

A frame that has waited for half of ``store_within_ms`` for its slab is staged. Its slot is free again once its slab is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.wire.free_slots import FreeSlots

from .assembly import ON_ITS_WAY, UNSTAGED, SlabTable
from .encoding import StageDone, StageTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.shard.staging import StagingArea

    from .workers import WorkerPool

STAGE_TASK_BYTES = 32 << 20  # pixels of one task: slow slabs have a frame or two, a flush may have hundreds


class StagingDesk:
    """``area`` None: slabs of one frame never wait, or staging has failed."""

    def __init__(
        self,
        area: StagingArea | None,
        taken: Iterable[int],
        table: SlabTable,
        frame_bytes: int,
        pool: WorkerPool,
        report: Callable[[StageDone], None],
    ) -> None:
        self.area = area
        self._table = table
        self._frame_bytes = frame_bytes
        self._pool = pool
        self._line = pool.line(staging=True)
        self._report = report
        self._free = FreeSlots(self.slots, np.setdiff1d(np.arange(self.slots), np.array(list(taken), np.int64)))
        self.tasks = np.zeros(table.slab.size, np.int64)  # of each row that are on their way; the row stays put until they are done
        self.starved = False  # frames waited for a slot the last time

    @property
    def usable(self) -> bool:
        """Whether a frame that waits can be staged."""
        return self.area is not None and not (self.starved and not self._free)

    def stage(self, rows: Iterable[int], before_ns: int) -> None:
        """Send frames of these rows that came before ``before_ns`` and are still only in memory."""
        self.starved = False
        if self.area is None:
            return
        for row in rows:
            places = self._table.unstaged_since(row, before_ns)
            most = max(1, STAGE_TASK_BYTES // self._frame_bytes)
            for start in range(0, places.size, most):
                self._stage(row, places[start : start + most])

    def _stage(self, row: int, places: np.ndarray) -> None:
        if places.size > len(self._free):
            self.starved = True
            places = places[: len(self._free)]
        if not places.size:
            return
        assert self.area is not None, "asked by stage"
        table = self._table
        slots = self._free.take(places.size)
        table.staging_slot[row, places] = ON_ITS_WAY
        self.tasks[row] += 1
        records = table.records[row][places].copy()
        task = StageTask(
            self.area,
            table.addresses[row][places].copy(),
            records.view(np.uint8).reshape(places.size, -1),
            self._frame_bytes,
            row,
            places,
            slots,
            self._report,
        )
        self._pool.put(self._line, [task])

    def done(self, report: StageDone) -> bool:
        """Note a report; True when the frames are staged. After a failure nothing is staged any more: slabs are stored when they are full."""
        self.tasks[report.row] -= 1
        if report.error is None and self.area is not None:
            self._table.staging_slot[report.row, report.places] = report.slots
            return True
        self._table.staging_slot[report.row, report.places] = UNSTAGED
        self.area, self._free = None, FreeSlots(0)
        return False

    @property
    def slots(self) -> int:
        """All of them."""
        return 0 if self.area is None else self.area.slots

    @property
    def free_slots(self) -> int:
        return 0 if self.area is None else len(self._free)

    def take_slots(self, count: int) -> np.ndarray:
        """For frames that somebody else stages; there must be so many."""
        return self._free.take(count)

    def slots_of(self, row: int) -> np.ndarray:
        """The slots that hold frames of a row."""
        slots = self._table.staging_slot[row]
        taken: np.ndarray = slots[slots >= 0]
        return taken

    def give_back(self, slots: np.ndarray) -> None:
        if self.area is not None:
            self._free.give_back(slots)
