"""Short shards merged into longer ones where they are: every reader reads the same, one array is swapped for
the other at once, and what would be lost with the old one keeps it as it is."""

from __future__ import annotations

import errno
import json
import os
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.cli.app import main
from shardwright.config.model import Compaction
from shardwright.disk import beneath
from shardwright.disk.failpoints import set_hook
from shardwright.model.errors import LockedError, ResumeError, ShardFormatError, StorageFullError
from shardwright.model.names import MOVE_LOCK_NAME, PARITY_FOLDER, WORK_FOLDER
from shardwright.read.store import Store, open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.rework.jobs.merge_shards import merge_shards
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.shard_parity import make_parity
from shardwright.rework.runtime.compaction_queue import QueueEntry
from shardwright.rework.runtime.job_report import no_progress
from shardwright.rework.runtime.work_folder import WorkFolder, locked

from .images import POLITE, damage_a_chunk, read_everywhere, run_here, write_image
from .test_copied_chunks import close_codecs

if TYPE_CHECKING:
    from pathlib import Path


def merge(store: Path, run=run_here, **sizes: int):
    return merge_shards(open_store(store), sizes or {"z": 8}, run, POLITE, no_progress)


def files_of(store: Path) -> set[str]:
    return {path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()}


def test_all_levels_are_merged_without_a_codec_and_read_as_before(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path, attributes={"sample": "liver"})
    add_levels(path, PyramidOptions(2), run_here, throttle=POLITE)
    before = {name: read_everywhere(path / name) for name in "012"}
    facts = {name: dict(zarr.open_array(path / name, mode="r").attrs) for name in "012"}
    QueueEntry(path).add()
    close_codecs(monkeypatch)
    report = merge(path)
    assert (report.merged, report.unmerged, report.failures) == (["0", "1", "2"], {}, {})
    monkeypatch.undo()
    for name, values in before.items():
        np.testing.assert_array_equal(read_everywhere(path / name), values)
        assert parse_array(path / name).shard_shape[0] == 8
        now = dict(zarr.open_array(path / name, mode="r").attrs)
        assert facts[name].pop("shardwright", {}).items() <= now.pop("shardwright").items()
        assert now == facts[name]
    assert verify_store(path).problems == []
    assert QueueEntry(path).is_queued, "the queue of the daemon goes along"
    QueueEntry(path).remove()
    assert not any("/." in f"/{name}" for name in files_of(path)), "nothing is left over"
    assert merge(path).merged == []
    assert merge(path, z=4, t=9).merged == [], "none gets shorter, and no other axis counts"
    sw.update(path, {"z": 3}, 5)
    assert (read_everywhere(path / "0")[3] == 5).all()
    assert verify_store(path).problems == []


def test_several_images_and_arrays_without_shards(tmp_path) -> None:
    path = tmp_path / "positions.ome.zarr"
    dimensions = [sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=1)]
    dimensions += [sw.Dimension(name=name, count=8, chunk_size=8) for name in "yx"]
    spec = sw.ArraySpec(dtype="uint8", dimensions=dimensions)
    images = [sw.Image(name=name, array=spec) for name in ("left", "right")]
    with sw.create(path, sw.AcquisitionSpec(images=images)) as writer:
        for number in range(10):
            writer.append(np.full((8, 8), number + 1, "uint8"), image=("left", "right")[number % 2])
    report = merge(path, t=4)
    assert report.merged == ["0/0", "1/0"]
    for image in range(2):
        found = read_everywhere(path / str(image) / "0")
        assert found[:, 0, 0].tolist() == list(range(image + 1, 11, 2))
        assert parse_array(path / str(image) / "0").shard_shape == (4, 8, 8)
    assert verify_store(path).problems == []
    plain = tmp_path / "plain.ome.zarr"
    values = write_image(plain, shard_chunks=None)
    assert merge(plain).merged == ["0"]
    assert parse_array(plain / "0").shard_shape == (8, 8, 16)
    np.testing.assert_array_equal(read_everywhere(plain / "0"), values)


def cropped(path: Path) -> None:
    zarr.open_array(path / "0", mode="r+").resize((9, 21, 37))


