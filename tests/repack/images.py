"""Small images as the writer leaves them, and what reads them back."""

from __future__ import annotations

import json
import os
import signal
import warnings
from typing import TYPE_CHECKING

import numpy as np
import tensorstore
import zarr

import shardwright as sw
from shardwright.disk.failpoints import at_time, watch_all
from shardwright.read.store import open_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import Throttle
from shardwright.shard.sealed_shard import SealedShard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

POLITE = Throttle(idle=False)  # a test that made itself idle would slow down those after it
NOT_IDLE = POLITE.to_dict()  # as it travels with a task


def run_here(tasks: Iterable[dict]) -> Iterator[dict]:
    """Each task in this process, its task and result as they would travel."""
    for task in tasks:
        yield json.loads(json.dumps(run_task(json.loads(json.dumps(task)))))


def write_image(
    path: Path,
    *,
    shape=(11, 21, 37),
    chunks=(1, 8, 16),
    shard_chunks=(4, 2, 2),
    names="zyx",
    dtype="uint16",
    seed=3,
    **spec,
) -> np.ndarray:
    """An image of noise; one frame of it never came, one is all fill value. ``shard_chunks`` None: without
    shards."""
    dimensions = [
        sw.Dimension(
            name=n,
            count=c,
            chunk_size=k,
            shard_size_chunks=s,
            unit="micrometer" if n in "zyx" else None,
            scale=0.5 + i,
        )
        for i, (n, c, k, s) in enumerate(
            zip(names, shape, chunks, shard_chunks or [None] * len(shape), strict=True)
        )
    ]
    array_spec = sw.ArraySpec(dtype=dtype, dimensions=dimensions, **spec)
    rng = np.random.default_rng(seed)
    values = (
        rng.integers(0, 2, shape).astype(bool)
        if dtype == "bool"
        else (rng.poisson(300, shape) % 120).astype(dtype)
    )
    fill = np.frombuffer(array_spec.fill_bytes(), array_spec.dtype)[0]
    frames = values.reshape(-1, *shape[-2:])
    if len(frames) > 5:
        frames[2] = frames[4] = fill
    with (
        warnings.catch_warnings(action="ignore", category=sw.errors.LayoutWarning),
        sw.create(path, array_spec) as writer,
    ):
        for i, frame in enumerate(frames):
            if i != 4 or len(frames) <= 5:
                writer.append(frame, index=tuple(map(int, np.unravel_index(i, shape[:-2]))))
    return values


def read_everywhere(array: Path) -> np.ndarray:
    """As zarr-python and tensorstore read it: the same."""
    one = np.asarray(zarr.open_array(array, mode="r")[...])
    other = np.asarray(
        tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{array}/"}})
        .result()
        .read()
        .result()
    )
    np.testing.assert_array_equal(one, other)
    return one


def multiscale(store: Path) -> dict:
    return json.loads((store / "zarr.json").read_text())["attributes"]["ome"]["multiscales"][0]


def die_at_every_point(job, step: int = 1) -> Iterator[int]:
    """Run ``job`` in child processes that are killed at their first, second, ... storage call, until one of
    them lives to its end.

    Each goes on with what the one before left. With a ``step`` at every so many calls only.
    """
    number = 1 - step
    while True:
        number += step
        child = os.fork()
        if child == 0:
            try:
                watch_all(
                    lambda _, hook=at_time(number, lambda: os.kill(os.getpid(), signal.SIGKILL)): hook()
                )
                job()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, (
            "it dies of the kill and of nothing else"
        )
        yield number
        if not os.WIFSIGNALED(status):
            return


def damage_a_chunk(shard: Path) -> None:
    """The first chunk's Blosc header, wherever a worker has put it, no longer fits: whoever decodes it must
    notice. As a bad disk does it: times stay. A second time heals it."""
    (array,) = open_store(shard).arrays
    with SealedShard.open(shard, array.index) as file:
        first = int(file.entries["offset"][0])
    data, status = bytearray(shard.read_bytes()), shard.stat()
    data[first] ^= 0xFF
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
