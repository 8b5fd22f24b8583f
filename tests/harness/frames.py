"""What scripted cameras send: small frames that tell by themselves which frame they are. Shared by those who
send and those who judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import shardwright as sw
from shardwright.simulate.photons import PhotonFrames

if TYPE_CHECKING:
    from shardwright.writer.writer import Writer

# how a frame arrives: with its pixels, or only told of
FRAME, DROPPED, NOT_HELD = "frame", "dropped", "not_held"
SHAPE = (32, 48)
SLAB_FRAMES = 4

_copies: dict[tuple[tuple[int, int], int], PhotonFrames] = {}


@dataclass(frozen=True)
class Arrival:
    """One frame as the camera sends it. ``copy`` counts how often this id was sent before."""

    frame_id: int
    how: str = FRAME
    copy: int = 0


def in_order(frames: int, first: int = 0) -> list[Arrival]:
    return [Arrival(i) for i in range(first, first + frames)]


def array_spec(
    count: int | None = None,
    slab_frames: int = SLAB_FRAMES,
    slabs: int = 2,
    shape: tuple[int, int] = SHAPE,
    **fields,
) -> sw.ArraySpec:
    """A group is ``slabs`` slabs in two shard files: of the upper and of the lower half of the frames."""
    height, width = shape
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=count, chunk_size=slab_frames, shard_size_chunks=slabs),
            sw.Dimension(name="y", count=height, chunk_size=height // 2, shard_size_chunks=1),
            sw.Dimension(name="x", count=width, chunk_size=width, shard_size_chunks=1),
        ],
        **fields,
    )


def pixels(frame_id: int, copy: int = 0, shape: tuple[int, int] = SHAPE) -> np.ndarray:
    """Frame ``frame_id``; further copies (what a camera sends twice) differ in every way, so that a swap is
    seen."""
    source = _copies.get((shape, copy))
    if source is None:
        source = _copies[shape, copy] = PhotonFrames(shape, "uint16", seed=copy)
    frame = source.frame(frame_id)
    frame.reshape(-1)[:64] += np.uint16(1)  # no pixel is 0: fill value is told from any frame
    return frame


WAYS = ("copied", "claimed", "lent")


def hand_over(writer: Writer, way: str, frame: np.ndarray, **facts: Any) -> None:
    """Gives a writer a frame in one of the ``WAYS``. A lent one must not be changed after that."""
    if way == "claimed":
        with writer.claim(**facts) as into:
            into[...] = frame if frame.ndim == 2 else np.moveaxis(frame, -1, 0)
    else:
        writer.append(frame, copy=way == "copied", **facts)
