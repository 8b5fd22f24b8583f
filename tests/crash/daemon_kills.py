"""The daemon is killed while a camera's client sends to it, and started again; the client goes on by itself.
The oracle hears only the client. Beside them a reader looks at the store all the time, to the end of a
compaction, and a follower takes each frame as it is stored.

The suite's process is what a service manager would be: it starts the daemon again whenever it has died.
"""

from __future__ import annotations

import select
import shutil
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.compaction.jobs import Here
from tests.harness.daemon import DaemonProcess
from tests.harness.fork_server import GIVE_UP_S, Channel, Child, ForkServer
from tests.properties.readers import with_zarr_python

import shardwright as sw
from shardwright.array.acquisition_spec import with_index_for
from shardwright.model.names import store_name
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.repack.jobs.compact_store import Options, plan, run

from .creation_kills import acquire
from .kills.oracle import Oracle
from .kills.processes import Closing, Created, Said, Sealed
from .kills.scenes import IO_MODES, SCENES, Append, Flush, Pause, Scene, spec_of
from .kills.trial import KILLED, WORKSPACE
from .live_reader import Followed, Seen, Stop, follow_to_the_end, watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .kills.scenes import Step

FIRST_STORES = frozenset({"slots.before_store", "staging.before_write"})
FIRST_SEALS = frozenset({"shard.before_index"})
NAME = "killed"
LEAST_INTERVAL_MS = 10  # of a daemon's configuration
CONFIG = """\
output: {{root: ./data, spill_root: ./second, io: {io}, live: {live}, ballast: 1MiB, low_water: 1MiB,
  in_memory: true, partial_chunks: {partial_chunks}}}
ingest: {{endpoints: ["ipc://./in.sock"], heartbeat_ms: 20, session_timeout_ms: 1000}}
workers: {{threads: 1}}
memory: {{budget: 2GiB}}
reliability: {{store_within_ms: {store_within_ms}, sync_interval_ms: {sync_interval_ms}, on_full: {on_full}}}
"""


def camera(channel: Channel, endpoint: str, scene: Scene) -> None:
    """Sends the whole scene through whatever happens to the daemon."""
    with sw.connect(endpoint, timeout_ms=30_000) as connection:
        stream = acquire(connection, NAME, with_index_for(scene.live, scene.images))
        channel.send(Created())
        n = stored = durable = 0
        for step in scene.steps:
            match step:
                case Append():
                    if n % 2:
                        with stream.claim(**scene.facts(n)) as into:
                            into[...] = scene.pixels(n)
                    else:
                        stream.append(scene.pixels(n), **scene.facts(n))
                    n += 1
                case Flush():
                    stream.flush()
                case Pause():
                    sleep(step.ms / 1000)
            stored, durable = max(stored, stream.watermark.stored), max(durable, stream.watermark.durable)
            channel.send(Said(n, stored, durable))
        channel.send(Closing())
        stream.close()
        channel.send(Sealed(stream.receipt.to_dict(), ()))


def dies_at(call: int, after: frozenset[str]) -> str:
    """A daemon's sabotage: killed at the ``call``-th storage call from the first of ``after`` on (0:
    never)."""
    return f"from tests.crash.kills.processes import fill_now_and_then, kill_at\nkill_at({call}, {after})\n"


@dataclass
class DaemonTrial:
    """``calls``: at which storage call each daemon in turn is killed; ``after_ms``: or when, counted from its
    start. The one after them lives. ``stopped_after``: the first one gets SIGTERM once so many frames are
    stored; ``calls`` then count from the first shard that it seals."""

    scene: Scene
    io: str
    calls: tuple[int, ...] = ()
    after_ms: tuple[float, ...] = ()
    stopped_after: int | None = None
    spills: bool = False
    spilled: int = 0
    kills: int = 0
    looks: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        stopped = "" if self.stopped_after is None else f" stopped after {self.stopped_after} frames and"
        return (
            f"{self.scene.name}, {self.io}, {'spilling ' if self.spills else ''}daemons{stopped} killed at "
            f"storage calls {self.calls} or after {self.after_ms} ms"
        )


