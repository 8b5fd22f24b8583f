"""What is in the fixtures: streams, which frames were sent, and their pixels. Part of the fixtures: never
changed, only added to."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).parent / "fixtures"
RELEASES = sorted(folder for folder in FIXTURES.iterdir() if folder.is_dir())
RECORDED = FIXTURES.parent / "recorded"
PLATES = sorted(RECORDED.glob("plate-*.tar.xz"))  # by the format of their manifest

CONFIG = """\
output: {{root: {root}, io: pwrite, ballast: 64KiB, low_water: 1MiB}}
ingest: {{endpoints: ["ipc://./in.sock"], heartbeat_ms: 200, session_timeout_ms: 2000}}
workers: {{threads: 1}}
memory: {{budget: 2GiB}}
reliability: {{resume_timeout_ms: 600000, store_within_ms: 50, sync_interval_ms: 50}}
streams:
  - name: cells
    ring_frames: 24
    array:
      dtype: uint16
      dimensions:
        - {{name: t, chunk_size: 4, shard_size_chunks: 2}}
        - {{name: y, count: 48, chunk_size: 32, shard_size_chunks: 1}}
        - {{name: x, count: 80, chunk_size: 32, shard_size_chunks: 3}}
  - name: tissue
    ring_frames: 24
    array:
      dtype: uint8
      codec: {{name: zstd}}
      chunk_checksum: true
      index_location: start
      frame_fields: [stage_v]
      dimensions:
        - {{name: t, chunk_size: 1, shard_size_chunks: 4}}
        - {{name: c, count: 2, type: channel, chunk_size: 2, shard_size_chunks: 1}}
        - {{name: y, count: 48, chunk_size: 24, shard_size_chunks: 2}}
        - {{name: x, count: 80, chunk_size: 40, shard_size_chunks: 2}}
  - name: tiny
    ring_frames: 24
    array:
      dtype: uint16
      dimensions:
        - {{name: t, chunk_size: 2, shard_size_chunks: 2}}
        - {{name: y, count: 8, chunk_size: 8, shard_size_chunks: 1}}
        - {{name: x, count: 12, chunk_size: 12, shard_size_chunks: 1}}
"""
SHAPES = {"cells": (48, 80), "tissue": (48, 80), "tiny": (8, 12)}
DTYPES = {"cells": np.dtype("uint16"), "tissue": np.dtype("uint8"), "tiny": np.dtype("uint16")}

# Of each unfinished store: a shard row that is sealed (8 frames), a slab in the journal, the beginning of one
# in the staging area; frame 3 came twice.
SENT_BEFORE_THE_KILL = {"cells": 14, "tissue": 11}
SENT_IN_ALL = 20
SENT_TWICE = 3
FINISHED_FRAMES = 16  # of "cells", in compaction.tar.xz
CONVERSATION_FRAMES = 6  # of "tiny"

# Of the plate, six images of a shard row of one slab of two frames: those that were sent before the kill, by
# image. The rows of images 0 and 2 are sealed, that of image 3 is stored in its journal, of the others a
# frame is in the staging area. The rows of images 2 to 5 share the journal, from format 11 on.
PLATE_SENT = {0: 2, 1: 1, 2: 2, 3: 2, 4: 1, 5: 1}
PLATE_SHAPE = (2, 8, 8)


def plate_pixel(image: int, t: int) -> int:
    """Every pixel of a frame of the plate."""
    return 100 * image + t + 1


def pixels(stream: str, number: int) -> np.ndarray:
    """Frame ``number`` of a stream, by arithmetic. The upper left corner of every third frame is empty: some
    chunks are absent."""
    height, width = SHAPES[stream]
    y, x = np.mgrid[:height, :width]
    image = (x * 3 + y * 7 + number * 11 + (x * y + number) % 13) % 251
    if number % 3 == 0:
        image[: height // 2, : width // 2] = 0
    return image.astype(DTYPES[stream])


def all_pixels(stream: str, count: int) -> np.ndarray:
    """[count, height, width]."""
    return np.stack([pixels(stream, number) for number in range(count)])


def stage_v(number: int) -> float:
    """The further field of frame ``number`` of "tissue"."""
    return number / 8
