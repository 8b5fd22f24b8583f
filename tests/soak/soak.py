"""The run of a soak, in the main thread: measure the rate, break something every minute, end in order.

    cameras, each in a thread    send; claims of acquisitions that ended ──▶ judge
    judge, a thread              a process of its own reads every pixel back; then the store is deleted, and
    its camera has room for another
    watch, a thread              samples memory and descriptors
    main thread                  breaks things, and ends it all

The first fault that any of them finds ends the soak, with everything kept as it was then.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.harness.json_process import wait_for

from . import watch
from .cameras import CameraSide
from .daemon import SoakDaemon
from .faults import FAULTS, Scene, carry_out, what_must_not_be
from .judge import Judge
from .settings import ACQUISITIONS_AT_A_TIME, FRAME_BYTES, LIVE, PATIENT, POLL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.faults.disks import LoopDisk

    from .balance import Balance
    from .settings import Places, Settings

WARM_UP_SHARE, LONGEST_WARM_UP_S = 0.25, 60.0  # of the time between two faults
SAMPLES_BETWEEN_FAULTS = 60
LEAST_FOR_LEVELS_S = 120.0  # in a shorter soak every process still warms up


@dataclass
class Result:
    """All that a soak came to. ``faults_done``: (seconds since the start, name, what was done). Rates are
    those of both cameras together."""

    seconds: float = 0.0
    rate_hz: float = 0.0  # that can be kept up, as measured
    sent_hz: float = 0.0  # after that, faults and all
    balances: dict[str, Balance] = field(default_factory=dict)
    faults_done: list[tuple[float, str, str]] = field(default_factory=list)
    levels: list[watch.Level] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    plan_bytes: int = 0
    refusals: int = 0
    violations: list[str] = field(default_factory=list)
    interrupted: bool = False


def stored_nothing(balances: Mapping[str, Balance]) -> list[str]:
    """A camera may drop, and the account is right: but one that dropped all was not served."""
    return [
        f"camera {name}: not one of {balance.sent} frames was stored"
        for name, balance in balances.items()
        if balance.sent and not balance.stored
    ]


class Soak:
    """``say`` gets a line now and then. ``stop`` ends it in order, from any thread or signal handler."""

    def __init__(
        self, settings: Settings, places: Places, disk: LoopDisk | None, say: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.places = places
        self.result = Result()
        self._disk = disk
        self._say = say
        self._stop = threading.Event()
        self._begun_s = time.monotonic()
        self._daemon = SoakDaemon(places)
        self._cameras: dict[str, CameraSide] = {}
        self._judge = Judge(places, self._cameras, self._violate)
        self._watch = watch.Watch(self._processes, settings.fault_every_s / SAMPLES_BETWEEN_FAULTS)

    def stop(self) -> None:
        self.result.interrupted = True
        self._stop.set()

    def run(self) -> Result:
        self.places.spill.mkdir()
        self.places.write_config()
        try:
            with self._judge, self._daemon:
                self._daemon.start()  # which may have to compile the kernels: no part of the time
                self._begun_s = time.monotonic()
                self._run_with_daemon()
        except Exception as error:
            self._violate(f"{type(error).__name__}: {error}")
        self.result.balances = self._judge.balances
        self.result.seconds = time.monotonic() - self._begun_s
        return self.result

    def _run_with_daemon(self) -> None:
        with self._camera(PATIENT, 1), self._camera(LIVE, 2):
            self._measure()
            with self._watch:
                self._break_things()
            if self._daemon.dead:
                return  # nobody would answer the cameras
            for camera in self._cameras.values():
                camera.finish()
            for camera in self._cameras.values():
                camera.join()
            self._judge.wait_for_all()
            self.result.refusals = sum(camera.refusals for camera in self._cameras.values())
        self._end_daemon()
        self._judge_levels()
        for fault in stored_nothing(self.result.balances):
            self._violate(fault)

    def _camera(self, name: str, number: int) -> CameraSide:
        seed = 1000 * self.settings.seed + number
        made = CameraSide(
            self.places,
            name,
            seed,
            room=ACQUISITIONS_AT_A_TIME,
            on_ended=self._judge.hand_over,
            on_trouble=self._violate,
        )
        self._cameras[name] = made
        return made

    def _processes(self) -> dict[str, int]:
        """Names of those that are there, for the watch."""
        cameras = {f"camera {name}": camera.pid for name, camera in list(self._cameras.items())}
        found = {"daemon": self._daemon.pid, "web": self._daemon.web_pid, **cameras}
        return {name: pid for name, pid in found.items() if pid}

    def _sent(self) -> int:
        return sum(camera.sent for camera in self._cameras.values())

    def _violate(self, fault: str) -> None:
        self.result.violations.append(fault)
        self._say(f"VIOLATION: {fault}")
        self._stop.set()

    def _wait(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (
            not self._stop.wait(min(POLL_S, max(0.0, end_s - time.monotonic()))) and time.monotonic() < end_s
        ):
            if self._daemon.dead:
                self._violate("the daemon died by itself")

    def _measure(self) -> None:
        """How fast both go for ever, with every frame read back: both send as fast as they can, and wait for
        each other and for the judge."""
        for camera in self._cameras.values():
            camera.begin(PATIENT, self.settings.frames, 0.0)
        wait_for(
            lambda: self._stop.is_set() or all(camera.sent for camera in self._cameras.values()),
            "the first frames",
        )
        self._wait(self.settings.measure_s / 2)
        sent, since_s = self._sent(), time.monotonic()
        self._wait(self.settings.measure_s / 2)
        self.result.rate_hz = (self._sent() - sent) / (time.monotonic() - since_s)
        fps = max(1.0, self.settings.load * self.result.rate_hz / len(self._cameras))
        for name, camera in self._cameras.items():
            camera.set(name, fps, self.settings.frames)
        megabytes = self.result.rate_hz * FRAME_BYTES / 1e6
        self._say(
            f"{self.result.rate_hz:.0f} frames/s ({megabytes:.0f} MB/s) can be kept up here; each "
            f"camera sends {fps:.0f} frames/s from now on"
        )

    def _break_things(self) -> None:
        random = Random(self.settings.seed)
        scene = Scene(
            self.settings, self.places, self._daemon, list(self._cameras.values()), self._disk, random
        )
        sent, since_s = self._sent(), time.monotonic()
        next_s = since_s + self.settings.fault_every_s / 2
        for name in itertools.islice(_in_turn(self.settings.faults, random), self.settings.faults_in_all):
            self._wait(next_s - time.monotonic())
            if self._stop.is_set():
                break
            next_s = max(next_s + self.settings.fault_every_s, time.monotonic())
            done, faults = carry_out(FAULTS[name], scene)
            self.result.faults_done.append((time.monotonic() - self._begun_s, name, done))
            for fault in faults:
                self._violate(fault)
            self._say(self._progress(name, done))
        self._wait(self._begun_s + self.settings.seconds - time.monotonic())
        self.result.sent_hz = (self._sent() - sent) / max(1e-9, time.monotonic() - since_s)

    def _progress(self, name: str, done: str) -> str:
        sample = self._watch.newest("daemon")
        memory = (
            f"{sample.memory_bytes >> 20} MiB, {sample.descriptors} descriptors"
            if sample
            else ("just started")
        )
        return (
            f"{_clock(time.monotonic() - self._begun_s)} of {_clock(self.settings.seconds)}  {name:<13} "
            f"{done}\n"
            f"                    {self._sent():,} frames sent, {self._judge.judged} acquisitions judged, "
            f"daemon: {memory}"
        )

    def _end_daemon(self) -> None:
        for fault in what_must_not_be(self._daemon):
            self._violate(fault)
        code = self._daemon.stop()
        if code != 0:
            self._violate(f"the daemon ended with exit code {code}")
        if not self.result.violations:
            for folder in (self.places.root, self.places.spill):
                if left := sorted(path.name for path in folder.iterdir() if path.name != "lost+found"):
                    self._violate(f"{folder.name} holds what no acquisition accounts for: {', '.join(left)}")

    def _judge_levels(self) -> None:
        result, lives = self.result, self._watch.lives
        result.plan_bytes, result.peaks = self._daemon.plan_bytes, dict(self._watch.peak_bytes)
        result.lives = {name: len(its_lives) for name, its_lives in lives.items()}
        if self.settings.seconds >= LEAST_FOR_LEVELS_S:
            warm_up_s = min(LONGEST_WARM_UP_S, WARM_UP_SHARE * self.settings.fault_every_s)
            result.levels = watch.judge(lives, warm_up_s)
        for level in result.levels:
            if not level.flat:
                self._violate(f"not flat: {level}")
        if (peak := result.peaks.get("daemon", 0)) > result.plan_bytes:
            self._violate(f"the daemon planned for {result.plan_bytes:,} bytes of memory, and used {peak:,}")


def _in_turn(names: tuple[str, ...], random: Random) -> Iterator[str]:
    """Each once a round, every round in another order."""
    while names:
        yield from random.sample(names, len(names))


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
