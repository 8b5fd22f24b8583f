"""One process that has the acquisition: the real one, with its sealer and its workers, each a greenlet that
the world lets go on, one at a time, from one call of the disk to the next.

A greenlet runs the code of a thread as it stands. It gives way in ``failpoints.reach``, before every call
that changes the disk, and within each that changes names; nobody else runs meanwhile. Where a thread would
wait for something, it is not let go on before that is there.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

import numpy as np
from greenlet import getcurrent, greenlet
from tests.harness import told_events

from shardwright.acquire.acquisition import Acquisition
from shardwright.acquire.measures import BusyClock
from shardwright.acquire.states import AcquisitionState
from shardwright.acquire.states import Life as StoreLife
from shardwright.acquire.workers import WorkerPool, WorkerState
from shardwright.array.grid import image_of
from shardwright.model.errors import ShardwrightError
from shardwright.recovery.leftovers import free_name
from shardwright.recovery.resume import resume

from .disk import Descriptors, Killed, Wrong
from .oracle import ViolationError
from .pixels import spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.acquire.core import Core
    from shardwright.acquire.limits import Limits
    from shardwright.acquire.shard_rows import ShardRows
    from shardwright.array.acquisition_spec import AcquisitionSpec, Image
    from shardwright.model.error_text import ErrorText
    from shardwright.model.write_options import FlushLevel
    from shardwright.recovery.recover_store import Recovery

    from .disk import SimulatedDisk
    from .oracle import Oracle
    from .story import Life, Story

MOST_CALLS = 12_000  # of one life
POISON = 0xFFFF  # where no pixels are any more
ENDED = (AcquisitionState.SEALED, AcquisitionState.FAILED)
_spare: list[WorkerState] = []  # scratch memory of workers that are over, which nothing is left in


class DiedError(BaseException):
    """A worker thread dies."""


class Actor:
    """A thread of a process. ``waits``: whether it waits for what another has to bring."""

    def __init__(self, disk: SimulatedDisk, calls: Descriptors, run: Callable[[], None]) -> None:
        self._disk, self._calls = disk, calls
        self.waits = False
        self.stalled_until_ns = 0  # its call gets no answer before
        self.is_late = False  # its next change of names
        self.wrong: Wrong | None = None  # with its next call
        self.unmarked = 0
        self._run = run
        self._greenlet = greenlet(self._to_its_end)

    def _to_its_end(self) -> None:
        with suppress(Killed, DiedError):
            self._run()

    @property
    def is_over(self) -> bool:
        return self._greenlet.dead

    def step(self) -> None:
        """Goes on to its next call of the disk. Raises what it raises."""
        self._on_the_disk(self._greenlet.switch)

    def kill(self) -> None:
        """Its process is dead: ends it where it stands."""
        if self._greenlet:
            self._on_the_disk(lambda: self._greenlet.throw(Killed))

    def _on_the_disk(self, go_on: Callable[[], object]) -> None:
        disk = self._disk
        before = disk.process, disk.caller
        disk.process, disk.caller = self._calls, self
        try:
            go_on()
        finally:
            disk.process, disk.caller = before

    def wait(self) -> None:
        """Called by itself: until it is let go on."""
        self.waits = True
        give_way()
        self.waits = False


def check_counts(shard_rows: ShardRows) -> None:
    """Raises ``ViolationError`` unless what is counted as states change is what a look through all finds."""
    rows = shard_rows.by_number
    taking = Counter(image_of(number) for number, row in rows.items() if row.takes_frames)
    full = {number: row for number, row in rows.items() if row.waits_for_room}
    if (shard_rows._taking, shard_rows._without_room) != (dict(taking), full):
        raise ViolationError(
            f"counted as taking frames {shard_rows._taking}, there are {dict(taking)}; "
            f"as without room {list(shard_rows._without_room)}, there are {list(full)}"
        )


def give_way() -> None:
    """Lets the world say who goes on; the caller goes on when it is its turn again."""
    parent = getcurrent().parent
    if parent is not None:
        parent.switch()


def let_others_act(disk: SimulatedDisk) -> None:
    """Within an actor: gives way, unless its process is dead."""
    if getcurrent().parent is None:
        return
    calls = disk.process
    if calls.is_dead:
        raise Killed
    give_way()
    if calls.is_dead:
        raise Killed


class _Queue:
    """The sealer's commands: a get that waits gives way."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.actor: Actor | None = None

    def put(self, item: Any) -> None:
        self.items.append(item)

    def get(self, block: bool = True) -> Any:
        while not self.items:
            if not block or self.actor is None:
                raise Empty
            self.actor.wait()
            if self.actor._calls.is_dead:
                raise Killed
        return self.items.popleft()


