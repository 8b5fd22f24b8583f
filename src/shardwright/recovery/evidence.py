"""Decides which frames that a dead writer had taken in, and that are not on disk, it may have acknowledged.

A frame is acknowledged once its slab is stored (each chunk, then its entry in the journal), it is staged
(pixels, then record), or it is settled in the frame log. A kill does not affect the page cache: all that was
written is found. So a missing frame was

    acknowledged    if its slab is journaled whole and a chunk does not fit its checksum, or it is staged and
                    its pixels do not, or the frame log has it, and its shard row was reopened
    never           if its slab is not journaled whole, or there is no trace of it: it was only in memory

as long as nothing worse than kills has happened to the store (its intact mark: ``shard.intact_mark``). In
a store that is not intact, or whose bookkeeping is damaged, every missing frame may have been acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shardwright.acquire.accounts import Accounts
    from shardwright.scan.facts import SlabFacts, StagedFacts, StoreFacts


class Evidence:
    """Notes in ``accounts``, while the facts of a store are processed, which missing frames are known to have
    come and which may have been acknowledged. ``in_doubt``: all of them may."""

    def __init__(self, accounts: Accounts, facts: StoreFacts) -> None:
        self._accounts = accounts
        self._unfinished: list[np.ndarray] = []  # records of slabs that were being stored
        self._reopened: list[np.ndarray] = []  # records of shard rows that were sealed once: acknowledged
        accounts.expect_up_to(facts.seen_stop, facts.seen_extents)
        accounts.lost_stop = facts.seen_stop  # an earlier recovery has found losses there
        self.in_doubt = facts.in_doubt

    def take_reopened(self, records: np.ndarray) -> None:
        """Takes the frame log's records of a reopened shard row: these frames were stored once, and are now
        in the new files or the staging area."""
        self._reopened.append(records[["sequence", "position"]].copy())

    def take_torn(self, slab: SlabFacts) -> None:
        """Takes a slab that is not whole."""
        if slab.journaled:
            self._accounts.lose(slab.records)
            self.in_doubt = self.in_doubt or not slab.recorded
        else:
            self._unfinished.append(slab.records)

    def take_staged(self, staged: StagedFacts) -> None:
        """Takes staged frames that are nowhere else and cannot be read, or whose shard row takes no frame
        although it lacks them: somebody has deleted one of its shards. To be called after all else that holds
        frames."""
        for records in (staged.spoiled, staged.records):
            gone = records[~self._accounts.seen.holds(records["sequence"].astype(np.int64))]
            if gone.size:
                self._accounts.lose(gone)
        self.in_doubt = self.in_doubt or staged.unreadable

    def conclude(self) -> int:
        """Returns the number of frames that are known to have come, with sequences beyond all that count, and
        are dropped from the account. Raises ``ShardFormatError`` for frames that cannot have come."""
        accounts = self._accounts
        for records in self._reopened:
            gone = records[~accounts.seen.holds(records["sequence"].astype(np.int64))]
            if gone.size:
                accounts.lose(gone)
        if self.in_doubt:
            for records in self._unfinished:
                accounts.expect(records)
            accounts.lost_stop = accounts.whole_stop
        accounts.seen.check_stop()
        sequences = [records["sequence"].astype(np.int64) for records in self._unfinished]
        known = np.unique(np.concatenate(sequences)) if sequences else np.zeros(0, np.int64)
        return int((known >= accounts.seen.stop).sum())