def consolidated(path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        zarr.consolidate_metadata(path)


def labelled(path: Path) -> None:
    (path / "0" / "notes.txt").write_text("of somebody")


def spilled(path: Path) -> None:
    shard = path / "0/c/1/0/0"
    away = path.parent / "spill" / path.name / "0/c/1/0/0"
    away.parent.mkdir(parents=True)
    shard.rename(away)
    shard.symlink_to(os.path.relpath(away, shard.parent))


def with_a_tail(path: Path) -> None:
    shard = path / "0/c/1/0/0"
    data = shard.read_bytes()
    index = 16 * 16 + 4
    shard.write_bytes(data[:-index] + b"of another format" + data[-index:])


def damaged(path: Path) -> None:
    shard = path / "0/c/0/0/0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")


def lost(path: Path) -> None:
    (path / "0/c/1/0/0").unlink()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lost, "is missing"),
        (cropped, "outside of the shape"),
        (consolidated, "consolidated metadata"),
        (labelled, "notes.txt"),
        (spilled, "another disk"),
        (with_a_tail, "belong neither"),
        (damaged, "crc32c"),
    ],
)
def test_what_would_be_lost_with_the_old_array_keeps_it(tmp_path, change, why) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path)
    change(path)
    before = {name: (path / name).read_bytes() for name in files_of(path)}
    report = merge(path)
    assert report.merged == []
    assert why in report.unmerged["0"]
    assert {name: (path / name).read_bytes() for name in files_of(path)} == before


def compacted(path: Path, capsys, *options: str) -> dict:
    """The report of the command."""
    with pytest.raises(SystemExit) as ended:
        main(["compact", str(path), "--shards", "z=8", "--no-idle", "--workers", "1", "--json", *options])
    assert not ended.value.code
    (facts,) = json.loads(capsys.readouterr().out)["stores"]
    return facts


def test_where_names_cannot_be_exchanged_nothing_is_copied(tmp_path, monkeypatch, capsys) -> None:
    """As on NFS. The other steps of a compaction follow."""
    path = tmp_path / "a.ome.zarr"
    values, rename = write_image(path), beneath.rename_with

    def refused(source: Path, target: Path, flags: int) -> None:
        if flags == beneath.RENAME_EXCHANGE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        rename(source, target, flags)

    monkeypatch.setattr(beneath, "rename_with", refused)
    before = {name: (path / name).read_bytes() for name in files_of(path)}
    report = merge(path, lambda tasks: pytest.fail(f"it makes {list(tasks)}"))
    assert report.merged == []
    assert "cannot exchange two names" in report.unmerged["0"]
    assert "shardwright rechunk STORE DEST --shards" in report.unmerged["0"]
    assert {name: (path / name).read_bytes() for name in files_of(path)} == before
    done = compacted(path, capsys)
    assert (done["packed"] + done["skipped"], [*done["unmerged"]]) == (12, ["0"])
    np.testing.assert_array_equal(read_everywhere(path / "0"), values)


def test_a_full_disk_is_no_reason_to_leave_an_array(tmp_path) -> None:
    """Who asked for longer shards must hear that there was no room even to begin."""
    path = tmp_path / "a.ome.zarr"
    write_image(path)

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    set_hook("replace.before_create", full)
    try:
        with pytest.raises(StorageFullError):
            merge(path)
    finally:
        set_hook("replace.before_create", None)


def test_a_merge_that_trims_drops_what_is_outside_in_the_same_pass(tmp_path, capsys) -> None:
    path = tmp_path / "a.ome.zarr"
    values = write_image(path)
    cropped(path)
    facts = compacted(path, capsys, "--trim")
    assert (facts["merged"], facts["unmerged"]) == (["0"], {})
    np.testing.assert_array_equal(read_everywhere(path / "0"), values[:9, :21, :37])
    assert not (found := verify_store(path)).problems
    assert not [warning for warning in found.warnings if warning.where != "frames"]


