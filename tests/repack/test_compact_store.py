"""A whole job: interrupted and begun again, in the face of bad shards, open shards, full disks and other
jobs."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.model.errors import LockedError, StorageFullError
from shardwright.read.store import open_store
from shardwright.rework.jobs.compact_store import Options, check_room, plan, run
from shardwright.rework.runtime.done_list import DoneList
from shardwright.rework.runtime.executors import LocalProcesses
from shardwright.rework.runtime.throttle import RigPause, pause_files, watch_grants
from shardwright.rework.runtime.work_folder import WorkFolder

from . import gappy_store as gappy

if TYPE_CHECKING:
    from pathlib import Path

PR_CAPBSET_DROP, CAP_CHOWN = 24, 0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return gappy.write(tmp_path / "run.ome.zarr")


class InProcess:
    """Runs tasks here, one after another: what happens to a shard is the same wherever its task runs."""

    workers = 1

    def run(self, tasks, on_moved=None):
        from shardwright.rework.runtime.tasks import run_task

        for task in tasks:
            yield run_task({**task, "throttle": {**task["throttle"], "idle": False}})

    def close(self) -> None: ...


def compact_here(store: Path, options: Options | None = None) -> dict[str, Any]:
    return run(plan(open_store(store), options or Options()), InProcess()).to_dict()


INTERRUPTS = [
    pytest.param(signal.SIGTERM, (), id="SIGTERM", marks=pytest.mark.slow),
    pytest.param(signal.SIGKILL, ("--recompress", "zstd:5"), id="SIGKILL-recompress"),
    pytest.param(signal.SIGKILL, (), id="SIGKILL", marks=pytest.mark.slow),
    pytest.param(signal.SIGINT, ("--recompress", "zstd:5"), id="SIGINT-recompress", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("number", "options"), INTERRUPTS)
def test_an_interrupted_job_goes_on_without_doing_finished_shards_again(
    store: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    before = gappy.identities(store)
    environment = {**os.environ, **gappy.STOPS}
    job = gappy.start_compact(store, "--workers", "2", "--json", *options, env=environment)
    children: set[int] = set()

    def are_stopped() -> bool:
        children.update(gappy.children(job.pid))
        return job.poll() is not None or (len(children) == 2 and all(map(gappy.is_stopped, children)))

    gappy.wait_until(are_stopped, "two shards of each of the two workers")
    assert job.poll() is None, job.communicate()
    job.send_signal(number)
    if number != signal.SIGKILL:  # of which they die, wherever they are
        gappy.wait_until(lambda: all(map(gappy.was_asked_to_end, children)), "the word for its workers")
        for child in children:
            os.kill(child, signal.SIGCONT)
    out, err = job.communicate(timeout=gappy.WAIT_S)
    gappy.wait_until(lambda: not any(map(gappy.is_alive, children)), "the end of its workers")
    finished = {key: value for key, value in gappy.identities(store).items() if value != before[key]}
    assert len(finished) == 4
    gappy.assert_pixels(store)
    if number != signal.SIGKILL:
        assert job.returncode == 1, err
        (facts,) = json.loads(out)["stores"]
        assert (facts["interrupted"], facts["packed"] + facts["left"]) == (True, gappy.SHARDS)
        assert not list(store.rglob("*.packed"))
    again = gappy.compact(store, *options)
    assert again.returncode == 0, again.stderr + again.stdout
    # A worker may have finished a shard and died before the parent could write that down: each of the two,
    # one shard.
    assert len(finished.items() - gappy.identities(store).items()) <= (2 if options else 0)
    assert gappy.replaced(store, before) == set(before)
    gappy.assert_packed(store)


class DeletesAfterIt(InProcess):
    """An edit of another program deletes the shard right after it was packed."""

    def __init__(self, shard: Path) -> None:
        self._shard = shard

    def run(self, tasks, on_moved=None):
        for result in super().run(tasks, on_moved):
            self._shard.unlink(missing_ok=True)
            yield result


def test_a_shard_that_an_edit_deletes_once_it_is_packed_ends_no_job(store: Path) -> None:
    shard = gappy.files(store)["c/0/0/0"]
    job = plan(open_store(store), Options(recompress={"cname": "zstd", "clevel": 5}))
    report = run(job, DeletesAfterIt(shard)).to_dict()
    assert (report["ok"], report["packed"], shard.exists()) == (True, gappy.SHARDS, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make shards of another owner")
def test_a_shard_that_an_edit_deletes_after_the_plan_ends_its_own_task_alone(store: Path) -> None:
    shard = gappy.files(store)["c/0/0/0"]
    os.chown(shard, 4711, 4711)  # it is looked at before any task begins
    job = plan(open_store(store), Options())
    shard.unlink()
    report = run(job, InProcess()).to_dict()
    assert (report["packed"], set(report["failures"])) == (gappy.SHARDS - 1, {"0/c/0/0/0"})


def test_a_damaged_shard_stays_and_the_rest_is_done(store: Path) -> None:
    """One with a bad index, one whose chunk's header is nonsense."""
    shards = gappy.files(store)
    for key, position in (("c/3/0/0", -1), ("c/5/0/0", 0)):
        data = bytearray(shards[key].read_bytes())
        data[position] ^= 0xFF
        shards[key].write_bytes(data)
    before = gappy.identities(store)
    report = compact_here(store)
    assert (report["ok"], report["packed"], report["left"]) == (False, gappy.SHARDS - 2, 0)
    assert set(report["failures"]) == {"0/c/3/0/0", "0/c/5/0/0"}
    assert "crc32c" in report["failures"]["0/c/3/0/0"]["message"]
    assert "chunk 5/0/0" in report["failures"]["0/c/5/0/0"]["message"]
    assert gappy.replaced(store, before) == set(before) - {"c/3/0/0", "c/5/0/0"}
    assert gappy.leftovers(store) == []


