"""The part ``fair``: a camera that asks for little beside one that overloads the codec, through one daemon.

    alone     the small camera by itself
    beside    the same while another camera hands over frames as fast as the daemon takes them, with zstd,
              which keeps every worker busy

Its frames fill a slab more slowly than ``STORE_WITHIN_MS``, so that most of them go through the staging area.
Of each frame: milliseconds from its ``append`` until the client had it as stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks.processes import say
from benchmarks.testbed import Camera, Places, testbed

from . import Asked, Case, percentiles, saved

STORE_WITHIN_MS = 1000.0  # as the daemon has it unless told otherwise
RATE_HZ = 10.0
SECONDS = 30.0
GREEDY_HZ = 1000.0  # 8 GB/s: more than any machine stores
SMALL = Case(scene="camera", frames=64, shape=(512, 512), shard=(64, 512, 512))
GREEDY = Case(scene="camera", frames=64, chunk=(16, 256, 256))
ASKED = (
    Asked(
        "stored_ms_most",
        "beside a camera that overloads the codec: a frame is stored within, ms",
        STORE_WITHIN_MS,
    ),
    Asked("taken_of_due", "and no frame has to wait to be taken", 1.0, at_least=True),
)
COLUMNS = {
    "stored within ms": "stored_ms_most",
    "taken of due": "taken_of_due",
    **{
        f"{way} {name}": f"{way}.{name}"
        for way in ("alone", "beside")
        for name in ("p50", "p99", "max", "append_ms_most")
    },
    "frames/s of the other": "greedy_hz",
}


def measure(
    places: Places,
    quick: bool,
    *,
    seconds: float | None = None,
    small: Case = SMALL,
    greedy: Case = GREEDY,
) -> dict[str, Any]:
    """One row. ``small`` and ``greedy``: other cameras than the record's, for tests."""
    seconds = seconds or (5.0 if quick else SECONDS)
    with (
        saved(small.draw()) as small_frames,
        saved(greedy.draw()) as greedy_frames,
        testbed(places.disk / "fair") as here,
    ):
        daemon = here.daemon()
        camera, other = here.camera(small_frames, small, daemon), here.camera(greedy_frames, greedy, daemon)
        times = here.folder / "times.npy"
        alone = _run("alone", camera, small, times, seconds)
        other.open(Path("greedy"), _spec(greedy))
        other.send(2 * greedy.shard[0])  # its ring is full
        other.begin("send", frames=int(GREEDY_HZ * (seconds + 1)), rate_hz=GREEDY_HZ, seconds=seconds + 1)
        beside = _run("beside", camera, small, times, seconds)
        sent = other.answer()
        other.close_acquisition()
    greedy_hz = sent["sent"] * 1e9 / (sent["end_ns"] - sent["begin_ns"])
    one = row(alone, beside, greedy_hz)
    say(f"stored within {one['stored_ms_most']:.0f} ms, alone {alone['max']:.0f} ms")
    return {"settings": {"seconds": seconds, "rate_hz": RATE_HZ}, "rows": [one]}


def row(alone: dict[str, Any], beside: dict[str, Any], greedy_hz: float) -> dict[str, Any]:
    return {
        "name": "beside disk",
        "headline": True,
        "stored_ms_most": beside["max"],
        "taken_of_due": beside["taken"] / beside["due"],
        "alone": alone,
        "beside": beside,
        "greedy_hz": greedy_hz,
    }


def _run(name: str, camera: Camera, case: Case, times: Path, seconds: float) -> dict[str, Any]:
    """``due``: frames that the camera had in its time; ``taken``: those that it had handed over by the end
    of the period of the last."""
    due = int(RATE_HZ * seconds)
    camera.open(Path(name), _spec(case))
    camera.ask("send", frames=due, rate_hz=RATE_HZ, save=str(times), stored=True)
    assert camera.close_acquisition()["receipt"]["frames_durable"] == due, "every frame is durable"
    append_ns, late_ns, stored_ns = np.load(times)
    return {
        **percentiles(stored_ns / 1e6),
        "due": due,
        "taken": int((late_ns < 1e9 / RATE_HZ).sum()),
        "append_ms_most": float(append_ns.max()) / 1e6,
    }


def _spec(case: Case) -> sw.ArraySpec:
    return case.spec().model_copy(update={"codec": sw.Zstd(level=3)})
