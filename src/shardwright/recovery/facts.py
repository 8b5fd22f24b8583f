"""What a dead writer's store shows, as data: what ``scan`` found out and ``decide`` looks at. No path, file
or clock in here.

Two things are too large to be kept: the blocks of the frame log, which are read while ``decide`` takes them,
and the chunks, of which only what the checksums say of each slab is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from .table import FileFacts, JournalFact, Stray


@dataclass(frozen=True)
class SlabFacts:
    """A slab of a group in progress that was begun. ``records``: of its frames whose records can be read, at
    the places ``filled`` bool[frames_per_slab]. ``whole``: every chunk is journaled and fits its checksum,
    and every frame is told. ``journaled``: every chunk is, so that its frames may have been acknowledged, of
    which ``told`` says whether all are in ``records``."""

    slab: int
    slot_layer: int
    records: np.ndarray
    filled: np.ndarray
    whole: bool
    journaled: bool
    told: bool


@dataclass(frozen=True)
class GroupFacts:
    """A group that has a journal. ``files``: of each of its shards, with what the chunks that are good in it
    take (``good_bytes``), and what a shard with the final name takes on disk (``final_bytes``). ``slabs`` is
    empty where the journal is damaged, or the frame log has the group. ``spilled``: its files are below the
    second root."""

    number: int
    journal: JournalFact
    files: tuple[FileFacts, ...]
    good_bytes: tuple[int, ...] = ()
    final_bytes: tuple[int, ...] = ()
    slabs: tuple[SlabFacts, ...] = ()
    spilled: bool = False


@dataclass(frozen=True)
class StagedFacts:
    """``slots`` int64[n] of the staging area hold the frames of ``records`` [n], pixels and all. ``spoiled``:
    records whose pixels do not fit; ``unreadable``: there are records that cannot be read either."""

    slots: np.ndarray
    records: np.ndarray
    spoiled: np.ndarray
    unreadable: bool


@dataclass(frozen=True)
class StoreFacts:
    """``seen_stop``, ``seen_extent``: as the manifest remembers them. ``intact``: nothing worse than kills
    has come over the store. ``set_aside``: an earlier recovery could not believe a file. ``log_groups``:
    groups that have a block in the frame log; ``log_torn_bytes`` lie behind its last whole block.
    ``strays``: files in progress that belong to none of ``groups``. ``sealed_shards`` files of
    ``sealed_bytes`` have final names."""

    seen_stop: int
    seen_extent: int
    intact: bool
    set_aside: bool
    log_groups: frozenset[int]
    log_torn_bytes: int
    groups: tuple[GroupFacts, ...]
    strays: tuple[Stray, ...]
    staged: StagedFacts | None
    sealed_shards: int
    sealed_bytes: int
