"""The world: lets everybody act in an order that the seed says, ends lives as the story says, and has the
oracle judge what is left."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import shardwright.acquire.acquisition as acquisition_module
import shardwright.acquire.ownership as ownership_module
import shardwright.acquire.sealer as sealer_module
import shardwright.acquire.store_folder as store_folder_module
import shardwright.acquire.store_metadata as metadata_module
import shardwright.shard.shard_row_files as files_module
from shardwright.acquire.core import Now
from shardwright.acquire.states import AcquisitionState
from shardwright.model.errors import (
    LockedError,
    OutputExistsError,
    ResumeError,
    ShardwrightError,
    StorageError,
    WorkerError,
)
from shardwright.model.frame_status import FrameStatus
from shardwright.model.names import WORKSPACE
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.recovery.unfinished import DAMAGED
from shardwright.shard.frame_log import BlockKind
from shardwright.shard.layout import slabs_of_shard_row
from shardwright.shard.manifest import has_manifest

from .camera import Camera
from .disk import DefectError, SimulatedDisk
from .faults import Faults
from .finished_store import left
from .oracle import Oracle, ViolationError, violation_of
from .points import KNOWN
from .process import MOST_CALLS, DiedError, Pool, Process, give_way, let_others_act
from .readers import Readers
from .simulated import simulated
from .story import Life, limits_of, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from shardwright.acquire.limits import Limits
    from shardwright.array.acquisition_spec import AcquisitionSpec

    from .process import Actor
    from .story import Story

CALLS_OF_A_FRAME = 200  # so many more may a life have: where all are slow, and each has its own files
IDLE_STEPS = 80  # without anything but time going on, 0.25 s each: nothing will end this wait
QUIET_STEPS = 8
WRITE_BACKS = 0.03  # a step
MOST_TRIES = 3  # to open a store on a disk that is not well
MOST_RECOVERIES = 5
ZOMBIE_STEPS = 80
STALL_NS = 12_000_000_000
MEMORY = Path("/dev/shm")


NOBODY = Life("nobody", "finish", 0, False, 0)


@dataclass(frozen=True)
class _Ended:
    """How the life before has ended."""

    take_over: bool = False
    power: bool = False


class World:
    """``trace`` hears of everything that happens, for people."""

    def __init__(self, story: Story, trace: Callable[[str], None] | None = None) -> None:
        self._story = story
        self._spec: AcquisitionSpec = plan_of(story.shape).spec
        self._rng = rng = random.Random(story.schedule)
        self._tell = trace
        self._trace = None if trace is None else self._note
        self._ns = 1_000_000_000
        self._boot = 1
        self._root = MEMORY / f"shardwright-world-{os.getpid()}"  # the same each time: paths are told
        _sweep()
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        self._path = self._root / "run.ome.zarr"
        self.disk = SimulatedDisk(self._root, rng)
        self.disk.pause = self._before_change
        self.disk.look = self._look
        # how often others go on between two looks of one
        self._crossed = random.Random(f"looks {story.schedule}").choice((0.0, 0.0, 0.02, 0.2))
        self.faults = Faults(rng)
        self.disk.full = lambda: self.faults.full
        self.oracle = Oracle(self._spec.grids, story.frames)
        self._camera = Camera(story, self.oracle, rng, self._trace)
        self.readers = Readers(
            story, self.disk, self._path, self._spec, self.oracle, self._note, self._seconds
        )
        self._actor: Actor | None = None  # that goes on now
        self._process: Process | None = None  # whose actor this is
        self._alive: list[Process] = []  # processes that have not ended
        self._zombies: list[tuple[Process, int]] = []
        self._took_over = False
        self.lives = self.crashes = 0
        self.steps = 0

    def play(self) -> None:
        """The whole story. Raises ``ViolationError``."""
        try:
            with self._simulated():
                try:
                    self._play()
                finally:
                    self.readers.kill()
                    for process in self._alive:
                        process.kill()
            self._verify()
        finally:
            self.disk.end()
            shutil.rmtree(self._root, ignore_errors=True)

    def _play(self) -> None:
        process: Process | None = None
        took = _Ended()
        for number, life in enumerate(self._story.lives):
            self._note(f"life {number}: {life}")
            if process is not None and not has_manifest(self._path / WORKSPACE):
                break
            self.lives += 1
            self.faults.begin(life.opening)
            self.oracle.faulty = self.oracle.faulty or bool(life.opening)
            try:
                process, power = self._opened(life, took, first=not number)
            except ResumeError:
                if has_manifest(self._path / WORKSPACE):
                    raise
                break  # the old writer has finished it
            if number:
                self.oracle.taken_up(process.acquisition.accounts, self._lost(process), power=power)
                self.readers.recovered()
            ended = self._live_through(process, life)
            if ended == "finish":
                break
            took = self._after(process, life, ended)
        assert process is not None
        self._end(process)

    def _live_through(self, process: Process, life: Life) -> str:
        self.faults.begin(life.faults)
        self.oracle.faulty = self.oracle.faulty or bool(life.faults)
        keep_empty = not store_folder_module.is_intact(self._path / WORKSPACE)
        self._camera.begin(process, life, keep_empty=keep_empty)
        ended = self._live(process, life)
        self.faults.begin(())
        self._judge_failure(process, life)
        return ended

    def _judge_failure(self, process: Process, life: Life) -> None:
        """A life fails by what happened to it, and tells that."""
        why = process.core.why
        if why is None:
            return
        self.oracle.failures += 1
        died = life.worker_dies is not None
        # a write that failed behind the scenes may be heard of in a later life
        earlier = any(f.kind == "write back" for each in self._story.lives for f in each.faults)
        if not life.faults and not died and not earlier and not self.oracle.spoiled:
            raise ViolationError(f"the acquisition failed, though nothing did: {why}")
        if not (why.is_a(StorageError) or (died and why.is_a(WorkerError))):
            raise ViolationError(f"the acquisition failed of something else: {why}")

    def _after(self, process: Process, life: Life, ended: str) -> _Ended:
        """A process is over in the way that the story says."""
        if ended == "failed":
            process.end()
            return _Ended()
        self.crashes += 1
        self.oracle.kills += 1
        if ended == "take over":
            process.fenced = True
            # it will fail, and may say so in the log before the other has a copy of that
            self.oracle.failures += 1
            self._zombies.append((process, self._rng.randint(1, ZOMBIE_STEPS)))
            self._took_over = self.readers.judge.taken_over = True
            return _Ended(take_over=True)
        self._kill(process)
        return _Ended(power=ended == "power" and self._lose_power())

    def _kill(self, process: Process) -> None:
        """If only this process has heard that a sync failed, no later one can know it: the pages are in
        memory, clean, and the next power cut takes them."""
        if process.is_unmarked:
            self.oracle.excuse()
        process.kill()

    def _end(self, process: Process) -> None:
        sealed = process.core.state is AcquisitionState.SEALED
        if sealed:
            self.oracle.sealed(process.core, process.ring.used)
        receipt = process.acquisition.receipt() if sealed else None
        if not process.calls.is_dead:
            process.end()
        # a writer may have been killed behind its end, or have lost its lock as it removed its store
        self._recover_all()
        self._judge_names()
        found = left(self._path, self._spec, is_spoiled=bool(self.oracle.spoiled))
        self.oracle.judge(found, receipt)
        self.readers.end()
        self.readers.judge.finish(found)

    def _verify(self) -> None:
        """As ``shardwright verify``: metadata, shapes, sums and the frame table fit each other."""
        if self.oracle.spoiled or not self._path.exists():
            return
        report = verify_store(self._path, threads=1)
        if not report.ok:
            raise ViolationError(f"the finished store fails its verification: {report.problems[0]}")

    def _judge_names(self) -> None:
        """Nothing is left behind: no working file in the store, and nothing beside it."""
        beside = [path for path in self._root.iterdir() if path != self._path]
        # a writer that was taken over may die between two calls at any time, and then nobody looks again
        late = re.compile(r"\..*\.\d+\.new") if self._took_over else None
        within = [
            path
            for path in self._path.rglob("*")
            if path.name.startswith(".")
            and not (late and late.fullmatch(path.name))
            and not (path.name == DAMAGED and self.oracle.faulty)  # for whoever wants to look
        ]
        if leftovers := sorted(str(path.relative_to(self._root)) for path in (*beside, *within)):
            raise ViolationError(f"left behind: {leftovers}")

    def _recover_all(self) -> None:
        """As ``shardwright recover ROOT``: again where an unfinished store has got its name back."""
        for process, _ in self._zombies:
            process.kill()
        self._zombies.clear()
        for _ in range(MOST_RECOVERIES):
            for path in (found := unfinished_stores(self._root)):
                self._recover(path)
            if not found:
                return
        raise ViolationError(f"recovery leaves something to recover: {found}")

    def _recover(self, path: Path) -> None:
        self._path, before, untold = path, self._path, self.disk.untold
        process = self._unjudged(self._story)
        try:
            if has_manifest(path / WORKSPACE):
                self._seal_by(process)
            else:
                with suppress(ShardwrightError):  # nothing is left of it
                    recover_store(path, Pool(1, None), threads=1)  # which has nothing to seal
        except (LockedError, ResumeError) as error:
            self._note(f"{path}: {error}")  # another one that was recovered before has cleared it away
        except StorageError as error:
            if not self.disk.untold < untold:  # a sync that failed before is told now, once
                raise
            self._note(f"{path}: {error}")
        finally:
            self._path = before
            process.kill()

    def _seal_by(self, process: Process) -> None:
        """Takes a store up and ends it. The real ``recover_store`` would wait for threads that there are
        not."""
        process.begin(take_over=False)
        process.to_its_end(process.opener)
        process.settle_missing()
        process.finish(keep_empty=False)
        for _ in range(MOST_CALLS):
            if process.is_over:
                process.end()
                return
            self._act(process, self._actors(process, None, (0, 4, 4, 1)))
        raise ViolationError(f"recovery does not end: {process.waits_for()}")

    # ------------------------------------------------------------------ how a process begins

    def _opened(self, life: Life, before: _Ended, *, first: bool) -> tuple[Process, bool]:
        """A process that has made the store, or taken it up: killed at that and begun again as often as the
        life says; and whether the power was cut since the last one."""
        take_over, power = before.take_over, before.power
        for calls in () if first else life.deaths:
            process, is_open = self._begins(life, calls, take_over=None if first else take_over)
            if is_open:
                return process, power
            self._note(f"recovery is killed at call {calls}")
            self._kill(process)
            take_over = take_over and self._rng.random() < 0.5
            self.crashes += 1
            if self._rng.random() < 0.3:
                power = self._lose_power()
        return self._begins(life, None, take_over=None if first else take_over)[0], power

    def _begins(self, life: Life, calls: int | None, *, take_over: bool | None) -> tuple[Process, bool]:
        """A process that begins, and whether it has the store before it is to be killed. What the disk
        refuses is tried again; with nothing wrong in the end but syncs that failed before, each told once."""
        for tries in itertools.count():
            if tries == MOST_TRIES:
                self.faults.begin(())
            process, untold = self._begun(life, take_over, again=tries > 0), self.disk.untold
            try:
                return process, self._opens_within(process, calls)
            except LockedError:
                process.kill()
                if not self._zombies or take_over:
                    raise
                take_over = True  # the old writer has the lock still
            except OutputExistsError:
                process.kill()
                if take_over is not None or not self.faults.met:
                    raise
                take_over = False  # what a creation left that failed twice: nobody knows that no frame came
            except StorageError as error:
                process.kill()
                if not self.faults.met and not self.disk.untold < untold:
                    raise
                self._note(f"it cannot be opened: {error}")
        raise AssertionError("it counts without end")

    def _begun(self, life: Life, take_over: bool | None, *, again: bool) -> Process:
        process = self._new_process(self._story, life)
        process.begin(take_over=take_over, again=again)
        return process

    def _new_process(self, story: Story, life: Life) -> Process:
        def limits(_: AcquisitionSpec) -> Limits:
            return limits_of(story)

        process = Process(
            story, life, self.disk, self._let, self._path, self._spec, limits, self.oracle, self._trace
        )
        self._alive = [each for each in self._alive if not each.calls.is_dead] + [process]
        return process

    def _unjudged(self, story: Story) -> Process:
        """A process of which the oracle of one acquisition has no say."""
        process = self._new_process(story, NOBODY)
        process.fenced = True
        return process

    def _opens_within(self, process: Process, calls: int | None) -> bool:
        """Returns whether it has the store before it is to be killed."""
        for call in range(MOST_CALLS):
            if process.is_open:
                return True
            if call == calls:
                return False
            self._step_zombies()
            self.readers.moment()
            self._let(process, process.opener)
        raise ViolationError("it does not open the store, and tells no error")

    def _lost(self, process: Process) -> list[int]:
        """Sequences that the frame log has as lost."""
        return [
            n
            for kind, _, records in process.acquisition.folder.log.blocks()
            if kind is BlockKind.EVENTS
            for n in records["sequence"][records["fate"] == FrameStatus.LOST].tolist()
        ]

    # ------------------------------------------------------------------ what is simulated

    def _simulated(self) -> AbstractContextManager[None]:
        """Time, threads and the kernel's boot are the world's too."""
        instead = (
            (acquisition_module, "_now", self._now),
            (sealer_module.Sealer, "start", lambda _: None),
            (sealer_module, "side_by_side", self._side_by_side),
            (files_module, "side_by_side", self._side_by_side),
            (files_module, "MOST_SYNCED_ALONE", self._story.synced_alone),
            (files_module, "syncs_as_one", lambda _: True),
            (ownership_module, "time", SimpleNamespace(sleep=lambda _: give_way())),
            (metadata_module, "time", SimpleNamespace(monotonic=self._seconds, time=self._seconds)),
            (store_folder_module, "boot_id", lambda: f"{self._boot:036}"),
            *self.readers.instead(),
        )
        return simulated(self.disk, self._reach, self._story.schedule, instead)

    def _side_by_side(self, action: Callable[[int], object], count: int, *, syncs: bool = False) -> None:
        """In any order; the first error ends it."""
        numbers = list(range(count))
        self._rng.shuffle(numbers)
        for number in numbers:
            action(number)

    def _seconds(self) -> float:
        return self._ns / 1e9

    def _now(self) -> Now:
        return Now(self._ns, self._ns)

    def _reach(self, point: str) -> None:
        if self._actor is None:
            return
        self._pause()
        process, actor = self._process, self._actor
        if process is None:
            raise DefectError("an actor goes on past the world")
        if point not in KNOWN:
            raise DefectError(f"a failpoint that no story chooses: {point}")
        actor.wrong = None
        actor.unmarked = max(0, actor.unmarked - 1)
        if process.pool.dying and actor in process.pool.actors:
            process.pool.dying = False
            raise DiedError
        if self._tell is not None:
            self._note(f"    {self._who()} {point}")
        if self.faults.stalls(point):
            self._stall()
        actor.is_late = self.faults.makes_late(point)
        try:
            actor.wrong = self.faults.reach(point)
        except OSError:
            self._rot()
            if point == "staging.before_read":  # a bad sector: the frame's pixels lie nowhere else
                self.oracle.excuse()
            raise
        if actor.wrong is not None and not actor.wrong.done:
            self._rot()

    def _before_change(self) -> None:
        """Within a change of names, behind the looks that allow it."""
        if self._actor is not None and self._actor.is_late:
            self._actor.is_late = False
            self._stall()
        else:
            self._pause()

    def _stall(self) -> None:
        """Whoever goes on now does not, for long."""
        if self._actor is None:
            raise DefectError("nobody made the call")
        self._actor.stalled_until_ns = self._ns + STALL_NS
        while self._actor.stalled_until_ns > self._ns:
            self._pause()

    def _rot(self) -> None:
        """If the fault that was just met says so: spoils what is in one shard in progress."""
        process = self._process
        if not self.faults.rots or process is None or not process.has_acquisition:
            return
        rows = process.acquisition._sealer._files
        shards = [(row, shard) for row, files in rows.items() for shard in files.shards if shard is not None]
        if not shards:
            return
        row, shard = self._rng.choice(sorted(shards, key=lambda each: str(each[1].final_path)))
        self._note(f"rot takes {shard.working_path.name} of shard row {row}")
        self.disk.spoil(shard._file.descriptor)
        layout = process.acquisition._layout
        self.oracle.spoiled.update(slabs_of_shard_row(layout.of(row), row))

    def _who(self) -> str:
        process = self._process
        if process is None:
            return "-"
        old = "old " if process.fenced else ""
        if self._actor is process.sealer:
            return f"{old}sealer"
        if self._actor is process.opener:
            return f"{old}opener"
        return f"{old}worker"

    def _pause(self) -> None:
        if self._actor is not None:
            let_others_act(self.disk)

    def _look(self) -> None:
        if self._crossed and self._actor is not None and self._rng.random() < self._crossed:
            self._pause()

    def _let(self, process: Process, actor: Actor) -> None:
        before = self._actor, self._process
        self._actor, self._process = actor, process
        self._ns = max(self._ns, actor.stalled_until_ns)  # nobody else is asked
        try:
            actor.step()
        finally:
            self._actor, self._process = before

    def _note(self, what: str) -> None:
        if self._tell is not None:
            self._tell(f"{self._ns / 1e6 - 1000:10.1f} ms  {what}")

    def _lose_power(self) -> bool:
        self._note("power cut")
        for process, _ in self._zombies:
            process.kill()
        self._zombies.clear()
        self._boot += 1
        self.readers.lose_power()
        self.disk.lose_power()
        self.oracle.power_cuts += 1
        return True

    def _step_zombies(self) -> None:
        """Writers that were taken over and do not know it yet."""
        if not self._zombies or self._rng.random() < 0.5:
            return
        process, still = self._zombies.pop(self._rng.randrange(len(self._zombies)))
        if still and not process.is_over:
            self._act(process, self._actors(process, None, (0, 4, 4, 1)))
            self._zombies.append((process, still - 1))
        else:
            process.kill()

    # ------------------------------------------------------------------ one life

    def _live(self, process: Process, life: Life) -> str:
        """Until it ends: how it did."""
        camera, idle, begun, counted = self._camera, 0, 0, 0
        most = MOST_CALLS + CALLS_OF_A_FRAME * len(self._story.frames)
        while True:
            begun += 1
            counted += not life.ending or camera.finished
            if process.is_over:
                return "failed" if process.core.state is AcquisitionState.FAILED else "finish"
            if life.ends != "finish" and counted > life.at:
                self._note(f"{life.ends}")
                return life.ends
            if begun > most and self.faults.full:
                return "kill"
            if begun > most:
                raise ViolationError(f"it does not end: {process.waits_for()}")
            self._step_zombies()
            self.readers.moment()
            actors = self._actors(process, camera, life.pace)
            if len(actors) > 1 or camera.waits_for_time:
                idle = 0
            else:
                idle += 1
                self._ns += 250_000_000
                if idle == QUIET_STEPS:
                    self.faults.make_room()
                if idle > IDLE_STEPS:
                    if self.faults.full:
                        return "kill"
                    raise ViolationError(f"nothing can go on: {process.waits_for()}")
            self._act(process, actors)
            if self._rng.random() < WRITE_BACKS:
                self.disk.write_back(fails=self.faults.fails_write_back())
            camera.look(quiet=idle > QUIET_STEPS)
            self.steps += 1

    def _actors(
        self, process: Process, camera: Camera | None, pace: tuple[int, int, int, int]
    ) -> list[tuple[int, str, int]]:
        """Who can act: (weight, who, number)."""
        actors = [(pace[3], "clock", 0)]
        if camera is not None and camera.can_act(self._ns):
            actors.append((pace[0], "camera", 0))
        if process.sealer_goes_on and process.sealer.stalled_until_ns <= self._ns:
            actors.append((pace[1], "sealer", 0))
        workers = process.pool.actors
        actors += [
            (pace[2], "worker", number)
            for number in process.workers_that_go_on()
            if workers[number].stalled_until_ns <= self._ns
        ]
        if process.has_reports:
            actors.append((4, "owner", 0))
        return actors

    def _act(self, process: Process, actors: list[tuple[int, str, int]]) -> None:
        ((_, who, number),) = (
            self._rng.choices(actors, [weight for weight, _, _ in actors]) if len(actors) > 1 else actors
        )
        if who == "camera":
            self._camera.act(self._ns)
        elif who == "sealer":
            self._let(process, process.sealer)
        elif who == "worker":
            self._let(process, process.pool.actors[number])
        else:
            if who == "clock":
                self._ns += self._rng.choice((100_000, 1_000_000, 20_000_000, 300_000_000))
            released = process.poll()
            if not process.fenced:
                self._camera.release(released)


@cache
def _sweep() -> None:
    """Deletes what worlds of processes that are dead have left in memory."""
    for folder in MEMORY.glob("shardwright-world-*"):
        pid = folder.name.removeprefix("shardwright-world-").partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def play(story: Story, trace: Callable[[str], None] | None = None) -> tuple[World, str | None]:
    """A story, and what was wrong: None when every promise was kept."""
    world = World(story, trace)
    return world, violation_of(world.play)
