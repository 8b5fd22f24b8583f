"""The frames that the trial's cameras send: the user's own, or simulated ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import Grid
from shardwright.model.errors import FrameShapeError, StorageError
from shardwright.read.store import open_store
from shardwright.rework.region_reader import RegionReader
from shardwright.simulate.photons import PhotonFrames

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.read.store import StoredArray

SAMPLE_BYTES = 64 << 20  # more than the caches hold
MOST_SAMPLE_BYTES = 256 << 20
SIMULATED = "simulated photon noise"


@dataclass(frozen=True)
class Sample:
    """The frames that one camera of the trial sends. ``frames``: of the stream's shape and dtype,
    C-contiguous. ``source``: where they come from, for people."""

    frames: np.ndarray[Any, Any]
    source: str


def samples_of(own_frames: OwnFrames | None, specs: Sequence[ArraySpec]) -> list[Sample]:
    """Returns the frames of each camera. Raises ``FrameShapeError`` where the user's own fit none of them."""
    if own_frames is not None and not any(map(own_frames.fits, specs)):
        raise own_frames.misfit()
    made: dict[tuple[object, ...], Sample] = {}  # like cameras share theirs
    samples = []
    for spec in specs:
        like = spec.given_shape, spec.dtype, frames_wanted(spec)
        if like not in made:
            own = own_frames if own_frames is not None and own_frames.fits(spec) else None
            made[like] = simulated_sample(spec) if own is None else own.sample(spec)
        samples.append(made[like])
    return samples


def simulated_sample(spec: ArraySpec) -> Sample:
    rows, columns = spec.frame_shape
    camera = PhotonFrames((rows, columns * spec.frame_places), spec.dtype)
    frames = np.empty((frames_wanted(spec), *camera.shape), camera.dtype)
    for i, frame in enumerate(frames):
        camera.frame(i, out=frame)
    return Sample(frames.reshape(-1, *spec.given_shape), SIMULATED)


def frames_wanted(spec: ArraySpec) -> int:
    """A slab, and enough that caches cannot hold them; within the memory that a sample may take."""
    slab, frame_bytes = Grid.of(spec).frames_per_slab, spec.frame_bytes * spec.frame_places
    return max(1, min(max(slab, SAMPLE_BYTES // frame_bytes), MOST_SAMPLE_BYTES // frame_bytes))


class OwnFrames:
    """The user's file: a .npy file or a store. Raises ``StorageError``, ``ShardFormatError`` or
    ``FrameShapeError`` for what holds no frames."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numpy: np.ndarray[Any, Any] | None = None
        self._stored: StoredArray | None = None
        if path.suffix == ".npy":
            self._numpy = _open_numpy(path)
            shape, self._dtype = self._numpy.shape, self._numpy.dtype
        elif path.is_dir():
            self._stored = open_store(path).arrays[0]
            shape, self._dtype = self._stored.shape, self._stored.dtype
        else:
            hint = "Save some frames with numpy.save, or name a store that shardwright has written."
            raise StorageError(
                f"no frames can be read from {path}", expected="a .npy file or a Zarr v3 store", hint=hint
            )
        if len(shape) < 2 or 0 in shape:
            raise FrameShapeError(
                f"{path} holds no frames",
                expected="rows and columns, with any number of axes before them",
                got=shape,
            )
        self._shape = shape

    def fits(self, spec: ArraySpec) -> bool:
        """The same dtype, and at least as many rows and columns: a corner of larger frames is taken. Those of
        a colour camera are simulated."""
        rows, columns = spec.frame_shape
        return (
            bool(self._dtype == np.dtype(spec.dtype))
            and not spec.interleaved
            and self._shape[-2] >= rows
            and self._shape[-1] >= columns
        )

    def misfit(self) -> FrameShapeError:
        rows, columns = self._shape[-2:]
        return FrameShapeError(
            f"the frames in {self.path} fit no stream of the configuration",
            expected="a stream's dtype, and at least its rows and columns",
            got=f"{rows} x {columns} {self._dtype.name}",
        )

    def sample(self, spec: ArraySpec) -> Sample:
        """The first frames, as many as are wanted and there. Raises ``ShardFormatError`` or ``StorageError``
        where they cannot be read."""
        rows, columns = spec.frame_shape
        count = min(frames_wanted(spec), math.prod(self._shape[:-2]))
        frames = (
            self._read(count) if self._numpy is None else self._numpy.reshape(-1, *self._shape[-2:])[:count]
        )
        frames = frames[:, :rows, :columns]
        return Sample(
            np.ascontiguousarray(frames, np.dtype(spec.dtype).newbyteorder("<")),
            f"{len(frames)} frames of {self.path.name}",
        )

    def _read(self, count: int) -> np.ndarray[Any, Any]:
        """A box that holds at least ``count`` frames, or all there are: whole along the last axes, so that
        each chunk is decoded once."""
        assert self._stored is not None
        extent: list[int] = []
        wanted = count
        for length in reversed(self._shape[:-2]):
            extent.insert(0, min(length, wanted))
            wanted = -(-wanted // extent[0])
        box = np.empty((*extent, *self._shape[-2:]), self._stored.dtype)
        RegionReader(self._stored).read((0,) * box.ndim, box)
        return box.reshape(-1, *self._shape[-2:])[:count]


def _open_numpy(path: Path) -> np.ndarray[Any, Any]:
    try:
        found: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StorageError(
            f"cannot read {path}",
            expected="an array that numpy.save has written",
            got=str(error) or "nothing",
        ) from None
    return found
