"""The commands of an acquisition's core and the reports that answer them: plain data.

Workers encode and stage; the sealer carries out all other commands, one after the other. A report is made in
the thread that carried the command out, and the core handles it. A shard row is given by its number: the
sealer owns its files. ``Discard`` and ``Abandon`` are answered only when they fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from shardwright.array.acquisition_spec import AcquisitionSpec, Image
    from shardwright.codecs.degrade import DegradeLevel
    from shardwright.model.error_text import ErrorText
    from shardwright.shard.layout import StoreLayout
    from shardwright.shard.shard_row_files import ShardRowFiles

    from .limits import Limits

Joined = tuple["np.ndarray", "np.ndarray"]
"""The checksums of a slab's chunks as far as frames are in them, and whether any pixel of these is not fill
value: ``joined`` of ``kernels.parts``."""


class Encode(NamedTuple):  # one for each slab: a frozen dataclass takes five times as long to make
    """Store the slab of one row in the files of its shard row. ``frames`` int64[P] are addresses of pixels, 0
    where no frame came, ``records`` [P] alike. ``joined``: all frames are in its chunks already, which are
    completed. All are views of the row, which does not change until the answer. -> ``SlabEncoded``"""

    row: int
    slab: int
    files: ShardRowFiles
    frames: np.ndarray
    records: np.ndarray
    joined: Joined | None = None


class TaskTimes(NamedTuple):  # one for each task: a frozen dataclass takes five times as long to make
    """The times of one stored task of a slab: its wait for a worker, its duration, and the level at which it
    wrote ``chunks`` chunks; chunks that are all fill are not written. ``replaced``: the numbers of those that
    failed the encode check, and are stored uncompressed."""

    queue_ns: int
    encode_ns: int
    level: DegradeLevel
    chunks: int
    replaced: Sequence[int] = ()


class SlabEncoded(NamedTuple):
    """All tasks of the slab in this row have ended: no worker reads its pixels any more. ``error``: of the
    first task that failed. ``stored_bytes`` were written to its shard row's files. ``tasks``: the stored
    ones."""

    row: int
    stored_bytes: int
    error: ErrorText | None
    tasks: tuple[TaskTimes, ...] = ()


class Stage(NamedTuple):
    """Put frames at ``in_slab`` int64[n] of a row into ``slots`` int64[n] of the staging area; ``frames``:
    addresses int64[n]; ``records`` [n]. ``files``: put their pixels into the chunks of the slab there, and
    records into ``slots``, if these are not negative. -> ``FramesStaged``"""

    row: int
    slab: int
    in_slab: np.ndarray
    slots: np.ndarray
    frames: np.ndarray
    records: np.ndarray
    files: ShardRowFiles | None = None


class FramesStaged(NamedTuple):
    """Frames at ``in_slab`` of this row are in ``slots`` of the staging area, or ``error`` says why not.
    ``joined``: of these frames, whose pixels are in chunks and are not needed any more."""

    row: int
    in_slab: np.ndarray
    slots: np.ndarray
    error: ErrorText | None
    joined: Joined | None = None


@dataclass(frozen=True)
class Prepare:
    """Preallocate the files of a shard row; ``spill``: below the second root. ``request`` numbers these
    commands, since a shard row may be prepared, discarded and prepared again before the first answer. ->
    ``ShardRowPrepared``"""

    shard_row: int
    request: int
    spill: bool = False


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
class SlabReload:
    """The reload of ``slabs``: their frames get ``slots`` of the staging area, one each."""

    slabs: tuple[int, ...]
    slots: np.ndarray


@dataclass(frozen=True)
class Reopen:
    """Make new files that continue a sealed shard row. -> ``ShardRowReopened``"""

    shard_row: int
    reload: SlabReload


@dataclass(frozen=True)
class ReopenedShardRow:
    """The result of a reopening. ``slabs`` were reloaded; ``records``, ``slots`` and pixel ``addresses`` of
    their frames correspond one for one; ``unused`` slots are free again. ``shards`` files of ``old_bytes``
    will be replaced; ``copied_bytes`` of their chunks are in the new ones. ``joined``: by slab, of frames in
    their chunks."""

    files: ShardRowFiles
    slabs: frozenset[int]
    records: np.ndarray
    slots: np.ndarray
    addresses: np.ndarray
    unused: np.ndarray
    shards: int
    old_bytes: int
    copied_bytes: int
    joined: dict[int, Joined] | None = None


@dataclass(frozen=True)
class ShardRowReopened:
    """New files continue a sealed shard row, or ``error`` says why not: ``ShardFormatError`` when its shards
    cannot be read."""

    shard_row: int
    made: ReopenedShardRow | None
    error: ErrorText | None


@dataclass(frozen=True)
class Rewrite:
    """Copy what can be read back of the stored slabs of a shard row to new files, which replace the old ones
    where these are. ``held_slabs`` are still in memory and cannot be lost. -> ``ShardRowRewritten``"""

    shard_row: int
    stored_slabs: frozenset[int]
    held_slabs: frozenset[int]


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
class Commit:
    """Sync the files of these shard rows, the staging area (``STAGED``) and the frame log (``LOGGED``). ->
    ``Committed``"""

    keys: frozenset[int]


@dataclass(frozen=True)
class Committed:
    """All targets of the commit are synced, except those in ``failed``."""

    failed: dict[int, ErrorText]
    commit_ns: int


@dataclass(frozen=True)
class Seal:
    """Give the files of a shard row their final names, then append its frames to the frame log. ->
    ``ShardRowSealed``"""

    shard_row: int


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
class Show:
    """Let readers of files see stored slabs (``slabs``, by shard row) of shard rows that are not sealed: the
    files grow for them, or are whole and get their names. If that fails, they see them with the next ones, or
    once the shard row is sealed. -> ``Shown``"""

    slabs: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Shown:
    """These ``slabs`` are listed in files with final names. ``failed``: files of these shard rows met an I/O
    error: what was stored in them may not be durable."""

    slabs: tuple[int, ...]
    failed: dict[int, ErrorText]


@dataclass(frozen=True)
class Grow:
    """Let zarr.json of an image cover ``extents`` elements of its growing axes. If that fails, readers see
    them after the next seal or at the end. -> ``Grown``"""

    image: int
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Grown:
    """zarr.json of these images covers so much of their growing axes: ``extents``, by image, of those that
    have grown. ``commands``: how many ``Grow`` this answers; 0 for shapes that had waited for a shard."""

    extents: dict[int, tuple[int, ...]]
    commands: int


@dataclass(frozen=True)
class UpdateMetadata:
    """Add ``attributes`` (JSON values) to those of an image's group, or of the store's (None), durably. ->
    ``MetadataUpdated``"""

    request: int
    image: int | None
    attributes: dict[str, Any]


@dataclass(frozen=True)
class MetadataUpdated:
    """The metadata of this request are durable, or ``error`` says why not."""

    request: int
    error: ErrorText | None


@dataclass(frozen=True)
class RecordImage:
    """Record an image that is added, durably, unless it is there. ``limits``: of the acquisition, by which
    it is refused; ``room_bytes``: the memory that there is beyond them. -> ``ImageAdded``"""

    request: int
    image: Image
    limits: Limits
    room_bytes: int


@dataclass(frozen=True)
class MoreImages:
    """The images of an acquisition that has got one more: what depends on their number. ``more_bytes``:
    memory that they take."""

    spec: AcquisitionSpec
    layout: StoreLayout
    more_bytes: int


@dataclass(frozen=True)
class ImageAdded:
    """The image of this request is recorded, durably, or ``error`` says why not. ``images``: None also if it
    was there before."""

    request: int
    images: MoreImages | None
    error: ErrorText | None


@dataclass(frozen=True)
class FinishStore:
    """End the store. ``extents``: of each image along its growing axes, all 0 if no frame came to it.
    ``frames_durable``: in the store, of all images. ``counts``: of the receipt, which the store records;
    none of an acquisition that leaves work to recovery. After a full disk it may be repeated; otherwise it is
    the last command. -> ``StoreFinished``"""

    extents: tuple[tuple[int, ...], ...]
    frames_durable: int
    keep_workspace: bool
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class RemoveStore:
    """Remove a store that never got a frame; the last command. -> ``StoreFinished``"""


@dataclass(frozen=True)
class StoreFinished:
    """The store is finished or removed, or ``error`` says why not."""

    error: ErrorText | None


@dataclass(frozen=True)
class SealerFailed:
    """A command without a report of its own failed, or the thread died (``dead``)."""

    error: ErrorText
    dead: bool = False


WorkerCommand = Encode | Stage
SealerCommand = (
    Prepare
    | Reopen
    | Rewrite
    | Commit
    | Seal
    | Discard
    | Abandon
    | Record
    | Show
    | Grow
    | UpdateMetadata
    | RecordImage
    | FinishStore
    | RemoveStore
)
Command = WorkerCommand | SealerCommand
WorkerReport = SlabEncoded | FramesStaged
SealerReport = (
    ShardRowPrepared
    | ShardRowReopened
    | ShardRowRewritten
    | ShardRowSealed
    | Committed
    | Shown
    | Grown
    | Recorded
    | NotRecorded
    | MetadataUpdated
    | ImageAdded
    | SealerFailed
    | StoreFinished
)
Report = WorkerReport | SealerReport
