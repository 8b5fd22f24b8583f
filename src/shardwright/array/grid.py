"""The chunk grid: maps a frame's position in acquisition order to its slab, its shard and its place in the
array.

    acquisition order     t, z, c            the order in which frames arrive; ``position`` ravels an index
                          over these axes (row-major)
    storage order         t, c, z, y, x      the order of the array's axes
    slab                  the frames that share one chunk coordinate along every frame axis; they complete one
                          layer of inner chunks
    shard row             the slabs that share one shard coordinate along every frame axis; one shard file for
                          each shard of the frame plane. Where a shard is a single slab deep, several that
                          follow each other in acquisition order make one shard row (``split_row``)

Positions, slabs and shard rows are numbers. Those of image k of an acquisition begin at ``k << IMAGE_SHIFT``,
so that every number names its image as well; an image alone is image 0.

Only this module handles both orders. Pure arithmetic on frozen objects, but for ``Extents``, which grow with
the frames; the kernels get their tables as plain arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardwright.model.errors import FrameIndexError, ShardFormatError
from shardwright.wire.messages import IMAGE_SHIFT, MAX_POSITION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from .spec import ArraySpec

MOST_ROW_SHARDS = 64  # along the frame axes
MOST_ROW_FILES = 256
ROW_BYTES = 64 << 20  # of pixels, in a shard row of several shards
BYTES_ACROSS = 512 << 20  # likewise, in those of all images that are open at once

Number = TypeVar("Number", int, "npt.NDArray[np.int64]")  # one, or many at once


def image_of(number: Number) -> Number:
    """Returns the image of a position, a slab or a shard row; of a negative number a negative one."""
    return number >> IMAGE_SHIFT


def number_in_image(number: Number) -> Number:
    """Returns a position, a slab or a shard row as counted within its image."""
    return number & MAX_POSITION


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _unravel(linear: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the row-major index; ``counts[0]`` is never used, so that the first axis may be unlimited."""
    index = []
    for count in reversed(counts[1:]):
        linear, remainder = divmod(linear, count)
        index.append(remainder)
    return (linear, *reversed(index)) if counts else ()


def _ravel(index: tuple[int, ...], counts: tuple[int, ...]) -> int:
    linear = 0
    for i, count in zip(index, counts, strict=True):
        linear = linear * count + i
    return linear


