"""Going on after a crash. A crash is a copy of the store's folder at some moment: what a kill would leave,
without a process to kill."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import crc32c
import numpy as np
import pytest
import zarr
from tests.harness.full_disk import full_below
from tests.harness.json_process import wait_for
from tests.harness.store_contents import snapshot
from tests.harness.told_events import logged
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.limits import Limits
from shardwright.disk import failpoints, files, read_file, slot_file
from shardwright.model.errors import (
    FencedError,
    LockedError,
    OutputExistsError,
    ResumeError,
    ShardFormatError,
    StorageError,
)
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.model.write_settings import WriteSettings
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import free_name
from shardwright.recovery.recover_store import recover_store
from shardwright.recovery.resume import restore
from shardwright.shard.frame_log import BLOCK_HEADER_BYTES, HEADER_PAGE_BYTES
from shardwright.shard.intact_mark import is_intact
from shardwright.shard.manifest import read_manifest
from shardwright.shard.shard_sums import ShardSums

from .conftest import sealer_is_done

QUICK = WriteSettings(store_within_ms=20, sync_interval_ms=20, ballast_bytes=0)
UNSTAGED = WriteSettings(store_within_ms=3_600_000, sync_interval_ms=20, ballast_bytes=0)
"""For tests in which what the shards have lost must be lost: under load a frame may be staged for a while,
and is then found there."""


@pytest.fixture
def crash(tmp_path, shared_pool, drive_of, spec_of):
    """``crash(positions, **spec)``: an acquisition that had stored these frames when it died; returns (what
    wrote it, the folder it left)."""

    def make(positions, *, pool=shared_pool, settings=QUICK, name="crashed", **spec):
        drive = drive_of(tmp_path / "living.zarr", spec_of(**spec), pool, settings)
        for position in positions:
            drive.submit(position)
        drive.until(lambda: drive.acquisition.durable_watermark == len(positions))
        drive.still()  # a copy takes time: nothing may move meanwhile
        left = tmp_path / f"{name}.zarr"
        shutil.copytree(drive.path, left, symlinks=True)
        drive.finish()
        return drive, left

    return make


def still(writer) -> None:
    """Until neither the writer's workers nor its sealer have more to do: a copy takes time."""
    driver = writer._driver

    def is_idle() -> bool:
        with driver.lock.turn(), driver.lock:
            driver._collect()  # hands over what was reported
            return driver.acquisition.in_flight == 0

    for _ in range(3):  # what the sealer reports may lead to one more command
        wait_for(is_idle)
        sealer_is_done(driver.acquisition)
    wait_for(is_idle)


def read(path) -> np.ndarray:
    return zarr.open_array(path / "0", mode="r")[...]


def rows(path) -> list[tuple[int, int, int]]:
    table = zarr.open_group(path / "frames", mode="r")
    return sorted(zip(*(table[name][:].tolist() for name in ("sequence", "status", "reason")), strict=True))


def test_channels_outlive_their_writer(crash):
    _, left = crash(range(3), channels=[{"name": "GFP"}])
    with sw.resume(left) as writer:
        assert [channel.name for channel in writer.spec.channels] == ["GFP"]
    (shown,) = zarr.open_group(left, mode="r").attrs["ome"]["omero"]["channels"]
    assert shown["label"] == "GFP"


@pytest.mark.parametrize("index_location", ["end", "start"])
@pytest.mark.parametrize("count", [1, 3, 4, 7, 8, 9, 16, 21])
def test_recovery_seals_every_stored_frame(crash, shared_pool, count, index_location):
    drive, left = crash(range(count), chunk=4, index_location=index_location)
    recovery = recover_store(left, shared_pool, threads=2)
    assert recovery.action == "sealed"
    assert (recovery.frames_kept, recovery.frames_lost) == (count, 0)
    assert recovery.frames_completed_from_staging == count % 4
    assert np.array_equal(read(left), drive.expected(range(count)))
    assert rows(left) == [(i, FrameStatus.STORED, Reason.NONE) for i in range(count)]
    assert not (left / ".shardwright").exists()
    assert recovery.to_dict()["receipt"]["frames_durable"] == count


def names_to_come(left: Path) -> dict[Path, Path]:
    """The final names of shards in progress of the first row, whose folders are made, and these shards."""
    found = {}
    for working in (left / ".shardwright").rglob("c.0.*.partial"):
        name = left / "0" / working.name.removesuffix(".partial").replace(".", "/")
        name.parent.mkdir(parents=True, exist_ok=True)
        found[name] = working
    assert found
    return found


