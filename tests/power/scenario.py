"""One run of the writer, drawn from a seed: how the array is laid out, how the frames come, and what each of
them holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition, parse_image
from shardwright.model.write_options import index_location_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.model.write_options import LiveMode, PartialChunks, WriteOrder

STORE = "run.ome.zarr"
FRAMES = 24
FRAMES_PER_CHUNK, CHUNKS_PER_SHARD = 4, 2  # along t: three shard rows of two files each
FRAMES_PER_SMALL_SHARD = 2  # of one chunk along t: one shard row of 24 files
FRAME_SHAPE, CHUNK_SHAPE = (48, 64), (24, 32)
BLANK_FRAMES = range(12, 16)  # of the fill value: their chunks are not stored at all
WELLS = 6
# number of images -> frames of each
IMAGES = {1: (FRAMES,), 2: (16, 8), 3: (8, 12, 4), WELLS: (4, 6, 2, 4, 6, 2)}
_SHARE = 0.25  # of scenarios add images, and as many go on with a finished store
_MOST_ENDS = 3  # before the last one

Interruption = Literal["none", "kill", "power", "hang"]


@dataclass(frozen=True)
class Scenario:
    """``interruption``: the writer is killed after ``killed_after`` frames, or its power is cut at some
    moment, and another process goes on with the store (``then``: resume) or brings it to an end (recover),
    while the log is written. The cuts that are judged hit that process, too. Or the writer hangs there,
    another takes the store over, hangs somewhere on its way (``then``: recover) and is taken over itself; the
    stopped ones go on meanwhile.

    ``added``: of the images, the last ones are added while it runs; the very last one never gets a frame.
    ``ends``: the writer also ends the store after so many frames, and goes on with it.

    ``compaction``: they hit one that packs the store instead, which has been written to its end by then; see
    ``compaction.HOW``. Or one of ``tests.power.JOBS``, on a store of its own."""

    seed: int
    filesystem: str
    mount_options: str
    io: Literal["mmap", "pwrite", "direct"]
    codec: Literal["none", "lz4", "zstd"]
    index_location: Literal["start", "end"]
    sync_interval_ms: int
    store_within_ms: int
    pause_ms: tuple[int, ...]  # after each frame
    order: tuple[int, ...]  # the places of all images one after another, as their frames come if alone
    flush_after: frozenset[int]
    durability: Literal["stored", "durable"]
    interruption: Interruption
    killed_after: int
    then: Literal["resume", "recover"]
    pressure: bool  # dirty pages are written back at any moment
    # no levels and one image where a store is packed or moved: those jobs have cuts of their own
    levels: int
    images: int
    plate: bool  # of several images: fields of wells, or else series
    live: LiveMode
    small: bool  # shards, of which many make one shard row
    chunk_order: WriteOrder
    partial_chunks: PartialChunks
    rows_of_a_slab: bool  # of many images: these share journals
    added: int = 0
    ends: tuple[int, ...] = ()
    compaction: str | None = None

    @classmethod
    def draw(cls, seed: int, filesystem: str) -> Scenario:
        rng = np.random.default_rng(seed)

        def choose(*options: object) -> object:
            return options[int(rng.integers(len(options)))]

        slow = bool(rng.integers(2))
        drawn = cls(
            seed=seed,
            filesystem=filesystem,
            mount_options="" if filesystem == "xfs" or rng.integers(2) else "commit=1",
            io=choose("pwrite" if filesystem == "btrfs" else "mmap", "pwrite", "direct", "direct"),
            codec=choose("none", "lz4", "zstd"),
            index_location=choose("end", "end", "start"),
            sync_interval_ms=choose(20, 60, 200),
            store_within_ms=choose(10, 40, 1000),
            pause_ms=tuple(
                int(rng.integers(20, 80)) if slow or rng.random() < 0.2 else 0 for _ in range(FRAMES)
            ),
            order=tuple(_order(choose("straight", "straight", "shuffled"), rng)),
            flush_after=frozenset(np.flatnonzero(rng.random(FRAMES) < 0.2).tolist()),
            durability=choose("stored", "durable"),
            interruption=choose("none", "none", "kill", "power"),
            killed_after=int(rng.integers(1, FRAMES)),
            then=choose("resume", "recover"),
            pressure=bool(rng.integers(2)),
            levels=choose(0, 0, 2),
            images=choose(1, 1, 1, 1, 2, 3),
            plate=choose(False, True),
            live=choose("none", "none", "none", "index", "append"),
            small=choose(False, False, True),
            chunk_order=choose("arrival", "arrival", "row_major", "morton"),
            partial_chunks=choose("collect", "collect", "in_place"),
            rows_of_a_slab=choose(False, False, True),
        )
        if drawn.rows_of_a_slab:
            drawn = drawn.of_wells()
        elif drawn.partial_chunks == "in_place":  # what goes with it
            io = "pwrite" if drawn.io == "direct" else drawn.io
            drawn = replace(drawn, io=io, codec="none", levels=0, live="none", chunk_order="arrival")
        # apart, so that the others stay what they are
        adds, goes_on = np.random.default_rng((seed, 6)).random(2) < _SHARE
        drawn = drawn.with_added_images() if adds else drawn
        return drawn.in_parts() if goes_on else drawn

    def of_wells(self) -> Scenario:
        """Returns it with many images, whose shard rows are a slab each. Frames come without pauses most of
        the time, so that several rows are made at once."""
        pauses = tuple(pause if number % 8 == 7 else 0 for number, pause in enumerate(self.pause_ms))
        several = replace(self, images=WELLS, small=True, rows_of_a_slab=True, pause_ms=pauses)
        return replace(several, live="none", partial_chunks="collect", levels=min(self.levels, 1))

    def with_added_images(self) -> Scenario:
        """Returns it with several images, of which some are added while it runs."""
        images = max(self.images, 2)
        added = 1 + int(np.random.default_rng((self.seed, 7)).integers(1, images))
        return replace(self, images=images, added=added)

    def in_parts(self) -> Scenario:
        """Returns it with ends from which the writer goes on; sometimes it ends twice without a frame in
        between."""
        rng = np.random.default_rng((self.seed, 8))
        ends = rng.integers(1, FRAMES, int(rng.integers(1, _MOST_ENDS + 1)))
        return replace(self, ends=tuple(sorted(ends.tolist())))

    @property
    def settings(self) -> dict[str, Any]:
        """What a store is made with; a copy that grows is not made of mapped files, nor in another order."""
        if self.live == "append":
            return {"io": "pwrite" if self.io == "mmap" else self.io, "live": self.live}
        settings = {"io": self.io, "live": self.live, "chunk_order": self.chunk_order}
        return settings | {"partial_chunks": self.partial_chunks}

    @property
    def parts(self) -> tuple[slice, ...]:
        """Of ``frames``, those of each image."""
        frames = (*IMAGES[self.images], 0) if self.added else IMAGES[self.images]
        stops = np.cumsum(IMAGES[1] if self.compaction is not None else frames).tolist()
        return tuple(slice(*each) for each in pairwise([0, *stops]))

    def place(self, frame: int) -> tuple[int, int]:
        """(image, index along t) of one of ``frames``."""
        image = next(number for number, part in enumerate(self.parts) if frame < part.stop)
        return image, frame - self.parts[image].start

    @cached_property
    def sent(self) -> tuple[int, ...]:
        """Sequence -> number in ``frames``: images are visited at random, each in its part of ``order``;
        added ones not from the beginning."""
        left = [[n for n in self.order if part.start <= n < part.stop] for part in self.parts]
        visits = [image for image, mine in enumerate(left) for _ in mine]
        rng = np.random.default_rng((self.seed, 5))
        if self.added:
            later = (np.array(visits) - self.declared_images + 1).clip(0) / (self.added + 1)
            visits = [visits[n] for n in np.argsort(rng.uniform(later, 1))]
        elif len(left) > 1:
            rng.shuffle(visits)
        return tuple(left[image].pop(0) for image in visits)

    @property
    def declared_images(self) -> int:
        """How many there are from the beginning."""
        return len(self.parts) - self.added

    @cached_property
    def adds(self) -> tuple[int, ...]:
        """The sequences before which images are added, in the order of these: each a few frames, or none,
        before the first one of its own."""
        places = [self.place(frame)[0] for frame in self.sent]
        rng, latest = np.random.default_rng((self.seed, 9)), FRAMES - 1
        when: list[int] = []
        for image in reversed(range(self.declared_images, len(self.parts))):
            latest = min(latest, places.index(image)) if image in places else latest
            when.append(max(0, latest - int(rng.integers(0, 4))))
            latest = when[-1]
        return tuple(reversed(when))

    def image_to_add(self, number: int) -> dict[str, Any]:
        """Returns the arguments of ``add_image`` for the added image of this number: some say where their
        image is, on the stage or on disk."""
        facts: dict[str, Any] = {"name": f"position {self.declared_images + number}"}
        facts["attributes"] = {"found": number}
        if number % 3 < 2:
            facts["position"] = {"x": 7.5 * (number + 1), "y": 2.25}
        if self.plate:
            facts["name"] = f"B/{number + 1}/found"
        elif number % 2 == 0:
            facts["path"] = f"found/at-{number}"
        return facts

    @cached_property
    def declared(self) -> AcquisitionSpec:
        """With which the writer begins."""
        if len(self.parts) == 1:
            return parse_acquisition(self.spec)
        numbers = range(self.declared_images)
        plate = {"rows": 2, "columns": -(-len(numbers) // 4), "fields": 2}
        if self.added:  # all fields of the plate have their images, so that the added ones follow
            plate = {"rows": 1, "columns": len(numbers), "fields": 1}
        several = {"plate": plate} if self.plate else {"images": [f"position {n}" for n in numbers]}
        spec = parse_acquisition({"array": self.spec, **several})
        return spec.in_rows(1, 1) if self.rows_of_a_slab else spec

    @cached_property
    def acquisition(self) -> AcquisitionSpec:
        """With all images."""
        return self.declared.with_images(self.added_images)

    @property
    def added_images(self) -> list[sw.Image]:
        return [parse_image(self.image_to_add(number)) for number in range(self.added)]

    @property
    def along(self) -> tuple[int, int]:
        """(frames of a chunk, chunks of a shard) along t."""
        small = self.small and self.compaction is None
        return (FRAMES_PER_SMALL_SHARD, 1) if small else (FRAMES_PER_CHUNK, CHUNKS_PER_SHARD)

    @property
    def spec(self) -> sw.ArraySpec:
        """Of every image. Chunks carry a crc32c, so that a reader can tell a torn one, unless frames are put
        into them as they come."""
        (rows, columns), (chunk_rows, chunk_columns) = FRAME_SHAPE, CHUNK_SHAPE
        along = self.along
        codecs = {"none": None, "lz4": sw.Blosc(), "zstd": sw.Zstd()}
        unit = "micrometer" if self.added else None  # by which a position is a place
        return sw.ArraySpec(
            dtype="uint16",
            dimensions=(
                sw.Dimension(name="t", count=None, chunk_size=along[0], shard_size_chunks=along[1]),
                sw.Dimension(name="y", count=rows, chunk_size=chunk_rows, shard_size_chunks=1, unit=unit),
                sw.Dimension(
                    name="x", count=columns, chunk_size=chunk_columns, shard_size_chunks=2, unit=unit
                ),
            ),
            codec=codecs[self.codec],
            index_location=index_location_of(self.live) or self.index_location,
            chunk_checksum=self.partial_chunks == "collect",
            levels=self.levels if self.compaction is None else None,
        )

    @cached_property
    def frames(self) -> np.ndarray:
        """uint16[FRAMES, rows, columns] of all images, by index along t: noise, so that no two
        chunks are alike, and a few that are blank."""
        frames = (
            np.random.default_rng((self.seed, 1)).integers(1, 2**12, (FRAMES, *FRAME_SHAPE)).astype(np.uint16)
        )
        frames[BLANK_FRAMES.start : BLANK_FRAMES.stop] = 0
        return frames


def _order(kind: object, rng: np.random.Generator) -> Sequence[int]:
    """Straight, or shuffled within the frames of each shard: several slabs are open at once then."""
    order = np.arange(FRAMES)
    if kind == "shuffled":
        per_shard = FRAMES_PER_CHUNK * CHUNKS_PER_SHARD
        order = rng.permuted(order.reshape(-1, per_shard), axis=1).ravel()
    return order.tolist()
