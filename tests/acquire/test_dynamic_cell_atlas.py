"""``profile: dynamic-cell-atlas`` in whole stores: whose times and pixels the block has."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.ingest_daemon import IngestDaemon
from tests.harness.python import commands

import shardwright as sw
from shardwright.array.atlas_block import MOST_TIMES
from shardwright.config.load import parse_config
from shardwright.config.plan import make_plan
from shardwright.model.errors import LayoutWarning, MetadataError
from shardwright.read.chunk_samples import SampleBudget
from shardwright.read.frame_table import frame_table_of
from shardwright.recovery.recover_store import recover_store
from shardwright.shard.frame_log import BLOCK_HEADER_BYTES, FrameLog
from shardwright.store.atlas_facts import _read_together
from shardwright.store.store_metadata import StoreMetadata

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool

PROFILE = sw.WriteSettings(profile="dynamic-cell-atlas", ballast_bytes=0)
SHAPE: dict[str, Any] = {
    "shape": (None, 2, 1, 32, 32),
    "dtype": "uint16",
    "axes": "tczyx",
    "chunks": {"t": 1},
    "units": {"t": "s", "z": "um", "y": "um", "x": "um"},
    "scales": {"t": 2.0, "z": 1.0, "y": 0.5, "x": 0.5},
}
FRAME = np.full((32, 32), 7, np.uint16)


def block_of(group: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((group / "zarr.json").read_text())["attributes"]["dca"]
    return found


def times_of(group: Path) -> list[float]:
    found: list[float] = block_of(group)["acquisition"]["timestamps"]
    return found


def seconds(camera_ns: Any) -> list[float]:
    return [int(ns) // 1000 / 1e6 for ns in camera_ns]


def test_the_first_frame_of_a_time_point_gives_its_time(tmp_path: Path) -> None:
    """Of any channel, in whatever order they come."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, settings=PROFILE) as writer:
        for t in range(3):
            for c in (1, 0):
                writer.append(FRAME + 100 * c, index=(t, c, 0))
    table = sw.frame_table(path)
    assert (table["index_c"] == 1)[table.groupby("index_t")["camera_ns"].idxmin()].all()
    assert times_of(path) == seconds(table.groupby("index_t")["camera_ns"].min())
    statistics = block_of(path)["normalization_statistics"]
    assert [statistics[c]["dataset_statistics"]["median"] for c in ("0", "1")] == [7, 107]


def test_a_time_point_without_a_frame_has_the_time_before_it(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, settings=PROFILE) as writer:
        for t in (1, 4):
            writer.append(FRAME, index=(t, 0, 0))
    first, last = seconds(sw.frame_table(path)["camera_ns"])
    assert times_of(path) == [first, first, first, first, last]


