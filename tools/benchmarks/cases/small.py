"""The part ``small``: a camera of 128 x 128 uint16 at 20,000 frames a second through the daemon, for half a
minute.

The stream is the one of configs/small-fast.yaml. The camera hands over every millisecond the frames that are
due, and waits where the daemon makes it wait.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.processes import Usage, say
from benchmarks.testbed import Places, testbed
from shardwright import ArraySpec

from . import Asked, Case, percentiles, saved

RATE_HZ = 20_000.0
SECONDS = 30.0
WARM_UP_S = 2.0
CONFIG = Path(__file__).resolve().parents[3] / "configs" / "small-fast.yaml"
ASKED = (
    Asked("rate_of_asked", "128x128 at 20,000 frames/s through the daemon: held", 0.99, at_least=True),
    Asked("frames_lost", "and none is lost", 0.0),
)
COLUMNS = {
    "frames": "frames",
    "frames/s": "frames_per_s",
    "lost": "frames_lost",
    **{f"{name} late ms": f"done_after_due_ms.{name}" for name in ("p50", "p99_9", "max")},
    "daemon cores": "daemon_cores",
    "camera cores": "camera_cores",
}


def measure(
    places: Places, quick: bool, *, rate_hz: float = RATE_HZ, seconds: float | None = None
) -> dict[str, Any]:
    """One row for each place; without a disk a third of the time, since the stores lie in memory."""
    seconds = seconds or (2.0 if quick else SECONDS)
    stream = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["streams"][0]
    shape = ArraySpec.model_validate(stream["array"]).frame_shape
    case = Case(shape=shape, distinct=1024, frames=64, shard=(64, 1, 1))
    rows = []
    with saved(case.draw()) as frames:
        for place, part in (("disk", 1), ("no-disk", 3)):
            rows.append(_one(place, places, frames, case, stream, rate_hz, int(rate_hz * seconds / part)))
            say(f"{place}: {rows[-1]['frames_per_s']:,.0f} frames/s")
    settings = {"rate_hz": rate_hz, "seconds": seconds, "shape": list(shape), "config": CONFIG.name}
    return {"settings": settings, "rows": rows}


def _one(
    place: str, places: Places, frames: Path, case: Case, stream: dict[str, Any], rate_hz: float, count: int
) -> dict[str, Any]:
    times_file = places.memory / "small-times.npy"
    with testbed(places.folder(place) / "small") as here:
        daemon = here.daemon([stream])
        camera = here.camera(frames, case, daemon)
        camera.open(Path("warm-up"), None, stream=stream["name"])
        camera.send(int(WARM_UP_S * rate_hz), rate_hz)
        camera.close_acquisition()
        camera.open(Path("small"), None, stream=stream["name"])
        before = [Usage.of([pid]) for pid in (daemon.pid, camera.pid)]
        sent = camera.send(count, rate_hz, save=str(times_file))
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
    kept = {name: value for name, value in receipt.items() if name.startswith(("frames", "bytes", "shards"))}
    return {
        "name": place,
        "headline": place == "disk",
        "frames": count,
        "rate_of_asked": min(1.0, count / rate_hz / seconds),
        "frames_per_s": count / seconds,
        "frames_lost": count - receipt["frames_durable"],
        "receipt": kept,
        "done_after_due_ms": percentiles(after_due_ms),
        "daemon_cores": cores[0],
        "camera_cores": cores[1],
    }
