"""The plan: numbers that can be checked by hand, and each way in which a configuration does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardwright.acquire import limits as limits_module
from shardwright.acquire.limits import RUNTIME_BYTES, SPARE_DESCRIPTORS
from shardwright.array.grid import Grid
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.config import plan as plan_module
from shardwright.config.durability import journal_bytes
from shardwright.config.load import load_config, parse_config
from shardwright.config.plan import StreamPlan, disk_frame_bytes, make_plan, shard_files_per_frame
from shardwright.model.errors import ConfigError

CONFIGS = sorted(
    file
    for file in (Path(__file__).parents[2] / "configs").glob("*.yaml")
    if not file.stem.startswith("prometheus")
)


def rig(streams: str, *, budget: str = "4GiB", root: Path = Path("/tmp")) -> str:
    return (
        f"output: {{root: {root}}}\nworkers: {{threads: 2}}\nmemory: {{budget: "
        f"{budget}}}\nstreams:\n{streams}"
    )


def stream(
    name: str, *, more: str = "", chunk: int = 16, index: str = "end", rate: str = "frame_rate_hz: 100,"
) -> str:
    plane = (
        "{name: y, count: 512, chunk_size: 256, shard_size_chunks: 1}, {name: x, count: 512, "
        "chunk_size: 256, shard_size_chunks: 2}"
    )
    array = (
        f"{{dtype: uint16, index_location: {index}, dimensions: [{{name: t, chunk_size: {chunk}, "
        f"shard_size_chunks: 4}}, {plane}]}}"
    )
    return f"  - {{name: {name}, {rate} {more} array: {array}}}\n"


def test_the_numbers_of_one_stream() -> None:
    plan = make_plan(parse_config(rig(stream("cam0"))))
    (planned,) = plan.streams
    limits = planned.limits
    assert limits.frame_bytes == 512 * 512 * 2
    assert limits.slab_bytes == 16 * limits.frame_bytes
    assert planned.data_rate_bytes_per_s == 100 * limits.frame_bytes
    assert planned.raw_bytes_per_hour == 3600 * 100 * limits.frame_bytes
    # 64 frames a shard row, two files (upper and lower half of the frame) a shard row
    assert planned.shard_files_per_hour == 100 * 3600 / 64 * 2
    assert planned.ring_seconds == limits.ring_frames / 100
    assert planned.warnings == ()


def test_a_colour_camera_brings_all_channels_at_its_frame_rate() -> None:
    grey = make_plan(parse_config(rig(stream("cam0")))).streams[0]
    colours = stream("cam0").replace(
        "{name: y,", "{name: c, count: 3, chunk_size: 1, shard_size_chunks: 3}, {name: y,", 1
    )
    planned = make_plan(parse_config(rig(colours.replace("dtype:", "interleaved: true, dtype:")))).streams[0]
    assert planned.frame_bytes == 3 * grey.frame_bytes == 3 * 512 * 512 * 2
    assert planned.data_rate_bytes_per_s == 3 * grey.data_rate_bytes_per_s
    assert planned.disk_rate_bytes_per_s == 3 * grey.disk_rate_bytes_per_s
    assert planned.shard_files_per_hour == grey.shard_files_per_hour, "the channels share their shards"
    assert planned.ring_seconds == planned.limits.ring_frames / 300


def test_columns_that_are_stored_before_rows_are_warned_of() -> None:
    transposed = stream("cam0").replace("{name: y,", "{name: Y,").replace("{name: x,", "{name: y,")
    (planned,) = make_plan(parse_config(rig(transposed.replace("{name: Y,", "{name: x,")))).streams
    assert any("columns are stored before rows" in warning for warning in planned.warnings)


def test_streams_add_up() -> None:
    one = make_plan(parse_config(rig(stream("a"))))
    two = make_plan(parse_config(rig(stream("a") + stream("b"))))
    assert one.memory_peak_bytes == one.streams[0].limits.memory_bytes
    assert two.memory_peak_bytes == 2 * one.memory_peak_bytes - RUNTIME_BYTES  # one process
    assert two.disk_reserved_bytes == 2 * one.disk_reserved_bytes
    assert make_plan(parse_config("output: {root: /tmp}")).memory_peak_bytes == RUNTIME_BYTES


def test_a_given_frame_rate_stands_in_for_the_configured_one() -> None:
    loaded = parse_config(rig(stream("a") + stream("b", rate="")))
    assert [s.frame_rate_hz for s in make_plan(loaded).streams] == [100, None]
    assert make_plan(loaded).streams[1].shard_files_per_hour is None
    assert [s.frame_rate_hz for s in make_plan(loaded, frame_rate_hz=7).streams] == [7, 7]


@given(
    counts=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    chunks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    shards=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_files_per_frame_against_counting(
    counts: tuple[int, int], chunks: tuple[int, int], shards: tuple[int, int]
) -> None:
    """Each frame's shard coordinate, counted one by one, for a limited array and for an unlimited one of
    whole shards."""
    for unlimited in (False, True):
        length = chunks[0] * shards[0] * 3 if unlimited else counts[0]
        frame_axes = [
            Dimension(
                name="t",
                count=None if unlimited else length,
                chunk_size=chunks[0],
                shard_size_chunks=shards[0],
            ),
            Dimension(name="z", count=counts[1], chunk_size=chunks[1], shard_size_chunks=shards[1]),
        ]
        plane = [
            Dimension(name="y", count=5, chunk_size=2),
            Dimension(name="x", count=4, chunk_size=2, shard_size_chunks=2),
        ]
        grid = Grid.of(ArraySpec(dtype="uint8", dimensions=tuple(frame_axes + plane)))
        frames = [(t, z) for t in range(length) for z in range(counts[1])]
        shard_rows = {(t // (chunks[0] * shards[0]), z // (chunks[1] * shards[1])) for t, z in frames}
        assert shard_files_per_frame(grid) == pytest.approx(3 * len(shard_rows) / len(frames))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        make_plan(parse_config(text, file="rig.yaml"))
    return str(caught.value)


def test_a_budget_that_one_stream_exceeds() -> None:
    assert refusal(rig(stream("cam0"), budget="1MiB")).startswith(
        "rig.yaml:3: memory.budget: too small for stream cam0: the ring of "
    )


def test_a_budget_that_all_streams_together_exceed() -> None:
    fits_one = make_plan(parse_config(rig(stream("a")))).memory_peak_bytes
    assert make_plan(parse_config(rig(stream("a"), budget=f"{fits_one}B"))).memory_peak_bytes == fits_one
    message = refusal(rig(stream("a") + stream("b"), budget=f"{fits_one}B"))
    assert message.startswith(
        "rig.yaml:3: memory.budget: too small for the daemon and all streams at the "
        "same time; expected at least "
    )


def test_a_ring_that_is_too_short() -> None:
    message = refusal(rig(stream("a") + stream("b", more="ring_frames: 16,")))
    assert message.startswith(
        "rig.yaml:6: streams[1].ring_frames: too small for this chunking; expected at least "
    )
    assert "got 16" in message


def test_more_files_than_this_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "most_descriptors", lambda: SPARE_DESCRIPTORS + 24)
    message = refusal(rig(stream("a")))
    assert message.startswith("rig.yaml:5: streams[0].array: 2 shard rows of 2 files are open at once, more ")
    assert "raise the limit of open files" in message


def test_more_memory_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "machine_memory_bytes", lambda: 2**20)
    assert (
        "rig.yaml:3: memory.budget: the streams need more memory than this machine has; expected at most "
        "1.0 MiB" in refusal(rig(stream("a")))
    )


def test_page_cache_beyond_the_machine_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = make_plan(parse_config(rig(stream("a"))))
    monkeypatch.setattr(plan_module, "machine_memory_bytes", lambda: needed.memory_peak_bytes + 1)
    (warning,) = make_plan(parse_config(rig(stream("a")))).warnings
    assert "page cache" in warning


def test_a_disk_without_room_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After a crash the stores that are resumed hold what is not free, and need no more of it."""
    monkeypatch.setattr(plan_module, "free_bytes", lambda _folder: 1)
    (warning,) = make_plan(parse_config(rig(stream("a"), root=tmp_path))).warnings
    assert warning.startswith("output.root has no room for the preallocated shards and the files that crash")
    assert "are needed, 1 B are free;" in warning
    assert "mounted" not in warning
    (warning,) = make_plan(parse_config(rig(stream("a"), root=tmp_path / "not" / "mounted"))).warnings
    missing = f"{tmp_path}/not/mounted does not exist (is its disk mounted?)"
    assert f"1 B are free in {tmp_path}, as {missing};" in warning