def test_a_frame_that_was_dropped_gives_its_time_too(tmp_path: Path) -> None:
    """Its pixels are gone, and not when it came."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, settings=PROFILE, overload="drop") as writer:
        full = writer._ring._free.take(writer._limits.ring_frames)
        writer.append_many(np.stack([FRAME] * 3))
        writer._ring._free.give_back(full)
        writer.append_many(np.stack([FRAME] * 3))
    table = sw.frame_table(path)
    assert table["status"].tolist() == ["dropped"] * 3 + ["stored"] * 3
    assert times_of(path) == seconds(table["camera_ns"][::2])


def test_a_stack_has_channels_and_statistics_alone(tmp_path: Path) -> None:
    path, stack = tmp_path / "a.ome.zarr", {**SHAPE, "shape": (2, 3, 32, 32), "axes": "czyx", "chunks": None}
    stack |= {name: {n: v for n, v in SHAPE[name].items() if n != "t"} for name in ("units", "scales")}
    with pytest.warns(LayoutWarning, match="Dynamic Cell Atlas wants the axes"):
        writer = sw.create(path, **stack, settings=PROFILE)
    with writer:
        writer.append_many(np.zeros((6, 32, 32), np.uint16))
    assert block_of(path).keys() == {"version", "url", "channels", "normalization_statistics"}
    assert block_of(path)["normalization_statistics"] == {}  # there is nothing but fill value


def test_each_field_of_a_plate_has_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    plate = {"rows": 1, "columns": 3}
    with sw.create(path, **SHAPE, plate=plate, settings=PROFILE) as writer:
        for t in range(2):
            for well in ("A/1/0", "A/3/0"):
                for c in range(2):
                    writer.append(FRAME * (1 + int(well[2])), image=well, index=(t, c, 0))
    table = sw.frame_table(path)
    for well in ("A/1/0", "A/3/0"):
        mine = table[table["image"] == well]
        assert times_of(path / well) == seconds(mine.groupby("index_t")["camera_ns"].min())
        found = block_of(path / well)["normalization_statistics"]["0"]["dataset_statistics"]
        assert found["mean"] == 7 * (1 + int(well[2]))
    assert not (path / "A/2/0").exists()
    assert "dca" not in json.loads((path / "zarr.json").read_text())["attributes"]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[set[int] | None]:
    """The images for which the frame log was read, one entry for each pass that asked for some."""
    made: list[set[int] | None] = []
    blocks = FrameLog.blocks

    def noted(log: FrameLog, only: Any = None, *, of_images: Any = None) -> Any:
        if isinstance(of_images, dict):  # by image, the times that are looked for
            made.append(set(of_images))
        return blocks(log, only, of_images=of_images)

    monkeypatch.setattr(FrameLog, "blocks", noted)
    return made


def write_three_images(path: Path, **changes: Any) -> list[str]:
    names = ["a", "b", "c"]
    with sw.create(path, **{**SHAPE, **changes}, images=names, settings=PROFILE) as writer:
        for name in names:
            for t in range(3):
                writer.append(FRAME, image=name, index=(t, 0, 0))
    return names


def test_many_images_are_looked_at_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[set[int]]
) -> None:
    monkeypatch.setattr("shardwright.store.atlas_facts._MOST_POINTS", 7)
    names = write_three_images(path := tmp_path / "a.ome.zarr")
    assert passes == [{0, 1}, {2}]
    table = sw.frame_table(path)
    for number, name in enumerate(names):
        assert times_of(path / str(number)) == seconds(table[table["image"] == name]["camera_ns"])


def test_images_after_the_last_pass_have_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[set[int]]
) -> None:
    monkeypatch.setattr("shardwright.store.atlas_facts._MOST_POINTS", 4)
    monkeypatch.setattr("shardwright.store.atlas_facts._MOST_PASSES", 2)
    write_three_images(path := tmp_path / "a.ome.zarr")
    assert passes == [{0}, {1}]
    assert (len(times_of(path / "0")), len(times_of(path / "1"))) == (3, 3)
    assert block_of(path / "2")["acquisition"] == {"time_increment_s": 2.0}


@pytest.mark.parametrize("has_unit", [True, False])
def test_of_too_many_time_points_no_more_is_looked_at_than_the_step_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[set[int]], has_unit: bool
) -> None:
    for room in ("shardwright.array.atlas_block", "shardwright.store.atlas_facts"):
        monkeypatch.setattr(f"{room}.MOST_TIMES", 2)
    monkeypatch.setattr("shardwright.store.atlas_facts._SOME_POINTS", 2)
    monkeypatch.setattr("shardwright.store.atlas_facts._MOST_POINTS", 4)
    bare = {} if has_unit else {"units": None, "scales": None}
    path = tmp_path / "a.ome.zarr"
    with nullcontext() if has_unit else pytest.warns(LayoutWarning, match="a unit of every axis"):
        write_three_images(path, **bare)
    assert passes == ([] if has_unit else [{0, 1}, {2}])
    found = block_of(path / "2")["acquisition"]
    assert found.keys() == {"time_increment_s"}
    assert has_unit == (found["time_increment_s"] == 2.0)


def test_the_longest_plate_takes_few_passes() -> None:
    passes = list(_read_together(dict.fromkeys(range(1536), MOST_TIMES)))
    assert len(passes) == 6
    assert all(sum(some.values()) <= 1 << 24 for some in passes)
    assert sum(map(len, passes)) == 1536


def test_shard_rows_of_other_images_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    blocks = FrameLog.blocks

    def noted(log: FrameLog, only: Any = None, *, of_images: Any = None) -> Any:
        if isinstance(of_images, dict):
            reader = log._read
            with monkeypatch.context() as during:
                during.setattr(log, "_read", lambda at, n: read.append(n) or reader(at, n))
                yield from blocks(log, only, of_images=of_images)
        else:
            yield from blocks(log, only, of_images=of_images)

    monkeypatch.setattr(FrameLog, "blocks", noted)
    monkeypatch.setattr("shardwright.store.atlas_facts._MOST_POINTS", 3)
    write_three_images(tmp_path / "a.ome.zarr")
    assert sum(nbytes != BLOCK_HEADER_BYTES for nbytes in read) == 3, "the block of each image, in one pass"


def test_a_later_axis_of_time(tmp_path: Path) -> None:
    """Each sweep along it goes through all time points; the first one gives their times."""
    path = tmp_path / "a.ome.zarr"
    shape = {**SHAPE, "shape": (3, 2, 1, 32, 32)}
    with sw.create(path, **shape, order=("c", "z", "t"), settings=PROFILE) as writer:
        for _ in range(6):
            writer.append(FRAME)
    assert times_of(path) == seconds(sw.frame_table(path)["camera_ns"][:3])


def test_what_users_add_while_it_is_written_is_in_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, attributes={"dca": {"study": "first"}}, settings=PROFILE) as writer:
        writer.append(FRAME)
        writer.update_metadata({"dca": {"study": "second", "specimen": 3}})
    found = block_of(path)
    assert (found["study"], found["specimen"], len(found["acquisition"]["timestamps"])) == ("second", 3, 1)


def test_what_is_said_of_all_images_is_in_the_block_of_each(tmp_path: Path) -> None:
    """Unless an image says otherwise."""
    path = tmp_path / "a.ome.zarr"
    images = [sw.Image(name="a"), sw.Image(name="b", attributes={"dca": {"specimen": "its own"}})]
    attributes = {"dca": {"study": "first", "specimen": "of all"}}
    with sw.create(path, **SHAPE, images=images, attributes=attributes, settings=PROFILE) as writer:
        for image in ("a", "b"):
            writer.append(FRAME, image=image, index=(0, 0, 0))
        writer.update_metadata({"dca": {"study": "second", "specimen": "of all"}})
    found = [block_of(path / folder) for folder in ("0", "1")]
    assert [(each["study"], each["specimen"]) for each in found] == [
        ("second", "of all"),
        ("second", "its own"),
    ]
    assert block_of(path) == {"study": "second", "specimen": "of all"}


@pytest.mark.parametrize("said", ["my note", [1], None])
def test_a_block_that_is_no_object_is_refused_later_too(tmp_path: Path, said: Any) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, settings=PROFILE) as writer:
        writer.append(FRAME)
        with pytest.raises(MetadataError, match="'dca' is the block of the profile"):
            writer.update_metadata({"dca": said})
    assert block_of(path)["version"] == "0.2"
    with sw.create(tmp_path / "b.ome.zarr", **SHAPE) as writer:
        writer.append(FRAME)
        writer.update_metadata({"dca": said})
    assert json.loads((tmp_path / "b.ome.zarr" / "zarr.json").read_text())["attributes"]["dca"] == said


@pytest.mark.parametrize("there", [[1], "a note", 7])
def test_damage_from_outside_does_not_hinder_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: Any
) -> None:
    path = tmp_path / "a.ome.zarr"
    document, write_blocks = path / "zarr.json", StoreMetadata.write_blocks

    def damaged(metadata: StoreMetadata, *given: Any) -> None:
        """After all else of it is written."""
        document.write_text(json.dumps({**json.loads(document.read_text()), "attributes": there}))
        write_blocks(metadata, *given)

    monkeypatch.setattr(StoreMetadata, "write_blocks", damaged)
    with sw.create(path, **SHAPE, settings=PROFILE) as writer:
        writer.append(FRAME)
    assert json.loads(document.read_text())["attributes"] == there
    table = frame_table_of(path)
    assert table is not None
    assert table.rows == 1


def write_plate(path: Path, images: int, channels: int = 2, times: int = 3) -> None:
    array = {**SHAPE, "shape": (None, channels, 1, 32, 32), "shards": {"t": 1}}
    names = [f"{number}" for number in range(images)]
    with sw.create(path, **array, images=names, settings=PROFILE) as writer:
        for name in names:
            for index in np.ndindex(times, channels, 1):
                writer.append(FRAME + index[0], image=name, index=index)


def described(path: Path, images: int) -> list[int]:
    """Returns the number of channels with statistics, by image."""
    return [len(block_of(path / str(number))["normalization_statistics"]) for number in range(images)]


@pytest.mark.parametrize("bound", ["chunks", "nbytes"])
def test_all_images_have_statistics_where_one_chunk_of_each_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    most = {"chunks": 5 * 2 * 2, "nbytes": 5 * 2 * 2 * FRAME.nbytes}
    monkeypatch.setattr(
        "shardwright.store.atlas_facts.SampleBudget",
        lambda: SampleBudget(**{bound: most[bound]}),
    )
    write_plate(path := tmp_path / "a.ome.zarr", 5)
    assert described(path, 5) == [2] * 5


def test_no_image_has_more_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first one either; one that is skipped costs nothing."""
    budgets: list[SampleBudget] = []

    def of_three_chunks() -> SampleBudget:
        budgets.append(SampleBudget(nbytes=3 * FRAME.nbytes))
        return budgets[-1]

    monkeypatch.setattr("shardwright.store.atlas_facts.SampleBudget", of_three_chunks)
    write_plate(path := tmp_path / "a.ome.zarr", 2)
    assert described(path, 2) == [2, 0]
    assert budgets[-1].nbytes == FRAME.nbytes
    write_plate(path := tmp_path / "b.ome.zarr", 2, channels=4)
    assert described(path, 2) == [0, 0]
    assert budgets[-1].nbytes == 3 * FRAME.nbytes


