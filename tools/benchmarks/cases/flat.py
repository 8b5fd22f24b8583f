"""The part ``flat``: does a frame cost the same after a million frames and a thousand shards? tools/bench
flat.

Two writers of small frames, each with processes of its own: an old one, which has written ``AGE_SHARDS``
shards into one acquisition, and a young one, which begins a new acquisition in each round. Rounds alternate;
each sends ``LEAD_IN_SHARDS`` and then, timed until all is durable, ``WINDOW_SHARDS``. Time and CPU are ratios
of old to young; memory is that of the old writer's processes against their own after the first
``FIRST_SHARDS``. In memory, since what is asked is what the writer does, and a disk varies by more than 5 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.testbed import Camera, Places, Rig, Usage, rig, saved
from shardwright import ArraySpec

from . import Case

SHARD_FRAMES = 1000
AGE_SHARDS = 1000
FIRST_SHARDS = 20
LEAD_IN_SHARDS = 20  # more frames than a ring has: all of its memory has been touched
WINDOW_SHARDS = 30
# where a frame costs an eighth a window is as short, and a few of them tell nothing within 5 %
ROUNDS = {"in-process": 6, "daemon-shm": 30}
SAMPLES = 20  # of the memory while the old one grows old
WAYS = tuple(ROUNDS)
CASE = Case(
    frames=SHARD_FRAMES, distinct=500, shape=(32, 32), chunk=(100, 32, 32), shard=(SHARD_FRAMES, 32, 32)
)

Say = Callable[[str], None]


@dataclass
class Writer:
    """A camera, and all processes of which it is one."""

    camera: Camera
    pids: list[int]
    root: Path
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    acquisitions: int = 0

    def open(self) -> None:
        self.acquisitions += 1
        self.camera.open(self.root / f"flat-{self.acquisitions}.ome.zarr", self.spec())

    def send(self, shards: int) -> None:
        self.camera.ask(do="send", frames=shards * SHARD_FRAMES, rate_hz=None)
        self.camera.ask(do="flush")

    def timed(self) -> None:
        """The window, after its lead-in."""
        self.send(LEAD_IN_SHARDS)
        before = Usage.of(self.pids)
        begin_ns = self.camera.ask(do="send", frames=WINDOW_SHARDS * SHARD_FRAMES, rate_hz=None)["begin_ns"]
        end_ns = self.camera.ask(do="flush")["end_ns"]
        self.seconds.append((end_ns - begin_ns) / 1e9)
        self.cpu_s.append(Usage.of(self.pids).cpu_s - before.cpu_s)

    def remember_memory(self) -> None:
        self.memory_bytes.append(Usage.of(self.pids).memory_bytes)

    @staticmethod
    def spec() -> ArraySpec:
        return CASE.spec()


def measure(
    places: Places,
    quick: bool,
    say: Say,
    *,
    age_shards: int | None = None,
    rounds: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """One row for each way to write."""
    age_shards = age_shards or (2 * FIRST_SHARDS if quick else AGE_SHARDS)
    rounds = rounds or (dict.fromkeys(WAYS, 2) if quick else ROUNDS)
    with saved(CASE.draw()) as frames, ExitStack() as stack:
        here = stack.enter_context(rig(places.memory / "flat"))
        old = {way: _writer(here, frames, way, "old") for way in WAYS}
        young = {way: _writer(here, frames, way, "young") for way in WAYS}
        say(f"{age_shards} shards of {SHARD_FRAMES} frames each make two writers old")
        _grow_old(list(old.values()), age_shards)
        for writer in young.values():  # as much warm-up as can matter to a process
            writer.open()
            writer.send(FIRST_SHARDS)
            writer.camera.close_acquisition()
        for number in range(max(rounds.values())):
            say(f"round {number + 1} of {max(rounds.values())}")
            for way in (way for way in WAYS if number < rounds[way]):
                for turn in (0, 1) if number % 2 else (1, 0):
                    if turn:
                        old[way].timed()
                    else:
                        young[way].open()
                        young[way].timed()
                        young[way].camera.close_acquisition()
        for way, writer in old.items():
            writer.remember_memory()
            receipt = writer.camera.close_acquisition()["receipt"]
            shards = age_shards + rounds[way] * (LEAD_IN_SHARDS + WINDOW_SHARDS)
            assert receipt["frames_durable"] == SHARD_FRAMES * shards, "every frame is durable"
    sizes = {
        "shape": list(CASE.shape),
        "shard_frames": SHARD_FRAMES,
        "age_shards": age_shards,
        "window_shards": WINDOW_SHARDS,
    }
    settings = {**sizes, "rounds": dict(rounds)}
    return {"settings": settings, "rows": [row(way, old[way], young[way]) for way in WAYS]}


def _writer(here: Rig, frames: Path, way: str, age: str) -> Writer:
    daemon = here.daemon(name=f"daemon-{age}") if way == "daemon-shm" else None
    camera = here.camera(frames, (CASE.distinct, *CASE.shape), daemon)
    root = here.folder / f"in-process-{age}"
    root.mkdir(exist_ok=True)
    return Writer(camera, [camera.pid] if daemon is None else [daemon.pid, camera.pid], root)


def _grow_old(writers: list[Writer], age_shards: int) -> None:
    """All at once: nothing is timed yet. The first sample of the memory is that of the first shards."""
    pieces = [FIRST_SHARDS] + [
        (age_shards - FIRST_SHARDS) * (i + 1) // SAMPLES - (age_shards - FIRST_SHARDS) * i // SAMPLES
        for i in range(SAMPLES)
    ]
    for writer in writers:
        writer.open()
    for shards in pieces:
        for writer in writers:
            writer.camera.say(do="send", frames=shards * SHARD_FRAMES, rate_hz=None)
        for writer in writers:
            writer.camera.answer()
            writer.camera.ask(do="flush")
            writer.remember_memory()


def row(way: str, old: Writer, young: Writer) -> dict[str, Any]:
    """CPU time comes in hundredths of a second, so that sums are compared; time within each round."""
    times = [mine / theirs for mine, theirs in zip(old.seconds, young.seconds, strict=True)]
    cpus = [mine / theirs for mine, theirs in zip(old.cpu_s, young.cpu_s, strict=True)]
    window = WINDOW_SHARDS * SHARD_FRAMES
    cpu_of_young = sum(old.cpu_s) / sum(young.cpu_s)
    first, last = old.memory_bytes[0], old.memory_bytes[-1]
    us_old, us_young = (median(writer.seconds) / window * 1e6 for writer in (old, young))
    return {
        "name": way,
        "headline": True,
        "us_per_frame_old": us_old,
        "us_per_frame_young": us_young,
        "time_of_young": median(times),
        "time_of_young_spread": {"least": round(min(times), 4), "most": round(max(times), 4)},
        "cpu_of_young": cpu_of_young,
        "cpu_of_young_spread": {"least": round(min(cpus), 4), "most": round(max(cpus), 4)},
        "memory_of_young": last / first,
        "memory_bytes": old.memory_bytes,
        "says": {
            "time_of_young": f"{us_old:.1f} us a frame against {us_young:.1f} ({median(times) - 1:+.1%})",
            "cpu_of_young": f"{sum(old.cpu_s) / len(old.cpu_s) / window * 1e6:.1f} us of CPU a frame "
            f"({cpu_of_young - 1:+.1%})",
            "memory_of_young": f"{last / 2**20:.1f} MiB against {first / 2**20:.1f} "
            f"({last / first - 1:+.1%})",
        },
    }


def text(part: dict[str, Any]) -> str:
    settings = part["settings"]
    frames = settings["age_shards"] * settings["shard_frames"]
    head = f"{'':<14}{'us old':>8}{'us young':>10}{'time':>8}{'least':>8}{'most':>8}{'CPU':>8}{'rounds':>8}{'MiB first':>11}{'MiB last':>10}"  # noqa: E501
    lines = [
        f"after {frames:,} frames and {settings['age_shards']:,} shards, old against young",
        "",
        head,
        "-" * len(head),
    ]
    for one in part["rows"]:
        spread, (first, *_, last) = one["time_of_young_spread"], one["memory_bytes"]
        lines.append(
            f"{one['name']:<14}{one['us_per_frame_old']:>8.1f}{one['us_per_frame_young']:>10.1f}{one['time_of_young']:>8.3f}{spread['least']:>8.3f}"
            f"{spread['most']:>8.3f}{one['cpu_of_young']:>8.3f}{settings['rounds'][one['name']]:>8}{first / 2**20:>11.1f}{last / 2**20:>10.1f}"  # noqa: E501
        )
    return "\n".join(lines)