class DaemonTrialRun:
    """One client, a row of daemons. ``folder`` has room for a socket's path and belongs to this trial."""

    def __init__(self, server: ForkServer, trial: DaemonTrial, folder: Path) -> None:
        self._server = server
        self._trial = trial
        self._oracle = Oracle(trial.scene)
        self._store = folder / "data" / store_name(NAME)
        self._config = folder / "rig.yaml"
        self._data = folder / "data"
        for made in (self._data, folder / "second"):
            made.mkdir()
        scene = trial.scene
        self._config.write_text(
            CONFIG.format(
                io=scene.io(trial.io),
                live=scene.live,
                partial_chunks=scene.partial_chunks,
                on_full="spill" if trial.spills else "block",
                store_within_ms=max(LEAST_INTERVAL_MS, scene.store_within_ms),
                sync_interval_ms=max(LEAST_INTERVAL_MS, scene.sync_interval_ms),
            )
        )
        self._endpoint = f"ipc://{folder}/in.sock"
        self._stop_after = trial.stopped_after
        self._deaths = iter([*trial.calls, *(0 for _ in trial.after_ms)])
        self._timers = iter([*(None for _ in trial.calls), *trial.after_ms])

    def run(self) -> DaemonTrial:
        self._start_daemon()
        client = self._server.start(camera, self._endpoint, self._trial.scene)
        with (
            self._server.start(watch, self._store, self._trial.scene) as reader,
            self._server.start(follow_to_the_end, self._store) as follower,
        ):
            messages = list(self._supervise(client, reader))
            if client.wait() != 0:
                self._trial.problems.append(f"the client ended with {client.wait()}")
            self._oracle.listen(messages)
            self._stop_daemon()
            self._trial.spilled += sum(file.is_symlink() for file in self._store.rglob("c/**/*"))
            self._hear_follower(follower)
            if not self._trial.problems:
                compact(self._store)
            self._hear(reader)
        self._judge()
        return self._trial

    def _hear(self, reader: Child) -> None:
        """What the reader has seen, after a last look."""
        with suppress(OSError):
            reader.channel.send(Stop())
        seen = reader.drain()[-1]
        if isinstance(seen, Seen):
            self._trial.looks += seen.looks
            self._trial.problems += [f"the reader: {problem}" for problem in seen.problems]
        else:
            self._trial.problems.append(f"the reader failed: {seen}")

    def _hear_follower(self, follower: Child) -> None:
        """It ends by itself, with the acquisition."""
        came = (follower.drain() or [None])[-1]
        if isinstance(came, Followed):
            self._trial.problems += [f"the follower: {problem}" for problem in came.problems(self._oracle)]
        else:
            self._trial.problems.append(f"the follower failed: {came}")

    def _start_daemon(self) -> None:
        """With the next death of the list, while there is one."""
        after = FIRST_STORES if self._trial.stopped_after is None else FIRST_SEALS
        sabotage = dies_at(next(self._deaths, 0), after)
        if self._trial.spills:
            sabotage += f"fill_now_and_then({str(self._data)!r}, {self._trial.kills})"
        self._daemon = DaemonProcess(self._config, sabotage=sabotage)
        after_ms = next(self._timers, None)
        self._dies_at_s = None if after_ms is None else monotonic() + after_ms / 1000

    def _supervise(self, client: Child, reader: Child) -> Iterator[Any]:
        """Everything the client says until its end, for the reader too; meanwhile daemons are killed and
        started."""
        give_up = monotonic() + GIVE_UP_S
        while True:
            assert monotonic() < give_up, "the client hangs"
            if self._dies_at_s is not None and monotonic() >= self._dies_at_s:
                self._daemon.process.kill()
            ready, _, _ = select.select([client.channel.socket], [], [], 0.01)
            if self._daemon.process.poll() is not None:
                self._bury()
            if client.channel.socket in ready:
                message = client.channel.receive()
                if message is None:
                    return
                if isinstance(message, Said) and message.stored == self._stop_after:
                    self._stop_after = None
                    self._daemon.signal(signal.SIGTERM)
                with suppress(OSError):  # it has failed: ``_hear`` tells why
                    reader.channel.send(message)
                yield message

    def _bury(self) -> None:
        with self._daemon as daemon:
            assert daemon.exit_code() == KILLED, (
                f"the daemon ended by itself: {daemon.rest()}, {daemon.errors()}"
            )
        self._trial.kills += 1
        self._trial.problems += self._oracle.judge_final_shards(self._store)
        self._start_daemon()

    def _stop_daemon(self) -> None:
        with self._daemon as daemon:
            status = daemon.stop()
            if status == KILLED:
                self._trial.kills += 1
            elif status != 0:
                self._trial.problems.append(f"SIGTERM ended the daemon with {status}: {daemon.errors()}")

    def _judge(self) -> None:
        self._trial.problems += self._oracle.complaints
        if self._oracle.sealed is None:
            self._trial.problems.append("the client got no receipt")
            return
        if (self._store / WORKSPACE).exists():
            self._trial.problems.append("work in progress is left")
        self._trial.problems += self._oracle.judge_store(self._store, with_zarr_python)
        self._trial.problems += [
            f"verify: {problem}" for problem in verify_store(self._store, threads=1).problems
        ]