def test_a_missing_root_has_a_plan_of_the_disk_above_it(tmp_path: Path) -> None:
    """That ``serve`` refuses it is no business of the plan."""
    plan = make_plan(parse_config(rig(stream("a"), root=tmp_path / "not" / "mounted")))
    assert (plan.warnings, plan.disk_free_bytes > 0) == ((), True)


def test_what_streams_take_together() -> None:
    plan = make_plan(parse_config(rig(stream("a") + stream("b"))))
    one, two = plan.streams
    assert plan.ring_bytes == one.limits.ring_bytes + two.limits.ring_bytes
    assert plan.data_rate_bytes_per_s == 2 * 100 * 512 * 512 * 2
    assert plan.shard_files_per_hour == 2 * 100 * 3600 / 64 * 2
    unknown = make_plan(parse_config(rig(stream("a") + stream("b", rate=""))))
    assert (unknown.data_rate_bytes_per_s, unknown.shard_files_per_hour) == (None, None)
    without = make_plan(parse_config("output: {root: /tmp}"))
    assert (without.data_rate_bytes_per_s, without.ring_bytes) == (None, 0)


def image(side: int, *, chunk: int = 1, more: str = "") -> str:
    plane = ", ".join(f"{{name: {axis}, count: {side}, chunk_size: {side}}}" for axis in "yx")
    time = f"{{name: t, chunk_size: {chunk}, shard_size_chunks: 8}}"
    return f"{{dtype: uint16, {more} dimensions: [{time}, {plane}]}}"


