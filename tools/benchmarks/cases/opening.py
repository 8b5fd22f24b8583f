"""The part ``opening``: what an acquisition costs that has hardly a frame. From ``create`` until the first
``append`` has returned, and ``close`` once all frames are durable, one for each image, in a process that has
written before; what is left of each beside the syncs of the disk.

Syncs are timed where all of them are called, in ``disk.system``: a moment counts as theirs while at least one
runs. Processor time is that of the whole process, also of what it does meanwhile.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks.processes import say
from benchmarks.testbed import Places
from shardwright.disk import system

from . import Asked, least_and_most

LIMITS_MS = {1: 10.0, 48: 30.0, 400: 200.0}  # by the number of images
ROUNDS, SIDE, SETTLE_S = 15, 512, 0.5
_TEXT = "beside its syncs: 10 ms, 30 ms of 48 images, 200 ms of 400"
ASKED = (
    Asked("opened_of_limit", f"create to the first append {_TEXT}", 1.0),
    Asked("closed_of_limit", f"close {_TEXT}", 1.0),
)
COLUMNS = {
    "opened ms": "opened_ms",
    "beside syncs": "opened_beside_ms",
    "its CPU ms": "opened_cpu_ms",
    "closed ms": "closed_ms",
    "beside its syncs": "closed_beside_ms",
    "CPU ms": "closed_cpu_ms",
}
Step = dict[str, float]  # a step of a round: milliseconds of all, beside syncs, and of the processors


class TimedSyncs(system.OperatingSystem):
    """Notes when each sync began and ended, from any thread."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []

    def sync(self, descriptor: int, *, data_only: bool = False) -> None:
        with self._noted():
            super().sync(descriptor, data_only=data_only)

    def sync_filesystem(self, descriptor: int) -> None:
        with self._noted():
            super().sync_filesystem(descriptor)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.spans.append((begun, time.perf_counter()))

    def within(self, begun: float, ended: float) -> float:
        """Seconds between two moments in which a sync ran."""
        found, reached = 0.0, begun
        for first, last in sorted(self.spans):
            found += max(0.0, min(last, ended) - max(first, reached))
            reached = max(last, reached)
        return found


def measure(places: Places, quick: bool) -> dict[str, Any]:
    rows = []
    shutil.rmtree(places.disk / "opening", ignore_errors=True)
    frame = np.random.default_rng(1).poisson(200, (SIDE, SIDE)).astype(np.uint16)
    for images, limit_ms in LIMITS_MS.items():
        steps = _rounds(places.disk / "opening", frame, images, 2 if quick else ROUNDS)
        rows.append(row(images, limit_ms, *steps))
        opened, closed = rows[-1]["opened_beside_ms"], rows[-1]["closed_beside_ms"]
        say(f"{images}: opened in {opened:.1f} ms, closed in {closed:.1f} ms, beside syncs")
    shutil.rmtree(places.disk / "opening")
    return {"settings": {"rounds": ROUNDS, "side": SIDE, "durability": "stored"}, "rows": rows}


def _rounds(folder: Path, frame: np.ndarray, images: int, rounds: int) -> tuple[list[Step], list[Step]]:
    """Both steps of each round; the first round warms up."""
    opened: list[Step] = []
    closed: list[Step] = []
    syncs = TimedSyncs()
    system.use(syncs)
    try:
        for number in range(rounds + 1):  # nothing is deleted between them: see ``plates``
            store = folder / f"{images}-{number}" / "store.ome.zarr"
            store.parent.mkdir(parents=True)
            os.sync()
            syncs.spans.clear()
            with _step(syncs, opened):
                writer = _created(store, images)
                writer.append(frame, image="0", index=(0,))
            for image in range(1, images):
                writer.append(frame, image=f"{image}", index=(0,))
            writer.flush()
            time.sleep(SETTLE_S)  # what is durable gets its names meanwhile
            with _step(syncs, closed):
                writer.close()
    finally:
        system.use(None)
    return opened[1:], closed[1:]


def _created(path: Path, images: int) -> sw.Writer:
    """A plate as in the part ``plates``, of one time: no file is made ahead that ``close`` would delete."""
    one = {"t": 1, "y": SIDE, "x": SIDE}
    names = [f"{image}" for image in range(images)]
    shape = (1, SIDE, SIDE)
    return sw.create(path, shape=shape, dtype="uint16", axes="tyx", images=names, chunks=one, shards=False)


@contextmanager
def _step(syncs: TimedSyncs, steps: list[Step]) -> Iterator[None]:
    begun, busy = time.perf_counter(), time.process_time()
    yield
    ended = time.perf_counter()
    beside = ended - begun - syncs.within(begun, ended)
    cpu = time.process_time() - busy
    steps.append({"ms": 1e3 * (ended - begun), "beside_ms": 1e3 * beside, "cpu_ms": 1e3 * cpu})


def row(images: int, limit_ms: float, opened: list[Step], closed: list[Step]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": f"{images} images", "headline": True}
    for name, steps in (("opened", opened), ("closed", closed)):
        found |= {f"{name}_{part}": median(step[part] for step in steps) for part in steps[0]}
        found[f"{name}_of_limit"] = found[f"{name}_beside_ms"] / limit_ms
        found[f"{name}_of_limit_spread"] = least_and_most([step["beside_ms"] / limit_ms for step in steps])
    return found
