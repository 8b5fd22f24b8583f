"""A loss that breaks a promise, and one for which nothing had been promised: which is which after a crash,
and what becomes of either."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.limits import Limits
from shardwright.disk import failpoints
from shardwright.disk.files import storage_errors
from shardwright.disk.lock import StoreLock
from shardwright.ingest.totals import CLIENT_STREAM
from shardwright.model.errors import FencedError, ShardwrightError, StorageError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.model.names import WORKSPACE
from shardwright.model.write_settings import WriteSettings
from shardwright.recovery import execute
from shardwright.recovery import recover_store as recover_store_module
from shardwright.recovery.recover_store import recover_store
from shardwright.recovery.resume import restore
from shardwright.scan import store_scan
from shardwright.scan.unfinished_store import UnfinishedStore
from shardwright.shard import intact_mark
from shardwright.shard.intact_mark import end_intact, is_intact
from shardwright.shard.manifest import OpenedAs, delete_manifests, read_manifest, write_manifest
from shardwright.store import store_folder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("each_file_syncs_alone")

FRAME = np.ones((4, 6), np.uint16)
FRAMES = 6  # three slabs of two, all in shard row 0
SETTINGS = WriteSettings(store_within_ms=3_600_000, sync_interval_ms=20, ballast_bytes=0)
STAGING = WriteSettings(store_within_ms=20, sync_interval_ms=20, ballast_bytes=0)
LOST, UNTOLD = (FrameStatus.LOST, Reason.NOT_HELD), (FrameStatus.LOST, Reason.NOT_ACKNOWLEDGED)
STORED = (FrameStatus.STORED, Reason.NONE)


@pytest.fixture
def left(tmp_path, shared_pool, drive_of, spec_of):
    """(a store whose writer is gone and had stored all of its frames, its specification)."""

    def make(frames=FRAMES, settings=SETTINGS, **spec):
        drive = drive_of(
            tmp_path / "living.zarr", spec_of(codec=None, **{"shard": 4, **spec}), shared_pool, settings
        )
        drive.submit(*range(frames))
        drive.until(lambda: drive.acquisition.durable_watermark == frames)
        drive.still()
        copy = tmp_path / "left.zarr"
        shutil.copytree(drive.path, copy, symlinks=True)
        drive.finish()
        return copy, drive.spec

    return make


def bring_back(store: Path, pool) -> tuple[int, int, int]:
    """(kept, lost, never acknowledged), as a dry run says and as it then is."""
    dry = recover_store(store, pool, threads=1, dry_run=True)
    done = recover_store(store, pool, threads=1)
    facts = [(found.frames_kept, found.frames_lost, found.frames_unacknowledged) for found in (dry, done)]
    assert facts[0] == facts[1]
    return facts[1]


def extent(store: Path) -> int:
    return int(zarr.open_array(store / "0", mode="r").shape[0])


def statuses(store: Path) -> list[tuple[int, int]]:
    table = zarr.open_group(store / "frames", mode="r")
    rows = sorted(
        zip(*(np.asarray(table[name]).tolist() for name in ("sequence", "status", "reason")), strict=True)
    )
    return [row[1:] for row in rows]


def test_frames_that_were_on_their_way_are_no_loss_and_leave_no_room_at_the_end(left, shared_pool, unfinish):
    store, spec = left()
    unfinish(store, spec, 2)
    assert bring_back(store, shared_pool) == (4, 0, 2)
    assert extent(store) == 4
    assert statuses(store) == [STORED] * 4


def test_a_hole_in_front_of_frames_that_are_kept_is_told_with_its_reason(left, shared_pool, unfinish):
    store, spec = left()
    unfinish(store, spec, 1)
    assert bring_back(store, shared_pool) == (4, 0, 2)
    assert extent(store) == 6
    assert statuses(store) == [*[STORED] * 2, *[UNTOLD] * 2, *[STORED] * 2]


@pytest.mark.parametrize("intact", [True, False])
def test_a_store_in_which_no_frame_was_stored_is_removed_unless_a_loss_is_possible(
    left, shared_pool, unfinish, intact
):
    store, spec = left(frames=2)
    unfinish(store, spec, 0)
    if not intact:
        end_intact(store / WORKSPACE)
    actions = [recover_store(store, shared_pool, threads=1, dry_run=dry).action for dry in (True, False)]
    if intact:
        assert actions == ["would be removed, no frame was stored", "removed, no frame was stored"]
    else:
        assert actions == ["would be sealed", "sealed"]
    assert store.exists() == (not intact)


@pytest.mark.parametrize("slab", [1, 2])
def test_a_slab_that_was_stored_and_does_not_hold_is_lost(left, shared_pool, rot, slab):
    store, spec = left()
    rot(store, spec, slab)
    assert bring_back(store, shared_pool) == (4, 2, 0)
    assert extent(store) == 6
    assert statuses(store).count(LOST) == 2


def test_both_at_once_are_told_apart(left, shared_pool, rot, unfinish):
    store, spec = left()
    rot(store, spec, 0)
    unfinish(store, spec, 2)
    assert bring_back(store, shared_pool) == (2, 2, 2)
    assert extent(store) == 4
    assert statuses(store) == [LOST, LOST, STORED, STORED]


def test_a_shard_that_is_gone_takes_what_was_stored_in_it(left, shared_pool, unfinish):
    store, spec = left()
    unfinish(store, spec, 2)
    (store / ".shardwright" / "c.0.0.0.partial").unlink()
    assert bring_back(store, shared_pool) == (0, 4, 2)


def test_a_shard_that_is_made_anew_has_a_durable_name_before_anything_else(left, shared_pool, points):
    """Frames go on to be stored in it: a power cut must not take it away again."""
    store, _ = left()
    (store / ".shardwright" / "c.0.0.0.partial").unlink()
    points.clear()
    bring_back(store, shared_pool)
    made = points.index("shard.before_preallocate")
    assert points.index("sync .shardwright", made) < points.index("journal.before_clear", made)


@pytest.mark.parametrize("what", ["another boot", "no boot", "log", "records", "damaged before"])
def test_in_doubt_every_missing_frame_may_have_been_acknowledged(left, shared_pool, unfinish, what):
    """A power cut takes pages of the journal; damage takes what would tell."""
    store, spec = left()
    unfinish(store, spec, 2)
    workspace = store / ".shardwright"
    if what == "another boot":
        (workspace / "boot").write_text("00000000-0000-0000-0000-000000000000")
    elif what == "no boot":
        (workspace / "boot").unlink()
    elif what == "log":
        with (workspace / "frames.log").open("r+b") as file:
            file.seek(4096)
            file.write(b"\x01" * 400)
    elif what == "records":
        unreadable_record(workspace / "0.journal", 0)
    else:
        (store / ".shardwright.damaged").mkdir()
    lost_besides = 2 if what == "records" else 0
    assert bring_back(store, shared_pool) == (4 - lost_besides, 2 + lost_besides, 0)
    assert extent(store) == 6


def unreadable_record(journal: Path, frame: int) -> None:
    with journal.open("r+b") as file:
        file.seek(4096 + frame * 128 + 20)
        file.write(b"\xff")


def test_a_journal_that_was_set_aside_leaves_everything_in_doubt(left, shared_pool, unfinish):
    store, _ = left(frames=20)
    with (store / ".shardwright" / "2.journal").open("r+b") as file:
        file.write(b"\xff" * 64)
    recovery = recover_store(store, shared_pool, threads=1)
    assert (recovery.frames_kept, recovery.frames_unacknowledged) == (16, 0)


def test_a_log_that_ends_in_a_header_only_is_what_a_kill_leaves(left, shared_pool, unfinish):
    store, spec = left()
    unfinish(store, spec, 2)
    with (store / ".shardwright" / "frames.log").open("r+b") as file:
        file.seek(4096)
        file.write(b"\x01" * 64)
    assert bring_back(store, shared_pool) == (4, 0, 2)


@pytest.mark.parametrize("spoiled", ["pixels", "record"])
def test_a_staged_frame_that_cannot_be_read_is_lost(left, shared_pool, spoiled):
    store, _ = left(frames=7, chunk=4, settings=STAGING)
    path, area = store / ".shardwright" / "staging", UnfinishedStore.read(store).open_staging()
    assert area is not None
    records, valid = area.read()
    (slot,) = np.flatnonzero(valid & (records["sequence"] == 5))
    place = area.data_offset(int(slot)) if spoiled == "pixels" else area.entry_offset(int(slot))
    area.close()
    with path.open("r+b") as file:
        file.seek(place + 8)
        file.write(b"\xff" * 4)
    assert bring_back(store, shared_pool) == (6, 1, 0)
    assert statuses(store)[5] == LOST


def test_what_was_found_out_is_not_forgotten_when_recovery_dies(left, shared_pool, rot, unfinish):
    store, spec = left()
    rot(store, spec, 0)
    unfinish(store, spec, 1)
    restore(store, partial(Limits.derive, threads=2), SETTINGS, threads=1)[0].close()
    kept, lost, never = bring_back(store, shared_pool)
    assert (kept, lost + never) == (2, 4)
    assert lost >= 2, "in doubt, but never the other way round"


def test_what_is_believed_is_durable_before_anything_goes(left, rot, points):
    """A power cut after a deletion must find what made it right: names in the workspace, the frame log,
    staged frames, and that frames were lost."""
    store, spec = left(frames=7, chunk=2, shard=4, settings=STAGING)
    rot(store, spec, 0)
    workspace = store / ".shardwright"
    (workspace / "5.journal.rewrite").touch()
    points.clear()
    restore(store, partial(Limits.derive, threads=2), SETTINGS, threads=1)[0].close()
    goes = min(points.index("recover.before_delete"), points.index("journal.before_clear"))
    # three manifests: the last is for readers
    _fenced, remembered, _renewed = (i for i, point in enumerate(points) if point == "replace.before_rename")
    before = (
        points.index("sync .shardwright"),
        points.index("log.before_sync"),
        points.index("staging.before_sync"),
        remembered,
    )
    assert max(before) < goes


def test_a_recovery_that_dies_when_all_is_told_says_the_same_again(left, shared_pool, unfinish):
    store, spec = left()
    unfinish(store, spec, 1)
    failpoints.set_hook("workspace.before_manifest", fail)
    try:
        with pytest.raises(StorageError):
            recover_store(store, shared_pool, threads=1)
    finally:
        failpoints.set_hook("workspace.before_manifest", None)
    assert bring_back(store, shared_pool) == (4, 0, 2)


def fail() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_frames_that_are_sent_again_take_their_places(left, drive_of, unfinish):
    store, spec = left()
    unfinish(store, spec, 2)
    with sw.resume(store) as writer:
        assert writer.frames == 4, "the next frame takes the number of one that was never acknowledged"
        for value in (7, 8):
            writer.append(np.full(spec.frame_shape, value, spec.dtype))
    assert (writer.receipt.frames_stored, writer.receipt.frames_lost) == (6, 0)
    assert zarr.open_array(store / "0", mode="r")[4:, 0, 0].tolist() == [7, 8]


def test_a_store_is_intact_until_something_worse_than_a_kill(tmp_path, shared_pool, drive_of, spec_of):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool, SETTINGS)
    workspace = drive.path / ".shardwright"
    drive.submit(0, 1)
    drive.until(lambda: drive.acquisition.durable_watermark == 2)
    assert is_intact(workspace)
    failpoints.set_hook("shard.before_sync", failpoints.at_time(1, fail))
    try:
        drive.submit(2, 3)
        drive.until(lambda: drive.acquisition.durable_watermark == 4)
    finally:
        failpoints.set_hook("shard.before_sync", None)
    assert not is_intact(workspace)
    drive.finish()


class Died(BaseException):
    """Ends the thread that it comes to: it leaves what a kill leaves."""


def die() -> None:
    raise Died


def take_over(store: Path) -> None:
    """From a writer that hangs; whoever took the store over is then killed."""
    held = StoreLock.take(store / ".shardwright" / "lock")
    restore(store, partial(Limits.derive, threads=2), SETTINGS, threads=1, take_over=True)[0].close()
    held.release()


def test_what_was_on_its_way_when_a_writer_was_taken_over_may_have_been_acknowledged(
    left, shared_pool, unfinish
):
    """That writer may have stored it and said so, in its own files, after they were copied."""
    store, spec = left()
    unfinish(store, spec, 2)
    take_over(store)
    assert bring_back(store, shared_pool) == (4, 2, 0)


def test_what_came_after_a_take_over_was_never_acknowledged(left, shared_pool, unfinish):
    store, spec = left()
    take_over(store)
    unfinish(store, spec, 2)
    assert bring_back(store, shared_pool) == (4, 0, 2)


@pytest.mark.parametrize("stream", ["cam", CLIENT_STREAM])
def test_what_a_client_of_two_daemons_sent_to_the_first_one_stays_in_doubt(
    left, shared_pool, unfinish, stream
):
    """That one may have acknowledged frames after its files were copied, with sequences behind all that were
    found: nobody but the client knows."""
    store, spec = left()
    manifest = read_manifest(store / WORKSPACE)
    write_manifest(store / WORKSPACE, replace(manifest, opened_as=OpenedAs({}, 8, stream=stream)))
    take_over(store)
    unfinish(store, spec, 2)
    assert bring_back(store, shared_pool) == (4, 2, 0)


@pytest.mark.parametrize("point", ["replace.before_rename", "take_over.before_delete"])
def test_a_take_over_that_dies_before_it_has_told_leaves_all_in_doubt(left, shared_pool, unfinish, point):
    """At each such call: the mark goes last."""
    store, spec = left()
    unfinish(store, spec, 2)
    deaths = 0
    for number in range(1, 100):
        copy = store.with_name(f"{number}.zarr")
        shutil.copytree(store, copy)
        failpoints.set_hook(point, failpoints.at_time(number, die))
        try:
            take_over(copy)
        except Died:
            deaths += 1
        else:
            break
        finally:
            failpoints.set_hook(point, None)
        assert bring_back(copy, shared_pool) == (4, 2, 0)
    assert deaths >= 2


EIO, FULL = (OSError(number, os.strerror(number)) for number in (errno.EIO, errno.ENOSPC))


@pytest.fixture
def points(monkeypatch):
    """The storage calls from now on; ``sync NAME`` where recovery makes the names in a folder durable."""
    seen: list[str] = []
    sync = execute.sync_directory
    monkeypatch.setattr(
        execute, "sync_directory", lambda path: (seen.append(f"sync {path.name}"), sync(path))
    )
    failpoints.watch_all(seen.append)
    yield seen
    failpoints.watch_all(None)


@pytest.fixture
def failing_at():
    """``failing_at(point, error)``: from now on, every time; None: no more."""
    points: list[str] = []

    def fail_at(point, error=EIO) -> None:
        def hook() -> None:
            raise error

        points.append(point)
        failpoints.set_hook(point, hook if error is not None else None)

    yield fail_at
    for point in points:
        failpoints.set_hook(point, None)


@pytest.mark.parametrize("point", ["log.before_append", "log.before_sync"])
def test_an_error_while_a_shard_is_sealed_leaves_no_store_intact(
    tmp_path, shared_pool, drive_of, spec_of, failing_at, point
):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool, SETTINGS)
    drive.submit(0, 1)
    drive.until(lambda: drive.acquisition.durable_watermark == 2)
    failing_at(point)
    drive.submit(2, 3)
    drive.until(lambda: drive.acquisition.state is AcquisitionState.FAILED)
    assert not is_intact(drive.path / ".shardwright")
    drive.finish()


@pytest.mark.parametrize("point", ["shard.before_sync", "journal.before_sync", "log.before_sync"])
def test_a_recovery_whose_sync_fails_leaves_no_store_intact(left, failing_at, point):
    store, _ = left()
    failing_at(point)
    with pytest.raises(StorageError):
        restore(store, partial(Limits.derive, threads=2), SETTINGS, threads=1)
    assert not is_intact(store / ".shardwright")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_while_a_row_is_opened_again_leaves_no_store_intact(tmp_path, spec_of, failing_at):
    store = tmp_path / "a.zarr"
    writer = sw.create(store, spec_of(chunk=4), **how(store_within_ms=20))
    for _ in range(6):
        writer.append(FRAME)
    failing_at("workspace.before_manifest", Died)
    with pytest.raises(ShardwrightError):
        writer.close()
    failing_at("workspace.before_manifest", None)
    writer = sw.resume(store, **how(store_within_ms=20))
    assert is_intact(store / ".shardwright")
    failing_at("journal.before_replace")
    failing_at("workspace.before_manifest", Died)  # else nothing is left to look at
    writer.append(FRAME)
    with pytest.raises(ShardwrightError):
        writer.close()
    assert not is_intact(store / ".shardwright")


@pytest.mark.parametrize("point", ["shard.before_preallocate", "staging.before_sync"])
def test_of_a_full_disk_only_a_sync_that_fails_ends_it(
    tmp_path, shared_pool, drive_of, spec_of, failing_at, point
):
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool, replace(STAGING, on_full="block"))
    drive.submit(0)
    drive.until(lambda: drive.acquisition.durable_watermark == 1)
    drive.still()
    failing_at(point, FULL)
    drive.submit(*range(1, 21))
    drive.until(
        lambda: {"disk_full", "staging_failed"} & {name for name, _ in drive.acquisition.take_events()}
    )
    assert is_intact(drive.path / ".shardwright") == (point == "shard.before_preallocate")
    failing_at(point, None)
    drive.finish()


def test_a_store_without_a_boot_is_not_intact(tmp_path):
    assert not is_intact(tmp_path)
    end_intact(tmp_path)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    "where", ["shardwright.scan.store_scan.is_intact", "shardwright.recovery.leftovers.is_intact"]
)
def test_a_disk_that_fails_at_a_look_is_a_typed_error(left, shared_pool, monkeypatch, where, dry_run):
    """Of a folder whose own checksum does not hold ``exists`` raises what the system says."""
    store, _ = left()

    def fail(workspace: Path) -> bool:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))

    monkeypatch.setattr(where, fail)
    with pytest.raises(StorageError, match=os.strerror(errno.EBADMSG)):
        recover_store(store, shared_pool, threads=1, dry_run=dry_run)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("where", [store_scan, intact_mark])
def test_what_says_nothing_of_a_file_is_no_damage(left, shared_pool, monkeypatch, where, number):
    """A want of descriptors or memory, or a server that is away: chunks that are sound were cleared."""
    store, _ = left()

    def none_left(path: Path, *_: object, **__: object) -> bytes:
        with storage_errors("read", path):
            raise OSError(number, os.strerror(number))

    with monkeypatch.context() as few:
        few.setattr(where, "read_range", none_left)
        with pytest.raises(StorageError, match=os.strerror(number)):
            recover_store(store, shared_pool, threads=1)
    assert bring_back(store, shared_pool) == (FRAMES, 0, 0)


def test_a_recovery_that_fails_keeps_no_lock(left, shared_pool, monkeypatch):
    store, _ = left()

    def fails(*_: object) -> None:
        raise StorageError("no")

    with monkeypatch.context() as broken:
        broken.setattr(recover_store_module, "_reported", fails)
        with pytest.raises(StorageError, match="no"):
            recover_store(store, shared_pool, threads=1)
    assert recover_store(store, shared_pool, threads=1).frames_kept == FRAMES


def test_who_is_taken_over_at_its_very_end_has_ended_well(tmp_path, shared_pool, drive_of, spec_of):
    """The manifest is gone: whoever takes it over finds a finished store, and no frame to be sealed."""
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    drive.submit(*range(4))
    taken = []

    def take_over() -> None:
        failpoints.set_hook("workspace.before_remove", None)
        taken.append(StoreLock.replace(drive.path / ".shardwright/lock"))

    failpoints.set_hook("workspace.before_remove", take_over)
    assert drive.finish().frames_durable == 4
    assert drive.acquisition.state is AcquisitionState.SEALED
    taken[0].release()


def test_who_is_taken_over_before_its_manifest_goes_has_not_ended(
    tmp_path, shared_pool, drive_of, spec_of, monkeypatch
):
    """It was stopped behind its last look, and the other writer has finished the store: it finds neither a
    manifest nor a workspace, as if it had removed both itself."""
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    drive.submit(*range(4))

    def late(workspace: Path, *, up_to_epoch: int) -> bool:
        monkeypatch.setattr(store_folder, "delete_manifests", delete_manifests)
        sw.resume(drive.path, take_over=True).close()
        return delete_manifests(workspace, up_to_epoch=up_to_epoch)

    monkeypatch.setattr(store_folder, "delete_manifests", late)
    drive.finish()
    assert drive.acquisition.state is AcquisitionState.FAILED
    assert isinstance(drive.acquisition.error, FencedError)


def test_who_is_taken_over_as_its_manifest_goes_has_not_ended(tmp_path, shared_pool, drive_of, spec_of):
    """The other writer has deleted the manifest, and finishes the store while this one is stopped again."""
    drive = drive_of(tmp_path / "a.zarr", spec_of(), shared_pool)
    drive.submit(*range(4))
    others = []

    def take_over() -> None:
        failpoints.set_hook("workspace.before_manifest", None)
        others.append(sw.resume(drive.path, take_over=True))
        failpoints.set_hook("workspace.before_remove", finish)

    def finish() -> None:
        failpoints.set_hook("workspace.before_remove", None)
        others.pop().close()

    failpoints.set_hook("workspace.before_manifest", take_over)
    drive.finish()
    assert isinstance(drive.acquisition.error, FencedError)
    for other in others:
        failpoints.set_hook("workspace.before_remove", None)
        other.close()