class Pool(WorkerPool):
    """The workers of one process. ``dies``: (number of a task, whether it is told of) at which one dies."""

    def __init__(self, threads: int, dies: tuple[int, bool] | None) -> None:
        super().__init__(threads)
        self.actors: list[Actor] = []
        self._dies = dies
        self._begun = 0
        self.dying = False  # at its next call of the disk
        self.has_lost_one = False  # in the middle of a task; ``failure`` says so once that has ended
        self._scratch: list[WorkerState] = []

    def give_back_scratch(self) -> None:
        """Once no worker runs any more: a writer that was taken over may be within a task of its own."""
        _spare.extend(self._scratch)
        self._scratch.clear()

    @property
    def queued(self) -> bool:
        return not self._tokens.empty()

    def ended(self) -> bool:
        return all(actor.is_over for actor in self.actors)

    def run(self, number: int) -> None:
        """A worker's life, as ``_work``."""
        state, busy = _spare.pop() if _spare else WorkerState(), BusyClock()
        self._scratch.append(state)
        while True:
            while self._tokens.empty():
                self.actors[number].wait()
            if not self._tokens.get():
                return
            self._begun += 1
            if self._dies is not None and self._begun > self._dies[0] and self.failure is None:
                self._die(state, busy, told=self._dies[1])
            self._run_next(state, busy)

    def _die(self, state: WorkerState, busy: BusyClock, *, told: bool) -> None:
        try:
            if told:
                self.dying = True
                self._run_next(state, busy)
            else:
                with self._lock:
                    self._schedule.take()
        finally:
            self.dying = False
            self.failure = "it was killed"
            self._end_when_done()
        raise DiedError


class Ring:
    """Pixels by slot; a slot that comes back is the next one taken."""

    def __init__(self, frames: int, files: int, width: int) -> None:
        self.pixels = np.full((frames, 1, files * width), POISON, np.uint16)
        self._width = width
        self._address = int(self.pixels.ctypes.data)
        self._free = list(range(frames))
        self._slot_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return len(self._slot_of)

    @property
    def frames(self) -> int:
        return len(self.pixels)

    def put(self, sequence: int, token: int) -> int:
        """Returns the address of a frame's pixels."""
        slot = self._free.pop()
        self.pixels[slot] = spread(token, self.pixels.shape[-1], self._width)
        self._slot_of[sequence] = slot
        return self._address + slot * self.pixels[0].nbytes

    def release(self, sequences: list[int]) -> None:
        for sequence in sequences:
            if sequence not in self._slot_of:
                raise ViolationError(f"released twice, or never taken: the pixels of sequence {sequence}")
            slot = self._slot_of.pop(sequence)
            self.pixels[slot] = POISON
            self._free.append(slot)


