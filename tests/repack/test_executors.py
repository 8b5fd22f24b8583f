"""Tasks in real processes and on a real dask cluster, with a worker killed in the middle: everything is
packed in the end, nothing torn."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import distributed
import numpy as np
import pytest
from tests.kernels import reference

from shardwright.disk import failpoints
from shardwright.model.errors import WorkerError
from shardwright.rework.runtime import executors
from shardwright.rework.runtime.executors import DaskCluster, _WorkerProcess

from . import gappy_store as gappy
from .images import NOT_IDLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from shardwright.rework.runtime.executors import Results


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return gappy.write(tmp_path / "run.ome.zarr")


class Cluster:
    """A scheduler and two workers, each a process of its own, on the loopback."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = (folder / "cluster.log").open("wb")
        self.scheduler = self._start(
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--no-dashboard",
            "--scheduler-file",
            folder / "address",
        )
        self.address = gappy.wait_until(self._read_address, "the scheduler")
        one = (
            "--host",
            "127.0.0.1",
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
            "--local-directory",
            folder,
        )
        self.workers = [self._start("worker", self.address, *one) for _ in range(2)]
        with distributed.Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=gappy.WAIT_S)  # else the first gets all tasks
        self._processes = [self.scheduler, *self.workers]

    def _start(self, role: str, *arguments: object) -> subprocess.Popen[bytes]:
        code = (
            "from shardwright.disk.failpoints import load_from_environment; load_from_environment()\n"
            f"from distributed.cli.dask_{role} import main; main()"
        )
        command = [sys.executable, "-c", code, *map(str, arguments)]
        return subprocess.Popen(
            command, stdout=self._log, stderr=self._log, env={**os.environ, **gappy.STOPS}
        )

    def workers_left(self) -> list[int]:
        return [worker.pid for worker in self.workers if worker.poll() is None]

    def _read_address(self) -> str | None:
        try:
            return str(json.loads((self._folder / "address").read_text())["address"])
        except (FileNotFoundError, ValueError):
            return None

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._log.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder)
    yield cluster
    cluster.close()


def wait_until_stopped(job: subprocess.Popen[str], workers: Callable[[], Collection[int]]) -> None:
    """One worker has done two shards and is in the middle of another one. Nobody waits for the same of the
    other: a scheduler may have given to the stopped one all that is left, and cannot take it back from it."""
    gappy.wait_until(
        lambda: job.poll() is not None or (len(workers()) == 2 and any(map(gappy.is_stopped, workers()))),
        "two shards of a worker",
    )
    assert job.poll() is None, job.communicate()


def kill_in_the_middle(
    job: subprocess.Popen[str],
    store: Path,
    before: dict[str, tuple[int, int]],
    workers: Callable[[], Collection[int]],
    victim: Callable[[], int],
) -> None:
    """Some shards are done and others are not when it dies."""
    wait_until_stopped(job, workers)
    assert list((store / "0/.compact").glob("*.packed")), "shards in the making"
    os.kill(victim(), signal.SIGKILL)
    assert 2 <= len(gappy.replaced(store, before)) <= 4
    gappy.assert_pixels(store)


def end_of(job: subprocess.Popen[str], workers: Callable[[], Collection[int]]) -> tuple[str, str]:
    """What it says to its end, while its workers go on, and those that take the place of a killed one."""

    def has_ended() -> bool:
        with suppress(ProcessLookupError, FileNotFoundError):  # one ends meanwhile
            for pid in workers():
                os.kill(pid, signal.SIGCONT)
        return job.poll() is not None

    gappy.wait_until(has_ended, "the end of the job")
    return job.communicate(timeout=gappy.WAIT_S)


def test_a_killed_worker_of_a_cluster(store: Path, cluster: Cluster) -> None:
    before = gappy.identities(store)
    job = gappy.start_compact(store, "--scheduler", cluster.address, "--json")
    kill_in_the_middle(job, store, before, cluster.workers_left, lambda: cluster.workers[0].pid)
    out, err = end_of(job, cluster.workers_left)
    assert job.returncode == 0, err + out
    assert cluster.workers[1].poll() is None
    (facts,) = json.loads(out)["stores"]
    assert (facts["packed"] + facts["skipped"], facts["failures"]) == (gappy.SHARDS, {})
    assert gappy.replaced(store, before) == set(before)
    gappy.assert_packed(store)


