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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardwright.array.as_written import is_whole
from shardwright.array.level_shapes import factors_above
from shardwright.array.metadata import creator_facts
from shardwright.array.spec import METHODS
from shardwright.disk import beneath
from shardwright.disk.files import FileIdentity
from shardwright.kernels.downsample import shape_above
from shardwright.model.errors import (
    FrameIndexError,
    ShardChangedError,
    ShardFormatError,
    StrategyError,
    UnknownImageError,
)
from shardwright.model.local_path import local_path
from shardwright.model.names import DOCUMENT
from shardwright.read.frame_table import open_frame_table
from shardwright.read.store import open_store, read_metadata
from shardwright.rework.boxes import Box, cells, common_box, part_of, source_box
from shardwright.rework.change_checks import check_finished, check_not_spilled
from shardwright.rework.chunk_encoder import chunk_encoder
from shardwright.rework.made_values import MadeValues
from shardwright.rework.region_reader import RegionReader
from shardwright.shard.edit_files import JOURNAL_SUFFIX, edit_file, journaled_edits

from .edit_recovery import complete_edit, recover_edits
from .region import (
    axis_names,
    box_of,
    checked_range,
    checked_values,
    frame_boxes,
    frames_of_box,
)
from .shard_edit import can_be_rewritten, check_edit, edit_shard

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from shardwright.array.spec import Method
    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.chunk_encoder import ChunkEncoder

    from .edit_plan import Strategy
    from .region import Region
    from .shard_edit import EditReport

_TRIES = 10  # of one shard that others change meanwhile
_PAUSE_S = 0.005  # before the second; then one more before each

T = TypeVar("T")
Values = npt.NDArray[Any]
OnProgress = Callable[[int, int], None]  # shards done, of all


@dataclass
class ArrayChanges:
    """The changes that were made to one array; with ``dry_run`` those that would be, as far as they are known
    without reading. ``chunks``: changed ones, of which ``chunks_read`` were covered in part;
    ``chunks_absent``: of them, those that are all fill value now. ``strategies``: how often each was used."""

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
    """The report of a change of a region. ``arrays``: the image, then its levels. ``warnings``: levels that
    do not show the change."""

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
        check_finished(store.root)
        store = _with_levels(store)
        image = image_named(store, name)
        image.check_references()
        image.check_spelling()
        return cls(store, image)

    @property
    def array(self) -> StoredArray:
        return self.image.arrays[0]

    def boxes_of(self, region: Region, *values: npt.ArrayLike) -> dict[Box, Values | None]:
        """Returns the boxes of a region, each with its new values, None without any. Raises
        ``FrameIndexError``, ``FrameShapeError``, ``FrameDtypeError``, ``ShardFormatError`` for a frame table
        that is not the image's."""
        array = self.array
        if isinstance(region, Mapping):
            box, single = box_of(array, region)
            return {box: checked_values(array, box, single, *values) if values else None}
        axes = self._frame_axes()
        counts = [array.shape[axis] for axis in axes]
        first, stop = checked_range("frames", region, math.prod(counts))
        plane = tuple((0, n) for n in array.shape[-2:])
        single = (0,) if is_whole(region) else ()
        frames = checked_values(array, ((first, stop), *plane), single, *values) if values else None
        order = [axes.index(axis) for axis in range(len(axes))]  # of the stored axes, in the acquisition's
        boxes: dict[Box, Values | None] = {}
        for box in frame_boxes(counts, first, stop):
            stored = (*(box[selection] for selection in order), *plane)
            boxes[stored] = None
            if frames is not None:
                part = frames_of_box(frames, first, counts, box)
                boxes[stored] = part.transpose(*order, len(axes), len(axes) + 1)
        return boxes

    def _frame_axes(self) -> list[int]:
        """Returns the axes of the frames in the order of acquisition. Raises ``FrameIndexError``,
        ``ShardFormatError``."""
        names, array = axis_names(self.array), self.array
        if len(names) < 3:
            raise FrameIndexError(f"{array.path} has no frames", hint="Name a region by its axes")
        table = open_frame_table(self.store)
        axes = list(range(len(names) - 2))
        if table is not None:
            part = table.of(self.store, array)
            part.frame_counts(array)  # raises for other axes than the array's
            axes = [names.index(name) for name in part.axes]
        elif len(axes) > 1:
            raise FrameIndexError(
                f"{self.store.root} has no frame table, so the order of its frames is not known",
                hint="Name a region by its axes, or give the path of the whole store",
            )
        return axes