def test_open_shards_are_skipped_and_named(tmp_path: Path) -> None:
    store = tmp_path / "run.ome.zarr"
    spec = sw.AcquisitionSpec(array=gappy.spec()).in_rows(1)
    with sw.create(store, spec, **how(io="mmap")) as writer:
        frames = gappy.pixels(3)
        for frame in frames[:-1]:
            writer.append(frame)
        gappy.wait_until(lambda: len(gappy.files(store)) == 2, "two sealed shards")
        # A shard gets its name before its group's journal goes, and counts as open until then.
        reports = [
            gappy.wait_until(
                lambda: (report := compact_here(store))["packed"] + report["skipped"] == 2 and report,
                "both being sealed",
            )
        ]
        assert reports[0]["ok"]
        writer.append(frames[-1])
    report = compact_here(store)
    assert (report["packed"], report["skipped"], report["open"]) == (1, 2, [])
    gappy.assert_packed(store, shards=3)


def test_a_shard_with_a_journal_is_open(store: Path) -> None:
    """As a crash in the middle of sealing leaves it: the name is there, the journal still is as well."""
    other = store.with_name("other.ome.zarr")
    writer = sw.create(other, gappy.spec(), **how(io="mmap"))
    try:
        for frame in gappy.pixels(1):
            writer.append(frame)
        writer.flush()
        gappy.wait_until(lambda: gappy.files(other), "a sealed shard")
        assert (other / ".shardwright/0.journal").exists(), "of it and of the others of its row"
        before = gappy.identities(other)
        report = compact_here(other)
        assert (report["open"], report["packed"], report["ok"]) == (["0/c/0/0/0"], 0, True)
        assert gappy.identities(other) == before
    finally:
        writer.close()


def test_two_jobs_do_not_work_on_one_array(store: Path) -> None:
    before = gappy.identities(store)
    with WorkFolder.locked(store / "0"), pytest.raises(LockedError, match=f"process {os.getpid()}"):
        compact_here(store)
    assert gappy.identities(store) == before
    assert compact_here(store)["packed"] == gappy.SHARDS


