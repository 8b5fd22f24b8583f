"""What became of a command (``commands``): data that workers and the shard keeper make in their threads, and
the acquisition's core handles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from shardwright.model.degrade_level import DegradeLevel
    from shardwright.model.error_text import ErrorText
    from shardwright.shard.group_files import GroupFiles

    from .reopen import ReopenedRow


class TaskTimes(NamedTuple):  # one for each task: a frozen dataclass takes five times as long to make
    """Of one task of a slab that was stored: how long it waited for a worker, how long that took, and at
    which level it wrote ``chunks`` chunks; those that are all fill were not written."""

    queue_ns: int
    encode_ns: int
    level: DegradeLevel
    chunks: int


class SlabEncoded(NamedTuple):
    """Every task of the slab in this row has ended: nobody reads its pixels any more. ``error``: of the first
    that was not stored. ``stored_bytes`` went into its group's files. ``tasks``: those that were stored."""

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
class GroupPrepared:
    """The files of a group are there (which took ``open_ns``), or ``error`` says why not. ``request``: the
    command's. ``free_bytes`` of the disk are left; 0: not known."""

    group: int
    request: int
    files: GroupFiles | None
    error: ErrorText | None
    free_bytes: int = 0
    open_ns: int = 0


@dataclass(frozen=True)
class GroupRewritten:
    """The ``files`` are new, and the ``saved`` slabs durable in them; ``lost`` are the records of frames that
    could not be read back: the frame log has them already. With an ``error`` the old files are all there
    is."""

    group: int
    files: GroupFiles | None
    saved: set[int]
    lost: np.ndarray
    error: ErrorText | None


@dataclass(frozen=True)
class GroupReopened:
    """New files go on with a sealed group, or ``error`` says why not: ``ShardFormatError`` when its shards
    cannot be read."""

    group: int
    made: ReopenedRow | None
    error: ErrorText | None


@dataclass(frozen=True)
class GroupSealed:
    """The files of one group carry their final names (or were all fill), or ``error`` says why not.
    ``renamed``: some already do. ``records``: of all its frames."""

    group: int
    shards: int
    renamed: bool
    error: ErrorText | None
    seal_ns: int
    records: np.ndarray | None


@dataclass(frozen=True)
class Committed:
    """Everything that was to be synced is, but for ``failed``."""

    failed: dict[int, ErrorText]
    commit_ns: int


@dataclass(frozen=True)
class Recorded:
    """The records of these sequences stand in the frame log (not synced yet). ``release``: their pixels are
    free now. ``settled``: they count as acknowledged; frames that are lost with a failed acquisition never
    do."""

    sequences: np.ndarray
    release: bool
    settled: bool

    @property
    def frames(self) -> int:
        return self.sequences.size


@dataclass(frozen=True)
class NotRecorded:
    """The frame log has no room for these records, not even with the ballast's."""

    records: np.ndarray
    release: bool
    settled: bool
    error: ErrorText

    @property
    def frames(self) -> int:
        return self.records.size


@dataclass(frozen=True)
class KeeperFailed:
    """A command failed that nobody waits for, or the thread died (``dead``)."""

    error: ErrorText
    dead: bool = False


@dataclass(frozen=True)
class StoreFinished:
    """The keeper's last report."""

    error: ErrorText | None


WorkerReport = SlabEncoded | FramesStaged
KeeperReport = (
    GroupPrepared
    | GroupReopened
    | GroupRewritten
    | GroupSealed
    | Committed
    | Recorded
    | NotRecorded
    | KeeperFailed
    | StoreFinished
)
Report = WorkerReport | KeeperReport