def _with_levels(store: Store) -> Store:
    """Returns the image of an array that was given alone. Raises ``ShardFormatError`` for one of its
    levels."""
    above = store.root.parent
    if store.group is not None or not beneath.is_file(above / DOCUMENT):
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


def image_named(store: Store, name: str | None) -> Store:
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
    """The changes of one call: ``values`` by box, None for the fill value."""

    def __init__(
        self,
        target: TargetImage,
        values: Mapping[Box, Values | None],
        strategy: Strategy,
        max_unused: float,
    ) -> None:
        self._target = target
        self._settings = {"strategy": strategy, "max_unused": max_unused}
        given = {box: new for box, new in values.items() if new is not None}
        self._edits = [_ArrayEdit(target.array, list(values), GivenValues(given) if given else None)]
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
    """The derivation of a level from the one ``below``. ``factors``: along each axis."""

    below: str
    factors: tuple[int, ...]
    method: Method

    def windows(self, box: Box) -> Box:
        """Returns the elements of the level that are made of a box of the level below."""
        return tuple((start // f, -(-stop // f)) for (start, stop), f in zip(box, self.factors, strict=True))


def _made_of(level: StoredArray, known: Mapping[str, StoredArray]) -> _Made | str:
    """Returns how a level was made of one of the ``known`` arrays, or why that is not known."""
    made = creator_facts(read_metadata(level.path))
    if made.get("method") not in METHODS:
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
    """The values of some boxes, from the user."""

    def __init__(self, values: Mapping[Box, Values]) -> None:
        self._values = values

    def fill(self, part: Box, out: Values) -> None:
        """Fills ``out`` with the values of a part of one of the boxes."""
        box = next(box for box in self._values if common_box(part, box) == part)
        out[...] = self._values[box][part_of(part, [start for start, _ in box])]

    def release(self) -> None:
        """Does nothing: there are no files."""


class DownsampledValues:
    """Values of a level, made of the level below as it is at the time."""

    def __init__(self, below: StoredArray, made: _Made) -> None:
        self.below, self.made = below, made
        self._values: MadeValues | None = None

    def fill(self, part: Box, out: Values) -> None:
        """Fills ``out`` with the values of a part of the level."""
        self._values = self._values or MadeValues(self.below, self.made.factors, self.made.method)
        made = np.empty(out.shape, self.below.dtype)
        self._values.read(tuple(start for start, _ in part), made)
        out[...] = made

    def release(self) -> None:
        """Closes the files that were read: the next values are those of then."""
        if self._values is not None:
            self._values.close()
            self._values = None


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
        """Raises ``StorageError`` for a shard on another disk: before any is changed."""
        for shard in self.shards:
            check_not_spilled(self.array.path / self.array.shard_key(shard))

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
        self.changes.chunks_read += sum(inside not in parts for _, inside, parts in chunks)

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
            for array, name in self._edited(shard):  # before chunks are read
                complete_edit(array, name)
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
            boxes = (source_box(part, values.made.factors, below.shape) for part in parts)
            made_of = {below.shard_key(one) for box in boxes for one in cells(box, below.shard_shape)}
            yield from ((below, key) for key in sorted(made_of) if key.replace("/", ".") in names)

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

    def _new_chunks(self, shard: tuple[int, ...]) -> tuple[dict[int, bytes | None], int]:
        """Returns the encoded chunks by number within the shard, None for one that is all fill; and how many
        of them were read."""
        array, read = self.array, 0
        chunks: dict[int, bytes | None] = {}
        reader = RegionReader(array)
        try:
            for within, inside, parts in self._chunks(shard):
                number = int(np.ravel_multi_index(within, array.shard_chunks)) if within else 0
                covered = inside in parts
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
                    selection: tuple[Any, ...] = part_of(part, origin)
                    self._overlay(part, values[(*selection, ...)])  # a view, also of an array without axes
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
