"""The daemon is killed while a camera's client sends to it, and started again; the client goes on by itself.
The oracle hears only the client. Beside them a reader looks at the store all the time, to the end of a
compaction, and a follower takes each frame as it is stored. Daemons die while they make the store, too: the
client's request may have been done, or half of it, and is made again.

The suite's process is what a service manager would be: it starts the daemon again whenever it has died.
"""

from __future__ import annotations

import select
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from tests.compaction.jobs import Here
from tests.harness.daemon import DaemonProcess
from tests.harness.fork_server import GIVE_UP_S
from tests.harness.frames import WAYS, hand_over
from tests.properties.readers import with_zarr_python

import shardwright as sw
from shardwright.array.acquisition_spec import with_index_for
from shardwright.model.names import store_name
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.compact_store import Options, plan, run

from .live_reader import Followed, Seen, Stop, follow_to_the_end, watch
from .oracle import Oracle
from .processes import Closing, Created, Said, Sealed
from .scenes import IO_MODES, SCENES, Append, Flush, Pause, Scene, spec_of
from .trial import KILLED, WORKSPACE, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    import numpy as np
    from tests.harness.fork_server import Channel, Child, ForkServer

    from shardwright.client.stream import Stream

    from .scenes import Step

FIRST_CREATES = frozenset({"store.before_create"})
CREATION_CALLS = 60  # the opener's and the sealer's; a daemon that is asked for more may live
FIRST_STORES = frozenset({"slots.before_store", "staging.before_write"})
FIRST_SEALS = frozenset({"shard.before_index"})
NAME = "killed"
LEAST_INTERVAL_MS = 10  # of a daemon's configuration
CONFIG = """\
output: {{root: {folder}/data, spill_root: {folder}/second, io: {io}, live: {live},
  ballast: 1MiB, low_water: 1MiB, in_memory: true,
  partial_chunks: {partial_chunks}}}
ingest: {{endpoints: ["ipc://./in.sock"], heartbeat_ms: 20, session_timeout_ms: 1000}}
workers: {{threads: 1}}
memory: {{budget: 2GiB}}
reliability: {{store_within_ms: {store_within_ms}, sync_interval_ms: {sync_interval_ms}, on_full: {on_full},
  durability: {durability}}}
"""


def camera(
    channel: Channel, endpoint: str, scene: Scene, transport: Literal["auto", "shm", "message"]
) -> None:
    """Sends the whole scene through whatever happens to the daemon."""
    with sw.connect(endpoint, timeout_ms=30_000, transport=transport) as connection:
        stream = acquire(connection, with_index_for(scene.live, scene.declared))
        channel.send(Created())
        n, stored, durable, asked = 0, 0, 0, set[str]()
        for step in scene.steps:
            match step:
                case Append():
                    n += 1
                    if n % scene.places:
                        continue
                    if (image := scene.image_to_add(step.position, asked)) is not None:
                        stream.add_image(**image)
                    hand_over(stream, WAYS[n % 2], scene.given(n - 1), **scene.facts(n - 1))
                case Flush():
                    stream.flush()
                case Pause():
                    sleep(step.ms / 1000)
            stored = max(stored, stream.watermark.stored * scene.places)
            durable = max(durable, stream.watermark.durable * scene.places)
            channel.send(Said(n, stored, durable))
        channel.send(Closing())
        stream.close()
        channel.send(Sealed(stream.receipt.to_dict(), ()))


def acquire(connection: sw.Connection, spec: sw.AcquisitionSpec) -> Stream:
    """Acquires as a client must that continues: its request may have been done when the daemon died."""
    reopen, give_up = False, monotonic() + GIVE_UP_S
    while True:
        try:
            return connection.acquire(NAME, spec, reopen=reopen)
        except sw.errors.SessionLostError:
            reopen = True
        except sw.errors.ResumeError:
            if not reopen:
                raise
            reopen = False
        assert monotonic() < give_up, "never got in"
        sleep(0.01)


def dies_at(call: int, after: frozenset[str]) -> str:
    """A daemon's sabotage: killed at the ``call``-th storage call from the first of ``after`` on (0:
    never)."""
    names = "delay_sealer, fill_now_and_then, kill_at"
    return f"from tests.crash.kills.processes import {names}\nkill_at({call}, {after})\n"


@dataclass(frozen=True)
class DaemonTrial:
    """``calls``: at which storage call each daemon in turn is killed, from the first one of ``after`` on;
    ``after_ms``: or when, counted from its start. The one after them lives. ``stopped_after``: the first one
    gets SIGTERM once so many frames are stored."""

    scene: Scene
    io: str
    calls: tuple[int, ...] = ()
    after: frozenset[str] = FIRST_STORES
    after_ms: tuple[float, ...] = ()
    stopped_after: int | None = None
    spills: bool = False
    transport: Literal["auto", "shm", "message"] = "auto"
    durability: str = "stored"

    def __str__(self) -> str:
        stopped = "" if self.stopped_after is None else f" stopped after {self.stopped_after} frames and"
        return (
            f"{self.scene.name}, {self.io}, {self.transport}, {self.durability}, "
            f"{'spilling ' if self.spills else ''}daemons{stopped} killed at storage calls {self.calls} from "
            f"{sorted(self.after)} on or after {self.after_ms} ms"
        )

    def run(self, server: ForkServer, folder: Path) -> Verdict:
        """``folder`` is this trial's own; the caller deletes it, or keeps it for a look."""
        with tempfile.TemporaryDirectory(prefix="sw-") as sockets:  # short enough for a socket's path
            return _DaemonTrialRun(server, self, folder, Path(sockets)).run()


