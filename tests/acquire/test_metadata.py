"""Metadata of frames, of the acquisition and of its images: written, killed, resumed, recovered, read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.fork_server import ForkServer

import shardwright as sw
from shardwright.acquire.limits import Limits
from shardwright.acquire.workers import WorkerPool
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.model.errors import BudgetError, MetadataError, SpecError
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store

if TYPE_CHECKING:
    from pathlib import Path

FRAME = np.ones((16, 16), np.uint16)
SPEC = sw.default_layout(
    (None, 2, 16, 16),
    "uint16",
    "tcyx",
    chunks={"t": 4},
    shards={"t": 8},
    frame_fields=("laser_mw",),
    frame_json_bytes=300,
)


def told(number: int) -> dict:
    return {"laser_mw": number, "note": f"frame {number}, 3 µm", "stage": {"x": [number, None, True]}}


def noted(path: Path) -> list[dict | None]:
    """The JSON of each frame in the order of sending, as ``frame_table`` has it."""
    return [json.loads(text) if text else None for text in sw.frame_table(path)["json"]]


@pytest.fixture(scope="module")
def server():
    with ForkServer() as server:
        yield server


def recover(path: Path) -> None:
    pool = WorkerPool(2)
    pool.start()
    try:
        recover_store(path, pool, threads=2)
    finally:
        pool.stop()


def without_numbers(metadata: dict) -> dict:
    return {name: value for name, value in metadata.items() if name != "laser_mw"}


def test_metadata_that_are_no_numbers_are_a_column_of_strings(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, on_duplicate="count") as writer:
        writer.append(FRAME, index=(0, 0))
        writer.append(FRAME, index=(0, 1), metadata=told(1))
        writer.append(FRAME, index=(0, 1), metadata=told(2))  # a duplicate has metadata too
        writer.append_many(
            [FRAME] * 2, indices=[(1, 0), (1, 1)], metadata={"laser_mw": [3, 4], "note": ["a", "b"], "run": 7}
        )
    assert noted(path) == [
        None,
        without_numbers(told(1)),
        without_numbers(told(2)),
        {"note": "a", "run": 7},
        {"note": "b", "run": 7},
    ]
    table = sw.frame_table(path)
    assert table["laser_mw"].tolist()[1:] == [1, 2, 3, 4]
    assert table["fate"].tolist() == ["stored", "stored", "duplicate", "stored", "stored"]
    columns = {name: column[:] for name, column in zarr.open_group(path / "frames", mode="r").arrays()}
    assert columns["json"][np.argsort(columns["sequence"])].tolist() == table["json"].tolist()
    assert verify_store(path).ok


def test_columns_are_in_the_order_of_their_use(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, sw.AcquisitionSpec(array=SPEC, images=("left", "right"))) as writer:
        writer.append(FRAME, image="right", index=(0, 0), metadata={"note": "r"})
        writer.append(FRAME, image="left", index=(0, 1), metadata={"note": "l"})
    table = sw.frame_table(path)
    assert list(table) == [
        *("image", "index_t", "index_c", "frame_id", "sequence"),
        *("camera_ns", "monotonic_ns", "arrival_ns", "arrival_monotonic_ns"),
        *("delta_t", "exposure_time", "position_x", "position_y", "position_z", "laser_mw"),
        *("json", "client_epoch", "fate", "reason"),
    ]
    assert table["image"].tolist() == ["right", "left"]
    assert all(table[name].dtype == "category" for name in ("image", "fate", "reason"))
    assert noted(path) == [{"note": "r"}, {"note": "l"}]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"x": float("nan")}, "no JSON"),
        ({"x": [np.float32("inf")]}, "no JSON"),
        ({"x": object()}, "no JSON.*object"),
        ({"x": "\ud800"}, "no JSON"),
        ({("a", 1): 2}, "no JSON"),
        ({"x": "y" * 300}, "at most 300 bytes of JSON; got 308 bytes"),
        ({"laser_mw": "strong"}, "not a number"),
    ],
)
def test_bad_metadata_refuse_one_frame(tmp_path, metadata, words):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        with pytest.raises(MetadataError, match=words):
            writer.append(FRAME, metadata=metadata)
        with pytest.raises(MetadataError, match=words if "laser_mw" not in metadata else "not of numbers"):
            writer.append_many([FRAME], metadata=metadata)
        writer.append(FRAME, metadata=told(0))
    assert writer.receipt.frames_received == 1
    assert noted(path) == [without_numbers(told(0))]


def test_without_room_for_json_the_field_to_set_is_named(tmp_path):
    spec = SPEC.model_copy(update={"frame_json_bytes": 0})
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        with pytest.raises(MetadataError, match=r"unknown metadata field.*frame_json_bytes"):
            writer.append(FRAME, metadata={"note": "a"})
        writer.append(FRAME)


def test_the_longest_json_fits(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        writer.append(FRAME, metadata={"x": "y" * 292})
    (text,) = sw.frame_table(path)["json"]
    assert len(text) == 300


@pytest.mark.parametrize("ending", ["resumed", "recovered"])
def test_a_kill_loses_no_metadata_of_a_stored_frame(tmp_path, server, ending):
    """Sealed, journaled, staged and dropped into the log before the kill."""
    path = tmp_path / "a.ome.zarr"
    assert server.start(append_and_die, str(path)).wait() == 0
    expected = [without_numbers(told(number)) for number in range(21)]
    if ending == "recovered":
        recover(path)
    else:
        with sw.resume(path) as writer:
            assert writer.frames == 21
            writer.append(FRAME, index=(30, 0), metadata=told(21))
        expected.append(without_numbers(told(21)))
    assert noted(path) == expected
    assert verify_store(path).ok


def append_and_die(_, path: str) -> None:
    writer = sw.create(path, SPEC)
    for number in range(21):
        writer.append(FRAME, index=divmod(number, 2), metadata=told(number))
    writer.flush()
    os._exit(0)


def test_the_images_of_an_acquisition_have_one_bound():
    other = SPEC.model_copy(update={"frame_json_bytes": 8})
    with pytest.raises(SpecError, match="frame_json_bytes must be the same"):
        parse_acquisition({"images": {"a": SPEC, "b": other}})


def test_the_memory_of_json_is_planned(tmp_path):
    plain = SPEC.model_copy(update={"frame_json_bytes": 0})
    without, with_json = (Limits.derive(spec, threads=2) for spec in (plain, SPEC))
    assert with_json.memory_bytes - without.memory_bytes >= 300 * (1 << 16)
    with pytest.raises(BudgetError):
        Limits.derive(SPEC, threads=2, memory_bytes=without.memory_bytes)
    with pytest.raises(SpecError, match="too many bytes of frame_json_bytes in a shard"):
        sw.default_layout((None, 4, 4), "uint8", "tyx", shards={"t": 1 << 16}, frame_json_bytes=4096)
    assert sw.default_layout((None, 4, 4), "uint8", "tyx", frame_json_bytes=4096)
