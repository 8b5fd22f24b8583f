"""The contenders: their interface, the functions they share, and all of them by name. A module is imported
only in the process that runs it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.cases import Case, Frames

CONTENDERS = {
    "shardwright": "ours.InProcess",
    "shardwright-mmap": "ours.InProcessMapped",
    "shardwright-pwrite": "ours.InProcessPwrite",
    "shardwright-direct": "ours.InProcessDirect",
    "shardwright-levels": "ours.InProcessLevels",
    "shardwright-uncopied": "ours.InProcessUncopied",
    "shardwright-claim": "ours.InProcessClaim",
    "daemon-shm": "ours.DaemonSharedMemory",
    "daemon-message": "ours.DaemonMessage",
    "daemon-claim": "ours.DaemonClaim",
    "acquire-zarr": "acquire.AcquireZarr",
    "acquire-zarr-levels": "acquire.AcquireZarrLevels",
    "tensorstore": "tensorstore_writer.TensorStore",
    "zarrs": "zarr_python.Zarrs",
    "zarr-python": "zarr_python.ZarrPython",
    "floor-kernel": "kernel_floor.Kernel",
    "floor-mmap": "disk_floor.Mapped",
    "floor-pwrite": "disk_floor.Pwrite",
    "floor-direct": "disk_floor.Direct",
    "floor-together": "together.Together",
}
# of tools/bench compact: ways to make an acquired store gapless
REPACKERS = {
    "move": "repackers.Move",
    "pack": "repackers.Pack",
    "pack-job": "repackers.PackJob",
    "recompress-zstd": "repackers.Recompress",
    "cp": "repackers.Cp",
    "cp-sync": "repackers.CpSync",
    "cp-sync-cmp": "repackers.CpSyncCmp",
    "cp-replace": "repackers.CpReplace",
    "zarr-python": "repackers.RewriteZarrPython",
    "tensorstore": "repackers.RewriteTensorStore",
}


class Contender(ABC):
    """One writer. Lives in its own process; ``start`` once, then ``prepare`` and ``write`` once a round,
    ``verify`` once, ``stop``."""

    kind = "peer"  # or "ours", "floor" (a bound, with no file format)
    synced = True  # the final sync counts

    def __init__(self, case: Case, frames: Frames) -> None:
        self.case = case
        self.frames = frames

    def start(self, folder: Path) -> None:  # noqa: B027  (most have nothing to do)
        """Does everything that is not part of writing: imports, compilation, a daemon. ``folder`` is this
        contender's own."""

    def prepare(self, path: Path) -> None:  # noqa: B027
        """Does what a round needs and is not timed."""

    @abstractmethod
    def write(self, path: Path) -> int:
        """Writes the case's frames below ``path`` (absent before unless ``prepare`` made it) and returns the
        bytes stored. The caller times it and syncs afterwards."""

    @abstractmethod
    def verify(self, path: Path) -> None:
        """Raises ``AssertionError`` unless the last round's output holds the frames."""

    def stop(self) -> None:  # noqa: B027
        """Gives back what ``start`` took."""

    def processes(self) -> list[int]:
        """The processes whose CPU time counts. Memory is that of the first: the one that writes."""
        return [os.getpid()]

    def counted_bytes(self) -> int:
        """The bytes of a round, of which speeds are made."""
        return self.case.raw_bytes

    def planned_memory_bytes(self) -> int | None:
        """The peak memory this writer promised to stay within, without the frames the bench itself holds."""
        return None

    def frames_held_bytes(self) -> int:
        """Memory of the first process that belongs to the bench."""
        return self.frames.nbytes

    def frame(self, i: int) -> npt.NDArray[np.uint16]:
        frame: npt.NDArray[np.uint16] = self.frames[i % self.case.distinct]
        return frame


def contender_class(place: str) -> type[Contender]:
    """``place``: MODULE.CLASS, as the tables above have it."""
    module, _, attribute = place.partition(".")
    found = getattr(import_module(f".{module}", __package__), attribute)
    assert isinstance(found, type)
    assert issubclass(found, Contender)
    return found


def sync_tree(path: Path) -> None:
    """Makes everything below ``path`` durable: the data of every file, then every folder."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            with_descriptor(Path(folder) / name, os.fdatasync)
        with_descriptor(Path(folder), os.fsync)


def with_descriptor(path: Path, action: Callable[[int], None]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        action(descriptor)
    finally:
        os.close(descriptor)


def tree_bytes(path: Path) -> int:
    """Bytes that the filesystem holds of the files below ``path``."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def check_last_shard(array_path: Path, contender: Contender, reader: str = "tensorstore") -> None:
    """Reads the last shard with a reader that did not write it. Raises ``AssertionError`` where a pixel
    differs."""
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
