"""Jobs on arrays without shards: a chunk is a file that is packed already, can be encoded more densely, moved
as it is, and made into an array with shards or without."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.plain_arrays import without_shards

import shardwright as sw
from shardwright.array.spec import Zstd
from shardwright.cli.app import main
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.compact_store import Options, plan, run
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.transfer import move_store
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.move_plan import MoveOptions

from .images import POLITE, read_everywhere, run_here, write_image
from .moving_store import KilledError, execute, fetched, files
from .stores import shard_files, spec, task

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.read.store import StoredArray

DENSER = {"cname": "zstd", "clevel": 9, "shuffle": None}
CODECS = {"blosc": sw.Blosc(), "zstd": sw.Zstd(level=-7), "gzip": sw.Gzip(level=0), "none": None}
NAMES = pytest.mark.parametrize("codec", CODECS)


class Here:
    """Runs tasks in this process."""

    workers = 1

    def run(self, tasks, on_moved=None):
        yield from run_here({**task, "throttle": {"idle": False}} for task in tasks)

    def close(self) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An image without shards; one of its frames never came, one is all fill value."""
    path = tmp_path / "a.ome.zarr"
    write_image(path, shard_chunks=None)
    return path


def compact(store: Path, **options) -> dict:
    return run(plan(open_store(store), Options(**options)), Here()).to_dict()


def rechunk(store: Path, new: Path, **options):
    chosen = RechunkOptions(chunks={"z": 4, "y": 6, "x": 8}, **options)
    return write_new_store(plan_new_store(store, chosen), new, chosen, run_here, throttle=POLITE)


def chunk_files(store: Path) -> dict[str, bytes]:
    return {key: data for key, data in files(store).items() if key.startswith("0/c/")}


def assert_sound(store: Path, values: np.ndarray) -> StoredArray:
    """All is recorded, and other readers see ``values``."""
    report = verify_store(store)
    assert (report.problems, report.warnings, report.shards_absent_unrecorded) == ([], [], 0)
    assert report.shards == report.shards_recorded
    np.testing.assert_array_equal(read_everywhere(store / "0"), values)
    return parse_array(store / "0")


# ---------------------------------------------------------------------- compact


@NAMES
def test_there_is_nothing_to_compact(store_of, codec) -> None:
    array = store_of(without_shards(spec(CODECS[codec])))
    before, job = shard_files(array), plan(open_store(array.path), Options())
    assert (job.todo, job.failures, job.unknown) == ([], {}, {})
    assert {shard.gap_bytes for shard in job.shards} == {0}
    report = compact(array.path)
    assert (report["ok"], report["packed"], report["skipped"], report["left"]) == (True, 0, len(before), 0)
    assert (report["bytes_written"], report["gain_bytes"]) == (0, 0)
    assert shard_files(array) == before


def test_the_command_says_that_there_is_nothing_to_do(store, capsys) -> None:
    chunks = len(chunk_files(store))
    for options, says in (
        ((), f"0 shards packed, {chunks} were already; files are of the same size"),
        (("--dry-run",), f"0 of {chunks} shards to do, {chunks} packed already"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["compact", str(store), "--no-idle", "--workers", "1", *options])
        assert end.value.code in (0, None)
        assert says in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit) as end:
        main(["compact", str(store), "--no-idle", "--workers", "1", "--json"])
    assert end.value.code in (0, None)
    (facts,) = json.loads(capsys.readouterr().out)["stores"]
    assert (facts["packed"], facts["skipped"], facts["failures"]) == (0, chunks, {})


@pytest.mark.parametrize(
    ("codec", "wish"),
    [
        ("blosc", {"cname": "zstd", "clevel": 9, "shuffle": None}),
        ("zstd", {"cname": "zstd", "clevel": 15, "shuffle": None}),
        ("gzip", {"cname": "gzip", "clevel": 9, "shuffle": None}),
    ],
)
@pytest.mark.parametrize("checksum", [False, True])
def test_recompressed_chunks_are_smaller_files_of_the_same_values(store_of, codec, wish, checksum) -> None:
    array = store_of(without_shards(spec(CODECS[codec], chunk_checksum=checksum)))
    values, before = read_everywhere(array.path), files(array.path)
    report = compact(array.path.parent, recompress=wish)
    after = {key: data for key, data in files(array.path).items() if key in before}
    chunks = [key for key in before if key.startswith("c/")]
    assert (report["ok"], report["packed"], report["chunks_recoded"]) == (True, len(chunks), len(chunks))
    assert report["gain_bytes"] == sum(len(before[key]) - len(after[key]) for key in chunks)
    assert all(len(after[key]) < len(before[key]) for key in chunks)
    assert report["bytes_written"] == sum(len(after[key]) for key in chunks)
    assert_sound(array.path.parent, values)
    again = compact(array.path.parent, recompress=wish)
    assert (again["ok"], again["chunks_recoded"], again["gain_bytes"]) == (True, 0, 0)


@pytest.mark.parametrize("recompress", [None, DENSER])
def test_a_damaged_chunk_stays_and_is_named_once_it_is_read(store, recompress) -> None:
    """Without recompression no chunk is read, and the file's length is that of the chunk."""
    path = store / "0/c/1/0/0"
    path.write_bytes(b"\xff" * 40)
    empty = store / "0/c/3/1/0"
    empty.write_bytes(b"")
    report = compact(store, recompress=recompress)
    assert report["ok"] is False
    named = {"0/c/3/1/0"} | ({"0/c/1/0/0"} if recompress else set())
    assert set(report["failures"]) == named
    assert "size of 0" in report["failures"]["0/c/3/1/0"]["message"]
    assert (path.read_bytes(), empty.read_bytes()) == (b"\xff" * 40, b"")


