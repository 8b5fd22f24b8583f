"""The part ``cameras``: four cameras at once through one daemon, against one that sends as many frames.

Each camera is a process of its own. Rounds of one and of four alternate; the clock runs from the first append
of any camera, when all acquisitions are open, until the last is sealed and durable. The ratio of the two
totals is taken within each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processes import Usage, say
from benchmarks.testbed import Camera, Places, delete_stores, testbed

from . import Asked, Case, least_and_most, saved

STREAMS = 4
ROUNDS = 3
SHAPES = ((2048, 2048), (512, 512))
ROUND_BYTES = {"disk": 4 << 30, "no-disk": 2 << 30}  # raw, of all cameras of a round
WAYS = ((SHAPES[0], "disk"), (SHAPES[0], "no-disk"), (SHAPES[1], "no-disk"))
ASKED = (
    Asked("of_one_stream", "four streams at once: at least 90 % of one stream's total", 0.9, at_least=True),
)
COLUMNS = {
    "four of one": "of_one_stream",
    "least": "of_one_stream_spread.least",
    "most": "of_one_stream_spread.most",
    "daemon cores": "daemon_cores",
}


def measure(
    places: Places,
    quick: bool,
    *,
    ways: Sequence[tuple[Case, str]] | None = None,
    shards: int | None = None,
) -> dict[str, Any]:
    """One row for each shape and place. ``shards``: of each of the four streams, in place of as many as fill
    ``ROUND_BYTES``."""
    rounds = 1 if quick else ROUNDS
    rows = []
    for case, place in ways or [(case_of(shape), place) for shape, place in WAYS]:
        with saved(case.draw()) as frames:
            each = shards or ROUND_BYTES[place] // STREAMS // case.raw_bytes
            rows.append(_one(place, places, frames, case, each, rounds))
            say(f"{rows[-1]['name']}: {rows[-1]['of_one_stream']:.0%} of one stream")
    return {"settings": {"streams": STREAMS, "rounds": rounds}, "rows": rows}


def case_of(shape: tuple[int, int]) -> Case:
    """One shard, of as many bytes whatever the shape."""
    frames = 64 * 2048 * 2048 // (shape[0] * shape[1])
    return Case(frames=frames, shape=shape, shard=(frames, *shape))


def _one(place: str, places: Places, frames: Path, case: Case, shards: int, rounds: int) -> dict[str, Any]:
    with testbed(places.folder(place) / "cameras") as here:
        daemon = here.daemon()
        cameras = [here.camera(frames, case, daemon) for _ in range(STREAMS)]
        counted = STREAMS * shards * case.shard[0]
        raw_gb = counted * case.raw_bytes / case.frames / 1e9
        one: list[float] = []
        four: list[float] = []
        cores: list[float] = []
        for number in range(rounds + 1):
            for found, taking_part in ((one, cameras[:1]), (four, cameras)):
                before = Usage.of([daemon.pid])
                seconds = _at_once(taking_part, counted // len(taking_part), case)
                if number:  # the first round warms up
                    found.append(raw_gb / seconds)
                    if found is four:
                        cores.append((Usage.of([daemon.pid]).cpu_s - before.cpu_s) / seconds)
                delete_stores(here.folder / "daemon")
    return row(case.shape, place, one, four, median(cores))


def _at_once(cameras: list[Camera], frames_each: int, case: Case) -> float:
    """Seconds from the first append to the last receipt."""
    for number, camera in enumerate(cameras):
        camera.open(Path(f"camera-{number}"), case.spec())
    for camera in cameras:
        camera.begin("send", frames=frames_each)
    begins = [camera.answer()["begin_ns"] for camera in cameras]
    for camera in cameras:
        camera.begin("close")
    ends = [camera.answer() for camera in cameras]
    durable = [end["receipt"]["frames_durable"] for end in ends]
    assert durable == [frames_each] * len(cameras), "every frame of every camera is durable"
    return float(max(end["end_ns"] for end in ends) - min(begins)) / 1e9


def row(
    shape: tuple[int, int], place: str, one: list[float], four: list[float], daemon_cores: float
) -> dict[str, Any]:
    ratios = [many / single for many, single in zip(four, one, strict=True)]
    return {
        "name": f"{shape[0]}x{shape[1]} {place}",
        "headline": place == "disk",
        "one_gb_per_s": [round(speed, 4) for speed in one],
        "four_gb_per_s": [round(speed, 4) for speed in four],
        "of_one_stream": median(ratios),
        "of_one_stream_spread": least_and_most(ratios),
        "daemon_cores": daemon_cores,
    }