def test_what_a_merge_that_trims_reads_first_counts_for_its_rate(tmp_path, monkeypatch) -> None:
    path, taken = tmp_path / "a.ome.zarr", []
    write_image(path, codec=None, shape=(10, 21, 37))
    cropped(path)
    cropped_bytes = (path / "0/c/2/0/0").stat().st_size
    monkeypatch.setattr(type(POLITE), "take", lambda _, nbytes: taken.append(nbytes))
    merge_shards(open_store(path), {"z": 8}, run_here, POLITE, no_progress, trim=True)
    assert cropped_bytes in taken


def test_a_merge_that_trims_compares_a_cropped_shard_with_its_record(tmp_path) -> None:
    """Only a part of it is copied, whose sum is not on record."""
    path = tmp_path / "a.ome.zarr"
    write_image(path, codec=None, shape=(10, 21, 37))
    cropped(path)
    shard = path / "0/c/2/0/0"
    data = bytearray(shard.read_bytes())
    data[0] ^= 1
    shard.write_bytes(data)
    report = merge_shards(open_store(path), {"z": 8}, run_here, POLITE, no_progress, trim=True)
    assert "is not the shard" in report.unmerged["0"]


def test_a_damaged_chunk_fails_and_the_next_run_goes_on(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    values = write_image(path)
    damage_a_chunk(path / "0/c/0/0/0")
    report = merge(path)
    assert report.merged == []
    assert [error["code"] for error in report.failures.values()] == ["shard_format"]
    damage_a_chunk(path / "0/c/0/0/0")
    assert merge(path).merged == ["0"]
    np.testing.assert_array_equal(read_everywhere(path / "0"), values)


def test_it_keeps_out_of_the_way_of_jobs_moves_and_acquisitions(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path)
    with WorkFolder.locked(path / "0"), pytest.raises(LockedError):
        merge(path)
    with locked(path, MOVE_LOCK_NAME), pytest.raises(LockedError):
        merge(path)
    assert merge(path).merged == ["0"]
    with pytest.raises(ResumeError):
        sw.resume(path)


def test_a_flipped_bit_does_not_hide_behind_a_shard_that_is_cut_in_two(tmp_path) -> None:
    """Without checksums the record alone shows it; shards of 4 frames, asked for as 6, become such of 8."""
    path = tmp_path / "a.ome.zarr"
    write_image(path, codec=None)
    shard = path / "0/c/1/0/0"
    with parse_array(path / "0").open_shard((1, 0, 0)) as sealed:
        first = int(sealed.entries["offset"][sealed.index.live[0]])
    sound = shard.read_bytes()
    shard.write_bytes(sound[:first] + bytes([sound[first] ^ 1]) + sound[first + 1 :])
    assert list(merge(path, z=6).failures) == ["0: array/c/0/0/0"]
    shard.write_bytes(sound)
    assert merge(path, z=6).merged == ["0"]
    assert parse_array(path / "0").shard_shape[0] == 8


def attributed(path: Path) -> None:
    zarr.open_array(path / "0", mode="r+").attrs["sample"] = "kidney"


@pytest.mark.parametrize("change", [attributed, labelled, consolidated])
def test_what_another_program_adds_meanwhile_is_kept(tmp_path, change) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path)
    before = files_of(path)

    def run(tasks):
        yield from run_here(tasks)
        change(path)

    with pytest.raises(ShardFormatError, match=r"changed while it was read|notes\.txt|consolidated"):
        merge(path, run)
    assert before <= files_of(path)
    report = merge(path)
    assert (report.merged == ["0"]) == (change is attributed)
    assert zarr.open_array(path / "0", mode="r").attrs.get("sample") == ("kidney" if report.merged else None)


def test_each_array_has_a_folder_of_its_own(tmp_path) -> None:
    """``a/b`` and ``a.b`` are two arrays: the job of one must not clear the other's."""
    folders = []
    path = tmp_path / "a.ome.zarr"
    for name in ("a/b", "a.b"):
        image = zarr.create_array(path / name, shape=(4, 4), chunks=(2, 4), dtype="u1", dimension_names="ty")
        image[...] = 1
    store = Store(path, None, tuple(parse_array(path / name) for name in ("a/b", "a.b")))

    def run(tasks):
        folders.extend(str(folder) for folder in (path / WORK_FOLDER).glob("merged.*"))
        yield from run_here(tasks)

    report = merge_shards(store, {"t": 4}, run, POLITE, no_progress)
    assert report.merged == ["a/b", "a.b"]
    assert len(set(folders)) == 2