def test_room_is_for_what_is_worked_on_at_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = plan(open_store(store), Options())
    sizes = sorted(shard.packed_bytes for shard in job.todo)
    facts = os.statvfs(store)
    free = (sizes[-1] + sizes[-2]) // facts.f_frsize + 1
    monkeypatch.setattr(
        os,
        "fstatvfs",
        lambda _: os.statvfs_result(
            (facts.f_bsize, facts.f_frsize, *facts[2:4], free, *facts[5:], facts.f_fsid)
        ),
    )
    check_room([job], 2)
    with pytest.raises(StorageFullError, match="or use fewer workers"):
        check_room([job], 3)


def test_progress_adds_up_to_the_whole(store: Path) -> None:
    job, told = plan(open_store(store), Options()), []
    run(job, InProcess(), lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    total = sum(shard.packed_bytes for shard in job.todo)
    assert (told[0], told[-1]) == ((0, total), (total, total))


def test_looking_is_told_keeps_to_the_rate_and_waits_for_cameras(store: Path) -> None:
    looked, rig = [], RigPause(store.parent)
    rig.begin()
    looking = threading.Thread(
        target=lambda: plan(open_store(store), Options(bytes_per_s=1e6), lambda *step: looked.append(step))
    )
    granted: list[int] = []
    watch_grants(granted.append)
    looking.start()
    gappy.wait_until(lambda: looked, "the first look")
    assert (looked, granted) == ([(0, gappy.SHARDS)], [])
    rig.end()
    looking.join()
    watch_grants(None)
    assert looked == [(number, gappy.SHARDS) for number in range(gappy.SHARDS)]
    assert granted == [open_store(store).arrays[0].index_bytes] * gappy.SHARDS


class AskedOnly(LocalProcesses):
    """Keeps the tasks that it was asked to run."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.tasks: list[dict[str, Any]] = []

    def run(self, tasks, on_moved=None):
        self.tasks += tasks
        return (result for result in ())


@pytest.mark.parametrize(
    ("workers", "threads"), [(gappy.SHARDS - 1, 1), (gappy.SHARDS, 1), (2 * gappy.SHARDS + 1, 2)]
)
def test_workers_without_a_shard_help_the_others(store: Path, workers: int, threads: int) -> None:
    job, executor = (
        plan(open_store(store), Options(recompress={"cname": "zstd", "clevel": 5})),
        AskedOnly(workers),
    )
    run(job, executor)
    assert [task["threads"] for task in executor.tasks] == [threads] * gappy.SHARDS
    assert all(task["throttle"]["pause_files"] == pause_files(store / "0") for task in executor.tasks)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make shards of another owner")
def test_shards_of_another_owner_are_one_error_before_anything_is_begun(store: Path) -> None:
    """Root that may not give files away is as good as another user, and can read this interpreter."""
    for path in gappy.files(store).values():
        os.chown(path, 65534, 65534)
    before = gappy.identities(store)
    done = gappy.compact(
        store, "--workers", "1", preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_CHOWN)
    )
    assert done.returncode == 1
    assert done.stdout.count("cannot be given to them") == 1, done.stderr
    assert "Run this as user nobody" in done.stdout
    assert gappy.identities(store) == before
    assert gappy.leftovers(store) == []
    assert gappy.compact(store, "--workers", "1").returncode == 0
    assert {path.stat().st_uid for path in gappy.files(store).values()} == {65534}


def test_a_finished_shard_that_was_written_since_is_not_finished(tmp_path: Path) -> None:
    shard, record = tmp_path / "shard", tmp_path / "done"
    shard.write_bytes(b"12345")
    DoneList(record, {"order": "morton"}).add("c/0", shard)
    with record.open("a") as file:
        file.write('{"key": "c/0", "file_')  # cut short by a crash
    assert DoneList(record, {"order": "morton"}).has("c/0", shard)
    assert not DoneList(record, {"order": "row_major"}).has("c/0", shard)
    assert not DoneList(record, {"order": "morton"}).has("c/1", shard)
    os.utime(shard, ns=(0, 0))
    assert not DoneList(record, {"order": "morton"}).has("c/0", shard)
