"""Many trials: how often each scene calls the storage, which kills follow from that, and the account of what
came out."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.properties.readers import READERS

import shardwright

from .daemons import DaemonTrial, draw_daemons
from .oracle import Oracle
from .plans import AfterMs, AtCall, Plan, carry_out, count_syscalls, spread, strace_works, syscall_plans
from .processes import Closing, Created, Sealed, acquire, overwrite
from .scenes import IO_MODES, SCENES, Scene
from .trial import ENDINGS, GOING_ON, Trial, Verdict, store_of_before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.fork_server import ForkServer

SHARES = {"calls": 0.6, "syscalls": 0.2, "timers": 0.2}  # of all trials
WITHOUT_STRACE = {"calls": 0.75, "syscalls": 0.0, "timers": 0.25}
KILLS_OF_EACH = 3  # at least: a run that nobody kills comes before them
ONLY_SYSCALLS = {"calls": 0.0, "syscalls": 1.0, "timers": 0.0}
# of a writer's life: all of it; until its store is made; all of it in place of a finished store; its end,
# though more frames come
WHOLE, CREATION, OVERWRITING, EARLY_END = PARTS = ("whole", "creation", "overwriting", "early end")


def seed_of_code() -> int:
    """A seed that follows from the code: each change of it draws other kills."""
    found = hashlib.sha256()
    for path in sorted(Path(shardwright.__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return int.from_bytes(found.digest()[:4], "big")


@dataclass(frozen=True)
class Survey:
    """A part of one scene in one io mode, run to its end: where it could have been killed, at storage calls
    ``first`` to ``last``. ``early_end``: the frames after which it was ended."""

    scene: Scene
    io: str
    part: str
    early_end: int | None
    first: int
    last: int
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
    daemons: int = 0  # of the kills
    looks: int = 0
    spilled: int = 0
    untried: int = 0  # parts of scenes for which ``count`` is too small
    surveyed: list[tuple[str, str, str]] = field(default_factory=list)  # (scene, io, part)
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
        self.looks += verdict.looks
        self.spilled += verdict.spilled
        self.ways[verdict.way] += 1
        if verdict.problems:
            self.violations.append({"trial": verdict.trial, "problems": verdict.problems})

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
    server: ForkServer, whole: Scene, io: str, part: str, folder: Path, *, with_strace: bool
) -> Survey:
    """Run to the end, or to an early one, and judge it, once by itself and, with strace, once more."""
    early_end = whole.early_end if part == EARLY_END else None
    scene = whole if early_end is None else whole.until(early_end)
    store = folder / "acquired" / "whole.ome.zarr"  # as deep as those of the trials: folders above are synced
    store.parent.mkdir(parents=True)
    if part == OVERWRITING:
        store_of_before(store)
    started = time.monotonic()
    child = server.start(overwrite if part == OVERWRITING else acquire, scene, store, io, 0)
    carry_out(None, child)
    messages = child.drain()
    ms = 1000 * (time.monotonic() - started)
    oracle = Oracle(scene)
    oracle.listen(messages)
    problems = oracle.complaints or oracle.judge_store(store, READERS["zarr-python"])
    if problems or not isinstance(messages[-1], Sealed):
        raise SurvivorError(f"{scene.name}, {io}: {problems or messages[-1:]}")
    syscalls = Counter[str]()
    if with_strace:
        syscalls = count_syscalls(
            server.start(acquire, scene, folder / "traced.ome.zarr", io, 0), folder / "trace"
        )
    shutil.rmtree(folder)
    points = messages[-1].points
    said = {type(message): getattr(message, "calls", 0) for message in messages}
    first, last = {CREATION: (1, said[Created]), EARLY_END: (1 + said[Closing], len(points))}.get(
        part, (1, len(points))
    )
    return Survey(whole, io, part, early_end, first, last, points, ms, syscalls)


def schedule(
    surveys: list[Survey], count: int, shares: dict[str, float], rng: np.random.Generator
) -> Iterator[Trial]:
    """At least ``count`` trials: calls and system calls spread evenly over every scene and io mode, timers
    and endings at random."""
    each = {way: -(-int(np.ceil(count * share)) // len(surveys)) for way, share in shares.items()}
    done = 0
    for found in surveys:
        plans: list[Plan] = [
            AtCall(found.first - 1 + number)
            for number in spread(each["calls"], 1 + found.last - found.first, rng)
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
        found.part == OVERWRITING,
    )


@dataclass(frozen=True)
class Campaign:
    """Trials until ``count`` writers and ``daemons`` daemons were killed. ``syscalls``: only at these.
    ``parts``: of writers' lives. ``keep`` the folders of trials that broke a promise: in a test they are
    evidence."""

    count: int
    daemons: int = 0
    seed: int = field(default_factory=seed_of_code)
    scenes: tuple[Scene, ...] = tuple(SCENES.values())
    io: tuple[str, ...] = IO_MODES
    syscalls: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS
    keep: bool = True
    until_violation: bool = False

    @property
    def command(self) -> str:
        """That draws the same."""
        given = {
            "count": [self.count],
            "daemon-count": [self.daemons],
            "seed": [self.seed],
            "scene": [repr(scene.name) for scene in self.scenes] if len(self.scenes) < len(SCENES) else [],
            "io": self.io if self.io != IO_MODES else [],
            "syscall": self.syscalls,
            "part": [repr(part) for part in self.parts] if self.parts != PARTS else [],
        }
        return " ".join(
            ["./tools/prove kills", *(f"--{name} {value}" for name in given for value in given[name])]
        )


def run(
    server: ForkServer, folder: Path, campaign: Campaign, progress: Callable[[Summary], None] | None = None
) -> Summary:
    print(campaign.command, file=sys.stderr)  # for whoever looks at a violation
    started, summary, rng = time.monotonic(), Summary(campaign.seed), np.random.default_rng(campaign.seed)
    for trial in _trials(server, folder, campaign, summary, rng):
        place = folder / f"trial-{summary.trials + 1}"
        place.mkdir()
        verdict = trial.run(server, place)
        summary.add(verdict)
        if not (campaign.keep and verdict.problems):
            shutil.rmtree(place)
        summary.seconds = round(time.monotonic() - started, 1)
        if progress is not None:
            progress(summary)
        if summary.violations and campaign.until_violation:
            break
    return summary


def _trials(
    server: ForkServer, folder: Path, campaign: Campaign, summary: Summary, rng: np.random.Generator
) -> Iterator[Trial | DaemonTrial]:
    """Until ``summary``, which has the verdict of each before the next one is drawn, counts enough kills."""
    if campaign.count:
        surveys, shares = _surveys(server, folder, campaign, summary, rng)
    while summary.kills < campaign.count:
        trials = list(schedule(surveys, campaign.count - summary.kills, shares, rng))
        for number in rng.permutation(len(trials)).tolist():
            yield trials[number]
            if summary.kills >= campaign.count:
                break
    writers = summary.kills
    # some that spill and one that is stopped come first: a small campaign of another seed drew none
    wanted = [lambda trial: trial.spills] * 2 + [lambda trial: trial.stopped_after is not None]
    while summary.daemons < campaign.daemons:
        drawn = iter(lambda: draw_daemons(rng, campaign.daemons - summary.daemons), None)
        is_wanted = wanted.pop() if wanted else None
        yield next(trial for trial in drawn if is_wanted is None or is_wanted(trial))
        summary.daemons = summary.kills - writers


def _surveys(
    server: ForkServer, folder: Path, campaign: Campaign, summary: Summary, rng: np.random.Generator
) -> tuple[list[Survey], dict[str, float]]:
    """What may be killed, and the shares of the ways to do so."""
    with_strace = strace_works()
    if not with_strace:
        summary.left_out.append("system calls: strace is missing or may not trace here")
    if campaign.syscalls:
        assert with_strace, "strace is missing, or may not trace here"
    tried = [
        (scene, io, part)
        for scene, io, part in product(
            campaign.scenes, campaign.io, (WHOLE,) if campaign.syscalls else campaign.parts
        )
        # how shards are filled makes no difference before there is one
        if io == campaign.io[0] or part in (WHOLE, EARLY_END)
    ]
    drawn = rng.permutation(len(tried)).tolist()
    one_of_each = {tried[number][0].name: number for number in drawn}  # of the scenes
    first = [*dict.fromkeys([*one_of_each.values(), *drawn])][: max(1, campaign.count // KILLS_OF_EACH)]
    chosen = [tried[number] for number in sorted(first)]
    summary.untried = len(tried) - len(chosen)
    summary.surveyed = [(scene.name, io, part) for scene, io, part in chosen]
    surveys = [
        survey(server, scene, io, part, folder / "survey", with_strace=with_strace and part == WHOLE)
        for scene, io, part in chosen
    ]
    for found in surveys:
        summary.points.update(found.points)
        summary.syscalls.update(found.syscalls)
        if campaign.syscalls:
            for name in found.syscalls.keys() - set(campaign.syscalls):
                del found.syscalls[name]
    return surveys, ONLY_SYSCALLS if campaign.syscalls else SHARES if with_strace else WITHOUT_STRACE
