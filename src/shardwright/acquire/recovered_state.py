"""The state with which an acquisition is resumed: its accounts and closed shard rows, its open shard rows,
and the folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.shard.shard_row_files import ShardRowFiles
    from shardwright.store.store_folder import StoreFolder

    from .accounts import Accounts
    from .closed_shard_rows import EarlierMemory, HoleMemory
    from .limits import Limits


@dataclass
class Standing:
    """The state of the acquisition. ``limits``: with room for all that is resumed. ``staged``: records of
    frames in the staging area, in ``staged_slots``, that are to collect. ``earlier``: closed shard rows that
    are not full: they can be reopened; ``holes``: of closed shard rows. ``in_doubt``: acknowledged frames may
    be missing without a trace."""

    accounts: Accounts
    limits: Limits
    holes: HoleMemory
    earlier: EarlierMemory
    closed_shard_rows: set[int] = field(default_factory=set)
    staged: np.ndarray = field(default_factory=lambda: np.zeros(0))
    staged_slots: list[int] = field(default_factory=list)
    in_doubt: bool = False


@dataclass(frozen=True)
class ShardRowStanding:
    """The state of an open shard row. ``slabs``: their total number; ``whole_slabs``: stored, with ``frames``
    in all; ``named_slabs``: without a frame, though their shards have final names. ``holes``: for those with
    empty places, the places that have a frame; ``fillable_slabs``: those whose empty places can still be
    filled. ``stored_bytes``: as counted for its shards in the account. ``sealing_begun``: some shards have
    their final names, so it must be sealed before it takes more frames. ``spilled``: its files are below the
    second root."""

    slabs: int
    whole_slabs: list[int]
    named_slabs: list[int]
    frames: int
    holes: dict[int, np.ndarray]
    fillable_slabs: dict[int, np.ndarray]
    stored_bytes: int
    sealing_begun: bool
    spilled: bool


@dataclass(frozen=True)
class RecoveredShardRow:
    """An open shard row: its files, and its state."""

    files: ShardRowFiles
    standing: ShardRowStanding


@dataclass
class RecoveredState:
    """The state from which an acquisition is resumed. Owns the open files and the folder until they are
    taken. ``damaged``: folders of files that were set aside, of which nobody knows which frames they have."""

    folder: StoreFolder
    standing: Standing
    shard_rows: list[RecoveredShardRow] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)

    def close(self) -> None:
        """Closes all files and the folder; the store stays as it is."""
        for shard_row in self.shard_rows:
            shard_row.files.abandon()
        self.folder.close()
