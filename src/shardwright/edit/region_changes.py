"""Changes a region of an image: its chunks, and those of its levels that are made of them.

    image      shard by shard:  chunks covered in part are decoded and overlaid ──▶ encoded ──▶ ``edit_shard``
    level 1    the windows that the region touches, made of the image as it is now ──▶ likewise
    level 2    ... of level 1

A shard is changed whole or not; the region is not: what is cut short has changed some shards, and the same
call made again completes it. A shard that another process changes between the reading and the writing is read
again. The frame table stays as it is: it tells what the camera sent.

Held in memory: the new chunks of one shard, encoded, and one chunk decoded; for a level also the elements of
the level below that this chunk is made of.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardwright.array.level_shapes import factors_above
from shardwright.array.metadata import CREATOR_ATTRIBUTE
from shardwright.array.spec import METHODS
from shardwright.kernels.downsample import downsample, shape_above
from shardwright.model.errors import (
    FrameIndexError,
    LockedError,
    ShardChangedError,
    ShardFormatError,
    StorageError,
    StrategyError,
    UnknownImageError,
)
from shardwright.model.local_path import local_path
from shardwright.read.frame_table import open_frame_table
from shardwright.read.store import open_store, read_metadata
from shardwright.repack.jobs.chunk_encoder import chunk_encoder
from shardwright.repack.jobs.region_reader import RegionReader
from shardwright.repack.runtime.throttle import Throttle
from shardwright.shard.edit_files import JOURNAL_SUFFIX, edit_file, journaled_edits
from shardwright.storage import beneath
from shardwright.storage.files import FileIdentity

from .interrupted import recover_edits, recover_locked
from .region import (
    Box,
    axis_names,
    cells,
    checked_range,
    common_box,
    frame_boxes,
    part_of,
)
from .shard_edit import can_be_rewritten, check_edit, edit_shard
from .shard_lock import shard_locked

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from shardwright.array.spec import Method
    from shardwright.read.store import Store, StoredArray
    from shardwright.repack.jobs.chunk_encoder import ChunkEncoder

    from .edit_plan import Strategy
    from .shard_edit import EditReport

_TRIES = 10  # of one shard that others change meanwhile
_PAUSE_S = 0.005  # before the second; then one more before each

T = TypeVar("T")
Values = npt.NDArray[Any]
OnProgress = Callable[[int, int], None]  # shards done, of all


@dataclass
class ArrayChanges:
    """What was done to one array; with ``dry_run`` what would be, as far as it is known without reading.
    ``chunks``: changed ones, of which ``chunks_read`` were covered in part; ``chunks_absent``: of them, those
    that are all fill value now. ``strategies``: how often each was used."""

    name: str
    shards: int = 0
    shards_removed: int = 0
    chunks: int = 0
    chunks_read: int = 0
    chunks_absent: int = 0
    bytes_written: int = 0
    strategies: dict[str, int] = field(default_factory=dict)


@dataclass
class RegionReport:
    """``arrays``: the image, then its levels. ``warnings``: levels that do not show the change."""

    path: str
    dry_run: bool
    arrays: list[ArrayChanges] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class TargetImage:
    """An image of a store; ``store``: of all images, ``image``: that of this one."""

    store: Store
    image: Store

    @classmethod
    def of(cls, path: str | os.PathLike[str], name: str | None) -> TargetImage:
        """Raises ``ShardFormatError``, ``UnknownImageError``, ``LockedError``, ``StorageError``."""
        store = open_store(local_path(path))
        if store.shard is not None:
            raise ShardFormatError(f"{path} is a shard", expected="a store, or an array in it")
        if store.work_in_progress:
            raise LockedError(
                f"{store.root} is still being written, or its acquisition ended without sealing all shards",
                hint="Wait until it has ended, or recover it with `shardwright recover`",
            )
        store = _with_levels(store)
        image = _image(store, name)
        image.check_references()
        image.check_spelling()
        return cls(store, image)

    @property
    def array(self) -> StoredArray:
        return self.image.arrays[0]

    def boxes_of_frames(self, frames: Any) -> list[Box]:
        """Raises ``FrameIndexError``, ``ShardFormatError`` for a frame table that is not the image's."""
        names, array = axis_names(self.array), self.array
        if len(names) < 3:
            raise FrameIndexError(f"{array.path} has no frames", hint="Give a region instead")
        table = open_frame_table(self.store)
        axes = list(range(len(names) - 2))
        if table is not None:
            part = table.of(self.store, array)
            part.frame_counts(array)  # raises for other axes than the array's
            axes = [names.index(name) for name in part.axes]
        elif len(axes) > 1:
            raise FrameIndexError(
                f"{self.store.root} has no frame table, so the order of its frames is not known",
                hint="Give a region instead, or the path of the whole store",
            )
        counts = [array.shape[axis] for axis in axes]
        number = checked_range("frames", frames, math.prod(counts))
        plane = [(0, n) for n in array.shape[-2:]]
        boxes = []
        for box in frame_boxes(counts, *number):
            stored = dict(zip(axes, box, strict=True))
            boxes.append((*(stored[axis] for axis in range(len(axes))), *plane))
        return boxes


