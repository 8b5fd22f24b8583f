"""The commands of an acquisition's core: plain data, each answered by one report (``reports``).

Workers encode and stage; the sealer carries out all others, one after the other. A shard row is given by its
number: the sealer owns its files. ``Discard``, ``Abandon`` and ``Grow`` are answered only when they fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from shardwright.shard.shard_row_files import ShardRowFiles

    from .reopen import TakingBack


class Encode(NamedTuple):  # one for each slab: a frozen dataclass takes five times as long to make
    """Store the slab of one row in the files of its shard row. ``frames`` int64[P] are addresses of pixels, 0
    where no frame came, ``records`` [P] alike. Both are views of the row, which does not change until the
    answer. -> ``SlabEncoded``"""

    row: int
    slab: int
    files: ShardRowFiles
    frames: np.ndarray
    records: np.ndarray


class Stage(NamedTuple):
    """Put frames at ``places`` int64[n] of a row into ``slots`` int64[n] of the staging area; ``frames``:
    addresses int64[n]; ``records`` [n]. -> ``FramesStaged``"""

    row: int
    places: np.ndarray
    slots: np.ndarray
    frames: np.ndarray
    records: np.ndarray


@dataclass(frozen=True)
class Prepare:
    """Preallocate the files of a shard row; ``spill``: below the second root. ``request`` numbers these
    commands, since a shard row may be prepared, discarded and prepared again before the first answer. ->
    ``ShardRowPrepared``"""

    shard_row: int
    request: int
    spill: bool = False


@dataclass(frozen=True)
class Reopen:
    """Make new files that continue a sealed shard row. -> ``ShardRowReopened``"""

    shard_row: int
    taking: TakingBack


@dataclass(frozen=True)
class Rewrite:
    """Copy what can be read back of the stored slabs of a shard row to new files, which replace the old ones.
    ``held_slabs`` are still in memory and cannot be lost. -> ``ShardRowRewritten``"""

    shard_row: int
    stored_slabs: frozenset[int]
    held_slabs: frozenset[int]
    spill: bool


@dataclass(frozen=True)
class Commit:
    """Sync the files of these shard rows, the staging area (``STAGED``) and the frame log (``LOGGED``). ->
    ``Committed``"""

    keys: frozenset[int]


@dataclass(frozen=True)
class Seal:
    """Give the files of a shard row their final names, then append its frames to the frame log. ->
    ``ShardRowSealed``"""

    shard_row: int


@dataclass(frozen=True)
class Discard:
    """Delete prepared files for which no frame came; not if another writer, who then owns them, has taken
    over."""

    shard_row: int


@dataclass(frozen=True)
class Abandon:
    """Close files that failed and leave them to recovery."""

    shard_row: int


@dataclass(frozen=True)
class Record:
    """Append the records of frames that are not stored to the frame log. ``release`` and ``settled`` are
    returned in the report. -> ``Recorded`` or ``NotRecorded``"""

    records: np.ndarray
    release: bool
    settled: bool


@dataclass(frozen=True)
class Grow:
    """Let zarr.json cover ``extent`` elements of the first frame axis. If that fails, readers see them after
    the next seal or at the end."""

    extent: int


@dataclass(frozen=True)
class FinishStore:
    """End the store. After a full disk it may be repeated; otherwise it is the last command. ->
    ``StoreFinished``"""

    extent: int
    keep_workspace: bool


@dataclass(frozen=True)
class RemoveStore:
    """Remove a store that never got a frame; the last command. -> ``StoreFinished``"""


SealerCommand = (
    Prepare | Reopen | Rewrite | Commit | Seal | Discard | Abandon | Record | Grow | FinishStore | RemoveStore
)
WorkerCommand = Encode | Stage
Command = WorkerCommand | SealerCommand
