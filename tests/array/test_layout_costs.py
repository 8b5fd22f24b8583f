"""Advice on layouts that are slow to read: the figure, where it is said, and that our defaults need none."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.layout_costs import (
    LEAST_INDEX_BYTES,
    MOST_CHUNK_BYTES,
    MOST_INDEX_BYTES,
    LayoutAxis,
    layout_costs,
)
from shardwright.array.ome import acquisition_warnings, layout_warnings
from shardwright.cli.app import main
from shardwright.model.errors import LayoutWarning


def costs(*axes: tuple, itemsize: int = 2, time: str | None = "t") -> dict[str, float]:
    """Axes as (name, count, chunk size, chunks per shard)."""
    found = [LayoutAxis(*axis) for axis in axes]
    sharded = found[0].shard_chunks is not None
    index_bytes = 16 * int(np.prod([axis.shard_chunks or 1 for axis in found])) + 4 if sharded else 0
    return {cost.kind: cost.figure for cost in layout_costs(found, itemsize, index_bytes, time)}


YX = (("y", 2048, 256, 8), ("x", 2048, 256, 8))


def test_each_figure() -> None:
    assert costs(("t", None, 16, 4), *YX) == {}
    assert costs(("t", None, 16, 4), ("y", 512, 8, 8), ("x", 512, 32, 8)) == {"small_chunks": 8192}
    large = (("t", None, 16, 4), ("y", 2048, 2048, 1), ("x", 2048, 2048, 1))
    assert costs(*large) == {"large_chunks": 128 << 20}
    index = 16 * 1024 * 64 + 4  # of 65536 chunks, a MiB
    assert costs(("t", None, 16, 1024), *YX) == {"large_index": pytest.approx(index / (2 << 20))}
    small = (("t", None, 4, 256), ("y", 512, 64, 8), ("x", 512, 64, 8))
    assert costs(*small) == {"large_index": pytest.approx((16 * 256 * 64 + 4) / 32768)}
    assert costs(("t", 5000, 1, 64), *YX) == {"line_through_time": 5000 + 79}
    assert costs(("t", 5000, 1, None), ("y", 2048, 512, None), ("x", 2048, 512, None)) == {
        "line_through_time": 5000
    }


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ((("t", 500, 1, 64), *YX), "few steps"),
        ((("t", 5000, 4, 64), *YX), "chunks of several steps"),
        ((("t", 5000, 1, 1), ("z", 8, 8, 1), *YX), "a step is a stack"),
        ((("t", 5000, 1, 1), ("y", 4096, 512, 8), ("x", 4096, 512, 8)), "16 steps are too much to hold"),
        ((("t", None, 1, 64), *YX), "the number of steps is not known"),
        ((("t", None, 1, 1), ("y", 64, 64, 1), ("x", 64, 64, 1)), "small frames of an unknown number"),
    ],
)
def test_a_line_through_time_is_not_told_where_it_is_usual(axes, why: str) -> None:
    assert costs(*axes) == {}, why


def test_a_file_for_each_step_is_told_of_an_axis_without_a_count() -> None:
    assert costs(("t", None, 1, 1), *YX) == {"line_through_time": 2000}
    assert costs(("t", None, 1, 1), *YX, time=None) == {}


def test_what_is_to_be_set_instead_needs_no_advice(spec_of) -> None:
    spec = spec_of(("t", None, 4, 256), ("y", 512, 64, 8), ("x", 512, 64, 8))
    (warning,) = layout_warnings(spec)
    assert "a shard of 16384 chunks has an index of 0.3 MiB, 8 bytes for each byte of a chunk" in warning
    assert "set at most 8191 chunks in a shard" in warning
    assert "chunk_size 16, 256, 256 with shard_size_chunks 64, 2, 2" in warning
    assert layout_warnings(spec_of(("t", None, 4, 127), ("y", 512, 64, 8), ("x", 512, 64, 8))) == []
    assert layout_warnings(spec_of(("t", None, 16, 64), ("y", 512, 256, 2), ("x", 512, 256, 2))) == []


CAMERAS = [(2048, 2048), (2304, 2304), (2160, 2560), (3200, 3200), (5056, 2960), (9568, 6380), (1200, 1920)]
CAMERAS += [(512, 512), (1024, 1024), (128, 2048), (128, 128), (64, 64), (80, 80), (32, 32)]


@given(
    frame=st.sampled_from(CAMERAS),
    dtype=st.sampled_from(["uint8", "uint16", "float32"]),
    axes=st.sampled_from(["t", "z", "tc", "tz", "tcz", "tzc", "ct"]),
    count=st.sampled_from([None, 100, 5000, 100_000]),
    planes=st.sampled_from([1, 2, 50, 300]),
)
def test_our_defaults_need_no_advice(frame, dtype, axes, count, planes) -> None:
    shape = [count if name == axes[0] else min(planes, 4) if name == "c" else planes for name in axes]
    spec = sw.default_layout((*shape, *frame), dtype, axes + "yx")
    costly = ("chunk_size", "shard_size_chunks")
    assert [text for text in layout_warnings(spec) if text.startswith(costly)] == []


def test_the_limits_fit_each_other() -> None:
    assert LEAST_INDEX_BYTES < MOST_INDEX_BYTES < MOST_CHUNK_BYTES


def test_other_images_between_the_steps_make_shallow_chunks_usual(spec_of) -> None:
    spec = spec_of(("t", 5000, 1, 4), *YX)
    assert (
        "5000 steps of t is 5000 chunks in 1250 shards, which takes 6250 requests" in layout_warnings(spec)[0]
    )
    acquisition = parse_acquisition({"array": spec, "images": ["a", "b"], "order": ["t", "p"]})
    assert acquisition_warnings(acquisition) == []


@pytest.fixture
def poor_store(tmp_path, spec_of):
    path = tmp_path / "a.ome.zarr"
    spec = spec_of(("t", 5000, 1, 16), ("y", 128, 32, 4), ("x", 128, 32, 4))
    with (
        pytest.warns(LayoutWarning) as told,
        sw.create(path, spec) as writer,
    ):
        writer.append(np.ones((128, 128), np.uint16), index=(4999,))
    assert [str(warning.message).split(":")[0] for warning in told] == ["chunk_size", "chunk_size"]
    return path


def test_inspect_tells_people_and_programs(poor_store, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", str(poor_store)])
    text = capsys.readouterr().out
    assert "slow to read: chunk_size: an inner chunk has only 2048 bytes" in text
    assert "slow to read: chunk_size: one pixel through 5000 steps of t is 5000 chunks in 313 shards" in text
    with pytest.raises(SystemExit):
        main(["inspect", "--json", str(poor_store)])
    (array,) = json.loads(capsys.readouterr().out)["arrays"]
    assert {cost["kind"]: cost["figure"] for cost in array["layout_costs"]} == {
        "small_chunks": 2048,
        "line_through_time": 5313,
    }


def test_check_tells_them(tmp_path, capsys) -> None:
    config = tmp_path / "rig.yaml"
    config.write_text(f"""
output: {{ root: {tmp_path} }}
ingest: {{ endpoints: ["ipc://{tmp_path}/a.sock"] }}
streams:
  - name: cam
    frame_rate_hz: 10
    array:
      dtype: uint16
      dimensions:
        - {{ name: t, chunk_size: 1, shard_size_chunks: 1 }}
        - {{ name: y, count: 256, chunk_size: 128, shard_size_chunks: 2 }}
        - {{ name: x, count: 256, chunk_size: 128, shard_size_chunks: 2 }}
""")
    with pytest.raises(SystemExit):
        main(["check", "--json", str(config)])
    assert "one pixel through 1000 steps of t is 1000 chunks in 1000 shards" in capsys.readouterr().out