def _with_levels(store: Store) -> Store:
    """Returns the image of an array that was given alone. Raises ``ShardFormatError`` for one of its
    levels."""
    above = store.root.parent
    if store.group is not None or not beneath.is_file(above / "zarr.json"):
        return store
    (array,) = store.arrays
    try:
        image = open_store(above)
    except ShardFormatError:
        return store  # a group that is no image
    paths = [one.path for one in image.arrays]
    if image.collection is not None or array.path not in paths:
        return store
    if array.path != paths[0]:
        raise ShardFormatError(
            f"{array.path} is a level of lower resolution", hint=f"Change the image, {above}: levels follow"
        )
    return image


def _image(store: Store, name: str | None) -> Store:
    """Returns the image of this name, or in this folder. Raises ``UnknownImageError``,
    ``ShardFormatError``."""
    images = [image for image in store.images if image.arrays]
    folders = [image.root.relative_to(store.root).as_posix() for image in images]
    if name is None and len(images) == 1:
        return images[0]
    known = [
        image
        for image, folder in zip(images, folders, strict=True)
        if name is not None and name in (image.image_name, folder)
    ]
    if len(known) == 1:
        return known[0]
    raise UnknownImageError(
        f"{store.root} has {len(images)} images"
        if name is None
        else f"{store.root} has no one image {name!r}",
        expected="the name or folder of one: "
        + ", ".join(image.image_name or folder for image, folder in zip(images[:8], folders, strict=False))
        + (", ..." if len(images) > 8 else ""),
    )


class RegionChanges:
    """The changes of one call. ``values`` None: the fill value."""

    def __init__(
        self,
        target: TargetImage,
        boxes: list[Box],
        values: NewValues | None,
        strategy: Strategy,
        max_unused: float,
    ) -> None:
        self._target = target
        self._settings = {"strategy": strategy, "max_unused": max_unused}
        self._edits = [_ArrayEdit(target.array, boxes, values)]
        self._warnings: list[str] = []
        self._add_levels()
        for edit in self._edits:
            edit.check_links()

    def _add_levels(self) -> None:
        """Add the windows that are made of what changes. A level that is not known to be made of one that
        changes gets a warning."""
        image, known = self._target.image, {edit.name: edit for edit in self._edits}
        for level in image.arrays[1:]:
            name = level.path.relative_to(image.root).as_posix()
            made = _made_of(level, {name: edit.array for name, edit in known.items()})
            if isinstance(made, str):
                self._warnings.append(
                    f"level {name} of {image.root} does not show the change: {made}. `shardwright rechunk "
                    f"STORE NEW_STORE --chunks ... --levels {len(image.arrays) - 1}` makes levels anew"
                )
                continue
            below = known[made.below]
            boxes = list(dict.fromkeys(made.windows(box) for box in below.boxes))
            edit = known[name] = _ArrayEdit(level, boxes, DownsampledValues(below.array, made))
            self._edits.append(edit)

    def run(self, on_progress: OnProgress | None, *, dry_run: bool) -> RegionReport:
        begin_s = time.monotonic()
        report = RegionReport(str(self._target.image.root), dry_run, warnings=self._warnings)
        total, done = sum(len(edit.shards) for edit in self._edits), 0
        if not dry_run:
            for edit in self._edits:  # before chunks are read that a killed edit may have left half written
                recover_edits(edit.array.path)
            self._edits[0].check_all(self._settings)
        for edit in self._edits:
            report.arrays.append(edit.changes)
            for shard in edit.shards:
                if dry_run:
                    edit.count(shard)
                else:
                    edit.change(shard, self._settings)
                done += 1
                if on_progress is not None:
                    on_progress(done, total)
            edit.close()
        report.seconds = time.monotonic() - begin_s
        return report