class _DaemonTrialRun:
    """One client, a row of daemons."""

    def __init__(self, server: ForkServer, trial: DaemonTrial, folder: Path, sockets: Path) -> None:
        self._server = server
        self._trial = trial
        self._verdict = Verdict(
            str(trial), "daemons stopped" if trial.stopped_after is not None else "daemons"
        )
        self._oracle = Oracle(trial.scene)
        self._store = folder / "data" / store_name(NAME)
        self._config = sockets / "rig.yaml"
        self._data = folder / "data"
        for made in (self._data, folder / "second"):
            made.mkdir()
        scene = trial.scene
        self._config.write_text(
            CONFIG.format(
                folder=folder,
                durability=trial.durability,
                io=scene.io(trial.io),
                live=scene.live,
                partial_chunks=scene.partial_chunks,
                on_full="spill" if trial.spills else "block",
                store_within_ms=max(LEAST_INTERVAL_MS, scene.store_within_ms),
                sync_interval_ms=max(LEAST_INTERVAL_MS, scene.sync_interval_ms),
            )
        )
        self._endpoint = f"ipc://{sockets}/in.sock"
        self._stop_after = trial.stopped_after
        self._deaths = iter([*trial.calls, *(0 for _ in trial.after_ms)])
        self._timers = iter([*(None for _ in trial.calls), *trial.after_ms])

    def run(self) -> Verdict:
        self._start_daemon()
        client = self._server.start(camera, self._endpoint, self._trial.scene, self._trial.transport)
        with (
            self._server.start(watch, self._store, self._trial.scene) as reader,
            self._server.start(follow_to_the_end, self._store) as follower,
        ):
            messages = list(self._supervise(client, reader))
            if client.wait() != 0:
                self._verdict.problems.append(f"the client ended with {client.wait()}")
            self._oracle.listen(messages)
            self._stop_daemon()
            self._verdict.spilled += sum(file.is_symlink() for file in self._store.rglob("c/**/*"))
            self._hear_follower(follower)
            if not self._verdict.problems:
                compact(self._store)
            self._hear(reader)
        self._judge()
        self._verdict.promised = len(self._oracle.promised)
        return self._verdict

    def _hear(self, reader: Child) -> None:
        """What the reader has seen, after a last look."""
        with suppress(OSError):
            reader.channel.send(Stop())
        seen = reader.drain()[-1]
        if isinstance(seen, Seen):
            self._verdict.looks += seen.looks
            self._verdict.problems += [f"the reader: {problem}" for problem in seen.problems]
        else:
            self._verdict.problems.append(f"the reader failed: {seen}")

    def _hear_follower(self, follower: Child) -> None:
        """It ends by itself, with the acquisition."""
        came = (follower.drain() or [None])[-1]
        if isinstance(came, Followed):
            self._verdict.problems += [f"the follower: {problem}" for problem in came.problems(self._oracle)]
        else:
            self._verdict.problems.append(f"the follower failed: {came}")

    def _start_daemon(self) -> None:
        """With the next death of the list, while there is one."""
        sabotage = dies_at(next(self._deaths, 0), self._trial.after)
        sabotage += f"delay_sealer({self._trial.scene.sealer_ms})\n"
        if self._trial.spills:
            sabotage += f"fill_now_and_then({str(self._data)!r}, {self._verdict.kills})"
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
        self._verdict.kills += 1
        self._verdict.problems += self._oracle.judge_final_shards(self._store)
        self._start_daemon()

    def _stop_daemon(self) -> None:
        with self._daemon as daemon:
            status = daemon.stop()
            if status == KILLED:
                self._verdict.kills += 1
            elif status != 0:
                self._verdict.problems.append(f"SIGTERM ended the daemon with {status}: {daemon.errors()}")

    def _judge(self) -> None:
        self._verdict.problems += self._oracle.complaints
        if self._oracle.sealed is None:
            self._verdict.problems.append("the client got no receipt")
            return
        if (self._store / WORKSPACE).exists():
            self._verdict.problems.append("work in progress is left")
        self._verdict.problems += self._oracle.judge_store(self._store, with_zarr_python)
        self._verdict.problems += [
            f"verify: {problem}" for problem in verify_store(self._store, threads=1).problems
        ]


def compact(store: Path) -> None:
    run(plan(open_store(store), Options("morton")), Here())


def draw_daemons(rng: np.random.Generator, most: int) -> DaemonTrial:
    """A trial with one to three deaths, ``most`` at most."""
    which = rng.random()
    if which < 0.2:
        return draw_stop(rng)
    deaths = int(min(rng.integers(1, 4), most))
    scene = list(SCENES.values())[int(rng.integers(len(SCENES)))]
    after, last = (FIRST_CREATES, CREATION_CALLS) if which < 0.4 else (FIRST_STORES, 40)
    timed = which > 0.8
    return DaemonTrial(
        scene,
        IO_MODES[int(rng.integers(len(IO_MODES)))],
        calls=() if timed else tuple(rng.integers(1, last, deaths).tolist()),
        after=after,
        after_ms=tuple(rng.uniform(20, 150, deaths).tolist()) if timed else (),
        spills=scene.live == "none" and rng.random() < 0.4,
        transport="shm" if rng.random() < 0.5 else "message",
        durability="stored" if rng.random() < 0.7 else "durable",
    )


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
        after=FIRST_SEALS,
        stopped_after=stop,
    )
