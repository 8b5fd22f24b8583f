"""The part ``flat``: the cost of a frame after a million frames and a thousand shards, against that of a new
acquisition.

Two writers of small frames, each with processes of its own: an old one, which has written ``AGE_SHARDS``
shards into one acquisition, and a young one, which begins a new acquisition in each round. Rounds alternate;
each sends ``LEAD_IN_SHARDS`` and then, timed until all is durable, ``WINDOW_SHARDS``. Time and CPU are ratios
of old to young; memory is that of the old writer's processes against their own after the first
``FIRST_SHARDS``. In memory, since a disk varies by more than 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processes import Usage, say
from benchmarks.testbed import Camera, Places, Testbed, testbed

from . import Asked, Case, least_and_most, saved

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
ASKED = (
    Asked("time_of_young", "time per frame after a million frames and a thousand shards: within 5 %", 1.05),
    Asked("cpu_of_young", "CPU per frame after them: within 5 %", 1.05),
    Asked("memory_of_young", "memory after them: within 5 %", 1.05),
)
COLUMNS = {
    "us old": "us_per_frame_old",
    "us young": "us_per_frame_young",
    "time": "time_of_young",
    "least": "time_of_young_spread.least",
    "most": "time_of_young_spread.most",
    "CPU": "cpu_of_young",
    "memory": "memory_of_young",
}


@dataclass
class AgeingWriter:
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
        self.camera.open(self.root / f"flat-{self.acquisitions}.ome.zarr", CASE.spec())

    def send(self, shards: int) -> None:
        self.camera.send(shards * SHARD_FRAMES)
        self.camera.ask("flush")

    def timed(self) -> None:
        """The window, after its lead-in."""
        self.send(LEAD_IN_SHARDS)
        before = Usage.of(self.pids)
        begin_ns = self.camera.send(WINDOW_SHARDS * SHARD_FRAMES)["begin_ns"]
        end_ns = self.camera.ask("flush")["end_ns"]
        self.seconds.append((end_ns - begin_ns) / 1e9)
        self.cpu_s.append(Usage.of(self.pids).cpu_s - before.cpu_s)

    def remember_memory(self) -> None:
        self.memory_bytes.append(Usage.of(self.pids).memory_bytes)


def measure(
    places: Places, quick: bool, *, age_shards: int | None = None, rounds: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """One row for each way to write."""
    age_shards = age_shards or (2 * FIRST_SHARDS if quick else AGE_SHARDS)
    rounds = rounds or (dict.fromkeys(WAYS, 2) if quick else ROUNDS)
    with saved(CASE.draw()) as frames, ExitStack() as stack:
        here = stack.enter_context(testbed(places.memory / "flat"))
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
    settings = {
        "shape": list(CASE.shape),
        "shard_frames": SHARD_FRAMES,
        "age_shards": age_shards,
        "window_shards": WINDOW_SHARDS,
        "rounds": dict(rounds),
    }
    return {"settings": settings, "rows": [row(way, old[way], young[way]) for way in WAYS]}


def _writer(here: Testbed, frames: Path, way: str, age: str) -> AgeingWriter:
    daemon = here.daemon(name=f"daemon-{age}") if way == "daemon-shm" else None
    camera = here.camera(frames, CASE, daemon)
    root = here.folder / f"in-process-{age}"
    root.mkdir(exist_ok=True)
    return AgeingWriter(camera, [camera.pid] if daemon is None else [daemon.pid, camera.pid], root)


def _grow_old(writers: list[AgeingWriter], age_shards: int) -> None:
    """All at once: nothing is timed yet. The first sample of the memory is that of the first shards."""
    rest = age_shards - FIRST_SHARDS
    pieces = [rest * (i + 1) // SAMPLES - rest * i // SAMPLES for i in range(SAMPLES)]
    for writer in writers:
        writer.open()
    for shards in (FIRST_SHARDS, *pieces):
        for writer in writers:
            writer.camera.begin("send", frames=shards * SHARD_FRAMES)
        for writer in writers:
            writer.camera.answer()
            writer.camera.ask("flush")
            writer.remember_memory()


def row(way: str, old: AgeingWriter, young: AgeingWriter) -> dict[str, Any]:
    """CPU time comes in hundredths of a second, so that sums are compared; time within each round."""
    times = [mine / theirs for mine, theirs in zip(old.seconds, young.seconds, strict=True)]
    cpus = [mine / theirs for mine, theirs in zip(old.cpu_s, young.cpu_s, strict=True)]
    us_old, us_young = (
        median(writer.seconds) / (WINDOW_SHARDS * SHARD_FRAMES) * 1e6 for writer in (old, young)
    )
    return {
        "name": way,
        "headline": True,
        "us_per_frame_old": us_old,
        "us_per_frame_young": us_young,
        "time_of_young": median(times),
        "time_of_young_spread": least_and_most(times),
        "cpu_of_young": sum(old.cpu_s) / sum(young.cpu_s),
        "cpu_of_young_spread": least_and_most(cpus),
        "memory_of_young": old.memory_bytes[-1] / old.memory_bytes[0],
        "memory_bytes": old.memory_bytes,
    }