def test_a_file_that_has_the_name_of_a_shard_costs_no_stored_frame(crash, shared_pool):
    """Another program has put it there. Recovery tells that each time, until the name is free."""
    drive, left = crash(range(4), chunk=4)
    names = list(names_to_come(left))
    for name in names:
        name.write_bytes(b"of another program")
    for _ in range(2):
        with pytest.raises(OutputExistsError, match="already there"):
            recover_store(left, shared_pool, threads=2)
    for name in names:
        assert name.read_bytes() == b"of another program"
        name.unlink()
    recovery = recover_store(left, shared_pool, threads=2)
    assert (recovery.frames_kept, recovery.frames_lost) == (4, 0)
    assert np.array_equal(read(left), drive.expected(range(4)))


def test_a_file_that_has_the_name_of_a_shard_is_none_in_the_account(crash):
    _, left = crash(range(4), chunk=4)
    names = list(names_to_come(left))
    for name in names:
        name.write_bytes(b"of another program")
    writer = sw.resume(left)
    for name in names:
        name.unlink()
    writer.close()
    sealed = [path for path in (left / "0" / "c").rglob("*") if path.is_file()]
    assert writer.receipt.shards == len(sealed) == len(names)


@pytest.mark.parametrize("is_unreadable", [False, True])
def test_a_file_that_has_the_name_of_a_shard_is_not_read_whole(
    crash, shared_pool, monkeypatch, is_unreadable
):
    """Nor does one that cannot be read keep the other shards from being recovered."""
    drive, left = crash(range(4), chunk=4)
    names = names_to_come(left)
    for name, working in names.items():
        os.truncate(working, 8 << 20)
        name.write_bytes(working.read_bytes()[:-1] + b"x")
    read_all, read_bytes = files.read_all, []

    def noted(descriptor: int, offset: int, nbytes: int) -> bytes:
        if Path(f"/proc/self/fd/{descriptor}").readlink() in names:
            if is_unreadable:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            read_bytes.append(nbytes)
        return read_all(descriptor, offset, nbytes)

    with monkeypatch.context() as patched:
        for module in (files, read_file):
            patched.setattr(module, "read_all", noted)
        with pytest.raises(OutputExistsError, match="already there"):
            recover_store(left, shared_pool, threads=2)
    assert sum(read_bytes) < 64 << 10
    for name in names:
        name.unlink()
    assert recover_store(left, shared_pool, threads=2).frames_kept == 4
    assert np.array_equal(read(left), drive.expected(range(4)))


def test_a_file_with_all_chunks_of_a_shard_in_progress_is_that_shard(crash, shared_pool, tmp_path):
    """As in a copy of the store, or when a network disk has given the name and told of an error, so that the
    row was written to other files."""
    drive, left = crash(range(4), chunk=4)
    names, sealed = list(names_to_come(left)), tmp_path / "sealed.zarr"
    shutil.copytree(left, sealed, symlinks=True)
    recover_store(sealed, shared_pool, threads=2)
    for name in names:
        shutil.copyfile(sealed / name.relative_to(left), name)
    recovery = recover_store(left, shared_pool, threads=2)
    assert (recovery.frames_kept, recovery.frames_lost) == (4, 0)
    assert recovery.receipt.shards == len(names)
    assert np.array_equal(read(left), drive.expected(range(4)))


@pytest.mark.usefixtures("full_first_root")
def test_a_file_that_has_the_name_of_a_link_costs_no_frame_of_the_spilled_shard(
    tmp_path, shared_pool, drive_of, spec_of
):
    """No shard of its row gets a name. Recovery tells that each time, until the name is free."""
    path, spill = tmp_path / "a.zarr", tmp_path / "second"
    settings = replace(QUICK, on_full="spill", spill_root=spill)
    drive = drive_of(path, spec_of(), shared_pool, settings)
    name = path / "0" / "c" / "1" / "1" / "0"  # the second shard of the second row
    name.parent.mkdir(parents=True)
    name.write_bytes(b"of another program")
    drive.submit(*range(12))
    drive.finish()
    assert isinstance(drive.acquisition.error, OutputExistsError)
    for _ in range(2):
        with pytest.raises(OutputExistsError, match="already there"):
            recover_store(path, shared_pool, threads=2)
        assert not [file for file in (spill / path.name / "0" / "c" / "1").rglob("*") if file.is_file()]
        assert name.read_bytes() == b"of another program"
    name.unlink()
    recovery = recover_store(path, shared_pool, threads=2)
    assert (recovery.frames_kept, recovery.frames_lost) == (12, 0)
    assert recovery.receipt.shards == 6
    assert name.is_symlink()
    assert np.array_equal(read(path), drive.expected(range(12)))