@dataclass(frozen=True)
class _Made:
    """How a level is made of the one ``below``. ``factors``: along each axis."""

    below: str
    factors: tuple[int, ...]
    method: Method

    def windows(self, box: Box) -> Box:
        """Returns the elements of the level that are made of a box of the level below."""
        return tuple((start // f, -(-stop // f)) for (start, stop), f in zip(box, self.factors, strict=True))


def _made_of(level: StoredArray, known: Mapping[str, StoredArray]) -> _Made | str:
    """Returns how a level was made of one of the ``known`` arrays, or why that is not known."""
    made = read_metadata(level.path).get("attributes", {}).get(CREATOR_ATTRIBUTE)
    if not isinstance(made, dict) or made.get("method") not in METHODS:
        return "its metadata do not say how it was made"
    if (below := known.get(str(made.get("of")))) is None:
        return f"it is made of {made.get('of')!r}, which is no level that changes"
    axes = made.get("axes", [])
    wanted = made.get("factors") or dict.fromkeys(axes if isinstance(axes, list) else [], 2)
    if not isinstance(wanted, dict) or not all(type(f) is int and f > 0 for f in wanted.values()):
        return "its metadata do not say by which factors it was made"
    factors = factors_above(axis_names(below), below.shape, wanted)
    if shape_above(below.shape, factors) != level.shape or below.dtype != level.dtype:
        return f"its shape {level.shape} does not follow from that of {made['of']!r} by its factors"
    return _Made(str(made["of"]), factors, made["method"])


class GivenValues:
    """The values of a box, from the user."""

    def __init__(self, box: Box, values: Values) -> None:
        self._origin = [start for start, _ in box]
        self._values = values

    def fill(self, part: Box, out: Values) -> None:
        """Fills ``out`` with the values of a part of the box."""
        out[...] = self._values[part_of(part, self._origin)]

    def release(self) -> None:
        """Does nothing: there are no files."""


class DownsampledValues:
    """Values of a level, made of the level below as it is at the time."""

    def __init__(self, below: StoredArray, made: _Made) -> None:
        self.below = below
        self._made = made
        self._reader: RegionReader | None = None

    def fill(self, part: Box, out: Values) -> None:
        """Fills ``out`` with the values of a part of the level."""
        factors, source = self._made.factors, self.source_of(part)
        values = np.empty([stop - start for start, stop in source], _native(self.below))
        self._reader = self._reader or RegionReader(self.below, _unhurried())
        self._reader.read(tuple(start for start, _ in source), values)
        made = np.empty(out.shape, values.dtype)
        downsample(values, made, factors, self._made.method)
        out[...] = made

    def source_of(self, part: Box) -> Box:
        """Returns the box of the level below that a part of the level is made of."""
        sizes = zip(part, self._made.factors, self.below.shape, strict=True)
        return tuple((start * f, min(stop * f, n)) for (start, stop), f, n in sizes)

    def release(self) -> None:
        """Closes the files that were read: the next values are those of then."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _native(array: StoredArray) -> np.dtype[Any]:
    return array.dtype.newbyteorder("=")


def _unhurried() -> Throttle:
    """A throttle that lets everything pass."""
    return Throttle(idle=False)


NewValues = GivenValues | DownsampledValues


class _ArrayEdit:
    """The changes of one array: ``boxes`` of it get new values."""

    def __init__(self, array: StoredArray, boxes: list[Box], values: NewValues | None) -> None:
        self.array = array
        self.boxes = boxes
        self.name = array.path.name
        self.changes = ArrayChanges(self.name)
        self._values = values
        self._encoder: ChunkEncoder | None = None
        touched = itertools.chain.from_iterable(cells(box, array.shard_shape) for box in boxes)
        self.shards = sorted(dict.fromkeys(touched))

    def check_links(self) -> None:
        """Raises ``StorageError`` for a shard that is not updated: before any is."""
        for shard in self.shards:
            path = self.array.path / self.array.shard_key(shard)
            if beneath.is_link(path):
                raise StorageError(
                    f"{path} is a link to a shard on another disk, which is not updated",
                    hint="`shardwright compact --to` makes a store without links",
                )

    def check_all(self, settings: Mapping[str, Any]) -> None:
        """Checks that every shard can be changed by the strategy, before the first one is. Raises
        ``StrategyError``, and ``ShardFormatError`` for bytes that it would not keep."""
        for shard in self.shards:
            self._settled(shard, partial(self._check, shard, settings))

    def _check(self, shard: tuple[int, ...], settings: Mapping[str, Any], _before: FileIdentity) -> None:
        by_name = settings["strategy"] not in ("auto", "rewrite")
        if by_name or not can_be_rewritten(self.array, shard):  # else whatever its chunks take is possible
            check_edit(self.array, shard, self._new_chunks(shard)[0], **settings)

    def count(self, shard: tuple[int, ...]) -> None:
        """Count what would be changed."""
        chunks = list(self._chunks(shard))
        self.changes.shards += 1
        self.changes.chunks += len(chunks)
        self.changes.chunks_read += sum(not self._is_covered(inside, parts) for _, inside, parts in chunks)

    def change(self, shard: tuple[int, ...], settings: Mapping[str, Any]) -> None:
        chunks, read, report = self._settled(shard, partial(self._changed, shard, settings))
        self.changes.shards += 1
        self.changes.shards_removed += report.removed
        self.changes.chunks += len(chunks)
        self.changes.chunks_read += read
        self.changes.chunks_absent += sum(data is None for data in chunks.values())
        self.changes.bytes_written += report.bytes_written
        used = self.changes.strategies
        used[report.strategy] = used.get(report.strategy, 0) + 1

    def _changed(
        self, shard: tuple[int, ...], settings: Mapping[str, Any], before: FileIdentity
    ) -> tuple[dict[int, bytes | None], int, EditReport]:
        chunks, read = self._new_chunks(shard)
        if isinstance(self._values, DownsampledValues):
            # what they take is not known before the level below is changed: then it is too late to refuse
            with suppress(StrategyError):
                return chunks, read, edit_shard(self.array, shard, chunks, expected=before, **settings)
            settings = {**settings, "strategy": "auto"}
        return chunks, read, edit_shard(self.array, shard, chunks, expected=before, **settings)

    def _settled(self, shard: tuple[int, ...], attempt: Callable[[FileIdentity], T]) -> T:
        """Returns what ``attempt`` does with a shard of this identity, which others may change meanwhile."""
        path = self.array.path / self.array.shard_key(shard)
        for left in reversed(range(_TRIES)):
            self._wait_for_edits(shard)
            before = FileIdentity.at(path)
            try:
                return attempt(before)
            except ShardChangedError:
                if not left:
                    raise
            except ShardFormatError:  # perhaps of bytes that were written while they were read
                if not left or not (FileIdentity.at(path) != before or any(self._edited(shard))):
                    raise
            time.sleep(_PAUSE_S * (_TRIES - left))  # so that others get on
        raise AssertionError("the last try returns or raises")

    def _edited(self, shard: tuple[int, ...]) -> Iterator[tuple[StoredArray, str]]:
        """Yields of a shard, and of those of the level below that it is made of, what an edit is being
        written into, or was when it was interrupted."""
        key = self.array.shard_key(shard)
        if beneath.exists(edit_file(self.array.path, key, JOURNAL_SUFFIX)):
            yield self.array, key
        values = self._values
        if isinstance(values, DownsampledValues) and (names := journaled_edits(values.below.path)):
            below = values.below
            parts = (part for _, _, parts in self._chunks(shard) for part in parts)
            boxes = (values.source_of(part) for part in parts)
            made_of = {below.shard_key(one) for box in boxes for one in cells(box, below.shard_shape)}
            yield from ((below, key) for key in sorted(made_of) if key.replace("/", ".") in names)

    def _wait_for_edits(self, shard: tuple[int, ...]) -> None:
        """Wait for edits of other processes, and complete those that were interrupted, before chunks are
        read."""
        for array, name in self._edited(shard):
            with shard_locked(array.path, name):
                recover_locked(array, name)

    def _chunks(self, shard: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Box, list[Box]]]:
        """Yields for each chunk of a shard that changes: its coordinates within the shard, the box of it
        inside the array's shape, and the parts of this that change."""
        array = self.array
        span = tuple((i * n, (i + 1) * n) for i, n in zip(shard, array.shard_shape, strict=True))
        found = [part for box in self.boxes if (part := common_box(box, span)) is not None]
        touched = itertools.chain.from_iterable(cells(part, array.chunk_shape) for part in found)
        for chunk in sorted(dict.fromkeys(touched)):
            inside = tuple(
                (i * c, min((i + 1) * c, n))
                for i, c, n in zip(chunk, array.chunk_shape, array.shape, strict=True)
            )
            parts = [part for box in found if (part := common_box(box, inside)) is not None]
            within = tuple(i % n for i, n in zip(chunk, array.shard_chunks, strict=True))
            yield within, inside, parts

    @staticmethod
    def _is_covered(inside: Box, parts: Sequence[Box]) -> bool:
        return inside in parts

    def _new_chunks(self, shard: tuple[int, ...]) -> tuple[dict[int, bytes | None], int]:
        """Returns the encoded chunks by number within the shard, None for one that is all fill; and how many
        of them were read."""
        array, read = self.array, 0
        chunks: dict[int, bytes | None] = {}
        reader = RegionReader(array, _unhurried())
        try:
            for within, inside, parts in self._chunks(shard):
                number = int(np.ravel_multi_index(within, array.shard_chunks)) if within else 0
                covered = self._is_covered(inside, parts)
                if covered and self._values is None:
                    chunks[number] = None
                    continue
                origin = tuple(start for start, _ in inside)
                # all of the chunk: what a cropped array has outside of its shape is kept
                values = np.full(array.chunk_shape, array.fill_element, array.dtype)
                if not covered:
                    reader.read(origin, values)
                    read += 1
                for part in parts:
                    place: tuple[Any, ...] = part_of(part, origin)
                    self._overlay(part, values[(*place, ...)])  # a view, also of an array without axes
                chunks[number] = self._encoded(values, within)
        finally:
            reader.close()
            if self._values is not None:
                self._values.release()
        return chunks, read

    def _overlay(self, part: Box, out: Values) -> None:
        if self._values is None:
            out[...] = self.array.fill_element
        else:
            self._values.fill(part, out)

    def _encoded(self, values: Values, within: tuple[int, ...]) -> bytes | None:
        """Returns the chunk at ``within`` (its coordinates in its shard) of these values; None if all are
        fill."""
        if self._encoder is None:
            self._encoder = chunk_encoder(self.array, lossy=True)  # its codecs are those of the array
        chunks = self._encoder.encode(values, within)
        return next(chunks).bytes_of(0)

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
