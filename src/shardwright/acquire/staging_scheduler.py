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
    """Decides which frames are staged, and owns the slots of the staging area. ``slots``: size of the staging
    area, of which those ``taken`` hold frames already."""

    def __init__(
        self,
        slots: int,
        taken: Iterable[int],
        table: SlabTable,
        frame_bytes: int,
        store_within_ms: int,
        ask: Callable[[Command], None],
    ) -> None:
        self.slots = slots  # 0 if slabs are single frames, and once staging has failed
        self._store_within_ms = store_within_ms
        self._next_ns = 0  # frames that wait are looked for four times in ``store_within_ms``
        self._table = table
        self._most = max(1, STAGE_TASK_BYTES // frame_bytes)
        self._ask = ask
        self._free = FreeSlots(slots, np.setdiff1d(np.arange(slots), np.array(list(taken), np.int64)))
        # int64[rows]: tasks under way. Until they are done the row is not freed: workers read its pixels.
        self.tasks = np.zeros(table.slab.size, np.int64)
        # Of these, rows whose slab is stored meanwhile. They count as stored only after that: the frames
        # would be released, and the camera would overwrite what is being staged.
        self.held_back: set[int] = set()
        # At the last ``stage`` frames found no slot: a commit that frees some is due at once.
        self.starved = False

    @property
    def usable(self) -> bool:
        """True if a waiting frame can be staged."""
        return self.slots > 0 and not (self.starved and not self._free)

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._next_ns

    def stage(self, rows: Iterable[tuple[int, ShardRowFiles | None]], now_ns: int, *, at_once: bool) -> None:
        """Sends frames of these rows that are only in memory and have waited long enough (``at_once``: all of
        them), to be put into chunks of the files beside a row, if there are any."""
        before_ns = now_ns - (0 if at_once else self._store_within_ms * 500_000)
        self._next_ns = now_ns + self._store_within_ms * 250_000
        self.starved = False
        if not self.slots:
            return
        for row, files in rows:
            in_slab = self._table.unstaged_since(row, before_ns)
            for start in range(0, in_slab.size, self._most):
                self._stage(row, in_slab[start : start + self._most], files)

    def _stage(self, row: int, in_slab: np.ndarray, files: ShardRowFiles | None) -> None:
        table = self._table
        if files is not None and not table.is_collecting(row):
            slots = np.full(in_slab.size, WITH_ITS_SLAB)
        else:
            if in_slab.size > len(self._free):
                self.starved = True
                in_slab = in_slab[: len(self._free)]
            slots = self._free.take(in_slab.size)
        if not in_slab.size:
            return
        table.set_slots(row, in_slab, ON_ITS_WAY)
        self.tasks[row] += 1
        self._ask(
            Stage(
                row,
                int(table.slab[row]),
                in_slab,
                slots,
                table.addresses[row][in_slab].copy(),
                table.records[row][in_slab].copy(),
                files,
            )
        )

    def done(self, report: FramesStaged) -> bool:
        """Notes a report. Returns True when the frames are staged. After a failure nothing is staged any
        more: frames are stored when their slab is full."""
        self.tasks[report.row] -= 1
        if report.error is None and self.slots:
            self._table.set_slots(report.row, report.in_slab, report.slots)
            if report.joined is not None:
                self._table.put_in_place(report.row, report.in_slab, report.joined)
            return True
        self._table.set_slots(report.row, report.in_slab, UNSTAGED)
        self.give_up()
        return False

    def hold_back(self, row: int) -> bool:
        """Returns whether a row whose slab is stored must wait: ``lets_go`` tells when it is done."""
        if self.tasks[row]:
            self.held_back.add(row)
        return row in self.held_back

    def lets_go(self, row: int) -> bool:
        """Returns whether a row was held back and need not be any more. True only once."""
        if row not in self.held_back or self.tasks[row]:
            return False
        self.held_back.discard(row)
        return True

    def give_up(self) -> None:
        """Stops staging for good."""
        self.slots, self._free = 0, FreeSlots(0)

    def give_up_tasks(self) -> set[int]:
        """Returns the rows whose tasks will never be reported, since no worker is left, and forgets these."""
        rows = set(np.flatnonzero(self.tasks > 0).tolist())
        self.tasks[:] = 0
        return rows

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
