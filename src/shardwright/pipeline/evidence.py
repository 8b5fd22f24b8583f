"""Which of the frames that a dead writer had taken in, and that are not on disk, it may have acknowledged.

A frame is acknowledged once its slab is stored (each chunk, then its entry in the journal), it is staged (pixels, then
record), or it is settled in the frame log. A kill leaves the page cache alone: whatever was written is found. So a
missing frame was

    acknowledged    its slab is journaled whole and a chunk does not fit its checksum, or it is staged and its pixels do not,
                    or the frame log tells of it, and its row was opened again
    never           its slab is not journaled whole, or nothing tells of it: it was only in memory

as long as nothing worse than kills has come over the store. It is *intact* while its file ``boot`` holds the kernel's
boot id: a power cut and another machine bring another id, and an I/O error, a rewrite and a take-over delete the
file. Of a store that is not intact, or whose bookkeeping shows damage, every missing frame may have been acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import StorageError
from shardwright.model.machine import boot_id
from shardwright.shard.frame_log import BLOCK_HEADER_BYTES
from shardwright.storage.failpoints import reach
from shardwright.storage.files import read_range, storage_errors, write_file

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.shard.frame_log import FrameLog
    from shardwright.shard.manifest import Manifest
    from shardwright.shard.read_back import ReadBack
    from shardwright.shard.staging import StagingArea

    from .accounts import Accounts

_BOOT = "boot"
_MAX_BYTES = 64


def begin_intact(workspace: Path) -> None:
    """Of a new store. Raises ``StorageError``."""
    if (boot := boot_id()) is not None:
        write_file(workspace / _BOOT, boot.encode())


def is_intact(workspace: Path) -> bool:
    boot = boot_id()
    try:
        return boot is not None and read_range(workspace / _BOOT, 0, _MAX_BYTES) == boot.encode()
    except StorageError:
        return False


def end_intact(workspace: Path) -> None:
    """From now on something that was acknowledged may leave no trace. Raises ``StorageError``."""
    path = workspace / _BOOT
    with storage_errors("remove", path):
        reach("boot.before_remove")
        path.unlink(missing_ok=True)


class Evidence:
    """Notes in ``accounts``, while a store is looked through, which missing frames are known to have come and which may have been acknowledged.
    ``in_doubt``: all of them."""

    def __init__(self, accounts: Accounts, *, intact: bool) -> None:
        self._accounts = accounts
        self._unfinished: list[np.ndarray] = []  # records of slabs that were being stored
        self._reopened: list[np.ndarray] = []  # records of rows that were sealed once: acknowledged
        self.in_doubt = not intact

    @classmethod
    def of(cls, workspace: Path, accounts: Accounts, manifest: Manifest) -> Evidence:
        accounts.expect_up_to(manifest.seen_stop, manifest.seen_extent)
        accounts.lost_stop = manifest.seen_stop  # an earlier recovery has found losses there
        return cls(accounts, intact=is_intact(workspace))

    def take_log(self, log: FrameLog) -> None:
        """A kill in the middle of an append leaves a header without its records at the most."""
        self.in_doubt = self.in_doubt or log.torn_bytes > BLOCK_HEADER_BYTES

    def take_reopened(self, records: np.ndarray) -> None:
        """What the frame log tells of a row that was opened again: stored once, and now wherever the new files and the staging area have it."""
        self._reopened.append(records[["sequence", "position"]].copy())

    def take_torn(self, found: ReadBack) -> bool:
        """Slabs of a group that are not whole. True when their frames must be remembered, because what tells of them is cleared."""
        stored = False
        for places in found.torn:
            records = found.frames_of(places)
            if found.was_stored(places):
                stored = True
                self._accounts.lose(records)
                self.in_doubt = self.in_doubt or not found.tells_frames(places)
            else:
                self._unfinished.append(records)
        self._expect_if_in_doubt()
        return stored or (self.in_doubt and bool(found.torn))

    def take_staged(self, staging: StagingArea, records: np.ndarray, valid: np.ndarray) -> None:
        """After everything else that holds frames: what of the staged ones cannot be read, and is nowhere else."""
        spoiled, unreadable = staging.spoiled(records, valid)
        gone = spoiled[~self._accounts.seen.holds(spoiled["sequence"].astype(np.int64))]
        if gone.size:
            self._accounts.lose(gone)
        self.in_doubt = self.in_doubt or unreadable

    def conclude(self, *, damaged: bool) -> int:
        """``damaged``: a file had to be set aside. Returns how many frames beyond all that count are known to have come, and are forgotten."""
        self.in_doubt = self.in_doubt or damaged
        for records in self._reopened:
            gone = records[~self._accounts.seen.holds(records["sequence"].astype(np.int64))]
            if gone.size:
                self._accounts.lose(gone)
        self._expect_if_in_doubt()
        accounts = self._accounts
        if self.in_doubt:
            accounts.lost_stop = accounts.seen.stop
        sequences = [records["sequence"].astype(np.int64) for records in self._unfinished]
        known = np.unique(np.concatenate(sequences)) if sequences else np.zeros(0, np.int64)
        return int((known >= accounts.seen.stop).sum())

    def _expect_if_in_doubt(self) -> None:
        if self.in_doubt:
            for records in self._unfinished:
                self._accounts.expect(records)
