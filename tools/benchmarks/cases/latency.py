"""The part ``latency``: how long ``append`` takes at a share of the sustainable rate, and at the edges of
shards.

For each way (in process, through the daemon) on the disk and without one:

    sustainable rate   the median of three bursts of three shards, from the first append until everything is
                       sealed and durable
    then               a camera at ``SHARE`` of it; every append is timed, a shard of warm-up left out
    latency            of the call; ``done_after_due`` counts from the moment the frame was due, so that
                       waiting behind a slow one shows as well
    around a shard     the largest of the ``AROUND`` appends from a shard's last frame on, each against the
                       median of the run; ``elsewhere``: the same around the edges of slabs that end no shard
    copy alone         the floor of each way: the same copies at its rate without our code, into memory that
                       has been used before, beside as many busy processes as there are processors, which is
                       the cost of sharing these
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.processes import say
from benchmarks.testbed import Camera, Places, delete_stores, testbed

from . import Asked, Case, percentiles, saved

SHARE = 0.8
BURST_SHARDS = 3
BURSTS = 3
SHARDS = 24
AROUND = 8
# memory and processor, as encoders are
BUSY = "import numpy as np; a = np.ones(1 << 22); b = a.copy()\nwhile True: np.copyto(b, a)"
BUSY_AFTER_S = 1.0
WAYS = (("in-process", "disk"), ("daemon-shm", "disk"), ("in-process", "no-disk"), ("daemon-shm", "no-disk"))
# Edges of the histogram's bins: half a power of two each, from 0.06 ms to 2 s.
BIN_EDGES_MS = tuple(round(0.0625 * 2 ** (i / 2), 4) for i in range(31))
ASKED = (
    Asked("p99_9_of_copy", "append at 80 % of the sustainable rate: p99.9 at most 1.2x that of a copy", 1.2),
    Asked("worst_rollover_of_median", "no append around a shard's change above 2x the median", 2.0),
)
COLUMNS = {
    "frames/s": "rate_hz",
    "period ms": "period_ms",
    **{name: f"latency_ms.{name}" for name in ("p50", "p99", "p99_9", "max")},
    "p99.9 after due": "done_after_due_ms.p99_9",
    "worst at a shard, x p50": "worst_rollover_of_median",
    "at a slab": "worst_elsewhere_of_median",
}


def measure(
    places: Places, quick: bool, *, share: float = SHARE, shards: int | None = None, case: Case | None = None
) -> dict[str, Any]:
    """One row for each way with its floor, and the first floor whole. ``case``: another one than the
    record's, for tests."""
    case = case or Case()
    shards = shards or (4 if quick else SHARDS)
    frames = case.draw()
    with saved(frames) as file:
        rows = [_one_way(target, place, places, file, case, share, shards) for target, place in WAYS]
    floors = [_copy_alone(frames, row, shards, case) for row in rows]
    for row, floor in zip(rows, floors, strict=True):
        row["copy_p99_9_ms"] = floor["copy_p99_9_ms"] = floor["latency_ms"]["p99_9"]
        row["p99_9_of_copy"] = row["latency_ms"]["p99_9"] / row["copy_p99_9_ms"]
    settings = {"share": share, "shards": shards, "frames_around": AROUND, "bin_edges_ms": list(BIN_EDGES_MS)}
    return {"settings": settings, "rows": rows, "floor": floors[0]}


def _one_way(
    target: str, place: str, places: Places, frames: Path, case: Case, share: float, shards: int
) -> dict[str, Any]:
    times_file = places.memory / "latency-times.npy"
    with testbed(places.folder(place) / "latency") as here:
        daemon = here.daemon() if target == "daemon-shm" else None
        camera = here.camera(frames, case, daemon)
        root = here.folder if daemon is None else here.folder / "daemon"
        sustainable_hz = _sustainable_hz(camera, case, root)
        rate_hz = share * sustainable_hz
        say(f"{target} {place}: {sustainable_hz:.1f} frames/s sustainable, a camera at {rate_hz:.1f}")
        camera.open(root / "paced.ome.zarr", case.spec())
        camera.send(case.shard[0], rate_hz)
        camera.send(shards * case.shard[0], rate_hz, save=str(times_file))
        receipt = camera.close_acquisition()["receipt"]
    times_ms = np.load(times_file) / 1e6
    times_file.unlink()
    assert receipt["frames_durable"] == (shards + 1) * case.shard[0], "every frame is durable"
    return row(f"{target} {place}", place == "disk", times_ms, rate_hz, sustainable_hz, case)


