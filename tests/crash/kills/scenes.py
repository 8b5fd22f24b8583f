"""What is acquired in a kill trial: small acquisitions of three shards, or of several images, each hard in a
way of its own. Everything follows from the scene."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

import shardwright as sw
from shardwright.array.acquisition_spec import AcquisitionSpec, parse_acquisition
from shardwright.array.grid import image_of
from shardwright.array.spec import MOST_GROWN
from shardwright.wire.messages import IMAGE_SHIFT

if TYPE_CHECKING:
    from typing import Any

    from shardwright.array.grid import Grid
    from shardwright.model.write_options import LiveMode, PartialChunks, WriteOrder

METADATA = ("delta_t", "position_z")


@dataclass(frozen=True)
class Append:
    """One frame: its place in acquisition order (of image k from ``k << IMAGE_SHIFT`` on), and the seed of
    its pixels and metadata. ``seed`` 0 is a frame of fill value."""

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
    sends all of it. Of a colour camera each is a channel: it gives ``places`` of them at once.

    ``late``: frames may come after their place was closed, so that which of several frames has a place is
    decided by the frame table. ``live``: whether any reader sees its shards grow. ``sealer_ms``: that the
    sealer waits before each of its commands, so that it finds several and makes their shard rows together.
    """

    name: str
    spec: sw.ArraySpec | AcquisitionSpec
    steps: tuple[Step, ...]
    store_within_ms: int = 1000
    sync_interval_ms: int = 1000
    threads: int = 1
    late: bool = False
    live: LiveMode = "none"
    chunk_order: WriteOrder = "arrival"
    partial_chunks: PartialChunks = "collect"
    sealer_ms: float = 0
    added: int = 0  # of its images, the last ones: each before its first frame
    frames: tuple[Append, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", tuple(step for step in self.steps if isinstance(step, Append)))

    @cached_property
    def images(self) -> AcquisitionSpec:
        return parse_acquisition(self.spec)

    @cached_property
    def declared(self) -> AcquisitionSpec:
        """The specification with which it begins."""
        spec = self.images
        if not self.added:
            return spec
        return AcquisitionSpec(array=spec.array, images=spec.images[: -self.added], order=spec.order)

    def image_to_add(self, position: int, asked: set[str]) -> dict[str, Any] | None:
        """Returns the arguments of ``add_image`` for the image of a frame; None for one that was declared, or
        that this process has ``asked`` for: another one may have added it."""
        number = image_of(position)
        if number < len(self.declared.names) or (name := self.images.names[number]) in asked:
            return None
        asked.add(name)
        return {"name": name, "path": self.images.images[number].path}

    def io(self, drawn: str) -> str:
        """How its shards are filled, of what was drawn: a copy that grows is not made of mapped files, and
        parts of chunks are no whole pages."""
        if (self.partial_chunks, drawn) == ("in_place", "direct"):
            return "pwrite"
        return "pwrite" if (self.live, drawn) == ("append", "mmap") else drawn

    def grid(self, image: int) -> Grid:
        return self.images.grids.grids[image]

    def array(self, position: int) -> sw.ArraySpec:
        return self.images.arrays[image_of(position)]

    def counts(self, image: int) -> tuple[int, ...]:
        """The extent of an image's frame axes when every frame of the script is there."""
        grid = self.grid(image)
        mine = [grid.index_of(frame.position) for frame in self.frames if image_of(frame.position) == image]
        ends = [max(index) + 1 for index in zip(*mine, strict=True)] or [0, *grid.counts[1:]]
        grown = [axis for axis, d in enumerate(self.array(grid.first).dimensions[:-2]) if d.count is None]
        return tuple(ends[axis] if axis in grown else n for axis, n in enumerate(grid.counts))

    @property
    def places(self) -> int:
        return self.images.frame_places

    @property
    def early_end(self) -> int:
        """About half of the frames, and not all of a shard: where somebody ends the acquisition although more
        frames come."""
        frames = self._whole(len(self.frames) // 2 + 1)
        image = image_of(self.frames[frames - 1].position)
        mine = sum(image_of(frame.position) == image for frame in self.frames[:frames])
        return frames - self.places * (mine % math.prod(self.grid(image).shard_row_frames) == 0)

    def _whole(self, frames: int) -> int:
        return -(-frames // self.places) * self.places

    def until(self, frames: int) -> Scene:
        """The scene's beginning: its first frames and what stands between them."""
        appends = [number for number, step in enumerate(self.steps) if isinstance(step, Append)]
        return replace(self, steps=self.steps[: appends[self._whole(frames) - 1] + 1])

    def index(self, position: int) -> tuple[int, ...]:
        return self.images.grids.of(position).index_of(position)

    def pixels(self, n: int) -> np.ndarray:
        return pixels_of(self.array(self.frames[n].position), self.frames[n].seed)

    def given(self, n: int) -> np.ndarray:
        """The frame that a camera gives, of a colour camera the one whose last channel is n."""
        if self.places == 1:
            return self.pixels(n)
        return np.stack([self.pixels(n + 1 - self.places + c) for c in range(self.places)], axis=-1)

    def metadata(self, n: int) -> dict[str, float]:
        return metadata_of(self.images, self.frames[n - n % self.places].seed)

    def facts(self, n: int) -> dict[str, Any]:
        """What a frame is given with beside its pixels."""
        position = self.frames[n].position
        name = self.images.names[image_of(position)]
        return {
            **({"image": name} if name else {}),
            "index": self.index(position)[: -1 if self.places > 1 else None],
            "frame_id": self.frame_id(n),
            "metadata": self.metadata(n),
        }

    def frame_id(self, n: int) -> int:
        return 5000 + 3 * (n - n % self.places)


def pixels_of(spec: sw.ArraySpec, seed: int) -> np.ndarray:
    """No element of a frame with a seed has the fill value, and no two frames are alike anywhere."""
    if seed == 0:
        return np.full(spec.frame_shape, spec.fill_value, spec.dtype)
    size = math.prod(spec.frame_shape)
    noise = np.random.default_rng(seed).integers(0, 4, size)
    return (256 + 64 * seed + (np.arange(size) % 7) + 8 * noise).astype(spec.dtype).reshape(spec.frame_shape)


def metadata_of(spec: sw.ArraySpec | AcquisitionSpec, seed: int) -> dict[str, float]:
    """Numbers of the frame's own for some of the fields."""
    return {name: seed + i / 8 for i, name in enumerate((*METADATA, *spec.frame_fields)) if (seed + i) % 3}


def spec_of(*axes: tuple[str, int | None, int, int | None], **fields: object) -> sw.ArraySpec:
    dimensions = tuple(
        sw.Dimension(name=n, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for n, count, chunk, shard in axes
    )
    return sw.ArraySpec(**{"dtype": "uint16", **fields}, dimensions=dimensions)  # type: ignore[arg-type]


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


def _fixed_order() -> Scene:
    """The chunks of a slab lie between those of the slabs before it."""
    spec = spec_of(("t", None, 1, 4), ("y", 16, 8, 2), ("x", 24, 8, 2))
    steps: list[Step] = list(_in_order(10))
    steps[3:3] = [Flush()]
    settings = {"threads": 2, "sync_interval_ms": 3}
    return Scene("fixed order", spec, tuple(steps), chunk_order="morton", **settings)


def _in_place() -> Scene:
    """Frames are in their chunks as they come, in any order, some of fill value; several files and slabs at
    once."""
    spec = spec_of(("t", None, 4, 2), ("z", 2, 1, 1), ("y", 20, 8, 2), ("x", 24, 12, 1), codec=None)
    order = [0, 1, 3, 2, 4, 6, 9, 5, 7, 8, 11, 10, 12, 13, 14, 16, 15, 17, 18]
    steps: list[Step] = [Append(place, 0 if place in (3, 9) else place + 1) for place in order]
    steps[13:13] = [Pause(3)]
    steps[6:6] = [Flush()]
    settings = {"threads": 2, "sync_interval_ms": 2}
    return Scene("in place", spec, tuple(steps), partial_chunks="in_place", **settings)


def _colours() -> Scene:
    """A colour camera: each frame has a place in three shards, and waits in their slabs."""
    spec = spec_of(
        ("t", None, 2, 2),
        ("c", 3, 1, 1),
        ("y", 16, 8, 2),
        ("x", 24, 24, 1),
        interleaved=True,
        frame_fields=("dose",),
    )
    steps: list[Step] = list(_in_order(21))
    steps[15:15] = [Pause(4)]
    steps[9:9] = [Flush()]
    return Scene("colours", spec, tuple(steps), threads=2, store_within_ms=1, sync_interval_ms=2)


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


def _small_shards() -> Scene:
    """A shard for each frame and channel: a shard row has many, and some have their names before it is
    full."""
    spec = spec_of(("t", None, 1, 1), ("c", 2, 1, 1), ("y", 16, 8, 2), ("x", 24, 24, 1))
    steps: list[Step] = []
    for frame in _in_order(14):
        steps += [frame, Pause(2)] if frame.position % 3 == 2 else [frame]
    return Scene("small shards", spec, tuple(steps), threads=2, sync_interval_ms=3)


def _without_shards() -> Scene:
    """A file for each chunk, of a level too: nothing in it says how long it must be."""
    spec = spec_of(
        ("t", None, 2, None), ("y", 20, 8, None), ("x", 24, 12, None), levels=1, chunk_checksum=True
    )
    steps: list[Step] = []
    for frame in _in_order(11):
        steps += [frame, Pause(3)] if frame.position % 4 == 2 else [frame]
    return Scene("without shards", spec, tuple(steps), threads=2, store_within_ms=2, sync_interval_ms=3)


def _levels() -> Scene:
    """Levels are further files of the shard rows of their image: all of them or none."""
    spec = spec_of(
        ("t", None, 2, 2),
        ("z", 2, 2, 1),
        ("y", 20, 8, 2),
        ("x", 24, 12, 2),
        levels={"count": 2, "factors": {"z": 2, "y": 2, "x": 3}},
        chunk_checksum=True,
    )
    return Scene("levels", spec, _in_order(14), threads=2, sync_interval_ms=5, store_within_ms=2)


def _visits(*frames: tuple[int, int]) -> tuple[Append, ...]:
    """Frames given as (image, place in it)."""
    return tuple(Append((image << IMAGE_SHIFT) + place, n + 1) for n, (image, place) in enumerate(frames))


def _in_turn(*counts: int, run: int = 1) -> list[tuple[int, int]]:
    """So many frames of each image, ``run`` of one before some of the next."""
    rounds = -(-max(counts) // run)
    return [
        (image, place)
        for number in range(rounds)
        for image, count in enumerate(counts)
        for place in range(number * run, min(count, (number + 1) * run))
    ]


def _positions() -> Scene:
    """Stage positions in turn, ragged; one is never visited. Slabs of all of them wait at once."""
    spec = sw.AcquisitionSpec(
        array=spec_of(("t", None, 2, 2), ("y", 16, 8, 2), ("x", 24, 24, 1), chunk_checksum=True),
        images=("first", "never", "second", "third"),
        attributes={"sample": "embryo"},
    )
    steps: list[Step] = list(_visits(*_in_turn(7, 0, 3, 5)))
    steps[9:9] = [Pause(4)]
    steps[5:5] = [Flush()]
    return Scene("positions", spec, tuple(steps), store_within_ms=1, sync_interval_ms=2)


def _small_positions() -> Scene:
    """A shard for each frame of positions in turn: a row of each stays open, most of its shards with their
    names."""
    array = spec_of(("t", None, 1, 1), ("z", 2, 1, 1), ("y", 16, 8, 2), ("x", 24, 24, 1))
    spec = sw.AcquisitionSpec(array=array, images=("a", "b", "c"), order=("t", "p", "z"))
    frames = [(image, 2 * t + z) for t in range(3) for image in range(3) for z in range(2)]
    steps: list[Step] = list(_visits(*frames))
    steps[10:10] = [Pause(4)]
    steps[5:5] = [Flush()]
    return Scene("small positions", spec, tuple(steps), threads=2, sync_interval_ms=3)


def _ordered_positions() -> Scene:
    """Time, then positions, then a stack of planes: only the stack at hand is incomplete. The second position
    has other planes and ends early."""
    array, short = (
        spec_of(("t", count, 1, 2), ("z", planes, 4, 1), ("y", 16, 16, 1), ("x", 24, 12, 2))
        for count, planes in ((None, 4), (2, 3))
    )
    spec = sw.AcquisitionSpec(
        array=array, images=("a", {"name": "b", "array": short}, "c"), order=("t", "p", "z")
    )
    frames = [
        (image, planes * t + z)
        for t in range(3)
        for image, planes in enumerate((4, 3, 4))
        for z in range(planes)
        if t < 2 or image != 1
    ]
    return Scene("ordered positions", spec, _visits(*frames), threads=2, sync_interval_ms=5)


def _wells() -> Scene:
    """Many images, whose shard rows are a slab each: several share a journal. Each comes to a second row, and
    the last slab of some is never full."""
    array = spec_of(("t", None, 2, 1), ("y", 16, 8, 2), ("x", 24, 24, 1))
    spec = sw.AcquisitionSpec(array=array, images=tuple("abcdef"))
    steps: list[Step] = list(_visits(*_in_turn(5, 3, 4, 2, 4, 3)))
    steps[15:15] = [Pause(4)]
    steps[9:9] = [Flush()]
    settings = {"store_within_ms": 1, "sync_interval_ms": 2, "sealer_ms": 1.5}
    return Scene("wells", spec.in_rows(1, 1), tuple(steps), threads=2, **settings)


def _stacks() -> Scene:
    """A stack of each field of a plate, with levels, each of them a slab and a shard row: most share one
    journal, and some have no frame, or not every one."""
    array = spec_of(("z", 3, 3, 1), ("y", 16, 8, 2), ("x", 24, 24, 1), levels=1, chunk_checksum=True)
    spec = sw.AcquisitionSpec(array=array, plate={"rows": 2, "columns": 2, "fields": 2}, order=("p", "z"))
    frames = [(image, z) for image in range(7) for z in range(3) if (image, z) not in {(2, 1), (4, 2)}]
    steps: list[Step] = list(_visits(*frames))
    steps[11:11] = [Pause(3)]
    return Scene("stacks", spec, tuple(steps), threads=2, sync_interval_ms=3, sealer_ms=1.5)


def _plate() -> Scene:
    """Fields one after another, each from beginning to end; not in the order of the plate, and one well and
    one field not at all."""
    spec = sw.AcquisitionSpec(
        array=spec_of(("c", 2, 1, 1), ("z", 2, 2, 1), ("y", 12, 12, 1), ("x", 18, 9, 2)),
        plate={"rows": 1, "columns": 3, "fields": 2},
        order=("p", "c", "z"),
    )
    frames = [(image, place) for image in (1, 0, 5) for place in range(4)]
    return Scene("plate", spec, _visits(*frames), sync_interval_ms=5)


def _cameras() -> Scene:
    """Two cameras of other shape, dtype, axes and codec; one has levels, the other sends places twice."""
    left = spec_of(
        ("t", None, 2, 1), ("z", 2, 1, 2), ("y", 20, 8, 2), ("x", 24, 12, 2), levels=2, chunk_checksum=True
    )
    right = spec_of(("t", None, 3, 1), ("y", 10, 10, 1), ("x", 30, 15, 1), dtype="float32", codec=None)
    spec = sw.AcquisitionSpec(images={"left": left, "right": right})
    frames = _in_turn(10, 7, run=2)
    frames[6:6] = [(1, 1), (0, 3)]
    return Scene("cameras", spec, _visits(*frames), threads=2, store_within_ms=2, sync_interval_ms=3)


def _grown() -> Scene:
    """Two axes without a count, in two images: stacks of another depth at each time."""
    spec = sw.AcquisitionSpec(
        array=spec_of(("t", None, 1, 1), ("z", None, 2, 2), ("y", 16, 8, 2), ("x", 24, 24, 1)),
        images=("a", "b"),
    )
    depths = ((5, 1, 3), (2, 4))
    frames = [
        (image, t * MOST_GROWN + z)
        for t in range(3)
        for image in (0, 1)
        for z in range(depths[image][t] if t < len(depths[image]) else 0)
    ]
    steps: list[Step] = list(_visits(*frames))
    steps[6:6] = [Pause(4)]
    return Scene("grown", spec, tuple(steps), store_within_ms=1, sync_interval_ms=2)


def _grow_in_turn(name: str, live: LiveMode) -> Scene:
    """Two images whose shards any reader sees grow, what a kill leaves of them is read as it lies; with a
    level, and slabs that wait in the staging area. In folders that have names of their own."""
    spec = sw.AcquisitionSpec(
        array=spec_of(("t", None, 2, 3), ("y", 16, 8, 1), ("x", 24, 12, 2), levels=1),
        images=({"name": "a", "path": "dish.1/Pos-0"}, {"name": "b", "path": "dish.1/b/c"}),
    )
    steps: list[Step] = list(_visits(*_in_turn(9, 7, run=2)))
    steps[7:7] = [Pause(4)]
    steps[3:3] = [Flush()]
    settings = {"store_within_ms": 1, "sync_interval_ms": 3, "threads": 2}
    return Scene(name, spec, tuple(steps), live=live, **settings)


def _detected() -> Scene:
    """An overview, and two cells that are found in it: their images come while it runs. Slabs of all three
    wait at once, and go on in turn."""
    spec = sw.AcquisitionSpec(
        array=spec_of(("t", None, 2, 2), ("y", 16, 8, 2), ("x", 24, 24, 1), chunk_checksum=True),
        images=("overview", "cell", {"name": "other", "path": "cells/b"}),
    )
    frames = [(0, 0), (0, 1), (0, 2), (1, 0), (0, 3), *((image, t) for t in range(1, 6) for image in (1, 2))]
    frames = [(image, t - (image == 2)) for image, t in frames]
    steps: list[Step] = list(_visits(*frames))
    steps[9:9] = [Pause(4)]
    steps[5:5] = [Flush()]
    return Scene("detected", spec, tuple(steps), store_within_ms=1, sync_interval_ms=2, added=2)


SCENES = {
    scene.name: scene
    for scene in (
        _plain(),
        _several_files(),
        _fixed_order(),
        _in_place(),
        _colours(),
        _any_order(),
        _slow_camera(),
        _twice(),
        _flushing(),
        _small_shards(),
        _without_shards(),
        _levels(),
        _positions(),
        _small_positions(),
        _ordered_positions(),
        _wells(),
        _stacks(),
        _plate(),
        _cameras(),
        _grown(),
        _grow_in_turn("live", "index"),
        _grow_in_turn("live append", "append"),
        _detected(),
    )
}
IO_MODES = ("mmap", "pwrite", "direct")
