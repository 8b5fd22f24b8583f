"""The world: lets everybody act in an order that the seed says, ends lives as the story says, and has the
oracle judge what is left."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from shardwright.acquire.core import AcquisitionState, Now

from .camera import Camera
from .disk import Disk, File
from .oracle import Oracle, ViolationError
from .process import Process
from .story import limits_of, plan_of
from .take_up import take_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.acquire.recovered_state import RecoveredState

    from .story import Life, Story

MOST_STEPS = 12_000  # of one life
IDLE_STEPS = 80  # without anything but time going on, 0.25 s each: nothing will end this wait
QUIET_STEPS = 8
ZOMBIE_STEPS = 80


class _DiedError(Exception):
    """Recovery was killed."""


class World:
    """``trace`` hears of everything that happens, for people."""

    def __init__(self, story: Story, trace: Callable[[str], None] | None = None) -> None:
        self._story = story
        self._plan = plan_of(story.shape)
        self._rng = rng = random.Random(story.schedule)
        self._tell = trace
        self._trace = None if trace is None else self._note
        self._ns = 1_000_000_000
        self.disk = Disk(rng, File() if story.staging else None, story.synced_alone)
        self.oracle = Oracle(self._plan.layout, story.frames)
        self._camera = Camera(story, self.oracle, rng, self._trace)
        self._zombies: list[tuple[Process, int]] = []
        self.lives = self.crashes = 0
        self.steps = 0

    def play(self) -> None:
        """The whole story. Raises ``ViolationError``."""
        process: Process | None = None
        take_over = power = False
        for number, life in enumerate(self._story.lives):
            self._note(f"life {number}: {life}")
            self.lives += 1
            restored = None
            if number:
                restored, power = self._recover(life, take_over=take_over, power=power)
                self.oracle.taken_up(restored.standing.accounts, self.disk, power=power)
            self.disk.begin_life(())
            limits = limits_of(self._story) if restored is None else restored.standing.limits
            process = Process(
                self._story,
                self._plan,
                life,
                self.disk,
                self.oracle,
                limits,
                self._now,
                self._trace,
                restored,
            )
            self.disk.begin_life(life.faults)
            self._camera.begin(process, life, self.disk)
            ended = self._live(process, life)
            take_over, power = False, False
            self.oracle.failures += process.core.why is not None
            if self.disk.manifest is None:
                break
            if ended == "failed":
                if life.ends == "finish" and not life.faults and life.worker_dies is None:
                    raise ViolationError(f"the acquisition failed, though nothing did: {process.core.why}")
                continue
            self.crashes += 1
            self.oracle.kills += 1
            if ended == "power":
                power = self._lose_power()
            elif ended == "take over":
                take_over = process.fenced = True
                if self._rng.random() < 0.5:
                    self.disk.looked.add(self.disk.lock)
                # it will fail, and may say so in the log before the other has a copy of that
                self.oracle.failures += 1
                self._zombies.append((process, self._rng.randint(1, ZOMBIE_STEPS)))
        assert process is not None
        sealed = process.core.state is AcquisitionState.SEALED
        if sealed:
            self.oracle.sealed(process.core, process.ring.used)
        self.oracle.judge(self.disk, process.core.receipt() if sealed else None)

    def _now(self) -> Now:
        return Now(self._ns, self._ns)

    def _note(self, what: str) -> None:
        if self._tell is not None:
            self._tell(f"{self._ns / 1e6 - 1000:10.1f} ms  {what}")

    def _lose_power(self) -> bool:
        self._note("power cut")
        self.disk.lose_power()
        self._zombies.clear()
        self.disk.looked.clear()
        self.oracle.power_cuts += 1
        return True

    # ------------------------------------------------------------------ recovery

    def _recover(self, life: Life, *, take_over: bool, power: bool) -> tuple[RecoveredState, bool]:
        """Killed and begun again as often as the life says."""
        limits = limits_of(self._story)
        for calls in life.deaths:
            self.disk.at_step = self._death_after(calls)
            try:
                restored = take_up(self.disk, self._plan, limits, take_over=take_over)
            except _DiedError:
                self._note(f"recovery is killed at call {calls}")
                take_over = take_over and self._rng.random() < 0.5
                self.crashes += 1
                if self._rng.random() < 0.3:
                    power = self._lose_power()
            else:
                return restored, power
            finally:
                self.disk.at_step = lambda: None
        self.disk.at_step = self._step_zombies
        try:
            return take_up(self.disk, self._plan, limits, take_over=take_over), power
        finally:
            self.disk.at_step = lambda: None

    def _death_after(self, calls: int) -> Callable[[], None]:
        left = calls

        def step() -> None:
            nonlocal left
            self._step_zombies()
            left -= 1
            if left < 0:
                raise _DiedError

        return step

    def _step_zombies(self) -> None:
        """Writers that were taken over and do not know it yet."""
        if not self._zombies or self._rng.random() < 0.5:
            return
        at_step, self.disk.at_step = self.disk.at_step, lambda: None
        process, left = self._zombies.pop()
        if left and not process.is_over:
            self._act(process, self._actors(process, None, (0, 4, 4, 1)))
            self._zombies.append((process, left - 1))
        self.disk.at_step = at_step

    # ------------------------------------------------------------------ one life

    def _live(self, process: Process, life: Life) -> str:
        """Until it ends: how it did."""
        camera, idle, begun, counted = self._camera, 0, 0, 0
        while True:
            begun += 1
            counted += not life.ending or camera.finished
            if process.is_over:
                return "failed" if process.core.state is AcquisitionState.FAILED else "finish"
            if life.ends != "finish" and counted > life.at:
                self._note(f"{life.ends}")
                return life.ends
            if begun > MOST_STEPS and self.disk.full:
                return "kill"
            if begun > MOST_STEPS:
                raise ViolationError(f"it does not end: {process.waits_for()}")
            self._step_zombies()
            actors = self._actors(process, camera, life.pace)
            if len(actors) > 1 or camera.waits_for_time:
                idle = 0
            else:
                idle += 1
                self._ns += 250_000_000
                if idle == QUIET_STEPS:
                    self.disk.make_room()
                if idle > IDLE_STEPS:
                    if self.disk.full:
                        return "kill"
                    raise ViolationError(f"nothing can go on: {process.waits_for()}")
            self._act(process, actors)
            camera.look(quiet=idle > QUIET_STEPS)
            self.steps += 1

    def _actors(
        self, process: Process, camera: Camera | None, pace: tuple[int, int, int, int]
    ) -> list[tuple[int, str, int]]:
        """Who can act: (weight, who, number)."""
        actors = [(pace[3], "clock", 0)]
        if camera is not None and camera.can_act(self._ns):
            actors.append((pace[0], "camera", 0))
        if process.sealer.busy:
            actors.append((pace[1], "sealer", 0))
        actors += [(pace[2], "worker", number) for number in process.workers.ready()]
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
            if self._tell is not None and process.sealer.command is None:
                self._note("  sealer begins")
            process.sealer_step()
        elif who == "worker":
            process.workers.step(number)
        else:
            if who == "clock":
                self._ns += self._rng.choice((100_000, 1_000_000, 20_000_000, 300_000_000))
            released = process.poll()
            if not process.fenced:
                self._camera.release(released)


def play(story: Story, trace: Callable[[str], None] | None = None) -> tuple[World, str | None]:
    """A story, and what was wrong: None when every promise was kept."""
    world = World(story, trace)
    try:
        world.play()
    except ViolationError as violation:
        return world, str(violation)
    except Exception as error:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        return world, (
            f"a defect: {error!r} at {last.filename.rsplit('/', 1)[-1]}:{last.lineno} in {last.name}"
        )
    return world, None
