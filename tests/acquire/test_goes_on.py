"""A finished store goes on: ``resume`` writes behind what an end has sealed, whatever kind of store it is.
Until its next end nobody finds less in it than before."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import zarr
from tests.harness.daemon import run_cli
from tests.harness.python import run_python
from tests.harness.store_contents import stored

import shardwright as sw
from shardwright.disk import beneath, failpoints
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import (
    LinkError,
    LockedError,
    OutputExistsError,
    ResumeError,
    ShardFormatError,
    StorageError,
)
from shardwright.read.frame_table import frame_table_of
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.recovery.go_on import find_finished
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.rework.edit.shard_lock import shard_locked
from shardwright.shard.checked_json import checksum
from shardwright.shard.frame_log import FrameLog
from shardwright.shard.frame_record import record_of
from shardwright.shard.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool

SIZE = 32
PLAIN: dict[str, Any] = {"chunks": {"t": 4}, "shards": {"t": 8}}


def frame(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(1, 999, (SIZE, SIZE)).astype(np.uint16)


def make(
    path: Path, frames: int, *, shape: tuple[int | None, ...] = (None, SIZE, SIZE), **options: Any
) -> Path:
    with sw.create(path, shape=shape, dtype="uint16", **options) as writer:
        for number in range(frames):
            writer.append(frame(number))
    return path


def go_on(path: Path, frames: int, **options: Any) -> sw.Receipt:
    with sw.resume(path, **options) as writer:
        for number in range(writer.frames, writer.frames + frames):
            writer.append(frame(number))
    return writer.receipt


def assert_whole(path: Path, frames: int, *, lost: int = 0) -> None:
    np.testing.assert_array_equal(stored(path), [frame(number) for number in range(frames)])
    report = verify_store(path)
    assert (report.problems, report.warnings) == ([], [])
    assert report.frame_rows == frames + lost
    assert not (path / ".shardwright").exists()


def files_of(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "zarr.json").read_text())
    return found


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
@pytest.mark.parametrize("frames", [3, 8, 10], ids=["a slab", "whole rows", "a row and a half"])
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"live": "index"},
        {"live": "append"},
        {"levels": 2},
        {"shards": False},
        {"codec": "none", "settings": sw.WriteSettings(partial_chunks="in_place", io="pwrite")},
        {"settings": sw.WriteSettings(io="mmap")},
        {"settings": sw.WriteSettings(chunk_order="morton", frame_parquet=True)},
        {"settings": sw.WriteSettings(profile="dynamic-cell-atlas")},
        {"frame_json_bytes": 64},
    ],
    ids=lambda kind: "-".join(map(str, kind)) or "plain",
)
def test_a_finished_store_goes_on(tmp_path: Path, kind: dict[str, Any], frames: int) -> None:
    path = make(tmp_path / "a.ome.zarr", frames, **{**PLAIN, **kind})
    first = files_of(path / "0" / "c")
    for number in range(2):
        receipt = go_on(path, 7)
        assert receipt.frames_stored == receipt.frames_received == frames + 7 * (number + 1)
    assert_whole(path, frames + 14)
    assert len(frame_table_of(path).receipts) == 3  # type: ignore[union-attr]
    full = frames // 8 * 8
    later = files_of(path / "0" / "c")
    assert all(later[key] == first[key] for key in first if int(key.partition("/")[0]) * 8 < full), (
        "full rows"
    )


def test_rows_that_were_not_full_are_filled_and_what_was_passed_over_stays_closed(tmp_path: Path) -> None:
    path, kept = tmp_path / "a.ome.zarr", [0, 1, 2, 3, 5, 6, 7, 16, 17]
    with sw.create(path, shape=(40, SIZE, SIZE), dtype="uint16", **PLAIN) as writer:
        for number in kept:
            writer.append(frame(number), index=number)
    table = document(path / "frames")
    table["attributes"]["shardwright"]["acquisition"]["passed_over"] = [1]  # as where rows of slabs are short
    (path / "frames/zarr.json").write_text(json.dumps(table))
    with sw.resume(path) as writer:
        for number in (4, 18, 19, 20, 9):
            writer.append(frame(number), index=number)
    assert writer.receipt.frames_late == 1
    found = sw.frame_table(path)
    assert set(np.flatnonzero(stored(path).any(axis=(1, 2))).tolist()) == {*kept, 9, 18, 19, 20}
    assert found[found.index_t == 4].status.tolist() == ["late"]
    assert find_finished(path).passed_over.tolist() == [1]  # type: ignore[union-attr]
    assert verify_store(path).ok


def test_the_frame_log_is_what_it_was(tmp_path: Path) -> None:
    """Every field of every frame, in the same blocks."""
    path, spec = tmp_path / "a.ome.zarr", None
    copy = tmp_path / "frames.log"
    failpoints.set_hook(
        "workspace.before_manifest", lambda: shutil.copy(path / ".shardwright/frames.log", copy) and None
    )
    fields = {"frame_json_bytes": 40, "settings": sw.WriteSettings(on_duplicate="count")}
    with sw.create(path, shape=(None, 3, SIZE, SIZE), dtype="uint16", axes="tzyx", **fields) as writer:
        spec, identity = writer.spec, read_manifest(path / ".shardwright").identity_bytes
        for number in (*range(7), 5, 9, 10, 8):
            given = {"delta_t": number / 8, "note": "x" * number} if number % 2 else {}
            writer.append(frame(number), index=divmod(number, 3), frame_id=100 + number, metadata=given)
    failpoints.set_hook("workspace.before_manifest", None)
    before = FrameLog.open(copy, record_of(spec), identity, read_only=True)
    with sw.resume(path):
        manifest = read_manifest(path / ".shardwright")
        after = FrameLog.open(
            path / ".shardwright/frames.log", record_of(spec), manifest.identity_bytes, read_only=True
        )
        assert after.shard_rows == before.shard_rows
        (first, second) = ([*log.blocks()] for log in (before, after))
    assert [(kind, row) for kind, row, _ in first] == [(kind, row) for kind, row, _ in second]
    for (_, _, one), (_, _, other) in zip(first, second, strict=True):
        for name in set(one.dtype.names) - {"record_crc", "slab_frames"}:
            np.testing.assert_array_equal(one[name], other[name], name)


@pytest.mark.parametrize("kind", ["images", "plate", "colours", "ragged", "order"])
def test_stores_of_other_kinds_go_on(tmp_path: Path, kind: str) -> None:
    path, options, shape, places = tmp_path / "a.ome.zarr", {}, (None, SIZE, SIZE), [(t,) for t in range(6)]
    images: list[str | None] = [None]
    if kind == "images":
        options, images = {"images": ["left", "right"], "attributes": {"who": "me"}}, ["left", "right"]
    elif kind == "plate":
        options = {"plate": {"rows": 1, "columns": 2}}
        images = ["A/1/0", "A/2/0"]
    elif kind == "ragged":
        shape, options = (None, None, SIZE, SIZE), {"axes": "tzyx"}
        places = [(t, z) for t in range(4) for z in range(t + 1)]
    elif kind == "colours":
        shape, options = (None, SIZE, SIZE, 3), {"axes": "tyxc"}
    else:
        options = {"images": ["left", "right"], "order": ["t", "p"]}
        images = ["left", "right"]

    def send(writer: sw.Writer, part: list[tuple[int, ...]]) -> None:
        for place in part:
            for number, image in enumerate(images):
                pixels = frame(100 * number + hash(place) % 97)
                pixels = np.stack([pixels] * 3, axis=-1) if kind == "colours" else pixels
                writer.append(pixels, index=place, **({} if image is None else {"image": image}))

    with sw.create(path, shape=shape, dtype="uint16", **options) as writer:
        send(writer, places[:3])
        if kind == "images":
            writer.update_metadata({"who": "you", "more": 1})
            writer.update_metadata({"stain": "blue"}, image="right")
    before, first = document(path)["attributes"], sw.frame_table(path)
    with sw.resume(path) as writer:
        send(writer, places[3:])
    report = verify_store(path)
    assert (report.problems, report.warnings) == ([], [])
    table = sw.frame_table(path)
    pd.testing.assert_frame_equal(
        table.iloc[: len(first)][["sequence", "camera_ns"]], first[["sequence", "camera_ns"]]
    )
    assert table.status.eq("stored").all()
    assert len(table) == len(places) * len(images) * (3 if kind == "colours" else 1)
    if kind == "images":
        assert document(path)["attributes"]["who"] == "you" == before["who"]
        assert document(path / "1")["attributes"]["stain"] == "blue"


def test_the_receipts_are_kept_and_what_they_promise_is_verified(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    (first,) = frame_table_of(path).receipts  # type: ignore[union-attr]
    go_on(path, 4)
    again = frame_table_of(path).receipts  # type: ignore[union-attr]
    assert again[0] == first
    assert [(part.client_epoch, part.counts["frames_stored"]) for part in again] == [(1, 10), (2, 14)]
    told = json.loads(run_cli("inspect", "--json", path).stdout)["receipts"]
    assert told == [part._asdict() for part in again] == verify_store(path).receipts
    assert "receipt 2: frames 14 received, 14 stored" in run_cli("inspect", path).stdout
    table = document(path / "frames")
    table["attributes"]["shardwright"]["receipts"][0]["counts"]["frames_stored"] = 11
    (path / "frames/zarr.json").write_text(json.dumps(table))
    (problem,) = verify_store(path).problems
    assert problem.what == "receipt 1 says that 11 frames are stored, and the table has 10 of them"


def test_a_store_that_is_opened_and_closed_again_is_as_it_was(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    before = files_of(path)
    sw.resume(path).close()
    after = files_of(path)
    assert {name for name in before if before[name] != after[name]} == {"frames/zarr.json"}, (
        "one receipt more"
    )
    assert before.keys() == after.keys()


def test_a_new_store_of_that_name_is_refused_and_told_how_the_old_one_goes_on(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 1)
    with pytest.raises(OutputExistsError, match=r"sw\.resume goes on with a finished store"):
        make(path, 1)


# ---------------------------------------------------------------------- what may not go on


def test_a_store_that_is_whole_or_empty_does_not_go_on(tmp_path: Path) -> None:
    whole = make(tmp_path / "a.ome.zarr", 3, shape=(3, SIZE, SIZE))
    before = files_of(whole)
    with pytest.raises(ResumeError, match="whole: every place"):
        sw.resume(whole)
    assert files_of(whole) == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.ome.zarr"]


def test_a_packed_store_goes_on(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    run_cli("compact", "--order", "morton", "--recompress", "zstd:3", "--no-idle", path, check=True)
    go_on(path, 9)
    assert_whole(path, 19)


def test_a_copy_goes_on(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    run_cli("compact", "--to", tmp_path / "b.ome.zarr", "--no-idle", path, check=True)
    go_on(tmp_path / "b.ome.zarr", 5)
    go_on(path, 9)
    assert_whole(tmp_path / "b.ome.zarr", 15)
    assert_whole(path, 19)


def _edited(path: Path) -> None:
    sw.update(path, {"t": 0}, np.zeros((SIZE, SIZE), "uint16"))


def _erased(path: Path) -> None:
    sw.erase(path, {"t": (0, 4)})


def _interrupted_edit(path: Path) -> None:
    folder = path / "0/.shardwright-edit"
    folder.mkdir()
    (folder / "c.0.0.0.journal").write_bytes(b"")


def _with_levels(path: Path) -> None:
    run_cli("pyramid", "--levels", "1", "--no-idle", path, check=True)


def _interrupted_levels(path: Path) -> None:
    (path / "0/.compact/levels").mkdir(parents=True)


def _rechunked(path: Path) -> None:
    other = path.with_name("other.ome.zarr")
    run_cli("rechunk", path, other, "--chunks", "t=2,y=16,x=16", "--no-idle", check=True)
    shutil.rmtree(path)
    other.rename(path)


def _interrupted_copy(path: Path) -> None:
    (path / ".compact").mkdir()
    (path / ".compact/move.0123456789abcdef.job").write_text("{}")


def _moved(path: Path) -> None:
    shutil.rmtree(path)
    (path / ".compact").mkdir(parents=True)
    (path / ".compact/move.0123456789abcdef.job").write_text("{}")


def _archived(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"PK")


def _of_an_earlier_release(path: Path) -> None:
    table = document(path / "frames")
    del table["attributes"]["shardwright"]["acquisition"]
    (path / "frames/zarr.json").write_text(json.dumps(table))


def _cropped(path: Path) -> None:
    zarr.open_array(path / "0").resize((5, SIZE, SIZE))


def _upgraded(path: Path) -> None:
    group = document(path)
    group["attributes"]["ome"]["version"] = "0.9"
    (path / "zarr.json").write_text(json.dumps(group))


def _with_a_workspace(path: Path) -> None:
    (path / ".shardwright").mkdir()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_edited, ResumeError, "was updated since it was acquired.*create a new store"),
        (_erased, ResumeError, "was updated since it was acquired.*create a new store"),
        (_interrupted_edit, ResumeError, "an update of .* was interrupted.*shardwright recover"),
        (_with_levels, ResumeError, r"has other levels.*\['0'\].*\['0', '1'\].*levels=N"),
        (_interrupted_levels, ResumeError, "levels of .* are being made.*Delete"),
        (_rechunked, ResumeError, "is not as it was acquired: it was rechunked.*another attributes, codecs"),
        (
            _interrupted_copy,
            ResumeError,
            "a copy or a move of .* was interrupted.*shardwright compact .* --to",
        ),
        (_moved, ResumeError, "was moved away.*where it is now"),
        (_archived, ResumeError, "is one file.*Unzip"),
        (_of_an_earlier_release, ResumeError, "does not tell how it was acquired.*create a new store"),
        (_cropped, ResumeError, "is not as it was acquired.*cropped.*another shape"),
        (_upgraded, ResumeError, "another version of OME-Zarr; expected 0.5; got 0.9"),
        (_with_a_workspace, LockedError, "has a workspace.*shardwright recover"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_store_that_a_job_has_changed_says_why_it_does_not_go_on(
    tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    change(path)
    before = files_of(path)
    with pytest.raises(error, match=message):
        sw.resume(path)
    assert files_of(path) == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.ome.zarr"], "nothing beside it"


@pytest.mark.parametrize("lock", ["0/.compact/lock", ".compact/move.lock"])
def test_a_store_on_which_a_job_is_at_work_does_not_go_on(tmp_path: Path, lock: str) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    (path / lock).parent.mkdir()
    held = StoreLock.take(path / lock)
    with pytest.raises(LockedError):
        sw.resume(path)
    held.release()
    go_on(path, 1)


def test_of_two_writers_one_goes_on(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    with sw.resume(path) as writer, pytest.raises(LockedError, match=f"process {os.getpid()}"):
        sw.resume(path)
    assert writer.receipt.frames_stored == 10
    others: list[sw.Writer] = []

    def another() -> None:
        failpoints.set_hook("log.before_create", None)
        others.append(sw.resume(path))

    failpoints.set_hook("log.before_create", another)
    try:
        with pytest.raises(LockedError, match="has a workspace: another writer goes on with it"):
            sw.resume(path)
    finally:
        failpoints.set_hook("log.before_create", None)
    others[0].close()
    assert_whole(path, 10)


def _unordered(table: dict[str, Any], folder: Path) -> None:
    for name in ("index_t", "sequence"):
        column = zarr.open_array(folder / name)
        values = column[:]
        column[:] = np.concatenate([values[::2], values[1::2]])


def _damaged_record(table: dict[str, Any], folder: Path) -> None:
    table["acquisition"]["manifest"]["identity"] = "f" * 32


@pytest.mark.parametrize("change", [_unordered, _damaged_record])
def test_a_table_that_another_program_has_changed_is_refused_before_anything_is_done(
    tmp_path: Path, change: Any
) -> None:
    path = make(tmp_path / "a.ome.zarr", 20, **PLAIN)
    table = document(path / "frames")
    change(table["attributes"]["shardwright"], path / "frames")
    (path / "frames/zarr.json").write_text(json.dumps(table))
    before = files_of(path)
    with pytest.raises(ShardFormatError, match=r"another order|record of the acquisition is damaged"):
        sw.resume(path)
    assert files_of(path) == before


# ---------------------------------------------------------------------- kills

LIFE = """
import sys, numpy as np, shardwright as sw
from shardwright.disk.failpoints import load_from_environment
from tests.acquire.test_goes_on import go_on
load_from_environment()
go_on(sys.argv[1], 9)
"""
KILLS = 14  # at calls that are as far from each other; the simulation has all of them


def _points_of_a_life(path: Path) -> int:
    points: list[str] = []
    failpoints.watch_all(points.append)
    try:
        go_on(path, 9)
    finally:
        failpoints.watch_all(None)
    return len(points)


def _whoever_reads(path: Path) -> tuple[Any, ...]:
    """What others find in the files, without our readers."""
    table = zarr.open_group(path / "frames", mode="r")
    image = zarr.open_group(path, mode="r")["0"]
    return table["sequence"][:].tolist(), np.asarray(image)[:10].tolist()


def test_a_life_that_is_killed_at_any_moment_leaves_all_that_was_finished(tmp_path, shared_pool) -> None:
    origin = make(tmp_path / "origin.ome.zarr", 10, **PLAIN)
    expected = _whoever_reads(origin)
    calls = _points_of_a_life(shutil.copytree(origin, tmp_path / "counted.ome.zarr"))
    codes = []
    for at in range(1, calls, calls // KILLS):
        path = shutil.copytree(origin, tmp_path / f"at{at}" / "a.ome.zarr")
        killed = run_python("-c", LIFE, path, env={**os.environ, "SHARDWRIGHT_FAILPOINTS": f"*=kill@{at}"})
        codes.append(killed.returncode)
        assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr
        sequences, pixels = _whoever_reads(path)
        assert (set(expected[0]) <= set(sequences), pixels) == (True, expected[1])
        receipts = frame_table_of(path).receipts  # type: ignore[union-attr]
        assert receipts[0] == frame_table_of(origin).receipts[0]  # type: ignore[union-attr]
        if beneath.exists(path / ".shardwright"):
            recover_store(path, shared_pool, threads=1)
        table = sw.frame_table(path)
        kept, lost = set(table["index_t"][table["status"] == "stored"]), table[table["status"] == "lost"]
        assert kept >= set(range(10))
        # Of a slab that was not encoded yet, while frames behind it were staged: nobody was told that it is.
        assert set(lost["reason"]) <= {"not_acknowledged"}
        with sw.resume(path) as writer:
            for number in sorted(set(range(19)) - kept):
                writer.append(frame(number), index=(number,))
        assert_whole(path, 19, lost=len(lost))
        assert frame_table_of(path).receipts[0] == receipts[0]  # type: ignore[union-attr]
    assert codes.count(0) <= 1, "only the last call may come too late: threads share the count"


def test_no_reader_finds_the_store_without_its_frame_table(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    rows = []

    def look(_: str) -> None:
        rows.append(document(path / "frames")["attributes"]["shardwright"]["rows"])

    failpoints.watch_all(look)
    try:
        go_on(path, 9)
    finally:
        failpoints.watch_all(None)
    assert set(rows) == {10, 19}
    assert rows == sorted(rows)


def test_a_filesystem_that_cannot_exchange_names_has_the_table_in_two_steps(tmp_path, monkeypatch) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise StorageError("it cannot") from OSError(22, "EINVAL")

    monkeypatch.setattr("shardwright.store.frame_table_writer.exchange", refuse)
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    go_on(path, 9)
    assert_whole(path, 19)


def test_a_store_that_was_taken_over_before_keeps_apart_from_that_writer(tmp_path, shared_pool) -> None:
    """Who hangs may still be about to rename a file by its name."""
    path = tmp_path / "a.ome.zarr"
    hangs = sw.create(path, shape=(None, SIZE, SIZE), dtype="uint16", **PLAIN)
    hangs.append(frame(0))
    hangs.flush()
    with sw.resume(path, take_over=True) as writer:
        writer.append(frame(1))
    with sw.resume(path) as writer:
        manifest = read_manifest(path / ".shardwright")
        assert manifest.files_epoch
        assert (path / f".shardwright/taken-{manifest.files_epoch}/frames.log").exists()
        writer.append(frame(2))
    with pytest.raises(sw.errors.ShardwrightError):
        hangs.close()
    assert_whole(path, 3)


def test_spilled_shards_stay_where_they_are_and_others_join_them(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    settings = sw.WriteSettings(spill_root=spill)
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN, on_full="spill", settings=settings)
    shard, there = path / "0/c/0/0/0", spill / "a.ome.zarr/0/c/0/0/0"
    there.parent.mkdir(parents=True)
    shutil.move(shard, there)
    shard.symlink_to(there)
    go_on(path, 9)
    assert shard.is_symlink()
    assert_whole(path, 19)
    assert not (spill / "a.ome.zarr/.shardwright").exists()


def test_a_life_that_is_killed_as_it_begins_to_spill_does_not_hinder_the_next(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    path = make(
        tmp_path / "a.ome.zarr", 10, **PLAIN, on_full="spill", settings=sw.WriteSettings(spill_root=spill)
    )
    killed = run_python(
        "-c", LIFE, path, env={**os.environ, "SHARDWRIGHT_FAILPOINTS": "store.before_rename=kill"}
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (spill / "a.ome.zarr/.shardwright").exists()
    go_on(path, 9)
    assert_whole(path, 19)
    assert not any(spill.iterdir())


def test_spilled_shards_of_another_store_are_not_taken_for_its_own(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    path = make(
        tmp_path / "a.ome.zarr", 10, **PLAIN, on_full="spill", settings=sw.WriteSettings(spill_root=spill)
    )
    (path / "notes.txt").symlink_to(tmp_path)
    (spill / "a.ome.zarr/0/c/1/0").mkdir(parents=True)
    (spill / "a.ome.zarr/0/c/1/0/0").write_bytes(b"of another store")
    with pytest.raises(OutputExistsError, match="of another store of this name"):
        go_on(path, 9)


@pytest.mark.parametrize(
    ("change", "message"), [(_edited, "was updated since"), (_with_levels, "has other levels")]
)
def test_a_job_that_comes_and_ends_while_the_frame_table_is_read_is_noticed(
    tmp_path: Path, change: Any, message: str
) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)

    def meanwhile() -> None:
        failpoints.set_hook("log.before_create", None)
        change(path)

    failpoints.set_hook("log.before_create", meanwhile)
    try:
        with pytest.raises(ResumeError, match=message):
            sw.resume(path)
    finally:
        failpoints.set_hook("log.before_create", None)
    assert not (path / ".shardwright").exists()


def test_an_update_that_has_no_journal_yet_is_noticed(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    with shard_locked(path / "0", "c/0/0/0"), pytest.raises(LockedError, match="a job is at work"):
        sw.resume(path)
    go_on(path, 1)


def test_a_link_in_place_of_the_workspace_is_named(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    (path / ".shardwright").symlink_to(tmp_path)
    with pytest.raises(LinkError, match=r"\.shardwright is a symbolic link"):
        sw.resume(path)


def test_metadata_that_were_corrected_after_the_end_stay_so(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, shape=(None, SIZE, SIZE), dtype="uint16", **PLAIN) as writer:
        writer.append(frame(0))
        writer.update_metadata({"who": "mee", "stain": "blue"})
    zarr.open_group(path).attrs.update({"who": "me", "more": 1})
    for _ in range(2):
        go_on(path, 1)
        found = document(path)["attributes"]
        assert (found["who"], found["stain"], found["more"]) == ("me", "blue", 1)


def test_a_plate_that_went_on_says_when_its_last_part_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, shape=(None, SIZE, SIZE), dtype="uint16", plate={"rows": 1, "columns": 1}) as writer:
        writer.append(frame(0), image="A/1/0")
    (first,) = document(path)["attributes"]["ome"]["plate"]["acquisitions"]
    go_on(path, 1)
    (second,) = document(path)["attributes"]["ome"]["plate"]["acquisitions"]
    assert second["endtime"] >= first["endtime"]
    assert second["starttime"] == first["starttime"]


def test_receipts_whose_file_is_damaged_are_those_of_the_table(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    with sw.resume(path) as writer:
        (path / ".shardwright/receipts.json").write_text("{")
        writer.append(frame(10))
    receipts = frame_table_of(path).receipts  # type: ignore[union-attr]
    assert [part.counts["frames_stored"] for part in receipts] == [10, 11]


def test_a_record_that_names_a_file_elsewhere_is_damaged(tmp_path: Path) -> None:
    path = make(tmp_path / "a.ome.zarr", 10, **PLAIN)
    table = document(path / "frames")
    facts = {"format": 1, "attributes": {}}
    updates = {"metadata.json/../../../evil": {**facts, "crc32c": checksum(facts)}}
    table["attributes"]["shardwright"]["acquisition"]["updates"] = updates
    (path / "frames/zarr.json").write_text(json.dumps(table))
    with pytest.raises(ShardFormatError, match="record of the acquisition is damaged"):
        sw.resume(path)


def _killed_at(path: Path, failpoint: str) -> dict[str, bytes]:
    """A finished store, and a life of it that is killed there. Returns the files before."""
    before = files_of(make(path, 5))
    killed = run_python("-c", LIFE, path, env={**os.environ, "SHARDWRIGHT_FAILPOINTS": failpoint})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (path / ".compact").is_dir()
    return before


@pytest.mark.parametrize(
    ("at", "next_one"),
    [("lock.before_delete=kill", "resume"), ("compact.before_remove_work_folder=kill", "recover")],
)
def test_a_life_that_is_killed_before_it_lets_moves_go_leaves_no_lock_of_them(
    tmp_path: Path, shared_pool: WorkerPool, at: str, next_one: str
) -> None:
    path = tmp_path / "a.ome.zarr"
    _killed_at(path, at)
    if next_one == "resume":
        with sw.resume(path):
            assert not (path / ".compact").exists()
    else:
        recover_store(path, shared_pool, threads=1)
    assert_whole(path, 5)
    assert not (path / ".compact").exists()


@pytest.mark.parametrize(
    ("at", "next_one"),
    [
        ("lock.before_open=kill@3", "resume"),
        ("lock.before_open=kill@3", "recover"),
        ("store.before_rename=kill", "recover"),
        ("store.before_rename=kill", "compact"),
    ],
)
def test_a_life_that_is_killed_before_the_store_is_unfinished_leaves_what_nobody_sees(
    tmp_path: Path, shared_pool: WorkerPool, at: str, next_one: str
) -> None:
    """The lock against moves, or the folder of it alone: until the next writer, job or recovery."""
    path = tmp_path / "a.ome.zarr"
    before = _killed_at(path, at)
    found = {name: data for name, data in files_of(path).items() if not name.startswith(".compact/")}
    assert found == before
    assert_whole(path, 5)
    assert not open_store(path).work_in_progress
    if next_one == "resume":
        go_on(path, 2)
        assert_whole(path, 7)
    elif next_one == "recover":
        for left in unfinished_stores(tmp_path):
            recover_store(left, shared_pool, threads=1)
        assert [each.name for each in tmp_path.iterdir()] == [path.name]
        assert files_of(path) == before
    else:
        run_cli("compact", path, "--to", tmp_path / "copy")
    assert not (path / ".compact").exists()
