"""What an acquisition's core asks for: plain data, each answered by one report (``reports``).

Workers encode and stage; the shard keeper does all the others, one after the other. To it a group is a
number: the files that belong to it are its own. ``Discard``, ``Abandon`` and ``Grow`` are answered only when
they fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from shardwright.shard.group_files import GroupFiles

    from .reopen import TakingBack


class Encode(NamedTuple):  # one for each slab: a frozen dataclass takes five times as long to make
    """Store the slab of one row in the files of its group. ``frames`` int64[P] are addresses of pixels, 0
    where no frame came, and ``records`` [P] theirs: both are the row's own, which stays as it is until the
    answer. -> ``SlabEncoded``"""

    row: int
    slab: int
    files: GroupFiles
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
    """Preallocate the files of a group, ``spill``: below the second root. ``request`` counts these commands:
    a group may be prepared, discarded and prepared again before the first answer comes. ->
    ``GroupPrepared``"""

    group: int
    request: int
    spill: bool = False


@dataclass(frozen=True)
class Reopen:
    """Make files that go on with a sealed group. -> ``GroupReopened``"""

    group: int
    taking: TakingBack


@dataclass(frozen=True)
class Rewrite:
    """Copy what can be read back of the stored slabs of a group to new files, which take the place of the old
    ones. ``held_slabs`` cannot be lost. -> ``GroupRewritten``"""

    group: int
    stored_slabs: frozenset[int]
    held_slabs: frozenset[int]
    spill: bool


@dataclass(frozen=True)
class Commit:
    """Sync the files of these groups, the staging area (``STAGED``) and the frame log (``LOGGED``). ->
    ``Committed``"""

    keys: frozenset[int]


@dataclass(frozen=True)
class Seal:
    """Give the files of a group their final names, then let the frame log have its frames. ->
    ``GroupSealed``"""

    group: int


@dataclass(frozen=True)
class Discard:
    """Delete prepared files that no frame came for; if another writer has taken over, they are its own
    now."""

    group: int


@dataclass(frozen=True)
class Abandon:
    """Close files that failed, leaving them for recovery."""

    group: int


@dataclass(frozen=True)
class Record:
    """Keep the records of frames that are not stored. -> ``Recorded`` or ``NotRecorded``, to which
    ``release`` and ``settled`` are handed on"""

    records: np.ndarray
    release: bool
    settled: bool


@dataclass(frozen=True)
class Grow:
    """Let zarr.json cover so many elements of the first frame axis. If that fails, readers see them after the
    next seal, or at the end."""

    extent: int


@dataclass(frozen=True)
class Finish:
    """End the store. After a full disk it may be asked again; otherwise nothing comes after it. ->
    ``StoreFinished``"""

    extent: int
    keep_workspace: bool


@dataclass(frozen=True)
class RemoveStore:
    """End a store that never got a frame; nothing comes after it. -> ``StoreFinished``"""


KeeperCommand = (
    Prepare | Reopen | Rewrite | Commit | Seal | Discard | Abandon | Record | Grow | Finish | RemoveStore
)
WorkerCommand = Encode | Stage
Command = WorkerCommand | KeeperCommand
