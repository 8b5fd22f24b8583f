"""I/O errors at any storage call: what was acknowledged is on disk or reported as lost; nothing hangs,
nothing is told durable that is not.

Injected at the failpoints (each call of each io mode), by strace into the system calls, and by a block device
that fails for a while.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from typing import TYPE_CHECKING

import pytest
from tests.harness.frames import in_order
from tests.harness.store_contents import leftovers

from shardwright.disk.files import renew, write_file
from shardwright.model.names import WORKSPACE
from shardwright.shard.manifest import has_manifest

from .disks import FaultyDisk, need_tools
from .judge import judge, judge_account
from .moments import calls_of, every_call, fault_at, first_and_last, spread, try_each
from .recovery import is_unfinished, recover_by_command, recover_here
from .scenario import Fault, Outcome, Scenario
from .writer_process import WriterProcess

if TYPE_CHECKING:
    from pathlib import Path

FRAMES = 28
FAST = {"store_within_ms": 20, "sync_interval_ms": 20, "ballast_bytes": 1 << 16}
FOR_EVER = 1 << 30
IO_MODES = ("mmap", "pwrite", "direct")
BLOCK_DEVICE_ERRORS = {"storage", "storage_full", "lost_frames"}


def scenario_at(path: Path, *faults: Fault, pause_s: float = 0.002, **settings) -> Scenario:
    return Scenario(str(path), in_order(FRAMES), {**FAST, **settings}, list(faults), pause_s=pause_s)


def judge_run(path: Path, scenario: Scenario, outcome: Outcome) -> str:
    """Every claim after recovery, and that a run which lost nothing is whole. Returns how it ended."""
    assert outcome.death is None, f"the process died by signal {outcome.death}: {outcome.trace}"
    if outcome.refused is not None:
        assert outcome.refused["code"] == "storage", outcome.refused
        return "refused"
    failed = outcome.state == "failed"
    assert failed == (outcome.error is not None), "an acquisition that failed says why"
    if failed:
        assert outcome.error["code"] in BLOCK_DEVICE_ERRORS, outcome.error
        assert recover_here(path) is None
    evidence = judge(path, (scenario, outcome))
    if not failed:
        judge_account(outcome, evidence)
        lost = {sequence for first, last, _ in outcome.losses for sequence in range(first, last + 1)}
        assert set(evidence.missing) == lost, "each hole was reported, and only holes were"
        if leftovers(path):
            judge_leftovers(path, scenario)
    return outcome.state


def judge_leftovers(path: Path, scenario: Scenario) -> None:
    """What could not be deleted, or not durably, stays, known to be of no use; recovery at the next start
    removes it."""
    assert any(
        fault.times == FOR_EVER or fault.point in ("workspace.before_remove", "directory.before_sync")
        for fault in scenario.faults
    )
    assert not has_manifest(path / WORKSPACE), "only what is done with may stay"
    assert recover_here(path) is None
    assert leftovers(path) == []


def fail_at(
    writer: WriterProcess, folder: Path, moments: list[tuple[str, int]], *, times: int = 1, **settings
) -> dict[str, int]:
    """One run for each moment, from which on storage calls of that kind fail, ``times`` times."""
    path = folder / "a.ome.zarr"

    def attempt(moment: tuple[str, int]) -> str:
        scenario = scenario_at(path, fault_at(moment, "eio", times=times), **settings)
        try:
            return judge_run(path, scenario, writer.run(scenario))
        finally:
            shutil.rmtree(path, ignore_errors=True)

    return try_each(moments, attempt)


def clean_calls(writer: WriterProcess, folder: Path, **settings) -> list[str]:
    path = folder / "clean.ome.zarr"
    calls = calls_of(writer, scenario_at(path, **settings))
    shutil.rmtree(path)
    return calls


@pytest.mark.parametrize("io", IO_MODES)
def test_one_error_at_a_call(writer, small_disk, io):
    fail_at(
        writer,
        small_disk.path,
        spread(first_and_last(clean_calls(writer, small_disk.path, io=io)), 16),
        io=io,
    )


def test_a_disk_that_never_comes_back(writer, small_disk):
    fail_at(
        writer,
        small_disk.path,
        spread(first_and_last(clean_calls(writer, small_disk.path, io="pwrite")), 16),
        times=FOR_EVER,
        io="pwrite",
    )


@pytest.mark.parametrize("times", [3, FOR_EVER])
def test_errors_again_while_frames_are_held_for_a_rewrite(writer, small_disk, times):
    """Their slab is in the old files, perhaps in the new ones, and in memory: it is stored once, or lost and
    told."""
    points = ("shard.before_sync", "journal.before_sync", "journal.before_chunks")
    moments = [(point, call) for point in points for call in (0, 1, 4)]
    fail_at(writer, small_disk.path, moments, times=times, io="pwrite", durability="durable")


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["stored", "durable"])
@pytest.mark.parametrize("io", IO_MODES)
@pytest.mark.parametrize("times", [1, 3, FOR_EVER])
def test_an_error_at_every_call(record_property, writer, small_disk, io, durability, times):
    moments = every_call(clean_calls(writer, small_disk.path, io=io, durability=durability))
    ended = fail_at(writer, small_disk.path, moments, times=times, io=io, durability=durability)
    record_property("ended", {"calls": len(moments), **ended})


@pytest.mark.parametrize("io", IO_MODES)
def test_a_sync_that_fails_once_is_not_believed_when_it_says_ok_later(writer, small_disk, io):
    """The kernel reports a failed write-back once. The shard is written again, to a new file, or its frames
    are reported."""
    path = small_disk.path / "a.ome.zarr"
    for call in (0, 2):
        scenario = scenario_at(path, Fault("eio", "shard.before_sync", call), io=io)
        outcome = writer.run(scenario)
        judge_run(path, scenario, outcome)
        assert {"shard_rewritten", "frames_lost"} & set(outcome.events) or outcome.error is not None, (
            outcome.events
        )
        shutil.rmtree(path)


@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
def test_a_system_call_that_fails(small_disk, call):
    need_tools("strace")
    break_system_call(small_disk.path, call, when="3")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["1", "2", "5", "8", "2+", "1+7"])
@pytest.mark.parametrize(
    "call", ["pwrite64", "fdatasync", "fsync", "fallocate", "renameat2", "ftruncate", "openat2"]
)
def test_a_system_call_that_fails_at_other_times(small_disk, call, when):
    need_tools("strace")
    break_system_call(small_disk.path, call, when)


def break_system_call(folder: Path, call: str, when: str) -> None:
    """``when`` counts in each thread of its own (strace's rule)."""
    path, log = folder / "a.ome.zarr", folder / "strace.log"
    inject = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-o",
        str(log),
        "-e",
        f"inject={call}:error=EIO:when={when}",
    ]
    scenario = scenario_at(path, io="pwrite")
    with WriterProcess(under=inject) as writer:
        outcome = writer.run(scenario)
    judge_run(path, scenario, outcome)
    assert "(INJECTED)" in log.read_text(encoding="utf-8", errors="replace"), (
        "strace had nothing to inject into"
    )