@pytest.mark.parametrize("what", ["nothing", "no mark", "a sync that fails"])
def test_the_page_cache_is_written_again_once_a_sync_has_failed(crash, shared_pool, monkeypatch, what):
    """Whether the writer heard of it, or recovery is the first to."""
    drive, left = crash(range(7), chunk=4)
    workspace, opened, again = left / ".shardwright", [], []
    if what == "no mark":
        (workspace / "boot").unlink()
    fsync, pieces = os.fsync, files.pieces_of

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == "0.journal" and path not in opened and what == "a sync that fails":
            opened.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    def noted(descriptor: int, **options):
        again.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, is_intact(workspace)))
        return pieces(descriptor, **options)

    in_progress = sorted(
        path.name
        for path in workspace.iterdir()
        if path.name in ("frames.log", "staging") or path.suffix in (".partial", ".journal")
    )
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(files, "pieces_of", noted)
    recover_store(left, shared_pool, threads=2)
    assert len(in_progress) >= 5
    expected = {"nothing": [], "no mark": in_progress, "a sync that fails": ["0.journal"]}[what]
    assert sorted(again) == [(name, False) for name in expected], (
        "and it is no longer intact when that begins"
    )
    assert np.array_equal(read(left), drive.expected(range(7)))


def test_a_dry_run_says_what_recovery_does_and_changes_nothing(crash, shared_pool):
    _, left = crash(range(7), chunk=4)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in left.rglob("*")}
    seen: list[int] = []
    dry = recover_store(left, shared_pool, threads=2, dry_run=True, progress=seen.append)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in left.rglob("*")} == before
    done = recover_store(left, shared_pool, threads=2)
    assert dry.action == "would be sealed"
    facts = (
        "shard_rows",
        "frames_kept",
        "frames_completed_from_staging",
        "chunks_kept",
        "chunks_dropped",
        "bytes_checked",
    )
    assert [getattr(dry, name) for name in facts] == [getattr(done, name) for name in facts]
    assert sum(seen) == dry.bytes_checked > 0


def test_going_on_leaves_no_trace_of_the_crash(crash, shared_pool):
    drive, left = crash(range(7), chunk=4)
    writer = sw.resume(left)
    with writer:
        assert writer.frames == 7
        assert (writer.watermark.stored, writer.watermark.durable) == (7, 7)
        for position in range(7, 19):
            writer.append(drive.pixels(position))
    assert (
        writer.receipt.frames_stored == writer.receipt.frames_durable == writer.receipt.frames_received == 19
    )
    assert np.array_equal(read(left), drive.expected(range(19)))
    assert rows(left) == [(i, FrameStatus.STORED, Reason.NONE) for i in range(19)]


def test_a_crash_after_a_crash_while_going_on(crash, shared_pool, tmp_path):
    drive, left = crash(range(7), chunk=4)
    writer = sw.resume(left, **how(store_within_ms=20))
    for position in range(7, 10):
        writer.append(drive.pixels(position))
    writer.flush()
    still(writer)
    again = tmp_path / "again.zarr"
    shutil.copytree(left, again)
    writer.close()
    recovery = recover_store(again, shared_pool, threads=2)
    assert recovery.frames_kept == 10
    assert np.array_equal(read(again), drive.expected(range(10)))


def test_duplicates_late_and_told_frames_survive_with_their_reasons(
    crash, shared_pool, tmp_path, drive_of, spec_of
):
    _, left = crash([0, 1, 1, 2, 3, 0, 4], chunk=2)
    recover_store(left, shared_pool, threads=2)
    statuses = [status for _, status, _ in rows(left)]
    assert statuses == [
        FrameStatus.STORED,
        FrameStatus.STORED,
        FrameStatus.DUPLICATE,
        FrameStatus.STORED,
        FrameStatus.STORED,
        FrameStatus.DUPLICATE,
        FrameStatus.STORED,
    ]


def test_a_chunk_whose_bytes_do_not_hold_costs_its_slab_only(crash, shared_pool, rot):
    """Rot in what was committed: the frames are missing afterwards, and recovery says so."""
    drive, left = crash(range(6), codec=None, shard=4, settings=UNSTAGED)
    rot(left, drive.spec, 0)
    recovery = recover_store(left, shared_pool, threads=2)
    assert (recovery.chunks_dropped, recovery.frames_kept) == (4, 4)
    assert recovery.shard_rows[0].frames_unfinished == 2
    assert np.array_equal(read(left), drive.expected([2, 3, 4, 5], extent=6))
    assert rows(left)[:2] == [(0, FrameStatus.LOST, Reason.NOT_HELD), (1, FrameStatus.LOST, Reason.NOT_HELD)]


