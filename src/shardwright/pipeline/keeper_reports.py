"""What the shard keeper answers to a command (``commands``), and what it says when one fails. Made in its thread, handled in the acquisition's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from shardwright.model.error_text import ErrorText
    from shardwright.shard.group_files import GroupFiles

    from .reopen import ReopenedRow


@dataclass(frozen=True)
class GroupPrepared:
    """The files of a group are there (which took ``open_ns``), or ``error`` says why not. ``free_bytes`` of the disk are left; 0: not known."""

    group: int
    files: GroupFiles | None
    error: ErrorText | None
    free_bytes: int = 0
    open_ns: int = 0


@dataclass(frozen=True)
class GroupRewritten:
    """The ``files`` are new, and the ``saved`` slabs durable in them; ``lost`` are the records of frames that could not be read back: the frame log
    has them already. With an ``error`` the old files are all there is."""

    group: int
    files: GroupFiles | None
    saved: set[int]
    lost: np.ndarray
    error: ErrorText | None


@dataclass(frozen=True)
class GroupReopened:
    """New files go on with a sealed group, or ``error`` says why not: ``ShardFormatError`` when its shards cannot be read."""

    group: int
    made: ReopenedRow | None
    error: ErrorText | None


@dataclass(frozen=True)
class GroupSealed:
    """The files of one group carry their final names (or were all fill), or ``error`` says why not. ``renamed``: some already do. ``records``: of all
    its frames."""

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
    """The records of these sequences stand in the frame log (not synced yet). ``release``: their pixels are free now. ``settled``: they count as
    acknowledged; frames that are lost with a failed acquisition never do."""

    sequences: np.ndarray
    release: bool
    settled: bool


@dataclass(frozen=True)
class NotRecorded:
    """The frame log has no room for these records, not even with the ballast's."""

    records: np.ndarray
    release: bool
    settled: bool
    error: ErrorText


@dataclass(frozen=True)
class KeeperFailed:
    """A command failed that nobody waits for, or the thread died (``dead``)."""

    error: ErrorText
    dead: bool = False


@dataclass(frozen=True)
class StoreFinished:
    """The keeper's last report."""

    error: ErrorText | None


KeeperReport = GroupPrepared | GroupReopened | GroupRewritten | GroupSealed | Committed | Recorded | NotRecorded | KeeperFailed | StoreFinished
