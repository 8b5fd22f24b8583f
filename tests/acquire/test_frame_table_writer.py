"""The frame table, written from a log and read back by zarr-python, pandas and pyarrow."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zarr
from tests.read.frame_tables import without_status

from shardwright.array.acquisition_spec import AcquisitionSpec, parse_acquisition
from shardwright.array.frame_table_format import ROWS_PER_CHUNK
from shardwright.array.grid import Grid
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.array.stage_position import StagePosition
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.shard.frame_log import BLOCK_HEADER_BYTES, HEADER_PAGE_BYTES, BlockKind, FrameLog
from shardwright.shard.frame_record import PASSED_OVER, record_of
from shardwright.store.frame_table_writer import LogSurvey, _earlier, write_frame_table

SPEC = ArraySpec(
    dtype="uint16",
    dimensions=[
        Dimension(name=n, count=c, chunk_size=2)
        for n, c in [("t", None), ("z", 3), ("c", 2), ("y", 4), ("x", 4)]
    ],
    storage_order=("t", "c", "z", "y", "x"),
    frame_fields=("laser_power", "temperature"),
)
COLUMNS = [
    *(
        "index_t",
        "index_z",
        "index_c",
        "frame_id",
        "sequence",
        "camera_ns",
        "monotonic_ns",
        "arrival_ns",
        "arrival_monotonic_ns",
    ),
    *(
        "delta_t",
        "exposure_time",
        "position_x",
        "position_y",
        "position_z",
        "laser_power",
        "temperature",
        "client_epoch",
        "status",
        "fate",
        "reason",
    ),
]


@pytest.fixture
def store(tmp_path):
    (tmp_path / "a.ome.zarr" / ".shardwright").mkdir(parents=True)
    return tmp_path / "a.ome.zarr"


@pytest.fixture
def log_of(store):
    logs = []

    def make(spec: ArraySpec = SPEC) -> FrameLog:
        log = FrameLog.create(store / ".shardwright" / "frames.log", record_of(spec), bytes(16))
        logs.append(log)
        return log

    yield make
    for log in logs:
        log.close()


def some_records(start: int, count: int, spec: ArraySpec = SPEC) -> np.ndarray:
    """Every value tells its row."""
    records = np.zeros(count, record_of(spec))
    rows = np.arange(start, start + count)
    records["sequence"], records["position"], records["frame_id"] = rows, rows, rows + 1000
    for i, name in enumerate(["camera_ns", "monotonic_ns", "arrival_ns", "arrival_monotonic_ns"]):
        records[name] = 10**18 + 10 * rows + i
    for i, name in enumerate(["delta_t", "exposure_time", "position_x", "position_y", "position_z"]):
        records[name] = rows + i / 8
    if spec.frame_fields:
        records["further"] = np.where(rows[:, None] % 2, np.nan, rows[:, None] + [0.25, 0.5])
    records["client_epoch"], records["status"] = 1 + rows // 7, FrameStatus.STORED
    return records


def read(store) -> dict[str, np.ndarray]:
    return {name: column[:] for name, column in zarr.open_group(store / "frames", mode="r").arrays()}


def test_long_strings_come_in_smaller_chunks(store, log_of, monkeypatch):
    monkeypatch.setattr("shardwright.array.frame_table_format.JSON_CHUNK_BYTES", 1600)
    spec = SPEC.model_copy(update={"frame_json_bytes": 160})
    log = log_of(spec)
    records = some_records(0, 34, spec)
    texts = [f'{{"row":{i},"text":"{"µ" * (i % 20)}"}}' for i in range(34)]
    records["json"] = [text.encode() for text in texts]
    log.append(BlockKind.SHARD_ROW, 0, records)
    write_frame_table(store, parse_acquisition(spec), log)
    assert read(store)["json"].tolist() == texts
    assert read(store)["sequence"].tolist() == list(range(34))
    described = json.loads((store / "frames/json/zarr.json").read_text())
    assert described["chunk_grid"]["configuration"]["chunk_shape"] == [10]


def test_slabs_that_were_passed_over_are_on_record(store, log_of):
    log, spec = log_of(), parse_acquisition(SPEC)
    records = some_records(0, 12)
    records["flags"][8:] = PASSED_OVER
    log.append(BlockKind.SHARD_ROW, 0, records)
    write_frame_table(store, spec, log, record={"receipts": [], "acquisition": {"manifest": {}}})
    table = json.loads((store / "frames/zarr.json").read_text())["attributes"]["shardwright"]
    slabs = {spec.grids.slab_of_position(position) for position in range(8, 12)}
    assert table["acquisition"] == {"manifest": {}, "passed_over": sorted(slabs)}
    assert len(slabs) == 2


def test_every_column_of_every_row(store, log_of):
    log = log_of()
    log.append(BlockKind.SHARD_ROW, 0, some_records(0, 12))
    events = some_records(12, 2)
    events["position"], events["status"], events["reason"] = (
        [7, -1],
        [FrameStatus.DUPLICATE, FrameStatus.DROPPED],
        [Reason.PLACE_TAKEN, Reason.OVERLOAD],
    )
    log.append(BlockKind.EVENTS, -1, events)
    log.append(BlockKind.SHARD_ROW, 1, some_records(14, 3))
    write_frame_table(store, AcquisitionSpec(array=SPEC), log)
    table = read(store)
    assert sorted(table) == sorted(COLUMNS)
    rows = np.arange(17)
    position = np.where(rows == 12, 7, rows)
    places = np.array([Grid.of(SPEC).index_of(int(p)) for p in position])
    places[13] = -1
    for axis, name in enumerate(["index_t", "index_z", "index_c"]):
        np.testing.assert_array_equal(table[name], places[:, axis])
        assert table[name].dtype == np.int64
    np.testing.assert_array_equal(table["frame_id"], rows + 1000)
    np.testing.assert_array_equal(table["sequence"], rows)
    for i, name in enumerate(["camera_ns", "monotonic_ns", "arrival_ns", "arrival_monotonic_ns"]):
        np.testing.assert_array_equal(table[name], 10**18 + 10 * rows + i)
    for i, name in enumerate(["delta_t", "exposure_time", "position_x", "position_y", "position_z"]):
        np.testing.assert_array_equal(table[name], rows + i / 8)
    np.testing.assert_array_equal(table["laser_power"], np.where(rows % 2, np.nan, rows + 0.25))
    np.testing.assert_array_equal(table["temperature"], np.where(rows % 2, np.nan, rows + 0.5))
    np.testing.assert_array_equal(table["client_epoch"], 1 + rows // 7)
    for name in ("status", "fate"):
        np.testing.assert_array_equal(table[name], [1] * 12 + [2, 4] + [1] * 3)
        assert table[name].dtype == np.uint8
    np.testing.assert_array_equal(table["reason"], [0] * 12 + [1, 3] + [0] * 3)
    assert (table["reason"].dtype, table["client_epoch"].dtype) == (np.uint8, np.uint32)
    log.close()
    log.path.unlink()
    assert list((store / ".shardwright").iterdir()) == []


def lost(first: int, count: int) -> np.ndarray:
    records = some_records(first, count)
    records["status"] = FrameStatus.LOST
    return records


def test_the_end_reads_the_records_of_a_log_once_more_than_the_table_needs_them(store, log_of, monkeypatch):
    """Where positions of images are asked for; else only those of events."""
    log = log_of()
    for row in range(4):
        log.append(BlockKind.SHARD_ROW, row, some_records(12 * row, 12))
    log.append(BlockKind.EVENTS, -1, lost(48, 3))
    read_bytes, reads = [], FrameLog._read
    monkeypatch.setattr(FrameLog, "_read", lambda self, *at: (read_bytes.append(at[1]), reads(self, *at))[1])
    record, headers = some_records(0, 1).itemsize, 5 * BLOCK_HEADER_BYTES

    LogSurvey.of(log)
    assert sum(read_bytes) == headers + 3 * record
    read_bytes.clear()
    survey = LogSurvey.of(log, {0})
    assert sum(read_bytes) == headers + 51 * record
    assert survey.positions == {0: StagePosition(x=0.25, y=0.375, z=0.5)}
    assert survey.given_up.tolist() == [48, 49, 50]
    monkeypatch.setattr(LogSurvey, "of", lambda *_: pytest.fail("it was made already"))
    read_bytes.clear()
    nothing_lost = replace(
        survey, given_up=survey.given_up[:0]
    )  # else it looks for those that came after all
    write_frame_table(store, AcquisitionSpec(array=SPEC), log, survey=nothing_lost)
    assert sum(read_bytes) == headers + 51 * record
    assert len(read(store)["sequence"]) == 51


def test_the_first_record_of_an_image_keeps_no_other(log_of):
    """Else the end would hold a piece of the log for each image."""
    log = log_of()
    log.append(BlockKind.SHARD_ROW, 0, some_records(5, 7))
    log.append(BlockKind.SHARD_ROW, 1, some_records(0, 5))
    (found,) = _earlier(None, 0, log.shard_row_records(0)).values()
    assert found.base is None or found.base.nbytes == found.nbytes
    assert _earlier(found, 0, log.shard_row_records(1))[0]["sequence"] == 0
    assert _earlier(found, 0, log.shard_row_records(0)) == {}


def test_the_attributes_say_what_the_numbers_mean(store, log_of):
    write_frame_table(store, AcquisitionSpec(array=SPEC), log_of())
    attributes = json.loads((store / "frames/zarr.json").read_text())["attributes"]["shardwright"]
    assert attributes["columns"] == COLUMNS
    assert attributes["rows"] == 0
    numbers = {"1": "stored", "2": "duplicate", "3": "late", "4": "dropped", "5": "lost", "6": "skipped"}
    assert attributes["status"] == attributes["fate"] == numbers
    assert (attributes["reason"]["0"], attributes["reason"]["5"]) == ("none", "not_held")
    assert {name: column.shape for name, column in read(store).items()} == dict.fromkeys(COLUMNS, (0,))


def test_one_line_to_pandas_and_to_pyarrow(store, log_of):
    log = log_of()
    log.append(BlockKind.SHARD_ROW, 0, some_records(0, 100))
    write_frame_table(store, AcquisitionSpec(array=SPEC), log)
    frame = pd.DataFrame(
        {name: column[:] for name, column in zarr.open_group(store / "frames", mode="r").arrays()}
    )
    assert frame.shape == (100, len(COLUMNS))
    assert frame.query("index_c == 1 and exposure_time > 50")["sequence"].tolist() == list(range(51, 100, 2))
    assert str(pd.to_datetime(frame["arrival_ns"])[0]).startswith("2001-09-09 01:46:40")
    table = pa.table(
        {name: column[:] for name, column in zarr.open_group(store / "frames", mode="r").arrays()}
    )
    assert (table.num_rows, table.num_columns) == (100, len(COLUMNS))
    assert table.column("frame_id").to_pylist() == list(range(1000, 1100))


def test_a_single_image_has_no_index(store, log_of):
    spec = ArraySpec(dtype="uint8", dimensions=[Dimension(name=n, count=4, chunk_size=4) for n in "yx"])
    log = log_of(spec)
    log.append(BlockKind.SHARD_ROW, 0, some_records(0, 1, spec))
    write_frame_table(store, AcquisitionSpec(array=spec), log)
    table = read(store)
    assert not [name for name in table if name.startswith("index_")]
    assert table["frame_id"].tolist() == [1000]


def test_blocks_and_chunks_need_not_meet(store, log_of, monkeypatch):
    monkeypatch.setattr("shardwright.array.frame_table_format.ROWS_PER_CHUNK", 10)
    log, start = log_of(), 0
    for count in (3, 7, 25, 0, 1, 4):
        log.append(BlockKind.SHARD_ROW, start, some_records(start, count))
        start += count
    write_frame_table(store, AcquisitionSpec(array=SPEC), log)
    table = read(store)
    assert table["sequence"].tolist() == list(range(40))
    for name in ("status", "fate"):
        assert sorted(p.name for p in (store / "frames" / name / "c").iterdir()) == ["0", "1", "2", "3"]


def test_writing_it_again_replaces_it(store, log_of):
    """As recovery does after a crash behind the rename; what an earlier try left half done is no
    hindrance."""
    log = log_of()
    log.append(BlockKind.SHARD_ROW, 0, some_records(0, 5))
    write_frame_table(store, AcquisitionSpec(array=SPEC), log)
    log.append(BlockKind.SHARD_ROW, 1, some_records(5, 1))
    for left in ("frames.0.building", "frames.replaced"):
        (log.path.parent / left / "status").mkdir(parents=True)
    write_frame_table(store, AcquisitionSpec(array=SPEC), log)
    assert read(store)["sequence"].tolist() == list(range(6))
    assert [p.name for p in log.path.parent.iterdir()] == ["frames.log"]


def test_writing_a_table_of_0_2_0_again_gives_it_both_names(store, log_of):
    log = log_of()
    log.append(BlockKind.SHARD_ROW, 0, some_records(0, 5))
    write_frame_table(store, AcquisitionSpec(array=SPEC), log)
    without_status(store)
    assert "status" not in read(store)
    events = some_records(5, 1)
    events["status"] = FrameStatus.LATE
    log.append(BlockKind.EVENTS, -1, events)
    write_frame_table(store, AcquisitionSpec(array=SPEC), log)
    assert read(store)["status"].tolist() == read(store)["fate"].tolist() == [1] * 5 + [3]


def test_a_frame_field_named_status_keeps_its_column(store, log_of):
    """0.2.0 took such arrays, and left unfinished stores of them."""
    spec = SPEC.model_copy(update={"frame_fields": ("status", "temperature")})
    log = log_of(spec)
    log.append(BlockKind.SHARD_ROW, 0, some_records(0, 3, spec))
    write_frame_table(store, AcquisitionSpec(array=spec), log)
    table = read(store)
    assert table["status"].dtype == np.float64
    np.testing.assert_array_equal(table["status"], [0.25, np.nan, 2.25])
    assert table["fate"].tolist() == [FrameStatus.STORED] * 3
    attributes = json.loads((store / "frames/zarr.json").read_text())["attributes"]["shardwright"]
    assert "status" not in attributes
    assert attributes["fate"]["1"] == "stored"


POINTS = [
    *("table.before_create", "table.before_delete", "replace.before_write", "table.before_sync"),
    *("folder.before_rename", "directory.before_sync"),
]


@pytest.mark.parametrize("point", POINTS)
def test_a_disk_that_fails_at_any_point_leaves_no_half_table(store, log_of, failing, point):
    """And the next try succeeds, with the earlier table in between or without."""
    log = log_of()
    log.append(BlockKind.SHARD_ROW, 0, some_records(0, 5))
    for after in [0, 1, *range(2, 200, 9)]:
        failing(point, OSError(errno.EIO, os.strerror(errno.EIO)), after=after)
        try:
            write_frame_table(store, AcquisitionSpec(array=SPEC), log)
        except StorageError:
            if (store / "frames").exists():
                assert read(store)["sequence"].tolist() == list(range(5))
        else:
            break
    else:
        pytest.fail("never came past the failure")
    assert after >= 1 or point == "table.before_delete", (
        "where there is nothing to delete the first try succeeds"
    )
    assert read(store)["sequence"].tolist() == list(range(5))


def test_a_damaged_log_is_an_error_and_leaves_no_table(store, log_of):
    log = log_of()
    log.append(BlockKind.SHARD_ROW, 0, some_records(0, 5))
    with log.path.open("r+b") as file:
        file.seek(HEADER_PAGE_BYTES + 100)
        file.write(b"\xff")
    with pytest.raises(ShardFormatError, match="crc32c"):
        write_frame_table(store, AcquisitionSpec(array=SPEC), log)
    assert not (store / "frames").exists()
    assert [p.name for p in log.path.parent.iterdir()] == ["frames.log"]


MEASURED = """
import resource, sys
from pathlib import Path
import numpy as np
from shardwright.array.acquisition_spec import AcquisitionSpec
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.store.frame_table_writer import write_frame_table
from shardwright.shard.frame_log import BlockKind, FrameLog
from shardwright.shard.frame_record import record_dtype

