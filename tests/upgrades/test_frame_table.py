"""The frame table of a finished store of an older release, which knows the column of statuses as ``fate``
alone: every reader finds the statuses, and a move leaves the table as it is."""

from __future__ import annotations

import json

import anyio
import pytest
from tests.harness.daemon import run_cli
from tests.harness.store_contents import frame_table

import shardwright as sw
from shardwright.model.frame_status import FrameStatus
from shardwright.read.verify_store import verify_store
from shardwright.web.finished_stores import FinishedStores

from .conftest import contents
from .states import FINISHED_FRAMES, SENT_TWICE


@pytest.fixture(autouse=True)
def has_the_older_name_alone(compaction) -> None:
    table = frame_table(compaction[0])
    assert "status" not in table
    assert table["fate"].tolist() == [FrameStatus.STORED] * (FINISHED_FRAMES - 1)


def check(store) -> None:
    """Every reader finds each frame stored but for the one that was never sent."""
    table = sw.frame_table(store)
    assert table["status"].tolist() == table["fate"].tolist() == ["stored"] * (FINISHED_FRAMES - 1)
    followed = [frame.row for frame in sw.follow(store)]
    assert [row["status"] for row in followed] == [FrameStatus.STORED] * (FINISHED_FRAMES - 1)
    assert list(followed[0]) == list(table)
    assert list(table)[-3:] == ["status", "fate", "reason"]
    missing = json.loads(run_cli("inspect", "--missing", "--json", store).stdout)
    assert [(gap["first"], gap["last"], gap["status"]) for gap in missing["missing"]] == [
        (SENT_TWICE, SENT_TWICE, None)
    ]
    (listed,) = anyio.run(FinishedStores(store.parent).listed)
    assert listed["frames_missing"] == 1
    report = verify_store(store)
    assert report.problems == []
    assert report.frame_rows == FINISHED_FRAMES - 1


def test_it_is_read(compaction):
    check(compaction[0])


def test_it_is_moved_as_it_is(compaction, cli):
    store, destination = compaction
    before = contents(store / "frames")
    cli("compact", store, "--to", destination, "--workers", "1", "--no-idle", "--json")
    assert contents(destination / "frames") == before
    check(destination)
