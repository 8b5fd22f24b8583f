"""The in-process writer: frames appended in this process, no daemon. One copy into a ring of recycled frame buffers, then the same pipeline."""

from __future__ import annotations

import operator
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardwright.array.ome import layout_warnings
from shardwright.model.errors import ClosedError, FrameDtypeError, FrameIndexError, FrameShapeError, LayoutWarning, SpecError
from shardwright.storage.slot_file import IO_MODES, IoMode
from shardwright.wire.descriptor import DESCRIPTOR, METADATA_FIELDS
from shardwright.wire.messages import MAX_POSITION
from shardwright.wire.metadata import checked_metadata

from .acquisition import Acquisition, AcquisitionState
from .limits import Limits, default_threads
from .workers import WorkerPool

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from shardwright.array.spec import ArraySpec
    from shardwright.model.receipt import Receipt

_POLL_S = 1.0  # how often a blocked append looks whether the workers still live


class FrameRing:
    """Recycled frame buffers: one allocation, touched once, a slot per frame. Belongs to the writer's thread."""

    def __init__(self, spec: ArraySpec, slots: int) -> None:
        self.frames = np.empty((slots, *spec.frame_shape), np.dtype(spec.dtype).newbyteorder("<"))
        self.frames.fill(0)  # touches every page now, not in the frame path
        self.address = int(self.frames.ctypes.data)
        self._free = list(range(slots - 1, -1, -1))
        self._slot_of: dict[int, int] = {}  # sequence -> slot

    def take(self, sequence: int) -> int | None:
        """A free slot for a frame, None when all are in use."""
        if not self._free:
            return None
        slot = self._slot_of[sequence] = self._free.pop()
        return slot

    def release(self, sequences: np.ndarray) -> None:
        self._free.extend([self._slot_of.pop(sequence) for sequence in sequences.tolist()])


class Writer:
    """Made by ``shardwright.create``; a context manager. Not for use from several threads at once."""

    def __init__(self, path: Path, spec: ArraySpec, threads: int, memory_bytes: int | None, io: IoMode) -> None:
        limits = Limits.derive(spec, threads=threads, memory_bytes=memory_bytes)
        self.spec = spec
        self.limits = limits
        self._ring = FrameRing(spec, limits.ring_frames)
        self._pool = WorkerPool(threads)
        self._pool.start()
        try:
            self._acquisition = Acquisition(path, spec, limits, self._pool, wake=lambda: None, io=io)
        except BaseException:
            self._pool.stop()
            raise
        self._grid = self._acquisition.grid
        self._dtype = np.dtype(spec.dtype)
        self._count = 0
        self._descriptor = np.zeros(1, DESCRIPTOR)
        self._address = np.zeros(1, np.int64)
        self._receipt: Receipt | None = None

    @property
    def path(self) -> Path:
        return self._acquisition.path

    @property
    def receipt(self) -> Receipt:
        """The account so far; final once the writer is closed."""
        return self._receipt or self._acquisition.receipt()

    def append(
        self,
        frame: npt.ArrayLike,
        *,
        index: tuple[int, ...] | None = None,
        frame_id: int | None = None,
        metadata: Mapping[str, float] | None = None,
    ) -> None:
        """Store one frame. Its place is ``index`` (acquisition order, the axes before the frame's own), else ``frame_id``, else the count of appends.

        The frame is copied before this returns. Blocks while the ring is full. Raises ``FrameShapeError``, ``FrameDtypeError``, ``FrameIndexError``,
        ``MetadataError`` (nothing was stored then), ``ClosedError``, or what broke the pipeline.
        """
        if self._receipt is not None:
            raise ClosedError("this writer is closed", hint="Append inside the with block")
        pixels = np.asarray(frame)
        self._check(pixels)
        position = self._position(index, frame_id)
        self._describe(position, frame_id, metadata)
        slot = self._free_slot()
        np.copyto(self._ring.frames[slot], pixels)
        self._address[0] = self._ring.address + slot * self.limits.frame_bytes
        self._count += 1
        self._acquisition.submit(self._descriptor, self._address)
        self._collect()

    def close(self) -> Receipt:
        """Seal every shard and write the final metadata; idempotent. Raises what broke the pipeline."""
        if self._receipt is None:
            self._acquisition.finish()
            while self._unsettled():
                self._ring.release(self._acquisition.poll(_POLL_S))
            self._receipt = self._acquisition.receipt()
            self._acquisition.close()
            self._pool.stop()
            if self._acquisition.error is not None:
                raise self._acquisition.error
        return self._receipt

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise
            error.add_note(f"closing the writer also failed: {self._acquisition.error}")

    def _check(self, pixels: np.ndarray) -> None:
        if pixels.shape != self.spec.frame_shape:
            raise FrameShapeError("frame has the wrong shape", expected=self.spec.frame_shape, got=pixels.shape)
        if pixels.dtype != self._dtype:
            raise FrameDtypeError("frame has the wrong dtype", expected=self.spec.dtype, got=pixels.dtype)

    def _position(self, index: tuple[int, ...] | None, frame_id: int | None) -> int:
        if index is not None:
            if frame_id is not None and not 0 <= operator.index(frame_id) <= MAX_POSITION:
                raise FrameIndexError("frame id that cannot be kept", expected=f"0 to {MAX_POSITION}", got=frame_id)
            return self._grid.position_of(tuple(operator.index(i) for i in index))
        return self._grid.check_position(self._count if frame_id is None else operator.index(frame_id))

    def _describe(self, position: int, frame_id: int | None, metadata: Mapping[str, float] | None) -> None:
        record = self._descriptor[0]
        for name in METADATA_FIELDS:
            record[name] = np.nan
        if metadata:
            for name, value in checked_metadata(metadata).items():
                record[name] = value
        record["sequence"] = self._count
        record["position"] = position
        record["frame_id"] = -1 if frame_id is None else frame_id
        record["camera_ns"] = time.time_ns()
        record["monotonic_ns"] = time.monotonic_ns()

    def _free_slot(self) -> int:
        while (slot := self._ring.take(self._count)) is None:
            self._collect(_POLL_S)
        return slot

    def _collect(self, timeout_s: float | None = None) -> None:
        self._ring.release(self._acquisition.poll(timeout_s))
        if self._acquisition.error is not None and self._receipt is None and not self._acquisition.in_flight:
            raise self._acquisition.error

    def _unsettled(self) -> bool:
        return self._acquisition.state not in (AcquisitionState.SEALED, AcquisitionState.FAILED)


def create(
    path: str | os.PathLike[str], spec: ArraySpec, *, threads: int | None = None, memory_bytes: int | None = None, io: IoMode = "auto"
) -> Writer:
    """A writer in this process. ``path`` must not exist yet (``OutputExistsError``).

    ``threads`` compress (default: ``default_threads``); ``memory_bytes`` bounds what is held (``BudgetError`` when the layout needs more);
    A layout that some readers will not open is a ``LayoutWarning``.
    ``io`` is how shards are filled: ``mmap``, ``pwrite``, ``direct``, or ``auto`` (see ``storage.slot_file``).
    """
    if io not in IO_MODES:
        raise SpecError("unknown io mode", expected=f"one of {', '.join(IO_MODES)}", got=repr(io))
    for warning in layout_warnings(spec):
        warnings.warn(warning, LayoutWarning, stacklevel=2)
    return Writer(Path(path).absolute(), spec, threads or default_threads(), memory_bytes, io)
