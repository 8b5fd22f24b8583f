"""Rows that an early end sealed take frames again. Ends here are those of a sealer that died: what it leaves
is what a kill leaves."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.json_process import wait_for
from tests.harness.store_contents import snapshot
from tests.harness.told_events import logged
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import closed_shard_rows
from shardwright.acquire.acquisition import Acquisition, AcquisitionState
from shardwright.acquire.closed_shard_rows import EarlierMemory, EarlierShardRow, SealedShardRows
from shardwright.acquire.commands import SlabReload
from shardwright.acquire.earlier_shard_rows import EarlierShardRows
from shardwright.acquire.limits import Limits
from shardwright.acquire.shard_rows import ShardRow
from shardwright.acquire.states import FilesState, ShardRowState
from shardwright.acquire.verdicts import REFUSALS, FrameVerdict, Stored
from shardwright.array.grid import Grid, Grids
from shardwright.disk import failpoints
from shardwright.model.errors import StorageFullError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.model.write_settings import WriteSettings
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.recovery.resume import resume as take_up
from shardwright.shard.frame_record import PASSED_OVER, record_dtype
from shardwright.shard.sealed_shard import SealedShard
from shardwright.wire.descriptor import DESCRIPTOR
from shardwright.wire.messages import IMAGE_SHIFT

from .conftest import sealer_is_done

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.usefixtures("each_file_syncs_alone"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
QUICK: dict[str, Any] = {"store_within_ms": 20, "sync_interval_ms": 20}
# no frame of a whole slab is staged, however slow the test: recovery would find that copy of a frame whose
# chunk is spoiled
ONLY_IN_CHUNKS: dict[str, Any] = {"store_within_ms": 3_600_000}


class _Died(BaseException):
    pass


def _die() -> None:
    raise _Died


def _eio() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def at_point() -> Iterator[Callable[[str, Callable[[], None] | None], None]]:
    points = []

    def at(point: str, hook: Callable[[], None] | None) -> None:
        points.append(point)
        failpoints.set_hook(point, hook)

    yield at
    for point in points:
        failpoints.set_hook(point, None)


def frame(i: int) -> np.ndarray:
    return np.full((4, 6), i + 1, np.uint16)


def read(path: Path) -> np.ndarray:
    return zarr.open_array(path / "0", mode="r")[...]


def rows(path: Path) -> list[tuple[int, int, int]]:
    table = zarr.open_group(path / "frames", mode="r")
    return sorted(zip(*(table[name][:].tolist() for name in ("sequence", "status", "reason")), strict=True))


def end_early(
    writer: sw.Writer, at_point: Callable[..., None], point: str = "workspace.before_manifest"
) -> None:
    """``close``, whose sealer dies at ``point``: by default when everything is sealed, and only the workspace
    is left."""
    at_point(point, _die)
    with pytest.raises(sw.errors.ShardwrightError):
        writer.close()
    at_point(point, None)


def ended(
    path: Path, spec: sw.ArraySpec, frames: int, at_point: Callable[..., None], **settings: Any
) -> None:
    writer = sw.create(path, spec, **how(**{**QUICK, **settings}))
    for i in range(frames):
        writer.append(frame(i))
    writer.flush()
    end_early(writer, at_point)


@pytest.mark.parametrize("durability", ["stored", "durable"])
@pytest.mark.parametrize(("chunk", "shard", "first"), [(1, 8, 5), (4, 2, 6), (4, 2, 3), (2, 2, 4)])
def test_an_end_that_was_not_reached_changes_nothing(
    tmp_path, spec_of, at_point, chunk, shard, first, durability
):
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=chunk, shard=shard), first, at_point, durability=durability)
    with sw.resume(path, durability=durability, **how(**QUICK)) as writer:
        for i in range(first, 20):
            writer.append(frame(i))
        writer.flush()
        assert (writer.watermark.stored, writer.watermark.durable) == (20, 20)
    receipt = writer.receipt
    assert (
        receipt.frames_received,
        receipt.frames_stored,
        receipt.frames_durable,
        receipt.frames_missing,
    ) == (20, 20, 20, 0)
    assert receipt.shards == 2 * -(-20 // (chunk * shard)), "a shard that was replaced is one shard"
    assert np.array_equal(read(path), [frame(i) for i in range(20)])
    assert rows(path) == [(i, FrameStatus.STORED, Reason.NONE) for i in range(20)]


def test_a_dry_run_says_what_recovery_does_with_a_row_that_was_opened_again(
    tmp_path, spec_of, at_point, shared_pool
):
    path, left = tmp_path / "a.zarr", tmp_path / "left.zarr"
    ended(path, spec_of(chunk=4), 6, at_point)
    writer = sw.resume(path, **how(**QUICK))
    writer.append(frame(6))
    writer.flush()
    snapshot(path, left)
    writer.close()
    dry = recover_store(left, shared_pool, threads=2, dry_run=True)
    assert set(dry.shard_rows[0].actions.values()) == {"continue"}
    assert (left / "0" / "c" / "0" / "0" / "0").exists(), "readers see the old shard meanwhile"
    done = recover_store(left, shared_pool, threads=2)
    facts = (
        "shard_rows",
        "frames_kept",
        "frames_completed_from_staging",
        "frames_lost",
        "chunks_kept",
        "chunks_dropped",
        "bytes_checked",
    )
    assert [getattr(dry, name) for name in facts] == [getattr(done, name) for name in facts]
    assert (done.frames_kept, done.frames_completed_from_staging) == (7, 3)
    assert np.array_equal(read(left), [frame(i) for i in range(7)])
    assert rows(left) == [(i, FrameStatus.STORED, Reason.NONE) for i in range(7)]


def spoil(file: Path, pixels: np.ndarray) -> None:
    data = bytearray(file.read_bytes())
    copies, at = 0, -1
    while (at := data.find(pixels.tobytes(), at + 1)) >= 0:
        data[at] ^= 0xFF
        copies += 1
    assert copies
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "spoiled", "lost"),
    [("c.0.0.0.partial", 1, [0, 1, 2, 3]), ("staging", 8, [8]), ("c.0.0.0.partial", None, list(range(8)))],
    ids=["a chunk of the new shard", "a frame that was reloaded", "the new shard"],
)
def test_what_is_lost_of_a_row_that_was_opened_again_is_told(
    tmp_path, spec_of, at_point, shared_pool, file, spoiled, lost
):
    """The log has these frames since the row was sealed, and they are no longer where it says."""
    path, left = tmp_path / "a.zarr", tmp_path / "left.zarr"
    spec = spec_of(chunk=4, shard=4, codec=None, y=(4, 4, 1), x=(6, 6, 1))
    ended(path, spec, 10, at_point, **ONLY_IN_CHUNKS)
    writer = sw.resume(path, **how(**QUICK))
    writer.append(frame(10))
    writer.flush()
    snapshot(path, left)
    writer.close()
    if spoiled is None:
        (left / ".shardwright" / file).unlink()
        (left / "0" / "c" / "0" / "0" / "0").unlink()
    else:
        spoil(left / ".shardwright" / file, frame(spoiled))
    dry = recover_store(left, shared_pool, threads=2, dry_run=True)
    done = recover_store(left, shared_pool, threads=2)
    for found in (dry, done):
        assert (found.frames_kept, found.frames_lost, found.frames_unacknowledged) == (
            11 - len(lost),
            len(lost),
            0,
        )
    assert (done.receipt.frames_stored, done.receipt.frames_durable, done.receipt.frames_lost) == (
        11 - len(lost),
        11 - len(lost),
        len(lost),
    )
    assert [sequence for sequence, status, _ in rows(left) if status == FrameStatus.LOST] == lost
    assert [sequence for sequence, status, _ in rows(left) if status == FrameStatus.STORED] == [
        i for i in range(11) if i not in lost
    ]


def test_a_shard_whose_copy_was_lost_stays(tmp_path, spec_of, at_point, shared_pool):
    """All that its successor had: there is nothing to replace it with, and it counts as a shard."""
    path, left = tmp_path / "a.zarr", tmp_path / "left.zarr"
    spec = spec_of(chunk=4, shard=4, codec=None, y=(4, 4, 1), x=(6, 6, 1))
    ended(path, spec, 4, at_point, **ONLY_IN_CHUNKS)
    writer = sw.resume(path, **how(**{**QUICK, **ONLY_IN_CHUNKS}))
    writer.append(frame(4))  # stays in memory
    wait_for(lambda: list((path / ".shardwright").glob("*.journal")), "the shard that is filled again")
    sealer_is_done(writer._acquisition)
    shutil.copytree(path, left)
    writer.close()
    spoil(left / ".shardwright" / "c.0.0.0.partial", frame(1))
    receipt = recover_store(left, shared_pool, threads=2).receipt
    assert (receipt.frames_stored, receipt.frames_lost, receipt.shards) == (0, 4, 1)
    assert np.array_equal(read(left)[:4], [frame(i) for i in range(4)])
    assert verify_store(left).ok


def test_one_end_after_the_other(tmp_path, spec_of, at_point):
    """Each closes the same row; the frame table has every frame once."""
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=4, shard=4), 3, at_point)
    for i in range(3, 9):
        writer = sw.resume(path, **how(**QUICK))
        writer.append(frame(i))
        writer.flush()
        end_early(
            writer,
            at_point,
            ["workspace.before_manifest", "log.before_append", "journal.before_delete"][i % 3],
        )
    with sw.resume(path, **how(**QUICK)) as writer:
        writer.append(frame(9))
    assert (writer.receipt.frames_stored, writer.receipt.frames_late, writer.receipt.frames_duplicate) == (
        10,
        0,
        0,
    )
    assert np.array_equal(read(path), [frame(i) for i in range(10)])
    assert rows(path) == [(i, FrameStatus.STORED, Reason.NONE) for i in range(10)]


@pytest.mark.parametrize(
    ("point", "time_of"),
    [
        ("workspace.before_manifest", 1),
        ("shard.before_index", 1),
        ("shard.before_rename", 2),
        ("journal.before_delete", 1),
    ],
)
def test_the_bytes_of_a_row_that_is_opened_again_count_once(tmp_path, spec_of, at_point, point, time_of):
    """Whatever had been counted for its shards: what they take on disk, what was encoded, or some of each."""
    path, whole, spec = tmp_path / "a.zarr", tmp_path / "b.zarr", spec_of(chunk=4, shard=4)
    with sw.create(whole, spec, **how(**QUICK)) as writer:
        for i in range(8):
            writer.append(frame(i))
    expected = writer.receipt
    writer = sw.create(path, spec, **how(**QUICK))
    for i in range(6):
        writer.append(frame(i))
    writer.flush()
    at_point(point, failpoints.at_time(time_of, _die))
    with pytest.raises(sw.errors.ShardwrightError):
        writer.close()
    at_point(point, None)
    with sw.resume(path, **how(**QUICK)) as writer:
        for i in range(6, 8):
            writer.append(frame(i))
            writer.flush()
            assert writer.receipt.bytes_stored >= 0
    assert (writer.receipt.shards, writer.receipt.bytes_stored) == (expected.shards, expected.bytes_stored)


def test_prepared_shards_without_a_frame_hold_no_places(tmp_path, spec_of, at_point):
    """What is prepared when the writer dies is prepared for the next one, and not sealed by an end."""
    path = tmp_path / "a.zarr"
    writer = sw.create(path, spec_of(chunk=1, shard=4), **how(**QUICK))
    writer.append(frame(0))
    writer.flush()
    end_early(writer, at_point, "shard.before_index")
    writer = sw.resume(path, **how(**QUICK))
    assert set(writer._acquisition._core.shard_rows._prepared) == {1}
    end_early(writer, at_point)
    with sw.resume(path, **how(**QUICK)) as writer:
        for i in range(1, 10):
            writer.append(frame(i))
    assert (writer.receipt.frames_stored, writer.receipt.frames_late, writer.receipt.frames_duplicate) == (
        10,
        0,
        0,
    )
    assert np.array_equal(read(path), [frame(i) for i in range(10)])


def test_frames_go_on_in_the_places_that_they_have(tmp_path, spec_of, at_point):
    """Frames of a slab that is reloaded need not be its first."""
    path, seen = tmp_path / "a.zarr", (1, 3, 6, 7, 9, 11)
    writer = sw.create(path, spec_of(chunk=4, shard=4), **how(**QUICK))
    for i in seen:
        writer.append(frame(i), index=(i,))
    writer.flush()
    end_early(writer, at_point)
    with sw.resume(path, **how(**QUICK)) as writer:
        for i in (8, 10):
            writer.append(frame(i), index=(i,))
        end_early(writer, at_point)
    with sw.resume(path, **how(**QUICK)) as writer:
        writer.append(frame(12), index=(12,))
    stored = {i for i in range(13) if (read(path)[i] == frame(i)).all()}
    assert stored == {*seen, 8, 10, 12}
    assert verify_store(path, threads=1).problems == []


def test_what_newer_frames_had_passed_over_stays_closed(tmp_path, spec_of, shared_pool, drive_of, at_point):
    """The hole of a slab that was closed to relieve the ring: late in the life that closed it, and in every
    life after it."""
    path, settings = (
        tmp_path / "a.zarr",
        WriteSettings(store_within_ms=20, sync_interval_ms=20, ballast_bytes=0),
    )
    drive = drive_of(path, spec_of(chunk=4, shard=8), shared_pool, settings, ring_frames=13)
    drive.submit(0, 1, 3)
    first = 4
    while not drive.acquisition._core.shard_rows.holes._filled:
        drive.submit(first)
        first += 4
        drive.poll()
    drive.until(lambda: drive.acquisition.durable_watermark == drive.submitted)
    drive.still()
    left = tmp_path / "left.zarr"
    shutil.copytree(path, left)
    drive.finish()
    end_early(sw.resume(left, **how(**QUICK)), at_point)
    with sw.resume(left, **how(**QUICK)) as writer:
        for place in (2, 3, 5, first):
            writer.append(drive.pixels(place), index=(place,))
    assert (writer.receipt.frames_late, writer.receipt.frames_duplicate) == (1, 1), (
        "2 was passed over, 3 has a frame"
    )
    assert np.array_equal(read(left)[5], drive.pixels(5)), "the end had closed its slab, nobody else"


def test_a_full_disk_while_a_row_is_opened_again_waits_for_room(tmp_path, spec_of, at_point):
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=4), 6, at_point)
    tries = []

    def full() -> None:
        tries.append(True)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = sw.resume(path, on_full="block", **how(**QUICK))
    at_point("shard.before_preallocate", full)
    for i in range(6, 12):
        writer.append(frame(i))
    assert writer.close().frames_stored == 12
    assert len(tries) > 3
    assert np.array_equal(read(path), [frame(i) for i in range(12)])


def test_a_full_disk_under_policy_fail_leaves_the_row_as_it_was(tmp_path, spec_of, at_point):
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=4), 6, at_point)
    writer = sw.resume(path, **how(**QUICK))

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    at_point("shard.before_preallocate", full)
    with pytest.raises(StorageFullError), writer:
        writer.append(frame(6))  # either this hears of it, or the end
    assert np.array_equal(read(path)[:6], [frame(i) for i in range(6)])


def test_an_io_error_in_a_row_that_was_opened_again_costs_nothing(tmp_path, spec_of, at_point, caplog):
    """Its files are rewritten like those of any row, and still replace the sealed ones."""
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=2, shard=8), 6, at_point)
    with sw.resume(path, durability="durable", **how(**QUICK)) as writer:
        writer.append(frame(6))
        writer.flush()
        at_point("shard.before_sync", failpoints.at_time(1, _eio))
        for i in range(7, 12):
            writer.append(frame(i))
        writer.flush()
    assert "shard_rewritten" in logged(caplog)
    assert writer.receipt.frames_stored == 12
    assert np.array_equal(read(path), [frame(i) for i in range(12)])


def test_an_io_error_while_a_row_is_opened_again_ends_the_acquisition_and_loses_nothing(
    tmp_path, spec_of, at_point
):
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=4), 6, at_point)

    def go_on() -> None:
        with sw.resume(path, **how(**QUICK)) as writer:
            at_point("journal.before_replace", _eio)
            writer.append(frame(6))  # either this hears of the error, or the end

    with pytest.raises(sw.errors.StorageError):
        go_on()
    at_point("journal.before_replace", None)
    assert np.array_equal(read(path)[:6], [frame(i) for i in range(6)])


@pytest.fixture
def resumed(shared_pool) -> Iterator[Callable[..., Acquisition]]:
    made = []

    def resume(path: Path, ring_frames: int | None = None) -> Acquisition:
        settings = WriteSettings(store_within_ms=20, sync_interval_ms=20)
        limits_of = partial(Limits.derive, threads=2, ring_frames=ring_frames)
        made.append(take_up(path, shared_pool, lambda: None, settings, limits_of))
        return made[-1]

    yield resume
    for acquisition in made:
        acquisition.close()


def submit(acquisition: Acquisition, sequence: int, position: int) -> np.ndarray:
    """Returns the pixels, which must last until they are released."""
    pixels, batch = frame(position), np.zeros(1, DESCRIPTOR)
    batch["sequence"], batch["position"] = sequence, position
    acquisition.submit(batch, np.array([pixels.ctypes.data]))
    return pixels


def until(acquisition: Acquisition, condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60  # only so that a hang becomes a failure
    while not condition():
        assert time.monotonic() < end_s
        acquisition.poll(0.01)


def test_a_failure_while_a_row_is_opened_again_leaves_it_as_it_was(tmp_path, spec_of, at_point, resumed):
    """Sealed without the slab that is on its way back, the new shards would take the names of older ones that
    have it."""
    path, begun, go = tmp_path / "a.zarr", threading.Event(), threading.Event()
    ended(path, spec_of(chunk=4, shard=4), 6, at_point)
    acquisition = resumed(path)

    def sync_fails() -> None:
        begun.set()
        assert go.wait(60)
        _eio()

    at_point("sealer.before_commit", sync_fails)
    held = [submit(acquisition, 6, 0)]  # its place is taken: only the log has it
    until(acquisition, begun.is_set)
    held.append(submit(acquisition, 7, 6))
    assert acquisition._core.shard_rows.by_number[0].state is ShardRowState.REOPENING
    go.set()
    sealer_is_done(acquisition)
    until(acquisition, lambda: acquisition.state is AcquisitionState.FAILED)
    assert len(held) == 2
    assert np.array_equal(read(path)[:6], [frame(i) for i in range(6)])
    assert [row for row in rows(path) if row[1] == FrameStatus.STORED] == [
        (i, FrameStatus.STORED, Reason.NONE) for i in range(6)
    ]
    assert verify_store(path, threads=1).problems == []


def test_frames_that_were_taken_back_and_find_no_room_are_left_to_recovery(
    tmp_path, spec_of, at_point, resumed
):
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=4, shard=4), 6, at_point)
    acquisition = resumed(path)
    held = submit(acquisition, 6, 6)
    sealer_is_done(acquisition)  # its report is there
    acquisition._core.table._free.clear()
    until(acquisition, lambda: acquisition.state is AcquisitionState.FAILED)
    acquisition.close()
    assert held is not None
    assert acquisition.take_losses() == []
    with sw.resume(path, **how(**QUICK)) as writer:
        writer.append(frame(7))
    assert np.array_equal(read(path)[[0, 1, 2, 3, 4, 5, 7]], [frame(i) for i in (0, 1, 2, 3, 4, 5, 7)])


@pytest.mark.parametrize(
    ("ring_frames", "others"),
    [(13, [16, 17, 18, 20, 21, 22, 24, 25]), (None, [16, 17, 18, 20, 21, 22, 24, 25, 26, 28, 29, 30])],
    ids=["in the ring", "in the staging area"],
)
def test_a_slab_that_goes_on_waits_for_room(
    tmp_path, spec_of, drive_of, shared_pool, at_point, resumed, ring_frames, others
):
    """Without it the slab would be closed for good, and frames in order late."""
    settings = WriteSettings(store_within_ms=20, sync_interval_ms=20, ballast_bytes=0)
    drive, path = (
        drive_of(tmp_path / "a.zarr", spec_of(chunk=4, shard=4), shared_pool, settings, ring_frames=13),
        tmp_path / "left.zarr",
    )
    drive.submit(*range(6))
    drive.until(lambda: drive.acquisition.durable_watermark == 6)
    drive.still()
    shutil.copytree(drive.path, path)
    drive.finish()
    end_early(sw.resume(path, **how(**QUICK)), at_point)
    acquisition = resumed(path, ring_frames)
    assert acquisition.folder.staging.slots == 13
    held = [submit(acquisition, 6 + i, position) for i, position in enumerate(others)]
    # they are staged, and wait for their slabs
    until(acquisition, lambda: acquisition.durable_watermark == 6 + len(others))
    # what gives the room back must not wait for its turn
    acquisition._core.settings = replace(acquisition.settings, sync_interval_ms=3_600_000)
    held += [submit(acquisition, acquisition.next_sequence, position) for position in (6, 7)]
    until(acquisition, lambda: acquisition.stored_watermark == acquisition.next_sequence)
    acquisition.finish()
    until(acquisition, lambda: acquisition.state is AcquisitionState.SEALED)
    receipt = acquisition.receipt()
    assert (receipt.frames_late, receipt.frames_stored) == (0, 8 + len(others))
    assert np.array_equal(read(path)[[6, 7, *others]], held[-2:] + held[:-2])


def test_slabs_for_which_there_was_no_room_go_on_when_their_row_is_opened_once_more(
    tmp_path, spec_of, at_point, resumed
):
    """Held back by slabs of another row, which wait for their last frames."""
    path, there, gaps = tmp_path / "a.zarr", [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14], (7, 11, 15)
    others = (16, 17, 18, 20, 21, 22)
    writer = sw.create(path, spec_of(chunk=4, shard=4), **how(**QUICK))
    for place in there:
        writer.append(frame(place), index=(place,))
    writer.flush()
    end_early(writer, at_point)
    acquisition = resumed(path, ring_frames=13)
    held = [submit(acquisition, len(there) + i, place) for i, place in enumerate((*others, *gaps))]
    until(acquisition, lambda: acquisition.stored_watermark == len(there) + len(held))
    acquisition.finish()
    until(acquisition, lambda: acquisition.state is AcquisitionState.SEALED)
    assert [name for name, _ in acquisition.take_events()].count("row_reopened") > 1
    assert (acquisition.receipt().frames_late, acquisition.receipt().frames_stored) == (0, 22)
    stored = read(path)
    assert all((stored[place] == frame(place)).all() for place in (*there, *gaps, *others))


def test_a_row_that_is_sealed_before_a_slab_of_it_had_room_is_opened_once_more(
    tmp_path, spec_of, at_point, resumed
):
    """All slabs that were reloaded are full when the frame for the last one comes."""
    path, there, others = tmp_path / "a.zarr", [*range(7), 8, 9, 10, 12, 13, 14], (16, 17, 18, 20, 21, 22)
    writer = sw.create(path, spec_of(chunk=4, shard=4), **how(**QUICK))
    for place in there:
        writer.append(frame(place), index=(place,))
    writer.flush()
    end_early(writer, at_point)
    acquisition = resumed(path, ring_frames=13)
    held = [submit(acquisition, len(there) + i, place) for i, place in enumerate((*others, 7, 15))]
    until(acquisition, lambda: acquisition.stored_watermark == len(there) + len(held))
    until(acquisition, lambda: 0 not in acquisition._core.shard_rows.by_number)
    held.append(submit(acquisition, len(there) + len(held), 11))
    until(acquisition, lambda: acquisition.stored_watermark == len(there) + len(held))
    acquisition.finish()
    until(acquisition, lambda: acquisition.state is AcquisitionState.SEALED)
    assert (acquisition.receipt().frames_late, acquisition.receipt().frames_stored) == (0, 22)
    stored = read(path)
    assert all((stored[place] == frame(place)).all() for place in (*there, 7, 11, 15, *others))


def test_without_a_staging_area_a_slab_that_goes_on_is_refused(tmp_path, spec_of, at_point, resumed):
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=4, shard=4), 6, at_point)
    acquisition = resumed(path)
    at_point("staging.before_sync", _eio)
    held = [submit(acquisition, 6, 16)]
    until(acquisition, lambda: not acquisition._core.scheduler.slots)
    at_point("staging.before_sync", None)
    held += [submit(acquisition, 7 + i, 6 + i) for i in range(6)]
    acquisition.finish()
    until(acquisition, lambda: acquisition.state is AcquisitionState.SEALED)
    assert "row_reopening_failed" in dict(acquisition.take_events())
    assert (acquisition.receipt().frames_late, acquisition.receipt().frames_stored) == (2, 11)
    assert len(held) == 7


def test_a_slab_that_stays_closed_does_so_when_its_row_is_sealed_again(tmp_path, spec_of, at_point, resumed):
    """Said once, slab 0 has no room: the staging area has failed. Nobody has asked for slab 1."""
    path, there = tmp_path / "a.zarr", (0, 1, 2, 4, 5, 6)
    writer = sw.create(path, spec_of(chunk=4, shard=3), **how(**QUICK))
    for place in there:
        writer.append(frame(place), index=(place,))
    writer.flush()
    end_early(writer, at_point)
    acquisition = resumed(path)
    at_point("staging.before_sync", _eio)
    held = [submit(acquisition, 6, 12)]
    until(acquisition, lambda: not acquisition._core.scheduler.slots)
    at_point("staging.before_sync", None)
    held += [submit(acquisition, 7 + i, place) for i, place in enumerate((3, 8, 9, 10, 11))]
    earlier = acquisition._core.shard_rows.earlier
    until(acquisition, lambda: 0 not in earlier)
    until(acquisition, lambda: 0 in earlier)
    assert list(earlier[0].fillable_slabs()) == [1]
    held.append(submit(acquisition, 12, 3))
    acquisition.finish()
    until(acquisition, lambda: acquisition.state is AcquisitionState.SEALED)
    events = [name for name, _ in acquisition.take_events()]
    assert (events.count("row_reopening_failed"), events.count("row_reopened")) == (1, 1)
    assert (acquisition.receipt().frames_late, acquisition.receipt().frames_stored) == (2, 11)
    assert len(held) == 7


def test_a_slab_with_a_damaged_chunk_stays_closed_when_its_row_is_sealed_again(
    tmp_path, spec_of, at_point, resumed
):
    """A frame of it would have the row copied each time. Another, for which there was no room, goes on."""
    path, there, others = tmp_path / "a.zarr", (*range(7), 8, 9, 10), (16, 17, 18, 20, 21, 22)
    spec = spec_of(chunk=4, shard=4, codec=None, chunk_checksum=True, y=(4, 4, 1), x=(6, 6, 1))
    writer = sw.create(path, spec, **how(**{**QUICK, **ONLY_IN_CHUNKS}))
    for place in there:
        writer.append(frame(place), index=(place,))
    writer.flush()
    end_early(writer, at_point)
    acquisition = resumed(path, ring_frames=13)
    spoil(path / "0" / "c" / "0" / "0" / "0", frame(4))
    held = [
        submit(acquisition, len(there) + i, place) for i, place in enumerate((*others, 7, *range(12, 16)))
    ]
    earlier = acquisition._core.shard_rows.earlier
    until(acquisition, lambda: 0 not in earlier)
    until(acquisition, lambda: 0 in earlier)
    assert list(earlier[0].fillable_slabs()) == [2]
    held += [submit(acquisition, len(there) + len(held) + i, place) for i, place in enumerate((7, 11))]
    acquisition.finish()
    until(acquisition, lambda: acquisition.state is AcquisitionState.SEALED)
    assert [name for name, _ in acquisition.take_events()].count("row_reopened") == 2
    assert (acquisition.receipt().frames_late, acquisition.receipt().frames_stored) == (2, 21)


def test_a_row_is_never_sealed_without_what_was_taken_back(tmp_path, spec_of, drive_of, shared_pool):
    drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=4), shared_pool)
    shard_rows, slots = drive.acquisition._core.shard_rows, np.zeros(0, np.int64)
    shard_rows.earlier.remember(0, row_of(drive.grid, [0, 1, 3]), nothing_passed)
    shard_rows.earlier.ask(0, SlabReload((0,), slots))
    shard_rows.earlier.reopened(0, frozenset({0}))
    shard_row = ShardRow(0, slabs=0, state=ShardRowState.OPEN, files_state=FilesState.READY)
    with pytest.raises(AssertionError, match="it would lose frames"):
        shard_rows.seal_if_done(shard_row)
    drive.finish()


def test_a_sealed_shard_that_cannot_be_read_keeps_its_row_closed(tmp_path, spec_of, at_point, caplog):
    """One old file must not end the acquisition; what comes for it is late, and the log says why."""
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=1, shard=8), 5, at_point)
    shard = path / "0" / "c" / "0" / "0" / "0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    with sw.resume(path, **how(**QUICK)) as writer:
        for i in range(5, 12):
            writer.append(frame(i))
    assert (writer.receipt.frames_late, writer.receipt.frames_stored) == (3, 9)
    assert "row_reopening_failed" in logged(caplog)
    assert np.array_equal(zarr.open_array(path / "0", mode="r")[8:12], [frame(i) for i in range(8, 12)])


def put_a_folder(shard: Path) -> None:
    shard.unlink()
    shard.mkdir()


def put_a_pipe(shard: Path) -> None:
    shard.unlink()
    os.mkfifo(shard)


def put_a_link_to_nothing(shard: Path) -> None:
    shard.unlink()
    shard.symlink_to("nowhere")


def leave_it(shard: Path) -> None:
    assert shard.is_file()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (put_a_folder, "not a regular file"),
        (put_a_pipe, "not a regular file"),
        (put_a_link_to_nothing, "is a symbolic link"),
        (leave_it, "Input/output error"),
    ],
)
def test_whatever_keeps_an_old_shard_from_being_read_costs_its_row_only(
    tmp_path, spec_of, at_point, caplog, harm, why
):
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=1, shard=8, y=(4, 4, 1), x=(6, 6, 1)), 5, at_point)
    harm(path / "0" / "c" / "0" / "0" / "0")
    at_point("sealed.before_read", _eio if harm is leave_it else None)
    with sw.resume(path, **how(**QUICK)) as writer:
        for i in range(5, 12):
            writer.append(frame(i))
    assert (writer.receipt.frames_late, writer.receipt.frames_stored) == (3, 9)
    assert why in logged(caplog)["row_reopening_failed"]["reason"]


def delete(store: Path, _: Path) -> None:
    (store / "0" / "c" / "0" / "0" / "0").unlink()


def alter(store: Path, _: Path) -> None:
    spoil(store / "0" / "c" / "0" / "0" / "0", frame(1))


def swap(store: Path, other: Path) -> None:
    shard = Path("0") / "c" / "0" / "0" / "0"
    shutil.copy(other / shard, store / shard)


@pytest.mark.parametrize(("chunk", "first"), [(1, 5), (4, 6)])
@pytest.mark.parametrize(("harm", "checksum"), [(delete, False), (alter, False), (swap, False), (swap, True)])
def test_what_is_not_the_sealed_shard_keeps_its_row_closed(
    tmp_path, spec_of, at_point, caplog, chunk, first, harm, checksum
):
    """New shards with its chunks, or with holes in their place, would have a sum of their own: nobody would
    be told again."""
    path, other = tmp_path / "a.zarr", tmp_path / "b.zarr"
    spec = spec_of(chunk=chunk, shard=8, codec=None, chunk_checksum=checksum, y=(4, 4, 1), x=(6, 6, 1))
    ended(path, spec, first, at_point)
    with sw.create(other, spec, **how(**QUICK)) as writer:
        for i in range(first):
            writer.append(frame(100 + i))
    harm(path, other)
    with sw.resume(path, **how(**QUICK)) as writer:
        for i in range(first, 8 * chunk + 2):
            writer.append(frame(i))
    assert "row_reopening_failed" in logged(caplog)
    assert (writer.receipt.frames_late, writer.receipt.frames_stored) == (8 * chunk - first, first + 2)
    (problem,) = verify_store(path, threads=1).problems
    assert problem.where == "0/c/0/0/0"


def test_a_damaged_chunk_of_a_row_that_is_opened_again_stays_what_it_is(tmp_path, spec_of, at_point):
    """It costs its own frames, which it had cost before, and no other's."""
    path = tmp_path / "a.zarr"
    ended(
        path,
        spec_of(chunk=4, shard=4, codec=None, chunk_checksum=True, y=(4, 4, 1), x=(6, 6, 1)),
        10,
        at_point,
    )
    shard = path / "0" / "c" / "0" / "0" / "0"
    data = bytearray(shard.read_bytes())
    (array,) = open_store(path).arrays
    with SealedShard.open(shard, array.index) as file:
        offsets = file.entries["offset"]
    for chunk in (0, 2):  # a whole slab, and the one that goes on
        data[int(offsets[chunk])] ^= 0xFF
    shard.write_bytes(data)
    with sw.resume(path, **how(**QUICK)) as writer:
        for i in range(10, 16):
            writer.append(frame(i))
    assert (writer.receipt.frames_late, writer.receipt.frames_stored) == (2, 14), (
        "a slab that cannot be decoded stays closed"
    )
    image = zarr.open_array(path / "0", mode="r")
    assert np.array_equal(image[4:8], [frame(i) for i in range(4, 8)])
    assert np.array_equal(image[12:16], [frame(i) for i in range(12, 16)])
    assert {problem.where for problem in verify_store(path, threads=1).problems} == {"0/c/0/0/0"}
    for damaged in (slice(0, 4), slice(8, 12)):
        with pytest.raises(Exception, match="checksum do not match"):
            image[damaged]


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_spilled_row_goes_on_where_it_lies(tmp_path, spec_of, at_point, rewritten):
    """Also if it is written to other files: those below another root would not replace the old ones, from
    which recovery would go on."""
    path, spill = tmp_path / "a.zarr", tmp_path / "second"
    calls, has_room = iter(range(1, 1000)), []

    def first_root_is_full() -> None:
        """For all rows but the first one, until one has begun in the second root."""
        if next(calls) > 2 and not has_room:
            if not any(spill.rglob("*.partial")):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            has_room.append(True)

    at_point("shard.before_preallocate", first_root_is_full)
    writer = sw.create(path, spec_of(chunk=4, shard=4), on_full="spill", **how(spill_root=spill, **QUICK))
    for i in range(22):
        writer.append(frame(i))
    writer.flush()
    end_early(writer, at_point)
    spilled = [link for link in (path / "0" / "c").rglob("*") if link.is_symlink()]
    assert len(spilled) == 2
    with sw.resume(path, on_full="spill", **how(**QUICK)) as writer:
        writer.append(frame(22))
        writer.flush()
        if rewritten:
            at_point("journal.before_sync", failpoints.at_time(1, _eio))
            writer.append(frame(23))
            writer.flush()
            assert (spill / path.name / ".shardwright/1.journal").exists()
            assert not (path / ".shardwright/1.journal").exists()
        for i in range(writer.frames, 40):
            writer.append(frame(i))
    assert writer.receipt.frames_stored == 40
    assert all(link.is_symlink() for link in spilled)
    assert np.array_equal(read(path), [frame(i) for i in range(40)])


