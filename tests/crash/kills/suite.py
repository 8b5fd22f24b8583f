"""Many trials: how often each scene calls the storage, which kills follow from that, and the account of what
came out."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.properties.readers import READERS

from .oracle import Oracle
from .plans import AfterMs, AtCall, Plan, carry_out, count_syscalls, spread, strace_works, syscall_plans
from .processes import Closing, Sealed, acquire
from .scenes import IO_MODES, SCENES, Scene
from .trial import ENDINGS, GOING_ON, Trial, TrialRun, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.fork_server import ForkServer

SHARES = {"calls": 0.6, "syscalls": 0.2, "timers": 0.2}  # of all trials
WITHOUT_STRACE = {"calls": 0.75, "syscalls": 0.0, "timers": 0.25}
ONLY_SYSCALLS = {"calls": 0.0, "syscalls": 1.0, "timers": 0.0}


@dataclass(frozen=True)
class Survey:
    """One scene in one io mode, run to its end: where it could have been killed. ``early_end``: the frames
    after which it was ended, though more were to come; only its end is of interest then, from storage call
    ``closing`` on."""

    scene: Scene
    io: str
    early_end: int | None
    closing: int
    points: tuple[str, ...]
    ms: float
    syscalls: Counter[str]


@dataclass
class Summary:
    """What was run, and nothing else."""

    seed: int
    trials: int = 0
    kills: int = 0
    frames_promised: int = 0
    seconds: float = 0.0
    ways: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    syscalls: Counter[str] = field(default_factory=Counter)  # of the runs that nobody killed
    violations: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.trials += 1
        self.kills += verdict.kills
        self.frames_promised += verdict.promised
        self.ways[f"{type(verdict.trial.plan).__name__}, {verdict.trial.ending}"] += 1
        if verdict.problems:
            self.violations.append({"trial": str(verdict.trial), "problems": verdict.problems})

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "ways": dict(self.ways),
            "points": dict(self.points),
            "syscalls": dict(self.syscalls),
        }


class SurvivorError(AssertionError):
    """A scene that nobody killed did not come out right: no kill can then be judged."""


def survey(
    server: ForkServer, whole: Scene, io: str, folder: Path, *, early: bool, with_strace: bool
) -> Survey:
    """Run to the end, or to an early one, and judge it, once by itself and, with strace, once more."""
    early_end = whole.early_end if early else None
    scene = whole if early_end is None else whole.until(early_end)
    folder.mkdir()
    started = time.monotonic()
    child = server.start(acquire, scene, folder / "whole.ome.zarr", io, 0)
    carry_out(None, child)
    messages = child.drain()
    ms = 1000 * (time.monotonic() - started)
    oracle = Oracle(scene)
    oracle.listen(messages)
    problems = oracle.complaints or oracle.judge_store(folder / "whole.ome.zarr", READERS["zarr-python"])
    if problems or not isinstance(messages[-1], Sealed):
        raise SurvivorError(f"{scene.name}, {io}: {problems or messages[-1:]}")
    syscalls = Counter[str]()
    if with_strace:
        syscalls = count_syscalls(
            server.start(acquire, scene, folder / "traced.ome.zarr", io, 0), folder / "trace"
        )
    shutil.rmtree(folder)
    closing = next(message.calls for message in messages if isinstance(message, Closing)) if early else 0
    return Survey(whole, io, early_end, closing, messages[-1].points, ms, syscalls)


def schedule(
    surveys: list[Survey], count: int, shares: dict[str, float], rng: np.random.Generator
) -> Iterator[Trial]:
    """At least ``count`` trials: calls and system calls spread evenly over every scene and io mode, timers
    and endings at random."""
    each = {way: -(-int(np.ceil(count * share)) // len(surveys)) for way, share in shares.items()}
    done = 0
    for found in surveys:
        plans: list[Plan] = [
            AtCall(found.closing + number)
            for number in spread(each["calls"], len(found.points) - found.closing, rng)
        ]
        plans += syscall_plans(each["syscalls"], found.syscalls, rng)
        plans += [AfterMs(float(ms)) for ms in rng.uniform(0, 1.1 * found.ms, each["timers"])]
        for plan in plans:
            yield _trial(found, plan, rng)
        done += len(plans)
    while done < count:  # every call has had its turn
        found = surveys[done % len(surveys)]
        yield _trial(found, AfterMs(float(rng.uniform(0, 1.1 * found.ms))), rng)
        done += 1


def _trial(found: Survey, plan: Plan, rng: np.random.Generator) -> Trial:
    reader = "tensorstore" if rng.random() < 1 / 3 else "zarr-python"
    endings = ENDINGS if found.early_end is None else GOING_ON
    return Trial(
        found.scene,
        found.io,
        plan,
        endings[int(rng.integers(len(endings)))],
        float(rng.random()),
        reader,
        found.early_end,
    )


@dataclass(frozen=True)
class Campaign:
    """Trials until ``count`` processes were killed. ``syscalls``: only at these. ``early_ends``: only those
    that are ended early and go on. ``every``: of scenes, io modes and ends, only each so manieth is tried.
    ``keep`` the folders of trials that broke a promise."""

    count: int
    seed: int = 1
    scenes: tuple[Scene, ...] = tuple(SCENES.values())
    io: tuple[str, ...] = IO_MODES
    syscalls: tuple[str, ...] = ()
    early_ends: bool = False
    every: int = 1
    keep: bool = False
    until_violation: bool = False


def run(
    server: ForkServer, folder: Path, campaign: Campaign, progress: Callable[[Summary], None] | None = None
) -> Summary:
    started, summary, rng = time.monotonic(), Summary(campaign.seed), np.random.default_rng(campaign.seed)
    with_strace = strace_works()
    if not with_strace:
        summary.left_out.append("system calls: strace is missing or may not trace here")
    if campaign.syscalls:
        assert with_strace, "strace is missing, or may not trace here"
    ends = (True,) if campaign.early_ends else (False,) if campaign.syscalls else (False, True)
    tried = list(product(campaign.scenes, campaign.io, ends))[:: campaign.every]
    surveys = [
        survey(server, scene, io, folder / "survey", early=early, with_strace=with_strace and not early)
        for scene, io, early in tried
    ]
    for found in surveys:
        summary.points.update(found.points)
        summary.syscalls.update(found.syscalls)
        if campaign.syscalls:
            for name in found.syscalls.keys() - set(campaign.syscalls):
                del found.syscalls[name]
    shares = ONLY_SYSCALLS if campaign.syscalls else SHARES if with_strace else WITHOUT_STRACE
    while summary.kills < campaign.count:
        trials = list(schedule(surveys, campaign.count - summary.kills, shares, rng))
        for number in rng.permutation(len(trials)).tolist():
            trial = trials[number]
            place = folder / f"trial-{summary.trials + 1}"
            place.mkdir()
            verdict = TrialRun(server, trial, place).run()
            summary.add(verdict)
            if not (campaign.keep and verdict.problems):
                shutil.rmtree(place)
            summary.seconds = round(time.monotonic() - started, 1)
            if progress is not None:
                progress(summary)
            if summary.kills >= campaign.count or (summary.violations and campaign.until_violation):
                return summary
    return summary
