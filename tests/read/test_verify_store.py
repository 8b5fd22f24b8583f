"""Verification finds nothing in sound stores of independent writers, and every kind of damage in broken
ones."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardwright as sw
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read.verify_store import verify_store

from .stores import (
    COMPRESSORS,
    EMPTY,
    WRITERS,
    Layout,
    ShardBytes,
    edit_json,
    pixels,
    wrap_in_group,
    write_with_zarr_python,
)

if TYPE_CHECKING:
    from pathlib import Path

ONE_SHARD = {"shape": (4, 8, 4), "shards": (4, 8, 4), "chunks": (2, 4, 4)}  # 4 chunks, all inside


def found(path: Path) -> list[str]:
    return [str(problem) for problem in verify_store(path, threads=1).problems]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("compressor", "checksum", "location"), [*itertools.product(COMPRESSORS, [False, True], ["end", "start"])]
)
def test_sound_stores_of_others(
    tmp_path: Path, writer: str, compressor: str | None, checksum: bool, location: str
) -> None:
    layout = Layout(compressor, checksum, location)
    WRITERS[writer](tmp_path / "a", layout)
    report = verify_store(tmp_path / "a", threads=2)
    assert report.problems == []
    assert (report.arrays, report.shards, report.shards_absent, report.chunks, report.chunks_absent) == (
        1,
        4,
        0,
        12,
        0,
    )
    assert report.decoded_bytes == report.chunks * 2 * 4 * 4 * 2


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("checksum", [False, True])
def test_sound_stores_of_others_without_shards(
    tmp_path: Path, writer: str, compressor: str | None, checksum: bool
) -> None:
    WRITERS[writer](tmp_path / "a", Layout(compressor, checksum, "none"))
    report = verify_store(tmp_path / "a", threads=2)
    assert (report.problems, report.warnings) == ([], [])
    assert (report.shards, report.shards_absent, report.chunks, report.chunks_absent) == (12, 0, 12, 0)
    assert report.decoded_bytes == 12 * 2 * 4 * 4 * 2
    assert report.encoded_bytes == sum(p.stat().st_size for p in (tmp_path / "a/c").rglob("*") if p.is_file())


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("location", ["end", "start", "none"])
def test_every_flipped_bit_of_a_shard_with_checksums_is_found(
    tmp_path: Path, compressor: str | None, location: str
) -> None:
    """Also in the chunks: they have a crc32c. zarr-python leaves no gaps, so every bit of the file belongs to
    a chunk or to the index."""
    layout = Layout(
        compressor,
        checksum=True,
        index_location=location,
        shape=(1, 4, 4),
        shards=(2, 4, 4),
        chunks=(1, 4, 4),
        dtype="uint8",
    )
    write_with_zarr_python(tmp_path / "a", layout)
    shard = tmp_path / "a/c/0/0/0"
    sound = shard.read_bytes()
    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        shard.write_bytes(damaged)
        assert len(found(tmp_path / "a")) == 1, f"bit {bit}"


@pytest.mark.parametrize("compressor", ["blosc", "zstd", "gzip"])
def test_damage_without_a_checksum_is_found_when_it_does_not_decode(tmp_path: Path, compressor: str) -> None:
    """Every flipped bit of the framing that fixes sizes and formats; the first bytes of a chunk hold it in
    each codec."""
    write_with_zarr_python(tmp_path / "a", Layout(compressor, **ONE_SHARD))
    path = tmp_path / "a/c/0/0/0"
    for chunk in ShardBytes(path, 4).live():
        shard = ShardBytes(path, 4)
        sound = path.read_bytes()
        shard.data[int(shard.entries["offset"][chunk])] ^= 0xFF
        shard.write()
        (problem,) = found(tmp_path / "a")
        assert problem.startswith("c/0/0/0 chunk ")
        path.write_bytes(sound)


@pytest.mark.parametrize("location", ["end", "start", "none"])
def test_every_truncation_is_found(tmp_path: Path, location: str) -> None:
    write_with_zarr_python(tmp_path / "a", Layout("zstd", index_location=location, **ONE_SHARD))
    path = tmp_path / "a/c/0/0/0"
    sound = path.read_bytes()
    for length in range(len(sound)):
        path.write_bytes(sound[:length])
        assert found(tmp_path / "a"), f"cut to {length} bytes"


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_a_chunk_that_is_a_file_of_another_length_is_found(tmp_path: Path, compressor: str | None) -> None:
    write_with_zarr_python(tmp_path / "a", Layout(compressor, index_location="none"))
    path = tmp_path / "a/c/1/1/0"
    sound = path.read_bytes()
    for nbytes in (sound + b"\0", sound[:-1]):
        path.write_bytes(nbytes)
        (problem,) = found(tmp_path / "a")
        assert problem.startswith("c/1/1/0 chunk 1/1/0: ")
    path.write_bytes(b"")
    assert found(tmp_path / "a") == ["c/1/1/0 chunk 1/1/0: chunk has a size of 0"]


@pytest.mark.parametrize("codec", ["blosc", "zstd", "gzip", "none"])
def test_chunks_of_ours_without_shards_are_those_that_are_on_record(tmp_path: Path, codec: str) -> None:
    """A flipped bit of pixels that decode, a chunk in the place of another one, and one that was deleted are
    found by the record alone."""
    path = tmp_path / "a.ome.zarr"
    layout = {"shape": (None, 8, 8), "dtype": "uint16", "axes": "tyx", "chunks": {"t": 1}, "codec": codec}
    pixels = np.random.default_rng(3).integers(1, 2**16, (4, 8, 8)).astype("u2")
    with sw.create(path, **layout, shards=False, threads=1) as writer:
        for frame in pixels:
            writer.append(frame)
    report = verify_store(path)
    assert (report.ok, report.shards, report.shards_recorded, report.chunks) == (True, 4, 4, 4)
    keys = [path / f"0/c/{t}/0/0" for t in range(4)]
    data = bytearray(keys[0].read_bytes())
    data[-20] ^= 1
    keys[0].write_bytes(data)
    keys[1].write_bytes(keys[2].read_bytes())
    keys[3].unlink()
    changed, swapped, missing = sorted(found(path))
    assert changed.startswith("0/c/0/0/0")
    assert swapped.startswith("0/c/1/0/0: not the shard that was sealed: it is c/2/0/0 (")
    assert missing == "0/c/3/0/0: missing, although it was sealed (record: shards.crc32c)"


@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize(
    ("offset", "nbytes", "what"),
    [
        (None, EMPTY, "half empty"),
        (EMPTY, None, "half empty"),
        (None, 0, "size of 0"),
        (2**40, None, "outside the data of its shard"),
        (2**64 - 2, None, "outside the data of its shard"),
        (None, 2**64 - 2, "outside the data of its shard"),
        (None, 2**63, "outside the data of its shard"),
        (2**63, 2**63, "outside the data of its shard"),
    ],
)
def test_index_entries_that_cannot_be(
    tmp_path: Path, location: str, offset: int | None, nbytes: int | None, what: str
) -> None:
    write_with_zarr_python(tmp_path / "a", Layout("zstd", index_location=location, **ONE_SHARD))
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4, location)
    for field, value in (("offset", offset), ("nbytes", nbytes)):
        if value is not None:
            shard.entries[field][2] = value
    shard.write()
    (problem,) = found(tmp_path / "a")
    assert problem.startswith("c/0/0/0 chunk 1/0/0: ")
    assert what in problem


@pytest.mark.parametrize("location", ["end", "start"])
def test_chunks_that_reach_into_the_index(tmp_path: Path, location: str) -> None:
    write_with_zarr_python(tmp_path / "a", Layout("zstd", index_location=location, **ONE_SHARD))
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4, location)
    by_offset = sorted(shard.live(), key=lambda chunk: shard.entries["offset"][chunk])
    if location == "start":
        shard.entries["offset"][by_offset[0]] -= 1
    else:
        shard.entries["nbytes"][by_offset[-1]] += 1
    shard.write()
    assert any("outside the data of its shard" in problem for problem in found(tmp_path / "a"))


def test_chunks_that_share_bytes_are_legal(tmp_path: Path) -> None:
    """Chunks of the same content need be stored but once."""
    write_with_zarr_python(tmp_path / "a", Layout("zstd", **ONE_SHARD))
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4)
    shard.entries[3] = shard.entries[1]
    shard.write()
    report = verify_store(tmp_path / "a", threads=1)
    assert (report.problems, report.warnings, report.chunks) == ([], [], 4)


def test_a_chunk_that_is_too_long_for_its_codec_is_found(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout(None, **ONE_SHARD))
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4)
    first = min(shard.live(), key=lambda chunk: shard.entries["offset"][chunk])
    shard.entries["nbytes"][first] = len(shard.data)
    shard.write()
    problems = found(tmp_path / "a")
    assert ["longer than its codec can make it" in problem for problem in problems] == [True]


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_a_chunk_of_another_size_is_found(tmp_path: Path, compressor: str | None) -> None:
    """A shard whose chunks are sound, but of an array with larger chunks."""
    write_with_zarr_python(tmp_path / "a", Layout(compressor, **ONE_SHARD))
    write_with_zarr_python(
        tmp_path / "b", Layout(compressor, shape=(4, 8, 8), shards=(4, 8, 8), chunks=(2, 4, 8))
    )
    (tmp_path / "b/c/0/0/0").replace(tmp_path / "a/c/0/0/0")
    problems = found(tmp_path / "a")
    assert len(problems) == 4
    assert all(
        "size" in problem or "length" in problem or "into" in problem or "longer" in problem
        for problem in problems
    )


def test_a_shard_of_another_chunking_fails_its_index(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout(**ONE_SHARD))
    edit_json(
        tmp_path / "a/zarr.json", lambda d: d["codecs"][0]["configuration"].update(chunk_shape=[1, 4, 4])
    )
    (problem,) = found(tmp_path / "a")
    assert "index" in problem


def test_chunks_outside_the_shape_are_warned_of_and_checked(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout(**ONE_SHARD))
    edit_json(tmp_path / "a/zarr.json", lambda d: d.update(shape=[2, 8, 3]))
    report = verify_store(tmp_path / "a")
    assert (report.problems, report.chunks, report.chunks_absent) == ([], 4, 0)
    (warning,) = report.warnings
    assert str(warning) == "c/0/0/0: 2 chunks lie wholly outside the array's shape (2, 8, 3): it was cropped"
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4)
    shard.data[int(shard.entries["offset"][3])] ^= 0xFF
    shard.write()
    assert len(found(tmp_path / "a")) == 1


def test_shards_outside_the_grid_are_warned_of_and_checked(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout())
    edit_json(tmp_path / "a/zarr.json", lambda d: d.update(shape=[4, 7, 6]))
    report = verify_store(tmp_path / "a")
    assert (report.problems, report.shards, report.shards_absent) == ([], 4, 0)
    assert {warning.where for warning in report.warnings if "outside the grid" in warning.what} == {
        "c/1/0/0",
        "c/1/1/0",
    }
    (tmp_path / "a/c/1/1/0").write_bytes(b"none")
    assert len(found(tmp_path / "a")) == 1


def test_a_key_with_the_largest_number_that_is_one(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout())
    far = tmp_path / f"a/c/{10**19 - 1}/0/0"
    far.parent.mkdir(parents=True)
    far.write_bytes((tmp_path / "a/c/0/0/0").read_bytes())
    report = verify_store(tmp_path / "a")
    assert (report.problems, report.shards, len(report.warnings)) == ([], 5, 1)


def test_absent_shards_and_chunks_are_counted(tmp_path: Path) -> None:
    layout = Layout()
    write_with_zarr_python(tmp_path / "a", layout)
    (tmp_path / "a/c/1/1/0").unlink()
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4)
    shard.entries[0] = EMPTY
    shard.write()
    report = verify_store(tmp_path / "a")
    assert report.ok
    assert (report.shards, report.shards_absent, report.chunks, report.chunks_absent) == (3, 1, 9, 1)


@pytest.mark.parametrize("name", ["c/0/0/notes.txt", "c/0/0/00", "c/0/0/-1", "c/7", "c/0/0/0.tmp"])
def test_files_that_are_no_chunks_are_found(tmp_path: Path, name: str) -> None:
    write_with_zarr_python(tmp_path / "a", Layout())
    (tmp_path / "a" / name).write_bytes(b"?")
    (problem,) = found(tmp_path / "a")
    assert problem == f"{name}: not a chunk key of this array"


def test_what_is_no_file_is_found(tmp_path: Path) -> None:
    """A named pipe must not hang the run, a dangling link must not end it."""
    write_with_zarr_python(tmp_path / "a", Layout())
    for name in ("0", "1"):
        (tmp_path / "a/c/0" / name / "0").unlink()
    os.mkfifo(tmp_path / "a/c/0/0/0")
    (tmp_path / "a/c/0/1/0").symlink_to("nowhere")
    problems = found(tmp_path / "a")
    assert len(problems) == 2
    assert "not a regular file" in problems[0]
    assert "is a symbolic link, which is not followed" in problems[1]


def test_bools_are_0_or_1(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout(None, dtype="bool", **ONE_SHARD))
    assert found(tmp_path / "a") == []
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4)
    shard.data[5] = 2
    shard.write()
    (problem,) = found(tmp_path / "a")
    assert "bool" in problem


def test_a_group_is_followed_to_its_array(tmp_path: Path) -> None:
    wrap_in_group(tmp_path / "g")
    assert verify_store(tmp_path / "g").shards == 4
    (tmp_path / "g/0/c/0/0/0").write_bytes(b"short")
    (problem,) = found(tmp_path / "g")
    assert problem.startswith("0/c/0/0/0: shard is shorter than its index")


def test_a_group_must_lead_to_an_array(tmp_path: Path) -> None:
    wrap_in_group(tmp_path / "g")
    edit_json(
        tmp_path / "g/zarr.json",
        lambda d: d["attributes"]["ome"]["multiscales"][0]["datasets"].append({"path": "1"}),
    )
    (problem,) = found(tmp_path / "g")
    assert "'1' leads to no readable array" in problem


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "a/../../b"])
def test_a_group_must_not_lead_out_of_itself(tmp_path: Path, name: str) -> None:
    wrap_in_group(tmp_path / "g")
    edit_json(
        tmp_path / "g/zarr.json",
        lambda d: d["attributes"]["ome"]["multiscales"][0]["datasets"].append({"path": name}),
    )
    (problem,) = found(tmp_path / "g")
    assert "out of the group" in problem


def test_axes_must_agree(tmp_path: Path) -> None:
    wrap_in_group(tmp_path / "g")
    edit_json(tmp_path / "g/0/zarr.json", lambda d: d.update(dimension_names=["z", "y", "x"]))
    (problem,) = found(tmp_path / "g")
    assert "dimension_names" in problem


def test_work_in_progress_is_reported(tmp_path: Path) -> None:
    wrap_in_group(tmp_path / "g")
    (tmp_path / "g/.shardwright").mkdir()
    (problem,) = found(tmp_path / "g")
    assert problem.startswith(".shardwright: work in progress")


def test_one_shard_alone(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout())
    report = verify_store(tmp_path / "a/c/1/0/0")
    assert (report.ok, report.shards, report.chunks) == (True, 1, 2 * 1)


def test_several_problems_come_in_order(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout("zstd", checksum=True))
    for key in ("c/1/0/0", "c/0/0/0"):
        path = tmp_path / "a" / key
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
    one, four = verify_store(tmp_path / "a", threads=1), verify_store(tmp_path / "a", threads=4)
    assert [problem.where for problem in one.problems] == ["c/0/0/0", "c/1/0/0"]
    assert one == four
    assert json.loads(json.dumps(one.to_dict()))["problems"][0]["where"] == "c/0/0/0"


def test_progress_ends_at_all_bytes(tmp_path: Path) -> None:
    write_with_zarr_python(tmp_path / "a", Layout())
    (tmp_path / "a/c/0/0/0").write_bytes(b"")
    seen: list[tuple[int, int]] = []
    verify_store(tmp_path / "a", threads=2, progress=lambda done, total: seen.append((done, total)))
    total = sum(path.stat().st_size for path in (tmp_path / "a/c").rglob("*") if path.is_file())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_no_store_at_all(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such"):
        verify_store(tmp_path / "nothing")
    with pytest.raises(ShardFormatError, match="Give the path of a Zarr store"):
        verify_store(tmp_path)


def test_decoded_bytes_are_bounded_by_the_chunk(tmp_path: Path) -> None:
    """A sparse shard of 1 TB with one entry of 1 TB is refused from the index alone."""
    write_with_zarr_python(tmp_path / "a", Layout("zstd", index_location="start", **ONE_SHARD))
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4, "start")
    shard.entries[1:] = EMPTY
    shard.entries["nbytes"][0] = 2**40
    shard.write()
    os.truncate(shard.path, 2**40 + 2**20)
    (problem,) = found(tmp_path / "a")
    assert "longer than its codec can make it" in problem


def test_a_check_loads_no_kernels(tmp_path: Path) -> None:
    """They take longer to load than a small store takes, and have a compiler with them."""
    write_with_zarr_python(tmp_path / "a", Layout("zstd", **ONE_SHARD))
    code = f"""
import sys
from shardwright.read.verify_store import verify_store
assert verify_store({str(tmp_path / "a")!r}).ok
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_verification_agrees_with_the_reader_on_content(tmp_path: Path) -> None:
    """The chunk that verify calls sound holds the pixels that were written."""
    from shardwright.codecs.decode import decode_chunk
    from shardwright.read.store import open_store

    layout = Layout("blosc", **ONE_SHARD)
    write_with_zarr_python(tmp_path / "a", layout)
    (array,) = open_store(tmp_path / "a").arrays
    shard = ShardBytes(tmp_path / "a/c/0/0/0", 4)
    for chunk in shard.live():
        offset, nbytes = (int(shard.entries[field][chunk]) for field in ("offset", "nbytes"))
        decoded = (
            decode_chunk(shard.data[offset : offset + nbytes], array.codecs, array.chunk_bytes)
            .view("<u2")
            .reshape(array.chunk_shape)
        )
        place = tuple(
            slice(i * n, (i + 1) * n)
            for i, n in zip(array.chunk_coordinates((0, 0, 0), chunk), array.chunk_shape, strict=True)
        )
        assert np.array_equal(decoded, pixels(layout)[place])
