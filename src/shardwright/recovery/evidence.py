"""Which of the frames that a dead writer had taken in, and that are not on disk, it may have acknowledged.

A frame is acknowledged once its slab is stored (each chunk, then its entry in the journal), it is staged
(pixels, then record), or it is settled in the frame log. A kill leaves the page cache alone: whatever was
written is found. So a missing frame was

    acknowledged    its slab is journaled whole and a chunk does not fit its checksum, or it is staged and its
                    pixels do not, or the frame log tells of it, and its row was opened again
    never           its slab is not journaled whole, or nothing tells of it: it was only in memory

as long as nothing worse than kills has come over the store (``acquire.intact``). Of a store that is not
intact, or whose bookkeeping shows damage, every missing frame may have been acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.shard.frame_log import BLOCK_HEADER_BYTES

if TYPE_CHECKING:
    from shardwright.acquire.accounts import Accounts

    from .facts import SlabFacts, StagedFacts, StoreFacts


class Evidence:
    """Notes in ``accounts``, while the facts of a store are gone through, which missing frames are known to
    have come and which may have been acknowledged. ``in_doubt``: all of them."""

    def __init__(self, accounts: Accounts, facts: StoreFacts) -> None:
        self._accounts = accounts
        self._unfinished: list[np.ndarray] = []  # records of slabs that were being stored
        self._reopened: list[np.ndarray] = []  # records of rows that were sealed once: acknowledged
        accounts.expect_up_to(facts.seen_stop, facts.seen_extent)
        accounts.lost_stop = facts.seen_stop  # an earlier recovery has found losses there
        # a kill in the middle of an append leaves a header without its records at the most
        torn = facts.log_torn_bytes > BLOCK_HEADER_BYTES
        self.in_doubt = not facts.intact or facts.set_aside or torn

    def take_reopened(self, records: np.ndarray) -> None:
        """What the frame log tells of a row that was opened again: stored once, and now wherever the new
        files and the staging area have it."""
        self._reopened.append(records[["sequence", "position"]].copy())

    def take_torn(self, slab: SlabFacts) -> None:
        """A slab that is not whole."""
        if slab.journaled:
            self._accounts.lose(slab.records)
            self.in_doubt = self.in_doubt or not slab.told
        else:
            self._unfinished.append(slab.records)

    def take_staged(self, staged: StagedFacts) -> None:
        """After everything else that holds frames: what of the staged ones cannot be read, and is nowhere
        else."""
        gone = staged.spoiled[~self._accounts.seen.holds(staged.spoiled["sequence"].astype(np.int64))]
        if gone.size:
            self._accounts.lose(gone)
        self.in_doubt = self.in_doubt or staged.unreadable

    def conclude(self) -> int:
        """Returns how many frames beyond all that count are known to have come, and are forgotten."""
        accounts = self._accounts
        for records in self._reopened:
            gone = records[~accounts.seen.holds(records["sequence"].astype(np.int64))]
            if gone.size:
                accounts.lose(gone)
        if self.in_doubt:
            for records in self._unfinished:
                accounts.expect(records)
            accounts.lost_stop = accounts.seen.stop
        sequences = [records["sequence"].astype(np.int64) for records in self._unfinished]
        known = np.unique(np.concatenate(sequences)) if sequences else np.zeros(0, np.int64)
        return int((known >= accounts.seen.stop).sum())
