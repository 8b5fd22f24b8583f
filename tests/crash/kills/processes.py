"""What the processes of a trial run. Each says over its channel what it was promised, as soon as it knows."""

from __future__ import annotations

import errno
import os
import random
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

from tests.harness.frames import WAYS, hand_over

from shardwright.acquire import live_scheduler
from shardwright.acquire.workers import WorkerPool
from shardwright.disk import failpoints, slot_file
from shardwright.model.errors import LayoutWarning, ResumeError
from shardwright.model.write_settings import WriteSettings
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.writer.in_process import create, resume

from .scenes import Append, Flush, Pause

if TYPE_CHECKING:
    from tests.harness.fork_server import Channel

    from shardwright.writer.writer import Writer

    from .scenes import Scene


@dataclass(frozen=True)
class Created:
    """``create`` or ``resume`` has returned, after so many storage ``calls``. ``frames``: the sequence that
    the next append gets."""

    stored: int = 0
    frames: int = 0
    calls: int = 0


@dataclass(frozen=True)
class Said:
    """The frames of the script up to ``sent`` were appended, and the watermark was this."""

    sent: int
    stored: int
    durable: int


@dataclass(frozen=True)
class Flushed:
    """``flush`` has returned: the ``sent`` frames are durable."""

    sent: int


@dataclass(frozen=True)
class Closing:
    """Every frame of the script was appended; ``close`` is called next, after so many storage calls."""

    calls: int = 0


@dataclass(frozen=True)
class Refused:
    """A call was answered with this error of ours; nothing more comes."""

    code: str
    text: str


@dataclass(frozen=True)
class Sealed:
    """``close`` has returned this receipt; ``points`` are the storage calls that were reached, by name and in
    order."""

    receipt: dict[str, object]
    points: tuple[str, ...]


@dataclass(frozen=True)
class Recovered:
    """``recover_store`` has returned this."""

    facts: dict[str, object]
    points: tuple[str, ...]


def kill_at(number: int, after: frozenset[str] = frozenset()) -> list[str]:
    """Die at the ``number``-th storage call from here on, or from the first of ``after`` on (0: never);
    returns the list that their names go to."""
    points: list[str] = []

    def watch(name: str) -> None:
        if not after or points or name in after:
            points.append(name)  # from several threads: an early kill is a kill too
            if number and len(points) >= number:
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.watch_all(watch)
    return points


def delay_sealer(ms: float) -> None:
    """The sealer waits before each command, if at all."""
    if ms:
        failpoints.set_hook("sealer.before_command", lambda: sleep(ms / 1000))


def fill_now_and_then(root: str, seed: int) -> None:
    """Half of the time there is no room for new shards below ``root``."""
    preallocate, rng = slot_file.preallocate, random.Random(seed)

    def try_to(descriptor: int, nbytes: int, *, start: int = 0) -> bool:
        is_new_there = not start and Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(root)
        if is_new_there and rng.random() < 0.5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return preallocate(descriptor, nbytes, start=start)

    slot_file.preallocate = try_to


def acquire(
    channel: Channel, scene: Scene, path: Path, io: str, call: int, *, overwrite: bool = False
) -> None:
    """The whole scene, dying at storage call ``call``. Starts when told to, so that whoever wants to trace it
    can attach."""
    channel.receive()
    points = kill_at(call)
    warnings.simplefilter("ignore", LayoutWarning)
    settings = WriteSettings(
        io=scene.io(io),
        chunk_order=scene.chunk_order,
        partial_chunks=scene.partial_chunks,
        live=scene.live,
        store_within_ms=scene.store_within_ms,
        sync_interval_ms=scene.sync_interval_ms,
        on_duplicate="count",
    )
    live_scheduler.SHOW_INTERVAL_S = 0.0  # each stored slab is shown
    delay_sealer(scene.sealer_ms)
    writer = create(path, scene.declared, threads=scene.threads, overwrite=overwrite, settings=settings)
    channel.send(Created(calls=len(points)))
    follow(channel, scene, writer, 0)
    channel.send(Closing(len(points)))
    channel.send(Sealed(writer.close().to_dict(), tuple(points)))


def overwrite(channel: Channel, scene: Scene, path: Path, io: str, call: int) -> None:
    """As ``acquire``, in place of the store that has the name."""
    acquire(channel, scene, path, io, call, overwrite=True)


def resume_and_send(channel: Channel, scene: Scene, path: Path, first: int, call: int) -> None:
    """Goes on with an unfinished store: sends every frame of the script from sequence ``first`` on again, by
    its place, then closes."""
    channel.receive()
    points = kill_at(call)
    live_scheduler.SHOW_INTERVAL_S = 0.0
    delay_sealer(scene.sealer_ms)
    try:
        settings = WriteSettings(
            chunk_order=scene.chunk_order,
            store_within_ms=scene.store_within_ms,
            sync_interval_ms=scene.sync_interval_ms,
        )
        writer = resume(path, threads=scene.threads, settings=settings)
    except ResumeError as error:
        channel.send(Refused(error.code, str(error)))
        return
    channel.send(taken_up(scene, writer))
    follow(channel, scene, writer, first)
    channel.send(Closing())
    channel.send(Sealed(writer.close().to_dict(), tuple(points)))


def taken_up(scene: Scene, writer: Writer) -> Created:
    """A writer that ``resume`` has returned; sequences are those of places."""
    return Created(writer.watermark.stored * scene.places, writer.frames * scene.places)


def follow(channel: Channel, scene: Scene, writer: Writer, first: int) -> None:
    """The scene's script from frame ``first`` on, saying the watermark after every step."""
    n, asked = 0, set[str]()
    for step in scene.steps:
        if n < first:
            n += isinstance(step, Append)
            continue
        match step:
            case Append():
                n += 1
                if n % scene.places:
                    continue
                if (image := scene.image_to_add(step.position, asked)) is not None:
                    writer.add_image(**image)
                hand_over(writer, WAYS[n % len(WAYS)], scene.given(n - 1), **scene.facts(n - 1))
            case Flush():
                writer.flush()
                channel.send(Flushed(n))
            case Pause():
                sleep(step.ms / 1000)
        watermark = writer.watermark
        channel.send(Said(n, watermark.stored * scene.places, watermark.durable * scene.places))


def recover(channel: Channel, path: Path, call: int) -> None:
    """Brings one store back, if it is unfinished, and clears what killed creations have left beside it, as
    ``shardwright recover`` does."""
    channel.receive()
    points = kill_at(call)
    facts: dict[str, object] = {}
    if left := unfinished_stores(path.parent):
        pool = WorkerPool(1)
        pool.start()
        reports = {each: recover_store(each, pool, threads=1).to_dict() for each in left}
        facts = reports.get(path, {})
        pool.stop()
    channel.send(Recovered(facts, tuple(points)))