def write_and_die(_: Any, path: str) -> None:
    writer = sw.create(path, **SHAPE, settings=PROFILE)
    for _ in range(4):
        writer.append(FRAME)
    writer.flush()
    os._exit(0)


@pytest.mark.parametrize("ending", ["resumed", "recovered"])
def test_whoever_ends_it_writes_the_block(tmp_path: Path, shared_pool: WorkerPool, ending: str) -> None:
    path = tmp_path / "a.ome.zarr"
    assert commands().start(write_and_die, str(path)).wait() == 0
    if ending == "resumed":
        with sw.resume(path) as writer:
            writer.append(FRAME)
    else:
        recover_store(path, shared_pool, threads=1)
    assert times_of(path) == seconds(sw.frame_table(path).groupby("index_t")["camera_ns"].min())
    assert len(times_of(path)) == 2 + (ending == "resumed")


def test_a_client_of_a_daemon_gets_what_its_configuration_says(
    tmp_path: Path, shared_pool: WorkerPool
) -> None:
    daemon = IngestDaemon(tmp_path, shared_pool, write=PROFILE)
    try:
        with sw.connect(daemon.ipc) as connection:
            array = sw.default_layout(**{**SHAPE, "scales": None, "units": None})
            with connection.acquire("a", array) as stream:
                stream.append(FRAME)
    finally:
        daemon.stop()
    path = tmp_path / "a.ome.zarr"
    assert times_of(path) == seconds(sw.frame_table(path)["camera_ns"])
    warned = [facts["warning"] for name, facts in daemon.events if name == "layout_warning"]
    assert any("a unit of every axis" in warning for warning in warned)


def test_a_configuration_warns_of_arrays_that_the_specification_refuses(tmp_path: Path) -> None:
    text = """
output: {root: %s, profile: dynamic-cell-atlas}
streams:
  - name: cam
    array:
      dtype: uint16
      dimensions:
        - {name: t, chunk_size: 2}
        - {name: y, count: 32, chunk_size: 32}
        - {name: x, count: 32, chunk_size: 32}
"""
    (stream,) = make_plan(parse_config(text % tmp_path)).streams
    assert any("Dynamic Cell Atlas wants the axes" in warning for warning in stream.warnings)