def test_a_stale_chunk_with_a_good_inner_checksum_is_not_taken_for_the_journaled_one(crash, shared_pool):
    _, left = crash(range(4), codec=None, shard=4, chunk_checksum=True, y=(4, 4, 1), x=(6, 6, 1))
    (partial,) = left.glob(".shardwright/c.0.0.0.partial")
    stale = bytes(2 * 4 * 6 * 2)
    with partial.open("r+b") as file:
        file.write(stale + crc32c.crc32c(stale).to_bytes(4, "little"))
    assert recover_store(left, shared_pool, threads=2).chunks_dropped == 1


def test_an_entry_of_a_chunk_that_never_reached_the_disk_is_cleared(
    crash, shared_pool, rot, forget, tmp_path
):
    """A power cut kept the journal's entry of a chunk, but neither the chunk nor the records of its frames.
    Later frames of the shard row are all fill value, and power goes again while its empty shard is sealed:
    with that entry the shard would be taken for one that another program deleted."""
    drive, left = crash(range(2), codec=None, shard=4, settings=UNSTAGED, y=(4, 4, 1), x=(6, 6, 1))
    rot(left, drive.spec, 0)
    (left / ".shardwright" / "boot").unlink()
    forget(left, drive.spec, 0)
    with sw.resume(left) as writer:
        for frame in (2, 3):
            writer.append(np.zeros(drive.spec.frame_shape, drive.spec.dtype), index=(frame,))
        writer.flush()
        still(writer)
        again = tmp_path / "again.zarr"
        shutil.copytree(left, again, symlinks=True)
    (again / ".shardwright" / "c.0.0.0.partial").unlink()  # sealing begins with that
    recovery = recover_store(again, shared_pool, threads=2)
    assert recovery.frames_kept == 2
    assert [row for row in rows(again) if row[1] == FrameStatus.STORED] != []


@pytest.mark.parametrize("gone", ["partial", "journal"])
def test_files_that_are_gone_are_said_to_be_gone(crash, shared_pool, gone):
    _, left = crash(range(6), shard=4, settings=UNSTAGED)
    victims = sorted(left.glob(f".shardwright/{'c.0.0.0.partial' if gone == 'partial' else '0.journal'}"))
    for path in victims:
        path.unlink()
    recovery = recover_store(left, shared_pool, threads=2)
    assert recovery.frames_kept == 0
    if gone == "partial":
        assert recovery.shard_rows[0].actions["c/0/0/0"] == "lost"
        assert (left / "0" / "zarr.json").exists()
    else:  # without its journal there is no trace of a frame
        assert recovery.action == "removed, no frame was stored"
        assert not left.exists()


def test_a_damaged_journal_is_set_aside_with_its_shards(crash, shared_pool):
    _, left = crash(range(3), shard=4)
    with (left / ".shardwright" / "0.journal").open("r+b") as file:
        file.write(b"\xff")
    dry = recover_store(left, shared_pool, threads=2, dry_run=True)
    assert set(dry.shard_rows[0].actions.values()) == {"set aside"}
    recover_store(left, shared_pool, threads=2)
    names = {path.name for path in (left / ".shardwright.damaged").iterdir()}
    assert names == {"0.journal", "c.0.0.0.partial", "c.0.1.0.partial"}, "for whoever wants to look"


@pytest.mark.parametrize("damaged", ["0.journal", "c.0.0.0.partial"])
def test_a_shard_that_was_never_named_is_not_missing(crash, shared_pool, damaged):
    """The sums of a row that was about to be sealed are on record. Of a shard that loses all it had they say
    no more that it was sealed."""
    _, left = crash([*range(6), 8, 9], shard=4)
    ShardSums(left / "0").append({f"c/0/{y}/0": 1 for y in range(2)})
    path = left / ".shardwright" / damaged
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert recover_store(left, shared_pool, threads=2).receipt.frames_stored == 2
    assert not [each for each in map(str, verify_store(left).problems) if "although it was sealed" in each]


def test_a_reader_finds_what_is_stored_behind_a_damaged_block_of_the_log(crash, shared_pool):
    """It had read the log further than recovery can. Of the writer that goes on it sees every frame."""
    _, left = crash(range(20), shard=4)
    array = zarr.open_array(sw.open(left), path="0", mode="r")
    assert array[...].any(axis=(1, 2)).sum() == 20
    log = left / ".shardwright" / "frames.log"
    first = HEADER_PAGE_BYTES + BLOCK_HEADER_BYTES
    with log.open("r+b") as file:
        file.seek(first)
        byte = file.read(1)
        file.seek(first)
        file.write(bytes([byte[0] ^ 1]))
    with sw.resume(left, threads=1) as writer:
        for frame in range(24, 40):
            writer.append(np.full((4, 6), frame + 1, np.uint16), index=(frame,))
        writer.flush()
        array = zarr.open_array(array.store, path="0", mode="r")
        for frame in range(24, 40):
            assert (array[frame] == frame + 1).all()


