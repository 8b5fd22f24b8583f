"""The staging scheduler: which frames of unfinished slabs go to the staging area, and when. Part of the core;
workers do the writing.

A frame that has waited for its slab for half of ``store_within_ms`` is staged; at once, where its pixels go
into its chunks instead: if the slab is closed already, without a slot. A slot is free again once the slab of
its frame is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.wire.free_slots import FreeSlots

from .assembly import ON_ITS_WAY, UNSTAGED, WITH_ITS_SLAB, SlabTable
from .commands import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.shard.shard_row_files import ShardRowFiles

    from .commands import Command, FramesStaged

STAGE_TASK_BYTES = 32 << 20  # pixels of one task: slow slabs have a frame or two, a flush may have hundreds


class StagingScheduler:
    """``slots``: size of the staging area, 0 if slabs are single frames or once staging has failed; ``taken``
    hold frames already."""

    def __init__(
        self,
        slots: int,
        taken: Iterable[int],
        table: SlabTable,
        frame_bytes: int,
        ask: Callable[[Command], None],
    ) -> None:
        self.slots = slots
        self._table = table
        self._most = max(1, STAGE_TASK_BYTES // frame_bytes)
        self._ask = ask
        self._free = FreeSlots(slots, np.setdiff1d(np.arange(slots), np.array(list(taken), np.int64)))
        # of each row, those under way; the row is not freed until they are done
        self.tasks = np.zeros(table.slab.size, np.int64)
        self.starved = False  # at the last ``stage`` frames found no slot

    @property
    def usable(self) -> bool:
        """True if a waiting frame can be staged."""
        return self.slots > 0 and not (self.starved and not self._free)

    def stage(self, rows: Iterable[tuple[int, ShardRowFiles | None]], before_ns: int) -> None:
        """Sends frames of these rows that came by ``before_ns`` (monotonic) and are only in memory, to be put
        into chunks of the files beside a row, if there are any."""
        self.starved = False
        if not self.slots:
            return
        for row, files in rows:
            places = self._table.unstaged_since(row, before_ns)
            for start in range(0, places.size, self._most):
                self._stage(row, places[start : start + self._most], files)

    def _stage(self, row: int, places: np.ndarray, files: ShardRowFiles | None) -> None:
        table = self._table
        if files is not None and not table.is_collecting(row):
            slots = np.full(places.size, WITH_ITS_SLAB)
        else:
            if places.size > len(self._free):
                self.starved = True
                places = places[: len(self._free)]
            slots = self._free.take(places.size)
        if not places.size:
            return
        table.staging_slot[row, places] = ON_ITS_WAY
        self.tasks[row] += 1
        self._ask(
            Stage(
                row,
                int(table.slab[row]),
                places,
                slots,
                table.addresses[row][places].copy(),
                table.records[row][places].copy(),
                files,
            )
        )

    def done(self, report: FramesStaged) -> bool:
        """Notes a report. Returns True when the frames are staged. After a failure nothing is staged any
        more: frames are stored when their slab is full."""
        self.tasks[report.row] -= 1
        if report.error is None and self.slots:
            self._table.staging_slot[report.row, report.places] = report.slots
            if report.joined is not None:
                self._table.put_in_place(report.row, report.places, report.joined)
            return True
        self._table.staging_slot[report.row, report.places] = UNSTAGED
        self.give_up()
        return False

    def give_up(self) -> None:
        """Stops staging for good."""
        self.slots, self._free = 0, FreeSlots(0)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def take_slots(self, count: int) -> np.ndarray:
        """Takes free slots for frames that the sealer stages (``reopen``); there must be ``count`` of
        them."""
        return self._free.take(count)

    def slots_of(self, row: int) -> np.ndarray:
        """Returns the slots that hold frames of a row."""
        slots = self._table.staging_slot[row]
        taken: np.ndarray = slots[slots >= 0]
        return taken

    def give_back(self, slots: np.ndarray) -> None:
        if self.slots:
            self._free.give_back(slots)