def cameras(one: str, other: str, more: str = "") -> StreamPlan:
    text = (
        f"  - {{name: a, frame_rate_hz: 100, {more} array: {one}, images: {{one: null, other: {other}}}}}\n"
    )
    (planned,) = make_plan(parse_config(rig(text))).streams
    return planned


def test_levels_take_disk_beside_the_frames() -> None:
    (planned,) = make_plan(
        parse_config(rig(f"  - {{name: a, frame_rate_hz: 100, array: {image(512, more='levels: 2,')}}}\n"))
    ).streams
    assert planned.data_rate_bytes_per_s == 100 * 512 * 512 * 2
    assert planned.disk_rate_bytes_per_s == 100 * (512**2 + 256**2 + 128**2) * 2
    plane = "{name: y, count: 31, chunk_size: 31}, {name: x, count: 64, chunk_size: 64}"
    stack = f"[{{name: t, chunk_size: 1}}, {{name: z, count: 6, chunk_size: 6}}, {plane}]"
    spec = ArraySpec.model_validate(
        {
            "dtype": "uint8",
            "levels": {"count": 2, "factors": {"z": 2, "y": 2, "x": 2}},
            "dimensions": yaml.safe_load(stack),
        }
    )
    volumes = 6 * 31 * 64 + 3 * 16 * 32 + 2 * 8 * 16
    assert disk_frame_bytes(Grid.of(spec)) == pytest.approx(volumes / 6)


def test_an_image_with_levels_may_take_more_disk_than_one_of_larger_frames() -> None:
    planned = cameras(image(512), image(500, more="levels: 2,"))
    assert planned.data_rate_bytes_per_s == 100 * 512 * 512 * 2
    assert planned.disk_rate_bytes_per_s == 100 * (500**2 + 250**2 + 125**2) * 2


def test_the_plan_counts_the_disk_of_all_streams_with_levels() -> None:
    plan = make_plan(
        parse_config(
            rig(stream("a") + f"  - {{name: b, frame_rate_hz: 10, array: {image(64, more='levels: 1,')}}}\n")
        )
    )
    assert plan.disk_rate_bytes_per_s == 100 * 512 * 512 * 2 + 10 * (64**2 + 32**2) * 2
    assert make_plan(parse_config(rig(stream("a", rate="")))).disk_rate_bytes_per_s is None


def test_the_image_of_smaller_frames_counts_too() -> None:
    """For warnings, for codecs that become faster, and for the journals."""
    planned = cameras(image(512, more="codec: none,"), image(64, chunk=64, more="index_location: start,"))
    assert [warning for warning in planned.warnings if "index_location" in warning]
    assert planned.safety.journal_bytes == journal_bytes(
        planned.acquisition.arrays[1], planned.acquisition.grids.grids[1]
    )
    assert planned.safety.journal_bytes > 64 * 8 * 128, "the records of 8 slabs of 64 frames"
    degrade = cameras(image(512, more="codec: none,"), image(64), "overload: degrade,")
    assert (degrade.may_degrade, degrade.warnings) == (True, ())
    stays = cameras(image(512, more="codec: none,"), image(64, more="codec: none,"), "overload: degrade,")
    assert not stays.may_degrade
    assert [warning for warning in stays.warnings if "compresses nothing" in warning]


def test_layouts_that_some_readers_refuse_are_named() -> None:
    (planned,) = make_plan(parse_config(rig(stream("a", index="start")))).streams
    assert any("index_location" in warning for warning in planned.warnings)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_shipped_configs_have_a_plan_without_layout_warnings(file: Path) -> None:
    plan = make_plan(load_config(file))
    for planned in plan.streams:
        assert planned.warnings == ()
        assert planned.shard_files_per_hour is not None
        assert planned.ring_seconds is not None
        assert planned.ring_seconds > 0.25, "a rig's disk pauses now and then"
