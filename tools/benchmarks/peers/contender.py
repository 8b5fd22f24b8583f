"""The interface of every contender, and what several of them share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.cases import Case, Frames


class Contender(ABC):
    """One writer. Lives in its own process; ``start`` once, then ``write`` once a round, ``verify`` once,
    ``stop``."""

    kind = "peer"  # or "ours", "floor" (a bound, with no file format), "core" (one core, no disk)

    def __init__(self, case: Case, frames: Frames) -> None:
        self.case = case
        self.frames = frames

    def start(self, folder: Path) -> None:  # noqa: B027  (most have nothing to do)
        """Everything that is not part of writing: imports, compilation, a daemon. ``folder`` is this
        contender's own."""

    @abstractmethod
    def write(self, path: Path) -> int:
        """Write the case's frames below ``path`` (absent before) and return the bytes written; the caller
        times it and syncs afterwards."""

    @abstractmethod
    def verify(self, path: Path) -> None:
        """Raise ``AssertionError`` unless the last round's output holds the frames."""

    def stop(self) -> None:  # noqa: B027
        """Give back what ``start`` took."""

    def processes(self) -> list[int]:
        """The processes whose CPU time counts. Memory is that of the first: the one that writes."""
        return [os.getpid()]

    def planned_memory_bytes(self) -> int | None:
        """The peak memory this writer promised to stay within, without the frames the bench itself holds."""
        return None

    def frames_held_bytes(self) -> int:
        """Memory of the first process that belongs to the bench."""
        return self.frames.nbytes

    def frame(self, i: int) -> npt.NDArray[np.uint16]:
        frame: npt.NDArray[np.uint16] = self.frames[i % self.case.distinct]
        return frame

    def shard_of_frames(self) -> npt.NDArray[np.uint16]:
        """The frames of one shard, as peers that write whole shards take them (every shard of the case is
        equal)."""
        return np.concatenate([self.frames] * (self.case.shard[0] // self.case.distinct))


def sync_tree(path: Path) -> None:
    """Make everything below ``path`` durable: data of every file, then every folder. The same for all
    contenders, inside their time."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            sync_one(Path(folder) / name, os.fdatasync)
        sync_one(Path(folder), os.fsync)


def sync_one(path: Path, sync: Any) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def tree_bytes(path: Path) -> int:
    """Bytes below ``path`` as readers see them (lengths; gaps are counted apart, see ``st_blocks``)."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def check_last_shard(array_path: Path, contender: Contender, reader: str = "tensorstore") -> None:
    """Read the last shard with a reader that did not write it, and compare every pixel."""
    case = contender.case
    first = case.frames - case.shard[0]
    if reader == "tensorstore":
        import tensorstore

        store = tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(array_path)}}
        ).result()
        pixels = store[first : case.frames].read().result()
    else:
        import zarr

        array = zarr.open_array(array_path, mode="r")
        pixels = np.asarray(array[first : case.frames])
    assert pixels.shape == case.shard, f"the last shard has shape {pixels.shape}"
    for i, image in enumerate(pixels):
        assert np.array_equal(image, contender.frame(first + i)), f"frame {first + i} differs"
