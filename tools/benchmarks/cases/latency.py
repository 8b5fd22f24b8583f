"""The part ``latency``: how long ``append`` takes at a share of the sustainable rate, and at the edges of
shards; tools/bench latency.

For each way (in process, through the daemon) on the disk and without one:

    sustainable rate   the median of three bursts of three shards, from the first append until everything is
                       sealed and durable
    then               a camera at ``SHARE`` of it; every append is timed, a shard of warm-up left out
    latency            of the call; ``done_after_due`` counts from the moment the frame was due, so that
                       waiting behind a slow one shows as well
    copy alone         the same copies at the same rate with nothing of ours, beside as many busy processes as
                       there are processors: what the
                       system's sharing out of processors costs by itself
    around a shard     the largest of the ``AROUND`` appends from a shard's last frame on, each against the
    median of the run; ``elsewhere``: the same
                       around the other slabs' edges, where no shard changes: what of it is not the shard's
                       doing
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.testbed import Camera, Places, delete_stores, percentiles, rig, saved

from . import Case

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

Say = Callable[[str], None]


def measure(
    places: Places,
    quick: bool,
    say: Say,
    *,
    share: float = SHARE,
    shards: int | None = None,
    case: Case | None = None,
) -> dict[str, Any]:
    """One row for each way, and the floor. ``case``: another one than the record's, for tests."""
    case = case or Case()
    shards = shards or (4 if quick else SHARDS)
    rows = []
    with saved(case.draw()) as frames:
        for target, place in WAYS:
            rows.append(_one_way(target, place, places, frames, case, share, shards, say))
            say(f"{rows[-1]['name']}: {rows[-1]['says']['p99_9_of_period']}")
        floor = _copy_alone(
            np.fromfile(frames, np.uint16).reshape(case.distinct, *case.shape), rows[0], shards, case
        )
        say(f"{floor['name']}: {floor['says']['p99_9_of_period']}")
    for one in rows:
        one["floor"] = {key: floor[key] for key in ("name", "p99_9_of_period", "worst_rollover_of_median")}
    settings = {"share": share, "shards": shards, "frames_around": AROUND, "bin_edges_ms": list(BIN_EDGES_MS)}
    return {"settings": settings, "rows": rows, "floor": floor}


def _one_way(
    target: str, place: str, places: Places, frames: Path, case: Case, share: float, shards: int, say: Say
) -> dict[str, Any]:
    with rig(places.folder(place) / "latency") as here:
        daemon = here.daemon() if target == "daemon-shm" else None
        camera = here.camera(frames, (case.distinct, *case.shape), daemon)
        root = here.folder if daemon is None else here.folder / "daemon"
        sustainable_hz = _sustainable_hz(camera, case, root)
        rate_hz = share * sustainable_hz
        say(f"{target} {place}: {sustainable_hz:.1f} frames/s sustainable, a camera at {rate_hz:.1f}")
        times_file = places.memory / "latency-times.npy"
        camera.open(root / "paced.ome.zarr", case.spec())
        camera.ask(do="send", frames=case.shard[0], rate_hz=rate_hz, save=None)
        camera.ask(do="send", frames=shards * case.shard[0], rate_hz=rate_hz, save=str(times_file))
        receipt = camera.close_acquisition()["receipt"]
    times_ms = np.load(times_file) / 1e6
    times_file.unlink()
    assert receipt["frames_durable"] == (shards + 1) * case.shard[0], "every frame is durable"
    return row(f"{target} {place}", place == "disk", times_ms, rate_hz, sustainable_hz, case)


def _copy_alone(frames: np.ndarray, paced: dict[str, Any], shards: int, case: Case) -> dict[str, Any]:
    """``paced``: the row whose rate it has."""
    processors = len(os.sched_getaffinity(0))
    ring = np.zeros((3 * case.distinct, *case.shape), frames.dtype)
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