def test_chunks_outside_the_shape_are_deleted_when_they_are_trimmed(store) -> None:
    document = json.loads((store / "0/zarr.json").read_text())
    document["shape"][0] = 6
    (store / "0/zarr.json").write_text(json.dumps(document))
    inside = {key for key in chunk_files(store) if int(key.split("/")[2]) < 6}
    report = compact(store, trim=True)
    assert (report["ok"], report["dropped"]) == (True, 5 * 3 * 3)
    assert chunk_files(store).keys() == inside
    assert verify_store(store / "0").problems == []


def test_a_task_alone_skips_a_chunk_that_is_packed(store) -> None:
    (result,) = run_here([{**task(parse_array(store / "0"), 1, 0, 0), "key": "0/c/1/0/0"}])
    assert (result["ok"], result["skipped"], result["bytes_read"], result["bytes_written"]) == (
        True,
        True,
        0,
        0,
    )


# ---------------------------------------------------------------------- compact --to


def test_a_store_moves_as_it_is(store, place, tmp_path) -> None:
    before, values = files(store), read_everywhere(store / "0")
    report = move_store.move_store(store, MoveOptions(place, throttle=POLITE), execute)
    assert (report.ok, report.sent) == (True, len(before))
    copy = fetched(place, tmp_path)
    assert files(copy) == before
    assert_sound(copy, values)


def test_a_move_that_ends_in_the_middle_goes_on(store, place, tmp_path) -> None:
    before, sent = files(store), []

    def dies_after_three(tasks):
        for each in tasks:
            if len(sent) == 3:
                raise KilledError
            sent.append(each["key"])
            yield run_task(each)

    with pytest.raises(KilledError):
        move_store.move_store(store, MoveOptions(place, throttle=POLITE), dies_after_three)
    report = move_store.move_store(store, MoveOptions(place, throttle=POLITE), execute)
    assert (report.ok, report.finished, report.sent) == (True, 3, len(before) - 3)
    assert files(fetched(place, tmp_path)) == before


def test_a_bit_that_flips_at_the_destination_is_found(store, place, monkeypatch) -> None:
    kind = type(open_destination(place))
    read = kind.read

    def flips(self, key, offset, nbytes):
        data = bytearray(read(self, key, offset, nbytes))
        if key == "0/c/1/0/0":
            data[len(data) // 2] ^= 1
        return bytes(data)

    monkeypatch.setattr(kind, "read", flips)
    report = move_store.move_store(store, MoveOptions(place, delete_source=True, throttle=POLITE), execute)
    assert not report.ok
    assert [failure["key"] for failure in report.failures] == ["0/c/1/0/0"]
    assert "chunk 1/0/0" in report.failures[0]["error"]["message"]
    assert (store / "0/c/1/0/0").exists()


# ---------------------------------------------------------------------- rechunk, pyramid


@pytest.mark.parametrize("codec", ["keep", None, Zstd(level=5)], ids=str)
def test_an_array_without_shards_keeps_to_it(store, tmp_path, codec) -> None:
    values = read_everywhere(store / "0")
    report = rechunk(store, tmp_path / "b.ome.zarr", **({} if codec == "keep" else {"codec": codec}))
    assert report.ok
    array = assert_sound(tmp_path / "b.ome.zarr", values)
    assert (array.is_sharded, array.chunk_shape, array.shard_shape) == (False, (4, 6, 8), (4, 6, 8))
    document = json.loads((tmp_path / "b.ome.zarr/0/zarr.json").read_text())
    assert "sharding_indexed" not in json.dumps(document["codecs"])
    assert document["chunk_grid"]["configuration"]["chunk_shape"] == [4, 6, 8]


def test_with_shard_sizes_it_gets_shards(store, tmp_path) -> None:
    values = read_everywhere(store / "0")
    assert rechunk(store, tmp_path / "b.ome.zarr", shards={"z": 8, "x": 16}).ok
    array = assert_sound(tmp_path / "b.ome.zarr", values)
    assert (array.is_sharded, array.index_location) == (True, "end")
    shard = (8, 12, 16)  # along y as before, in whole chunks
    assert (array.chunk_shape, array.shard_shape) == ((4, 6, 8), shard)
    assert zarr.open_array(tmp_path / "b.ome.zarr/0", mode="r").shards == shard


def test_levels_are_without_shards_too(store) -> None:
    values = read_everywhere(store / "0")
    report = add_levels(store, PyramidOptions(2, "max"), run_here, throttle=POLITE)
    assert report.made == ["1", "2"]
    opened = open_store(store)
    assert [array.is_sharded for array in opened.arrays] == [False] * 3
    assert [array.shape for array in opened.arrays] == [(11, 21, 37), (11, 11, 19), (11, 6, 10)]
    for array in opened.arrays:
        reports = list(inspect_shards(opened, array))
        assert {report.index_location for report in reports} == {"none"}
        assert [report.problems for report in reports] == [[]] * len(reports)
    assert_sound(store, values)
    np.testing.assert_array_equal(
        read_everywhere(store / "1")[0, :10, :18], values[0, :20, :36].reshape(10, 2, 18, 2).max((1, 3))
    )
    assert add_levels(store, PyramidOptions(2, "max"), run_here, throttle=POLITE).already == ["1", "2"]
