"""One run of the writer, drawn from a seed: how the array is laid out, how the frames come, and what each of
them holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

import shardwright as sw

if TYPE_CHECKING:
    from collections.abc import Sequence

STORE = "run.ome.zarr"
FRAMES = 24
FRAMES_PER_CHUNK, CHUNKS_PER_SHARD = 4, 2  # along t: three shard rows of two files each
FRAME_SHAPE, CHUNK_SHAPE = (48, 64), (24, 32)
BLANK_FRAMES = range(12, 16)  # of the fill value: their chunks are not stored at all

Interruption = Literal["none", "kill", "power", "hang"]


@dataclass(frozen=True)
class Scenario:
    """``interruption``: the writer is killed after ``killed_after`` frames, or its power is cut at some
    moment, and another process goes on with the store (``then``: resume) or brings it to an end (recover),
    while the log is written. The cuts that are judged hit that process, too. Or the writer hangs there,
    another takes the store over, hangs somewhere on its way (``then``: recover) and is taken over itself; the
    stopped ones go on meanwhile. ``compaction``: they hit one that packs the store instead, which has been
    written to its end by then; see ``compaction.HOW``. Or one of ``tests.power.JOBS``, on a store of its
    own."""

    seed: int
    filesystem: str
    mount_options: str
    io: Literal["mmap", "pwrite", "direct"]
    codec: Literal["none", "lz4", "zstd"]
    index_location: Literal["start", "end"]
    sync_interval_ms: int
    store_within_ms: int
    pause_ms: tuple[int, ...]  # after each frame
    order: tuple[int, ...]  # sequence -> index along t
    flush_after: frozenset[int]
    durability: Literal["stored", "durable"]
    interruption: Interruption
    killed_after: int
    then: Literal["resume", "recover"]
    pressure: bool  # dirty pages are written back at any moment
    levels: int  # none where a store is packed or moved: those jobs have cuts of their own
    compaction: str | None = None

    @classmethod
    def draw(cls, seed: int, filesystem: str) -> Scenario:
        rng = np.random.default_rng(seed)

        def choose(*options: object) -> object:
            return options[int(rng.integers(len(options)))]

        slow = bool(rng.integers(2))
        return cls(
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
        )

    @property
    def spec(self) -> sw.ArraySpec:
        """Chunks carry a crc32c, so that a reader can tell a torn one."""
        (rows, columns), (chunk_rows, chunk_columns) = FRAME_SHAPE, CHUNK_SHAPE
        codecs = {"none": None, "lz4": sw.Blosc(), "zstd": sw.Zstd()}
        return sw.ArraySpec(
            dtype="uint16",
            dimensions=(
                sw.Dimension(
                    name="t", count=None, chunk_size=FRAMES_PER_CHUNK, shard_size_chunks=CHUNKS_PER_SHARD
                ),
                sw.Dimension(name="y", count=rows, chunk_size=chunk_rows, shard_size_chunks=1),
                sw.Dimension(name="x", count=columns, chunk_size=chunk_columns, shard_size_chunks=2),
            ),
            codec=codecs[self.codec],
            index_location=self.index_location,
            chunk_checksum=True,
            levels=self.levels if self.compaction is None else None,
        )

    @cached_property
    def frames(self) -> np.ndarray:
        """uint16[FRAMES, rows, columns] by index along t: noise, so that no two chunks are alike, and a few
        that are blank."""
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