def _torn(journal: bytes) -> bytes:
    """The header as a power cut may leave it: some of its sectors, and the tables never written."""
    return (bytes(512) + journal[512:4096]).ljust(len(journal), b"\0")


@pytest.mark.parametrize(
    "left_of",
    [
        pytest.param(lambda _: b"", id="nothing"),
        pytest.param(lambda _: bytes(100), id="a short file"),
        pytest.param(lambda journal: bytes(len(journal)), id="zeros"),
        pytest.param(lambda journal: journal[:512].ljust(len(journal), b"\0"), id="first sector"),
        pytest.param(_torn, id="other sectors"),
        pytest.param(lambda journal: journal[:3000], id="a part of the header"),
        pytest.param(lambda journal: journal[:4096] + bytes(100), id="not its whole size"),
    ],
)
def test_a_journal_that_was_never_begun_is_no_damage(crash, shared_pool, left_of):
    """The writer died between making the file and syncing its header: nothing was stored in the shard row,
    nothing is kept of it."""
    _, left = crash(range(3), shard=4)
    journal = left / ".shardwright" / "0.journal"
    journal.write_bytes(left_of(journal.read_bytes()))
    assert [
        report.shard_row for report in recover_store(left, shared_pool, threads=2, dry_run=True).shard_rows
    ] == [1], "the next one, prepared"
    recover_store(left, shared_pool, threads=2)
    assert not (left / ".shardwright.damaged").exists()
    assert not (left / ".shardwright").exists()


def test_a_recovery_that_dies_while_it_sets_aside_is_done_again(crash, shared_pool):
    _, left = crash(range(3), shard=4)
    with (left / ".shardwright" / "0.journal").open("r+b") as file:
        file.write(b"\xff")
    for number in (1, 2, 2):
        failpoints.set_hook("recover.before_set_aside", failpoints.at_time(number, _eio))
        with pytest.raises(StorageError):
            recover_store(left, shared_pool, threads=2)
    failpoints.set_hook("recover.before_set_aside", None)
    recover_store(left, shared_pool, threads=2)
    assert {path.name for path in (left / ".shardwright.damaged").iterdir()} == {
        "0.journal",
        "c.0.0.0.partial",
        "c.0.1.0.partial",
    }


def _eio() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class _Died(BaseException):
    """What a sealer that dies at some point leaves is what a kill leaves there."""


def test_a_store_that_recovery_has_finished_goes_on(crash, shared_pool):
    drive, left = crash(range(3))
    recover_store(left, shared_pool, threads=2)
    with sw.resume(left) as writer:
        assert writer.frames == 3
        writer.append(np.zeros(drive.acquisition.spec.arrays[0].frame_shape, "uint16"))
    assert writer.receipt.frames_stored == 4


def test_where_no_store_is_there_is_nothing_to_resume(tmp_path):
    (tmp_path / "other").mkdir()
    for name, found in (("none", "no such folder"), ("other", "another folder or file")):
        with pytest.raises(
            ResumeError, match=f"nothing to resume at .*{name}; expected a store .*; got {found}"
        ):
            sw.resume(tmp_path / name)


def test_only_one_writer_at_a_time(tmp_path, spec_of):
    with (
        sw.create(tmp_path / "a.zarr", spec_of()),
        pytest.raises(LockedError, match=f"process {os.getpid()} on"),
    ):
        sw.resume(tmp_path / "a.zarr")


def test_a_writer_that_was_taken_over_seals_nothing(tmp_path, spec_of, caplog):
    path = tmp_path / "a.zarr"
    old = sw.create(path, spec_of(chunk=4), **how(store_within_ms=20))
    frames = [np.full((4, 6), i + 1, np.uint16) for i in range(20)]
    for frame in frames[:6]:
        old.append(frame)
    old.flush()
    with sw.resume(path, take_over=True) as new:
        assert new.frames == 6
        for frame in frames[6:]:
            new.append(frame)
        old.append(np.full((4, 6), 99, np.uint16))
        old.append(np.full((4, 6), 99, np.uint16))
        with pytest.raises(FencedError):
            old.close()
    assert "io_error" not in logged(caplog), "the old one took no file away from the new one"
    assert np.array_equal(read(path), np.stack(frames))
    assert not (path / ".shardwright").exists()


