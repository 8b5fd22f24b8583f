"""Legal shards that nobody writes: chunks in any order, gaps, old indexes, headers and trailers, entries that
share bytes, arrays of a smaller shape. Each command takes each of them, or says what it leaves alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.harness.writing import how

import shardwright as sw
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store
from shardwright.shard.index import EMPTY
from shardwright.shard.sealed_shard import SealedShard
from shardwright.shard.shard_sums import SUMS_NAME

from .images import POLITE, read_everywhere, run_here
from .moving_store import fetched
from .stores import FRAMES, frame, spec, task

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
KEY = "c/0/0/0"
HEADER = b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 4
TRAILER = b"PK\5\6 and a comment"

# What a shard is built of: see ``rebuild``. "kept": compaction must leave it alone.
LAYOUTS = {
    "chunks in reverse order": {"order": -1},
    "gaps": {"gap": bytes(777)},
    "old indexes": {"gap": "index"},
    "a header": {"before": HEADER, "kept": True},
    "a trailer": {"behind": TRAILER, "kept": True},
    "tables between chunks": {"gap": b"TREE\1\2\3", "kept": True},
    "two entries of the same bytes": {"shared": "same"},
    "two entries that overlap": {"shared": "half", "codec": None},
    "a smaller shape": {"cropped": (3, 30, 30)},
}


def rebuild(
    array, *, order=1, gap: bytes | str = b"", gaps=None, before=b"", behind=b"", shared="", cropped=None, **_
) -> None:
    """Rewrites the first shard. ``order``: of its chunks, or a step; ``gaps``: before each of them but the
    first, in place of ``gap``. ``shared``: chunk 1 begins where chunk 0 does, or in the middle of it."""
    path = array.path / KEY
    with SealedShard.open(path, array.index) as file:
        entries, data = file.entries.copy(), path.read_bytes()
    old = array.index.encode(entries)
    at_start = array.index_location == "start"
    made = bytearray(bytes(array.index_bytes) if at_start else b"") + before
    live = np.flatnonzero(entries["offset"] != EMPTY)
    live = live[np.argsort(entries["offset"][live])]
    live = live[::order] if isinstance(order, int) else live[np.argsort(order[: len(live)])]
    for number, chunk in enumerate(live):
        between = gap if gaps is None else gaps[number]
        made += (old if between == "index" else between) if number else b""
        offset, nbytes = map(int, entries[chunk].tolist())
        entries["offset"][chunk] = len(made)
        made += data[offset : offset + nbytes]
    if shared:
        first = int(entries["nbytes"][0]) // 2 if shared == "half" else 0
        place, size = int(entries["offset"][1]), int(entries["nbytes"][1])
        made[place : place + size] = bytes(size)
        entries["offset"][1], entries["nbytes"][1] = entries["offset"][0] + first, entries["nbytes"][0]
        (array.path / SUMS_NAME).unlink()  # other values than those that were acquired
    made += behind
    index = array.index.encode(entries)
    if at_start:
        made[: len(index)] = index
    path.write_bytes(bytes(made) + (b"" if at_start else index))
    if cropped:
        document = json.loads((array.path / "zarr.json").read_text())
        (array.path / "zarr.json").write_text(json.dumps({**document, "shape": cropped}))


@pytest.fixture(params=["end", "start"])
def place_of_index(request):
    return request.param


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture
def store(tmp_path, layout, place_of_index) -> Path:
    """A finished store, its first shard rebuilt."""
    path = tmp_path / "a.ome.zarr"
    codec = layout.get("codec", sw.Blosc())
    with sw.create(path, spec(codec, index_location=place_of_index), **how(io="mmap")) as writer:
        for number in range(FRAMES):
            writer.append(frame(number))
    rebuild(parse_array(path / "0"), **layout)
    return path


@pytest.fixture
def values(store) -> np.ndarray:
    """As the peers read them."""
    return read_everywhere(store / "0")


def test_they_hold_what_they_should(store, values, layout):
    frames = np.stack([frame(number) for number in range(FRAMES)])
    expected = frames[tuple(map(slice, values.shape))]
    assert np.array_equal(values, expected) is ("shared" not in layout)


def test_an_open_store_reads_them(store, values):
    np.testing.assert_array_equal(zarr.open_group(sw.open(store), mode="r")["0"][...], values)


def test_inspect_shows_them(store, layout):
    opened = open_store(store)
    (array,) = opened.arrays
    shards = list(inspect_shards(opened, array))
    assert [shard.problems for shard in shards] == [[]] * len(shards)
    assert (sum(shard.chunks_cropped for shard in shards) > 0) is ("cropped" in layout)
    first = next(shard for shard in shards if shard.key == KEY)
    unused = any(name in layout for name in ("gap", "before", "behind"))
    assert (first.gap_bytes > 0) is (unused or layout.get("shared") == "same" or "codec" in layout)


def test_verify_finds_nothing_wrong(store, layout):
    report = verify_store(store)
    assert report.problems == []
    assert any("it was cropped" in warning.what for warning in report.warnings) is ("cropped" in layout)


@pytest.mark.parametrize("recompress", [None, {"cname": "zstd", "clevel": 5}], ids=["copied", "recompressed"])
def test_compaction_packs_them_or_refuses(store, values, layout, recompress):
    recompress = None if "codec" in layout else recompress  # which overlap only without a codec
    before = (store / "0" / KEY).read_bytes()
    array = parse_array(store / "0")
    results = {
        key: run_task(task(array, *shard, recompress=recompress)) for key, shard in list(array.shard_files())
    }
    np.testing.assert_array_equal(read_everywhere(array.path), values)
    failed = {key: result["error"] for key, result in results.items() if not result["ok"]}
    assert list(failed) == ([KEY] if "kept" in layout else [])
    if failed:
        assert "neither to a chunk nor to the index" in failed[KEY]["message"]
        assert (array.path / KEY).read_bytes() == before
        return
    assert {shard.gap_bytes for shard in inspect_shards(open_store(store), array)} == {0}
    assert verify_store(store).problems == []


def test_rechunk_copies_their_values(store, values, tmp_path):
    chosen = RechunkOptions(chunks={"t": 1, "y": 15, "x": 26})
    report = write_new_store(
        plan_new_store(store, chosen), tmp_path / "b.ome.zarr", chosen, run_here, throttle=POLITE
    )
    assert report.ok, report.failures
    np.testing.assert_array_equal(read_everywhere(tmp_path / "b.ome.zarr/0"), values)


def test_a_pyramid_is_made_of_their_values(store, values):
    report = add_levels(store, PyramidOptions(1, "nearest"), run_here, throttle=POLITE)
    assert report.ok, report.failures
    np.testing.assert_array_equal(read_everywhere(store / "1"), values[:, ::2, ::2])


def test_a_move_to_a_bucket_takes_them_along(store, values, layout, bucket_url, tmp_path):
    before = (store / "0" / KEY).read_bytes()
    report = move_store(store, MoveOptions(bucket_url, throttle=POLITE), run_here)
    assert report.ok
    away = fetched(bucket_url, tmp_path)
    np.testing.assert_array_equal(read_everywhere(away / "0"), values)
    kept = [told["key"] for told in report.to_dict()["unpacked"]]
    assert kept == ([f"0/{KEY}"] if "kept" in layout else [])
    if kept:
        assert (away / "0" / KEY).read_bytes() == before


@pytest.mark.parametrize("layout", [fields for fields in LAYOUTS.values() if "cropped" not in fields])
def test_a_live_view_reads_them_among_the_shards_that_are_written(tmp_path, layout, place_of_index):
    path = tmp_path / "a.ome.zarr"
    codec = layout.get("codec", sw.Blosc())
    with sw.create(path, spec(codec, index_location=place_of_index), **how(io="mmap")) as writer:
        for number in range(5):
            writer.append(frame(number))
        writer.flush()
        array = parse_array(path / "0")
        if "shared" in layout and not (array.path / SUMS_NAME).exists():
            (array.path / SUMS_NAME).touch()
        rebuild(array, **layout)
        seen = zarr.open_group(sw.open(path), mode="r")["0"][...]
    np.testing.assert_array_equal(seen[:4], read_everywhere(path / "0")[:4])
    np.testing.assert_array_equal(seen[4], frame(4))


@settings(
    max_examples=25, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_order_with_any_gaps_is_read_and_packed_unless_bytes_are_unknown(store_of, data) -> None:
    array = store_of(spec(index_location=data.draw(st.sampled_from(["end", "start"]))))
    values = read_everywhere(array.path)
    kinds = st.sampled_from([b"", bytes(3), bytes(9000), "index", b"text", bytes(5000) + b"\1"])
    gaps = data.draw(st.lists(kinds, min_size=16, max_size=16))
    rebuild(array, order=data.draw(st.permutations(range(16))), gaps=gaps)
    with SealedShard.open(array.path / KEY, array.index) as file:
        live = int((file.entries["offset"] != EMPTY).sum())
    unknown = any(isinstance(gap, bytes) and any(gap) for gap in gaps[1:live])
    np.testing.assert_array_equal(read_everywhere(array.path), values)
    result = run_task(task(array, 0, 0, 0))
    assert result["ok"] is not unknown
    np.testing.assert_array_equal(read_everywhere(array.path), values)
    assert verify_store(array.path.parent).problems == []
