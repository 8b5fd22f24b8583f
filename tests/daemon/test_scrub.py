"""Finished stores are read and verified under the timer of compaction, and repaired only if that is
configured: a real daemon, and the command of the nightly unit."""

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

from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs import scrub

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
        assert (told["path"], told["damaged"], told["restored"], told["problems"]) == (str(store), 1, 1, 1)
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
        assert (told["path"], told["damaged"], told["restored"], told["problems"]) == (str(store), 1, 1, 0)
        assert daemon.stop() == 0
    report = verify_store(store)
    assert (report.ok, report.warnings, report.parity_whole) == (True, [], 2)


def test_nothing_is_scrubbed_that_was_not_asked_for(config: Path, store: Path) -> None:
    configure(config)
    with DaemonProcess(config, sabotage=test_compaction.NOT_IDLE) as daemon:
        test_compaction.acquire(daemon.endpoint, "run")
        daemon.wait_for("compaction_done")  # it had time to look for one that is due before
        assert daemon.stop() == 0
        assert "scrub_begun" not in daemon.rest()
    assert scrub.due_stores(store.parent) == [store]


def test_the_nightly_compaction_makes_parity_and_scrubs_what_is_due(config: Path, store: Path) -> None:
    configure(config, "scrub: repair", "parity: 20")
    done = run_cli("compact", "--config", config, "--no-idle", "--json")
    facts = json.loads(done.stdout)
    assert "restored: 0/c/0/0/0" in done.stderr
    assert {one["path"].rpartition("/")[2]: one["parity_rows"] for one in facts["stores"]} == {
        "old.ome.zarr": 1,  # the row that is damaged by then has parity already
        "young.ome.zarr": 1,
    }
    assert verify_store(store).ok
    assert last_scrub_s(store) > time.time() - LATELY_S
    again = run_cli("compact", "--config", config, "--no-idle")
    assert (again.returncode, "restored" in again.stderr) == (0, False)


def test_the_store_that_has_waited_longest_is_scrubbed_first(folder: Path, store: Path) -> None:
    root = store.parent
    was_s = time.time() - 2 * scrub.EVERY_S
    os.utime(root / "young.ome.zarr" / "zarr.json", (was_s, was_s))
    assert scrub.due_stores(root) == [root / "young.ome.zarr", store]
    scrub.note_scrub(root / "young.ome.zarr")
    assert scrub.due_stores(root) == [store]
