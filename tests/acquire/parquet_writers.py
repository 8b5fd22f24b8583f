"""Writers of stores with ``frames.parquet``, for processes that are forked: pyarrow, which starts threads, is
imported in these alone."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import shardwright as sw
from shardwright.disk import failpoints

ASKED = sw.WriteSettings(frame_parquet=True, ballast_bytes=0)
SHAPE: dict[str, Any] = {"shape": (None, 32, 32), "dtype": "uint16", "chunks": {"t": 2}}
FRAME = np.full((32, 32), 7, np.uint16)


def die_with_frames(_: Any, path: str, frames: int) -> None:
    writer = sw.create(path, **SHAPE, settings=ASKED)
    for _number in range(frames):
        writer.append(FRAME)
    writer.flush()
    os._exit(0)


def end_once(_: Any, path: str) -> None:
    """Dies with table and file in place, and the workspace still there."""
    writer = sw.create(path, **SHAPE, settings=ASKED)
    for _number in range(4):
        writer.append(FRAME)
    failpoints.set_hook("workspace.before_manifest", lambda: os._exit(0))
    writer.close()


def end_again(channel: Any, path: str, point: int) -> None:
    """Goes on with such a store, and dies at the ``point``-th call since the file was moved aside. Says
    whether it came to it."""
    writer = sw.resume(path)
    writer.append(FRAME)
    writer.flush()
    met: list[str] = []

    def count(name: str) -> None:
        if met or name == "folder.before_rename":
            met.append(name)
            if len(met) == point:
                os._exit(0)

    failpoints.watch_all(count)
    writer.close()
    os._exit(1)