class Process:
    """``fenced``: another writer has taken over, so that nothing it says counts any more. ``let``: lets an
    actor of it go on to its next call."""

    acquisition: Acquisition

    def __init__(
        self,
        story: Story,
        life: Life,
        disk: SimulatedDisk,
        let: Callable[[Process, Actor], None],
        path: Path,
        spec: AcquisitionSpec,
        limits_of: Callable[[AcquisitionSpec], Limits],
        oracle: Oracle,
        trace: Callable[[str], None] | None,
    ) -> None:
        self._oracle, self._trace = oracle, trace
        self.fenced = False
        self.has_acquisition = False
        self.recovery: Recovery | None = None  # what ``recover_store`` has told
        self.calls = Descriptors()
        self._disk, self._let = disk, let
        self._story, self._path, self._spec, self._limits_of = story, path, spec, limits_of
        self.ring = Ring(story.ring, story.shape.files, story.shape.width)
        dies = None if life.worker_dies is None else (life.worker_dies, life.told)
        self.pool = Pool(story.workers, dies)
        self._queue = _Queue()
        self.opener = Actor(disk, self.calls, lambda: None)
        self.sealer = Actor(disk, self.calls, self._seal)
        self._queue.actor = self.sealer
        self.pool.actors = [
            Actor(disk, self.calls, lambda i=i: self.pool.run(i)) for i in range(story.workers)
        ]

    @property
    def _actors(self) -> tuple[Actor, ...]:
        return (self.opener, self.sealer, *self.pool.actors)

    # ------------------------------------------------------------------ how it begins and ends

    def begin(self, *, take_over: bool | None, again: bool = False, goes_on: bool = False) -> None:
        """``opener`` makes the store (None; ``again``: one that failed may have left something), or takes it
        up; ``goes_on``: also one that is finished. Until it is over there is no acquisition."""

        def open_it() -> None:
            settings = self._story.settings
            if take_over is None:
                if again:
                    free_name(self._path)
                limits = self._limits_of(self._spec)
                self.take(Acquisition(self._path, self._spec, limits, self.pool, _nothing, settings))
            else:
                pool, limits_of = self.pool, self._limits_of
                how = {"take_over": take_over, "goes_on": goes_on}
                self.take(resume(self._path, pool, _nothing, settings, limits_of, **how))

        self.opener = Actor(self._disk, self.calls, open_it)

    def take(self, acquisition: Acquisition) -> None:
        """Has an acquisition from now on: what its constructor has put into the sealer's queue goes on in
        one that gives way."""
        self.acquisition = acquisition
        commands = acquisition._sealer._commands
        while not commands.empty():
            self._queue.put(commands.get())
        acquisition._sealer._commands = self._queue  # type: ignore[assignment]
        self.has_acquisition = True

    def _seal(self) -> None:
        self.acquisition._sealer._work()

    # ------------------------------------------------------------------ the client's calls

    @property
    def core(self) -> Core:
        return self.acquisition._core

    def submit(self, descriptors: np.ndarray, addresses: np.ndarray) -> None:
        self.acquisition.submit(descriptors, addresses)

    def settle_missing(self) -> None:
        self._oracle.write_off(self.acquisition.accounts)
        self.acquisition.settle_missing()

    def flush(self, level: FlushLevel = "durable") -> None:
        self.acquisition.flush(level)

    def finish(self) -> None:
        self.acquisition.finish(keep_empty=False)

    def new_client(self) -> None:
        """In a thread of its own, for which the client waits: a disk that fails refuses it."""

        def count() -> None:
            with suppress(ShardwrightError):
                self.acquisition.new_client(None, None)

        self.to_its_end(Actor(self._disk, self.calls, count))

    def add_image(self, image: Image) -> int:
        """As ``Acquisition.add_image``; ``answers`` has the answer."""
        return self.acquisition.add_image(image, 1 << 40)

    def answers(self) -> list[tuple[int, ErrorText | None]]:
        return self.acquisition.take_updates()

    def to_its_end(self, actor: Actor) -> None:
        """Lets nobody else go on meanwhile, but for the sealer while it replaces the manifest."""
        for _ in range(MOST_CALLS):
            if actor.is_over:
                return
            waits = actor is not self.sealer and self.acquisition.folder.is_changing_manifest
            if waits and self.sealer_goes_on:
                self._let(self, self.sealer)
            self._let(self, actor)
        raise ViolationError("it does not end, though nobody else has to do anything")

    def poll(self) -> list[int]:
        """One round of the owner; the sequences whose pixels came back."""
        acquisition, core = self.acquisition, self.core
        changed = self.has_reports
        acquisition.see_ring(self.ring.used, self.ring.frames)
        released = acquisition.poll()
        self._look(released, changed=changed)
        sequences: list[int] = released.tolist()
        self.ring.release(sequences)
        assert core is self.core, "there is one"
        return sequences

    def _look(self, released: np.ndarray, *, changed: bool) -> None:
        """Whether what it says and keeps is right."""
        core, oracle = self.core, self._oracle
        if len(core.shard_rows.by_number) > core.limits.open_shard_rows:
            raise ViolationError(
                f"{len(core.shard_rows.by_number)} shard rows are open, "
                f"more than {core.limits.open_shard_rows}"
            )
        check_counts(core.shard_rows)
        events = core.notifications.take_events(core.accounts)
        for name, facts in events:
            told_events.check(name, {"path": "/a.ome.zarr", **facts})
        losses = core.notifications.take_losses()
        if self._trace is not None:
            for name, facts in events:
                short = {key: value for key, value in facts.items() if key not in ("hint", "then")}
                self._trace(f"  event {name} {short}")
            if released.size:
                self._trace(f"  released {released.tolist()}")
        oracle.has_begun_to_fail = oracle.has_begun_to_fail or core.end.why is not None
        if core.end.life is StoreLife.FINISHING_STORE:
            oracle.finishing(core.accounts.extents)
        if self.fenced:
            return
        oracle.closed_for_good = oracle.closed_for_good or any(
            name == "row_reopening_failed" for name, _ in events
        )
        if core.end.why is None or core.end.why.code != "fenced":
            oracle.hear_losses(losses)
        if changed:
            oracle.observe(core.accounts)
        if released.size:
            oracle.released(released, core)

    def waits_for(self) -> str:
        """For people: what everybody waits for."""
        core = self.core
        shard_rows = {
            n: f"{g.state.value}, {len(g.done_slabs)} of {g.slabs} slabs, in flight {g.in_flight}, waiting "
            f"{g.waiting}, retry {g.retry_s}, files {g.files is not None}"
            for n, g in core.shard_rows.by_number.items()
        }
        return (
            f"core {core.state.value}, why {core.end.why}, pending "
            f"{[positions.tolist() for positions in core.arrivals.positions()]}, shard rows {shard_rows}, "
            f"incomplete {core.table.incomplete()}, rows {core.table.rows_used} of {core.limits.rows}, ring "
            f"{self.ring.used} of {self.ring.frames}, slots free {core.scheduler.free_slots} of "
            f"{core.scheduler.slots}, committing {core._ledger.committing}, unrecorded "
            f"{core.recorder.frames}, waits for stage {sorted(core.scheduler.held_back)}, sealer "
            f"{list(self._queue.items)}"
        )

    def end(self) -> None:
        """Ends a process whose acquisition is over."""

        def close() -> None:
            self.acquisition._sealer.join()
            self.acquisition.folder.close()

        self.acquisition._sealer.stop()
        self.to_its_end(self.sealer)
        self.to_its_end(Actor(self._disk, self.calls, close))
        self.kill()

    @property
    def is_unmarked(self) -> bool:
        """Whether it alone knows of a sync that failed: between that and the end of the intact mark."""
        return any(actor.unmarked for actor in self._actors)

    def kill(self) -> None:
        self.calls.is_dead = True
        for actor in self._actors:
            if not actor.is_over:
                actor.kill()
        self.pool.give_back_scratch()
        self._disk.kill(self.calls)

    # ------------------------------------------------------------------ who can go on

    @property
    def is_open(self) -> bool:
        return self.opener.is_over

    @property
    def sealer_goes_on(self) -> bool:
        return (
            self.has_acquisition
            and not self.sealer.is_over
            and (not self.sealer.waits or bool(self._queue.items))
        )

    def workers_that_go_on(self) -> list[int]:
        if not self.has_acquisition:
            return []
        return [
            number
            for number, actor in enumerate(self.pool.actors)
            if not actor.is_over and (self.pool.queued if actor.waits else self.has_begun(number))
        ]

    def has_begun(self, number: int) -> bool:
        """Whether a worker is within a task, or has not looked for one yet and there is one."""
        actor = self.pool.actors[number]
        return bool(actor._greenlet) or self.pool.queued

    def stalls(self, now_ns: int) -> bool:
        """Whether a call of it gets no answer yet."""
        return any(actor.stalled_until_ns > now_ns and not actor.is_over for actor in self._actors)

    @property
    def has_reports(self) -> bool:
        return self.is_open and not self.acquisition._reports.empty()

    @property
    def is_over(self) -> bool:
        return self.is_open and self.acquisition.state in ENDED and not self.sealer_goes_on


def _nothing() -> None:
    """Nobody waits to be woken."""