def updated_while_copied(path: Path, region: dict):
    """Runs tasks, and after the last one an update."""

    def run(tasks):
        yield from run_here(tasks)
        sw.update(path, region, 9)

    return run


def test_an_update_meanwhile_is_kept_and_the_next_run_merges_it(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    values = write_image(path)
    with pytest.raises(ShardFormatError, match="changed while it was read"):
        merge(path, updated_while_copied(path, {"z": 1}))
    values[1] = 9
    np.testing.assert_array_equal(read_everywhere(path / "0"), values)
    assert merge(path).merged == ["0"]
    np.testing.assert_array_equal(read_everywhere(path / "0"), values)
    assert verify_store(path).problems == []


@pytest.mark.parametrize("whole", [True, False])
def test_an_edit_that_was_planned_for_the_old_shards_is_refused(tmp_path, whole) -> None:
    """A whole shard of the old grid would get the name of a part of the new one."""
    path = tmp_path / "a.ome.zarr"
    values = write_image(path, codec=None)
    old = parse_array(path / "0")
    chunk = b"\1" * old.chunk_bytes
    chunks = dict.fromkeys(range(old.chunks_per_shard if whole else 1), chunk)
    waited = False

    def merge_first() -> None:
        nonlocal waited
        if not waited:
            waited = True
            assert merge(path).merged == ["0"]

    set_hook("sums.before_lock", merge_first)  # its last look before it changes anything
    try:
        with pytest.raises(ShardFormatError, match="other shards"):
            edit_shard(old, (2, 0, 0), chunks)
    finally:
        set_hook("sums.before_lock", None)
    np.testing.assert_array_equal(read_everywhere(path / "0"), values)


def test_our_readers_that_have_it_open_never_see_fill_value(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    values = write_image(path)
    view = sw.open_array(path)
    image = zarr.open_group(sw.open(path), mode="r")["0"]
    np.testing.assert_array_equal(view[5:7], values[5:7])
    assert merge(path).merged == ["0"]
    for read in (lambda: view[8:], lambda: image[8:], view.refresh):
        with pytest.raises(sw.errors.ShardwrightError):
            read()
    np.testing.assert_array_equal(sw.open_array(path)[...], values)


def test_parity_goes_with_the_shards_that_it_was_made_of(tmp_path) -> None:
    path = tmp_path / "a.ome.zarr"
    write_image(path)
    _, failures = make_parity(open_store(path), 30, POLITE, 1)
    assert not failures
    assert (path / "0" / PARITY_FOLDER).is_dir()
    assert merge(path).merged == ["0"]
    assert not (path / "0" / PARITY_FOLDER).exists()
    assert not (report := verify_store(path)).problems
    assert not report.warnings


def test_the_command_merges_packs_and_says_so(tmp_path, capsys) -> None:
    path = tmp_path / "a.ome.zarr"
    values = write_image(path)
    facts = compacted(path, capsys, "--order", "morton")
    assert (facts["merged"], facts["unmerged"]) == (["0"], {})
    np.testing.assert_array_equal(read_everywhere(path / "0"), values)
    for wrong in (["--dry-run"], ["--to", str(tmp_path / "b.ome.zarr")]):
        with pytest.raises(SystemExit) as ended:
            main(["compact", str(path), "--shards", "z=8", *wrong])
        assert ended.value.code == 2


@pytest.mark.parametrize("shards", [{"t": 0}, {"t": -1}, {"t": "x"}, {"--to": 3}, {"t,z": 3}, "t=4"])
def test_sizes_that_are_none_are_refused_in_a_configuration(shards) -> None:
    assert Compaction(shards={"t": 32, "z": 4}).shards == {"t": 32, "z": 4}
    with pytest.raises(ValueError, match="shards"):
        Compaction(shards=shards)
