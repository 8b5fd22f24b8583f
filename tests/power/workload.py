"""The process whose work is recorded: the real writer, run as the scenario says. It sends a message for every
promise that it made.

A promise ``{"durable": n, "mark": m}`` says that the first n frames are durable, and that this was known when
the log had m bytes: the promise is read first and the log's size after it, so a cut at or after the mark is a
cut after the promise. ``{"sealed": true}``: ``close``, or a recovery, has returned, and what is durable can
be read without recovery. ``{"packed": n}``: the first n shards are packed, or the whole job is done
(``jobs``), or the first n updates are (``edits``); ``{"shards": ...}``: see ``compaction``.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Literal

import numpy as np
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import live_scheduler
from shardwright.disk import failpoints
from shardwright.shard import intact_mark

from .mutants import MUTANTS
from .scenario import FRAMES, STORE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fork_server import Channel

    from .scenario import Scenario

Act = Literal[
    "write",
    "write-and-die",
    "write-and-hang",
    "take-over-and-hang",
    "take-over",
    "resume",
    "recover",
    "pack",
    "lay",
    "do",
]
_WATCH_S = 0.002
_STORAGE_CALLS = 120  # of a take-over and what it writes then, at one of which it hangs


def boot(number: int) -> None:
    """Each power cut is followed by another boot, which the store's intact mark tells from the one before,
    though the kernel that runs the proof is the same."""
    intact_mark.boot_id = lambda: f"boot {number}"


class Promises:
    """Reads the writer's watermark and writes it down with a mark."""

    def __init__(self, channel: Channel, log: Path) -> None:
        self._channel = channel
        self._log = log
        self._durable = 0
        self.silent = False

    def watch(self, writer: sw.Writer) -> None:
        self.durable(writer.watermark.durable)

    def durable(self, frames: int) -> None:
        if frames > self._durable and not self.silent:
            self._durable = frames
            self.say({"durable": frames})

    def say(self, promise: dict[str, object]) -> None:
        mark = self._log.stat().st_size
        self._channel.send(promise | {"mark": mark})


def write_frames(writer: sw.Writer, scenario: Scenario, promises: Promises, *, first: int, stop: int) -> None:
    names = scenario.acquisition.names
    for sequence in range(first, stop):
        frame = scenario.sent[sequence]
        image, t = scenario.place(frame)
        writer.append(scenario.frames[frame], image=names[image] or None, index=(t,))
        promises.watch(writer)
        if sequence in scenario.flush_after:
            writer.flush()
            promises.durable(sequence + 1)
        until = time.monotonic() + scenario.pause_ms[sequence] / 1000
        while time.monotonic() < until:
            time.sleep(_WATCH_S)
            promises.watch(writer)


def run_to_the_end(writer: sw.Writer, scenario: Scenario, promises: Promises, first: int) -> None:
    """After a take-over the last frames of the other may be lost: they were on their way, nobody had promised
    them, and watermarks pass them by."""
    write_frames(writer, scenario, promises, first=first, stop=FRAMES)
    receipt = writer.close()
    assert receipt.frames_missing == 0 or promises.silent, receipt
    promises.durable(FRAMES)
    promises.say({"sealed": True})


def act(channel: Channel, what: Act, root: Path, log: Path, mutant: str | None, scenario: Scenario) -> None:
    """One act of a recording, in a process of its own: the promises go to the channel."""
    boot(2 if scenario.interruption == "power" and what == scenario.then else 1)
    if mutant:
        MUTANTS[mutant].apply()
    promises, store = Promises(channel, log), root / STORE
    live_scheduler.SHOW_INTERVAL_S = 0.0
    settings = {
        "threads": 2,
        "sync_interval_ms": scenario.sync_interval_ms,
        "store_within_ms": scenario.store_within_ms,
    }
    settings |= {"durability": scenario.durability}
    if what == "pack":
        from .compaction import pack_store

        assert scenario.compaction is not None
        promises.say(
            {
                "shards": pack_store(
                    store, scenario.compaction, lambda number: promises.say({"packed": number})
                )
            }
        )
    elif what in ("lay", "do"):
        lay_or_do(what, root, scenario, promises)
    elif what == "recover":
        recover(store)
        promises.say({"sealed": True})
    elif what in ("resume", "take-over", "take-over-and-hang"):
        if what == "take-over-and-hang":
            moment = int(np.random.default_rng((scenario.seed, 4)).integers(1, _STORAGE_CALLS))
            failpoints.watch_all(lambda _: hang())
            hang = failpoints.at_time(moment, stop)
        writer = sw.resume(store, take_over=what != "resume", **how(**settings))
        promises.silent = writer.receipt.frames_lost > 0
        promises.watch(writer)
        run_to_the_end(writer, scenario, promises, writer.frames)
    elif what in ("write-and-die", "write-and-hang"):
        writer = sw.create(store, scenario.acquisition, **how(**scenario.settings, **settings))
        write_frames(writer, scenario, promises, first=0, stop=scenario.killed_after)
        if what == "write-and-die":
            os.kill(os.getpid(), signal.SIGKILL)
        stop()
        run_to_the_end(writer, scenario, promises, scenario.killed_after)
    else:
        run_to_the_end(
            sw.create(store, scenario.acquisition, **how(**scenario.settings, **settings)),
            scenario,
            promises,
            0,
        )


def stop() -> None:
    """All threads, until somebody lets them go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def lay_or_do(act: str, root: Path, scenario: Scenario, promises: Promises) -> None:
    from . import EDIT, edits
    from .jobs import do, lay

    assert scenario.compaction is not None
    if scenario.compaction == EDIT:
        if act == "lay":
            edits.lay(root, scenario)
            os.sync()
            promises.durable(FRAMES)
        else:
            edits.do(root, lambda number: promises.say({"packed": number}))
        return
    if act == "lay":
        lay(root)
        os.sync()
        promises.durable(FRAMES)
    else:
        do(root, scenario.compaction)
        promises.say({"packed": 1})


def recover(store: Path) -> None:
    from shardwright.acquire.workers import WorkerPool
    from shardwright.recovery.recover_store import recover_store

    pool = WorkerPool(1)
    pool.start()
    try:
        recover_store(store, pool, threads=1)
    finally:
        pool.stop()
