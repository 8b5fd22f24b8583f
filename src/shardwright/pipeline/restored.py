"""What recovery hands over: the groups to go on with, the staged frames, the account so far, and what it did, for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .holes import HoleMemory

if TYPE_CHECKING:
    from shardwright.array.spec import ArraySpec
    from shardwright.shard.group_files import GroupFiles
    from shardwright.shard.read_back import ReadBack

    from .accounts import Accounts
    from .earlier_row import EarlierRow
    from .limits import Limits
    from .store_folder import StoreFolder


@dataclass(frozen=True)
class RestoredGroup:
    """``slabs``: of the group in all; ``whole_slabs``: stored. ``holes``: of these, the places that have a frame where some have none;
    ``takes_back``: those whose empty places can still be filled. ``stored_bytes``: what the account has for its shards.
    ``sealing_begun``: some of them have their final names, so that it is
    sealed before it takes more."""

    files: GroupFiles
    slabs: int
    whole_slabs: list[int]
    holes: dict[int, np.ndarray]
    takes_back: dict[int, np.ndarray]
    frames: int
    stored_bytes: int
    sealing_begun: bool


@dataclass
class GroupReport:
    """What recovery found of one group, for people."""

    group: int
    actions: dict[str, str] = field(default_factory=dict)  # shard key -> action
    frames_kept: int = 0
    frames_unfinished: int = 0  # journaled, but their slab was not whole: never acknowledged, or staged as well
    chunks_kept: int = 0
    chunks_dropped: int = 0

    def take(self, found: ReadBack) -> None:
        self.frames_kept = sum(found.frames_of(places).size for places in found.whole)
        self.frames_unfinished = sum(found.frames_of(places).size for places in found.torn)
        self.chunks_kept, self.chunks_dropped = found.chunks_kept, found.chunks_dropped


@dataclass
class Restored:
    folder: StoreFolder
    spec: ArraySpec
    limits: Limits
    accounts: Accounts
    groups: list[RestoredGroup] = field(default_factory=list)
    closed_groups: set[int] = field(default_factory=set)
    holes: HoleMemory = field(default_factory=HoleMemory)  # of closed groups
    earlier: dict[int, EarlierRow] = field(default_factory=dict)  # the newest closed groups that are not full: they can be opened again
    staged: np.ndarray = field(default_factory=lambda: np.zeros(0))
    staged_slots: list[int] = field(default_factory=list)
    reports: list[GroupReport] = field(default_factory=list)
    checked_bytes: int = 0
    frames_forgotten: int = 0  # known to have come, never acknowledged, and behind everything that is kept

    def close(self) -> None:
        """Let go of everything; the store stays as it is."""
        for group in self.groups:
            group.files.abandon()
        self.folder.close()