store, rows = Path(sys.argv[1]), int(sys.argv[2])
spec = ArraySpec(dtype="uint16", dimensions=[Dimension(name=n, count=c, chunk_size=2) for n, c in [("t", None), ("z", 3), ("y", 4), ("x", 4)]])
log = FrameLog.create(store / ".shardwright" / "frames.log", record_dtype(0), bytes(16))
for start in range(0, rows, 1000):
    records = np.zeros(1000, record_dtype(0))
    records["position"] = records["sequence"] = np.arange(start, start + 1000)
    log.append(BlockKind.SHARD_ROW, start, records)
write_frame_table(store, AcquisitionSpec(array=spec), log)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""  # noqa: E501


def test_memory_and_metadata_do_not_grow_with_the_rows(tmp_path):
    peak_kib, metadata = {}, {}
    for rows in (ROWS_PER_CHUNK // 1000 * 1000, 400_000):
        store = tmp_path / str(rows)
        (store / ".shardwright").mkdir(parents=True)
        ended = subprocess.run(
            [sys.executable, "-c", MEASURED, str(store), str(rows)],
            capture_output=True,
            text=True,
            check=True,
        )
        peak_kib[rows] = int(ended.stdout)
        metadata[rows] = sum(p.stat().st_size for p in store.rglob("zarr.json"))
        assert zarr.open_array(store / "frames/sequence", mode="r").shape == (rows,)
    (few, many) = peak_kib
    assert peak_kib[many] - peak_kib[few] < 24 << 10, "400,000 records are 51 MB"
    assert metadata[many] - metadata[few] < 100, "only the number of rows has more digits"


def test_a_frame_that_was_given_up_and_found_again_has_one_row(store, log_of):
    """A write said that it failed, and had not: the frame was recorded as lost, and recovery found it. Stored
    wins; others stay lost."""
    log = log_of()
    lost = some_records(0, 10)
    lost["status"], lost["reason"] = FrameStatus.LOST, Reason.ACQUISITION_FAILED
    log.append(BlockKind.EVENTS, -1, lost)
    log.append(BlockKind.SHARD_ROW, 0, some_records(4, 3))
    duplicate = some_records(5, 1)
    duplicate["status"] = FrameStatus.DUPLICATE
    log.append(BlockKind.EVENTS, -1, duplicate)
    write_frame_table(store, AcquisitionSpec(array=SPEC), log)
    table = zarr.open_group(store / "frames", mode="r")
    found = list(zip(table["sequence"][:].tolist(), table["status"][:].tolist(), strict=True))
    assert found == [(i, FrameStatus.LOST) for i in (0, 1, 2, 3, 7, 8, 9)] + [
        (i, FrameStatus.STORED) for i in (4, 5, 6)
    ] + [(5, FrameStatus.DUPLICATE)]