# ---------------------------------------------------------------------- the table of ``shard_rows``


def row_of(grid: Grid, places: list[int], passed_over: bool = False) -> EarlierShardRow:
    records = np.zeros(len(places), record_dtype(0))
    records["position"], records["flags"] = places, PASSED_OVER if passed_over else 0
    return EarlierShardRow.of(Grids((grid,)), records)


def nothing_passed() -> np.ndarray:
    return np.array([-1])


_R, _V = ShardRowState, FrameVerdict
CASES = {
    # row: 0 to 7, slabs 0-3 and 4-7; 0, 1 and 3 have a frame: state of the row, passed over, place -> what
    # becomes of a frame there
    "earlier, a free place": (_R.EARLIER, False, 2, _V.REOPENS),
    "earlier, a place that has a frame": (_R.EARLIER, False, 3, _V.DUPLICATE),
    "earlier, passed over": (_R.EARLIER, True, 2, _V.LATE),
    "earlier, passed over, a place that has a frame": (
        _R.EARLIER,
        True,
        3,
        _V.DUPLICATE,
    ),
    "earlier, a slab that was not begun": (_R.EARLIER, True, 5, _V.REOPENS),
    "opened again, a free place": (_R.REOPENING, False, 2, _V.WAITS),
    "opened again, a place that has a frame": (_R.REOPENING, False, 3, _V.DUPLICATE),
    "opened again, passed over": (_R.REOPENING, True, 2, _V.LATE),
    "open, a free place of before": (_R.OPEN, False, 2, _V.SETS_ASIDE),
    "open, a place of before that has a frame": (_R.OPEN, False, 3, _V.DUPLICATE),
    "open, passed over": (_R.OPEN, True, 2, _V.LATE),
    "open, a slab that was not begun": (_R.OPEN, True, 5, _V.TAKEN),
    "closed, to open again": (_R.SET_ASIDE, False, 2, _V.WAITS),
    "closed, to open again, a place that has a frame": (
        _R.SET_ASIDE,
        False,
        3,
        _V.WAITS,
    ),
    "closed for good": (_R.CLOSED, True, 2, _V.LATE),
    "closed for good, a place that has a frame": (_R.CLOSED, True, 3, _V.DUPLICATE),
    "closed for good, a slab that was not begun": (_R.CLOSED, True, 5, _V.LATE),
    "sealed for good": (_R.SEALED, True, 2, _V.LATE),
    "not known": (_R.NEW, False, 2, _V.TAKEN),
}


