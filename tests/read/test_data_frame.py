"""``shardwright.frame_table``."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.array.frame_table_format import ROWS_PER_CHUNK
from shardwright.model.errors import ConfigError, ShardFormatError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.read.verify_store import verify_store

from .frame_tables import make_store, place, set_values, without_status


def test_rows_in_the_order_of_sending_and_statuses_by_name(tmp_path):
    spec = sw.default_layout((None, 2, 4, 4), "uint8", "tcyx", frame_fields=("laser_mw",))
    with sw.create(tmp_path / "a.ome.zarr", spec, **how(on_duplicate="count")) as writer:
        for place_of in [(0, 1), (0, 0), (0, 1)]:
            metadata = {"laser_mw": 2.5, "exposure_time": 0.1}
            writer.append(np.zeros((4, 4), np.uint8), index=place_of, frame_id=7, metadata=metadata)
    table = sw.frame_table(tmp_path / "a.ome.zarr")
    assert list(table)[:4] == ["index_t", "index_c", "frame_id", "sequence"]
    assert list(table)[-5:] == ["laser_mw", "client_epoch", "status", "fate", "reason"]
    assert table["sequence"].tolist() == [0, 1, 2]
    assert table["index_c"].tolist() == [1, 0, 1]
    assert table["status"].tolist() == table["fate"].tolist() == ["stored", "stored", "duplicate"]
    assert table["reason"].tolist() == ["none", "none", "place_taken"]
    assert (table["laser_mw"] == 2.5).all()
    assert table["status"].cat.categories.tolist() == [status.name.lower() for status in FrameStatus]


def test_every_status_and_reason_and_more_rows_than_a_chunk(tmp_path):
    rows = [(-1, status, reason) for status in FrameStatus for reason in Reason]
    store = make_store(tmp_path / "a.ome.zarr", rows * (ROWS_PER_CHUNK // len(rows) + 1), 2)
    table = sw.frame_table(store)
    assert len(table) > ROWS_PER_CHUNK
    pairs = [(status.name.lower(), reason.name.lower()) for _, status, reason in rows]
    assert set(zip(table["status"], table["reason"], strict=True)) == set(pairs)


def test_a_table_of_0_2_0_has_both_names(tmp_path):
    rows = [(-1, status, Reason.NONE) for status in FrameStatus]
    new = sw.frame_table(make_store(tmp_path / "a.ome.zarr", rows, 2))
    old = sw.frame_table(without_status(tmp_path / "a.ome.zarr"))
    pd.testing.assert_frame_equal(old, new)


def test_a_frame_field_named_status_stays_as_it_is(tmp_path):
    spec = sw.default_layout((None, 4, 4), "uint8", "tyx", frame_fields=("status",))
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        for i in range(3):
            writer.append(np.zeros((4, 4), np.uint8), frame_id=2 * i, metadata={"status": i / 8})
    table = sw.frame_table(tmp_path / "a.ome.zarr")
    assert table["status"].tolist() == [0, 1 / 8, 2 / 8]
    assert table["fate"].tolist() == ["stored"] * 3
    assert [frame.row["status"] for frame in sw.follow(tmp_path / "a.ome.zarr")] == [0, 1 / 8, 2 / 8]
    assert verify_store(tmp_path / "a.ome.zarr", threads=1).problems == []


def test_a_table_without_rows(tmp_path):
    table = sw.frame_table(make_store(tmp_path / "a.ome.zarr", [], 0))
    assert table.shape[0] == 0
    assert isinstance(table, pd.DataFrame)
    assert table["status"].tolist() == []
    assert table["camera_ns"].dtype == np.int64


def test_a_store_without_a_table_says_what_to_do(tmp_path):
    store = make_store(tmp_path / "a.ome.zarr", [(place(0, 0, 0), FrameStatus.STORED, Reason.NONE)], 1)
    (store / "frames").rename(store / "gone")
    with pytest.raises(ShardFormatError, match=r"no frame table.*shardwright recover"):
        sw.frame_table(store)


@pytest.mark.parametrize(("column", "number"), [("status", 0), ("status", 9), ("reason", 99)])
def test_an_unknown_number_is_damage(tmp_path, column, number):
    store = make_store(tmp_path / "a.ome.zarr", [(-1, FrameStatus.LOST, Reason.NONE)], 1)
    set_values(store, column, r0=number)
    with pytest.raises(ShardFormatError, match=f"column {column} .* unknown number"):
        sw.frame_table(store)


@pytest.mark.parametrize("missing", ["reason", "sequence"])
def test_a_table_with_fewer_columns(tmp_path, missing):
    store = make_store(tmp_path / "a.ome.zarr", [(-1, FrameStatus.LOST, Reason.NONE)], 1)
    document = json.loads((store / "frames/zarr.json").read_text())
    document["attributes"]["shardwright"]["columns"].remove(missing)
    (store / "frames/zarr.json").write_text(json.dumps(document))
    if missing == "reason":
        assert "reason" not in sw.frame_table(store), "as in a table of an old release"
        return
    with pytest.raises(ShardFormatError, match="no column 'sequence'"):
        sw.frame_table(store)


def test_without_pandas_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"shardwright\[table\]"):
        sw.frame_table(tmp_path)