JOBS = {
    "rechunk": (
        ["rechunk", "{store}", "{new}", "--chunks", "t=2,y=32,x=32"],
        ".new.ome.zarr.rechunk/store/0/c",
        "new.ome.zarr/0",
    ),
    "pyramid": (
        ["pyramid", "{store}", "--levels", "1"],
        "run.ome.zarr/0/.compact/levels/1/c",
        "run.ome.zarr/1",
    ),
    "to": (["compact", "{store}", "--to", "{new}"], "new.ome.zarr/0/c", "new.ome.zarr/0"),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_killed_worker_while_new_shards_are_made(store: Path, cluster: Cluster, name: str) -> None:
    """One task for each new shard; those of the killed worker are run by the other."""
    arguments, growing, made = JOBS[name]
    command = [text.format(store=store, new=store.with_name("new.ome.zarr")) for text in arguments]
    job = gappy.start(*command, "--scheduler", cluster.address, "--json")

    def shards_there() -> int:
        return sum(path.is_file() for path in (store.parent / growing).rglob("0"))

    wait_until_stopped(job, cluster.workers_left)
    cluster.workers[0].kill()
    assert 2 <= shards_there() < gappy.SHARDS
    out, err = end_of(job, cluster.workers_left)
    assert job.returncode == 0, err + out
    facts = json.loads(out)
    assert (facts["ok"], facts["failures"]) == (True, [])
    if name != "to":
        assert facts["shards_made"] + facts["shards_found"] == gappy.SHARDS
    expected = (
        gappy.pixels() if name != "pyramid" else reference.downsample(gappy.pixels(), (1, 2, 2), "mean")
    )
    np.testing.assert_array_equal(gappy.read(store.parent / made), expected)
    gappy.assert_pixels(store)


def in_process_cluster(store: Path) -> distributed.LocalCluster:
    """Its worker is a thread of this process, so that failpoints reach it."""
    options = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": ":0",
        "worker_dashboard_address": None,
    }
    return distributed.LocalCluster(**options, local_directory=str(store.parent))


def pack_tasks(store: Path, **throttle: object) -> list[dict[str, object]]:
    common = {
        "kind": "pack",
        "array": str(store / "0"),
        "order": "row_major",
        "throttle": {**NOT_IDLE, **throttle},
    }
    return [common | {"shard": [i, 0, 0]} for i in range(gappy.SHARDS)]


@pytest.fixture
def held(store: Path) -> Iterator[threading.Event]:
    """Every shard after the first waits in its worker for this event."""
    first, go_on = gappy.identities(store), threading.Event()
    failpoints.set_hook(
        "compact.before_create", lambda: gappy.replaced(store, first) and go_on.wait(gappy.WAIT_S)
    )
    yield go_on
    go_on.set()
    failpoints.set_hook("compact.before_create", None)


def begun_run(executor: DaskCluster, store: Path) -> Results:
    """One shard is done, one is held, two are still to be begun."""
    executor.workers = 2
    results = executor.run(pack_tasks(store))
    assert next(results)["ok"]
    gappy.wait_until(lambda: any(executor._client.call_stack().values()), "a task that has begun")
    return results


def test_an_interrupted_run_on_a_cluster_ends_after_its_tasks(
    store: Path, held: threading.Event, capfd: pytest.CaptureFixture[str]
) -> None:
    """What has begun is waited for, what has not never begins: nothing touches the store once the results
    have ended."""
    first, said = gappy.identities(store), []
    with in_process_cluster(store) as cluster, closing(DaskCluster(cluster.scheduler_address)) as executor:
        ended = threading.Thread(target=begun_run(executor, store).close)
        ended.start()
        gappy.wait_until(
            lambda: said.append(capfd.readouterr().err) or "Waiting for 1 tasks" in "".join(said),
            "the line that says so",
        )
        assert ended.is_alive()
        held.set()
        ended.join(gappy.WAIT_S)
        assert not ended.is_alive()
        assert len(gappy.replaced(store, first)) == 2
        assert not any(executor._client.call_stack().values())
    assert len(gappy.replaced(store, first)) == 2
    gappy.assert_pixels(store)