@pytest.mark.parametrize("case", CASES.values(), ids=[name.replace(" ", "_") for name in CASES])
def test_what_becomes_of_a_frame_whose_slab_collects_nothing(tmp_path, spec_of, drive_of, shared_pool, case):
    state, passed_over, place, verdict = case
    drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=4), shared_pool)
    shard_rows, row = drive.acquisition._core.shard_rows, row_of(drive.grid, [0, 1, 3], passed_over)
    shard_rows.discard_prepared()
    filled = row.holes[0]
    shard_rows.holes.remember(0, filled)
    if state in (ShardRowState.EARLIER, ShardRowState.REOPENING, ShardRowState.SEALED):
        shard_rows.closed.add(0)
    if state in (ShardRowState.EARLIER, ShardRowState.REOPENING):
        shard_rows.earlier.remember(0, row, nothing_passed)
    if state in (ShardRowState.REOPENING, ShardRowState.OPEN, ShardRowState.SET_ASIDE, ShardRowState.CLOSED):
        shard_rows.by_number[0] = ShardRow(0, slabs=2, state=state, done_slabs={0})
        shard_rows.earlier.restore_open(0, row.fillable_slabs())
    if state is ShardRowState.CLOSED:
        shard_rows.holes.remember(1, None)
    assert shard_rows.state_of(0) is state
    slab, within = divmod(place, 4)
    assert shard_rows.verdicts(slab, np.array([within])).tolist() == [verdict]
    assert shard_rows.verdict(0, slab, place) == verdict
    assert verdict not in REFUSALS or shard_rows.may_refuse(slab), "else nobody asks"
    shard_rows.by_number.clear()
    shard_rows.closed = SealedShardRows(drive.acquisition.spec.grids)
    shard_rows.earlier.restore(EarlierMemory(drive.acquisition.spec.grids))
    drive.finish()


