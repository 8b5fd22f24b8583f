"""What is acquired in a kill trial: small acquisitions of three shards, each hard in a way of its own.
Everything follows from the scene."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

import shardwright as sw
from shardwright.array.grid import Grid

METADATA = ("delta_t", "position_z")


@dataclass(frozen=True)
class Append:
    """One frame: its place in acquisition order, and the seed of its pixels and metadata. ``seed`` 0 is a
    frame of fill value."""

    position: int
    seed: int


@dataclass(frozen=True)
class Flush:
    """Wait until everything appended is durable."""


@dataclass(frozen=True)
class Pause:
    """A slow camera: long enough for unfinished slabs to be staged and synced."""

    ms: float


Step = Append | Flush | Pause


@dataclass(frozen=True)
class Scene:
    """``steps`` in order; ``frames`` are its appends: frame n of the script has sequence n in a life that
    sends all of it.

    ``late``: frames may come after their place was closed, so that which of several frames has a place is
    decided by the frame table.
    """

    name: str
    spec: sw.ArraySpec
    steps: tuple[Step, ...]
    store_within_ms: int = 1000
    sync_interval_ms: int = 1000
    threads: int = 1
    late: bool = False
    frames: tuple[Append, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", tuple(step for step in self.steps if isinstance(step, Append)))

    @property
    def counts(self) -> tuple[int, ...]:
        """The extent of the frame axes when every frame of the script is there."""
        grid = Grid.of(self.spec)
        last = max(grid.index_of(frame.position)[0] for frame in self.frames)
        return (last + 1 if grid.unlimited else grid.counts[0], *grid.counts[1:])

    @property
    def early_end(self) -> int:
        """About half of the frames, and not all of a shard: where somebody ends the acquisition although more
        frames come."""
        frames = len(self.frames) // 2 + 1
        grid = Grid.of(self.spec)
        return frames - (frames % (grid.frames_per_slab * math.prod(grid.shard_chunks)) == 0)

    def until(self, frames: int) -> Scene:
        """The scene's beginning: its first frames and what stands between them."""
        appends = [number for number, step in enumerate(self.steps) if isinstance(step, Append)]
        return replace(self, steps=self.steps[: appends[frames - 1] + 1])

    def index(self, position: int) -> tuple[int, ...]:
        return Grid.of(self.spec).index_of(position)

    def pixels(self, n: int) -> np.ndarray:
        return pixels_of(self.spec, self.frames[n].seed)

    def metadata(self, n: int) -> dict[str, float]:
        return metadata_of(self.spec, self.frames[n].seed)

    def frame_id(self, n: int) -> int:
        return 5000 + 3 * n


def pixels_of(spec: sw.ArraySpec, seed: int) -> np.ndarray:
    """No element of a frame with a seed has the fill value, and no two frames are alike anywhere."""
    if seed == 0:
        return np.full(spec.frame_shape, spec.fill_value, spec.dtype)
    size = math.prod(spec.frame_shape)
    noise = np.random.default_rng(seed).integers(0, 4, size)
    return (256 + 64 * seed + (np.arange(size) % 7) + 8 * noise).astype(spec.dtype).reshape(spec.frame_shape)


def metadata_of(spec: sw.ArraySpec, seed: int) -> dict[str, float]:
    """Numbers of the frame's own for some of the fields."""
    return {name: seed + i / 8 for i, name in enumerate((*METADATA, *spec.frame_fields)) if (seed + i) % 3}


def spec_of(*axes: tuple[str, int | None, int, int], **fields: object) -> sw.ArraySpec:
    dimensions = tuple(
        sw.Dimension(name=n, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for n, count, chunk, shard in axes
    )
    return sw.ArraySpec(dtype="uint16", dimensions=dimensions, **fields)  # type: ignore[arg-type]


def _in_order(frames: int) -> tuple[Append, ...]:
    return tuple(Append(position, position + 1) for position in range(frames))


def _plain() -> Scene:
    spec = spec_of(("t", None, 2, 2), ("y", 16, 16, 1), ("x", 24, 24, 1))
    return Scene("plain", spec, _in_order(12))


def _several_files() -> Scene:
    """Four shard files share a shard row; a frame is in all of them or in none."""
    spec = spec_of(
        ("t", None, 1, 2),
        ("y", 20, 8, 2),
        ("x", 24, 8, 2),
        codec=sw.Zstd(),
        chunk_checksum=True,
        frame_fields=("temperature",),
    )
    return Scene("several files", spec, _in_order(6), threads=2, sync_interval_ms=5)


def _any_order() -> Scene:
    """Three axes stored in another order than acquired, frames permuted, the index at the start."""
    spec = spec_of(
        ("t", 3, 1, 1),
        ("z", 3, 2, 1),
        ("c", 2, 1, 2),
        ("y", 12, 12, 1),
        ("x", 18, 9, 2),
        index_location="start",
        storage_order=("t", "c", "z", "y", "x"),
    )
    order = np.random.default_rng(5).permutation(18).tolist()
    return Scene(
        "any order",
        spec,
        tuple(Append(position, position + 1) for position in order),
        sync_interval_ms=3,
        store_within_ms=2,
        threads=2,
    )


def _slow_camera() -> Scene:
    """Chunks deeper than what comes between two pauses: frames wait in the staging area, slabs complete later
    or never."""
    spec = spec_of(("t", None, 4, 1), ("y", 16, 8, 2), ("x", 24, 24, 1), chunk_checksum=True)
    steps: list[Step] = []
    for frame in _in_order(11):
        steps += [frame, Pause(4)]
        if frame.position == 5:
            steps.append(Flush())
    return Scene("slow camera", spec, tuple(steps), store_within_ms=1, sync_interval_ms=2)


def _twice() -> Scene:
    """Places sent twice with other pixels, while open and after they were stored; frames of fill value;
    further fields."""
    spec = spec_of(
        ("t", 6, 2, 1),
        ("z", 2, 1, 2),
        ("y", 16, 16, 1),
        ("x", 24, 12, 2),
        codec=None,
        frame_fields=("laser_mw", "dose"),
    )
    places = [0, 1, 1, 2, 0, 3, 4, 6, 5, 4, 7, 8, 9, 9, 10, 11]
    fill = {3, 6}
    steps: list[Step] = [Append(place, 0 if place in fill else n + 1) for n, place in enumerate(places)]
    steps.insert(9, Pause(3))
    return Scene("twice", spec, tuple(steps), store_within_ms=1, sync_interval_ms=1, threads=2)


def _flushing() -> Scene:
    spec = spec_of(("t", None, 3, 1), ("y", 16, 16, 1), ("x", 24, 24, 1), codec=sw.Gzip())
    steps: list[Step] = []
    for frame in _in_order(8):
        steps += [frame, Flush()] if frame.position % 2 else [frame]
    return Scene("flushing", spec, tuple(steps))


def _levels() -> Scene:
    """Levels are further files of the shard rows of their image: all of them or none."""
    spec = spec_of(
        ("t", None, 2, 2),
        ("z", 2, 2, 1),
        ("y", 20, 8, 2),
        ("x", 24, 12, 2),
        levels={"count": 2, "axes": ("z", "y", "x")},
        chunk_checksum=True,
    )
    return Scene("levels", spec, _in_order(14), threads=2, sync_interval_ms=5, store_within_ms=2)


SCENES = {
    scene.name: scene
    for scene in (
        _plain(),
        _several_files(),
        _any_order(),
        _slow_camera(),
        _twice(),
        _flushing(),
        _levels(),
    )
}
IO_MODES = ("mmap", "pwrite", "direct")
