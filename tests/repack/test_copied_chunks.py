"""The same chunks in other shards are copied as they are encoded: no codec is called, every reader reads the
same values, and what is damaged, or not the shard on record, is not copied."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.array.spec import Zstd
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs import new_shard
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store

from .images import POLITE, damage_a_chunk, die_at_every_point, read_everywhere, run_here, write_image


@pytest.fixture
def no_codec(monkeypatch) -> None:
    close_codecs(monkeypatch)


def close_codecs(monkeypatch) -> None:
    """Every way to values and back is closed to jobs."""

    def called(*_: object, **__: object) -> None:
        raise AssertionError("a codec was called")

    monkeypatch.setattr(new_shard, "chunk_encoder", called)
    monkeypatch.setattr("shardwright.rework.region_reader.RegionReader.read", called)


def merge(store, new, shards=None, **options):
    chosen = RechunkOptions(chunks={}, shards={"z": 8} if shards is None else shards, **options)
    return write_new_store(plan_new_store(store, chosen), new, chosen, run_here, throttle=POLITE)


def encoded_chunks(array) -> dict[tuple[int, ...], bytes]:
    """The bytes of every chunk that lies in the shape, by its coordinates."""
    found = {}
    for _, shard in array.shard_files():
        inside = array.chunks_in_shape(shard)
        with array.open_shard(shard) as sealed:
            for chunk in sealed.index.live.tolist():
                offset, nbytes = (int(sealed.entries[name][chunk]) for name in ("offset", "nbytes"))
                if inside[chunk]:
                    found[array.chunk_coordinates(shard, chunk)] = bytes(sealed.file.read(offset, nbytes))
    return found


SOURCES = {
    "blosc": {},
    "checksums": {"chunk_checksum": True, "codec": Zstd(level=1)},
    "uncompressed": {"codec": None, "index_location": "start"},
    "without shards": {"shard_chunks": None},
    "columns first": {"storage_order": ("z", "x", "y")},
}


@pytest.mark.usefixtures("no_codec")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "shards", [{"z": 8}, {"z": 6, "y": 24}, {"z": 1, "y": 8, "x": 16}, {"z": 32, "x": 64}]
)
def test_chunks_are_copied_into_longer_shorter_and_partial_shards(tmp_path, source, shards) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old, **SOURCES[source])
    report = merge(old, new, shards)
    assert report.ok
    assert report.chunks > 0
    before, after = parse_array(old / "0"), parse_array(new / "0")
    assert (before.shard_shape, before.is_sharded) != (after.shard_shape, after.is_sharded)
    assert encoded_chunks(before) == encoded_chunks(after)
    np.testing.assert_array_equal(read_everywhere(new / "0"), read_everywhere(old / "0"))
    np.testing.assert_array_equal(sw.open_array(new)[...], sw.open_array(old)[...])
    assert verify_store(new).problems == []
    assert verify_store(new).shards_recorded == verify_store(new).shards


def test_all_levels_and_chunks_longer_than_their_level_are_copied(tmp_path, monkeypatch) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old)
    add_levels(old, PyramidOptions(3), run_here, throttle=POLITE)
    close_codecs(monkeypatch)
    report = merge(old, new)
    assert report.made == ["0", "1", "2", "3"]
    for name in report.made:
        np.testing.assert_array_equal(read_everywhere(new / name), read_everywhere(old / name))
    assert verify_store(new).problems == []


@pytest.mark.usefixtures("no_codec")
def test_chunks_that_zarr_python_wrote_with_codecs_of_its_own(tmp_path) -> None:
    values = np.random.default_rng(1).integers(0, 99, (9, 10, 12), np.int32)
    old, new = tmp_path / "a.zarr", tmp_path / "b.zarr"
    array = zarr.create_array(
        old,
        shape=values.shape,
        dtype="i4",
        chunks=(2, 5, 4),
        shards=(2, 10, 12),
        filters=zarr.codecs.TransposeCodec(order=(2, 0, 1)),
    )
    array[...] = values
    array.resize((7, 10, 12))
    report = merge(old, new, {"dim_0": 4})
    assert report.chunks == 4 * 2 * 3
    np.testing.assert_array_equal(read_everywhere(new), values[:7])


def test_other_chunks_codecs_and_levels_are_made_of_values(tmp_path) -> None:
    old = tmp_path / "a.ome.zarr"
    values = write_image(old)
    for number, options in enumerate(({"codec": None}, {"pyramid": PyramidOptions(1)})):
        new = tmp_path / f"{number}.ome.zarr"
        assert merge(old, new, **options).ok
        np.testing.assert_array_equal(read_everywhere(new / "0"), values)


@pytest.mark.parametrize("damage", ["header", "bit", "checksum"])
def test_what_is_damaged_is_not_copied(tmp_path, damage) -> None:
    """A flipped bit that still decodes is found by the record."""
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old, codec=None if damage == "bit" else sw.Blosc(), chunk_checksum=damage == "checksum")
    shard = old / "0" / "c" / "0" / "0" / "0"
    damage_a_chunk(shard)
    report = merge(old, new)
    assert [failure["error"]["code"] for failure in report.failures] == ["shard_format"]
    assert not new.exists()
    damage_a_chunk(shard)  # healed
    assert merge(old, new).ok
    np.testing.assert_array_equal(read_everywhere(new / "0"), read_everywhere(old / "0"))


def test_killed_at_every_storage_call_the_same_job_ends_it(tmp_path) -> None:
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    values = write_image(old, shape=(6, 16, 32), shard_chunks=(2, 2, 2))
    for _ in die_at_every_point(lambda: new.exists() or merge(old, new, {"z": 4}), step=3):
        if new.exists():
            np.testing.assert_array_equal(read_everywhere(new / "0"), values)
    assert open_store(new).arrays[0].shard_shape == (4, 16, 32)
    assert verify_store(new).problems == []