@dataclass(frozen=True)
class Grid:
    """Derived from a spec by ``Grid.of``. Frame axes are all but the last two, in acquisition order;
    ``counts[0]`` is 0 when unlimited, and ``growing`` are ``ArraySpec.growing_axes``.

    Examples
    --------
    Two channels, acquired in turn: position 37 is time 18, channel 1. Chunks hold 8 times of one channel, a
    quarter of each frame; shards hold 32 times of one channel, whole frames: 16 chunks.

    >>> from shardwright.array.grid import Grid
    >>> axes = [("t", None, 8, 4), ("c", 2, 1, 1), ("y", 512, 256, 2), ("x", 512, 256, 2)]
    >>> sizes = ("name", "count", "chunk_size", "shard_size_chunks")
    >>> grid = Grid.of(sw.ArraySpec(dtype="uint16", dimensions=[dict(zip(sizes, axis)) for axis in axes]))
    >>> grid.index_of(37), grid.position_of((18, 1))
    ((18, 1), 37)
    >>> slab = grid.slab_of_position(37)
    >>> slab, grid.slab_coordinates(slab), grid.frames_per_slab
    (5, (2, 1), 8)
    >>> grid.shard_row_of_slab(slab), grid.shard_row_coordinates(1), grid.files_per_shard_row
    (1, (0, 1), 1)
    """

    counts: tuple[int, ...]
    chunk: tuple[int, ...]
    shard_chunks: tuple[int, ...]
    stored_axes: tuple[int, ...]  # stored_axes[j]: the acquired frame axis that is stored as axis j
    frame_shape: tuple[int, int]
    plane_chunk: tuple[int, int]
    plane_shard_chunks: tuple[int, int]
    itemsize: int
    # the array on disk has columns before rows; slots and numbers of files do not
    is_transposed: bool = False
    growing: tuple[int, ...] = ()
    image: int = 0
    # the shards of a shard row along each frame axis; all 1 unless it is split
    row_shards: tuple[int, ...] = ()
    levels: tuple[Grid, ...] = ()  # above the image; a slab and a shard row have the same number in each
    frame_places: int = (
        1  # of one frame of the user, one behind the other: those of a colour camera have several
    )

    @classmethod
    def of(cls, spec: ArraySpec, image: int = 0) -> Grid:
        names = [d.name for d in spec.dimensions[:-2]]
        frame_axes, plane = spec.dimensions[:-2], spec.dimensions[-2:]
        grid = cls(
            counts=spec.frame_counts,
            chunk=tuple(d.chunk_size for d in frame_axes),
            shard_chunks=tuple(d.shard_chunks for d in frame_axes),
            stored_axes=tuple(names.index(d.name) for d in spec.stored_dimensions[:-2]),
            frame_shape=spec.frame_shape,
            plane_chunk=(plane[0].chunk_size, plane[1].chunk_size),
            plane_shard_chunks=(plane[0].shard_chunks, plane[1].shard_chunks),
            itemsize=spec.itemsize,
            is_transposed=spec.is_transposed,
            growing=spec.growing_axes,
            image=image,
            frame_places=spec.frame_places,
        )
        levels = tuple(
            replace(
                grid,
                # an axis without a count is never reduced
                counts=tuple(above or n for above, n in zip(level.counts, grid.counts, strict=False)),
                chunk=level.chunk[:-2],
                frame_shape=(level.counts[-2], level.counts[-1]),
                plane_chunk=(level.chunk[-2], level.chunk[-1]),
            )
            for level in spec.level_shapes
        )
        assert all(level.slab_counts == grid.slab_counts for level in levels), "no window leaves its slab"
        return replace(grid, levels=levels)

    def of_image(self, image: int) -> Grid:
        """Returns the grid of another image of the same array. All that is derived from this one is derived
        once: a plate has thousands of images."""
        for name in _DERIVED:
            getattr(self, name)
        twin = object.__new__(Grid)
        levels = tuple(level.of_image(image) for level in self.levels)
        twin.__dict__.update(self.__dict__, image=image, levels=levels)
        del twin.__dict__["last_position"]  # of this image
        return twin

    def __post_init__(self) -> None:
        if not self.row_shards:
            object.__setattr__(self, "row_shards", (1,) * len(self.chunk))
        assert self.is_split <= self.may_split, "a slab of a shard row of several shards is one shard deep"

    @cached_property
    def may_split(self) -> bool:
        """True if a shard is one slab deep, so that several can make a shard row."""
        return math.prod(self.shard_chunks) == 1 and not self.is_ragged

    @cached_property
    def is_split(self) -> bool:
        """True if a shard row has several shards along the frame axes, one for each of its slabs."""
        return math.prod(self.row_shards) > 1

    def split_row(self, shards: int, slower_axes: int, across: int = 1) -> Grid:
        """Returns the grid with shard rows of up to ``shards`` shards that follow each other in acquisition
        order. The files of one shard row are made, synced and sealed together, which costs little more than
        for one. A row along ``slower_axes``, the first axes, which change slower than the image, stays open
        while frames of other images come: it has up to ``across`` shards."""
        along, room = [1] * len(self.counts), shards if self.may_split else 1
        for axis in range(len(self.counts) - 1, -1, -1):
            if axis < slower_axes:
                room = max(1, min(room, across // math.prod(along)))
            count = self.slab_counts[axis]
            along[axis] = min(room, count) if count else room
            room //= along[axis]
            if along[axis] != count:
                break
        if tuple(along) == self.row_shards:
            return self
        levels = tuple(replace(level, row_shards=tuple(along)) for level in self.levels)
        return replace(self, row_shards=tuple(along), levels=levels)

    @property
    def most_row_shards(self) -> int:
        """The number of shards of which a shard row should be made."""
        slab_bytes = self.frames_per_slab * self.frame_bytes
        most = min(MOST_ROW_SHARDS, ROW_BYTES // slab_bytes, MOST_ROW_FILES // self.files_per_slab)
        return max(1, most) if self.may_split else 1

    @property
    def first(self) -> int:
        """The first position, slab and shard row of the image."""
        return self.image << IMAGE_SHIFT

    def _number(self, index: tuple[int, ...], counts: tuple[int, ...]) -> int:
        return self.first + _ravel(index, counts)

    def _index(self, number: int, counts: tuple[int, ...]) -> tuple[int, ...]:
        return _unravel(number - self.first, counts)

    @property
    def unlimited(self) -> bool:
        return bool(self.counts) and self.counts[0] == 0

    @property
    def is_ragged(self) -> bool:
        """True if a faster axis has no count either: frames must then name their index."""
        return len(self.growing) > 1

    @cached_property
    def total_frames(self) -> int | None:
        """The number of frames of the whole array, None when an axis has no count."""
        return None if self.unlimited or self.is_ragged else math.prod(self.counts)

    @cached_property
    def last_position(self) -> int:
        """The largest position of a frame: the array's last, or the last that the protocol can name."""
        frames = MAX_POSITION + 1 if self.unlimited else math.prod(self.counts)
        frames = min(frames, MAX_POSITION + 1)
        return self.first + frames - frames % self.frame_places - 1  # of colours whole frames

    @cached_property
    def lasts(self) -> tuple[int, ...]:
        """The last index along each frame axis; of an unlimited first one, that of ``last_position``."""
        first = (self.last_position - self.first) // math.prod(self.counts[1:])
        return (first, *(count - 1 for count in self.counts[1:])) if self.counts else ()

    @cached_property
    def frames_per_slab(self) -> int:
        return math.prod(self.chunk)

    @cached_property
    def slab_counts(self) -> tuple[int, ...]:
        """The number of slabs along each frame axis (0 for an unlimited first one)."""
        return tuple(_ceil_div(n, c) for n, c in zip(self.counts, self.chunk, strict=True))

    @cached_property
    def row_slabs(self) -> tuple[int, ...]:
        """The number of slabs of a shard row along each frame axis."""
        return tuple(s * n for s, n in zip(self.shard_chunks, self.row_shards, strict=True))

    @cached_property
    def shard_row_counts(self) -> tuple[int, ...]:
        """The number of shard rows along each frame axis (0 for an unlimited first one)."""
        return tuple(_ceil_div(n, s) for n, s in zip(self.slab_counts, self.row_slabs, strict=True))

    @cached_property
    def plane_chunks(self) -> tuple[int, int]:
        """The number of inner chunks that cover one frame, along rows and columns."""
        return _ceil_div(self.frame_shape[0], self.plane_chunk[0]), _ceil_div(
            self.frame_shape[1], self.plane_chunk[1]
        )

    @cached_property
    def plane_shards(self) -> tuple[int, int]:
        """The number of shard files that cover one frame, along rows and columns."""
        return (
            _ceil_div(self.plane_chunks[0], self.plane_shard_chunks[0]),
            _ceil_div(self.plane_chunks[1], self.plane_shard_chunks[1]),
        )

    @cached_property
    def files_per_slab(self) -> int:
        """The number of shard files that cover one frame, and those of its levels."""
        return sum(math.prod(grid.plane_shards) for grid in (self, *self.levels))

    @property
    def files_per_shard_row(self) -> int:
        """The number of shard files of a whole shard row."""
        return self.files_per_slab * math.prod(self.row_shards)

    @property
    def frame_bytes(self) -> int:
        return self.frame_shape[0] * self.frame_shape[1] * self.itemsize

    @property
    def chunk_bytes(self) -> int:
        """The size of one decoded inner chunk."""
        return self.frames_per_slab * self.plane_chunk[0] * self.plane_chunk[1] * self.itemsize

    def position_of(self, index: tuple[int, ...]) -> int:
        """Returns the position of an n-d frame index (acquisition order). Raises ``FrameIndexError`` outside
        the array."""
        if len(index) != len(self.counts):
            raise FrameIndexError(
                "frame index has the wrong number of axes", expected=f"{len(self.counts)} numbers", got=index
            )
        for axis, (i, last) in enumerate(zip(index, self.lasts, strict=True)):
            if not 0 <= i <= last:
                raise FrameIndexError(
                    f"frame index outside the array along axis {axis}", expected=f"0 to {last}", got=index
                )
        return self.check_position(self._number(tuple(index), self.counts))

    def positions_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """As ``position_of``, for int64[n, axes] at once."""
        # before they are multiplied, so that nothing overflows
        outside = ((indices < 0) | (indices > np.array(self.lasts, np.int64))).any(axis=1)
        positions = np.zeros(len(indices), np.int64)
        for axis, count in enumerate(self.counts):
            positions = positions * count + indices[:, axis]
        positions += self.first
        outside |= positions > self.last_position
        if outside.any():
            self.position_of(tuple(indices[outside.argmax()].tolist()))
            raise AssertionError("``position_of`` refuses every index that is outside")
        return positions

    def index_of(self, position: int) -> tuple[int, ...]:
        """Returns the n-d frame index at a position; inverse of ``position_of``."""
        return self._index(position, self.counts)

    def check_position(self, position: int) -> int:
        """Returns ``position``. Raises ``FrameIndexError`` outside the array."""
        if not self.first <= position <= self.last_position:
            raise FrameIndexError(
                "frame id outside the array",
                expected=f"0 to {self.last_position - self.first}",
                got=position - self.first,
            )
        return position

    def check_count(self, count: int) -> int:
        """Returns the position of a frame that is placed by a count of places, from 0. Raises
        ``FrameIndexError`` when the image is full."""
        frames = self.last_position - self.first + 1
        if count >= frames:
            raise FrameIndexError(
                "the image is full: every place of it has been given to a frame",
                expected=f"at most {frames // self.frame_places} frames",
                got=f"frame {count // self.frame_places + 1}",
                hint="Give its first axis a larger count, or None for any number of frames",
            )
        return self.first + count

    def slab_of_position(self, position: int) -> int:
        """Returns the slab of the frame at a position."""
        coordinates = tuple(i // c for i, c in zip(self.index_of(position), self.chunk, strict=True))
        return self._number(coordinates, self.slab_counts)

    def index_in_slab(self, position: int) -> int:
        """Returns the index of the frame at a position among those of its slab, in storage order."""
        index = zip(self.index_of(position), self.chunk, self.slab_strides, strict=True)
        return sum(i % c * stride for i, c, stride in index)

    def slabs_and_indices(self, positions: npt.NDArray[np.int64]) -> tuple[np.ndarray, np.ndarray]:
        """Returns ``slab_of_position`` and ``index_in_slab`` of each position, int64[n] each; of one that is
        not in the image -1."""
        rest, slabs, step = positions - self.first, np.full(positions.size, self.first), 1
        in_slab = np.zeros(positions.size, np.int64)
        inside = (positions >= self.first) & (positions <= self.last_position)
        axes = zip(self.counts, self.chunk, self.slab_counts, self.slab_strides, strict=True)
        for axis, (count, chunk, slab_count, stride) in reversed(list(enumerate(axes))):
            index = rest
            if axis:
                rest, index = np.divmod(rest, count)
            slabs += index // chunk * step
            in_slab += index % chunk * stride
            step *= slab_count
        return np.where(inside, slabs, -1), np.where(inside, in_slab, -1)

    def slab_coordinates(self, slab: int) -> tuple[int, ...]:
        return self._index(slab, self.slab_counts)

    def live_extent(self, slab: int) -> tuple[int, ...]:
        """Returns the number of frames of this slab inside the array along each frame axis; less than
        ``chunk`` at the array's far edges."""
        return tuple(
            c if axis == 0 and self.unlimited else min(c, n - g * c)
            for axis, (g, c, n) in enumerate(
                zip(self.slab_coordinates(slab), self.chunk, self.counts, strict=True)
            )
        )

    def frames_in_slab(self, slab: int) -> int:
        """Returns the number of frames of this slab inside the array; fewer than ``frames_per_slab`` at the
        array's far edges."""
        return math.prod(self.live_extent(slab))

    def last_position_in_slab(self, slab: int) -> int:
        """Returns the largest position of this slab inside the array."""
        return self._last_in_block(self.slab_coordinates(slab), self.chunk)

    def last_position_in_shard_row(self, shard_row: int) -> int:
        """Returns the largest position of this shard row inside the array."""
        return self._last_in_block(self.shard_row_coordinates(shard_row), self.shard_row_frames)

    def _last_in_block(self, coordinates: tuple[int, ...], step: tuple[int, ...]) -> int:
        """Returns the largest position, inside the array, of the block of ``step`` frames per axis at
        ``coordinates``."""
        ends = [
            (g + 1) * c if axis == 0 and self.unlimited else min((g + 1) * c, n)
            for axis, (g, c, n) in enumerate(zip(coordinates, step, self.counts, strict=True))
        ]
        return self._number(tuple(end - 1 for end in ends), self.counts)

    def first_step_of(self, slab: int) -> int:
        """Returns the first index of a slab along the first axis."""
        return self.slab_coordinates(slab)[0] * self.chunk[0]

    def ends_a_step(self, slab: int) -> bool:
        """Returns whether a slab is the last one of its step along the first axis, while frames arrive in
        order."""
        return (slab - self.first + 1) % max(1, math.prod(self.slab_counts[1:])) == 0

    @cached_property
    def _slab_is_row(self) -> bool:
        """True if each shard row is a single slab; it then has the same number."""
        return math.prod(self.row_slabs) == 1

    def shard_row_of_slab(self, slab: int) -> int:
        if self._slab_is_row:
            return slab
        coordinates = tuple(g // s for g, s in zip(self.slab_coordinates(slab), self.row_slabs, strict=True))
        return self._number(coordinates, self.shard_row_counts)

    def shard_row_coordinates(self, shard_row: int) -> tuple[int, ...]:
        return self._index(shard_row, self.shard_row_counts)

    def shard_row_at(self, coordinates: tuple[int, ...]) -> int | None:
        """Returns the shard row with these coordinates; inverse of ``shard_row_coordinates``. None outside
        the array."""
        inside = all(
            h >= 0 and (h < n or (axis == 0 and self.unlimited))
            for axis, (h, n) in enumerate(zip(coordinates, self.shard_row_counts, strict=True))
        )
        return self._number(coordinates, self.shard_row_counts) if inside else None

    def shard_row_extent_chunks(self, shard_row: int) -> tuple[int, ...]:
        """Returns the number of slabs of this shard row inside the array, along each frame axis (acquisition
        order)."""
        extent = []
        for axis, (h, s, n) in enumerate(
            zip(self.shard_row_coordinates(shard_row), self.row_slabs, self.slab_counts, strict=True)
        ):
            extent.append(s if axis == 0 and self.unlimited else min(s, n - h * s))
        return tuple(extent)

    def has_one_slab(self, shard_row: int) -> bool:
        """Returns whether a shard row is complete with a single slab. Its journal may then be a part of one
        that others share: any other would keep that file for long."""
        return all(extent == 1 for extent in self.shard_row_extent_chunks(shard_row))

    def ends_of(self, shard_row: int) -> tuple[int, ...]:
        """Returns the indices along the growing axes at which a shard row ends."""
        at, frames = self.shard_row_coordinates(shard_row), self.shard_row_frames
        return tuple((at[axis] + 1) * frames[axis] for axis in self.growing)

    def next_shard_row(self, shard_row: int) -> int | None:
        """Returns the shard row that in-order acquisition fills next, None after the last, or if nobody
        knows: shard rows are numbered by their first frame."""
        if not self.counts or self.is_ragged:
            return None
        following = shard_row + 1
        inside = self.unlimited or following - self.first < math.prod(self.shard_row_counts)
        return following if inside else None

    def stored(self, acquired: tuple[int, ...]) -> tuple[int, ...]:
        """Returns a tuple over frame axes, moved from acquisition order to storage order."""
        return tuple(acquired[axis] for axis in self.stored_axes)

    @cached_property
    def slab_strides(self) -> tuple[int, ...]:
        """For each acquired axis, the stride of one step within a slab in storage order."""
        strides = [0] * len(self.chunk)
        stride = 1
        for axis in reversed(self.stored_axes):
            strides[axis] = stride
            stride *= self.chunk[axis]
        return tuple(strides)

    def _open_at_once(self, step: tuple[int, ...]) -> int:
        """Returns the number of blocks of ``step`` frames per axis that are incomplete at once while frames
        arrive in order."""
        for axis, (size, count) in enumerate(zip(step, self.counts, strict=True)):
            if size > 1 and count != 1:
                faster = zip(self.counts[axis + 1 :], step[axis + 1 :], strict=True)
                return math.prod(_ceil_div(n, s) for n, s in faster)
        return 1

    @cached_property
    def open_slabs(self) -> int:
        """The number of slabs that are incomplete at once while frames arrive in order."""
        return self._open_at_once(self.chunk)

    @cached_property
    def shard_row_frames(self) -> tuple[int, ...]:
        """The number of frames of a shard row along each frame axis."""
        return tuple(c * s for c, s in zip(self.chunk, self.row_slabs, strict=True))

    @cached_property
    def open_shard_rows(self) -> int:
        """The number of shard rows that are incomplete at once while frames arrive in order."""
        return self._open_at_once(self.shard_row_frames)

    @cached_property
    def held_frames(self) -> int:
        """The most frames that wait in incomplete slabs while frames arrive in order: the last one completes
        its slab."""
        return self.open_slabs * self.slab_frames

    @property
    def slab_frames(self) -> int:
        """The number of frames of the largest slab inside the array."""
        if self.unlimited or not self.counts:
            return self.frames_per_slab
        return math.prod(map(min, self.chunk, self.counts))

    def open_across_images(self, step: tuple[int, ...], slower_axes: int) -> int:
        """Returns the number of blocks of ``step`` frames per axis that are incomplete while frames of other
        images come. ``slower_axes``: the number of axes that change slower than the image."""
        for axis in range(slower_axes):
            if step[axis] > 1 and self.counts[axis] != 1:
                faster = zip(self.counts[axis + 1 :], step[axis + 1 :], strict=True)
                return math.prod(_ceil_div(n, s) for n, s in faster)
        return 0


_DERIVED = [name for name, value in vars(Grid).items() if isinstance(value, cached_property)]


@dataclass(frozen=True)
class Grids:
    """The grids of all images of an acquisition, by their numbers. ``slower_axes``: the number of frame axes
    that change slower than the image while frames arrive in order; None: images may change at any frame.
    ``in_place``: frames are put into their chunks as they come and wait for no other in memory."""

    grids: tuple[Grid, ...]
    slower_axes: int | None = None
    in_place: bool = False

    @property
    def frame_places(self) -> int:
        """The same for all images."""
        return self.grids[0].frame_places

    @property
    def row_shards(self) -> int:
        """The most shards of a shard row along the frame axes."""
        return max(math.prod(grid.row_shards) for grid in self.grids)

    @property
    def most_row_shards(self) -> int:
        """The number of shards of which a shard row should be made, of those images that allow it."""
        return min((grid.most_row_shards for grid in self.grids if grid.may_split), default=1)

    @property
    def most_across(self) -> int:
        """The number of shards of which a shard row should be made that stays open while the frames of other
        images come: few, if there are many images."""
        each = (
            min(
                MOST_ROW_FILES // grid.files_per_slab,
                BYTES_ACROSS // (grid.frames_per_slab * grid.frame_bytes),
            )
            for grid in self.grids
            if grid.may_split
        )
        return max(1, min(each, default=1) // len(self.grids))

    def split_rows(self, shards: int, across: int) -> Grids:
        """Returns the grids as ``Grid.split_row`` makes them."""
        if len(self.grids) == 1:
            return replace(self, grids=(self.grids[0].split_row(shards, 0),))
        slower = (len(g.counts) if self.slower_axes is None else self.slower_axes for g in self.grids)
        split = (grid.split_row(shards, axes, across) for grid, axes in zip(self.grids, slower, strict=True))
        return replace(self, grids=tuple(split))

    def with_grid(self, grid: Grid, shards: int, across: int) -> Grids:
        """Returns the grids with one of another image behind them, whose shard rows are split as
        ``split_rows`` does those of several images. The others stay as they are."""
        slower_axes = len(grid.counts) if self.slower_axes is None else self.slower_axes
        return replace(self, grids=(*self.grids, grid.split_row(shards, slower_axes, across)))

    def of(self, number: int) -> Grid:
        """Returns the grid of the image to which a position, a slab or a shard row belongs."""
        return self.grids[image_of(number)]

    def hold(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns bool[n]: which positions are places of frames in one of the images."""
        images = image_of(positions)
        inside: npt.NDArray[np.bool_] = (images >= 0) & (images < len(self.grids))
        inside[inside] = positions[inside] <= self._last_positions[images[inside]]
        return inside

    def are_places_of_row(self, shard_row: int, positions: npt.NDArray[np.int64]) -> bool:
        """Returns whether there is such a shard row, and each position is a place of a frame in it."""
        if not 0 <= image_of(shard_row) < len(self.grids):
            return False
        grid = self.of(shard_row)
        last = grid.shard_row_of_slab(grid.slab_of_position(grid.last_position))
        slabs, _ = grid.slabs_and_indices(positions)
        rows = (grid.shard_row_of_slab(slab) if slab >= 0 else -1 for slab in np.unique(slabs).tolist())
        return shard_row <= last and all(row == shard_row for row in rows)

    @cached_property
    def _last_positions(self) -> npt.NDArray[np.int64]:
        return np.array([grid.last_position for grid in self.grids], np.int64)

    def slab_of_position(self, position: int) -> int:
        return self.of(position).slab_of_position(position)

    def shard_row_of_slab(self, slab: int) -> int:
        return self.of(slab).shard_row_of_slab(slab)

    def next_shard_row(self, shard_row: int) -> int | None:
        """As ``Grid.next_shard_row``; after the last one of an image, if the image changes slowest, the first
        one of the next image."""
        following = self.of(shard_row).next_shard_row(shard_row)
        image = image_of(shard_row) + 1
        if following is None and self.slower_axes == 0 and image < len(self.grids):
            following = self.grids[image].first
        return following

    @cached_property
    def tables(self) -> tuple[np.ndarray, ...]:
        """The grids as ``kernels.place`` takes them: counts, chunk, slab counts, slab strides int64[images,
        axes]. An image with fewer axes has further ones of one element behind its own."""
        axes = max(len(grid.counts) for grid in self.grids)
        parts = [(grid.counts, grid.chunk, grid.slab_counts, grid.slab_strides) for grid in self.grids]
        return tuple(
            np.array([[*part[i], *[rest] * (axes - len(part[i]))] for part in parts], np.int64)
            for i, rest in enumerate((1, 1, 1, 0))
        )

    @cached_property
    def total_frames(self) -> int | None:
        """The number of frames of all images, None when an axis has no count."""
        totals = [grid.total_frames for grid in self.grids]
        return None if None in totals else sum(total or 0 for total in totals)

    @cached_property
    def frames_per_slab(self) -> int:
        """Of the deepest slab."""
        return max(grid.frames_per_slab for grid in self.grids)

    @cached_property
    def frame_bytes(self) -> npt.NDArray[np.int64]:
        """Of each image's frames."""
        return np.array([grid.frame_bytes for grid in self.grids], np.int64)

    @cached_property
    def last_numbers(self) -> npt.NDArray[np.int64]:
        """Of each image, the largest position of a frame, as counted within the image."""
        return np.array([number_in_image(grid.last_position) for grid in self.grids], np.int64)

    @cached_property
    def slot_bytes(self) -> int:
        """The size of a slot that holds a frame of any image. Slots follow each other without a gap, so it is
        a multiple of every item's size."""
        largest = int(self.frame_bytes.max())
        return largest if (self.frame_bytes == largest).all() else -(-largest // 8) * 8

    @cached_property
    def open_slabs(self) -> int:
        """The number of slabs that are incomplete at once while frames arrive in order."""
        return self._at_once(self.slabs_of)

    @cached_property
    def open_shard_rows(self) -> int:
        """The number of shard rows that are incomplete at once while frames arrive in order."""
        return self._at_once(self.shard_rows_of)

    @cached_property
    def open_shard_rows_of_one(self) -> int:
        """As ``open_shard_rows``, while the frames of one image come alone."""
        return max(grid.open_shard_rows for grid in self.grids)

    @cached_property
    def held_frames(self) -> int:
        """The most frames that wait, in memory, in incomplete slabs while frames arrive in order."""
        return 0 if self.in_place else self._at_once(self.held_of)

    def slabs_of(self, number: int, filled: int) -> int:
        """Returns how many slabs of the image of a number are incomplete while frames of the image ``filled``
        arrive in order."""
        grid = self.of(number)
        return grid.open_slabs if grid.image == filled else self._across(grid, grid.chunk)

    def shard_rows_of(self, number: int, filled: int) -> int:
        """As ``slabs_of``, for shard rows."""
        grid = self.of(number)
        return grid.open_shard_rows if grid.image == filled else self._across(grid, grid.shard_row_frames)

    def held_of(self, number: int, filled: int) -> int:
        """As ``slabs_of``, for frames in them."""
        return self.slabs_of(number, filled) * self.of(number).slab_frames

    def _across(self, grid: Grid, step: tuple[int, ...]) -> int:
        """Returns ``Grid.open_across_images``. Where images change at any frame, that is after any axis."""
        slower_axes = len(grid.counts) if self.slower_axes is None else self.slower_axes
        return grid.open_across_images(step, slower_axes)

    def _at_once(self, of: Callable[[int, int], int]) -> int:
        """Returns how much is open at once, whichever image is filled."""
        others = [of(grid.first, -1) for grid in self.grids]
        return sum(others) + max(of(g.first, g.image) - o for g, o in zip(self.grids, others, strict=True))


class Extents:
    """The reach of the frames of each image along the axes whose extent follows from them.

    ``newest``: int64[images], the largest place in acquisition order of a frame, -1 without one.
    ``along``: int64[images, axes], the newest index along each growing axis, plus one; 1 where an image has
    fewer of them.
    """

    def __init__(self, grids: Grids) -> None:
        self._grids = grids
        self._frames_per_step = np.array([math.prod(grid.counts[1:]) for grid in grids.grids], np.int64)
        self.newest = np.full(len(grids.grids), -1, np.int64)
        axes = max(1, *(len(grid.growing) for grid in grids.grids))
        self.along = np.array(
            [[axis >= len(grid.growing) for axis in range(axes)] for grid in grids.grids], np.int64
        )
        # of the growing axes behind the first: frames from one element to the next, and elements
        self._strides, self._counts = np.ones((2, len(grids.grids), axes), np.int64)
        for number, grid in enumerate(grids.grids):
            for column, axis in enumerate(grid.growing[1:], 1):
                self._strides[number, column] = math.prod(grid.counts[axis + 1 :])
                self._counts[number, column] = grid.counts[axis]

    def cover(self, along: Sequence[int]) -> None:
        """Lets them cover what a file says of ``along``: its rows, one after the other. Raises
        ``ShardFormatError`` unless these can be extents of these images."""
        most = self._counts.copy()
        last = [number_in_image(grid.last_position) for grid in self._grids.grids]
        most[:, 0] = np.array(last, np.int64) // self._frames_per_step + 1
        limits = most.ravel().tolist()
        if len(along) != len(limits) or not all(0 <= a <= b for a, b in zip(along, limits, strict=True)):
            raise ShardFormatError(
                "the manifest's seen_extents are not those of its images",
                expected=f"{len(limits)} numbers from 0 to {limits[:8]}",
                got=list(along[:8]),
            )
        np.maximum(self.along, np.reshape(along, self.along.shape), out=self.along)

    def cover_image(self, image: int, along: Sequence[int]) -> None:
        """Lets them cover so many elements along the growing axes of an image."""
        self.along[image, : len(along)] = along

    def reach_as(self, before: Extents) -> None:
        """Lets them cover what those of the first of these images did."""
        images, axes = map(min, before.along.shape, self.along.shape)
        for mine, earlier in (
            (self.newest[:images], before.newest[:images]),
            (self.along[:images, :axes], before.along[:images, :axes]),
        ):
            np.maximum(mine, earlier, out=mine)

    def reach(self, positions: np.ndarray) -> None:
        """Lets them cover frames at ``positions`` (int64[n]; a negative one is not known)."""
        known = positions[positions >= 0]
        if not known.size:
            return
        images = image_of(known)
        numbers, needed = number_in_image(known), self.needed_for(known)
        if known.size > 1:
            np.maximum.at(self.newest, images, numbers)
            np.maximum.at(self.along, images, needed)
        else:  # without ``at``, which takes longer than all else of an append here
            image = images.item()
            self.newest[image] = max(self.newest[image], numbers.item())
            np.maximum(self.along[image], needed[0], out=self.along[image])

    def needed_for(self, positions: np.ndarray) -> np.ndarray:
        """Returns int64[n, axes]: the extents along the growing axes that cover each position."""
        images, numbers = image_of(positions), number_in_image(positions)
        needed = np.ones((positions.size, self.along.shape[1]), np.int64)
        needed[:, 0] += numbers // self._frames_per_step[images]
        for column in range(1, needed.shape[1]):
            needed[:, column] += numbers // self._strides[images, column] % self._counts[images, column]
        return needed