def test_rows_that_are_full_are_not_remembered(tmp_path, spec_of, at_point):
    path = tmp_path / "a.zarr"
    ended(path, spec_of(chunk=4), 20, at_point)
    with sw.resume(path, **how(**QUICK)) as writer:
        assert set(writer._acquisition._core.shard_rows.earlier._sealed) == {2}
        writer.append(frame(3), index=(3,))
    assert (writer.receipt.frames_duplicate, writer.receipt.frames_stored) == (1, 20)


@pytest.mark.parametrize("images", [1, 2])
def test_a_row_that_is_being_opened_again_is_not_forgotten(spec_of, monkeypatch, images):
    """However many are sealed meanwhile: the sealer's report asks for it. Each image has its share."""
    monkeypatch.setattr(closed_shard_rows, "REMEMBERED_ROWS", 1)
    grid = Grid.of(spec_of(chunk=4))
    earlier, row = EarlierShardRows(grids_of(grid, images)), row_of(grid, [0, 1, 3])
    earlier.remember(0, row, nothing_passed)
    earlier.ask(0, SlabReload((0,), np.zeros(0, np.int64)))
    for number in range(1, 100):
        earlier.remember(number, row, lambda: np.full(images, 800))
    assert [number for number in range(100) if number in earlier] == [0, *range(101 - 16 * images, 100)]
    assert earlier.reopened(0, frozenset({0})).frames == row.frames


