"""What the processes of a trial run. Each says over its channel what it was promised, as soon as it knows."""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING

from shardwright.model.errors import LayoutWarning
from shardwright.pipeline.recover import recover_store
from shardwright.pipeline.workers import WorkerPool
from shardwright.pipeline.writer import Writer, create, resume
from shardwright.storage import failpoints

from .scenes import Append, Flush, Pause

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.fork_server import Channel

    from .scenes import Scene


@dataclass(frozen=True)
class Created:
    """``create`` or ``resume`` has returned. ``frames``: the sequence that the next append gets."""

    stored: int = 0
    frames: int = 0


@dataclass(frozen=True)
class Said:
    """The frames of the script up to ``sent`` were appended, and the watermark was this."""

    sent: int
    stored: int
    durable: int


@dataclass(frozen=True)
class Sealed:
    """``close`` has returned this receipt; ``points`` are the storage calls that were reached, by name and in order."""

    receipt: dict[str, object]
    points: tuple[str, ...]


@dataclass(frozen=True)
class Recovered:
    """``recover_store`` has returned this."""

    facts: dict[str, object]
    points: tuple[str, ...]


def kill_at(number: int) -> list[str]:
    """Count storage calls from here on and die at the ``number``-th (0: never). Returns the list that their names are added to."""
    points: list[str] = []

    def watch(name: str) -> None:
        points.append(name)  # counted by one thread at a time: list.append and len are each one step, and an early kill is a kill too
        if number and len(points) >= number:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.watch_all(watch)
    return points


def acquire(channel: Channel, scene: Scene, path: Path, io: str, call: int) -> None:
    """The whole scene, dying at storage call ``call``. Starts when told to, so that whoever wants to trace it can attach."""
    channel.receive()
    points = kill_at(call)
    warnings.simplefilter("ignore", LayoutWarning)
    writer = create(path, scene.spec, threads=scene.threads, io=io, store_within_ms=scene.store_within_ms, sync_interval_ms=scene.sync_interval_ms)
    channel.send(Created())
    follow(channel, scene, writer, 0)
    channel.send(Sealed(writer.close().to_dict(), tuple(points)))


def resume_and_send(channel: Channel, scene: Scene, path: Path, io: str, first: int, call: int) -> None:
    """Goes on with an unfinished store: sends every frame of the script from sequence ``first`` on again, by its place, then closes."""
    channel.receive()
    points = kill_at(call)
    writer = resume(path, threads=scene.threads, io=io, store_within_ms=scene.store_within_ms, sync_interval_ms=scene.sync_interval_ms)
    channel.send(Created(writer.watermark.stored, writer.frames))
    follow(channel, scene, writer, first)
    channel.send(Sealed(writer.close().to_dict(), tuple(points)))


def follow(channel: Channel, scene: Scene, writer: Writer, first: int) -> None:
    """The scene's script from frame ``first`` on, saying the watermark after every step."""
    sequence = 0
    for step in scene.steps:
        match step:
            case Append():
                if sequence >= first:
                    facts = {"frame_id": scene.frame_id(sequence), "metadata": scene.metadata(sequence)}
                    writer.append(scene.pixels(sequence), index=scene.index(step.position), **facts)
                sequence += 1
            case Flush():
                writer.flush()
            case Pause():
                sleep(step.ms / 1000)
        watermark = writer.watermark
        channel.send(Said(sequence, watermark.stored, watermark.durable))


def recover(channel: Channel, path: Path, call: int) -> None:
    """Brings one store back."""
    channel.receive()
    points = kill_at(call)
    pool = WorkerPool(1)
    pool.start()
    recovery = recover_store(path, pool, threads=1)
    pool.stop()
    channel.send(Recovered(recovery.to_dict(), tuple(points)))
