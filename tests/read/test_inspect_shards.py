"""The inspector's numbers, against shards whose every byte is known."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.read.inspect_shards import Totals, inspect_shard, inspect_shards
from shardwright.read.store import open_store

from .stores import COMPRESSORS, EMPTY, WRITERS, Layout, ShardBytes, write_with_zarr_python

if TYPE_CHECKING:
    from pathlib import Path

ONE_SHARD = {"shape": (4, 8, 4), "shards": (4, 8, 4), "chunks": (2, 4, 4)}


def inspect_only_shard(path: Path):
    (array,) = open_store(path).arrays
    return inspect_shard(array, (0, 0, 0), chunks=True)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("location", ["end", "start"])
def test_numbers_of_packed_shards(tmp_path: Path, writer: str, compressor: str | None, location: str) -> None:
    layout = Layout(compressor, index_location=location)
    WRITERS[writer](tmp_path / "a", layout)
    store = open_store(tmp_path / "a")
    totals, keys = Totals(), []
    for shard in inspect_shards(store, store.arrays[0]):
        assert shard.problems == []
        assert (shard.gaps, shard.gap_bytes, shard.largest_gap_bytes) == (0, 0, 0)
        assert shard.index_checksum_ok
        assert shard.index_bytes == 16 * 4 + 4
        assert shard.file_bytes == shard.encoded_bytes + shard.index_bytes
        assert shard.index_offset == (0 if location == "start" else shard.encoded_bytes)
        assert shard.chunks_empty == 0
        assert sum(shard.forms.values()) == shard.chunks_present
        keys.append(shard.key)
        totals.add(shard)
    assert keys == ["c/0/0/0", "c/0/1/0", "c/1/0/0", "c/1/1/0"]
    assert (totals.shards, totals.chunks_present, totals.chunks_in_shape) == (4, 12, 12)
    assert totals.decoded_bytes == 12 * 2 * 4 * 4 * 2


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("checksum", [False, True])
def test_a_chunk_that_is_a_file_fills_it(
    tmp_path: Path, writer: str, compressor: str | None, checksum: bool
) -> None:
    WRITERS[writer](tmp_path / "a", Layout(compressor, checksum, "none"))
    store = open_store(tmp_path / "a")
    assert not store.arrays[0].is_sharded
    reports = list(inspect_shards(store, store.arrays[0], chunks=True))
    assert len(reports) == 3 * 2 * 2
    for chunk in reports:
        assert chunk.problems == []
        assert (chunk.index_location, chunk.index_bytes) == ("none", 0)
        assert (chunk.chunks, chunk.chunks_in_shape, chunk.chunks_present) == (1, 1, 1)
        assert (chunk.gaps, chunk.gap_bytes, chunk.chunks_empty) == (0, 0, 0)
        (only,) = chunk.chunk_reports
        size = (tmp_path / "a" / chunk.key).stat().st_size
        assert (only.offset, only.nbytes, chunk.encoded_bytes, chunk.file_bytes) == (0, size, size, size)
        assert only.coordinates == chunk.coordinates
        assert "unreadable" not in chunk.forms


def test_a_chunk_that_is_a_file_is_found_empty_or_spoilt(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout("blosc", index_location="none"))
    (tmp_path / "a/c/0/0/0").write_bytes(b"")
    (tmp_path / "a/c/0/0/1").write_bytes(b"\xff" * 100)
    store = open_store(tmp_path / "a")
    empty, spoilt, *sound = inspect_shards(store, store.arrays[0])
    assert empty.problems == ["chunk 0: chunk has a size of 0"]
    assert (spoilt.forms, len(spoilt.problems)) == ({"unreadable": 1}, 1)
    assert not any(chunk.problems for chunk in sound)


@pytest.mark.parametrize("location", ["end", "start"])
def test_gaps_are_where_they_are(tmp_path: Path, location: str) -> None:
    """Chunks moved apart by hand: 10 bytes before the first, 4096 between two, 7 after the last."""
    write_with_zarr_python(tmp_path / "a", Layout(None, index_location=location, **ONE_SHARD))
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4, location)
    start = 68 if location == "start" else 0
    data, position = bytearray(), start
    for chunk, gap in ((2, 10), (0, 4096), (3, 0)):
        data += b"\xee" * gap
        shard.entries[chunk] = (start + len(data), 64)
        data += bytes(range(64))
        position += gap + 64
    shard.entries[1] = EMPTY
    shard.data = data + b"\xee" * 7
    shard.write()
    report = inspect_only_shard(tmp_path / "a")
    assert report.problems == []
    assert (report.chunks_present, report.chunks_empty) == (3, 1)
    assert (report.gaps, report.gap_bytes, report.largest_gap_bytes) == (3, 10 + 4096 + 7, 4096)
    assert [(c.chunk, c.offset, c.gap_bytes) for c in report.chunk_reports] == [
        (0, start + 10 + 64 + 4096, 0),
        (2, start + 10, 4096),
        (3, start + 4298 - 64, 7),
    ]
    assert report.chunk_reports[1].coordinates == (1, 0, 0)
    assert report.forms == {"none stored": 3}


def test_an_empty_shard_is_one_gap(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout(**ONE_SHARD))
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4)
    shard.entries[:] = EMPTY
    shard.write()
    report = inspect_only_shard(tmp_path / "a")
    assert (report.chunks_present, report.chunks_empty, report.gaps, report.gap_bytes) == (
        0,
        4,
        1,
        len(shard.data),
    )


def test_holes_are_told_from_stored_gaps(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout(None, index_location="start", **ONE_SHARD))
    path = tmp_path / "a/c/0/0/0"
    os.truncate(path, 1 << 20)
    report = inspect_only_shard(tmp_path / "a")
    assert report.file_bytes == 1 << 20
    assert report.allocated_bytes == path.stat().st_blocks * 512
    assert report.hole_bytes == report.file_bytes - report.allocated_bytes > 1 << 19
    assert report.gap_bytes == (1 << 20) - 68 - 4 * 64


def test_damage_becomes_a_problem(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout("blosc", **ONE_SHARD))
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4)
    shard.data[int(shard.entries["offset"][2])] = 5
    shard.write()
    report = inspect_only_shard(tmp_path / "a")
    assert report.forms["unreadable"] == 1
    assert any(problem.startswith("chunk 2: ") and "Blosc 1" in problem for problem in report.problems)
    shard.path.write_bytes(b"short")
    report = inspect_only_shard(tmp_path / "a")
    assert not report.index_checksum_ok
    assert len(report.problems) == 1


@pytest.mark.parametrize("io", ["mmap", "pwrite"])
def test_a_shard_of_our_own_has_slots_and_gaps_if_it_was_mapped_else_runs(tmp_path: Path, io: str) -> None:
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=2),
            sw.Dimension(name="y", count=64, chunk_size=32, shard_size_chunks=2),
            sw.Dimension(name="x", count=64, chunk_size=64),
        ],
    )
    rng = np.random.default_rng(5)
    with sw.create(tmp_path / "own.ome.zarr", spec, threads=1, **how(io=io)) as writer:
        for i in range(4):
            frame = rng.integers(0, 50, (64, 64)).astype("u2")
            if i < 2:
                frame[32:] = 0  # one chunk is all fill value
            writer.append(rng.integers(0, 2**16, (64, 64)).astype("u2") if i >= 2 else frame)
    store = open_store(tmp_path / "own.ome.zarr")
    (shard,) = inspect_shards(store, store.arrays[0], chunks=True)
    assert shard.problems == []
    assert shard.chunks_present == 3
    assert shard.chunks_page_aligned == (3 if io == "mmap" else 2), (
        "the second slab's two chunks lie back to back"
    )
    assert shard.chunks_empty == 1
    assert {chunk.coordinates for chunk in shard.chunk_reports} == {(0, 0, 0), (1, 0, 0), (1, 1, 0)}
    assert shard.forms["blosc lz4 shuffle"] >= 1
    if io == "mmap":
        assert shard.gap_bytes > 0
    else:
        assert shard.gap_bytes < 4096, "the rest of the first run's last page"
