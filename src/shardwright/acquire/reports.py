"""The reports on commands (``commands``): data that workers and the sealer make in their threads and the
acquisition's core handles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from shardwright.model.degrade_level import DegradeLevel
    from shardwright.model.error_text import ErrorText
    from shardwright.shard.shard_row_files import ShardRowFiles

    from .reopen import ReopenedRow


class TaskTimes(NamedTuple):  # one for each task: a frozen dataclass takes five times as long to make
    """The times of one stored task of a slab: its wait for a worker, its duration, and the level at which it
    wrote ``chunks`` chunks; chunks that are all fill are not written."""

    queue_ns: int
    encode_ns: int
    level: DegradeLevel
    chunks: int


class SlabEncoded(NamedTuple):
    """All tasks of the slab in this row have ended: no worker reads its pixels any more. ``error``: of the
    first task that failed. ``stored_bytes`` were written to its shard row's files. ``tasks``: the stored
    ones."""

    row: int
    stored_bytes: int
    error: ErrorText | None
    tasks: tuple[TaskTimes, ...] = ()


class FramesStaged(NamedTuple):
    """Frames at ``places`` of this row are in ``slots`` of the staging area, or ``error`` says why not."""

    row: int
    places: np.ndarray
    slots: np.ndarray
    error: ErrorText | None


@dataclass(frozen=True)
class ShardRowPrepared:
    """The files of a shard row are made (in ``open_ns``), or ``error`` says why not. ``request``: the
    command's. ``free_bytes`` of the disk are left; 0: not known."""

    shard_row: int
    request: int
    files: ShardRowFiles | None
    error: ErrorText | None
    free_bytes: int = 0
    open_ns: int = 0


@dataclass(frozen=True)
class ShardRowRewritten:
    """The ``files`` are new, and the ``saved`` slabs durable in them. ``lost``: the records, in the frame log
    already, of frames that could not be read back. With an ``error`` only the old files are left."""

    shard_row: int
    files: ShardRowFiles | None
    saved: set[int]
    lost: np.ndarray
    error: ErrorText | None


@dataclass(frozen=True)
class ShardRowReopened:
    """New files continue a sealed shard row, or ``error`` says why not: ``ShardFormatError`` when its shards
    cannot be read."""

    shard_row: int
    made: ReopenedRow | None
    error: ErrorText | None


@dataclass(frozen=True)
class ShardRowSealed:
    """The files of one shard row have their final names (or were all fill), or ``error`` says why not.
    ``renamed``: some of them have. ``records``: of all its frames."""

    shard_row: int
    shards: int
    renamed: bool
    error: ErrorText | None
    seal_ns: int
    records: np.ndarray | None


@dataclass(frozen=True)
class Committed:
    """All places of the commit are synced, except those in ``failed``."""

    failed: dict[int, ErrorText]
    commit_ns: int


@dataclass(frozen=True)
class Recorded:
    """The records of these sequences are in the frame log (not synced yet). ``release``: their pixels are
    free now. ``settled``: they count as acknowledged; frames lost with a failed acquisition never do."""

    sequences: np.ndarray
    release: bool
    settled: bool

    @property
    def frames(self) -> int:
        return self.sequences.size


@dataclass(frozen=True)
class NotRecorded:
    """The frame log has no room for these records, not even with the ballast freed."""

    records: np.ndarray
    release: bool
    settled: bool
    error: ErrorText

    @property
    def frames(self) -> int:
        return self.records.size


@dataclass(frozen=True)
class SealerFailed:
    """A command without a report of its own failed, or the thread died (``dead``)."""

    error: ErrorText
    dead: bool = False


@dataclass(frozen=True)
class StoreFinished:
    """The store is finished or removed, or ``error`` says why not."""

    error: ErrorText | None


WorkerReport = SlabEncoded | FramesStaged
SealerReport = (
    ShardRowPrepared
    | ShardRowReopened
    | ShardRowRewritten
    | ShardRowSealed
    | Committed
    | Recorded
    | NotRecorded
    | SealerFailed
    | StoreFinished
)
Report = WorkerReport | SealerReport