def test_what_a_writer_that_was_taken_over_still_writes_reaches_no_file_of_the_new_one(tmp_path, spec_of):
    """It was stopped in the middle of a call, and may have any of its files open."""
    path = tmp_path / "a.zarr"
    old = sw.create(path, spec_of(chunk=4), **how(store_within_ms=20))
    frames = [np.full((4, 6), i + 1, np.uint16) for i in range(20)]
    for frame in frames[:6]:
        old.append(frame)
    old.flush()
    links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    workspace = [
        int(link.name)
        for link in links
        if str(link.readlink()).startswith(str(path / ".shardwright")) and link.readlink().name != "lock"
    ]
    assert len(workspace) >= 5, "shards, journals, staging area, frame log"
    with sw.resume(path, take_over=True) as new, mmap.mmap(-1, 1 << 20) as rubbish:
        rubbish.write(b"\xa5" * len(rubbish))
        for descriptor in workspace:
            os.pwrite(descriptor, rubbish, 0)
        for frame in frames[6:]:
            new.append(frame)
    assert np.array_equal(read(path), np.stack(frames))
    assert rows(path) == [(i, FrameStatus.STORED, Reason.NONE) for i in range(20)]
    with pytest.raises(FencedError):
        old.close()


@pytest.mark.parametrize("point", ["sums.before_sync", "workspace.before_manifest"])
def test_a_writer_that_is_taken_over_behind_its_last_look_is_fenced(tmp_path, spec_of, point):
    """The new writer takes over and finishes before the call comes: before the old one looks whether the
    names of its shards are free, which the new one has taken, and as it deletes its manifest."""
    path, taken = tmp_path / "a.zarr", []
    old = sw.create(path, spec_of(chunk=4), **how(store_within_ms=20))
    old.append(np.ones((4, 6), np.uint16))

    def take_over() -> None:
        if not taken:
            taken.append(True)
            sw.resume(path, take_over=True).close()

    failpoints.set_hook(point, take_over)
    try:
        with pytest.raises(FencedError):
            old.close()
    finally:
        failpoints.set_hook(point, None)
    assert taken
    assert not (path / ".shardwright").exists()
    assert rows(path) == [(0, FrameStatus.STORED, Reason.NONE)]


def test_a_damaged_manifest_is_a_clear_error(crash, shared_pool):
    _, left = crash(range(3))
    (left / ".shardwright" / "acquisition.1.json").write_text("{}")
    with pytest.raises(ShardFormatError, match="damaged"):
        recover_store(left, shared_pool, threads=2)


def test_leftovers_of_a_store_that_was_finished_or_never_begun(crash, shared_pool):
    _, left = crash(range(3))
    recover_store(left, shared_pool, threads=2)
    (left / ".shardwright").mkdir()
    (left / ".shardwright" / "frames.log").write_bytes(b"left")
    assert recover_store(left, shared_pool, threads=2, dry_run=True).action == "leftovers would be removed"
    assert recover_store(left, shared_pool, threads=2).action == "leftovers removed"
    assert read(left).shape[0] == 3
    never = left.parent / "never.zarr"
    (never / ".shardwright").mkdir(parents=True)
    recover_store(never, shared_pool, threads=2)
    assert not never.exists()


def test_frames_that_nobody_has_any_more_do_not_hold_the_watermark_up(crash, shared_pool, tmp_path):
    drive, left = crash(range(4), chunk=4, shard=4)
    (left / ".shardwright" / "0.journal").unlink()
    for path in left.glob(".shardwright/c.*"):
        path.unlink()
    shutil.copy(tmp_path / "crashed.zarr" / ".shardwright" / "staging", tmp_path / "unused")
    writer = sw.resume(left)
    writer.append(drive.pixels(4), index=(4,))
    writer.flush()
    assert writer.watermark.durable == writer.frames
    writer.close()


def test_a_full_disk_under_policy_fail_seals_everything_that_was_acknowledged(
    tmp_path, shared_pool, drive_of, spec_of
):
    """Frames whose shard has no room are never acknowledged, not even as staged: the shard's edge is where it
    ends."""
    full = [False]

    def hook() -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failpoints.set_hook("shard.before_preallocate", hook)
    try:
        drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=4), shared_pool, QUICK)
        drive.submit(*range(4))
        drive.until(lambda: drive.acquisition.stored_watermark == 4)
        drive.still()  # the second shard row is prepared
        full[0] = True
        drive.submit(*range(4, 19))
        drive.until(lambda: drive.acquisition.state is AcquisitionState.FAILED)
    finally:
        failpoints.set_hook("shard.before_preallocate", None)
    assert drive.acquisition.stored_watermark == drive.acquisition.durable_watermark == 16
    receipt = drive.finish()
    assert (receipt.frames_stored, receipt.frames_durable, receipt.frames_lost) == (16, 16, 3)
    assert np.array_equal(drive.read()[:16], drive.expected(range(16)))
    assert not (drive.path / ".shardwright").exists(), "nothing is left to recover"
    assert [row for row in rows(drive.path) if row[1] == FrameStatus.LOST] == [
        (i, FrameStatus.LOST, Reason.NOT_ACKNOWLEDGED) for i in (16, 17, 18)
    ]


