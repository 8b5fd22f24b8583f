"""A disk that fills up at any moment: no policy loses an acknowledged frame, tears a shard or ends the
process.

fail     the acquisition ends with StorageFullError; what was acknowledged is sealed and readable
block    it goes on when there is room again; nothing is lost
spill    its next shards go to a second disk; the store reads whole by its name
"""

from __future__ import annotations

import itertools
import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.camera import CameraProcess, Script
from tests.harness.daemon import DaemonProcess, bring_back
from tests.harness.daemon_config import write_config
from tests.harness.frames import in_order
from tests.harness.store_contents import leftovers

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.read.store import open_store
from shardwright.rework.jobs.repair_store import repair_store
from shardwright.rework.jobs.shard_parity import make_parity
from shardwright.rework.runtime.throttle import UNHURRIED

from .disks import LoopDisk
from .judge import judge, judge_account, read_evidence
from .moments import calls_of, every_call, fault_at, first_and_last, spread, try_each
from .recovery import is_unfinished, recover_here
from .scenario import Fault, Outcome, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from .writer_process import WriterProcess

FRAMES = 28  # three shard rows and half a shard row: shards that fill up, and one that finish has to close
# the frame log takes up to three of them ahead
FAST = {"store_within_ms": 20, "sync_interval_ms": 20, "ballast_bytes": 8 << 20}
ROOM_AFTER_S = 0.4
# before the files of the first two shard rows
SHARD_ROW_EDGES = [("shard.before_preallocate", 0), ("shard.before_preallocate", 2)]
NUMBERS = pytest.mark.parametrize("number", [8, pytest.param(1000, marks=pytest.mark.slow)])  # of moments


class Trial:
    """Runs a scenario in a fresh store on a disk and leaves the disk as it was."""

    def __init__(self, writer: WriterProcess, disk: LoopDisk) -> None:
        self.writer, self.disk = writer, disk
        self.path = disk.path / "a.ome.zarr"

    def scenario(self, *faults: Fault, **settings) -> Scenario:
        return Scenario(
            str(self.path),
            in_order(FRAMES),
            {**FAST, **settings},
            list(faults),
            str(self.disk.path),
            pause_s=0.004,
        )

    def run(self, scenario: Scenario) -> Outcome:
        outcome = self.writer.run(scenario)
        assert outcome.death is None, f"the process died by signal {outcome.death}: {outcome.trace}"
        return outcome

    def calls(self, **settings) -> list[str]:
        """The storage calls of a run on a disk with room."""
        calls = calls_of(self.writer, self.scenario(**settings))
        self.clean()
        return calls

    def fill_at(
        self,
        moments: list[tuple[str, int]],
        judge_one: Callable[[Trial, Scenario], str],
        *,
        room_after_s=None,
        **settings,
    ) -> dict[str, int]:
        """One run for each moment, at which the disk is filled."""

        def attempt(moment: tuple[str, int]) -> str:
            try:
                return judge_one(
                    self, self.scenario(fault_at(moment, "fill", room_after_s=room_after_s), **settings)
                )
            finally:
                self.clean()

        return try_each(moments, attempt)

    def recover(self) -> bool:
        """Whether there was anything left to recover; done with room on the disk."""
        if not is_unfinished(self.path):
            return False
        self.disk.filler.release()
        assert recover_here(self.path) is None
        return True

    def clean(self) -> None:
        self.disk.filler.release()
        shutil.rmtree(self.path, ignore_errors=True)


@pytest.fixture
def trial(writer, small_disk):
    made = Trial(writer, small_disk)
    yield made
    made.clean()


def judge_failed(trial: Trial, scenario: Scenario) -> str:
    """The policy ``fail`` at one moment; returns how it ended."""
    outcome = trial.run(scenario)
    if outcome.refused is not None:
        assert outcome.refused["code"] == "storage_full", outcome.refused
        assert not trial.path.exists(), "a refused acquisition leaves nothing"
        return "refused"
    left = trial.recover()
    evidence = judge(trial.path, (scenario, outcome))
    assert not outcome.losses, "a full disk costs no frame that was acknowledged"
    if outcome.error is None:
        assert (outcome.state, evidence.missing, outcome.receipt["frames_stored"]) == ("sealed", [], FRAMES)
        judge_account(outcome, evidence)
    else:
        assert (outcome.state, outcome.error["code"]) == ("failed", "storage_full"), outcome.error
    # where each write may want room for metadata, preallocated or not: recovery seals the rest
    if trial.disk.format_name != "btrfs":
        assert not left, f"not sealed, although nothing is lost: {outcome.error}"
    assert leftovers(trial.path) == []
    return outcome.state


def test_nothing_is_created_on_a_disk_that_is_full(trial):
    trial.disk.filler.fill()
    assert judge_failed(trial, trial.scenario(on_full="fail")) == "refused"


@NUMBERS
def test_fail_seals_what_was_acknowledged_wherever_the_disk_fills_up(trial, number):
    moments = [*SHARD_ROW_EDGES, *spread(first_and_last(trial.calls()), number)]
    ended = trial.fill_at(moments, judge_failed, on_full="fail")
    assert set(ended) == {"refused", "failed", "sealed"}, ended