def grids_of(grid: Grid, images: int) -> Grids:
    return Grids(tuple(replace(grid, image=image) for image in range(images)))


@pytest.mark.parametrize(
    ("newest", "is_kept"), [(2, True), (6, True), (7, False), (8, False)], ids=lambda n: str(n)
)
def test_a_row_for_which_frames_in_order_may_come_is_never_forgotten(spec_of, monkeypatch, newest, is_kept):
    """Its image may rest while any number of shard rows of another one are sealed. It has places 0 to 7."""
    monkeypatch.setattr(closed_shard_rows, "REMEMBERED_ROWS", 1)
    grid, image = Grid.of(spec_of(chunk=4)), 1 << IMAGE_SHIFT
    memory, row = EarlierMemory(grids_of(grid, 2)), row_of(grid, [0, 1, 3])
    memory.remember(image, row, nothing_passed)
    for number in range(100):
        memory.remember(number, row, lambda last=8 * number + 7: np.array([last, newest]))
    assert (image in memory) is is_kept
    assert len(list(memory)) == 32, "16 for each image"
    assert memory.pop(99) is row
    assert 99 not in memory


def test_a_row_waits_for_frames_that_have_no_place_yet(drive_of, spec_of, shared_pool, tmp_path):
    """Newer ones may have come as well, and wait behind them."""
    drive = drive_of(tmp_path / "a.zarr", spec_of(chunk=4), shared_pool)
    core = drive.acquisition._core
    core.accounts.newest[0] = 29
    assert core._passed().tolist() == [29]
    waiting = np.zeros(2, record_dtype(0))
    waiting["position"] = 9, 26
    core.arrivals.add(waiting, np.ones(2, np.int64))
    assert core._passed().tolist() == [8]
    assert core.accounts.newest.tolist() == [29], "as before"
    assert [records.size for records in core.arrivals.give_up()] == [2]
    core.accounts.newest[0] = -1
    drive.finish()


def test_a_row_without_a_frame_takes_any(spec_of):
    grid = Grid.of(spec_of(chunk=4))
    assert row_of(grid, []).stored(0, np.array([0])).tolist() == [Stored.NO_SLAB]