def _sustainable_hz(camera: Camera, case: Case, root: Path) -> float:
    rates = []
    for burst in range(BURSTS + 1):
        camera.open(root / "burst.ome.zarr", case.spec())
        begin_ns = camera.send(BURST_SHARDS * case.shard[0])["begin_ns"]
        end_ns = camera.close_acquisition()["end_ns"]
        if burst:  # the first one warms up
            rates.append(BURST_SHARDS * case.shard[0] / (end_ns - begin_ns) * 1e9)
        delete_stores(root)
    return float(median(rates))


def _copy_alone(frames: np.ndarray, paced: dict[str, Any], shards: int, case: Case) -> dict[str, Any]:
    """``paced``: the row whose rate it has."""
    processors = len(os.sched_getaffinity(0))
    ring = np.full((3 * case.distinct, *case.shape), 1, frames.dtype)  # touched: a ring of ours is
    times_ns = np.zeros((2, shards * case.shard[0]))
    period_ns = 1e9 / paced["rate_hz"]
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processors)]
    try:
        time.sleep(BUSY_AFTER_S)
        begin_ns = time.monotonic_ns()
        for i in range(times_ns.shape[1]):
            due_ns = begin_ns + i * period_ns
            time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            before_ns = time.monotonic_ns()
            ring[i % len(ring)] = frames[i % len(frames)]
            times_ns[:, i] = time.monotonic_ns() - before_ns, time.monotonic_ns() - due_ns
    finally:
        for process in busy:
            process.kill()
            process.wait()
    name = f"copy alone, {processors} busy"
    return row(name, False, times_ns / 1e6, paced["rate_hz"], paced["sustainable_hz"], case)


def row(
    name: str, headline: bool, times_ms: np.ndarray, rate_hz: float, sustainable_hz: float, case: Case
) -> dict[str, Any]:
    """``times_ms``: float[2, frames], the call and its end after the frame was due; the first frame is the
    first of a shard. Raises ``ValueError`` for too few frames to see the edge of a shard."""
    calls, after_due = times_ms
    if len(calls) < case.shard[0] + AROUND:
        raise ValueError(
            f"too few appends to see the edge of a shard: expected {case.shard[0] + AROUND} or "
            f"more, got {len(calls)}"
        )
    period_ms = 1000 / rate_hz
    latency = percentiles(calls)
    around, elsewhere = (edges / latency["p50"] for edges in edge_maxima(calls, case.shard[0], case.chunk[0]))
    return {
        "name": name,
        "headline": headline,
        "sustainable_hz": sustainable_hz,
        "rate_hz": rate_hz,
        "period_ms": period_ms,
        "frames": len(calls),
        "latency_ms": latency,
        "done_after_due_ms": percentiles(after_due),
        "histogram": np.histogram(calls, (0.0, *BIN_EDGES_MS, np.inf))[0].tolist(),
        "p99_9_of_period": latency["p99_9"] / period_ms,
        "worst_rollover_of_median": float(around.max()),
        "worst_rollover_of_median_spread": {"least": float(around.min()), "most": float(around.max())},
        "median_rollover_of_median": float(np.median(around)),
        "worst_elsewhere_of_median": float(elsewhere.max()),
        "median_elsewhere_of_median": float(np.median(elsewhere)),
    }


def edge_maxima(calls_ms: np.ndarray, shard_frames: int, slab_frames: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest of the appends that begin with the last frame of each shard, and the same of each other
    slab."""
    around: list[float] = []
    elsewhere: list[float] = []
    for edge in range(slab_frames, len(calls_ms) - AROUND, slab_frames):
        largest = calls_ms[edge - 1 : edge - 1 + AROUND].max()
        (elsewhere if edge % shard_frames else around).append(largest)
    return np.array(around), np.array(elsewhere)
