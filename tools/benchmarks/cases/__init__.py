"""The frames, layout and codec that every contender writes: 2048 x 2048 uint16 photon noise, inner chunks of
16 x 256 x 256, shards of 64 x 2048 x 2048.

Two scenes, both Poisson noise over an offset of 100 counts, since the codec's work on a frame decides much of
the speed:

    spots    haze and 40 bright spots over most of the field (lz4 1.89:1, zstd-1 2.48:1); pixels cross 256
             often, so the high bytes keep LZ4 busy
    camera   the simulated camera's own frames (``shardwright camera``), dimmer and mostly background (lz4
             1.98:1, zstd-1 3.22:1)

Headlines are taken from ``spots``: a specimen that fills the field, and the harder of the two.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright import ArraySpec, Blosc, Dimension
from shardwright.simulate.photons import PhotonFrames

Frames = npt.NDArray[np.uint16]
SCENES = ("spots", "camera")
HEADLINE_SCENE = "spots"


@dataclass(frozen=True)
class Case:
    """``frames`` are written each round; they cycle through ``distinct`` different ones. ``shard`` counts
    pixels, not chunks. ``cname`` none: no compression, whatever ``clevel`` and ``shuffle`` say. ``cores``: a
    writer's process runs on the first so many; 0: on all."""

    frames: int = 256
    distinct: int = 16
    shape: tuple[int, int] = (2048, 2048)
    chunk: tuple[int, int, int] = (16, 256, 256)
    shard: tuple[int, int, int] = (64, 2048, 2048)
    cname: str = "lz4"
    clevel: int = 1
    shuffle: str = "shuffle"
    threads: int = 2
    seed: int = 7
    scene: str = "spots"
    cores: int = 0

    def __post_init__(self) -> None:
        assert self.frames % self.shard[0] == 0, "whole shards only: peers write a shard at a time"
        assert self.distinct % self.chunk[0] == 0, "a slab repeats whole, so that one read proves all"

    @property
    def raw_bytes(self) -> int:
        return self.frames * self.shape[0] * self.shape[1] * 2

    @property
    def compressed(self) -> bool:
        return self.cname != "none"

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunk) * 2

    @property
    def shape_of_array(self) -> tuple[int, int, int]:
        return (self.frames, *self.shape)

    def spec(self) -> ArraySpec:
        """As shardwright sees it."""
        names, counts = "tyx", (None, *self.shape)
        dimensions = [
            Dimension(name=n, count=count, chunk_size=c, shard_size_chunks=s // c)
            for n, count, c, s in zip(names, counts, self.chunk, self.shard, strict=True)
        ]
        blosc = {"cname": self.cname, "clevel": self.clevel, "shuffle": self.shuffle}
        codec = Blosc.model_validate(blosc) if self.compressed else None
        return ArraySpec(dtype="uint16", dimensions=tuple(dimensions), codec=codec)

    def blosc(self) -> dict[str, Any] | None:
        """The compressor's entry in zarr.json; None without compression."""
        settings = {"cname": self.cname, "clevel": self.clevel, "shuffle": self.shuffle}
        configuration = {**settings, "typesize": 2, "blocksize": 0}
        return {"name": "blosc", "configuration": configuration} if self.compressed else None

    def zarr_json(self) -> dict[str, Any]:
        """The array's metadata, as tensorstore takes it."""
        blosc = self.blosc()
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        sharding = {
            "chunk_shape": list(self.chunk),
            "codecs": [little, *([blosc] if blosc else [])],
            "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "end",
        }
        return {
            "shape": list(self.shape_of_array),
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.shard)}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }

    @property
    def pixels(self) -> tuple[Any, ...]:
        """Cases in which this is equal draw the same frames."""
        return (self.scene, self.shape, self.distinct, self.seed)

    def draw(self) -> Frames:
        """The distinct frames of the scene."""
        if self.scene == "camera":
            camera = PhotonFrames(self.shape, "uint16", self.seed)
            return np.stack([camera.frame(i) for i in range(self.distinct)])
        rng = np.random.default_rng(self.seed)
        rows, columns = self.shape
        y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
        background = np.full(self.shape, 20.0, np.float32)
        for _ in range(40):
            center_y, center_x, width = rng.uniform(0, rows), rng.uniform(0, columns), rng.uniform(20, 150)
            background += rng.uniform(30, 250) * np.exp(
                -((y - center_y) ** 2 + (x - center_x) ** 2) / (2 * width**2)
            )
        frames = np.empty((self.distinct, *self.shape), np.uint16)
        for frame in frames:
            frame[:] = rng.poisson(background) + 100
        return frames

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        facts: dict[str, Any] = json.loads(text)
        facts |= {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
        return cls(**facts)


@contextmanager
def saved(frames: Frames) -> Iterator[Path]:
    """A file of the frames, in memory that every process can read."""
    with tempfile.NamedTemporaryFile(prefix="shardwright-frames-", dir="/dev/shm") as file:
        frames.tofile(file)
        file.flush()
        yield Path(file.name)


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    """Empties the folder and removes it at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Asked:
    """A figure of a part, of the name ``measure`` in its rows, and what is asked of it: at least or at most
    ``limit``."""

    measure: str
    text: str
    limit: float
    at_least: bool = False


def outcome(asked: Any, value: float, least: float, most: float, **where: Any) -> dict[str, Any]:
    """A figure as the record keeps it, with six digits. ``asked``: an ``Asked`` or a ratio of a comparison.
    ``where``: name, measured_in, headline, ours, against."""
    digits = {name: float(f"{one:.6g}") for name, one in (("value", value), ("least", least), ("most", most))}
    return {**where, "asked": asked.text, **digits, "limit": asked.limit, "at_least": asked.at_least}


def percentiles(values: np.ndarray) -> dict[str, float]:
    """p50, p99, p99.9 and the largest."""
    p50, p99, p99_9 = np.percentile(values, [50, 99, 99.9])
    return {"p50": float(p50), "p99": float(p99), "p99_9": float(p99_9), "max": float(values.max())}


def least_and_most(values: list[float]) -> dict[str, float]:
    return {"least": round(min(values), 4), "most": round(max(values), 4)}