def judge_complete(trial: Trial, scenario: Scenario) -> Outcome | None:
    """Refused (None) or sealed, with every frame at its place and nothing left to recover."""
    outcome = trial.run(scenario)
    if outcome.refused is not None:
        assert outcome.refused["code"] == "storage_full"
        return None
    left = trial.recover()
    evidence = judge(trial.path, (scenario, outcome))
    assert outcome.error is None, outcome.error
    assert (left, outcome.state, outcome.losses, evidence.missing) == (False, "sealed", [], [])
    judge_account(outcome, evidence)
    return outcome


def judge_blocked(trial: Trial, scenario: Scenario) -> str:
    outcome = judge_complete(trial, scenario)
    if outcome is None:
        return "refused"
    assert leftovers(trial.path) == []
    assert outcome.events.count("disk_full") == outcome.events.count("disk_has_room"), outcome.events
    return "blocked" if "disk_full" in outcome.events else "unnoticed"


@NUMBERS
def test_block_goes_on_when_there_is_room(trial, number):
    moments = [*SHARD_ROW_EDGES, *spread(first_and_last(trial.calls()), number)]
    ended = trial.fill_at(moments, judge_blocked, room_after_s=ROOM_AFTER_S, on_full="block")
    assert ended.get("blocked"), ended


@NUMBERS
def test_spill_goes_on_in_the_second_root(trial, second_disk, number):
    def judge_spilled(trial: Trial, scenario: Scenario) -> str:
        for path in second_disk.path.glob("*.zarr"):
            shutil.rmtree(path)
        outcome = judge_complete(trial, scenario)
        if outcome is None:
            return "refused"
        spilled = [path for path in second_disk.path.glob("*.zarr/**/*") if path.is_file()]
        assert bool(spilled) == ("spilling" in outcome.events), (spilled, outcome.events)
        return "spilled" if spilled else "unnoticed"

    moments = [*SHARD_ROW_EDGES, *spread(first_and_last(trial.calls()), number)]
    ended = trial.fill_at(moments, judge_spilled, on_full="spill", spill_root=str(second_disk.path))
    assert ended.get("spilled"), ended


def test_a_warning_comes_before_the_disk_is_full(trial):
    low_water = trial.disk.free_bytes - (2 << 20)
    scenario = trial.scenario(on_full="fail", low_water_bytes=low_water)
    outcome = trial.run(scenario)
    assert outcome.state == "sealed"
    assert outcome.events.count("disk_low") == 1
    assert "disk_full" not in outcome.events


def test_the_ballast_is_what_sealing_on_a_full_disk_uses(trial):
    """Nothing is left for recovery: sealing, the frame table and zarr.json found room."""
    outcome = trial.run(trial.scenario(fault_at(SHARD_ROW_EDGES[1], "fill"), on_full="fail"))
    assert outcome.error["code"] == "storage_full"
    assert read_evidence(trial.path).rows, "the frame table found room"
    assert leftovers(trial.path) == []
    assert trial.disk.free_bytes > 0, "what is left of the ballast is given back"


def test_recovery_on_a_full_disk(trial):
    """It seals what is there, with the ballast's room; where even that is not enough it says so, and does it
    once there is room."""
    killed = replace(trial.scenario(), finish=False, linger_s=None)
    outcome = trial.writer.run(killed)
    assert (outcome.death, outcome.stored) == (signal.SIGKILL, FRAMES)
    trial.disk.filler.fill()
    error = recover_here(trial.path)
    assert error is None or error.code == "storage_full", error
    trial.disk.filler.release()
    assert recover_here(trial.path) is None
    evidence = judge(trial.path, (killed, outcome))
    assert evidence.held == [0] * FRAMES
    assert leftovers(trial.path) == []


def test_recovery_while_the_disk_fills_up(trial):
    for step in range(4):
        killed = replace(trial.scenario(), finish=False, linger_s=None)
        outcome = trial.writer.run(killed)
        count = itertools.count()

        def fill_at_step(_: str, count=count, step=step) -> None:
            if next(count) == 6 * step:
                trial.disk.filler.fill()

        failpoints.watch_all(fill_at_step)
        try:
            error = recover_here(trial.path)
        finally:
            failpoints.watch_all(None)
        assert error is None or error.code == "storage_full", error
        trial.disk.filler.release()
        assert recover_here(trial.path) is None
        assert judge(trial.path, (killed, outcome)).held == [0] * FRAMES
        trial.clean()


