"""The encoding scheduler: which rows of the slab table are at the workers, and at which level these encode.
Part of the core; workers do the encoding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.codecs.degrade import DegradeLevel

from .commands import Encode
from .overload_level import OverloadLevel, backlog_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from shardwright.model.receipt import Receipt
    from shardwright.shard.shard_row_files import ShardRowFiles

    from .assembly import SlabTable
    from .commands import Command, SlabEncoded
    from .limits import Limits
    from .measures import Measures


class EncodingScheduler:
    """Decides which rows are encoded next, and at which level. ``levels``: the levels at which chunks may be
    encoded, from the configured one to the fastest; a single one if the level never changes."""

    def __init__(
        self,
        levels: Sequence[DegradeLevel],
        threads: int,
        table: SlabTable,
        limits: Limits,
        measures: Measures,
        ask: Callable[[Command], None],
    ) -> None:
        # Rows at the workers, which read their pixels: none of them may be freed, nor the files be replaced.
        self.rows: set[int] = set()
        self.overload = OverloadLevel(levels, tasks_to_try=threads)
        self._counts = LevelCounts(limits.rows)
        self.checks_failed = 0  # encode checks: a slab that is encoded again is checked again
        self._table = table
        self._limits = limits
        self._measures = measures
        self._ask = ask
        # As the ring's owner last said. The core has no ring, but a full one is how an overload shows.
        self._ring_used, self._ring_frames = 0, limits.ring_frames

    def take_images(self, limits: Limits) -> None:
        """Takes the limits with those of images that were added."""
        self._limits = limits

    def begin(self, row: int) -> None:
        """Starts counting for a row whose slab is complete or closed."""
        self._counts.begin_slab(row)
        self._table.count_in_records(row)

    def send(self, row: int, files: ShardRowFiles) -> None:
        """Sends the slab of a row to the workers: for the first time, or again, into other files."""
        self.rows.add(row)
        self._counts.begin_writing(row)
        slab, addresses, records = self._table.slab_in(row)
        self._ask(Encode(row, slab, files, addresses, records, self._table.joined_in(row)))

    def done(self, report: SlabEncoded) -> bool:
        """Notes a report. Returns False if the row was given up because the workers died."""
        if report.row not in self.rows:
            return False
        self.rows.discard(report.row)
        for task in report.tasks:
            self._measures.queue.observe_ns(task.queue_ns)
            self._measures.encode.observe_ns(task.encode_ns)
            self._counts.wrote(report.row, task.level, task.chunks)
            self.overload.task_done(task.level)
            self.checks_failed += len(task.replaced)
        return True

    def stored(self, row: int, frames: int) -> None:
        """Counts a row whose chunks are all stored."""
        self._counts.stored(row, frames)

    def give_up(self) -> set[int]:
        """Removes and returns the rows that will never be reported, since no worker is left."""
        rows, self.rows = self.rows, set()
        return rows

    def see_ring(self, used_frames: int, ring_frames: int) -> None:
        """Sets how many frames of the camera's ring are in use."""
        self._ring_used, self._ring_frames = used_frames, ring_frames

    def look_at_ring(self, unsynced_frames: int, now_s: float) -> tuple[DegradeLevel, float] | None:
        """Under the overload policy ``degrade``, lets chunks be encoded faster while frames wait for
        encoders; ``unsynced_frames`` wait for a commit instead. If the level changed, returns the one before
        and the backlog (``backlog_part``), else None."""
        if not self.overload.can_change:
            return None
        part = backlog_part(
            ring_frames=self._ring_frames,
            used_frames=self._ring_used,
            collecting_frames=self._table.held_frames,
            held_frames=self._limits.held_frames,
            unsynced_frames=unsynced_frames,
        )
        before = self.overload.look(part, now_s)
        return None if before is None else (before, part)

    def counted(self, receipt: Receipt) -> Receipt:
        """Returns the receipt with the counts of each level."""
        chunks, frames = self._counts.chunks.tolist(), self._counts.frames.tolist()
        return replace(
            receipt,
            frames_faster=frames[DegradeLevel.FASTER],
            frames_uncompressed=frames[DegradeLevel.UNCOMPRESSED],
            chunks_faster=chunks[DegradeLevel.FASTER],
            chunks_uncompressed=chunks[DegradeLevel.UNCOMPRESSED],
            encode_checks_failed=self.checks_failed,
        )


_LEVELS = len(DegradeLevel)


class LevelCounts:
    """Counts of chunks and frames by degrade level; a slab that is written again counts once.

    ``chunks``, ``frames`` int64[levels]: of stored slabs. A slab's frames count at the highest level of its
    chunks; a chunk that is all fill, and absent, has no level. ``rows``: size of the slab table, by whose row
    numbers slabs are identified here."""

    def __init__(self, rows: int) -> None:
        self.chunks: npt.NDArray[np.int64] = np.zeros(_LEVELS, np.int64)
        self.frames: npt.NDArray[np.int64] = np.zeros(_LEVELS, np.int64)
        self._chunks_of = np.zeros((rows, _LEVELS), np.int64)
        self._frames_of = np.zeros((rows, _LEVELS), np.int64)

    def begin_slab(self, row: int) -> None:
        """Resets the counts of a row that now holds another slab."""
        self._chunks_of[row] = self._frames_of[row] = 0

    def begin_writing(self, row: int) -> None:
        """Resets the counts of a row whose slab goes to the workers, for the first time or again."""
        if self._frames_of[row].any():
            self.chunks -= self._chunks_of[row]
            self.frames -= self._frames_of[row]
        self.begin_slab(row)

    def wrote(self, row: int, level: DegradeLevel, chunks: int) -> None:
        self._chunks_of[row, level] += chunks

    def stored(self, row: int, frames: int) -> None:
        """Counts a row whose chunks are all stored."""
        level = int(np.flatnonzero(self._chunks_of[row]).max(initial=DegradeLevel.CONFIGURED))
        self._frames_of[row, level] = frames
        self.chunks += self._chunks_of[row]
        self.frames += self._frames_of[row]