def test_a_writer_that_goes_on_counts_as_another_client(crash):
    """A daemon's client that comes back would take its frames for its own."""
    _, left = crash(range(3))
    before = read_manifest(left / ".shardwright")
    with sw.resume(left) as writer:
        now = read_manifest(left / ".shardwright")
        assert now.client_epoch == before.client_epoch + 1
        assert now.opened_as == before.opened_as
        writer.append(np.zeros(zarr.open_array(left / "0", mode="r").shape[-2:], np.uint16))
    epochs = sw.frame_table(left)["client_epoch"]
    assert epochs[:4].tolist() == [1, 1, 1, 2]


def test_a_second_root_that_is_not_mounted_stops_recovery(tmp_path, shared_pool, drive_of, spec_of):
    """Else its shards would be holes, and its journals forgotten."""
    spill = tmp_path / "second"
    drive = drive_of(
        tmp_path / "a.zarr",
        spec_of(),
        shared_pool,
        WriteSettings(on_full="spill", spill_root=spill, ballast_bytes=0),
    )
    drive.submit(0, 1, 2)
    drive.acquisition.flush()
    drive.until(lambda: drive.acquisition.durable_watermark == 3)
    drive.still()
    left = tmp_path / "left.zarr"
    shutil.copytree(drive.path, left)
    drive.finish()
    assert not list(spill.iterdir()), "nothing was spilled, nothing is left there"
    with pytest.raises(StorageError, match="which is not there"):
        recover_store(left, shared_pool, threads=2)
    (spill / "left.zarr" / ".shardwright").mkdir(parents=True)
    assert recover_store(left, shared_pool, threads=2).frames_kept == 3


def test_a_store_whose_rows_are_all_below_a_root_that_is_not_mounted_stays(
    tmp_path, monkeypatch, shared_pool, drive_of, spec_of
):
    """Nothing of it is elsewhere: it counted as one to which no frame ever came."""
    spill, path = tmp_path / "second", tmp_path / "a.zarr"
    monkeypatch.setattr(slot_file, "preallocate", full_below(path))
    settings = replace(QUICK, on_full="spill", spill_root=spill)
    drive = drive_of(path, spec_of(), shared_pool, settings)
    drive.submit(0, 1, 2)
    drive.acquisition.flush()
    drive.until(lambda: drive.acquisition.durable_watermark == 3)
    drive.still()
    left = tmp_path / "left.zarr"
    shutil.copytree(path, left)
    shutil.copytree(spill / "a.zarr", tmp_path / "unmounted")
    drive.finish()
    free_name(left)  # a creation of this name then finds it taken, or takes a number
    with pytest.raises(OutputExistsError):
        sw.create(left, shape=(None, 8, 8), dtype="uint16", axes="tyx")
    with pytest.raises(StorageError, match=r"another store's\. Mount the second root"):
        recover_store(left, shared_pool, threads=2)
    (tmp_path / "unmounted").rename(spill / "left.zarr")
    free_name(left)
    assert recover_store(left, shared_pool, threads=2).frames_kept == 3


def test_a_writer_that_goes_on_spills_to_the_root_of_the_store_and_says_so(tmp_path, caplog):
    path, second = tmp_path / "a.zarr", tmp_path / "second"
    dimensions = [
        sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=2),
        *(sw.Dimension(name=name, count=8, chunk_size=8) for name in "yx"),
    ]
    spec = sw.ArraySpec(dtype="uint16", dimensions=dimensions)
    with sw.create(path, spec, on_full="spill", **how(spill_root=second)) as writer:
        writer.append(np.ones((8, 8), np.uint16))
        writer.flush()
        left = snapshot(path, tmp_path / "left.zarr")
        (second / "left.zarr" / ".shardwright").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch, sw.resume(left, on_full="spill") as writer:
        patch.setattr(slot_file, "preallocate", full_below(left))
        for _ in range(9):
            writer.append(np.ones((8, 8), np.uint16))
    assert writer.receipt.frames_stored == 10
    assert any(file.is_symlink() for file in left.rglob("c/*/0/0"))
    assert logged(caplog)["spilling"]["root"] == str(second)


