"""Verification of the frame table: silent on a sound one, and every kind of damage is found and named."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardwright as sw
from shardwright.array.frame_table_format import ROWS_PER_CHUNK
from shardwright.model.errors import ShardFormatError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.read import frame_table
from shardwright.read.frame_table import open_frame_table
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store

from .frame_tables import make_store, place, set_statuses, set_values, without_status
from .stores import edit_json, wrap_in_group

if TYPE_CHECKING:
    from pathlib import Path

STORED = (FrameStatus.STORED, Reason.NONE)
ROWS = [
    *((p, *STORED) for p in range(12)),
    (3, FrameStatus.DUPLICATE, Reason.PLACE_TAKEN),
    (place(5, 0, 0), FrameStatus.LATE, Reason.PLACE_CLOSED),
]


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "a.ome.zarr", [*ROWS, (-1, FrameStatus.DROPPED, Reason.OVERLOAD)], 2)


def found(path: Path) -> list[str]:
    return [str(problem) for problem in verify_store(path, threads=1).problems]


def test_a_sound_table(store):
    report = verify_store(store, threads=1)
    assert report.problems == []
    assert report.frame_rows == 15


def test_every_flipped_bit_of_a_chunk_is_found(store):
    column = open_frame_table(open_store(store)).columns["status"]
    path = store / "frames/status/c/0"
    sound = path.read_bytes()
    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ShardFormatError, match="crc32c of the chunk does not match"):
            column.read(0)


def test_every_column_is_read(store):
    for column in sorted((store / "frames").glob("*/c/0")):
        sound = column.read_bytes()
        column.write_bytes(sound[:-1])
        (problem,) = found(store)
        assert problem.startswith(f"{column.relative_to(store)}: crc32c")
        column.write_bytes(sound)


def test_chunks_that_are_missing_or_too_many(store):
    (store / "frames/reason/c/0").rename(store / "frames/reason/c/1")
    assert [p.split(":")[0] for p in found(store)] == ["frames/reason/c/0", "frames/reason/c/1"]


def test_rows_without_chunks_are_one_fault_of_each_column(store):
    """Metadata may name any number of rows."""
    rows = 15 * 2000

    def set_rows(document):
        document["shape"] = [rows]
        document["chunk_grid"]["configuration"]["chunk_shape"] = [15]

    edit_json(store / "frames/zarr.json", lambda d: d["attributes"]["shardwright"].update(rows=rows))
    columns = list((store / "frames").glob("*/zarr.json"))
    for column in columns:
        edit_json(column, set_rows)
    problems = found(store)
    assert len(problems) == len(columns)
    assert "frames/status/c/1: a chunk of the frame table is missing, and 1998 more" in problems


def test_a_chunk_without_end(store):
    with (store / "frames/reason/c/0").open("r+b") as file:
        file.truncate(1 << 40)
    (problem,) = found(store)
    assert "longer than its codec can make it" in problem


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("status", {"r5": 0}, "unknown number"),
        ("status", {"r5": 2}, "fate differs from status"),
        ("fate", {"r5": 2}, "fate differs from status"),
        ("reason", {"r5": 99}, "unknown number"),
        ("index_z", {"r5": -1}, "not a place of the array"),
        ("index_t", {"r5": -2}, "not a place of the array"),
    ],
)
def test_values_that_cannot_be(store, name, values, message):
    set_values(store, name, **values)
    assert any(message in problem for problem in found(store))


@pytest.mark.parametrize("is_old", [False, True], ids=["both names", "of 0.2.0"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"r5": 0}, "unknown number"),
        ({"r14": 1}, "stored frame has no place"),
        ({"r12": 1}, "two frames are stored at place (0, 1, 1)"),
    ],
)
def test_statuses_that_cannot_be(store, values, message, is_old):
    set_statuses(store, **values)
    if is_old:
        without_status(store)
    (problem,) = found(store)
    assert message in problem


@pytest.mark.parametrize(("name", "place"), [("index_z", 3), ("index_z", 4), ("index_t", 2)])
def test_a_stored_frame_behind_the_end_of_an_axis_is_what_a_crop_leaves(store, name, place):
    set_values(store, name, r5=place)
    report = verify_store(store, threads=1)
    assert report.problems == []
    cropped, no_shards = map(str, report.warnings)
    assert cropped == "frames: 1 stored frames have places outside the shape (2, 2, 3, 2, 2): it was cropped"
    assert no_shards.startswith("frames: 2 shards of stored frames are absent, such as c/0/0/0/0/0")


@pytest.mark.parametrize(
    ("node", "change", "message"),
    [
        (".", lambda d: d["attributes"]["shardwright"].update(rows=14), "differ in length"),
        (".", lambda d: d["attributes"]["shardwright"].update(rows="15"), "describe a frame table"),
        (
            ".",
            lambda d: d["attributes"]["shardwright"].update(version=4),
            "expected version 1 to 3; got version 4",
        ),
        (".", lambda d: d["attributes"]["shardwright"].update(columns=[]), "describe a frame table"),
        (
            ".",
            lambda d: d["attributes"]["shardwright"]["columns"].remove("status"),
            "describe a frame table",
        ),
        (
            ".",
            lambda d: d["attributes"]["shardwright"].update(columns=["../0"]),
            "describe a frame table",
        ),
        (
            ".",
            lambda d: d["attributes"]["shardwright"].update(columns=["status", 5]),
            "describe a frame table",
        ),
        (".", lambda d: d["attributes"].update(shardwright=None), "describe a frame table"),
        (
            ".",
            lambda d: d["attributes"]["shardwright"]["columns"].remove("index_z"),
            "other axes than the image",
        ),
        ("status", lambda d: d.update(shape=[16]), "differ in length"),
        ("index_z", lambda d: d.update(data_type="float64"), "index_z of the frame table is not of integers"),
        ("status", lambda d: d.update(shape=[15, 1]), "chunk_grid not supported"),
        ("status", lambda d: d.update(shape=["15"]), "a column of a"),
        ("status", lambda d: d.update(data_type="string"), "a column of a"),
        ("status", lambda d: d.pop("codecs"), "a column of a"),
        ("status", lambda d: d["codecs"].insert(1, {"name": "rot13"}), "a column of a"),
        (
            "status",
            lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[1 << 40]),
            "a column of a",
        ),
        (
            "status",
            lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[ROWS_PER_CHUNK // 2]),
            "differ in length or chunks",
        ),
    ],
)
def test_metadata_that_does_not_fit(store, node, change, message):
    edit_json(store / "frames" / node / "zarr.json", change)
    problems = found(store)
    assert any(message in problem for problem in problems), problems


def test_a_column_that_is_gone(store):
    shutil.rmtree(store / "frames/camera_ns")
    (problem,) = found(store)
    assert "no zarr.json" in problem


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_the_table_is_decoded_once_whatever_the_number_of_images(tmp_path, monkeypatch):
    """``verify`` looks at the rows of one image after the other."""
    decoded = []
    decode = frame_table.decode_chunk
    monkeypatch.setattr(frame_table, "decode_chunk", lambda *a: decoded.append(a) or decode(*a))
    counts = []
    for images in (2, 12):
        path = tmp_path / f"{images}.ome.zarr"
        names = [f"p{i}" for i in range(images)]
        with sw.create(path, shape=(2, 8, 8), dtype="uint8", axes="tyx", images=names) as writer:
            for name in names:
                writer.append(np.ones((8, 8), np.uint8), image=name)
        decoded.clear()
        assert verify_store(path).ok
        counts.append(len(decoded))
    assert counts[0] == counts[1] > 0


def test_something_else_of_that_name(tmp_path):
    wrap_in_group(tmp_path / "g")
    (tmp_path / "g/frames").mkdir()
    (tmp_path / "g/frames/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    assert found(tmp_path / "g") == []
