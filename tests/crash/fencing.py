"""Two writers of one output: what the processes of the fencing tests run, and the race of a stopped writer
against the one that took over."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from tests.harness.fork_server import GIVE_UP_S
from tests.harness.writing import how

from shardwright.acquire import live_scheduler, sealer
from shardwright.disk import failpoints
from shardwright.model.errors import ShardwrightError
from shardwright.shard.manifest import has_manifest
from shardwright.writer.in_process import create, resume

from .kills.oracle import Oracle
from .kills.plans import attach, finish
from .kills.processes import Created, Refused, Sealed, delay_sealer, follow, taken_up
from .kills.trial import WORKSPACE, digest

RENAME_DELAY_S = 2 * GIVE_UP_S  # nobody waits for its end: the rename goes on when it is let go
RENAMEAT2 = {"x86_64": 316, "aarch64": 276}[os.uname().machine]

if TYPE_CHECKING:
    from tests.harness.fork_server import Channel, Child, ForkServer

    from .kills.scenes import Scene


@dataclass(frozen=True)
class AtRename:
    """The old writer is about to give a shard its final name, in this thread of the system's."""

    thread: int


def stop_at(call: int, channel: Channel, hold_rename: int) -> list[str]:
    """Stop this process (SIGSTOP) at its ``call``-th storage call (0: never), and hold it before its
    ``hold_rename``-th rename of a shard (0: never) until it is told to go on; returns the list that the names
    of all calls are added to."""
    points: list[str] = []
    numbers, renames = itertools.count(1), itertools.count(1)

    def watch(name: str) -> None:
        # Not the length of the list: while one thread stops here another may be before that look. It would
        # stop the process once more, when nobody continues it.
        number = next(numbers)
        points.append(name)
        if name == "shard.before_rename":
            channel.send(AtRename(threading.get_native_id()))
            if next(renames) == hold_rename:
                channel.receive()
        if number == call:
            os.kill(os.getpid(), signal.SIGSTOP)

    failpoints.watch_all(watch)
    return points


def old_writer(channel: Channel, scene: Scene, path: Path, io: str, call: int, hold_rename: int) -> None:
    """Writes the scene, stopped or held on its way. Starts when told to."""
    channel.receive()
    points = stop_at(call, channel, hold_rename)
    try:
        live_scheduler.SHOW_INTERVAL_S = 0.0
        if hold_rename:
            sealer.MOST_TOGETHER = 1  # while one rename is held, no other is made
        delay_sealer(scene.sealer_ms)
        settings: dict[str, Any] = {
            "live": scene.live,
            "partial_chunks": scene.partial_chunks,
            "store_within_ms": scene.store_within_ms,
            "sync_interval_ms": scene.sync_interval_ms,
        }
        writer = create(path, scene.spec, threads=1, **how(io=scene.io(io), on_duplicate="count", **settings))
        channel.send(Created())
        follow(channel, scene, writer, 0)
        channel.send(Sealed(writer.close().to_dict(), tuple(points)))
    except ShardwrightError as error:
        channel.send(Refused(error.code, str(error)))


def new_writer(channel: Channel, scene: Scene, path: Path, first: int, take_over: bool) -> None:
    """Takes the store from whoever holds it; goes on and finishes when told to. A refusal is said, not
    raised."""
    try:
        writer = resume(path, threads=1, take_over=take_over)
        channel.send(taken_up(scene, writer))
        channel.receive()
        follow(channel, scene, writer, first)
        channel.send(Sealed(writer.close().to_dict(), ()))
    except ShardwrightError as error:
        channel.send(Refused(error.code, str(error)))


def contender(channel: Channel, scene: Scene, path: Path, fresh: bool) -> None:
    """Tries to be the one writer of ``path`` as soon as it is told to, and holds on to it until it is
    killed."""
    channel.receive()
    try:
        writer = create(path, scene.spec, threads=1, **how(io="pwrite")) if fresh else resume(path, threads=1)
        channel.send(taken_up(scene, writer))
    except ShardwrightError as error:
        channel.send(Refused(error.code, str(error)))
    channel.receive()


def wait_until_stopped(child: Child) -> bool:
    """Until every thread of it stands still: a stop signal does not interrupt a system call at once. False
    when it ended instead."""
    end = monotonic() + GIVE_UP_S
    while monotonic() < end:
        try:
            states = {
                task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                for task in Path(f"/proc/{child.pid}/task").iterdir()
            }
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread ended between two looks
        if states == {"T"}:
            return True
        if states <= {"Z", "X"}:
            return False
        sleep(0.001)
    raise AssertionError("neither stopped nor ended")


def wait_until_renaming(child: Child, thread: int) -> None:
    """Until this thread of it is held in the system call."""
    end, call = monotonic() + GIVE_UP_S, Path(f"/proc/{child.pid}/task/{thread}/syscall")
    while call.read_text().split()[0] != str(RENAMEAT2):
        assert monotonic() < end, "it is in no rename"
        sleep(0.001)


