"""Denser chunks of the same values, in a codec that the array's metadata covers already."""

import numpy as np
import pytest
from tests.properties.readers import READERS

import shardwright as sw
from shardwright.read.inspect_shards import inspect_shard
from shardwright.read.store import parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs import recode
from shardwright.rework.runtime.tasks import run_task

from .stores import leftovers, shard_files, spec, task

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")


def wish(cname, clevel=None, shuffle=None):
    return {"cname": cname, "clevel": clevel, "shuffle": shuffle}


CASES = [
    (sw.Blosc(cname="lz4", clevel=1), wish("zstd", 5), "blosc zstd shuffle"),
    (sw.Blosc(cname="lz4", clevel=1), wish("zlib", 9, "bitshuffle"), "blosc zlib bitshuffle"),
    (sw.Blosc(clevel=0), wish("lz4hc"), "blosc lz4 shuffle"),
    (sw.Zstd(level=-7), wish("zstd", 15), "zstd"),
    (sw.Gzip(level=0), wish("gzip", 9), "gzip"),
]


@pytest.mark.parametrize(("codec", "recompress", "form"), CASES, ids=lambda case: str(case)[:40])
@pytest.mark.parametrize(("index_location", "checksum"), [("end", False), ("start", True)])
def test_the_values_stay_and_the_file_gets_smaller(
    store_of, codec, recompress, form, index_location, checksum
):
    array = store_of(spec(codec, index_location=index_location, chunk_checksum=checksum))
    values = [read(array.path) for read in READERS.values()]
    before = inspect_shard(array, (0, 0, 0))
    result = run_task(task(array, 0, 0, 0, order="morton", recompress=recompress, threads=2))
    after = inspect_shard(array, (0, 0, 0))
    assert (result["ok"], result["skipped"], result["chunks_recoded"]) == (True, False, before.chunks_present)
    assert result["gain_bytes"] == before.file_bytes - after.file_bytes > before.gap_bytes
    assert (after.gap_bytes, after.problems, after.forms) == (0, [], {form: before.chunks_present})
    assert after.file_bytes == after.encoded_bytes + after.index_bytes == result["bytes_written"]
    assert all(
        np.array_equal(old, read(array.path)) for old, read in zip(values, READERS.values(), strict=True)
    )
    assert verify_store(array.path).ok


def test_chunks_that_would_not_get_smaller_stay_as_they_are(store_of):
    array = store_of(spec(sw.Blosc(cname="zstd", clevel=9)))
    assert run_task(task(array, 0, 0, 0))["ok"]
    before = shard_files(array)
    result = run_task(task(array, 0, 0, 0, recompress=wish("lz4", 1)))
    assert (result["ok"], result["skipped"], result["chunks_recoded"], result["gain_bytes"]) == (
        True,
        True,
        0,
        0,
    )
    assert shard_files(array) == before, "packed already and nothing gained: not written again"
    assert not leftovers(array.path)
    other_order = run_task(task(array, 0, 0, 0, order="column_major", recompress=wish("lz4", 1)))
    assert (other_order["skipped"], other_order["chunks_recoded"]) == (False, 0)


def test_batches_are_no_larger_than_one_chunk_where_they_must(store_of, monkeypatch):
    monkeypatch.setattr(recode, "BATCH_BYTES", 1)
    array = store_of()
    expected = READERS["zarr-python"](array.path)
    assert run_task(task(array, 0, 0, 0, recompress=wish("zstd", 3)))["ok"]
    assert np.array_equal(READERS["tensorstore"](array.path), expected)


def test_a_chunk_that_does_not_decode_leaves_the_shard_and_is_named(store_of):
    array = store_of(spec(sw.Zstd()))
    report = inspect_shard(array, (0, 0, 0), chunks=True).chunk_reports[3]
    path = array.path / "c/0/0/0"
    data = bytearray(path.read_bytes())
    data[report.offset + report.nbytes // 2 : report.offset + report.nbytes] = bytes(
        report.nbytes - report.nbytes // 2
    )
    path.write_bytes(data)
    result = run_task(task(array, 0, 0, 0, recompress=wish("zstd", 9)))
    assert result["error"]["message"].startswith(
        f"chunk {'/'.join(map(str, report.coordinates))} of {path}: zstd frame"
    )
    assert path.read_bytes() == data
    assert not leftovers(array.path)


def test_a_new_chunk_of_other_values_is_never_taken(store_of, monkeypatch):
    """The compressor is trusted with nothing: here it is made to lie."""
    array = store_of()
    before = shard_files(array)
    encode = recode.encode_whole

    def lie(chunk, *others):
        other = chunk.copy()
        other[7] ^= 1
        return encode(other, *others)

    monkeypatch.setattr(recode, "encode_whole", lie)
    result = run_task(task(array, 0, 0, 0, recompress=wish("zstd", 9)))
    assert "does not decode to the same values" in result["error"]["message"]
    assert shard_files(array) == before


def test_a_flipped_bit_in_the_new_file_is_caught(store_of, at_point):
    array = store_of()
    before = shard_files(array)

    def flip():
        (working,) = leftovers(array.path)
        data = bytearray(working.read_bytes())
        data[100] ^= 1
        working.write_bytes(data)

    at_point("compact.before_read_back", flip)
    assert (
        "does not read back" in run_task(task(array, 0, 0, 0, recompress=wish("zstd", 9)))["error"]["message"]
    )
    assert shard_files(array) == before


@pytest.mark.parametrize(
    ("codec", "recompress", "says"),
    [
        (None, wish("zstd"), "nothing: it has no compressor"),
        (sw.Zstd(), wish("lz4"), "zstd of any level"),
        (sw.Blosc(), wish("gzip"), "lz4, lz4hc, zlib or zstd, inside blosc"),
        (sw.Blosc(), wish("zstd", 77), "cannot recompress with zstd:77"),
        (sw.Blosc(), wish("zstd", 3, "delta"), "cannot recompress with zstd:3"),
    ],
)
def test_what_the_metadata_does_not_cover_is_refused(store_of, codec, recompress, says):
    array = store_of(spec(codec))
    before = shard_files(array)
    error = run_task(task(array, 0, 0, 0, recompress=recompress))["error"]
    assert error["code"] == "config"
    assert says in " ".join(error.values())
    assert shard_files(array) == before


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float64"])
def test_element_sizes(tmp_path, dtype):
    axes = (
        sw.Dimension(name="t", count=4, chunk_size=2),
        sw.Dimension(name="y", count=300, chunk_size=300),
        sw.Dimension(name="x", count=257, chunk_size=256),
    )
    frames = (np.random.default_rng(1).integers(0, 2, (4, 300, 257))).astype(dtype)
    with sw.create(tmp_path / "a.zarr", sw.ArraySpec(dtype=dtype, dimensions=axes)) as writer:
        for frame in frames:
            writer.append(frame)
    array = parse_array(tmp_path / "a.zarr" / "0")
    for _, shard in array.shard_files():
        assert run_task(task(array, *shard, recompress=wish("zstd", 5, "bitshuffle")))["ok"]
    assert all(np.array_equal(read(array.path), frames) for read in READERS.values())
