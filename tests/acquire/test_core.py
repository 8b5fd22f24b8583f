"""The core by itself: events in, commands out, no thread, file or clock. What chance events may do to it is
tried in ``tests/world``."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import shardwright.acquire
from shardwright.acquire.call_time import Now
from shardwright.acquire.commands import (
    Abandon,
    Commit,
    Committed,
    Discard,
    Encode,
    FinishStore,
    FramesStaged,
    Grow,
    MetadataUpdated,
    NotRecorded,
    Prepare,
    Record,
    Seal,
    ShardRowPrepared,
    ShardRowSealed,
    Show,
    SlabEncoded,
    Stage,
    StoreFinished,
    UpdateMetadata,
)
from shardwright.acquire.core import AcquisitionState, Core
from shardwright.acquire.encoding import SlabEncoder
from shardwright.acquire.limits import Limits
from shardwright.array.acquisition_spec import AcquisitionSpec
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ClosedError, StorageError, StorageFullError
from shardwright.model.write_settings import WriteSettings
from shardwright.scan.unfinished_store import store_layout
from shardwright.shard.frame_record import record_dtype
from shardwright.wire.descriptor import DESCRIPTOR

ROOM = Path(shardwright.acquire.__file__).parent
OF_THE_CORE = (
    "core",
    "shard_rows",
    "states",
    "verdicts",
    "earlier_shard_rows",
    "end",
    "losses",
    "recorder",
    "free_pixels",
    "full_disk",
    "live_scheduler",
    "rewrites",
    "assembly",
    "encoding_scheduler",
    "staging_scheduler",
    "arrivals",
    "call_time",
    "commit_ledger",
    "notifications",
    "accounts",
    "closed_shard_rows",
    "commands",
)
DEVICES = {
    "time",
    "datetime",
    "threading",
    "queue",
    "multiprocessing",
    "os",
    "io",
    "socket",
    "mmap",
    "shutil",
    "tempfile",
    "logging",
    "random",
}


class StandsForFiles:
    """Files of a shard row that is not opened again; each is itself alone."""

    journal = SimpleNamespace(reopened=False)


FIRST = StandsForFiles()


class Drive:
    """A core whose commands are answered by hand."""

    def __init__(self, spec, settings: WriteSettings | None = None, *, in_place: bool = False) -> None:
        acquisition = AcquisitionSpec(array=spec)
        acquisition = acquisition.in_place() if in_place else acquisition
        limits, (encoder,) = Limits.derive(spec, threads=1), SlabEncoder.of_images(acquisition)
        self.core = Core(
            Path("a.ome.zarr"),
            acquisition,
            limits,
            settings or WriteSettings(),
            store_layout(acquisition),
            encoder.degrade_levels,
            threads=1,
            staging_slots=limits.staging_frames,
        )
        self.ns = 0
        self.core.begin(
            self.core.shard_rows.prepare_first(
                lambda command: ShardRowPrepared(command.shard_row, command.request, FIRST, None)
            )
        )

    def now(self, later_ms: int = 1) -> Now:
        self.ns += later_ms * 1_000_000
        return Now(self.ns, self.ns)

    def send(self, *positions: int) -> list:
        """Frames for these places, numbered on; what is asked for then."""
        batch, first = np.zeros(len(positions), DESCRIPTOR), self.core.accounts.seen.stop
        batch["sequence"], batch["position"], batch["frame_id"] = (
            first + np.arange(len(positions)),
            positions,
            positions,
        )
        self.core.submit(batch, 1 + batch["sequence"].astype(np.int64), self.now())
        return self.core.take_commands()

    def tell(self, *reports) -> list:
        for report in reports:
            self.core.handle(report, self.now())
        self.core.tick(self.now())
        return self.core.take_commands()


def prepared(command: Prepare, files: object = None, error: ErrorText | None = None) -> ShardRowPrepared:
    return ShardRowPrepared(
        command.shard_row, command.request, None if error else files or StandsForFiles(), error
    )


def of(kind: type, commands: list) -> list:
    return [command for command in commands if isinstance(command, kind)]


@pytest.mark.parametrize("module", OF_THE_CORE)
def test_no_device_is_within_reach(module):
    """No clock, thread, lock, file or queue: the same inputs give the same outputs."""
    tree = ast.parse((ROOM / f"{module}.py").read_text())
    named = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    named |= {
        node.module.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    assert not named & DEVICES
    assert not any(isinstance(node, ast.Name) and node.id == "open" for node in ast.walk(tree))


def test_the_way_of_a_slab(spec_of):
    drive = Drive(spec_of(count=4, chunk=2, shard=2))
    assert of(Encode, drive.send(0)) == []
    (slab,) = of(Encode, drive.send(1))
    assert (slab.slab, slab.files, slab.frames.tolist()) == (0, FIRST, [1, 2])
    assert drive.core.take_released().size == 0, "a worker reads them"
    assert drive.tell(SlabEncoded(slab.row, 10, None)) == []
    assert (
        drive.core.take_released().tolist(),
        drive.core.accounts.stored.value,
        drive.core.accounts.durable.value,
    ) == ([0, 1], 2, 0)
    drive.core.tick(drive.now(2000))
    (commit,) = drive.core.take_commands()
    assert commit == Commit(frozenset({0}))
    drive.tell(Committed({}, 1))
    assert drive.core.accounts.durable.value == 2
    (slab,) = of(Encode, drive.send(2, 3))
    assert of(Seal, drive.tell(SlabEncoded(slab.row, 10, None))) == [Seal(0)]
    drive.tell(ShardRowSealed(0, 1, True, None, 1, np.zeros(4, record_dtype(0))))
    drive.core.finish(drive.now())
    assert of(FinishStore, drive.core.take_commands()) == [FinishStore(((4,),), 4, keep_workspace=False)]
    drive.tell(StoreFinished(None))
    assert drive.core.state is AcquisitionState.SEALED
    assert drive.core.receipt().frames_stored == 4


def test_a_frame_that_waits_is_staged_and_its_pixels_stay_until_that_is_done(spec_of):
    drive = Drive(spec_of(chunk=2), WriteSettings(store_within_ms=100))
    drive.send(0)
    drive.core.tick(drive.now(200))
    (stage,) = of(Stage, drive.core.take_commands())
    (slab,) = of(Encode, drive.send(1))
    drive.tell(SlabEncoded(slab.row, 10, None))
    assert drive.core.take_released().size == 0, "a worker still reads the first of them"
    drive.tell(FramesStaged(stage.row, stage.in_slab, stage.slots, None))
    assert drive.core.take_released().tolist() == [0, 1]


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_staged_behind_a_failure_is_left_to_recovery(spec_of, whole):
    """Its chunks would be deleted with their files, under readers that have seen the frame."""
    drive = Drive(spec_of(chunk=4, codec=None), in_place=True)
    (first,) = of(Stage, drive.send(0))
    (second,) = of(Stage, drive.send(1))
    broken = ErrorText(StorageError, "Input/output error")
    drive.tell(FramesStaged(first.row, first.in_slab, first.slots, broken))
    commands = drive.tell(FramesStaged(second.row, second.in_slab, second.slots, None if whole else broken))
    assert of(Abandon, commands) == [Abandon(0)]
    assert of(Discard, commands) in ([], [Discard(1)]), "of what was prepared alone"


def test_a_tick_at_once_does_what_a_report_asks_for_and_nothing_else(spec_of):
    drive = Drive(spec_of(chunk=2), WriteSettings(store_within_ms=100))
    (slab,) = of(Encode, drive.send(0, 1))
    drive.send(2)
    now = drive.now()
    drive.core.tick(now)
    drive.core.flush(now)
    drive.core.take_commands()
    drive.core.handle(SlabEncoded(slab.row, 10, None), now)
    drive.core.tick(now)
    assert of(Commit, drive.core.take_commands())
    drive.core.workers_failed("gone", now, ended=True)
    drive.core.tick(now)
    assert of(FinishStore, drive.core.take_commands())


def test_a_tick_within_a_millisecond_of_the_last_one_looks_at_nothing(spec_of, monkeypatch):
    drive = Drive(spec_of())
    drive.send(0)
    looks = []
    monkeypatch.setattr(drive.core, "_advance", lambda: looks.append(drive.ns))
    for _ in range(3):
        drive.core.tick(Now(drive.ns, drive.ns))
    assert not looks
    drive.core.tick(drive.now())
    assert looks == [drive.ns]


def test_a_shape_is_asked_for_once_while_a_slab_waits_for_an_earlier_one(spec_of):
    drive = Drive(spec_of(chunk=2, shard=1), WriteSettings(store_within_ms=60_000))
    (slab,) = of(Encode, drive.send(0, 2, 3))
    grown = of(Grow, drive.tell(SlabEncoded(slab.row, 10, None)))
    for _ in range(5):
        drive.core.tick(drive.now(1000))
        grown += of(Grow, drive.core.take_commands())
    assert grown == [Grow(0, (0,))], "slab 0 is still to come"
    (slab,) = of(Encode, drive.send(1))
    drive.tell(SlabEncoded(slab.row, 10, None))
    drive.core.tick(drive.now(1000))
    assert of(Grow, drive.core.take_commands()) == [Grow(0, (4,))]


def test_no_shape_covers_a_slab_that_waits_for_a_stage(spec_of):
    drive = Drive(spec_of(chunk=2, shard=1), WriteSettings(store_within_ms=100))
    drive.send(0)
    drive.core.tick(drive.now(200))
    (stage,) = of(Stage, drive.core.take_commands())
    first, second = of(Encode, drive.send(1, 2, 3))
    asked = drive.tell(SlabEncoded(first.row, 10, None), SlabEncoded(second.row, 10, None))
    assert of(Show, asked) == [Show({0: (1,)})]
    assert of(Grow, asked) == [Grow(0, (0,))], "a worker still reads frames of slab 0"
    drive.tell(FramesStaged(stage.row, stage.in_slab, stage.slots, None))
    drive.core.tick(drive.now(1000))
    asked = drive.core.take_commands()
    assert of(Show, asked) == [Show({0: (0,)})]
    assert of(Grow, asked) == [Grow(0, (4,))]


def test_the_answer_for_files_that_were_discarded_is_not_for_those_asked_for_since(spec_of):
    drive = Drive(spec_of(chunk=1, shard=2))
    first = of(Prepare, drive.send(0))
    assert [command.shard_row for command in first] == [1]
    later = drive.send(4)  # shard row 1 is not next any more
    assert of(Discard, later) == [Discard(1)]
    (again,) = [command for command in of(Prepare, drive.send(2)) if command.shard_row == 1]
    assert of(Encode, drive.tell(prepared(first[0]))) == [], "these files are about to be deleted"
    files = StandsForFiles()
    (slab,) = of(Encode, drive.tell(prepared(again, files)))
    assert (slab.slab, slab.files) == (2, files)


def test_files_that_cannot_be_made_end_it_before_a_slab_is_full(spec_of):
    """A flush would wait for ever for the frame that collects."""
    drive = Drive(spec_of(chunk=2, shard=2))
    (prepare,) = of(Prepare, drive.send(0, 1, 2, 3))
    drive.send(4)
    drive.core.flush(drive.now())
    drive.tell(prepared(prepare, error=ErrorText(StorageError, "Input/output error")))
    assert drive.core.state is AcquisitionState.FAILING
    assert drive.core.end.why is not None
    assert "Input/output" in drive.core.end.why.message


def test_a_shard_row_that_is_being_sealed_is_not_rewritten_for_a_commit_before(spec_of):
    """Sealing syncs again, and says itself what became of it."""
    drive = Drive(spec_of(count=None, chunk=1, shard=2))
    (slab,) = of(Encode, drive.send(0))
    drive.tell(SlabEncoded(slab.row, 10, None))
    drive.core.tick(drive.now(2000))
    assert of(Commit, drive.core.take_commands()) == [Commit(frozenset({0}))]
    (slab,) = of(Encode, drive.send(1))
    assert of(Seal, drive.tell(SlabEncoded(slab.row, 10, None))) == [Seal(0)]
    assert drive.tell(Committed({0: ErrorText(StorageError, "Input/output error")}, 1)) == []
    drive.tell(ShardRowSealed(0, 1, True, None, 1, np.zeros(2, record_dtype(0))))
    assert drive.core.state is AcquisitionState.OPEN
    assert drive.core.accounts.durable.value == 2


def test_a_failure_while_the_end_waits_for_room_is_an_end(spec_of):
    drive = Drive(spec_of(chunk=1, shard=1), WriteSettings(on_full="block"))
    drive.core.finish(drive.now())
    assert of(FinishStore, drive.core.take_commands()) == [FinishStore(((0,),), 0, keep_workspace=False)]
    assert of(FinishStore, drive.tell(StoreFinished(ErrorText(StorageFullError, "no room")))) == []
    assert drive.core.state is AcquisitionState.FINISHING
    drive.core.workers_failed("it died", drive.now(), ended=True)
    drive.core.tick(drive.now())
    assert of(FinishStore, drive.core.take_commands()) == [FinishStore(((0,),), 0, keep_workspace=False)], (
        "what readers see is to be true"
    )
    drive.tell(StoreFinished(None))
    assert drive.core.state is AcquisitionState.FAILED


@pytest.mark.parametrize("release", [False, True], ids=["held by nobody", "held"])
def test_a_record_that_finds_no_room_is_left_to_recovery_if_it_is_the_only_trace(spec_of, release):
    """It may be of a frame that was acknowledged before a crash: a finished store would say nothing of it."""
    drive = Drive(spec_of(chunk=1, shard=1), WriteSettings(on_full="fail"))
    batch = np.zeros(1, DESCRIPTOR)
    batch["sequence"], batch["position"] = 1, 1
    drive.core.submit(batch, np.ones(1, np.int64), drive.now())
    drive.core.settle_missing(drive.now())
    commands = drive.core.take_commands()
    (record,), (slab,) = of(Record, commands), of(Encode, commands)
    drive.tell(SlabEncoded(slab.row, 10, None))
    no_room = ErrorText(StorageFullError, "no room")
    commands = drive.tell(NotRecorded(record.records, release, record.settled, no_room))
    assert drive.core.state is AcquisitionState.FAILING
    for seal in of(Seal, commands):
        records = np.zeros(1, record_dtype(0))
        commands += drive.tell(ShardRowSealed(seal.shard_row, 1, True, None, 1, records))
    assert [finish.keep_workspace for finish in of(FinishStore, commands)] == [not release]


def test_metadata_are_updated_until_the_end_begins(spec_of):
    drive = Drive(spec_of())
    drive.core.update_metadata(7, None, {"x": 1})
    assert drive.core.take_commands() == [UpdateMetadata(7, None, {"x": 1})]
    drive.tell(MetadataUpdated(7, None))
    assert drive.core.notifications.take_updates() == [(7, None)]
    assert drive.core.notifications.take_updates() == []
    drive.core.finish(drive.now())
    with pytest.raises(ClosedError):
        drive.core.update_metadata(8, None, {})


def test_a_shard_row_whose_only_slab_is_at_the_workers_is_not_empty(spec_of):
    """After a resumption all frames of a slab may be in the staging area: it is full at once."""
    drive = Drive(spec_of(chunk=1, shard=2))
    drive.send(0)
    drive.core.shard_rows.set_empty_aside(set())
    assert list(drive.core.shard_rows.by_number) == [0]
