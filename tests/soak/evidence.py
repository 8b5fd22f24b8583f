"""What lies on disk of one acquisition: what each place of the image holds, the frame table, the holes that
the commands list, files left behind.

The image is read with tensorstore and the table with zarr-python, which know nothing of how shardwright
writes. Memory is a slab of frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import tensorstore
from tests.harness.store_contents import frame_table, leftovers

from shardwright.read.frame_table import open_frame_table
from shardwright.read.missing_frames import MissingFrames
from shardwright.read.store import open_store

from .camera import drawn_number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.simulate.photons import PhotonFrames

# what a place of the image holds: fill value, the frame that was sent there, or anything else
EMPTY, RIGHT, WRONG = 0, 1, 2
FRAMES_AT_ONCE = 16
MODEST = {
    "cache_pool": {"total_bytes_limit": 0},
    "data_copy_concurrency": {"limit": 1},
    "file_io_concurrency": {"limit": 1},
}


@dataclass(frozen=True)
class Row:
    """Of the frame table."""

    sequence: int
    frame_id: int
    place: int
    epoch: int
    status: int


@dataclass
class Evidence:
    """``holds``: for each place of the image. ``listed``: places that ``shardwright inspect --missing``
    names."""

    holds: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    listed: list[int] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)


def read_evidence(store: Path, source: PhotonFrames, number: int) -> Evidence | None:
    """Of acquisition ``number`` of the camera that draws from ``source``. None: nothing is there."""
    if not store.exists():
        return None
    opened = open_store(store)
    table = open_frame_table(opened)
    assert table is not None, f"{store} has no frame table"
    listed = [
        place
        for gap in MissingFrames(table, opened.arrays[0]).ranges()
        for place in range(gap.first, gap.last + 1)
    ]
    return Evidence(list(_holdings(store, source, number)), list(_rows(store)), listed, leftovers(store))


def _holdings(store: Path, source: PhotonFrames, number: int) -> Iterator[int]:
    image = tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store}/0"}, "context": MODEST}, read=True
    ).result()
    sent = np.empty(source.shape, source.dtype)
    for start in range(0, image.shape[0], FRAMES_AT_ONCE):
        frames = image[start : min(start + FRAMES_AT_ONCE, image.shape[0])].read().result()
        for place, frame in enumerate(frames, start):
            if np.array_equal(frame, source.frame(drawn_number(number, place), out=sent)):
                yield RIGHT
            else:
                yield WRONG if frame.any() else EMPTY


def _rows(store: Path) -> Iterator[Row]:
    table = frame_table(store)
    columns = [table[name].tolist() for name in ("sequence", "frame_id", "index_t", "client_epoch", "status")]
    return (Row(*values) for values in zip(*columns, strict=True))
