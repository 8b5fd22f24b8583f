"""tools/bench overload: a camera that is faster than the codec, under each overload policy that keeps its frames.

    sustainable    frames a second that the writer takes without end, measured first with a camera that always has the next frame
    block          a camera at --times that rate: it is made to wait, and a camera that cannot wait loses what it did not hand over
    degrade        the same camera: chunks are written faster, then uncompressed, so that it need not wait

In process, with a codec that keeps the processors busier than the disk. Frames of a pool in memory, so that making them costs nothing. Some frames of
each store are read back by zarr-python and compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import zarr

import shardwright as sw
from shardwright.testing.photons import POOL_FRAMES as EXPOSURES
from shardwright.testing.photons import PhotonFrames

SHAPE = (2048, 2048)
POOL_FRAMES = 16  # no exposure twice in a chunk: zstd would find it
MEASURE_S = 12.0  # of which the first third is warm-up
Frames = list[npt.NDArray[np.uint16]]
Policy = Literal["block", "degrade"]


@dataclass(frozen=True)
class Run:
    """``due``: frames that the camera had in its time; ``taken``: those that it could hand over. ``most_behind``: how many it was late at most."""

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


def array_spec(codec: sw.Blosc | sw.Zstd) -> sw.ArraySpec:
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=16, shard_size_chunks=4),
            sw.Dimension(name="y", count=SHAPE[0], chunk_size=256, shard_size_chunks=8),
            sw.Dimension(name="x", count=SHAPE[1], chunk_size=256, shard_size_chunks=8),
        ],
        codec=codec,
    )


def sustainable_hz(spec: sw.ArraySpec, frames: Frames, folder: Path, seconds: float, threads: int | None) -> float:
    """Frames stored a second once the ring is full, by a camera that never waits for itself."""
    stored_at: list[tuple[float, int]] = []
    with sw.create(folder, spec, threads=threads, overload="block") as writer:
        end_s, i = time.monotonic() + seconds, 0
        while (now_s := time.monotonic()) < end_s:
            writer.append(frames[i % POOL_FRAMES])
            i += 1
            if now_s > end_s - seconds * 2 / 3:
                stored_at.append((time.monotonic(), i))
    shutil.rmtree(folder)
    (first_s, first), (last_s, last) = stored_at[0], stored_at[-1]
    return (last - first) / (last_s - first_s)


def run(policy: Policy, spec: sw.ArraySpec, frames: Frames, folder: Path, hz: float, seconds: float, threads: int | None) -> Run:
    """A camera whose frame i is there at i / hz, and that hands it over as soon as it may."""
    most_behind, i, begin_cpu_s = 0, 0, time.process_time()
    with sw.create(folder, spec, threads=threads, overload=policy) as writer:
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


def report(runs: list[Run], hz: float, times: float) -> str:
    lines = [
        f"sustainable {hz:.1f} frames a second ({hz * SHAPE[0] * SHAPE[1] * 2 / 1e9:.2f} GB/s); the camera sends {times:g} times that",
        "",
        "| policy | frames due | taken | of those due | at most behind | lost | faster | uncompressed | raw GB | written GB | ratio | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.policy} | {r.due} | {r.taken} | {r.taken / r.due:.1%} | {r.most_behind} | {r.lost} | {r.faster} | {r.uncompressed} "
        f"| {r.raw_bytes / 1e9:.2f} | {r.written_bytes / 1e9:.2f} | {r.ratio:.2f} | {r.cpu_s:.1f} |"
        for r in runs
    ]
    return "\n".join(lines)


def main(arguments: list[str], folder: Path) -> int:
    """Exits with 1 when a frame that was taken is not in its store."""
    parser = argparse.ArgumentParser(prog="tools/bench overload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the camera runs under each policy")
    parser.add_argument("--times", type=float, default=1.5, help="the camera's rate, in sustainable rates")
    parser.add_argument("--codec", choices=["zstd", "blosc-zstd"], default="zstd")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--threads", type=int, help="compressing threads; unless given, as many as the writer chooses")
    parser.add_argument("--folder", type=Path, default=folder, help="where to write; stores are deleted after each run")
    parser.add_argument("--json", action="store_true", help="print the runs as JSON")
    options = parser.parse_args(arguments)
    codec = sw.Zstd(level=options.level) if options.codec == "zstd" else sw.Blosc(cname="zstd", clevel=options.level)
    spec, scenes = array_spec(codec), POOL_FRAMES // EXPOSURES
    frames = [source.frame(i) for source in (PhotonFrames(SHAPE, seed=seed) for seed in range(scenes)) for i in range(EXPOSURES)]
    options.folder.mkdir(parents=True, exist_ok=True)
    store = options.folder / "overload.ome.zarr"
    shutil.rmtree(store, ignore_errors=True)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    say("measuring the sustainable rate")
    hz = sustainable_hz(spec, frames, store, min(MEASURE_S, options.seconds), options.threads)
    needed, free = int(1.1 * options.times * hz * options.seconds * spec.frame_bytes), shutil.disk_usage(options.folder).free
    if needed > free:
        parser.error(f"--folder has {free / 1e9:.1f} GB free; a run of {options.seconds:g} s may take {needed / 1e9:.1f}. Give fewer --seconds")
    runs = []
    policies: tuple[Policy, ...] = ("block", "degrade")
    for policy in policies:
        say(f"{policy}: {options.times * hz:.1f} frames a second for {options.seconds:g} s")
        runs.append(run(policy, spec, frames, store, options.times * hz, options.seconds, options.threads))
    if options.json:
        print(json.dumps({"sustainable_hz": hz, "times": options.times, "runs": [{**asdict(each), "ratio": each.ratio} for each in runs]}))
    else:
        print(report(runs, hz, options.times))
    return 1 if any(each.lost or each.stored != each.taken for each in runs) else 0
