"""Rechunking into a bucket of a real S3 server, and into any destination whatever kills the job."""

from __future__ import annotations

import itertools
import json
import shutil
from contextlib import closing

import numpy as np
import pytest
import zarr
from tests.kernels import reference
from zarr.storage import ObjectStore as ZarrObjectStore

from shardwright.cli.app import main
from shardwright.model.errors import LockedError, OutputExistsError, ShardFormatError, StorageError
from shardwright.read.verify_store import verify_store
from shardwright.remote.objects import connect_bucket
from shardwright.rework.jobs.pyramid_levels import PyramidOptions
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store
from shardwright.rework.jobs.rechunk_transfer import RechunkTransfer, staging_folder
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.destination import CLAIM_KEY

from .images import POLITE, die_at_every_point, read_everywhere, run_here, write_image

OPTIONS = RechunkOptions({"z": 4, "y": 6, "x": 8}, pyramid=PyramidOptions(1))
SMALL = {"shape": (3, 9, 14), "chunks": (1, 4, 4), "shard_chunks": (3, 1, 4)}


def rechunk_to(store, url, options=OPTIONS, run=run_here, send=run_here):
    with closing(RechunkTransfer(plan_new_store(store, options), url, options)) as job:
        report = job.make(run, throttle=POLITE)
        if report.ok:
            job.send(send, report, POLITE)
        return report


def half(values: np.ndarray) -> np.ndarray:
    return reference.downsample(values, (1, 2, 2), "mean")


def assert_nothing_left(store) -> None:
    assert [path.name for path in store.parent.iterdir() if path.name.startswith(".")] == []


def test_a_store_with_other_chunks_in_a_bucket(tmp_path, bucket_url, capsys) -> None:
    """By the command, in processes of its own; what is there already is never overwritten."""
    store = tmp_path / "a.ome.zarr"
    values = write_image(store, **SMALL)
    command = [
        "rechunk",
        str(store),
        bucket_url,
        "--chunks",
        "z=3,y=6,x=7",
        "--workers",
        "1",
        "--no-idle",
        "--json",
    ]
    with pytest.raises(SystemExit) as ended:
        main(command)
    report = json.loads(capsys.readouterr().out)
    assert (ended.value.code, report["path"], report["made"]) == (0, bucket_url, ["0"])
    assert report["bytes_sent"] > report["bytes_written"] > 0, "metadata and the frame table go along"
    group = zarr.open_group(ZarrObjectStore(connect_bucket(bucket_url), read_only=True), mode="r")
    np.testing.assert_array_equal(group["0"][...], values)
    assert group["0"].chunks == (3, 6, 7)
    assert group.attrs["ome"]["multiscales"] == zarr.open_group(store, mode="r").attrs["ome"]["multiscales"]
    assert open_destination(bucket_url).size(CLAIM_KEY) is None
    assert_nothing_left(store)
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 1
    assert "is not empty" in capsys.readouterr().err
    assert_nothing_left(store)


