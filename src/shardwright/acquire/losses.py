"""The frames that are lost, or left to recovery: those of an acquisition that fails, and stored ones that a
disk error destroyed. Owned by the acquisition's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.shard.frames_in_place import IN_PLACE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .accounts import Accounts
    from .assembly import SlabTable
    from .end import End
    from .free_pixels import FreePixels
    from .notifications import Notifications
    from .recorder import Recorder
    from .shard_rows import ShardRows


class Losses:
    """Gives up frames: each is recorded as lost, or left where recovery finds it."""

    def __init__(
        self,
        table: SlabTable,
        shard_rows: ShardRows,
        end: End,
        accounts: Accounts,
        recorder: Recorder,
        released: FreePixels,
        notifications: Notifications,
    ) -> None:
        # Rows of the slab table to give up, but only once no worker reads their pixels: freed before that,
        # the camera would overwrite what is still being compressed.
        self._doomed: set[int] = set()
        # The store has files, or staged frames, that only recovery can finish: the workspace stays.
        self.leaves_something = False
        self._table = table
        self._shard_rows = shard_rows
        self._end = end
        self._accounts = accounts
        self._recorder = recorder
        self._released = released
        self._notifications = notifications

    def doom(self, rows: Iterable[int]) -> None:
        """Lets rows be given up by ``lose_doomed``."""
        self._doomed.update(rows)

    def lose_doomed(self) -> None:
        """Gives up the doomed rows. No worker may read their pixels any more."""
        for row in sorted(self._doomed):
            self._lose_row(row)
        self._doomed.clear()

    def lose(self, records: np.ndarray) -> None:
        """Counts and records frames that will not be stored, and releases their pixels."""
        sequences = records["sequence"].astype(np.int64)
        self._released.append(sequences)
        if self._end.sealer_dead:
            self._accounts.count_lost(sequences.size)  # nobody records them
        elif sequences.size:
            acknowledged = self._accounts.stored.holds(sequences)
            reason = np.where(acknowledged, Reason.ACQUISITION_FAILED, Reason.NOT_ACKNOWLEDGED)
            self._recorder.settle(
                records, FrameStatus.LOST, reason.astype(np.uint8), release=False, settled=False
            )

    def _lose_row(self, row: int) -> None:
        """Gives up a row: staged frames stay in the staging area for recovery, the others are lost. A loss is
        reported for those that were acknowledged as stored."""
        table = self._table
        filled, staged = table.filled(row), table.staging_slot[row] >= 0
        if (filled & staged).any():
            self._leave_to_recovery(row, filled & staged)
        records = table.records[row][filled & ~staged]
        acknowledged = self._accounts.stored.holds(records["sequence"].astype(np.int64))
        if acknowledged.any():
            self.report(records[acknowledged])
        self.lose(records)
        table.free(row)

    def leave_held(self, rows: Iterable[int]) -> None:
        """Leaves rows that were held during a failed rewrite to recovery: they are in the old files."""
        for row in rows:
            self._leave_to_recovery(row, self._table.filled(row))
            self._table.free(row)

    def _leave_to_recovery(self, row: int, in_slab: np.ndarray) -> None:
        table = self._table
        self.leaves_something = True
        self._shard_rows.spoil(self._shard_rows.of_slab(int(table.slab[row])))
        self._released.append(table.sequences[row][in_slab & (table.addresses[row] != IN_PLACE)])

    def leave(self) -> None:
        """Notes that something at the path is left to recovery."""
        self.leaves_something = True

    def report(self, records: np.ndarray) -> None:
        """Counts and reports stored frames that a disk error destroyed."""
        self._accounts.lose_stored(records)
        self._notifications.note_losses(records["sequence"].astype(np.int64))