def test_a_task_on_a_cluster_that_does_not_end_is_an_error(
    store: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_BEGUN_TIMEOUT_S", 0.0)
    with in_process_cluster(store) as cluster, closing(DaskCluster(cluster.scheduler_address)) as executor:
        results = begun_run(executor, store)
        with pytest.raises(WorkerError, match="still runs tasks of the interrupted job"):
            results.close()
        held.set()


def test_a_clusters_workers_keep_their_priority(store: Path) -> None:
    priorities = []
    failpoints.set_hook(
        "compact.before_create", lambda: priorities.append(os.getpriority(os.PRIO_PROCESS, 0))
    )
    with in_process_cluster(store) as cluster, closing(DaskCluster(cluster.scheduler_address)) as executor:
        assert all(result["ok"] for result in executor.run(pack_tasks(store, idle=True)))
    failpoints.set_hook("compact.before_create", None)
    assert set(priorities) == {os.getpriority(os.PRIO_PROCESS, os.getpid())}


def test_tasks_on_a_cluster(store: Path) -> None:
    """Dask's scheduler and worker as threads of this process: each task's result comes, failed ones among
    them."""
    array = str(store / "0")
    tasks = [
        {"kind": "pack", "array": array, "shard": [i, 0, 0], "order": "row_major", "throttle": NOT_IDLE}
        for i in range(gappy.SHARDS + 1)
    ]
    with in_process_cluster(store) as cluster, closing(DaskCluster(cluster.scheduler_address)) as executor:
        results = list(executor.run(tasks))
    assert sorted(result["shard"][0] for result in results if result["ok"]) == list(range(gappy.SHARDS))
    assert [result["error"]["message"] for result in results if not result["ok"]] == [
        f"{array} has no shard ({gappy.SHARDS}, 0, 0)"
    ]
    assert set(gappy.gaps(store).values()) == {0}
    gappy.assert_pixels(store)


def test_a_killed_scheduler_ends_the_job_and_the_next_one_goes_on(store: Path, cluster: Cluster) -> None:
    before = gappy.identities(store)
    job = gappy.start_compact(store, "--scheduler", cluster.address)
    kill_in_the_middle(job, store, before, cluster.workers_left, lambda: cluster.scheduler.pid)
    out, err = job.communicate(timeout=gappy.WAIT_S)
    assert job.returncode == 1, err + out
    assert f"the scheduler at {cluster.address} is gone" in out, err[-1500:]
    cluster.close()
    gappy.assert_pixels(store)
    assert gappy.compact(store).returncode == 0
    gappy.assert_packed(store)


def test_a_killed_local_worker(store: Path) -> None:
    before = gappy.identities(store)
    job = gappy.start_compact(store, "--workers", "2", "--json", env={**os.environ, **gappy.STOPS})
    kill_in_the_middle(
        job, store, before, lambda: gappy.children(job.pid), lambda: min(gappy.children(job.pid))
    )
    out, err = end_of(job, lambda: gappy.children(job.pid))
    assert job.returncode == 0, err + out
    assert json.loads(out)["stores"][0]["packed"] == gappy.SHARDS
    gappy.assert_packed(store)


def test_a_worker_leads_a_session_which_can_be_made_idle() -> None:
    worker = _WorkerProcess()
    worker.begin({"kind": "none such"}, 1)
    assert worker.receive() is not None
    assert os.getsid(worker.pid) == worker.pid
    worker.ask_to_end()
    worker.end()


def test_a_worker_that_dies_in_the_middle_of_a_message_has_died() -> None:
    worker = _WorkerProcess()
    worker.connection.close()
    worker.connection, theirs = multiprocessing.Pipe()
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"ten bytes.")
    theirs.close()
    assert worker.receive() is None


def test_a_task_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    """And its shard is named, and is what it was."""
    store = gappy.write(tmp_path / "run.ome.zarr", shards=1)
    before = gappy.identities(store)
    killing = {**os.environ, "SHARDWRIGHT_FAILPOINTS": "compact.before_create=kill"}
    done = gappy.compact(store, "--json", env=killing)
    assert done.returncode == 1, done.stderr
    (facts,) = json.loads(done.stdout)["stores"]
    assert list(facts["failures"]) == ["0/c/0/0/0"]
    assert facts["failures"]["0/c/0/0/0"]["message"] == (
        "a worker process died 3 times on this task, the last time by SIGKILL"
    )
    assert gappy.identities(store) == before
    gappy.assert_pixels(store, shards=1)


def test_no_cluster_is_an_error_before_anything_is_begun(store: Path) -> None:
    before = gappy.identities(store)
    done = gappy.compact(store, "--scheduler", "tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert "no dask cluster at tcp://127.0.0.1:1" in done.stderr
    assert gappy.identities(store) == before
