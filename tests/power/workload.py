"""The process whose work is recorded: the real writer, run as the scenario says. It sends a message for every
promise that it made.

A promise ``{"durable": n, "mark": m}`` says that the first n frames are durable, and that this was known when
the log had m bytes: the promise is read first and the log's size after it, so a cut at or after the mark is a
cut after the promise. ``{"sealed": true}``: ``close``, or a recovery, has returned, and what is durable can
be read without recovery; the frame table has these ``receipts``. ``{"added": n}``: ``add_image`` has returned
for the first n added images. ``{"packed": n}``: the first n shards are packed, or the whole job is done
(``jobs``), or the first n updates are (``edits``); ``{"shards": ...}``: see ``compaction``.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import live_scheduler
from shardwright.disk import failpoints
from shardwright.read.frame_table import frame_table_of
from shardwright.shard import intact_mark

from .mutants import MUTANTS
from .scenario import FRAMES, STORE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fork_server import Channel

    from shardwright.read.frame_table import FinishedPart

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
        self.added = 0
        self.silent = False

    def watch(self, writer: sw.Writer) -> None:
        self.durable(writer.watermark.durable)

    def durable(self, frames: int) -> None:
        if frames > self._durable and not self.silent:
            self._durable = frames
            self.say({"durable": frames})

    def sealed(self, store: Path) -> tuple[FinishedPart, ...]:
        """Says that the store is finished; returns the receipts of its parts."""
        table = frame_table_of(store) if store.exists() else None  # a recovery removes one without a frame
        receipts = () if table is None else table.receipts
        self.say({"sealed": True, "receipts": receipts})
        return receipts

    def say(self, promise: dict[str, object]) -> None:
        mark = self._log.stat().st_size
        self._channel.send(promise | {"mark": mark})


def write_frames(writer: sw.Writer, scenario: Scenario, promises: Promises, *, first: int, stop: int) -> None:
    names = scenario.acquisition.names
    for sequence in range(first, stop):
        frame = scenario.sent[sequence]
        image, t = scenario.place(frame)
        add_images(writer, scenario, promises, sequence)
        writer.append(scenario.frames[frame], image=names[image] or None, index=(t,))
        promises.watch(writer)
        if sequence in scenario.flush_after:
            writer.flush()
            promises.durable(sequence + 1)
        until = time.monotonic() + scenario.pause_ms[sequence] / 1000
        while time.monotonic() < until:
            time.sleep(_WATCH_S)
            promises.watch(writer)


def add_images(writer: sw.Writer, scenario: Scenario, promises: Promises, sequence: int) -> None:
    """Those that are to come before a frame, some twice. A process that has resumed the store adds all of
    them again: it does not know which answers were lost."""
    for number in range(promises.added, sum(each <= sequence for each in scenario.adds)):
        for _ in range(1 + number % 2):
            writer.add_image(**scenario.image_to_add(number))
        promises.added = number + 1
        promises.say({"added": promises.added})


def write_parts(
    writer: sw.Writer, scenario: Scenario, promises: Promises, *, first: int, stop: int = FRAMES
) -> sw.Writer:
    """Writes frames up to ``stop``; where the scenario says so, ends the store and goes on with it. Returns
    the writer that has it then."""
    for end in scenario.ends:
        if first <= end < stop:
            write_frames(writer, scenario, promises, first=first, stop=end)
            end_part(writer, promises, end)
            writer = sw.resume(writer.path, **settings_of(scenario))
            assert writer.frames == end, (writer.frames, end)
            first = end
    write_frames(writer, scenario, promises, first=first, stop=stop)
    return writer


def run_to_the_end(writer: sw.Writer, scenario: Scenario, promises: Promises, first: int) -> None:
    end_part(write_parts(writer, scenario, promises, first=first), promises, FRAMES)


def end_part(writer: sw.Writer, promises: Promises, frames: int) -> None:
    """After a take-over the last frames of the other may be lost: they were on their way, nobody had promised
    them, and watermarks pass them by."""
    receipt = writer.close()
    assert receipt.frames_stored == frames or promises.silent, receipt
    promises.durable(frames)
    assert promises.sealed(writer.path)[-1].counts == receipt.counts


def act(channel: Channel, what: Act, root: Path, log: Path, mutant: str | None, scenario: Scenario) -> None:
    """One act of a recording, in a process of its own: the promises go to the channel."""
    boot(2 if scenario.interruption == "power" and what == scenario.then else 1)
    if mutant:
        MUTANTS[mutant].apply()
    promises, store = Promises(channel, log), root / STORE
    live_scheduler.SHOW_INTERVAL_S = 0.0
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
        recover(root)
        receipts = promises.sealed(store)
        if scenario.ends and receipts and receipts[-1].counts["frames_stored"]:
            resume(store, scenario, promises)
    elif what in ("resume", "take-over", "take-over-and-hang"):
        if what == "take-over-and-hang":
            moment = int(np.random.default_rng((scenario.seed, 4)).integers(1, _STORAGE_CALLS))
            failpoints.watch_all(lambda _: hang())
            hang = failpoints.at_time(moment, stop)
            scenario = replace(scenario, ends=())  # of a store without a writer there is none to take it from
        resume(store, scenario, promises, take_over=what != "resume")
    else:
        made, first = sw.create(store, scenario.declared, **settings_of(scenario, **scenario.settings)), 0
        if what in ("write-and-die", "write-and-hang"):
            first = scenario.killed_after
            made = write_parts(made, scenario, promises, first=0, stop=first)
            if what == "write-and-die":
                os.kill(os.getpid(), signal.SIGKILL)
            stop()
        run_to_the_end(made, scenario, promises, first)


def settings_of(scenario: Scenario, **made_with: Any) -> dict[str, Any]:
    """How each process writes, as arguments; and what the store is ``made_with``."""
    names = ("sync_interval_ms", "store_within_ms", "durability")
    return how(threads=2, **{name: getattr(scenario, name) for name in names}, **made_with)


def resume(store: Path, scenario: Scenario, promises: Promises, *, take_over: bool = False) -> None:
    """Goes on to the end."""
    writer = sw.resume(store, take_over=take_over, **settings_of(scenario))
    promises.silent = writer.receipt.frames_lost > 0
    promises.watch(writer)
    run_to_the_end(writer, scenario, promises, writer.frames)


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
        lay(root, scenario.compaction)
        os.sync()
        promises.durable(FRAMES)
    else:
        do(root, scenario.compaction)
        promises.say({"packed": 1})


def recover(root: Path) -> None:
    from shardwright.acquire.workers import WorkerPool
    from shardwright.recovery.leftovers import unfinished_stores
    from shardwright.recovery.recover_store import recover_store

    pool = WorkerPool(1)
    pool.start()
    try:
        for store in unfinished_stores(root):
            recover_store(store, pool, threads=1)
    finally:
        pool.stop()
