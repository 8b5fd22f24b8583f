"""The part ``steps``: how long a step of a bluesky run takes with a detector whose frames the daemon stores,
from one event to the next. No motor moves, and the camera, a thread of the run's process, exposes in no time.

``none``: the same run with a detector of ophyd-async that has nothing to wait for.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks.processes import say
from benchmarks.testbed import Places, testbed

from . import Asked, Case, least_and_most, percentiles

STEPS, QUICK_STEPS, ROUNDS = 200, 20, 3
CASES = {
    "2048 x 2048": Case(frames=32, chunk=(1, 512, 512), shard=(32, 2048, 2048)),
    "512 x 512": Case(frames=32, shape=(512, 512), chunk=(1, 512, 512), shard=(32, 512, 512)),
}
ASKED = (Asked("step_p50_ms", "a step of a bluesky run: median, ms", 50.0),)
COLUMNS = {
    "p50 ms": "step_p50_ms",
    "least": "step_p50_ms_spread.least",
    "most": "step_p50_ms_spread.most",
    "p99 ms": "step_ms.p99",
}


def measure(places: Places, quick: bool) -> dict[str, Any]:
    """One row for each size of frames, and one for a detector that does nothing."""
    rounds, steps = (1, QUICK_STEPS) if quick else (ROUNDS, STEPS)
    rows = []
    for name, case in {"none": None, **CASES}.items():
        taken = [np.array(one(places, case, steps)) for _ in range(rounds)]
        medians = [float(np.median(ms)) for ms in taken]
        rows.append(
            {
                "name": name,
                "headline": case is not None,
                "step_p50_ms": median(medians),
                "step_p50_ms_spread": least_and_most(medians),
                "step_ms": percentiles(np.concatenate(taken)),
            }
        )
        say(f"{name}: {rows[-1]['step_p50_ms']:.1f} ms")
    return {"settings": {"steps": steps, "rounds": rounds}, "rows": rows}


def one(places: Places, case: Case | None, steps: int) -> list[float]:
    """Returns the milliseconds of each step but the first one, which opens the acquisition. ``case`` None: of
    a detector that does nothing."""
    from bluesky.plans import count
    from bluesky.run_engine import RunEngine
    from ophyd_async.core import (
        AutoIncrementFilenameProvider,
        DetectorAcquireLogic,
        StandardDetector,
        soft_signal_rw,
    )

    from shardwright.integrations.bluesky import ShardwrightDataLogic, ShardwrightDetector

    when: list[float] = []
    engine: Any = RunEngine()
    engine.subscribe(lambda name, document: when.append(time.perf_counter()), "event")
    with testbed(places.disk / "steps") as here:
        if case is None:
            idle = StandardDetector(name="none")
            engine(count([idle, soft_signal_rw(float, name="signal")], steps))
        else:
            daemon = here.daemon(live="append")
            frame = np.asarray(case.draw()[0])

            class Camera(DetectorAcquireLogic):
                stream: sw.Stream | None = None

                async def start_acquiring(self) -> None:
                    if self.stream is None:
                        self.stream = connection.acquire(data.armed.name)
                    await asyncio.to_thread(self.stream.append, frame)

                async def wait_for_idle(self) -> None:
                    pass

                async def ensure_stopped(self) -> None:
                    if self.stream is not None:
                        self.stream.close()

            data = ShardwrightDataLogic(daemon.control, AutoIncrementFilenameProvider("steps"), case.spec())
            with sw.connect(daemon.endpoint) as connection:
                engine(count([ShardwrightDetector(data, Camera(), name="camera")], steps))
    engine.loop.call_soon_threadsafe(engine.loop.stop)
    engine._th.join()  # noqa: SLF001  # bluesky has no end of its own
    engine.loop.close()
    return [1e3 * (after - before) for before, after in pairwise(when)]
