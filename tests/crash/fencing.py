"""Two writers of one output: what the processes of the fencing tests run, and the race of a stopped writer against the one that took over."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardwrightError
from shardwright.pipeline.writer import create, resume
from shardwright.storage import failpoints

from .fork_server import GIVE_UP_S
from .kills.oracle import Oracle
from .kills.processes import Created, Sealed, follow

if TYPE_CHECKING:
    from .fork_server import Channel, Child, ForkServer
    from .kills.scenes import Scene


@dataclass(frozen=True)
class Refused:
    """A writer ended with this error."""

    code: str
    text: str


def stop_at(call: int) -> list[str]:
    """Stop this process (SIGSTOP) at its ``call``-th storage call; returns the list that the names of all calls are added to."""
    points: list[str] = []

    def watch(name: str) -> None:
        points.append(name)
        if len(points) == call:
            os.kill(os.getpid(), signal.SIGSTOP)

    failpoints.watch_all(watch)
    return points


def old_writer(channel: Channel, scene: Scene, path: Path, io: str, call: int) -> None:
    """Writes the whole scene, stopped on its way."""
    points = stop_at(call)
    writer = None
    try:
        writer = create(path, scene.spec, threads=1, io=io, store_within_ms=scene.store_within_ms, sync_interval_ms=scene.sync_interval_ms)
        channel.send(Created())
        follow(channel, scene, writer, 0)
        channel.send(Sealed(writer.close().to_dict(), tuple(points)))
    except ShardwrightError as error:
        channel.send(Refused(error.code, str(error)))


def new_writer(channel: Channel, scene: Scene, path: Path, io: str, first: int, take_over: bool) -> None:
    """Takes the store from whoever holds it and finishes it; a refusal is said, not raised."""
    try:
        writer = resume(path, threads=1, io=io, take_over=take_over)
        channel.send(Created(writer.watermark.stored, writer.frames))
        follow(channel, scene, writer, first)
        channel.send(Sealed(writer.close().to_dict(), ()))
    except ShardwrightError as error:
        channel.send(Refused(error.code, str(error)))


def contender(channel: Channel, scene: Scene, path: Path, fresh: bool) -> None:
    """Tries to be the one writer of ``path`` as soon as it is told to, and holds on to it until it is told to end."""
    channel.receive()
    try:
        writer = create(path, scene.spec, threads=1, io="pwrite") if fresh else resume(path, threads=1)
        channel.send(Created(writer.watermark.stored, writer.frames))
    except ShardwrightError as error:
        channel.send(Refused(error.code, str(error)))
    channel.receive()


def is_stopped(pid: int) -> bool:
    """Every thread of it: a stop signal ends no system call that is under way at once."""
    states = [task.joinpath("stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(state == "T" for state in states)


def wait_until_stopped(child: Child) -> bool:
    """False when it ended instead."""
    end = monotonic() + GIVE_UP_S
    while monotonic() < end:
        try:
            if is_stopped(child.pid):
                return True
            if Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        sleep(0.001)
    raise AssertionError("neither stopped nor ended")


@dataclass
class Race:
    """What became of one stopped writer and the one that took over."""

    oracle: Oracle
    refused_without_force: bool
    old_ending: Any


def race(server: ForkServer, scene: Scene, path: Path, io: str, call: int, seen_after_takeover: Any) -> Race | None:
    """Stop the old one at storage call ``call``, let another take over and finish, run ``seen_after_takeover()``, and continue the old one.

    None when there was nothing to take over: the call came before the store was there, or never.
    """
    oracle = Oracle(scene)
    old = server.start(old_writer, scene, path, io, call)
    if not wait_until_stopped(old) or not (path / ".shardwright").exists():
        old.kill()
        old.wait()
        return None
    said = []
    while old.channel.pending():
        said.append(old.channel.receive())
    oracle.listen(said)
    if not oracle.created:
        old.kill()
        old.wait()
        return None
    refused = server.start(new_writer, scene, path, io, oracle.next_to_send, False).drain()
    first = oracle.next_to_send
    oracle.listen(server.start(new_writer, scene, path, io, first, True).drain(), first)
    seen_after_takeover()
    old.signal(signal.SIGCONT)
    rest = old.drain()
    return Race(oracle, bool(refused) and isinstance(refused[0], Refused) and refused[0].code == "locked", rest[-1] if rest else None)
