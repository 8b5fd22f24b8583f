"""The part ``plates``: many images of a few frames, a chunk for each frame and no shards, visited time after
time, as a plate is screened.

All writers have the same frames, codec and chunks; the clock runs from before the store is made until
everything is synced by one call. *floor* is a bare loop in two threads that makes the same folders and files
with as many bytes in one batch; the longest append is set beside its sync. A round has every writer in turn.
Nothing is deleted before the end, 25 GB in all: ext4 looks at the inodes that were freed in the last minutes
before it takes a new one, so that the rounds would not be alike.

One plate is also written beside a second program that dirties pages, by us and by the floor in turn: a sync
of the whole filesystem, which we make in place of many, writes out those as well. Nothing is asked of that.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from benchmarks.second_writer import second_writer
from benchmarks.testbed import Places
from shardwright.disk.filesystems import synced_as_one

from . import Asked, least_and_most

IMAGES, TIMES, SIDE = (48, 384, 1536), 2, 512
ROUNDS, DISTINCT, PENDING = 3, 16, 32
BESIDE, BESIDE_BYTES_PER_S = 384, 200_000_000
ASKED = (
    Asked("of_floor", "plates: at least 0.9 of a bare loop", 0.9, at_least=True),
    Asked("of_fastest_peer", "plates: at least as fast as the fastest peer", 1.0, at_least=True),
    Asked("append_beyond_ms", "plates: no append above 50 ms beyond the loop's sync", 50.0, at_least=False),
)
COLUMNS = {
    "seconds": "seconds",
    "of the floor": "of_floor",
    "of the fastest peer": "of_fastest_peer",
    "least": "of_fastest_peer_spread.least",
    "most": "of_fastest_peer_spread.most",
    "longest append ms": "longest_append_ms",
    "sync of the floor ms": "floor_sync_ms",
    "MB/s beside": "beside_mb_per_s",
}
Frames = np.ndarray
Found = dict[str, list[float]]


def measure(places: Places, quick: bool) -> dict[str, Any]:
    rows, folder = [], places.disk / "plates"
    shutil.rmtree(folder, ignore_errors=True)
    frames = np.random.default_rng(1).poisson(200, (DISTINCT, SIDE, SIDE)).astype(np.uint16)
    part, rounds = (20, 2) if quick else (1, ROUNDS)
    for images in IMAGES:
        rows.append(row(images, *rounds_of(folder, frames, images // part, rounds)))
        say(f"{images}: {rows[-1]['seconds']:.2f} s, {rows[-1]['of_floor']:.2f} of the floor")
    with second_writer(folder / "other", BESIDE_BYTES_PER_S) as other:
        alone = rounds_of(folder, frames, BESIDE // part, rounds, ("shardwright", "floor"), " beside")
        beside_mb_per_s = other.ask({})["rate"] / 1e6
    beside = {
        **_of_floor(*alone),
        "name": f"{BESIDE} images beside a writer",
        "beside_mb_per_s": beside_mb_per_s,
    }
    say(f"{beside['name']}: {beside['seconds']:.2f} s, {beside['of_floor']:.2f} of the floor")
    shutil.rmtree(folder)
    settings = {"times": TIMES, "side": SIDE, "durability": "stored"}
    return {"settings": settings, "rows": rows, "asked_nothing": [beside]}


def rounds_of(
    folder: Path,
    frames: Frames,
    images: int,
    rounds: int,
    writers: Iterable[str] | None = None,
    suffix: str = "",
) -> tuple[Found, Found, list[float]]:
    """Seconds and the longest append of each writer, and the floor's sync, by round; the first warms up.
    ``suffix``: of the names of their folders."""
    seconds: Found = {name: [] for name in writers or WRITERS}
    longest: Found = {name: [] for name in seconds}
    syncs = []
    for number in range(rounds + 1):
        for name in seconds:
            store = folder / f"{images}-{number}-{name}{suffix}" / "store.ome.zarr"
            store.parent.mkdir(parents=True)
            os.sync()
            begun = time.perf_counter()
            with synced_as_one(folder, "bench"):
                took = WRITERS[name](store, frames, images)
                written = time.perf_counter()
            ended = time.perf_counter()
            if number:
                seconds[name].append(ended - begun)
                longest[name].append(took)
                if name == "floor":
                    syncs.append(ended - written)
    return seconds, longest, syncs


def _visits(frames: Frames, images: int) -> Iterator[tuple[int, int, Frames]]:
    """(time, image, frame) of each visit."""
    for number in range(TIMES * images):
        yield *divmod(number, images), frames[number % DISTINCT]


def _each(append: Callable[[int, int, Frames], Any], frames: Frames, images: int) -> float:
    """Appends every frame; returns the seconds of the longest call."""
    longest = 0.0
    for t, image, frame in _visits(frames, images):
        begun = time.perf_counter()
        append(t, image, frame)
        longest = max(longest, time.perf_counter() - begun)
    return longest


def _ours(path: Path, frames: Frames, images: int) -> float:
    spec: dict[str, Any] = {
        "shape": (TIMES, SIDE, SIDE),
        "dtype": "uint16",
        "axes": "tyx",
        "chunks": {"t": 1, "y": SIDE, "x": SIDE},
        "shards": False,
    }
    names = [f"{i}" for i in range(images)]
    with sw.create(path, images=names, **spec) as writer:
        return _each(lambda t, i, frame: writer.append(frame, image=names[i], index=(t,)), frames, images)


def _tensorstore(path: Path, frames: Frames, images: int) -> float:
    limits = {
        "data_copy_concurrency": {"limit": 2},
        "file_io_concurrency": {"limit": 2},
        "file_io_sync": False,
    }
    context = tensorstore.Context(limits)
    blosc = {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}
    document = {
        "shape": [TIMES, SIDE, SIDE],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, SIDE, SIDE]}},
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "blosc", "configuration": blosc},
        ],
    }
    opened = [
        tensorstore.open(
            {
                "driver": "zarr3",
                "kvstore": {"driver": "file", "path": str(path / str(image) / "0")},
                "metadata": document,
            },
            create=True,
            context=context,
        )
        for image in range(images)
    ]
    stores = [each.result() for each in opened]
    pending: deque[Any] = deque()

    def append(t: int, image: int, frame: Frames) -> None:
        pending.append(stores[image][t].write(frame, can_reference_source_data_indefinitely=True))
        if len(pending) > PENDING:
            pending.popleft().result()

    longest = _each(append, frames, images)
    for write in pending:
        write.result()
    return longest


def _acquire_zarr(path: Path, frames: Frames, images: int) -> float:
    kinds = acquire_zarr.DimensionType
    dimensions = [
        acquire_zarr.Dimension(
            name=name,
            kind=kinds.TIME if name == "t" else kinds.SPACE,
            array_size_px=size,
            chunk_size_px=chunk,
            shard_size_chunks=1,
        )
        for name, size, chunk in (("t", 0, 1), ("y", SIDE, SIDE), ("x", SIDE, SIDE))
    ]
    codec = acquire_zarr.CompressionSettings(
        compressor=acquire_zarr.Compressor.BLOSC1,
        codec=acquire_zarr.CompressionCodec.BLOSC_LZ4,
        level=1,
        shuffle=1,
    )
    arrays = [
        acquire_zarr.ArraySettings(
            output_key=str(image), dimensions=dimensions, data_type=np.uint16, compression=codec
        )
        for image in range(images)
    ]
    settings = acquire_zarr.StreamSettings(store_path=str(path), arrays=arrays, max_threads=2)
    stream = acquire_zarr.ZarrStream(settings)
    longest = _each(lambda t, image, frame: stream.append(frame, str(image)), frames, images)
    stream.close()
    return longest


def _zarr_python(path: Path, frames: Frames, images: int) -> float:
    codec = BloscCodec(cname="lz4", clevel=1, shuffle="shuffle", typesize=2)
    arrays = [
        zarr.create_array(
            path / str(image) / "0",
            shape=(TIMES, SIDE, SIDE),
            chunks=(1, SIDE, SIDE),
            dtype="uint16",
            compressors=[codec],
        )
        for image in range(images)
    ]

    def append(t: int, image: int, frame: Frames) -> None:
        arrays[image][t] = frame

    return _each(append, frames, images)


def _floor(path: Path, frames: Frames, images: int) -> float:
    """The folders and files of our store, with as many bytes as the codec leaves."""
    data, document, line = frames[0].tobytes()[: frames[0].nbytes * 3 // 5], bytes(1500), bytes(90)

    def image_of(image: int) -> None:
        array = path / str(image) / "0"
        (array / "c").mkdir(parents=True)
        (array.parent / "zarr.json").write_bytes(document)
        (array / "zarr.json").write_bytes(document)
        (array / "shards.crc32c").write_bytes(TIMES * line)

    def frame_of(number: int) -> None:
        t, image = divmod(number, images)
        folder = path / str(image) / "0" / "c" / str(t) / "0"
        folder.mkdir(parents=True)
        (folder / "0").write_bytes(data)

    with ThreadPoolExecutor(2) as threads:
        deque(threads.map(image_of, range(images)), maxlen=0)
        deque(threads.map(frame_of, range(TIMES * images)), maxlen=0)
    return 0.0


WRITERS: dict[str, Callable[[Path, Frames, int], float]] = {
    "shardwright": _ours,
    "acquire-zarr": _acquire_zarr,
    "tensorstore": _tensorstore,
    "zarr-python": _zarr_python,
    "floor": _floor,
}


def row(images: int, seconds: Found, longest: Found, syncs: list[float]) -> dict[str, Any]:
    """``seconds``, ``longest``: of each writer, by round; ``syncs``: of the floor."""
    peers = {name: seconds[name] for name in ("acquire-zarr", "tensorstore", "zarr-python")}
    fastest = min(peers, key=lambda name: median(peers[name]))
    ratios = [b / a for a, b in zip(seconds["shardwright"], peers[fastest], strict=True)]
    return {
        **_of_floor(seconds, longest, syncs),
        "name": f"{images} images",
        "headline": True,
        "fastest_peer": fastest,
        "of_fastest_peer": median(ratios),
        "of_fastest_peer_spread": least_and_most(ratios),
    }


def _of_floor(seconds: Found, longest: Found, syncs: list[float]) -> dict[str, Any]:
    ours, worst = seconds["shardwright"], max(longest["shardwright"])
    return {
        "seconds": median(ours),
        "by_round": {name: [round(one, 3) for one in each] for name, each in seconds.items()},
        "of_floor": median(b / a for a, b in zip(ours, seconds["floor"], strict=True)),
        "longest_append_ms": 1e3 * worst,
        "floor_sync_ms": 1e3 * max(syncs),
        "append_beyond_ms": 1e3 * (worst - max(syncs)),
    }
