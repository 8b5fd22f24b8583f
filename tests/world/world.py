"""The world: lets everybody act in an order that the seed says, ends lives as the story says, and has the
oracle judge what is left."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import shardwright.acquire.acquisition as acquisition_module
import shardwright.acquire.sealer as sealer_module
import shardwright.disk.filesystems as filesystems_module
import shardwright.recovery.recover_store as recover_module
import shardwright.scan.store_scan as store_scan
import shardwright.shard.intact_mark as intact_mark_module
import shardwright.store.ownership as ownership_module
import shardwright.store.store_folder as folder_module
import shardwright.store.store_metadata as metadata_module
from shardwright.acquire.call_time import Now
from shardwright.acquire.states import AcquisitionState, FilesState
from shardwright.disk.files import read_range
from shardwright.disk.side_by_side import side_by_side
from shardwright.disk.table_file import TableFile
from shardwright.model.errors import (
    LockedError,
    OutputExistsError,
    ResumeError,
    ShardwrightError,
    StorageError,
    WorkerError,
)
from shardwright.model.frame_status import FrameStatus
from shardwright.model.names import DAMAGED, WORKSPACE
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.shard.frame_log import BlockKind
from shardwright.shard.layout import slabs_of_shard_row
from shardwright.shard.manifest import has_manifest
from shardwright.shard.shard_row_files import LOG_NAME, STAGING_NAME

from .camera import Camera
from .crossings import Crossings
from .disk import DefectError, SimulatedDisk
from .faults import Faults
from .finished_store import FinishedFacts, finished_facts, is_finished, left
from .oracle import Oracle, ViolationError, violation_of
from .points import KNOWN
from .process import MOST_CALLS, Actor, DiedError, Process, give_way, let_others_act
from .readers import Readers
from .story import LastDeath, Life, limits_of, plan_of
from .surroundings import everywhere, simulated
from .tables import frames_at, frames_of_shard, rows_at, staged_at, tables_in, written_places

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import numpy as np

    from shardwright.acquire.acquisition import Acquisition
    from shardwright.acquire.limits import Limits
    from shardwright.acquire.sealer import Sealer
    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.recovery.recover_store import Recovery

    from .story import Story

IDLE_STEPS = 80  # without anything but time going on, 0.25 s each: nothing will end this wait
QUIET_STEPS = 8
WRITE_BACKS = 0.03  # a step
MOST_TRIES = 3  # to open a store on a disk that is not well
MOST_RECOVERIES = 5
FAILING_READS = 0.04  # of the reads of shards in progress by recovery, in a story with such
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
        self.disk.torn = random.Random(f"torn {story.schedule}") if story.torn else None
        # how often others go on between two looks of one
        self._crossed = random.Random(f"looks {story.schedule}").choice((0.0, 0.0, 0.02, 0.2))
        self.faults = Faults(rng)
        self.disk.full = self.faults.has_no_room
        self.disk.refused = self.faults.meet
        self.oracle = Oracle(self._spec.grids, story.frames, self.faults, story.shape.width)
        self._camera = Camera(story, self.oracle, rng, self._trace)
        self.readers = Readers(
            story, self.disk, self._path, self._spec, self.oracle, self._note, self._seconds
        )
        self.crossings = Crossings(story)
        self._actor: Actor | None = None  # that goes on now
        self._process: Process | None = None  # whose actor this is
        self._alive: list[Process] = []  # processes that have not ended
        self._zombies: list[tuple[Process, int]] = []
        self._unread = None if story.unread is None else random.Random(story.unread)
        self._last_deaths = list(story.last_deaths)
        self._recovery: Recovery | None = None  # the last one of the store
        self._took_over = False
        self._goes_on = False  # whoever opens the store now
        self._finished: FinishedFacts | None = None  # once its first part has ended
        self._freed: set[str] = set()  # shards that were deleted for their names
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
        process = self._play_part(None)
        assert process is not None
        if self._story.again and process.core.state is AcquisitionState.SEALED and self._path.exists():
            self.oracle.sealed(process.core, process.ring.used)
            process.end()
            self._finished = finished_facts(self._path)
            process = self._play_part(process)
        assert process is not None
        self._end(process)

    def _play_part(self, process: Process | None) -> Process | None:
        """The lives of the acquisition until it ends; again, once it has ended in a ``process``. Returns the
        last one."""
        took, goes_on = _Ended(), process is not None
        for number, life in enumerate(self._story.again if goes_on else self._story.lives):
            self._note(f"life {number}: {life}")
            if (number or not goes_on) and process is not None and not has_manifest(self._path / WORKSPACE):
                break
            self.lives += 1
            self.faults.begin(life.opening)
            if number and life.flip is not None:
                self._flip_a_bit(random.Random(life.flip))
            try:
                is_first, self._goes_on = process is None, goes_on and not number
                process, power = self._opened(life, took, first=is_first)
            except ResumeError:
                if has_manifest(self._path / WORKSPACE):
                    raise
                break  # the old writer has finished it, or nothing may follow
            if not is_first:
                self.oracle.taken_up(process.acquisition.accounts, self._lost(process), power=power)
                self.readers.recovered()
            ended = self._live_through(process, life)
            if ended == "finish":
                break
            took = self._after(process, life, ended)
            self._judge_finished()
        return process

    def _judge_finished(self) -> None:
        """Whoever reads the files of a store that has gone on finds at least what it had when it was
        finished, however the life since then has ended."""
        if self._finished is not None and self._path.exists():
            lacking = self._finished.lacking(finished_facts(self._path))
            if lacking:
                raise ViolationError(f"a store that goes on says less than when it was finished: {lacking}")

    def _live_through(self, process: Process, life: Life) -> str:
        self.faults.begin(life.faults)
        self._camera.begin(process, life)
        late_errors = self.disk.late_errors
        ended = self._live(process, life)
        # a write that failed behind the scenes may be heard of in a later life
        failed = self.faults.is_broken or self.disk.late_errors > late_errors
        waits = self._story.settings.on_full == "block"  # for room, however long
        self._judge_failure(process, failed=failed or (self.faults.met and not waits))
        if process.core.end.why is not None and life.frees_name:
            self._free_name(process)
        self.faults.begin(())
        return ended

    def _judge_failure(self, process: Process, *, failed: bool) -> None:
        """A life fails by what happened to it, and tells that. ``failed``: the disk has, in this life."""
        why = process.core.end.why
        if why is None:
            return
        taken = self._taken_name(process)
        self.oracle.failures += 1
        died = process.pool.failure is not None or process.pool.has_lost_one
        if taken is None and not failed and not died and not self.oracle.spoiled:
            raise ViolationError(f"the acquisition failed, though nothing did: {why}")
        if taken is None and not why.is_a(StorageError) and not (died and why.is_a(WorkerError)):
            raise ViolationError(f"the acquisition failed of something else: {why}")

    def _taken_name(self, process: Process) -> str | None:
        """Returns the shard that has the name of one whose frames come again, if that is why it has failed:
        its record in the frame log or its journal is gone."""
        why = process.core.end.why
        if why is None or not why.is_a(OutputExistsError):
            return None
        shards = self._shards_of(self.oracle.log_cut | self.oracle.rows_damaged)
        return next((shard for shard in shards if str(self._path / shard) == str(why.got)), None)

    def _shards_of(self, rows: set[int]) -> list[str]:
        layout = plan_of(self._story.shape).layout
        return [shard for row in sorted(rows) for shard in layout.of(row).shard_paths(row)]

    def _free_name(self, process: Process) -> None:
        """As a user does who is told that a name is taken."""
        taken = self._taken_name(process)
        if taken is None:
            return
        path = self._path / taken
        self._note(f"{path.name} is deleted")
        self._freed.add(taken)
        self.readers.judge.forget_row(plan_of(self._story.shape).layout, taken)
        folder = self.disk.open(str(path.parent), os.O_RDONLY | os.O_DIRECTORY)
        self.disk.unlink(folder, path.name)
        self.disk.sync(folder)
        self.disk.close(folder)

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
        if process.is_unmarked:
            self.oracle.leave_unmarked()
        process.kill()

    def _end(self, process: Process) -> None:
        sealed = process.core.state is AcquisitionState.SEALED
        if sealed:
            self.oracle.sealed(process.core, process.ring.used)
        receipt = process.acquisition.receipt() if sealed else None
        is_known = receipt is not None  # whoever had sent what is in it is alive
        if sealed and (death := self._next_death()) is not None and death.at is not None:
            self._die_last(process, death)
        elif not process.calls.is_dead:
            process.end()
        # a writer may have been killed behind its end, or have lost its lock as it removed its store
        self._recover_all()
        self.readers.recovered()
        self._judge_names()
        unknown = self._shards_of(self.oracle.log_cut | self.oracle.rows_damaged)
        grids, frames = self._spec.grids, self._story.frames
        gone = [grids.slab_of_position(frames[n].position) for n in self.oracle.excused_since(0)]
        uncovered = self._shards_of(set(map(grids.shard_row_of_slab, gone)))
        found = left(
            self._path,
            self._spec,
            is_spoiled=bool(self.oracle.spoiled),
            unknown=unknown,
            uncovered=uncovered,
        )
        if receipt is None and self._recovery is not None:
            receipt = self._recovery.receipt
        self.oracle.judge(found, receipt, is_known=is_known)
        self.readers.end()
        self.readers.judge.finish(found)

    def _verify(self) -> None:
        """As ``shardwright verify``: metadata, shapes, sums and the frame table fit each other."""
        if self.oracle.spoiled or not self._path.exists():
            return
        report = verify_store(self._path, threads=1)
        problems = [
            problem
            for problem in report.problems
            if not (
                problem.where in self._freed and problem.what.startswith("missing, although it was sealed")
            )
        ]
        if problems:
            raise ViolationError(f"the finished store fails its verification: {problems[0]}")
        if report.shards_recorded != report.shards:
            raise ViolationError(f"{report.shards} shards, of which {report.shards_recorded} are on record")

    def _judge_names(self) -> None:
        """Nothing is left behind: no working file in the store, and nothing beside it."""
        beside = [path for path in self._root.iterdir() if path != self._path]
        # a writer that was taken over may die between two calls at any time, and then nobody looks again
        late = re.compile(r"\..*\.\d+\.new") if self._took_over else None
        # by a byte that has changed, or by a cut that left a header in memory of which the sync had failed
        may_be_damaged = bool(self.oracle.rows_damaged or (self.oracle.power_cuts and self.faults.has_failed))
        within = [
            path
            for path in self._path.rglob("*")
            if path.name.startswith(".")
            and not (late and late.fullmatch(path.name))
            and not (path.name == DAMAGED and may_be_damaged)  # for whoever wants to look
        ]
        if leftovers := sorted(str(path.relative_to(self._root)) for path in (*beside, *within)):
            raise ViolationError(f"left behind: {leftovers}")

    def _next_death(self) -> LastDeath | None:
        """Of who is at work once no life is left to begin; None: it comes to its end."""
        return self._last_deaths.pop(0) if self._last_deaths else None

    def _die_last(self, process: Process, death: LastDeath) -> None:
        self._note("the last one is killed")
        self.crashes += 1
        self.oracle.kills += 1
        self._kill(process)
        if death.power:
            self._lose_power()
            self.oracle.lose_what_is_not_durable()

    def _recover_all(self) -> None:
        """As ``shardwright recover ROOT``: again where an unfinished store has got its name back, and where
        that is killed."""
        for process, _ in self._zombies:
            process.kill()
        self._zombies.clear()
        rounds = 0
        while found := unfinished_stores(self._root):
            if rounds == MOST_RECOVERIES:
                raise ViolationError(f"recovery leaves something to recover: {found}")
            untold, freed = self.disk.untold, len(self._freed)
            if not all(self._recover(path) for path in found):
                continue  # it was killed
            # One that is told of a sync that had failed before ends with that, and is to be run again. A sync
            # of the whole filesystem may have failed for any number of folders, of which each tells once.
            # So does one that finds a name taken: a shard row has many shards.
            rounds += self.disk.untold >= untold and len(self._freed) == freed

    def _recover(self, path: Path) -> bool:
        """Returns whether it was let come to its end."""
        self._path, before = path, self._path
        self.crossings.taken_up(path, how="recoveries")
        untold, late_errors = self.disk.untold, self.disk.late_errors
        death = self._next_death() or LastDeath(at=None, power=False)
        if death.flip is not None:
            self._flip_a_bit(random.Random(death.flip))
            self.oracle.lose_what_is_excused()
        process = self._unjudged(self._story)
        self.faults.begin(death.faults)
        try:
            if not self._recovers(process, path, death.at):
                self._die_last(process, death)
                return False
        except ShardwrightError as error:
            self._note(f"{path}: {error}")
            if process.has_acquisition and process.core.end.why is not None:
                failed = self.faults.met or self.disk.late_errors > late_errors
                self._judge_failure(process, failed=failed)
                self._free_name(process)
            elif isinstance(error, (LockedError, ResumeError)):
                pass  # another one that was recovered before has cleared it away
            elif not isinstance(error, StorageError) or not (self.faults.met or self.disk.untold < untold):
                raise  # else a sync that failed before is told now, once
            if self.faults.met:
                return False  # again, on a disk that works
        finally:
            self.faults.begin(())
            self._path = before
            process.kill()
        if process.recovery is not None and path == before:
            self._recovery = process.recovery
        return True

    def _recovers(self, process: Process, path: Path, calls: int | None) -> bool:
        """Runs ``recover_store`` in a process: its own thread, the sealer and the workers by turns. Returns
        whether it came to its end before that many ``calls``, if there is such a limit."""

        def recover() -> None:
            process.recovery = recover_store(path, process.pool, threads=1)

        process.opener = Actor(self.disk, process.calls, recover)
        for call in range(MOST_CALLS):
            if process.is_open:
                return True
            if call == calls:
                return False
            self.readers.moment()
            actors = [process.opener, *([process.sealer] if process.sealer_goes_on else [])]
            actors += [process.pool.actors[number] for number in process.workers_that_go_on()]
            self._ns += self._rng.choice((0, 100_000, 20_000_000))
            self._let(process, self._rng.choice(actors))
        waits = process.waits_for() if process.has_acquisition else "it has no acquisition yet"
        raise ViolationError(f"recovery does not end: {waits}")

    # ------------------------------------------------------------------ how a process begins

    def _opened(self, life: Life, before: _Ended, *, first: bool) -> tuple[Process, bool]:
        """A process that has made the store, or taken it up: killed at that and begun again as often as the
        life says; and whether the power was cut since the last one."""
        take_over, power = before.take_over, before.power
        if not first:
            how = "take-overs" if take_over else "resumes after a power cut" if power else "resumes"
            self.crossings.taken_up(self._path, how=how)
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
                if take_over is not None or not (tries or self.faults.met):
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
        process.begin(take_over=take_over, again=again, goes_on=self._goes_on)
        return process

    def _new_process(self, story: Story, life: Life) -> Process:
        def limits(_: AcquisitionSpec) -> Limits:
            return limits_of(story)

        declared = plan_of(story.shape).declared
        process = Process(
            story, life, self.disk, self._let, self._path, declared, limits, self.oracle, self._trace
        )
        self._alive = [each for each in self._alive if not each.calls.is_dead] + [process]
        self.oracle.begin()
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
            for n in records["sequence"][records["status"] == FrameStatus.LOST].tolist()
        ]

    # ------------------------------------------------------------------ what is simulated

    def _simulated(self) -> AbstractContextManager[None]:
        """Time, threads and the kernel's boot are the world's too."""
        instead = (
            (acquisition_module, "_now", self._now),
            (sealer_module.Sealer, "start", lambda _: None),
            (sealer_module.Sealer, "join", self._joins(sealer_module.Sealer.join)),
            (acquisition_module.Acquisition, "poll", _polls(acquisition_module.Acquisition.poll)),
            (recover_module, "begin_restored", self._begins_restored(recover_module.begin_restored)),
            *everywhere(side_by_side, self._side_by_side),
            (threading.Thread, "start", _start),
            (filesystems_module, "MOST_SYNCED_ALONE", self._story.synced_alone),
            (filesystems_module, "syncs_as_one", lambda _: True),
            (ownership_module, "time", SimpleNamespace(sleep=lambda _: give_way())),
            (folder_module, "time", SimpleNamespace(sleep=lambda _: give_way(), time_ns=lambda: self._ns)),
            (metadata_module, "time", SimpleNamespace(monotonic=self._seconds, time=self._seconds)),
            (intact_mark_module, "boot_id", lambda: f"{self._boot:036}"),
            (TableFile, "read_into", self._excuses_staged(TableFile.read_into)),
            (
                store_scan._FoundFile,
                "read",
                lambda file, offset, nbytes: self._read_of_shard(file.path, offset, nbytes),
            ),
            *self.readers.instead(),
            *self.crossings.instead(),
        )
        schedule = self._story.schedule
        order = random.Random(f"order {schedule}") if self._story.in_no_order else None
        return simulated(self.disk, self._reach, schedule, instead, order)

    def _begins_restored(self, begin: Callable[..., Acquisition]) -> Callable[..., Acquisition]:
        """Of ``recover_store``: the process has the acquisition that it makes."""

        def begin_restored(*args: Any) -> Acquisition:
            acquisition, process = begin(*args), self._process
            assert process is not None, "only processes recover"
            process.take(acquisition)
            self.oracle.write_off(acquisition._core.accounts)
            return acquisition

        return begin_restored

    def _joins(self, join: Callable[[Sealer], None]) -> Callable[[Sealer], None]:
        """Who waits for the sealer lets it go on."""

        def joined(sealer: Sealer) -> None:
            process = self._process
            while process is not None and process.has_acquisition and not process.sealer.is_over:
                give_way()
            join(sealer)

        return joined

    def _excuses_staged(
        self, read_into: Callable[[TableFile, int, np.ndarray], None]
    ) -> Callable[[TableFile, int, np.ndarray], None]:
        """A bad sector excuses its frame, whose pixels lie nowhere else. The call remembers which: as long as
        the world did, a reader that acted meanwhile made it forget."""

        def read(file: TableFile, offset: int, target: np.ndarray) -> None:
            is_staging = file.kind == "staging" and self._actor is not None
            held = staged_at(file.descriptor, offset, self._spec, by_record=False) if is_staging else set()
            try:
                read_into(file, offset, target)
            except StorageError:
                self.oracle.excuse(held)
                raise

        return read

    def _read_of_shard(self, path: Path, offset: int, nbytes: int) -> bytes:
        """By a recovery that checks what a shard in progress holds: some cannot be read, once."""
        if self._unread is None or self._unread.random() >= FAILING_READS:
            return read_range(path, offset, nbytes)
        sequences = frames_of_shard(path, self._spec, self._story.frames, self.oracle.sent)
        if sequences is None:  # the oracle knows nothing of it
            return read_range(path, offset, nbytes)
        self._note(f"{path.name} cannot be read at {offset}: {sorted(sequences)}")
        self.oracle.excuse(sequences)
        raise StorageError("cannot read: the world says so")

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
            process.pool.dying, process.pool.has_lost_one = False, True
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
            if point == "shard.before_read" and process.has_acquisition:
                self.oracle.cannot_read(self._slabs_of_rewritten(process))
            raise
        if actor.wrong is not None and not actor.wrong.done and not actor.wrong.short:
            self._rot()

    def _slabs_of_rewritten(self, process: Process) -> set[int]:
        """Returns the slabs of shard rows whose files are being replaced after an I/O error."""
        layout = process.acquisition._layout
        rows = process.core.shard_rows.by_number.items()
        rewritten = (number for number, row in rows if row.files_state is FilesState.REWRITING)
        return {slab for number in rewritten for slab in slabs_of_shard_row(layout.of(number), number)}

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

    def _flip_a_bit(self, rng: random.Random) -> None:
        """In one of the files that say what is stored: what it says of is lost then, and told so."""
        paths = tables_in(self._path)
        if not paths:
            return
        path = rng.choice(paths)
        places = written_places(path)
        if not places.size:
            return
        place, bits = int(rng.choice(places)), 1 << rng.randrange(8)
        about = path, place, self._spec, self._story.frames, self.oracle.sent
        sequences = frames_at(*about, is_written=bool(self._zombies))
        self._note(f"byte {place} of {path.name} is flipped by {bits}: {sorted(sequences)}")
        rows = self.oracle.log_cut if path.name == LOG_NAME else self.oracle.rows_damaged
        rows |= rows_at(*about, is_written=bool(self._zombies))
        self.disk.flip(path, place, bits)
        self.oracle.flip()
        self.oracle.excuse(sequences)
        if self._zombies and path.name == STAGING_NAME:
            # an old writer has checked these pixels as it began, and may put them into their chunk
            positions = (self._story.frames[n].position for n in sequences)
            self.oracle.spoiled.update(map(self._spec.grids.slab_of_position, positions))

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
        store = self._root / "run.ome.zarr"  # whatever is recovered just now
        if self._finished is not None and store.is_dir() and not is_finished(store):
            raise ViolationError(f"a store that goes on has no frame table for a moment: {self._who()}")

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
        self.oracle.lose_power()
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
        """Until it ends: how it did. It does not end if for long no other frame comes or becomes durable.

        Nothing is said of how long it is as a whole. The steps of a frame depend on its files and on the
        pace: with a slow sealer most are the clock's, and a limit for all frames takes that for no end."""
        camera, idle, counted = self._camera, 0, 0
        furthest = waited = 0
        while True:
            accounts = process.core.accounts
            reached = accounts.frames_received + accounts.frames_durable
            waited = waited + 1 if reached <= furthest else 0
            furthest = max(furthest, reached)  # what a disk error destroyed and comes again is nothing new
            counted += not life.ending or camera.finished
            if process.is_over:
                return "failed" if process.core.state is AcquisitionState.FAILED else "finish"
            if life.ends != "finish" and counted > life.at:
                self._note(f"{life.ends}")
                return life.ends
            if waited > MOST_CALLS and self.faults.full:
                return "kill"
            if waited > MOST_CALLS:
                raise ViolationError(f"it does not end: {process.waits_for()}")
            self._step_zombies()
            self.readers.moment()
            actors = self._actors(process, camera, life.pace)
            alone = len(actors) == 1 and not camera.waits_for_time  # the clock is
            # A call that stalls is under way, though its actor cannot act: what waits for it comes by itself.
            idle = idle + 1 if alone and not process.stalls(self._ns) else 0
            if alone:
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


def _polls(poll: Callable[[Acquisition], np.ndarray]) -> Callable[..., np.ndarray]:
    """An owner that waits for a report lets others go on, and then takes what there is."""

    def polled(acquisition: Acquisition, timeout_s: float | None = None) -> np.ndarray:
        if timeout_s is not None:
            give_way()
        return poll(acquisition)

    return polled


@cache
def _start(
    thread: threading.Thread, start: Callable[[threading.Thread], None] = threading.Thread.start
) -> None:
    """Only the one that checks chunks while its starter waits, and changes nothing, is a real thread."""
    if not thread.name.startswith("shardwright-read-back"):
        raise DefectError(f"a thread is started beside the world, which does not know it: {thread.name}")
    start(thread)


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