@pytest.mark.parametrize("io", IO_MODES)
def test_a_disk_that_fails_for_a_while(writer, faulty_disk, io):
    fail_for_a_while(writer, faulty_disk, io=io, frames_before=10, seconds=0.3)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("format_name", ["ext4", "xfs"])
def test_the_page_cache_after_a_failed_sync_is_written_again(format_name, again):
    """The kernel tells of a failed sync once, holds what it could not write for clean, and writes it no more:
    but for ``renew``."""
    old, new = b"o" * (3 << 20), b"n" * (3 << 20)
    with FaultyDisk(format_name, 512 << 20) as disk:
        path = disk.path / "a"
        write_file(path, old)
        with path.open("r+b") as file:
            file.write(new)
            file.flush()
            with disk.failing(), pytest.raises(OSError, match="Input/output error"):
                os.fsync(file.fileno())
            assert path.read_bytes() == new, "as the kernel has it"
            if again:
                renew(path, again=True, failed=pytest.fail)
            os.fsync(file.fileno())
        disk.remount()
        assert path.read_bytes() == (new if again else old)


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["ext4", "ext4-nojournal", "xfs", "btrfs"])
@pytest.mark.parametrize("io", IO_MODES)
@pytest.mark.parametrize("frames_before", [0, 5, 17, 40, 63])
def test_disks_that_fail_for_a_while(writer, format_name, io, frames_before):
    nbytes = 512 << 20 if format_name == "xfs" else 256 << 20
    with FaultyDisk(format_name, nbytes) as disk:
        fail_for_a_while(writer, disk, io=io, frames_before=frames_before, seconds=0.5)


def fail_for_a_while(
    writer: WriterProcess, disk: FaultyDisk, *, io: str, frames_before: int, seconds: float
) -> None:
    """Read back after unmounting: what only the page cache held does not count."""
    path, pause_s = disk.path / "a.ome.zarr", 0.02
    scenario = Scenario(str(path), in_order(80), {**FAST, "io": io}, pause_s=pause_s)
    failed = threading.Event()

    def start_failing() -> None:
        failed.set()
        disk.start_failing()

    switches = [
        threading.Timer(0.1 + frames_before * pause_s, start_failing),
        threading.Timer(0.1 + frames_before * pause_s + seconds, disk.stop_failing),
    ]
    for switch in switches:
        switch.start()
    outcome = writer.run(scenario)
    failed_by_then = failed.is_set()
    for switch in switches:
        switch.join()
    if outcome.death is not None:
        # as the configuration says of mmap: a disk that dies under a mapped page ends the process
        assert (io, failed_by_then, outcome.death) == ("mmap", True, signal.SIGBUS), outcome.trace
    disk.remount()
    if outcome.refused is not None:
        return
    if is_unfinished(path):
        (store,) = recover_by_command(disk.path)
        if (error := store.get("error")) is not None:
            # Without a journal a filesystem may lose its own tables, and then its files cannot be read:
            # recovery says so and touches nothing.
            assert (disk.format_name, error["code"]) == ("ext4-nojournal", "storage"), error
            damaged = [os.strerror(number) for number in (errno.EIO, errno.EUCLEAN, errno.EBADMSG)]
            assert any(text in error["message"] for text in damaged), error
            return
        if not path.exists():  # no frame had reached the disk: recovery removes such a store
            assert outcome.durable == 0, outcome
            return
    evidence = judge(path, (scenario, outcome), disk_lost_writes=True)
    if outcome.state == "sealed":
        judge_account(outcome, evidence)