@dataclass
class Race:
    """What became of a stopped writer and of the one that took over. ``sealed``: the store when the new one
    had finished, and ``records`` those of its shards."""

    oracle: Oracle
    refusal: Any = None  # of one that asked without force
    old_ending: Any = None
    sealed: dict[str, str] = field(default_factory=dict)
    records: dict[str, bytes] = field(default_factory=dict)


def shard_records(store: Path) -> dict[str, bytes]:
    """The records of the shards of all arrays, by their paths."""
    files = store.rglob("shards.crc32c")
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in files}


class Racers:
    """The old writer sends the scene's beginning and closes; the new one sends the whole scene. Both on one
    path."""

    def __init__(self, server: ForkServer, scene: Scene, path: Path, io: str) -> None:
        self._server, self._scene, self._path, self._io = server, scene, path, io
        self._old_scene = scene.until(2 * len(scene.frames) // 3)
        self.race = Race(Oracle(scene))

    def start_old(self, call: int, hold_rename: int = 0) -> Child:
        arguments = self._old_scene, self._path, self._io, call, hold_rename
        return self._server.start(old_writer, *arguments)

    def stop_old(self, call: int) -> Child | None:
        """The old writer, stopped at storage call ``call`` with a store to take over; None when there was
        none."""
        old = self.start_old(call)
        old.channel.send("go")
        if (
            wait_until_stopped(old)
            and self.hear(old)
            and not self._closed_too_early
            and has_manifest(self._path / WORKSPACE)
        ):
            return old
        old.kill()
        old.wait()
        return None

    def hear(self, old: Child) -> bool:
        """What it has said so far; whether it had created the store."""
        said = []
        while old.channel.pending():
            said.append(old.channel.receive())
        self.listen(said)
        return self.race.oracle.created

    @property
    def _closed_too_early(self) -> bool:
        """Whether the old one is sealing shard rows that the rest of the scene has frames for: they would
        rightly be late, and tell nothing."""
        grids = self._scene.images.grids
        shard_rows = [
            grids.shard_row_of_slab(grids.slab_of_position(frame.position)) for frame in self._scene.frames
        ]
        begun = len(self._old_scene.frames)
        return self.race.oracle.closing and not set(shard_rows[:begun]).isdisjoint(shard_rows[begun:])

    def listen(self, said: list[Any]) -> None:
        self.race.oracle.listen([message for message in said if not isinstance(message, AtRename)])

    def take_over(self) -> Child:
        """The new writer, holding the store and waiting to go on."""
        self._first = self.race.oracle.next_to_send
        asked = self._server.start(new_writer, self._scene, self._path, self._first, False).drain()
        self.race.refusal = asked[0] if asked else None
        new = self._server.start(new_writer, self._scene, self._path, self._first, True)
        self._told = new.channel.receive()
        return new

    def finish(self, new: Child) -> None:
        new.channel.send("go")
        self.race.oracle.listen([self._told, *new.drain()], self._first)
        self.race.sealed, self.race.records = digest(self._path), shard_records(self._path)

    def continue_old(self, old: Child) -> None:
        old.send_signal(signal.SIGCONT)
        # of another shard row, sealed while it gives up
        messages = [message for message in old.drain() if not isinstance(message, AtRename)]
        self.race.old_ending = messages[-1] if messages else None


def race(server: ForkServer, scene: Scene, path: Path, io: str, call: int, *, old_first: bool) -> Race | None:
    """Stop the old writer at storage call ``call`` and take over. Continue it when the new one has finished
    or, ``old_first``, before it goes on.

    None when there was nothing to take over: the call came before the store was there, or after it was
    finished.
    """
    racers = Racers(server, scene, path, io)
    if (old := racers.stop_old(call)) is None:
        return None
    new = racers.take_over()
    if old_first:
        racers.continue_old(old)
    racers.finish(new)
    if not old_first:
        racers.continue_old(old)
    return racers.race


def race_for_a_rename(
    server: ForkServer, scene: Scene, path: Path, io: str, number: int, *, old_first: bool
) -> Race:
    """The old writer has passed every check and hangs in the very call that renames its ``number``-th shard,
    while it is taken over.

    The call goes on when the new writer has finished or, ``old_first``, before it goes on.
    """
    racers = Racers(server, scene, path, io)
    old = racers.start_old(0, number)
    old.channel.send("go")
    said: list[Any] = []
    while sum(isinstance(message, AtRename) for message in said) < number:
        said.append(old.channel.receive())
        assert said[-1] is not None, f"it never came to rename {number}: {said}"
    thread = said[-1].thread
    delay = f"inject=renameat2:delay_enter={int(1e6 * RENAME_DELAY_S)}:when=1"
    strace = attach(thread, "-e", "trace=renameat2", "-e", delay, one_thread=True)
    old.channel.send("go")
    wait_until_renaming(old, thread)
    racers.listen(said)
    new = racers.take_over()
    if not old_first:
        racers.finish(new)
    strace.kill()  # which lets the call go on
    finish(strace)
    racers.race.old_ending = old.drain()[-1]
    if old_first:
        racers.finish(new)
    return racers.race
