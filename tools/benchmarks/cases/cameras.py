"""The part ``cameras``: four cameras at once through one daemon, against one camera that sends as many
frames; tools/bench cameras.

Each camera is a process of its own. Rounds of one and of four alternate; the clock runs from the first append
of any camera, when all acquisitions are open, until the last is sealed and durable. The ratio of the two
totals is taken within each round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.testbed import Camera, Places, Usage, delete_stores, rig, saved

from . import Case

STREAMS = 4
ROUNDS = 3
SHAPES = ((2048, 2048), (512, 512))
ROUND_BYTES = {"disk": 4 << 30, "no-disk": 2 << 30}  # raw, of whoever sends them
WAYS = ((SHAPES[0], "disk"), (SHAPES[0], "no-disk"), (SHAPES[1], "no-disk"))

Say = Callable[[str], None]


def measure(
    places: Places,
    quick: bool,
    say: Say,
    *,
    ways: Sequence[tuple[Case, str]] | None = None,
    shards: int | None = None,
) -> dict[str, Any]:
    """One row for each shape and place. ``shards``: of each of the four streams, in place of what fills
    ``ROUND_BYTES``."""
    rounds = 1 if quick else ROUNDS
    rows = []
    for case, place in ways or [(case_of(shape), place) for shape, place in WAYS]:
        with saved(case.draw()) as frames:
            each = shards or ROUND_BYTES[place] // STREAMS // case.raw_bytes
            rows.append(_one(place, places, frames, case, each, rounds))
            say(f"{rows[-1]['name']}: {rows[-1]['says']['of_one_stream']}")
    return {"settings": {"streams": STREAMS, "rounds": rounds}, "rows": rows}


def case_of(shape: tuple[int, int]) -> Case:
    """One shard, of as many bytes whatever the shape."""
    frames = 64 * 2048 * 2048 // (shape[0] * shape[1])
    return Case(frames=frames, shape=shape, shard=(frames, *shape))


def _one(place: str, places: Places, frames: Path, case: Case, shards: int, rounds: int) -> dict[str, Any]:
    with rig(places.folder(place) / "cameras") as here:
        daemon = here.daemon()
        cameras = [here.camera(frames, (case.distinct, *case.shape), daemon) for _ in range(STREAMS)]
        counted = shards * case.shard[0]
        raw_gb = STREAMS * counted * case.raw_bytes / case.frames / 1e9
        one: list[float] = []
        four: list[float] = []
        cores: list[float] = []
        for number in range(rounds + 1):
            for found, taking_part in ((one, cameras[:1]), (four, cameras)):
                before = Usage.of([daemon.pid])
                seconds = _at_once(taking_part, STREAMS * counted // len(taking_part), case)
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
        camera.say(do="send", frames=frames_each, rate_hz=None)
    begins = [camera.answer()["begin_ns"] for camera in cameras]
    for camera in cameras:
        camera.say(do="close")
    ends = [camera.answer() for camera in cameras]
    assert all(end["receipt"]["frames_durable"] == frames_each for end in ends), (
        "every frame of every camera is durable"
    )
    return float(max(end["end_ns"] for end in ends) - min(begins)) / 1e9


def row(
    shape: tuple[int, int], place: str, one: list[float], four: list[float], daemon_cores: float
) -> dict[str, Any]:
    ratios = [many / single for many, single in zip(four, one, strict=True)]
    value = median(ratios)
    return {
        "name": f"{shape[0]}x{shape[1]} {place}",
        "headline": place == "disk",
        "one_gb_per_s": [round(speed, 4) for speed in one],
        "four_gb_per_s": [round(speed, 4) for speed in four],
        "of_one_stream": value,
        "of_one_stream_spread": {"least": round(min(ratios), 4), "most": round(max(ratios), 4)},
        "daemon_cores": daemon_cores,
        "says": {
            "of_one_stream": f"{value:.0%}: four together {median(four):.2f} GB/s, one "
            f"{median(one):.2f}; daemon {daemon_cores:.2f} cores"
        },
    }


def text(part: dict[str, Any]) -> str:
    head = (
        f"{'':<20}{'one GB/s':>10}{'four GB/s':>11}{'of one':>9}{'least':>8}{'most':>8}{'daemon cores':>14}"
    )
    lines = [
        f"{part['settings']['streams']} streams at once against one, {part['settings']['rounds']} rounds",
        "",
        head,
        "-" * len(head),
    ]
    for one in part["rows"]:
        spread = one["of_one_stream_spread"]
        lines.append(
            f"{one['name']:<20}{median(one['one_gb_per_s']):>10.2f}{median(one['four_gb_per_s']):>11.2f}{one['of_one_stream']:>9.0%}"
            f"{spread['least']:>8.2f}{spread['most']:>8.2f}{one['daemon_cores']:>14.2f}"
        )
    return "\n".join(lines)
