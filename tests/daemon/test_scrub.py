"""Finished stores are read and verified under the timer of compaction, and repaired only if that is
configured: a real daemon."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from tests.daemon import test_compaction
from tests.daemon.test_compaction import configure
from tests.harness.daemon import DaemonProcess, run_cli
from tests.repack import gappy_store as gappy

from shardwright.model.names import PARITY_FOLDER
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs import scrub
from shardwright.rework.runtime.work_folder import WorkFolder

if TYPE_CHECKING:
    from pathlib import Path

NOT_IDLE = """
from shardwright.daemon import compaction
compaction.make_idle, idle = lambda pid: None, compaction.scrub_command
compaction.scrub_command = lambda store, options: [*idle(store, options), "--no-idle"]
"""
LATELY_S = 60.0


@pytest.fixture
def store(folder: Path) -> Path:
    """Packed, with parity, of a month ago; a shard of it is damaged, and another store is younger."""
    path = gappy.write(folder / "data" / "old.ome.zarr", 2)
    gappy.write(folder / "data" / "young.ome.zarr", 1)
    assert run_cli("compact", "--no-idle", "--parity", "30%", path).returncode == 0
    (first, *_) = gappy.files(path).values()
    os.truncate(first, first.stat().st_size - 100)
    was_s = time.time() - scrub.EVERY_S - 1
    os.utime(path / "zarr.json", (was_s, was_s))
    return path


def last_scrub_s(store: Path) -> float:
    return (store / "0/.compact/scrubbed").stat().st_mtime


def test_a_damaged_store_is_reported_and_left(config: Path, store: Path) -> None:
    before = {key: path.read_bytes() for key, path in gappy.files(store).items()}
    configure(config, "scrub: report")
    with DaemonProcess(config, sabotage=NOT_IDLE) as daemon:
        assert daemon.wait_for("scrub_begun")["path"] == str(store)
        told = daemon.wait_for("scrub_failed")
        assert (told["path"], told["restored"], told["problems"]) == (str(store), 0, 1)
        assert "c/0/0/0" in told["error"]
        assert told["hint"] == f"Try `shardwright repair {store}`"
        assert daemon.stop() == 0
        assert daemon.rest().count("scrub_begun") == 1, "the young one is not due"
    assert {key: path.read_bytes() for key, path in gappy.files(store).items()} == before
    assert last_scrub_s(store) > time.time() - LATELY_S
    assert scrub.due_stores(store.parent) == []


def test_a_damaged_store_is_repaired_where_that_is_configured(config: Path, store: Path) -> None:
    configure(config, "scrub: repair")
    with DaemonProcess(config, sabotage=NOT_IDLE) as daemon:
        told = daemon.wait_for("scrub_done")
        assert (told["path"], told["restored"], told["problems"]) == (str(store), 1, 0)
        assert daemon.stop() == 0
    report = verify_store(store)
    assert (report.ok, report.warnings, report.parity_rows) == (True, [], 2)


def test_nothing_is_scrubbed_that_was_not_asked_for(config: Path, store: Path) -> None:
    configure(config)
    with DaemonProcess(config, sabotage=test_compaction.NOT_IDLE) as daemon:
        test_compaction.acquire(daemon.endpoint, "run")
        daemon.wait_for("compaction_done")  # it had time to look for one that is due before
        assert daemon.stop() == 0
        assert "scrub_begun" not in daemon.rest()
    assert scrub.due_stores(store.parent) == [store]


def test_one_that_cannot_be_scrubbed_holds_up_no_other_and_one_at_work_is_no_finding(
    config: Path, store: Path
) -> None:
    broken, busy = (store.with_name(f"{name}.ome.zarr") for name in ("broken", "busy"))
    for path, days in ((broken, 99), (gappy.write(busy, 1), 98)):
        path.mkdir(exist_ok=True)
        (path / "zarr.json").write_text("{") if path == broken else None
        was_s = time.time() - days * 86_400
        os.utime(path / "zarr.json", (was_s, was_s))
    configure(config, "scrub: repair")
    (busy / "0" / PARITY_FOLDER / "0").mkdir(parents=True)
    with WorkFolder.locked(busy / "0"), DaemonProcess(config, sabotage=NOT_IDLE) as daemon:
        assert daemon.wait_for("scrub_failed")["path"] == str(broken)
        assert daemon.wait_for("scrub_begun")["path"] == str(busy)
        assert daemon.wait_for("scrub_done")["path"] == str(store)
        assert daemon.stop() == 0
        assert daemon.rest().count("scrub_failed") == 1
    assert scrub.due_stores(store.parent) == [broken, busy], "they are tried again"


def test_the_nightly_compaction_makes_parity_and_never_over_a_damaged_shard(
    config: Path, store: Path
) -> None:
    configure(config, "parity: 50")
    before = {path: path.read_bytes() for path in (store / "0" / PARITY_FOLDER).rglob("*.par2")}
    done = run_cli("compact", "--config", config, "--no-idle", "--json")
    facts = {one["path"].rpartition("/")[2]: one for one in json.loads(done.stdout)["stores"]}
    assert done.returncode == 1
    assert facts["young.ome.zarr"]["parity_rows"] == 1
    assert f"0/{PARITY_FOLDER}/0" in facts["old.ome.zarr"]["failures"]
    assert {path: path.read_bytes() for path in before if path.parent.name == "0"} == {
        path: data for path, data in before.items() if path.parent.name == "0"
    }
    assert run_cli("repair", "--no-idle", store).returncode == 0
    assert run_cli("compact", "--config", config, "--no-idle").returncode == 0
    assert verify_store(store).ok


def test_the_store_that_has_waited_longest_is_scrubbed_first(folder: Path, store: Path) -> None:
    root = store.parent
    was_s = time.time() - 2 * scrub.EVERY_S
    os.utime(root / "young.ome.zarr" / "zarr.json", (was_s, was_s))
    assert scrub.due_stores(root) == [root / "young.ome.zarr", store]
    scrub.note_scrub(root / "young.ome.zarr")
    assert scrub.due_stores(root) == [store]
