"""The facts of a dead writer's store as data: the result of ``scan`` and the input of ``decide``. No path,
file or clock in here.

Two things are too large to be kept: the blocks of the frame log, which are read while ``decide`` takes them,
and the chunks, of which only the result of their checksums is kept for each slab.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.shard.frame_log import BLOCK_HEADER_BYTES

if TYPE_CHECKING:
    import numpy as np

    from .table import FileFacts, JournalFact, Stray


@dataclass(frozen=True)
class SlabFacts:
    """A begun slab of a shard row in progress. ``records``: of its frames whose records can be read, at the
    places ``filled`` bool[frames_per_slab]. ``whole``: every chunk is journaled and fits its checksum, and
    every frame has a record. ``journaled``: every chunk is journaled, so that its frames may have been
    acknowledged; ``recorded``: all of these are in ``records``."""

    slab: int
    slot_layer: int
    records: np.ndarray
    filled: np.ndarray
    whole: bool
    journaled: bool
    recorded: bool


@dataclass(frozen=True)
class ShardRowFacts:
    """A shard row that has a journal. ``files``: for each of its shards, with the bytes of its valid chunks
    (``good_bytes``) and the size on disk of a shard with the final name (``final_bytes``). ``slabs`` is empty
    if the journal is damaged or the frame log has the shard row. ``spilled``: its files are below the second
    root."""

    number: int
    journal: JournalFact
    files: tuple[FileFacts, ...]
    good_bytes: tuple[int, ...] = ()
    final_bytes: tuple[int, ...] = ()
    slabs: tuple[SlabFacts, ...] = ()
    spilled: bool = False


@dataclass(frozen=True)
class StagedFacts:
    """The staging area: ``slots`` int64[n] hold the frames of ``records`` [n], pixels and records valid.
    ``spoiled``: records whose pixels do not fit; ``unreadable``: some records cannot be read at all."""

    slots: np.ndarray
    records: np.ndarray
    spoiled: np.ndarray
    unreadable: bool


@dataclass(frozen=True)
class StoreFacts:
    """The facts of a store. ``seen_stop``, ``seen_extents``: from the manifest. ``intact``: nothing worse
    than kills has happened to the store. ``taking_over``: from a writer that may have acknowledged frames
    since its files were copied; no recovery has noted yet how far they came. ``set_aside``: an earlier
    recovery set a damaged file aside. ``log_shard_rows``: shard rows that have a block in the frame log;
    ``log_torn_bytes`` lie behind its last whole block. ``strays``: files in progress that belong to none of
    ``shard_rows``. ``sealed_shards`` files of ``sealed_bytes`` have final names."""

    seen_stop: int
    seen_extents: tuple[int, ...]
    intact: bool
    taking_over: bool
    set_aside: bool
    log_shard_rows: frozenset[int]
    log_torn_bytes: int
    shard_rows: tuple[ShardRowFacts, ...]
    strays: tuple[Stray, ...]
    staged: StagedFacts | None
    sealed_shards: int
    sealed_bytes: int

    @property
    def in_doubt(self) -> bool:
        """True if acknowledged frames may be missing without a trace."""
        # a kill in the middle of an append leaves at most a header without its records
        torn = self.log_torn_bytes > BLOCK_HEADER_BYTES
        return not self.intact or self.taking_over or self.set_aside or torn