def test_parity_and_repair_say_that_the_disk_is_full_and_leave_the_store(small_disk):
    frames = np.random.default_rng(0).integers(0, 1 << 16, (16, 256, 256), dtype=np.uint16)
    path = small_disk.path / "parity.ome.zarr"
    sw.save(path, frames, codec="none")
    (shard,) = (each for each in (path / "0/c").rglob("*") if each.is_file())
    data = shard.read_bytes()

    def fill_nearly() -> None:
        """All but a MiB: there is room for folders, and not for what par2 makes."""
        spare = small_disk.path / "spare"
        spare.write_bytes(bytes(1 << 20))
        small_disk.filler.fill()
        spare.unlink()

    fill_nearly()
    made, failures = make_parity(open_store(path), 100, UNHURRIED, 1)
    assert (made, [error.code for error in failures.values()]) == (0, ["storage_full"])
    small_disk.filler.release()
    assert make_parity(open_store(path), 100, UNHURRIED, 1) == (1, {})
    shard.write_bytes(data[:-5000])
    fill_nearly()
    assert [error["code"] for error in repair_store(path, UNHURRIED).failures.values()] == ["storage_full"]
    assert shard.read_bytes() == data[:-5000]
    small_disk.filler.release()
    assert repair_store(path, UNHURRIED).ok
    assert shard.read_bytes() == data
    shutil.rmtree(path)


def test_a_daemon_outlives_a_full_disk(folder, small_disk):
    """The client is told; the daemon takes the next acquisition as soon as there is room."""
    config = write_config(folder, small_disk.path, on_full="fail")
    with DaemonProcess(config) as daemon:
        endpoint = daemon.endpoint
        small_disk.filler.fill()
        with CameraProcess(Script(endpoint, "refused", in_order(4), stream="cam")) as camera:
            assert camera.wait_for_end()["error"]["code"] == "storage_full"
        small_disk.filler.release()
        with CameraProcess(Script(endpoint, "cut", in_order(4000), stream="cam", pause_s=0.002)) as camera:
            camera.wait_until(lambda facts: facts["sent"] > 20)
            # else what is being filled takes the ballast too, and sealing is left to recovery
            daemon.signal(signal.SIGSTOP)
            small_disk.filler.fill()
            daemon.signal(signal.SIGCONT)
            told = camera.wait_for_end()
        assert told["error"]["code"] == "storage_full"
        held = read_evidence(small_disk.path / "cut.ome.zarr").held
        assert held[: told["stored"]] == [0] * told["stored"], "what was acknowledged is sealed"
        small_disk.filler.release()
        with CameraProcess(Script(endpoint, "after", in_order(20), stream="cam")) as camera:
            assert camera.wait_for_end()["receipt"]["frames_stored"] == 20
        assert daemon.stop() == 0
    for name in ("cut", "after"):
        shutil.rmtree(small_disk.path / f"{name}.ome.zarr")


def test_a_stop_does_not_wait_for_room_and_the_next_start_goes_on(folder, small_disk):
    """What is stored is there then, and the exit code and an event say that not all of it is sealed."""
    config = write_config(folder, small_disk.path, on_full="block", ring_frames=128)
    with DaemonProcess(config) as daemon:
        endpoint = daemon.endpoint
        with CameraProcess(Script(endpoint, "cut", in_order(4000), stream="cam", pause_s=0.002)) as camera:
            camera.wait_until(lambda facts: facts["sent"] >= 12)
            small_disk.filler.fill()
            first = 8 * daemon.wait_for("disk_full")["shard_row"]  # of the shards for which there is no room
            # More than fit into what comes back: each of the three shard rows that may have files gives less
            # back, when it is sealed, than one takes.
            camera.wait_until(lambda facts: facts["sent"] > first + 10 * 8)
            small_disk.filler.fill()
            assert daemon.stop() == 3
            events = daemon.rest()
            told = camera.wait_for_end()
        assert told["error"]["code"] == "storage_full"
        (left,) = (event for event in daemon.events if event["event"] == "left_to_recovery_warning")
        assert left["paths"] == [str(small_disk.path / "cut.ome.zarr")]
        assert events[-1] == "stopped"
    small_disk.filler.release()
    bring_back(config)
    held = read_evidence(small_disk.path / "cut.ome.zarr").held
    assert told["stored"] >= 8
    assert held[: told["stored"]] == [0] * told["stored"], "what was acknowledged is there"
    assert leftovers(small_disk.path / "cut.ome.zarr") == []


def test_a_mapping_on_a_copy_on_write_filesystem_is_refused(writer):
    """There a full disk would end the process by SIGBUS, preallocated or not."""
    with LoopDisk("btrfs") as disk:
        trial = Trial(writer, disk)
        outcome = trial.run(trial.scenario(io="mmap"))
        assert outcome.refused["code"] == "storage", outcome.refused
        assert "SIGBUS" in outcome.refused["message"]
        assert not trial.path.exists()
        assert trial.run(trial.scenario(io="auto")).state == "sealed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_name", "io"),
    [
        (f, io)
        for f in ("ext4", "xfs", "btrfs")
        for io in ("mmap", "pwrite", "direct")
        if (f, io) != ("btrfs", "mmap")
    ],
)
def test_every_moment(record_property, writer, format_name, io):
    with LoopDisk(format_name, nbytes=200 << 20) as disk:
        trial = Trial(writer, disk)
        ended = trial.fill_at(every_call(trial.calls(io=io)), judge_failed, on_full="fail", io=io)
    record_property("ended", ended)
    assert set(ended) == {"refused", "failed", "sealed"}, ended
