"""How a store gets its name: processes that want the same one, one after the other or two at once, each
killed, failing or without power at some call of the disk. No death may burn the name, take a frame that was
acknowledged, or leave anything behind once all is recovered; a finished store that is overwritten stays until
a frame of the new one is durable."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from shardwright.acquire.acquisition import Acquisition
from shardwright.acquire.states import AcquisitionState
from shardwright.model.errors import OutputExistsError, ShardwrightError
from shardwright.model.names import WORKSPACE
from shardwright.recovery.leftovers import free_name
from shardwright.wire.descriptor import DESCRIPTOR

from .finished_store import left
from .oracle import ViolationError, violation_of
from .points import DRAWN
from .process import MOST_CALLS, Actor, Process
from .story import Fault, draw, fault_at, limits_of, seed_of
from .world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .story import Story

MOST_ATTEMPTS = 5
FRAMES = 3


@dataclass(frozen=True)
class Attempt:
    """A process that wants the name. It is let go on for ``at`` calls; then it ``ends``, or the next one
    begins ``beside`` it and the two take turns."""

    overwrite: bool
    ends: Literal["kill", "power", "finish"]
    at: int
    beside: bool
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Naming:
    """``like``: the seed of the story whose shape and settings the stores have; None: the plainest."""

    attempts: tuple[Attempt, ...]
    schedule: int
    like: int | None = None


def draw_naming(seed: int) -> Naming:
    rng = random.Random(f"naming {seed}")
    attempts = []
    for _ in range(rng.randint(1, MOST_ATTEMPTS)):
        faults = tuple(_fault(rng) for _ in range(rng.choice((0, 0, 1))))
        attempts.append(
            Attempt(
                overwrite=rng.random() < 0.6,
                ends=rng.choice(("kill", "kill", "power", "finish", "finish")),
                at=rng.choice((rng.randint(0, 60), rng.randint(0, 250))),
                beside=rng.random() < 0.25,
                faults=faults,
            )
        )
    schedule = rng.getrandbits(32)
    return Naming(tuple(attempts), schedule, seed_of(rng.getrandbits(24)) if rng.random() < 0.7 else None)


def _fault(rng: random.Random) -> Fault:
    kind = rng.choice(("point", "create", "finish", "look", "sync log", "answer", "full"))
    if kind == "point":
        return fault_at(rng, DRAWN)
    return Fault(kind, rng.randint(0, 12), rng.choice((1, 2)))


@dataclass(eq=False)
class _Store:
    """What one attempt has told its client."""

    process: Process
    number: int
    stored: int = 0
    durable: int = 0
    sent: int = 0
    may_fail: bool = False  # the disk has failed or hung while it was at it, or there was another one

    def look(self) -> None:
        if self.process.has_acquisition:
            self.stored = max(self.stored, self.process.acquisition.stored_watermark)
            self.durable = max(self.durable, self.process.acquisition.durable_watermark)

    @property
    def first_token(self) -> int:
        return 1 + 10 * self.number


def _plainest() -> Story:
    story = draw(0)
    shape = replace(story.shape, axes=((None, 1, 2),), files=1, tasks=1)
    return replace(story, shape=shape, ring=8, rows=6, shard_rows=6, staging=0)


class NamingWorld(World):
    """``play`` as the other stories."""

    def __init__(self, naming: Naming, trace: Callable[[str], None] | None) -> None:
        story = _plainest() if naming.like is None else draw(naming.like)
        settings = replace(story.settings, store_within_ms=1, sync_interval_ms=1, on_full="fail")
        alone = replace(story, readers=(), last_deaths=(), unread=None)
        super().__init__(replace(alone, settings=settings, schedule=naming.schedule, workers=1), trace)
        self._naming = naming
        # in order, so that each is stored
        self._positions = range(min(FRAMES, math.prod(n or FRAMES for n, _, _ in story.shape.axes)))
        self._stores: list[_Store] = []
        self._cuts = 0

    def _play(self) -> None:
        waiting: list[tuple[_Store, Attempt]] = []
        for number, attempt in enumerate(self._naming.attempts):
            self._note(f"attempt {number}: {attempt}")
            self.lives += 1
            self.faults.begin(attempt.faults)
            store = self._wants_the_name(number, overwrite=attempt.overwrite)
            waiting.append((store, attempt))
            if not attempt.beside:
                self._go_on(waiting)
                waiting = []
        self._go_on(waiting)
        self.faults.begin(())
        self._recover_all()
        self._judge()

    # ------------------------------------------------------------------ attempts

    def _wants_the_name(self, number: int, *, overwrite: bool) -> _Store:
        name_taken: Literal["overwrite", "fail"] = "overwrite" if overwrite else "fail"
        story = replace(self._story, settings=replace(self._story.settings, name_taken=name_taken))
        process = self._unjudged(story)
        store = _Store(process, number)

        def make() -> None:
            free_name(self._path)
            process.take(
                Acquisition(
                    self._path, self._spec, limits_of(story), process.pool, lambda: None, story.settings
                )
            )

        process.opener = Actor(self.disk, process.calls, make)
        self._stores.append(store)
        return store

    def _go_on(self, waiting: list[tuple[_Store, Attempt]]) -> None:
        """All of them, by turns, until each has ended as it should."""
        left_calls = [attempt.at for _, attempt in waiting]
        going = list(range(len(waiting)))
        for _ in range(MOST_CALLS):
            if not going:
                return
            number = self._rng.choice(going)
            store, attempt = waiting[number]
            late_errors = self.disk.late_errors
            ended = self._step(store)
            store.look()
            if self.faults.met or self.faults.has_stalled or self.disk.late_errors > late_errors:
                for each in going:
                    waiting[each][0].may_fail = True
            left_calls[number] -= 1
            if ended:
                going.remove(number)
            elif left_calls[number] <= 0 and attempt.ends != "finish":
                self.crashes += 1
                if attempt.ends == "power":
                    self._lose_power()
                    return
                store.process.kill()
                going.remove(number)
        raise ViolationError(f"it does not end: {[waiting[i][0].process.waits_for() for i in going]}")

    def _step(self, store: _Store) -> bool:
        """One call of anybody of it. Returns whether it has ended by itself."""
        process = store.process
        if not process.is_open:
            try:
                self._let(process, process.opener)
            except OutputExistsError:
                self._check_refusal(store)
                process.kill()
                return True
            except ShardwrightError:
                if not self._is_excused(store):
                    raise
                process.kill()
                return True
            return False
        if store.sent < len(self._positions):
            self._send(store)
        elif process.acquisition.state is AcquisitionState.OPEN and (
            store.stored >= len(self._positions) or self._stages_no_more(store)
        ):
            process.finish()
        if process.is_over:
            store.look()
            self._check_end(store)
            process.end()
            return True
        self._act(process, self._actors(process, None, (0, 4, 4, 1)))
        return False

    def _stages_no_more(self, store: _Store) -> bool:
        """Whether the disk has ended the staging: then the end stores a frame whose slab is not full."""
        return store.may_fail and not store.process.core.scheduler.slots

    def _check_end(self, store: _Store) -> None:
        why = store.process.core.end.why
        if why is not None and not self._is_excused(store):
            raise ViolationError(f"attempt {store.number} failed, though nothing did: {why}")

    def _send(self, store: _Store) -> None:
        descriptors = np.zeros(1, DESCRIPTOR)
        descriptors["sequence"] = descriptors["frame_id"] = descriptors["position"] = store.sent
        address = store.process.ring.put(store.sent, store.first_token + store.sent)
        store.process.submit(descriptors, np.array([address]))
        store.sent += 1

    def _rivals(self, store: _Store) -> bool:
        return any(other is not store and not other.process.calls.is_dead for other in self._stores)

    def _is_excused(self, store: _Store) -> bool:
        """Whether an attempt may fail: the disk does, or another one is at it, or was as this one waited."""
        return store.may_fail or self.faults.met or self.faults.has_stalled or self._rivals(store)

    def _check_refusal(self, store: _Store) -> None:
        """Somebody else has the name, or had it a moment ago; or a frame may have come under it: after an I/O
        error nobody knows that none did."""
        others = [other for other in self._stores if other is not store]
        attempts = self._naming.attempts
        beside = attempts[store.number].beside or (store.number and attempts[store.number - 1].beside)
        if not (beside or self._cuts or self.faults.has_failed or any(other.sent for other in others)):
            raise ViolationError("the name is burned: nothing is there that was sent")
        is_finished = self._path.exists() and not (self._path / WORKSPACE).exists()
        if attempts[store.number].overwrite and is_finished and not beside:
            raise ViolationError("a finished store may not be overwritten, though that was asked for")

    def _lose_power(self) -> bool:
        for store in self._stores:
            store.process.kill()
            store.stored = store.durable
        self._cuts += 1
        return super()._lose_power()

    # ------------------------------------------------------------------ at the end

    def _judge(self) -> None:
        names = sorted(path.name for path in self._root.iterdir())
        if leftovers := [name for name in names if name.startswith(".")]:
            raise ViolationError(f"left behind: {leftovers}")
        found: dict[int, set[int]] = {}
        for name in names:
            for token in self._tokens(self._root / name):
                found.setdefault((token - 1) // 10, set()).add((token - 1) % 10)
        overwritten = False  # a later one has taken the name, durably
        for store in reversed(self._stores):
            kept = found.get(store.number, set())
            if not overwritten and not set(range(store.stored)) <= kept:
                raise ViolationError(
                    f"attempt {store.number} was told of {store.stored} frames, {sorted(kept)} are there"
                )
            # a frame that its recovery has found is durable then, too
            durable = store.durable or kept
            overwritten = overwritten or (self._naming.attempts[store.number].overwrite and bool(durable))

    def _tokens(self, path: Path) -> list[int]:
        found = left(path, self._spec)
        assert found is not None, "it is listed"
        width = self._story.shape.width
        return [int(value) for _, pixels in found.pixels(width) for value in pixels if value]


def play_naming(naming: Naming, trace: Callable[[str], None] | None = None) -> tuple[NamingWorld, str | None]:
    """As ``world.play``."""
    world = NamingWorld(naming, trace)
    return world, violation_of(world.play)


def smaller_naming(naming: Naming) -> Iterator[Naming]:
    """Yields creations with one thing less, the largest things first."""
    attempts = naming.attempts
    if naming.like is not None:
        yield replace(naming, like=None)
    for i in range(len(attempts) if len(attempts) > 1 else 0):
        yield replace(naming, attempts=(*attempts[:i], *attempts[i + 1 :]))
    for i, attempt in enumerate(attempts):
        simpler = [replace(attempt, faults=())] if attempt.faults else []
        simpler += [replace(attempt, beside=False)] if attempt.beside else []
        simpler += [replace(attempt, ends="finish")] if attempt.ends != "finish" else []
        for changed in simpler:
            yield replace(naming, attempts=(*attempts[:i], changed, *attempts[i + 1 :]))
