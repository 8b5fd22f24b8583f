"""Levels that are written with an image: what they hold whatever happens, what the metadata say, and what
cannot be asked for. ``tests/properties`` reads back random ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaozarrs
import zarr
from tests.harness.levels import level_problems

import shardwright as sw
from shardwright.acquire.encoding import SlabEncoder
from shardwright.acquire.limits import Limits
from shardwright.array.grid import Grid
from shardwright.array.spec import parse_spec
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import Throttle

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")

HALF = {"z": 2, "y": 2, "x": 2}
LEVELS = {"count": 2, "method": "mean", "factors": HALF}


def run_here(tasks):
    return map(run_task, tasks)


def spec_of(levels: object = LEVELS, **fields: object) -> sw.ArraySpec:
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=(
            sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=2),
            sw.Dimension(name="z", count=10, chunk_size=4, unit="micrometer", scale=2),
            sw.Dimension(name="y", count=50, chunk_size=16, shard_size_chunks=2, scale=0.5),
            sw.Dimension(name="x", count=70, chunk_size=70, scale=0.5),
        ),
        levels=levels,
        **fields,
    )


def frame(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(1, 4096, (50, 70)).astype(np.uint16)


def fill(writer, numbers: range) -> None:
    for number in numbers:
        writer.append(frame(number), index=divmod(number, 10))


@pytest.mark.parametrize(
    ("method", "factors"),
    [
        ("mean", HALF),
        ("mean", {"z": 1, "y": 3, "x": 4}),
        ("min", {"y": 8}),
        ("max", {"z": 2, "y": 1, "x": 5}),
        ("nearest", {"z": 2, "y": 3, "x": 3}),
    ],
)
def test_they_equal_what_pyramid_makes_later(tmp_path, method, factors):
    """Pixels bit for bit, and the same metadata, but for the depth of chunks along a reduced frame axis."""
    live, later = tmp_path / "live.ome.zarr", tmp_path / "later.ome.zarr"
    levels = {"count": 2, "method": method, "factors": factors}
    for path, spec in ((live, spec_of(levels)), (later, spec_of(None))):
        with sw.create(path, spec) as writer:
            fill(writer, range(47))
    add_levels(later, PyramidOptions(2, method, factors), run_here, throttle=Throttle(idle=False))
    assert level_problems(live) == level_problems(later) == []
    groups = [json.loads((path / "zarr.json").read_text())["attributes"]["ome"] for path in (live, later)]
    for group in groups:
        group["multiscales"][0].pop("name")
        group.pop("omero")  # each has the contrast windows of its own samples
    assert groups[0] == groups[1]
    for level in "12":
        one, other = (zarr.open_array(path / level, mode="r") for path in (live, later))
        assert np.array_equal(one[...], other[...])
        assert (one.shape, one.attrs.asdict()) == (other.shape, other.attrs.asdict())
    yaozarrs.validate_zarr_store(live)
    report = verify_store(live, threads=1)
    assert (report.problems, report.arrays) == ([], 3)


@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("chunk", [2, 3, 5, 7])
def test_windows_along_several_axes_at_the_edge_of_an_odd_chunk(tmp_path, chunk, factor):
    """They take the most memory where the frames are small."""
    path = tmp_path / "a.ome.zarr"
    axes = (("t", None, 1), ("c", 2, 2), ("z", chunk, chunk), ("y", 1, 1), ("x", 1, 1))
    spec = sw.ArraySpec(
        dtype="uint8",
        dimensions=[sw.Dimension(name=n, count=count, chunk_size=size) for n, count, size in axes],
        levels={"count": 1, "factors": dict.fromkeys("czyx", factor)},
    )
    with sw.create(path, spec) as writer:
        for number in range(4 * chunk):
            writer.append(np.full((1, 1), number + 1, np.uint8))
    assert writer.receipt.frames_stored == 4 * chunk
    assert level_problems(path) == []


def test_pyramid_adds_further_ones(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec_of()) as writer:
        fill(writer, range(20))
    add_levels(path, PyramidOptions(4, "mean", HALF), run_here, throttle=Throttle(idle=False))
    assert level_problems(path) == []
    assert zarr.open_array(path / "4", mode="r").shape == (2, 1, 4, 5)


def test_each_image_has_its_own(tmp_path):
    path, plain = tmp_path / "a.ome.zarr", spec_of(None)
    with sw.create(path, images={"deep": spec_of(), "plain": plain}) as writer:
        for image in ("deep", "plain"):
            writer.append_many([frame(i) for i in range(20)], image=image)
    assert sorted(p.name for p in (path / "0").iterdir()) == ["0", "1", "2", "zarr.json"]
    assert sorted(p.name for p in (path / "1").iterdir()) == ["0", "zarr.json"]
    assert level_problems(path) == []
    assert verify_store(path).ok
    yaozarrs.validate_zarr_store(path)


def test_a_deleted_shard_of_a_level_is_found(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec_of()) as writer:
        fill(writer, range(20))
    (path / "1/c/0/0/0/0").unlink()
    assert any("1/c/0/0/0/0" in str(problem) for problem in verify_store(path).problems)


def test_their_memory_and_files_are_planned():
    plain, with_levels = (Limits.derive(spec_of(levels), threads=2) for levels in (None, LEVELS))
    frames = 2 * (25 * 35 * 2) + 1 * (13 * 18 * 2)  # of a slab: two at level 1, one at level 2
    assert with_levels.scratch_bytes >= plain.scratch_bytes + frames
    # level 1 has 2 chunks of 25 rows, in one file; the image has 4 in 2 files
    assert with_levels.shard_files_per_shard_row == plain.shard_files_per_shard_row + 2
    assert plain.shard_row_bytes < with_levels.shard_row_bytes < 2 * plain.shard_row_bytes
    assert with_levels.descriptors > plain.descriptors


def test_workers_begin_a_slab_with_its_longest_task():
    """All levels are one, which would else be waited for alone."""
    encoder = SlabEncoder(spec_of(), Grid.of(spec_of()))
    levels, *ranges = encoder.task_ranges
    assert [*ranges, levels] == sorted(encoder.task_ranges)
    chunks = [chunk for part in encoder.task_ranges for chunk in range(*part)]
    assert sorted(chunks) == list(range(encoder.chunks_per_slab))
    assert levels == (encoder.layout.plane.levels[1].first, encoder.chunks_per_slab)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (8, "no axis is left to reduce; expected at most 7"),
        ({"count": 5, "factors": {"x": 8}}, "no axis is left to reduce; expected at most 3"),
        ({"count": 1, "factors": {"t": 2}}, "'t' ends where the frames end"),
        ({"count": 1, "factors": {"w": 2}}, "there is no axis 'w'"),
        ({"count": 3, "factors": {"z": 2}}, "must be a multiple of 8, or all 10; got 4, better is 8"),
        ({"count": 2, "factors": {"z": 3}}, "must be a multiple of 9, or all 10; got 4, better is 9"),
        ({"count": 3, "factors": {"z": 3}}, "must be a multiple of 27, or all 10; got 4, better is 10"),
        ({"count": 1, "factors": {"x": 9}}, "less than or equal to 8"),
        ({"count": 1, "factors": {"x": 0}}, "greater than or equal to 1"),
        ({"count": 1, "factors": {}}, "levels.factors"),
        ({"count": 1, "factors": {"x": 1}}, "no axis is left to reduce; expected at most 0"),
        ({"count": 1, "factors": {"x": True}}, "levels.factors.x"),
        ({"count": 1, "method": "median"}, "levels.method"),
        (-1, "greater than 0"),
    ],
)
def test_what_cannot_be_made_is_refused(levels, message):
    with pytest.raises(sw.errors.SpecError, match=message):
        spec_of_json(levels)


def spec_of_json(levels: object) -> sw.ArraySpec:
    facts = spec_of(None).model_dump()
    return parse_spec({**facts, "levels": levels})


def test_earlier_releases_are_told_only_of_levels_that_there_are():
    assert "levels" not in spec_of(None).model_dump()
    assert spec_of(3).model_dump()["levels"] == {"count": 3, "method": "mean", "factors": {"y": 2, "x": 2}}
    assert spec_of(0).levels is None


def test_a_window_of_many_axes_ends_where_the_sums_do():
    axes = [*(("t", None), ("a", 8), ("b", 8), ("c", 8)), ("y", 8), ("x", 8)]
    facts = {"dtype": "uint8", "dimensions": [{"name": n, "count": k, "chunk_size": 8} for n, k in axes]}
    with pytest.raises(sw.errors.SpecError, match="expected at most 4096, got 32768"):
        parse_spec({**facts, "levels": {"count": 1, "factors": dict.fromkeys("abcyx", 8)}})
    assert parse_spec({**facts, "levels": {"count": 1, "factors": dict.fromkeys("abcx", 8)}}).level_count == 1


def test_an_axis_is_reduced_by_no_more_than_it_has(tmp_path):
    """So that its element stands for the whole axis, also in what the metadata say of its place and size."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec_of({"count": 2, "factors": {"y": 8, "x": 2}})) as writer:
        fill(writer, range(10))
    assert [zarr.open_array(path / level, mode="r").shape[-2:] for level in "12"] == [(7, 35), (1, 18)]
    (multiscale,) = json.loads((path / "zarr.json").read_text())["attributes"]["ome"]["multiscales"]
    scales = [each["coordinateTransformations"][0]["scale"][-2:] for each in multiscale["datasets"]]
    assert scales == [[0.5, 0.5], [4, 1], [28, 2]]
    assert level_problems(path) == []
