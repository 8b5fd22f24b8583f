"""What an acquisition goes on with whose writer died: how it stood, its open groups, and the folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .closed_rows import HoleMemory

if TYPE_CHECKING:
    from shardwright.shard.group_files import GroupFiles

    from .accounts import Accounts
    from .closed_rows import EarlierRow
    from .limits import Limits
    from .store_folder import StoreFolder


@dataclass
class Standing:
    """How it stood. ``limits``: with room for all that is taken up. ``staged``: records of frames that go on
    from the staging area, in ``staged_slots``. ``earlier``: the newest closed groups that are not full: they
    can be opened again; ``holes``: of closed groups."""

    accounts: Accounts
    limits: Limits
    closed_groups: set[int] = field(default_factory=set)
    holes: HoleMemory = field(default_factory=HoleMemory)
    earlier: dict[int, EarlierRow] = field(default_factory=dict)
    staged: np.ndarray = field(default_factory=lambda: np.zeros(0))
    staged_slots: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class GroupStanding:
    """How an open group stood. ``slabs``: of the group in all; ``whole_slabs``: stored, with ``frames``.
    ``holes``: of these, the places that have a frame where some have none; ``takes_back``: those whose empty
    places can still be filled. ``stored_bytes``: what the account has for its shards. ``sealing_begun``: some
    of them have their final names, so that it is sealed before it takes more. ``spilled``: its files are
    below the second root."""

    slabs: int
    whole_slabs: list[int]
    frames: int
    holes: dict[int, np.ndarray]
    takes_back: dict[int, np.ndarray]
    stored_bytes: int
    sealing_begun: bool
    spilled: bool


@dataclass(frozen=True)
class RestoredGroup:
    files: GroupFiles
    standing: GroupStanding


@dataclass
class Restored:
    folder: StoreFolder
    standing: Standing
    groups: list[RestoredGroup] = field(default_factory=list)

    def close(self) -> None:
        """Let go of everything; the store stays as it is."""
        for group in self.groups:
            group.files.abandon()
        self.folder.close()
