"""A writer in a process of its own, with faults under it: runs one scenario a line from standard input,
claims on standard output.

    python -m tests.faults.faulty_writer     started by ``WriterProcess``; one worker pool serves all
                                             scenarios, so that one costs milliseconds

Each claim is written the moment it is made, so that whatever kills this process leaves its claims behind. A
crash leaves faulthandler's trace.
"""

from __future__ import annotations

import errno
import faulthandler
import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from tests.harness.frames import DROPPED, FRAME, NOT_HELD, array_spec, pixels

from shardwright.acquire.acquisition import Acquisition, AcquisitionState
from shardwright.acquire.limits import Limits
from shardwright.acquire.workers import WorkerPool
from shardwright.disk import failpoints
from shardwright.model.errors import ShardwrightError
from shardwright.model.write_settings import WriteSettings
from shardwright.recovery.resume import resume
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_DROPPED, FRAME_NOT_HELD

from .filler import Filler
from .scenario import Fault, Scenario

FLAGS = {FRAME: 0, DROPPED: FRAME_DROPPED, NOT_HELD: FRAME_NOT_HELD}
ENDED = (AcquisitionState.SEALED, AcquisitionState.FAILED)
HANG_S = 60.0


def say(**facts: object) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


class FaultPlan:
    """Counts storage calls and lets the planned ones fail. Called from any thread."""

    def __init__(self, faults: list[Fault], disk: str | None) -> None:
        self.calls: list[str] = []
        self._faults = faults
        self._counts = [itertools.count() for _ in faults]  # next() of one is atomic
        self._filler = Filler(Path(disk)) if disk else None
        self._filling = threading.Lock()

    def reach(self, name: str) -> None:
        self.calls.append(name)
        # no other thread goes on meanwhile: what is being filled would take what it gives up, such as the
        # ballast
        with self._filling:
            pass
        for fault, count in zip(self._faults, self._counts, strict=True):
            if fault.point in ("*", name) and fault.call <= next(count) < fault.call + fault.times:
                self._act(fault)

    def _act(self, fault: Fault) -> None:
        if fault.action == "fill":
            assert self._filler is not None, "a scenario that fills names its disk"
            with self._filling:
                self._filler.fill()
            if fault.room_after_s is not None:
                threading.Timer(fault.room_after_s, self._filler.release).start()
        elif fault.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            number = {"eio": errno.EIO, "enospc": errno.ENOSPC}[fault.action]
            raise OSError(number, os.strerror(number))


class Driver:
    """One acquisition, its camera and its ring of frames; tells every claim as it comes."""

    def __init__(self, scenario: Scenario, pool: WorkerPool) -> None:
        self.scenario = scenario
        self.acquisition = self._open(pool)
        self.first = self.acquisition.next_sequence
        self._held: dict[int, np.ndarray] = {}  # sequence -> pixels that belong to the pipeline
        self._claimed = (0, 0)
        self._progress_s = time.monotonic()
        say(first_sequence=self.first)

    def _open(self, pool: WorkerPool) -> Acquisition:
        facts = dict(self.scenario.settings)
        if facts.get("spill_root"):
            facts["spill_root"] = Path(facts["spill_root"])
        settings, path = WriteSettings(**facts), Path(self.scenario.path)

        def limits_of(spec) -> Limits:
            return Limits.derive(spec, threads=pool.threads, ring_frames=64)

        if self.scenario.resume:
            return resume(path, pool, lambda: None, settings, limits_of)
        spec = array_spec(slab_frames=self.scenario.slab_frames, slabs=self.scenario.slabs)
        return Acquisition(path, spec, limits_of(spec), pool, lambda: None, settings)

    def run(self) -> None:
        for number, arrival in enumerate(self.scenario.arrivals):
            while len(self._held) >= self.acquisition.limits.ring_frames and self._going():
                self.poll(0.05)
            if not self._going():
                break
            self._submit(self.first + number, arrival)
            self._wait(self.scenario.pause_s)
        if not self.scenario.finish:
            if self.scenario.linger_s is not None:
                self._wait(self.scenario.linger_s)
            else:
                self._wait_until_stored(self.first + len(self.scenario.arrivals))
            os.kill(os.getpid(), signal.SIGKILL)
        self.acquisition.finish()
        while self.acquisition.state not in ENDED or self.acquisition.in_flight:
            self.poll(0.05)
        self.poll(0.0)
        self.acquisition.close()
        say(receipt=self.acquisition.receipt().to_dict())

    def _wait_until_stored(self, frames: int) -> None:
        while self.acquisition.stored_watermark < frames and self._going():
            self.poll(0.05)

    def _going(self) -> bool:
        return self.acquisition.state is AcquisitionState.OPEN and self.acquisition.error is None

    def _submit(self, sequence: int, arrival) -> None:
        batch, addresses = np.zeros(1, DESCRIPTOR), np.zeros(1, np.int64)
        batch["sequence"], batch["position"], batch["frame_id"] = sequence, arrival.frame_id, arrival.frame_id
        batch["flags"], batch["camera_ns"] = FLAGS[arrival.how], time.time_ns()
        frame = pixels(arrival.frame_id, arrival.copy)
        addresses[0] = frame.ctypes.data if arrival.how == FRAME else 0
        self._held[sequence] = frame
        self.acquisition.submit(batch, addresses)
        say(submitted=sequence + 1 - self.first)
        self.poll()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.poll(min(left, 0.02))

    def poll(self, timeout_s: float | None = None) -> None:
        acquisition = self.acquisition
        released = acquisition.poll(timeout_s).tolist()
        for sequence in released:
            self._held.pop(sequence)[...] = 0  # whoever still reads it stores zeros, which no frame has
        sound = acquisition.error is None
        claim = (acquisition.stored_watermark, acquisition.durable_watermark)
        losses = [(int(first), int(last), error.code) for first, last, error in acquisition.take_losses()]
        events = [name for name, _ in acquisition.take_events()]
        if released or losses or events or claim != self._claimed:
            names = ("stored", "durable", "released") if sound else ("settled", "settled_durable", "given_up")
            claims = dict(zip(names, (*claim, released), strict=True))
            say(losses=losses, events=events, **claims)
            self._claimed, self._progress_s = claim, time.monotonic()
        assert time.monotonic() < self._progress_s + HANG_S, (
            f"hangs: {acquisition.state}, {acquisition.receipt()}"
        )


def run_scenario(scenario: Scenario, pool: WorkerPool) -> None:
    plan = FaultPlan(scenario.faults, scenario.disk)
    failpoints.watch_all(plan.reach)
    try:
        driver = Driver(scenario, pool)
        driver.run()
    except ShardwrightError as error:  # only opening raises
        say(refused=error.to_dict())
    else:
        error = driver.acquisition.error
        say(state=driver.acquisition.state.value, error=error.to_dict() if error else None)
    finally:
        failpoints.watch_all(None)
        say(calls=plan.calls)


def main() -> None:
    faulthandler.enable()
    pool = WorkerPool(2)
    pool.start()
    say()
    for line in sys.stdin:
        run_scenario(Scenario.from_line(line), pool)
        say(done=True)
    pool.stop()


if __name__ == "__main__":
    main()