def test_rot_in_the_last_slab_is_said(crash, shared_pool, rot):
    """The frames at the end are known to have come: they are missing and lost, not forgotten."""
    drive, left = crash(range(6), codec=None, shard=4, settings=UNSTAGED)
    rot(left, drive.spec, 2)
    recovery = recover_store(left, shared_pool, threads=2)
    assert (recovery.frames_kept, recovery.frames_lost) == (4, 2)
    assert recovery.receipt is not None
    assert recovery.receipt.frames_missing == 2
    assert [row[1] for row in rows(left)] == [FrameStatus.STORED] * 4 + [FrameStatus.LOST] * 2


def test_rot_and_strangers_among_sealed_shards_do_not_stop_recovery(crash, shared_pool):
    drive, left = crash(range(7), shard=1)
    sealed = sorted(path for path in (left / "0" / "c").rglob("*") if path.is_file())
    with sealed[0].open("r+b") as file:
        file.write(b"\xff")
    (left / "0" / "c" / ".DS_Store").write_bytes(b"?")
    assert recover_store(left, shared_pool, threads=2).frames_kept == 7
    array, rotten = zarr.open_array(left / "0", mode="r"), int(sealed[0].relative_to(left).parts[2])
    for first in range(0, 7, 2):
        if first != 2 * rotten:
            assert np.array_equal(array[first : first + 2], drive.expected(range(7))[first : first + 2])


def test_recovery_on_a_full_disk_begins_in_the_ballast_s_room(crash, shared_pool):
    _, left = crash(
        range(3), settings=WriteSettings(store_within_ms=20, sync_interval_ms=20, ballast_bytes=1 << 20)
    )
    ballast = left / ".shardwright" / "ballast"

    def full() -> None:
        if ballast.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failpoints.set_hook("replace.before_write", full)
    try:
        assert recover_store(left, shared_pool, threads=2).frames_kept == 3
    finally:
        failpoints.set_hook("replace.before_write", None)


def test_a_frame_for_a_hole_of_a_slab_that_was_closed_is_late_after_a_crash_as_well(
    crash, shared_pool, tmp_path, drive_of, spec_of
):
    drive = drive_of(tmp_path / "living.zarr", spec_of(chunk=4, shard=8), shared_pool, QUICK, ring_frames=13)
    drive.submit(0, 1, 3)
    first = 4
    while not drive.acquisition._core.shard_rows.holes._filled:
        # of every following slab one frame, until the oldest slab is closed with its hole
        drive.submit(first)
        first += 4
        drive.poll()
    drive.until(lambda: drive.acquisition.durable_watermark == drive.submitted)
    drive.still()
    left = tmp_path / "left.zarr"
    shutil.copytree(drive.path, left)
    drive.finish()
    with sw.resume(left) as writer:
        writer.append(drive.pixels(2), index=(2,))
        writer.append(drive.pixels(3), index=(3,))
    assert (writer.receipt.frames_late, writer.receipt.frames_duplicate) == (1, 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_frame_for_a_hole_of_a_shard_that_an_end_had_sealed_is_stored_after_a_crash(tmp_path, spec_of):
    """The end was never reached: without it the place would still be open."""
    path = tmp_path / "a.zarr"
    frames = {i: np.full((4, 6), i + 1, np.uint16) for i in range(4)}
    old = sw.create(path, spec_of(chunk=4), **how(store_within_ms=20))
    for i in (0, 1, 3):
        old.append(frames[i], index=(i,))
    failpoints.set_hook("table.before_create", _die)
    try:
        with pytest.raises(sw.errors.ShardwrightError):
            old.close()
    finally:
        failpoints.set_hook("table.before_create", None)
    assert list((path / "0" / "c").rglob("[0-9]")), "its shard is sealed"
    with sw.resume(path) as writer:
        writer.append(frames[2], index=(2,))
        writer.append(frames[3], index=(3,))
    assert (writer.receipt.frames_late, writer.receipt.frames_duplicate) == (0, 1)
    assert np.array_equal(read(path), np.stack([frames[i] for i in range(4)]))


def _die() -> None:
    raise _Died


def test_frames_that_came_are_known_of_even_if_recovery_dies_once_more(crash, shared_pool, rot):
    drive, left = crash(range(6), codec=None, shard=4, settings=UNSTAGED)
    rot(left, drive.spec, 2)
    # the torn slab is cleared from the journal
    restore(left, partial(Limits.derive, threads=2), UNSTAGED, threads=2)[0].close()
    recovery = recover_store(left, shared_pool, threads=2)
    assert (recovery.frames_kept, recovery.frames_lost) == (4, 2)
    assert read(left).shape[0] == 6
