"""The checks of one FRAMES message, as a whole with NumPy, and the address of each frame's first byte. Pure;
no Python object for each frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.frame_check import wrong_dtype, wrong_shape
from shardwright.model.errors import FrameIndexError, ProtocolError
from shardwright.wire.descriptor import FRAME_DROPPED, FRAME_NOT_HELD, NO_POSITION

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from shardwright.array.grid import Grid
    from shardwright.array.spec import ArraySpec
    from shardwright.wire.messages import Batch


def check_content(batch: Batch, spec: ArraySpec, grid: Grid) -> None:
    """Checks dtype, shape and each descriptor's fields, all but slots and sequences. Raises
    ``FrameDtypeError``, ``FrameShapeError``, ``FrameIndexError`` or ``ProtocolError``."""
    if batch.dtype != spec.dtype:
        raise wrong_dtype(spec.dtype, batch.dtype)
    if (batch.height, batch.width) != spec.frame_shape:
        raise wrong_shape(spec.frame_shape, (batch.height, batch.width))
    frames = batch.descriptors
    flags = frames["flags"]
    if (
        (flags > FRAME_NOT_HELD).any()
        or frames["reserved"].any()
        or (frames["frame_id"] < -1).any()
        or frames["slot"][flags != 0].any()
    ):
        expected = (
            f"flags 0, {FRAME_DROPPED} or {FRAME_NOT_HELD}, reserved 0, frame_id -1 or more, slot 0 "
            f"without pixels"
        )
        raise ProtocolError("a descriptor with reserved bits", expected=expected)
    least = np.where(flags == FRAME_NOT_HELD, NO_POSITION, 0)
    outside = (frames["position"] < least) | (frames["position"] > grid.last_position)
    if outside.any():
        raise FrameIndexError(
            "frame index outside the array",
            expected=f"position 0 to {grid.last_position}",
            got=int(frames["position"][outside][0]),
        )


def check_sequences(sequences: npt.NDArray[np.int64], expected: int, holes_below: int) -> None:
    """Raises ``ProtocolError`` unless they go on from ``expected`` without holes; below ``holes_below``
    (frames that are sent again) they must only ascend."""
    before = np.concatenate(([expected - 1], sequences[:-1]))
    if not ((sequences == before + 1) | ((sequences > before) & (sequences <= holes_below))).all():
        wanted = (
            f"{max(expected, holes_below)} and on"
            if expected >= holes_below
            else (f"ascending from {expected}, without holes from {holes_below}")
        )
        raise ProtocolError(
            "frame sequences are missing or repeated", expected=wanted, got=sequences[:4].tolist()
        )


def check_ring_slots(slots: npt.NDArray[np.uint32], slot_in_flight: npt.NDArray[np.bool_]) -> None:
    """Raises ``ProtocolError`` unless the ring slots exist, are free, and differ."""
    count = len(slot_in_flight)
    if (slots >= count).any() or slot_in_flight[slots].any() or np.unique(slots).size != slots.size:
        raise ProtocolError(
            "ring slots that are not free",
            expected=f"different free slots below {count}",
            got=slots[:4].tolist(),
        )


def addresses_in_parts(
    parts: Sequence[memoryview], slots: npt.NDArray[np.uint32], frame_bytes: int
) -> npt.NDArray[np.int64]:
    """The addresses of frames that came as parts of a message: each part must hold whole frames, together
    exactly ``len(slots)``. Raises ``ProtocolError``."""
    counts = [len(part) // frame_bytes for part in parts]
    whole = all(len(part) == n * frame_bytes and n > 0 for part, n in zip(parts, counts, strict=True))
    if not whole or sum(counts) != len(slots):
        expected = f"{len(slots)} frames of {frame_bytes} bytes, none cut"
        raise ProtocolError(
            "pixel parts that do not hold the frames",
            expected=expected,
            got=[len(part) for part in parts[:4]],
        )
    if not np.array_equal(slots, np.arange(len(slots), dtype=np.uint32)):
        raise ProtocolError(
            "slots must number the frames of the message", expected="0, 1, 2, ...", got=slots[:4].tolist()
        )
    starts = [
        np.frombuffer(part, np.uint8).ctypes.data + frame_bytes * np.arange(n, dtype=np.int64)
        for part, n in zip(parts, counts, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.int64), *starts])
