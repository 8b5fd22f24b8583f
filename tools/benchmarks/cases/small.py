"""The part ``small``: a camera of 128 x 128 uint16 at 20,000 frames a second through the daemon, for half a
minute; tools/bench small.

The stream is the one of configs/small-fast.yaml. The camera hands over every millisecond what is due, and
waits where the daemon makes it wait. Held means: no frame lost or dropped, all of them durable, and the
sending took no longer than the frames were due in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.testbed import Places, Usage, percentiles, rig, saved
from shardwright import ArraySpec

from . import Case

RATE_HZ = 20_000.0
SECONDS = 30.0
WARM_UP_S = 2.0
DISTINCT = 1024
CONFIG = Path(__file__).resolve().parents[3] / "configs" / "small-fast.yaml"
PLACES = ("disk", "no-disk")

Say = Callable[[str], None]


def measure(
    places: Places, quick: bool, say: Say, *, rate_hz: float = RATE_HZ, seconds: float | None = None
) -> dict[str, Any]:
    """One row for each place; without a disk a third of the time, since what is written lies in memory."""
    seconds = seconds or (2.0 if quick else SECONDS)
    stream = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["streams"][0]
    spec = ArraySpec.model_validate(stream["array"])
    rows = []
    frames = Case(shape=spec.frame_shape, distinct=DISTINCT, frames=64, shard=(64, 1, 1)).draw()
    with saved(frames) as file:
        for place in PLACES:
            count = int(rate_hz * (seconds if place == "disk" else seconds / 3))
            rows.append(_one(place, places, file, spec, stream, rate_hz, count))
            say(f"{place}: {rows[-1]['says']['rate_of_asked']}")
    settings = {
        "rate_hz": rate_hz,
        "seconds": seconds,
        "shape": list(spec.frame_shape),
        "config": CONFIG.name,
    }
    return {"settings": settings, "rows": rows}


def _one(
    place: str,
    places: Places,
    frames: Path,
    spec: ArraySpec,
    stream: dict[str, Any],
    rate_hz: float,
    count: int,
) -> dict[str, Any]:
    times_file = places.memory / "small-times.npy"
    with rig(places.folder(place) / "small") as here:
        daemon = here.daemon([stream])
        camera = here.camera(frames, (DISTINCT, *spec.frame_shape), daemon)
        camera.open(Path("warm-up"), spec, stream=stream["name"])
        camera.ask(do="send", frames=int(WARM_UP_S * rate_hz), rate_hz=rate_hz, save=None)
        camera.close_acquisition()
        camera.open(Path("small"), spec, stream=stream["name"])
        before = [Usage.of([pid]) for pid in (daemon.pid, camera.pid)]
        sent = camera.ask(do="send", frames=count, rate_hz=rate_hz, save=str(times_file))
        after = [Usage.of([pid]) for pid in (daemon.pid, camera.pid)]
        receipt = camera.close_acquisition()["receipt"]
    after_due_ms = np.load(times_file)[1] / 1e6
    times_file.unlink()
    seconds = (sent["end_ns"] - sent["begin_ns"]) / 1e9
    cores = [(b.cpu_s - a.cpu_s) / seconds for a, b in zip(before, after, strict=True)]
    return row(place, receipt, count, seconds, rate_hz, after_due_ms, cores)


def row(
    place: str,
    receipt: dict[str, Any],
    count: int,
    seconds: float,
    rate_hz: float,
    after_due_ms: np.ndarray,
    cores: list[float],
) -> dict[str, Any]:
    """``rate_of_asked``: 1 where sending ended when its last frame was due."""
    lost = count - receipt["frames_durable"]
    rate_of_asked = min(1.0, count / rate_hz / seconds)
    late = percentiles(after_due_ms)
    return {
        "name": place,
        "headline": place == "disk",
        "frames": count,
        "rate_of_asked": rate_of_asked,
        "frames_per_s": count / seconds,
        "frames_lost": lost,
        "receipt": {
            name: value for name, value in receipt.items() if name.startswith(("frames", "bytes", "shards"))
        },
        "done_after_due_ms": late,
        "daemon_cores": cores[0],
        "camera_cores": cores[1],
        "says": {
            "rate_of_asked": (
                f"{count / seconds:,.0f} frames/s of {rate_hz:,.0f}, at most {late['max']:.0f} ms behind; "
                f"daemon {cores[0]:.2f} and camera {cores[1]:.2f} cores"
            ),
            "frames_lost": f"{lost:,} of {count:,} frames",
        },
    }


def text(part: dict[str, Any]) -> str:
    rows, columns = part["settings"]["shape"]
    head = f"{'':<10}{'frames':>10}{'frames/s':>10}{'lost':>6}{'p50':>8}{'p99.9':>8}{'max':>8}{'daemon':>9}{'camera':>8}"  # noqa: E501
    lines = [
        (
            f"{rows} x {columns} uint16 at {part['settings']['rate_hz']:,.0f} frames/s; milliseconds "
            f"behind, cores used"
        ),
        "",
        head,
        "-" * len(head),
    ]
    for one in part["rows"]:
        late = one["done_after_due_ms"]
        lines.append(
            f"{one['name']:<10}{one['frames']:>10}{one['frames_per_s']:>10,.0f}{one['frames_lost']:>6}{late['p50']:>8.1f}{late['p99_9']:>8.1f}"
            f"{late['max']:>8.1f}{one['daemon_cores']:>9.2f}{one['camera_cores']:>8.2f}"
        )
    return "\n".join(lines)
