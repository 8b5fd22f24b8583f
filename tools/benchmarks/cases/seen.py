"""The part ``seen``: how long after ``append`` a frame is readable by another process, which follows the
acquisition, and what the follower costs its writer.

A camera writes frames of 2048 x 2048 at 50 a second in its own process, with inner chunks one and sixteen
frames deep, with a follower and without one, in turn.
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

import shardwright as sw
from benchmarks.processes import ANSWER_LIMIT_S, TOOLS, Usage, say
from benchmarks.testbed import Places, delete_stores, testbed

from . import Asked, Case, least_and_most, percentiles, saved

RATE_HZ = 50.0
ROUNDS = 3
CASES = {
    "1 deep": Case(frames=320, chunk=(1, 512, 512), shard=(32, 2048, 2048)),
    "16 deep": Case(frames=320, chunk=(16, 512, 512), shard=(32, 2048, 2048)),
}
ASKED = (
    Asked("seen_p50_ms", "append to readable by another process, 50 frames a second: median, ms", 50.0),
    Asked("writer_cpu", "CPU of the writer with a follower, of that without: not measurable", 1.05),
)
COLUMNS = {
    "p50 ms": "seen_p50_ms",
    "least": "seen_p50_ms_spread.least",
    "most": "seen_p50_ms_spread.most",
    "p99 ms": "seen_ms.p99",
    "writer's CPU": "writer_cpu",
    "follower's cores": "follower_cores",
}


def measure(places: Places, quick: bool) -> dict[str, Any]:
    """One row for each depth of chunks."""
    rounds, rows = 1 if quick else ROUNDS, []
    for name, case in CASES.items():
        if quick:
            case = Case(frames=64, chunk=case.chunk, shard=case.shard)  # noqa: PLW2901
        with saved(case.draw()) as frames:
            rows.append(_row(name, case, frames, places, rounds))
        say(f"{name}: {rows[-1]['seen_p50_ms']:.0f} ms")
    return {"settings": {"rate_hz": RATE_HZ, "rounds": rounds}, "rows": rows}


def _row(name: str, case: Case, frames: Path, places: Places, rounds: int) -> dict[str, Any]:
    seen, cpu_of_alone, cores = [], [], []
    for _ in range(rounds):
        alone, _, _ = _one(case, frames, places, follow=False)
        cpu_s, ms, follower_cores = _one(case, frames, places, follow=True)
        seen.append(ms)
        cores.append(follower_cores)
        cpu_of_alone.append(cpu_s / alone)
    medians = [float(np.median(ms)) for ms in seen]
    return {
        "name": name,
        "headline": True,
        "seen_p50_ms": median(medians),
        "seen_p50_ms_spread": least_and_most(medians),
        "seen_ms": percentiles(np.concatenate(seen)),
        "writer_cpu": median(cpu_of_alone),
        "writer_cpu_spread": least_and_most(cpu_of_alone),
        "follower_cores": median(cores),
    }


def _one(case: Case, frames: Path, places: Places, *, follow: bool) -> tuple[float, np.ndarray, float]:
    """Returns the writer's CPU seconds, milliseconds from each append until the follower had its pixels, and
    the processors that the follower took."""
    times, when = places.memory / "seen-times.npy", places.memory / "seen-when.npy"
    with testbed(places.disk / "seen") as here:
        delete_stores(here.folder)
        camera = here.camera(frames, case)
        path = here.folder / "seen.ome.zarr"
        camera.open(path, case.spec())
        command = [sys.executable, "-m", "benchmarks.cases.seen", str(path), str(case.frames), str(when)]
        follower = subprocess.Popen(command, cwd=TOOLS, stdout=subprocess.PIPE) if follow else None
        if follower is not None:
            assert follower.stdout is not None
            follower.stdout.read(1)  # it looks from now on
        before = Usage.of([camera.pid]).cpu_s
        sent = camera.send(case.frames, RATE_HZ, save=str(times))
        camera.ask("flush")
        cpu_s = Usage.of([camera.pid]).cpu_s - before
        if follower is not None:
            follower.communicate(timeout=ANSWER_LIMIT_S)
        camera.close_acquisition()
    took_ns, after_due_ns = taken(times)
    if follower is None:
        return cpu_s, np.zeros(0), 0.0
    due_ns, had = sent["begin_ns"] + np.arange(case.frames) * 1e9 / RATE_HZ, taken(when)
    return cpu_s, (had[:-1] - (due_ns + after_due_ns - took_ns)) / 1e6, had[-1] / 1e9


def taken(file: Path) -> np.ndarray:
    found: np.ndarray = np.load(file)
    file.unlink()
    return found


def follow(path: str, frames: int, to: str) -> None:
    """Saves the monotonic times (ns) at which it had the pixels of each frame, and the CPU it took for each
    second, times 1e9."""
    when = np.zeros(frames + 1, np.float64)
    os.write(1, b".")
    begin, cpu = time.monotonic(), time.process_time()
    for i, frame in enumerate(sw.follow(path, timeout_ms=60_000)):
        when[frame.index[0]] = time.monotonic_ns()
        if i == frames - 1:
            break
    when[-1] = 1e9 * (time.process_time() - cpu) / (time.monotonic() - begin)
    np.save(to, when)


if __name__ == "__main__":
    follow(sys.argv[1], int(sys.argv[2]), sys.argv[3])
