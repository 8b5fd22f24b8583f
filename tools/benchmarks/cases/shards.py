"""The part ``shards``: a shard for each frame, as programs write it that want a file for each frame.

All writers have the same frames, codec and layout; the clock runs from before the store is made until
everything is synced. *shardwright-durable* gives a frame back only once it is durable. *floor* is a bare loop
in two threads that writes as many bytes into files of the same names, all synced at once. A round has every
writer in turn. Nothing is deleted before the end, as in ``plates``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import acquire_zarr
import numpy as np
import tensorstore
import zarr
from zarr.codecs import BloscCodec

import shardwright as sw
from benchmarks.processes import say
from benchmarks.testbed import Places
from shardwright.disk.filesystems import synced_as_one
from shardwright.model.write_options import Durability

from . import Asked, least_and_most

SIDES = (128, 1024)
FRAMES = {128: 1000, 1024: 200}
ROUNDS, DISTINCT, PENDING = 3, 64, 32
ASKED = (
    Asked("of_fastest_peer", "shards of one frame: at least 1.5 times the fastest peer", 1.5, at_least=True),
)
COLUMNS = {
    "frames/s": "frames_per_s",
    "of the fastest peer": "of_fastest_peer",
    "least": "of_fastest_peer_spread.least",
    "most": "of_fastest_peer_spread.most",
    "of the floor": "of_floor",
    "durable frames/s": "durable_frames_per_s",
    "durable of the floor": "durable_of_floor",
}
Frames = np.ndarray


def measure(places: Places, quick: bool) -> dict[str, Any]:
    rounds = 2 if quick else ROUNDS
    rows = []
    shutil.rmtree(places.disk / "shards", ignore_errors=True)
    for side in SIDES:
        count = FRAMES[side] // (20 if quick else 1)
        frames = np.random.default_rng(1).poisson(200, (DISTINCT, side, side)).astype(np.uint16)
        found = _rounds(places.disk / "shards", frames, count, rounds)
        rows.append(row(side, found))
        ratio = rows[-1]["of_fastest_peer"]
        say(f"{side}: {rows[-1]['frames_per_s']:,.0f} shards/s, {ratio:.2f} of the fastest peer")
    shutil.rmtree(places.disk / "shards")
    return {"settings": {"frames": FRAMES, "rounds": rounds, "durability": "stored"}, "rows": rows}


def _rounds(folder: Path, frames: Frames, count: int, rounds: int) -> dict[str, list[float]]:
    """Frames per second of each writer in each round; the first round warms up."""
    found: dict[str, list[float]] = {name: [] for name in WRITERS}
    for number in range(rounds + 1):
        for name, write in WRITERS.items():
            store = folder / f"{frames.shape[1]}-{number}-{name}" / "store.zarr"
            store.parent.mkdir(parents=True)
            os.sync()
            begun = time.perf_counter()
            with synced_as_one(folder, "bench"):
                write(store, frames, count)
            if number:
                found[name].append(count / (time.perf_counter() - begun))
    return found


def _ours(path: Path, frames: Frames, count: int, durability: Durability = "stored") -> None:
    with _created(path, frames, count, durability) as writer:
        for i in range(count):
            writer.append(frames[i % DISTINCT])


def _created(path: Path, frames: Frames, count: int, durability: Durability = "stored") -> sw.Writer:
    one, shape = {"t": 1, "y": frames.shape[1], "x": frames.shape[2]}, (count, *frames.shape[1:])
    return sw.create(
        path, shape=shape, dtype="uint16", axes="tyx", chunks=one, shards=one, durability=durability
    )


def _acquire_zarr(path: Path, frames: Frames, count: int) -> None:
    sizes = zip("tyx", (0, *frames.shape[1:]), (1, *frames.shape[1:]), strict=True)
    dimensions = [
        acquire_zarr.Dimension(
            name=name,
            kind=acquire_zarr.DimensionType.TIME if name == "t" else acquire_zarr.DimensionType.SPACE,
            array_size_px=size,
            chunk_size_px=chunk,
            shard_size_chunks=1,
        )
        for name, size, chunk in sizes
    ]
    codec = acquire_zarr.CompressionSettings(
        compressor=acquire_zarr.Compressor.BLOSC1,
        codec=acquire_zarr.CompressionCodec.BLOSC_LZ4,
        level=1,
        shuffle=1,
    )
    array = acquire_zarr.ArraySettings(
        output_key="0", dimensions=dimensions, data_type=np.uint16, compression=codec
    )
    settings = acquire_zarr.StreamSettings(store_path=str(path), arrays=[array], max_threads=2)
    stream = acquire_zarr.ZarrStream(settings)
    for i in range(count):
        stream.append(frames[i % DISTINCT])
    stream.close()


def _document(frames: Frames, count: int) -> dict[str, Any]:
    blosc = {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    chunk = [1, *frames.shape[1:]]
    sharding = {
        "chunk_shape": chunk,
        "codecs": [little, {"name": "blosc", "configuration": blosc}],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [count, *frames.shape[1:]],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }


def _tensorstore(path: Path, frames: Frames, count: int) -> None:
    limits = {
        "data_copy_concurrency": {"limit": 2},
        "file_io_concurrency": {"limit": 2},
        "file_io_sync": False,
    }
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": _document(frames, count),
    }
    store = tensorstore.open(spec, create=True, context=tensorstore.Context(limits)).result()
    pending: deque[Any] = deque()
    for i in range(count):
        pending.append(store[i].write(frames[i % DISTINCT], can_reference_source_data_indefinitely=True))
        if len(pending) > PENDING:
            pending.popleft().result()
    for write in pending:
        write.result()


def _zarr_python(path: Path, frames: Frames, count: int) -> None:
    shape = (1, *frames.shape[1:])
    codec = BloscCodec(cname="lz4", clevel=1, shuffle="shuffle", typesize=2)
    array = zarr.create_array(
        path, shape=(count, *shape[1:]), chunks=shape, shards=shape, dtype="uint16", compressors=[codec]
    )
    for i in range(count):
        array[i] = frames[i % DISTINCT]


def _floor(path: Path, frames: Frames, count: int) -> None:
    """Two folders and a file for each frame, as many bytes as the codec leaves."""
    data = frames[0].tobytes()[: frames[0].nbytes * 3 // 5]
    (path / "0" / "c").mkdir(parents=True)

    def write(i: int) -> None:
        folder = path / "0" / "c" / str(i)
        folder.mkdir()
        (folder / "0").mkdir()
        (folder / "0" / "0").write_bytes(data)

    with ThreadPoolExecutor(2) as threads:
        deque(threads.map(write, range(count)), maxlen=0)


WRITERS: dict[str, Callable[[Path, Frames, int], None]] = {
    "shardwright": _ours,
    "shardwright-durable": partial(_ours, durability="durable"),
    "acquire-zarr": _acquire_zarr,
    "tensorstore": _tensorstore,
    "zarr-python": _zarr_python,
    "floor": _floor,
}


def row(side: int, found: dict[str, list[float]]) -> dict[str, Any]:
    """``found``: frames per second of each writer, by round."""
    ours, durable, floor = (found[name] for name in ("shardwright", "shardwright-durable", "floor"))
    peers = {name: found[name] for name in ("acquire-zarr", "tensorstore", "zarr-python")}
    fastest = max(peers, key=lambda name: median(peers[name]))
    ratios = [a / b for a, b in zip(ours, peers[fastest], strict=True)]
    return {
        "name": f"{side}x{side}",
        "headline": True,
        "frames_per_s": median(ours),
        "by_round": {name: [round(speed, 1) for speed in speeds] for name, speeds in found.items()},
        "fastest_peer": fastest,
        "of_fastest_peer": median(ratios),
        "of_fastest_peer_spread": least_and_most(ratios),
        "of_floor": median(a / b for a, b in zip(ours, floor, strict=True)),
        "durable_frames_per_s": median(durable),
        "durable_of_floor": median(a / b for a, b in zip(durable, floor, strict=True)),
    }