@pytest.mark.parametrize("step", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_storage_call_it_goes_on_and_the_metadata_comes_last(tmp_path, step) -> None:
    store, away = tmp_path / "a.ome.zarr", tmp_path / "away"
    values = write_image(store, **SMALL)
    options = RechunkOptions({"z": 3, "y": 9, "x": 7}, pyramid=PyramidOptions(1))
    staging = staging_folder(store, str(away))

    def job() -> None:
        if not (away / "zarr.json").exists() or {path.name for path in staging.glob("*")} - {"lock"}:
            assert rechunk_to(store, str(away), options).ok

    deaths = 0
    for deaths in die_at_every_point(job, step):  # noqa: B007
        if (away / "zarr.json").exists():
            np.testing.assert_array_equal(read_everywhere(away / "0"), values)
            np.testing.assert_array_equal(read_everywhere(away / "1"), half(values))
    assert deaths > 20
    assert verify_store(away).problems == []
    assert sorted(path.name for path in away.iterdir()) == ["0", "1", "frames", "zarr.json"]
    assert [path.name for path in staging.rglob("*")] in ([], ["lock"]), (
        "at the very end only a lock that nobody holds may be left"
    )


def test_a_place_that_another_job_writes_to_is_refused_before_anything_is_made(tmp_path, place) -> None:
    store = tmp_path / "a.ome.zarr"
    write_image(store, **SMALL)
    assert open_destination(place).claim("another")
    with pytest.raises(LockedError, match="another job writes"):
        rechunk_to(store, place, run=lambda _: pytest.fail("nothing is made"))
    assert_nothing_left(store)
    open_destination(place).release("another")
    assert rechunk_to(store, place).ok


def test_what_was_not_sent_is_named_and_sent_by_the_next_run_and_nothing_is_made_again(
    tmp_path, place
) -> None:
    store = tmp_path / "a.ome.zarr"
    write_image(store)

    def refuse_one(tasks):
        for task in tasks:
            if task["key"] == "1/c/0/0/0":
                error = StorageError("the line is bad")
                yield {
                    "kind": "move",
                    "key": task["key"],
                    "ok": False,
                    "error": error.to_dict(),
                    "bytes_read": 0,
                    "bytes_written": 0,
                }
            else:
                yield from sent(run_here([task]), arrived)

    def sent(results, keys):
        for result in results:
            if not result["skipped"]:
                keys.append(result["key"])
            yield result

    arrived, later = [], []
    first = rechunk_to(store, place, send=refuse_one)
    assert (first.ok, first.made, [failure["key"] for failure in first.failures]) == (
        False,
        [],
        ["1/c/0/0/0"],
    )
    assert open_destination(place).size("zarr.json") is None
    other = RechunkOptions({"z": 2})
    with pytest.raises(OutputExistsError, match="unfinished job has claimed"):
        rechunk_to(store, place, other)
    second = rechunk_to(
        store,
        place,
        run=lambda _: pytest.fail("it is all made"),
        send=lambda tasks: sent(run_here(tasks), later),
    )
    assert second.ok
    assert "1/c/0/0/0" in later
    assert len(arrived) > 10
    assert not set(later) & set(arrived)
    assert open_destination(place).size("zarr.json") is not None
    assert_nothing_left(store)


def test_a_new_shard_that_was_damaged_before_it_was_sent_is_named_and_its_source_stays(tmp_path) -> None:
    store, away = tmp_path / "a.ome.zarr", str(tmp_path / "away")
    write_image(store, **SMALL)
    with closing(RechunkTransfer(plan_new_store(store, OPTIONS), away, OPTIONS)) as job:
        report = job.make(run_here, throttle=POLITE)
        shard = staging_folder(store, away) / "store/0/c/0/0/0"
        with shard.open("r+b") as file:
            file.write(b"\xff" * 16)
        job.send(run_here, report, POLITE)
    assert (report.ok, [failure["key"] for failure in report.failures]) == (False, ["0/c/0/0/0"])
    assert shard.exists()


def test_a_job_that_was_stopped_at_its_very_end_does_not_answer_for_another_source(tmp_path) -> None:
    store, away = tmp_path / "a.ome.zarr", str(tmp_path / "away")
    write_image(store, **SMALL)
    assert rechunk_to(store, away).ok
    job = staging_folder(store, away) / "job.json"
    job.parent.mkdir()
    job.write_text(
        json.dumps(plan_new_store(store, OPTIONS).job())
    )  # as a kill just before it goes leaves it
    with pytest.raises(OutputExistsError, match="a source that has changed since"):
        rechunk_to(store, away, RechunkOptions({"z": 2}))
    shutil.rmtree(store)
    write_image(store, seed=4, **SMALL)
    with pytest.raises(OutputExistsError, match="a source that has changed since"):
        rechunk_to(store, away)


def test_a_job_whose_record_is_damaged_does_not_count_as_sent(tmp_path) -> None:
    """Without the record it would: so both go, by the words of the error."""
    store, away = tmp_path / "a.ome.zarr", str(tmp_path / "away")
    write_image(store, **SMALL)

    def dies(tasks):
        yield from itertools.islice(run_here(tasks), 1)
        raise KeyboardInterrupt

    with closing(RechunkTransfer(plan_new_store(store, OPTIONS), away, OPTIONS)) as job:
        report = job.make(run_here, throttle=POLITE)
        with pytest.raises(KeyboardInterrupt):
            job.send(dies, report, POLITE)
    (record,) = staging_folder(store, away).glob("move.*.job")
    record.write_bytes(b"?" + record.read_bytes()[1:])
    with pytest.raises(ShardFormatError, match="damaged") as refused:
        rechunk_to(store, away)
    assert f"Delete {staging_folder(store, away)} and everything at the destination" in refused.value.hint
    shutil.rmtree(staging_folder(store, away))
    shutil.rmtree(away)
    assert rechunk_to(store, away).ok
    assert (tmp_path / "away/zarr.json").exists()


def test_other_schemes_are_no_destinations(tmp_path, capsys) -> None:
    write_image(tmp_path / "a.ome.zarr", **SMALL)
    with pytest.raises(SystemExit) as ended:
        main(["rechunk", str(tmp_path / "a.ome.zarr"), "ftp://archive/a", "--chunks", "z=3"])
    assert ended.value.code == 2
    assert "ftp://archive/a is not a destination" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.ome.zarr"]
