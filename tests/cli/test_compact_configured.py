"""``shardwright compact --config``: which stores a timer's run takes, with whose settings, and what it leaves
to others."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.daemon.test_closed_folders import NO_PRIVILEGES
from tests.harness.daemon import run_cli

import shardwright as sw
from shardwright.cli.app import main
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs import repair_store
from shardwright.rework.jobs.scrub import EVERY_S
from shardwright.rework.runtime.work_folder import WorkFolder

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

FRAMES = 8


def write(store: Path) -> Path:
    """Two shards of 16 chunks, each far smaller than its slot of a page."""
    plane = [sw.Dimension(name=axis, count=32, chunk_size=8, shard_size_chunks=4) for axis in "yx"]
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[sw.Dimension(name="t", count=None, chunk_size=4, shard_size_chunks=1), *plane],
    )
    with sw.create(store, spec) as writer:
        for i in range(FRAMES):
            writer.append(np.arange(i, i + 32 * 32, dtype=np.uint16).reshape(32, 32))
    return store


def compact(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_cli("compact", *map(str, arguments))


def as_json(*arguments: object) -> dict[str, Any]:
    done = compact(*arguments, "--json")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.fixture
def rig(tmp_path: Path) -> Path:
    """A configuration whose root has two finished stores, an unfinished one, and things that are none."""
    root = tmp_path / "data"
    for name in ("a", "b", "unfinished"):
        write(root / f"{name}.ome.zarr")
    (root / "unfinished.ome.zarr" / ".shardwright").mkdir()
    (root / "other").mkdir()
    (root / "empty.ome.zarr").mkdir()
    (root / "notes.txt").write_text("")
    config = tmp_path / "rig.yaml"
    config.write_text("output: {root: ./data}\ncompaction: {order: morton, rate: 1GiB, workers: 1}\n")
    return config


def names(report: dict[str, Any]) -> list[str]:
    return [store["path"].rpartition("/")[2] for store in report["stores"]]


def test_finished_stores_are_packed_as_the_daemon_would(rig: Path) -> None:
    done = as_json("--config", rig)
    assert (names(done), done["ok"]) == (["a.ome.zarr", "b.ome.zarr"], True)
    assert [(store["packed"], store["skipped"]) for store in done["stores"]] == [(2, 0), (2, 0)]
    stores = [rig.parent / "data" / name for name in names(done)]
    assert [as_json("--dry-run", "--order", "morton", store)["total"]["shards_todo"] for store in stores] == [
        0,
        0,
    ]
    assert [
        as_json("--dry-run", "--order", "row_major", store)["total"]["shards_todo"] for store in stores
    ] == [2, 2]
    again = as_json("--config", rig)
    assert [(store["packed"], store["skipped"]) for store in again["stores"]] == [(0, 2), (0, 2)]


def test_a_link_or_a_file_beside_the_stores_is_passed_over(rig: Path) -> None:
    """Also a link that leads to a store: that store is not of this root."""
    root = rig.parent / "data"
    (root / "elsewhere.ome.zarr").symlink_to(write(rig.parent / "elsewhere.ome.zarr"))
    (root / "nowhere.ome.zarr").symlink_to(rig.parent / "gone.ome.zarr")
    (root / "file.zarr").write_text("")
    done = as_json("--config", rig)
    assert (names(done), done["ok"]) == (["a.ome.zarr", "b.ome.zarr"], True)


def test_a_closed_folder_fails_alone(rig: Path) -> None:
    closed = rig.parent / "data" / "aa.ome.zarr"
    closed.mkdir(mode=0)
    done = run_cli("compact", "--config", rig, "--json", first=NO_PRIVILEGES)
    closed.chmod(0o700)
    told = json.loads(done.stdout)
    assert (done.returncode, names(told)) == (1, ["a.ome.zarr", "aa.ome.zarr", "b.ome.zarr"])
    assert "Permission denied" in told["stores"][1]["error"]["message"]
    assert [store.get("packed") for store in told["stores"]] == [2, None, 2]


def test_the_command_line_has_the_last_word(rig: Path) -> None:
    as_json("--config", rig)
    assert as_json("--config", rig, "--order", "row_major", "--dry-run")["total"]["shards_todo"] == 4


def test_a_store_that_another_job_is_at_is_left_to_it(rig: Path) -> None:
    store = rig.parent / "data" / "a.ome.zarr"
    with WorkFolder.locked(open_store(store).arrays[0].path):
        done = compact("--config", rig)
        assert done.returncode == 0, done.stderr
        assert "a.ome.zarr: " in done.stdout
        assert compact(store).returncode == 1
    assert [(one["packed"], one["skipped"]) for one in as_json("--config", rig)["stores"]] == [(2, 0), (0, 2)]


def test_an_empty_root_is_no_failure(rig: Path) -> None:
    (rig.parent / "new").mkdir()
    rig.write_text(rig.read_text().replace("./data", "./new"))
    done = compact("--config", rig)
    assert (done.returncode, done.stdout) == (0, "there is no finished store yet\n")


@pytest.mark.parametrize(("scrub", "shards"), [("report", 0), ("repair", 1)])
def test_stores_that_are_due_are_scrubbed_as_the_daemon_would(rig: Path, scrub: str, shards: int) -> None:
    rig.write_text(rig.read_text().replace("workers: 1", f"workers: 1, parity: 50, scrub: {scrub}"))
    assert as_json("--config", rig)["scrubbed"] == [], "none is due"
    store = rig.parent / "data" / "a.ome.zarr"
    was_s = time.time() - EVERY_S - 1
    os.utime(store / "zarr.json", (was_s, was_s))
    shard = store / "0/c/0/0/0"
    status, data = shard.stat(), bytearray(shard.read_bytes())
    data[20] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    with WorkFolder.locked(open_store(store).arrays[0].path):
        assert scrub == "report" or as_json("--config", rig)["scrubbed"] == []
    assert "scrubbed" not in as_json("--config", rig, "--dry-run")
    done = as_json("--config", rig)
    (report,) = done["scrubbed"]
    assert (report["path"], len(report["restored"])) == (str(store), shards)
    assert done["ok"] == report["ok"] == verify_store(store).ok == bool(shards)
    assert as_json("--config", rig)["scrubbed"] == [], "it is noted"


def overdue(rig: Path) -> None:
    """Both stores are to be scrubbed, b first."""
    rig.write_text(rig.read_text().replace("workers: 1", "workers: 1, scrub: report"))
    for name, more_s in (("a", 1), ("b", 2)):
        was_s = time.time() - EVERY_S - more_s
        os.utime(rig.parent / "data" / f"{name}.ome.zarr" / "zarr.json", (was_s, was_s))


def test_an_interrupt_while_stores_are_scrubbed_leaves_the_report(
    rig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overdue(rig)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    begun: list[str] = []

    def verify(path: Path, **how: Any) -> Any:
        begun.append(path.name)
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return verify_store(path, **how)

    monkeypatch.setattr(repair_store, "verify_store", verify)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["compact", "--config", str(rig), "--no-idle", "--json"])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    done = json.loads(capsys.readouterr().out)
    assert (ended.value.code, done["ok"], names(done)) == (1, False, ["a.ome.zarr", "b.ome.zarr"])
    sound, interrupted = done["scrubbed"]
    assert (sound["path"], sound["ok"]) == (str(rig.parent / "data/b.ome.zarr"), True)
    assert interrupted == {"path": str(rig.parent / "data/a.ome.zarr"), "ok": False, "interrupted": True}
    monkeypatch.undo()
    assert [one["path"] for one in as_json("--config", rig)["scrubbed"]] == [interrupted["path"]]


def test_what_a_scrub_has_found_is_told_also_where_it_cannot_be_noted(rig: Path) -> None:
    overdue(rig)
    note = rig.parent / "data/a.ome.zarr/0/.compact/scrubbed"
    note.mkdir(parents=True)
    os.utime(note, (0, 0))
    done = compact("--config", rig, "--json")
    assert done.returncode == 0
    assert "a.ome.zarr: its scrub is not noted: " in done.stderr
    assert [(one["ok"], one["problems"]) for one in json.loads(done.stdout)["scrubbed"]] == [(True, [])] * 2


def test_what_cannot_be_meant_is_refused(rig: Path) -> None:
    for arguments, problem in (
        ([], "--config FILE"),
        (["--config", rig, rig.parent / "data" / "a.ome.zarr"], "--config already names the stores"),
        (["--config", rig, "--to", rig.parent / "new"], "--config already names the stores"),
        (["--config", rig.parent / "missing.yaml"], "cannot read the configuration"),
    ):
        done = compact(*arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert problem in done.stderr
    rig.write_text("output: {root: ./gone}\n")
    done = compact("--config", rig)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
