"""``sw.estimate``: the numbers that ``check`` prints for a stream, and that a store then has."""

from __future__ import annotations

import json

import numpy as np
import pytest

import shardwright as sw
from shardwright.config.load import parse_config
from shardwright.config.plan import make_plan
from shardwright.model.errors import BudgetError, SpecError

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
FORMS = {
    "one": {"shape": (20, 32, 32), "chunks": {"t": 2}, "shards": {"t": 4}},
    "two shards across": {"shape": (20, 32, 32), "chunks": {"t": 2, "y": 16}, "shards": {"t": 4, "y": 16}},
    "no shards": {"shape": (6, 2, 32, 32), "chunks": {"t": 1}, "shards": False},
    "levels": {"shape": (8, 64, 64), "chunks": {"t": 2}, "shards": {"t": 4}, "levels": 1},
}


def spec_of(form: str) -> sw.ArraySpec:
    facts = dict(FORMS[form])
    return sw.default_layout(facts.pop("shape"), "uint16", codec="none", **facts)


@pytest.mark.parametrize("form", FORMS)
def test_a_store_has_as_many_files_and_bytes(tmp_path, form):
    spec = spec_of(form)
    found = sw.estimate(spec)
    with sw.create(tmp_path / "a.ome.zarr", spec, threads=2) as writer:
        for number in range(found.frames):
            writer.append(np.full(spec.frame_shape, number + 1, np.uint16))
    assert writer.receipt.frames_stored == found.frames
    assert writer.receipt.shards == found.files == round(found.files_per_frame * found.frames)
    assert found.disk_bytes == round(found.disk_frame_bytes * found.frames)
    assert found.disk_bytes <= writer.receipt.bytes_stored <= 1.1 * found.disk_bytes


@pytest.mark.parametrize("live", ["none", "append"])
def test_it_is_what_check_says_of_a_stream(tmp_path, live):
    spec = spec_of("levels")
    array = json.dumps(spec.model_dump(mode="json"))
    config = parse_config(
        f"output: {{root: {tmp_path}, live: {live}}}\nworkers: {{threads: 2}}\n"
        f"streams: [{{name: s, array: {array}}}]\n",
    )
    plan = make_plan(config)
    (stream,) = plan.streams
    found = sw.estimate(
        spec, sw.WriteSettings(live=live, ballast_bytes=config.config.output.ballast), threads=2
    )
    assert found.disk_reserved_bytes == stream.disk_reserved_bytes
    assert found.memory_bytes == plan.memory_peak_bytes == stream.limits.memory_bytes
    assert (found.files_per_frame, found.disk_frame_bytes) == (
        stream.shard_files_per_frame,
        stream.disk_frame_bytes,
    )


def test_several_images_and_an_axis_without_a_count():
    spec = sw.AcquisitionSpec(array=spec_of("one"), images=("left", "right"))
    alone, both = sw.estimate(spec_of("one")), sw.estimate(spec)
    assert (both.frames, both.files, both.disk_bytes) == (
        2 * alone.frames,
        2 * alone.files,
        2 * alone.disk_bytes,
    )
    endless = sw.estimate(sw.default_layout((None, 32, 32), "uint16", chunks={"t": 2}, shards={"t": 4}))
    assert (endless.frames, endless.files, endless.disk_bytes) == (None, None, None)
    assert endless.files_per_frame == 0.25


def test_it_reads_as_text_and_as_json():
    found = sw.estimate(spec_of("one"))
    assert "memory" in repr(found)
    assert json.loads(json.dumps(found.to_dict()))["files"] == found.files == 5


def test_what_create_refuses_is_refused(tmp_path):
    with pytest.raises(BudgetError):
        sw.estimate(spec_of("one"), memory_bytes=1 << 20)
    with pytest.raises(SpecError):
        sw.estimate({"dtype": "uint16"})
    at_end = sw.ArraySpec(**{**spec_of("one").model_dump(), "index_location": "end"})
    with pytest.raises(SpecError, match="index"):
        sw.estimate(at_end, sw.WriteSettings(live="index"))
    assert not list(tmp_path.iterdir())
