"""The facts of an unfinished store as data: the result of ``scan`` and the input of ``decide``. No path, file
or clock in here: the decisions can then be tried for every combination of facts, and a dry run decides as a
recovery does.

The scan writes them, once; nobody changes them. Two things are too large to be kept: the blocks of the frame
log, which are read while ``decide`` takes them, and the chunks, of which only the result of their checksums
is kept for each slab.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from shardwright.shard.frame_log import BLOCK_HEADER_BYTES

if TYPE_CHECKING:
    import numpy as np


class JournalFact(Enum):
    """The states of the journal of a shard row."""

    VALID = "valid"
    # Valid, of a shard row that was sealed before it was full. The shards under the final names are older
    # than the files in progress: here a final name does not mean that the seal has begun.
    REOPENED = "reopened"
    # It exists, and is no valid journal of this shard row. Its shards may hold frames that nobody can find
    # any more: they are kept, and every missing frame may have been acknowledged.
    DAMAGED = "damaged"
    # There is none, or one without a header, which is written last: the shards hold nothing.
    NONE = "none"


@dataclass(frozen=True)
class FileFacts:
    """One shard file of a shard row. ``scan.table`` has the action for each combination."""

    journal: JournalFact
    # The shard in progress and the shard with the final name, each by its name alone: no byte is read. The
    # order of a seal (``acquire.seal``) makes these two say how far it came.
    working: bool
    final: bool
    # The journal names a chunk in this file. It tells a shard that somebody deleted, whose frames are lost,
    # from one that a seal deleted since all of it was fill value.
    holds: bool
    # Shards in progress of this store may have final names, too: then both names do not mean that a rename
    # was done in two steps.
    live: bool = False


@dataclass(frozen=True)
class SlabFacts:
    """A begun slab of a shard row in progress."""

    slab: int
    slot_layer: int
    # Of its frames whose records can be read, at the places ``filled`` bool[frames_per_slab].
    records: np.ndarray
    filled: np.ndarray
    # Every chunk is journaled and fits its checksum, and every frame has a record. Nothing less is stored: a
    # power cut may keep an entry and lose the chunk of which it speaks.
    whole: bool
    # Every chunk is journaled. A frame that was not staged is acknowledged only then: in a slab that is not
    # whole it is lost if this is true, and was never acknowledged if it is false.
    journaled: bool
    # All of its frames are in ``records``. If not, nobody knows which ones were acknowledged.
    recorded: bool


@dataclass(frozen=True)
class ShardRowFacts:
    """A shard row that has a journal."""

    number: int
    journal: JournalFact
    files: tuple[FileFacts, ...]
    # By file, for the account of stored bytes: those of valid chunks in progress, and the size on disk of a
    # shard with the final name. Both, since one may replace the other.
    good_bytes: tuple[int, ...] = ()
    final_bytes: tuple[int, ...] = ()
    # Empty if the journal is damaged, or if the frame log has the shard row: it is sealed then, and only the
    # journal was left.
    slabs: tuple[SlabFacts, ...] = ()
    # Its files are below the second root: new files of it go there, too.
    spilled: bool = False


@dataclass(frozen=True)
class StagedFacts:
    """The staging area."""

    # int64[n]: the slots of frames whose records [n] and pixels are valid. A slot may hold an older copy of
    # a frame that has been stored since: ``decide`` takes what is nowhere else.
    slots: np.ndarray
    records: np.ndarray
    # Records whose pixels do not fit. Either the slot was being used again, or a power cut took the pixels:
    # a frame that is found nowhere else was acknowledged, and is lost.
    spoiled: np.ndarray
    # Some records cannot be read at all, of frames that nobody can name.
    unreadable: bool


@dataclass(frozen=True)
class StoreFacts:
    """The facts of a store."""

    # From the manifest: how far frames came that an earlier recovery did not find. Once it has cleared what
    # was torn, nothing else on disk knows of them.
    seen_stop: int
    seen_extents: tuple[int, ...]
    # Nothing worse than kills has happened to the store. Only then a frame without a trace was never
    # acknowledged.
    intact: bool
    # The files were copied from a writer that may have been alive, and may have acknowledged frames since.
    # No recovery has noted yet how far they came.
    taking_over: bool
    # An earlier recovery set a damaged file aside, and what it held is no longer looked at.
    set_aside: bool
    # Shard rows that have a block in the frame log: they are sealed, unless their journals are ``REOPENED``.
    log_shard_rows: frozenset[int]
    # Behind the last whole block of the frame log.
    log_torn_bytes: int
    shard_rows: tuple[ShardRowFacts, ...]
    # None without a staging area.
    staged: StagedFacts | None
    # Files that have final names, for the account: nobody opens them.
    sealed_shards: int
    sealed_bytes: int

    @property
    def in_doubt(self) -> bool:
        """True if acknowledged frames may be missing without a trace."""
        # a kill in the middle of an append leaves at most a header without its records
        torn = self.log_torn_bytes > BLOCK_HEADER_BYTES
        return not self.intact or self.taking_over or self.set_aside or torn