def _sustainable_hz(camera: Camera, case: Case, root: Path) -> float:
    rates = []
    for burst in range(BURSTS + 1):
        camera.open(root / "burst.ome.zarr", case.spec())
        begin_ns = camera.ask(do="send", frames=BURST_SHARDS * case.shard[0], rate_hz=None)["begin_ns"]
        end_ns = camera.close_acquisition()["end_ns"]
        if burst:  # the first one warms up
            rates.append(BURST_SHARDS * case.shard[0] / (end_ns - begin_ns) * 1e9)
        delete_stores(root)
    return float(median(rates))


def row(
    name: str, headline: bool, times_ms: np.ndarray, rate_hz: float, sustainable_hz: float, case: Case
) -> dict[str, Any]:
    """``times_ms``: float[2, frames], the call and its end after the frame was due; the first frame is the
    first of a shard."""
    calls, after_due = times_ms
    if len(calls) < case.shard[0] + AROUND:
        raise ValueError(
            f"too few appends to see the edge of a shard: expected {case.shard[0] + AROUND} or "
            f"more, got {len(calls)}"
        )
    period_ms = 1000 / rate_hz
    latency = percentiles(calls)
    around, elsewhere = edge_maxima(calls, case.shard[0], case.chunk[0])
    around_of_median, elsewhere_of_median = around / latency["p50"], elsewhere / latency["p50"]
    p99_9, worst = latency["p99_9"] / period_ms, float(around_of_median.max())
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
        "p99_9_of_period": p99_9,
        "worst_rollover_of_median": worst,
        "worst_rollover_of_median_spread": {"least": float(around_of_median.min()), "most": worst},
        "median_rollover_of_median": float(np.median(around_of_median)),
        "worst_elsewhere_of_median": float(elsewhere_of_median.max()),
        "median_elsewhere_of_median": float(np.median(elsewhere_of_median)),
        "says": {
            "p99_9_of_period": (
                f"p99.9 {latency['p99_9']:.2f} ms of a period of {period_ms:.2f} ms; p50 "
                f"{latency['p50']:.2f} ms, max {latency['max']:.2f} ms"
            ),
            "worst_rollover_of_median": (
                f"worst {worst:.1f}x the median, in the middle {np.median(around_of_median):.1f}x; at slabs "
                f"that end no shard "
                f"{elsewhere_of_median.max():.1f}x and {np.median(elsewhere_of_median):.1f}x"
            ),
        },
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


def text(part: dict[str, Any]) -> str:
    """A table of the ways, and the histograms as bars."""
    head = f"{'':<22}{'frames/s':>10}{'period':>9}{'p50':>9}{'p99':>9}{'p99.9':>9}{'max':>9}{'p99.9 after due':>17}{'shard':>8}{'slab':>8}"  # noqa: E501
    lines = [
        (
            f"append at {part['settings']['share']:.0%} of the sustainable rate, milliseconds; largest around a "  # noqa: E501
            f"shard's and a slab's edge: x the median"
        ),
        "",
    ]
    lines += [head, "-" * len(head)]
    for one in (*part["rows"], part["floor"]):
        latency = one["latency_ms"]
        lines.append(
            f"{one['name']:<22}{one['rate_hz']:>10.1f}{one['period_ms']:>9.2f}{latency['p50']:>9.2f}{latency['p99']:>9.2f}{latency['p99_9']:>9.2f}"
            f"{latency['max']:>9.2f}{one['done_after_due_ms']['p99_9']:>17.2f}{one['worst_rollover_of_median']:>8.1f}{one['worst_elsewhere_of_median']:>8.1f}"
        )
    for one in part["rows"]:
        lines += [
            "",
            f"{one['name']}: appends by how long they took",
            *_bars(one["histogram"], part["settings"]["bin_edges_ms"]),
        ]
    return "\n".join(lines)


def _bars(counts: list[int], edges_ms: list[float]) -> list[str]:
    names = [f"up to {edge:.2f} ms" for edge in edges_ms] + [f"more than {edges_ms[-1]:.0f} ms"]
    most = max(counts)
    return [
        f"{name:>20} {count:>7} {'#' * max(1, round(40 * count / most))}"
        for name, count in zip(names, counts, strict=True)
        if count
    ]
