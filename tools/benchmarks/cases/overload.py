"""The part ``overload``: a camera that is faster than the codec, under each policy that keeps its frames;
tools/bench overload.

    sustainable    frames a second that the writer takes without end, measured first with a camera that always
                   has the next frame
    block          a camera at ``TIMES`` that rate: it is made to wait, and a camera that cannot wait loses
                   what it did not hand over
    degrade        the same camera: chunks are written faster, then uncompressed, so that it need not wait

In process, with zstd, which keeps the processors busier than the disk. Frames of a pool in memory, so that
making them costs nothing. Some frames of each store are read back by zarr-python and compared.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr

import shardwright as sw
from benchmarks.testbed import Places
from shardwright.simulate.photons import POOL_FRAMES as EXPOSURES
from shardwright.simulate.photons import PhotonFrames

SHAPE = (2048, 2048)
POOL_FRAMES = 16  # no exposure twice in a chunk: zstd would find it
MEASURE_S = 12.0  # of which the first third is warm-up
SECONDS = 20.0  # of the camera, under each policy
TIMES = 1.5  # the sustainable rate
CODEC = sw.Zstd(level=3)
Frames = list[npt.NDArray[np.uint16]]
Policy = Literal["block", "degrade"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """``due``: frames that the camera had in its time; ``taken``: those that it could hand over.
    ``most_behind``: how many it was late at most."""

    policy: Policy
    due: int
    taken: int
    most_behind: int
    seconds: float
    cpu_s: float
    stored: int
    lost: int
    faster: int
    uncompressed: int
    raw_bytes: int
    written_bytes: int

    @property
    def ratio(self) -> float:
        return self.raw_bytes / self.written_bytes if self.written_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def measure(
    places: Places, quick: bool, say: Say, *, seconds: float | None = None, times: float = TIMES
) -> dict[str, Any]:
    """One row: the camera under ``degrade``, and beside it under ``block``. Raises ``OSError`` without room
    for what it may write."""
    seconds = seconds or (2.0 if quick else SECONDS)
    spec, store = array_spec(), places.disk / "overload.ome.zarr"
    sources = [PhotonFrames(SHAPE, seed=seed) for seed in range(POOL_FRAMES // EXPOSURES)]
    frames = [source.frame(i) for source in sources for i in range(EXPOSURES)]
    hz = sustainable_hz(spec, frames, store, min(MEASURE_S, seconds))
    needed, free = int(1.1 * times * hz * seconds * spec.frame_bytes), shutil.disk_usage(places.disk).free
    if needed > free:
        raise OSError(
            f"{places.disk} has {free / 1e9:.1f} GB free; a run of {seconds:g} s may take {needed / 1e9:.1f}"
        )
    runs: dict[Policy, Run] = {}
    policies: tuple[Policy, ...] = ("block", "degrade")
    for policy in policies:
        say(f"{policy}: {times * hz:.1f} frames a second for {seconds:g} s")
        runs[policy] = run(policy, spec, frames, store, times * hz, seconds)
    settings = {"seconds": seconds, "times": times, "codec": CODEC.model_dump()}
    return {"settings": settings, "rows": [row(runs["degrade"], runs["block"], hz)]}


def row(degrade: Run, block: Run, hz: float) -> dict[str, Any]:
    taken, of_block = degrade.taken / degrade.due, block.taken / block.due
    said = (
        f"{taken:.1%} taken, {degrade.faster} faster and {degrade.uncompressed} uncompressed; with block "
        f"{of_block:.1%}"
    )
    lost = sum(one.lost + one.taken - one.stored for one in (block, degrade))
    return {
        "name": "degrade disk",
        "headline": True,
        "sustainable_hz": hz,
        "taken_of_due": taken,
        "frames_lost": lost,
        "runs": [block.to_dict(), degrade.to_dict()],
        "says": {
            "taken_of_due": said,
            "frames_lost": f"{lost} of {block.taken + degrade.taken}, block's and degrade's",
        },
    }


def text(part: dict[str, Any]) -> str:
    (one,), times = part["rows"], part["settings"]["times"]
    rate = one["sustainable_hz"] * SHAPE[0] * SHAPE[1] * 2 / 1e9
    lines = [
        (
            f"sustainable {one['sustainable_hz']:.1f} frames a second ({rate:.2f} GB/s); the camera sends "
            f"{times:g} times that"
        ),
        "",
        (
            "| policy | frames due | taken | of those due | at most behind | lost | faster | uncompressed | raw "  # noqa: E501
            "GB | written GB | ratio | CPU s |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['policy']} | {r['due']} | {r['taken']} | {r['taken'] / r['due']:.1%} | {r['most_behind']} | "
        f"{r['lost']} | {r['faster']} "
        f"| {r['uncompressed']} | {r['raw_bytes'] / 1e9:.2f} | {r['written_bytes'] / 1e9:.2f} | "
        f"{r['ratio']:.2f} | {r['cpu_s']:.1f} |"
        for r in one["runs"]
    ]
    return "\n".join(lines)


def array_spec() -> sw.ArraySpec:
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=16, shard_size_chunks=4),
            sw.Dimension(name="y", count=SHAPE[0], chunk_size=256, shard_size_chunks=8),
            sw.Dimension(name="x", count=SHAPE[1], chunk_size=256, shard_size_chunks=8),
        ],
        codec=CODEC,
    )


def sustainable_hz(spec: sw.ArraySpec, frames: Frames, folder: Path, seconds: float) -> float:
    """Frames stored a second once the ring is full, by a camera that never waits for itself."""
    stored_at: list[tuple[float, int]] = []
    with sw.create(folder, spec, overload="block") as writer:
        end_s, i = time.monotonic() + seconds, 0
        while (now_s := time.monotonic()) < end_s:
            writer.append(frames[i % POOL_FRAMES])
            i += 1
            if now_s > end_s - seconds * 2 / 3:
                stored_at.append((time.monotonic(), i))
    shutil.rmtree(folder)
    (first_s, first), (last_s, last) = stored_at[0], stored_at[-1]
    return (last - first) / (last_s - first_s)


def run(policy: Policy, spec: sw.ArraySpec, frames: Frames, folder: Path, hz: float, seconds: float) -> Run:
    """A camera whose frame i is there at i / hz, and that hands it over as soon as it may."""
    most_behind, i, begin_cpu_s = 0, 0, time.process_time()
    with sw.create(folder, spec, overload=policy) as writer:
        begin_s = time.monotonic()
        while (now_s := time.monotonic() - begin_s) < seconds:
            if now_s < i / hz:
                time.sleep(i / hz - now_s)
                continue
            most_behind = max(most_behind, int(now_s * hz) - i)
            writer.append(frames[i % POOL_FRAMES])
            i += 1
        took_s = time.monotonic() - begin_s
    receipt, cpu_s = writer.receipt, time.process_time() - begin_cpu_s
    check(folder, frames, i)
    shutil.rmtree(folder)
    os.sync()  # what one run leaves to be written must not slow the next
    return Run(
        policy=policy,
        due=int(took_s * hz),
        taken=i,
        most_behind=most_behind,
        seconds=took_s,
        cpu_s=cpu_s,
        stored=receipt.frames_stored,
        lost=receipt.frames_lost + receipt.frames_missing + receipt.frames_dropped,
        faster=receipt.frames_faster,
        uncompressed=receipt.frames_uncompressed,
        raw_bytes=receipt.bytes_raw,
        written_bytes=receipt.bytes_stored,
    )


def check(store: Path, frames: Frames, count: int) -> None:
    """A frame in each tenth of the time, by zarr-python. Raises ``AssertionError``."""
    array = zarr.open_array(store / "0", mode="r")
    assert array.shape[0] == count, f"{array.shape[0]} frames in the array instead of {count}"
    for i in sorted({min(count - 1, tenth * count // 10) for tenth in range(11)}):
        assert np.array_equal(array[i], frames[i % POOL_FRAMES]), f"frame {i} reads back as another"
