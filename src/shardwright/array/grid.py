"""The chunk grid: maps a frame's position in acquisition order to its slab, its shard and its place in the
array.

    acquisition order     t, z, c            the order in which frames arrive; ``position`` ravels an index
                          over these axes (row-major)
    storage order         t, c, z, y, x      the order of the array's axes
    slab                  the frames that share one chunk coordinate along every frame axis; they complete one
                          layer of inner chunks
    shard row             the slabs that share one shard coordinate along every frame axis; one shard file for
                          each shard of the frame plane

Only this module handles both orders. Pure arithmetic on one frozen object; the kernels get its tables as
plain arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import FrameIndexError
from shardwright.wire.messages import MAX_POSITION

if TYPE_CHECKING:
    import numpy.typing as npt

    from .spec import ArraySpec


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
    ``counts[0]`` is 0 when unlimited."""

    counts: tuple[int, ...]
    chunk: tuple[int, ...]
    shard_chunks: tuple[int, ...]
    stored_axes: tuple[int, ...]  # stored_axes[j]: the acquired frame axis that is stored at place j
    frame_shape: tuple[int, int]
    plane_chunk: tuple[int, int]
    plane_shard_chunks: tuple[int, int]
    itemsize: int

    @classmethod
    def of(cls, spec: ArraySpec) -> Grid:
        names = [d.name for d in spec.dimensions[:-2]]
        frame_axes, plane = spec.dimensions[:-2], spec.dimensions[-2:]
        return cls(
            counts=tuple(d.count or 0 for d in frame_axes),
            chunk=tuple(d.chunk_size for d in frame_axes),
            shard_chunks=tuple(d.shard_size_chunks for d in frame_axes),
            stored_axes=tuple(names.index(d.name) for d in spec.stored_dimensions[:-2]),
            frame_shape=spec.frame_shape,
            plane_chunk=(plane[0].chunk_size, plane[1].chunk_size),
            plane_shard_chunks=(plane[0].shard_size_chunks, plane[1].shard_size_chunks),
            itemsize=spec.itemsize,
        )

    @property
    def unlimited(self) -> bool:
        return bool(self.counts) and self.counts[0] == 0

    @cached_property
    def total_frames(self) -> int | None:
        """The number of frames of the whole array, None when the first axis is unlimited."""
        return None if self.unlimited else math.prod(self.counts)

    @cached_property
    def last_position(self) -> int:
        """The largest position of a frame: the array's last, or the last that the protocol can name."""
        return MAX_POSITION if self.total_frames is None else min(self.total_frames - 1, MAX_POSITION)

    @cached_property
    def frames_per_slab(self) -> int:
        return math.prod(self.chunk)

    @cached_property
    def slab_counts(self) -> tuple[int, ...]:
        """The number of slabs along each frame axis (0 for an unlimited first one)."""
        return tuple(_ceil_div(n, c) for n, c in zip(self.counts, self.chunk, strict=True))

    @cached_property
    def shard_row_counts(self) -> tuple[int, ...]:
        """The number of shard rows along each frame axis (0 for an unlimited first one)."""
        return tuple(_ceil_div(n, s) for n, s in zip(self.slab_counts, self.shard_chunks, strict=True))

    @cached_property
    def plane_chunks(self) -> tuple[int, int]:
        """The number of inner chunks that cover one frame, along rows and columns."""
        return _ceil_div(self.frame_shape[0], self.plane_chunk[0]), _ceil_div(
            self.frame_shape[1], self.plane_chunk[1]
        )

    @cached_property
    def plane_shards(self) -> tuple[int, int]:
        """The number of shard files that cover one frame, along rows and columns; their product is the number
        of files of one shard row."""
        return (
            _ceil_div(self.plane_chunks[0], self.plane_shard_chunks[0]),
            _ceil_div(self.plane_chunks[1], self.plane_shard_chunks[1]),
        )

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
        for axis, (i, count) in enumerate(zip(index, self.counts, strict=True)):
            if i < 0 or (i >= count and not (axis == 0 and self.unlimited)):
                bound = "0 or more" if axis == 0 and self.unlimited else f"0 to {count - 1}"
                raise FrameIndexError(
                    f"frame index outside the array along axis {axis}", expected=bound, got=index
                )
        return self.check_position(_ravel(tuple(index), self.counts))

    def positions_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """As ``position_of``, for int64[n, axes] at once."""
        first_last = self.last_position // math.prod(self.counts[1:])  # so that nothing below overflows
        lasts = np.array(
            [first_last if axis == 0 else count - 1 for axis, count in enumerate(self.counts)], np.int64
        )
        outside = ((indices < 0) | (indices > lasts)).any(axis=1)
        positions = np.zeros(len(indices), np.int64)
        for axis, count in enumerate(self.counts):
            positions = positions * count + indices[:, axis]
        outside |= positions > self.last_position
        if outside.any():
            self.position_of(tuple(indices[outside.argmax()].tolist()))
            raise AssertionError("``position_of`` refuses every index that is outside")
        return positions

    def index_of(self, position: int) -> tuple[int, ...]:
        """Returns the n-d frame index at a position; inverse of ``position_of``."""
        return _unravel(position, self.counts)

    def check_position(self, position: int) -> int:
        """Returns ``position``. Raises ``FrameIndexError`` outside the array."""
        if not 0 <= position <= self.last_position:
            raise FrameIndexError(
                "frame id outside the array", expected=f"0 to {self.last_position}", got=position
            )
        return position

    def slab_of_position(self, position: int) -> int:
        """Returns the slab of the frame at a position."""
        coordinates = tuple(i // c for i, c in zip(self.index_of(position), self.chunk, strict=True))
        return _ravel(coordinates, self.slab_counts)

    def slab_coordinates(self, slab: int) -> tuple[int, ...]:
        return _unravel(slab, self.slab_counts)

    def frames_in_slab(self, slab: int) -> int:
        """Returns the number of frames of this slab inside the array; fewer than ``frames_per_slab`` at the
        array's far edges."""
        live = 1
        for axis, (g, c, n) in enumerate(
            zip(self.slab_coordinates(slab), self.chunk, self.counts, strict=True)
        ):
            live *= c if axis == 0 and self.unlimited else min(c, n - g * c)
        return live

    def last_position_in_slab(self, slab: int) -> int:
        """Returns the largest position of this slab inside the array."""
        ends = [
            (g + 1) * c if axis == 0 and self.unlimited else min((g + 1) * c, n)
            for axis, (g, c, n) in enumerate(
                zip(self.slab_coordinates(slab), self.chunk, self.counts, strict=True)
            )
        ]
        return _ravel(tuple(end - 1 for end in ends), self.counts)

    def shard_row_of_slab(self, slab: int) -> int:
        coordinates = tuple(
            g // s for g, s in zip(self.slab_coordinates(slab), self.shard_chunks, strict=True)
        )
        return _ravel(coordinates, self.shard_row_counts)

    def shard_row_coordinates(self, shard_row: int) -> tuple[int, ...]:
        return _unravel(shard_row, self.shard_row_counts)

    def shard_row_extent_chunks(self, shard_row: int) -> tuple[int, ...]:
        """Returns the number of slabs of this shard row inside the array, along each frame axis (acquisition
        order)."""
        extent = []
        for axis, (h, s, n) in enumerate(
            zip(self.shard_row_coordinates(shard_row), self.shard_chunks, self.slab_counts, strict=True)
        ):
            extent.append(s if axis == 0 and self.unlimited else min(s, n - h * s))
        return tuple(extent)

    def next_shard_row(self, shard_row: int) -> int | None:
        """Returns the shard row that in-order acquisition fills next, None after the last: shard rows are
        numbered by their first frame."""
        if not self.counts:
            return None
        following = shard_row + 1
        return following if self.unlimited or following < math.prod(self.shard_row_counts) else None

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
    def open_shard_rows(self) -> int:
        """The number of shard rows that are incomplete at once while frames arrive in order."""
        return self._open_at_once(tuple(c * s for c, s in zip(self.chunk, self.shard_chunks, strict=True)))

    @cached_property
    def held_frames(self) -> int:
        """The most frames that wait in incomplete slabs while frames arrive in order: the last one completes
        its slab."""
        per_slab = (
            self.frames_per_slab
            if self.unlimited or not self.counts
            else math.prod(map(min, self.chunk, self.counts))
        )
        return self.open_slabs * per_slab