def compact(store: Path) -> None:
    run(plan(open_store(store), Options("morton")), Here())


def draw_trials(count: int, seed: int) -> Iterator[DaemonTrial]:
    """Trials with at least one and at most three deaths each, ``count`` deaths together."""
    rng = np.random.default_rng(seed)
    scenes = list(SCENES.values())
    planned = 0
    while planned < count:
        if rng.random() < 0.25:
            yield draw_stop(rng)
            planned += 1
            continue
        deaths = int(min(rng.integers(1, 4), count - planned))
        scene, io = scenes[int(rng.integers(len(scenes)))], IO_MODES[int(rng.integers(len(IO_MODES)))]
        calls, after_ms, which = rng.integers(1, 40, deaths), rng.uniform(20, 150, deaths), rng.random()
        yield DaemonTrial(
            scene,
            io,
            calls=tuple(int(n) for n in calls) if which < 0.75 else (),
            after_ms=() if which < 0.75 else tuple(float(ms) for ms in after_ms),
            spills=scene.live == "none" and rng.random() < 0.4,
        )
        planned += deaths


def draw_stop(rng: np.random.Generator) -> DaemonTrial:
    """A stop that is cut short while the client's camera goes on: its row has room for all frames, so that
    nothing is sealed before the stop."""
    spec = spec_of(
        ("t", None, int(rng.integers(1, 5)), 16), ("y", 16, 8, int(rng.integers(1, 3))), ("x", 24, 24, 1)
    )
    frames, stop = int(rng.integers(10, 16)), int(rng.integers(4, 9))
    steps: list[Step] = [Append(n, n + 1) for n in range(frames)]
    steps[stop:stop] = [Flush(), Pause(30)]
    scene = Scene("stopped", spec, tuple(steps), store_within_ms=10, sync_interval_ms=10)
    return DaemonTrial(
        scene,
        IO_MODES[int(rng.integers(len(IO_MODES)))],
        calls=(int(rng.integers(1, 25)),),
        stopped_after=stop,
    )


def run_daemon_kills(server: ForkServer, count: int, seed: int) -> dict[str, Any]:
    """Trials until ``count`` daemons were killed."""
    started, trials, kills, looks, spilled, violations = monotonic(), 0, 0, 0, 0, []
    while kills < count:
        for trial in draw_trials(count - kills, seed + trials):
            folder = Path(tempfile.mkdtemp(prefix="sw-"))  # short enough for a socket's path
            try:
                DaemonTrialRun(server, trial, folder).run()
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            trials, kills, looks = trials + 1, kills + trial.kills, looks + trial.looks
            spilled += trial.spilled
            if trial.problems:
                violations.append({"trial": str(trial), "problems": trial.problems})
    return {
        "seed": seed,
        "trials": trials,
        "kills": kills,
        "looks": looks,
        "spilled": spilled,
        "seconds": round(monotonic() - started, 1),
        "violations": violations,
    }
