"""Rows of one slab share a journal: their writer is killed around it, it is damaged, readers look into it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.crash.fencing import wait_until_stopped
from tests.harness.batches import IMAGES, TIMES, append, append_first_frames, pixel_of, plate_of_one_slab_rows
from tests.harness.python import run_python, start_python
from tests.harness.writing import how
from tests.upgrades.conftest import contents

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.model.errors import ShardwrightError
from shardwright.model.names import DAMAGED, WORKSPACE
from shardwright.read.live_acquisition import LiveAcquisition
from shardwright.read.live_staging import KeptPixels
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import look_at
from shardwright.recovery.recover_store import recover_store
from shardwright.scan.facts import JournalFact
from shardwright.scan.store_scan import scan
from shardwright.scan.unfinished_store import UnfinishedStore
from shardwright.shard import shared_journal
from shardwright.wire.messages import IMAGE_SHIFT

SCRIPT = """
import signal, sys, threading, time
from pathlib import Path
from tests.crash.fencing import wait_until_stopped
from tests.harness.batches import IMAGES, TIMES, append, append_first_frames, plate_of_one_slab_rows
from shardwright.disk import failpoints
path, point, number, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "first"
def kill():
    # To this thread: a stop that the process gets waits for its main thread, and this one goes on meanwhile.
    signal.pthread_kill(threading.get_ident(), int(sys.argv[5]))
if first:
    failpoints.set_hook(point, failpoints.at_time(number, kill))
writer = plate_of_one_slab_rows(path)
append_first_frames(writer)
writer.flush()
if point == "stored":
    failpoints.set_hook("shard.before_index", threading.Event().wait)
else:
    failpoints.set_hook(point, failpoints.at_time(number, kill))
append(writer, 1, *range(IMAGES))
while point == "stored" and writer.watermark.stored < IMAGES * TIMES:
    time.sleep(0.01)
if point == "stored":
    kill()
writer.close()
"""


@pytest.fixture
def killed(folder):
    def until(point: str, number: int = 1, when: str = "later") -> Path:
        path = folder / "plate.ome.zarr"
        ended = run_python("-c", SCRIPT, path, point, str(number), when, str(int(signal.SIGKILL)))
        assert ended.returncode == -9, ended.stderr
        return path

    return until


def shared_in(store: Path) -> list[Path]:
    return sorted((store / WORKSPACE).glob("rows-*.journal"))


def frames_of(store: Path | object) -> np.ndarray:
    """The first element of each frame, [image, t]; 0 where none is."""
    found = np.zeros((IMAGES, TIMES), np.int64)
    for image in range(IMAGES):
        try:
            array = zarr.open_array(store, path=f"{image}/0", mode="r")
        except FileNotFoundError:
            continue  # no frame of it is sealed
        found[image, : array.shape[0]] = np.asarray(array[:])[:, 0, 0]
    return found


ALL = np.array([[pixel_of(image, t) for t in range(TIMES)] for image in range(IMAGES)])


@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("shard.before_rename", 3),
        ("log.before_append", 1),
        ("journal.before_end", 1),
        ("journal.before_end", 3),
        ("journal.before_delete", 2),
    ],
)
def test_a_kill_around_it_costs_no_stored_frame(killed, shared_pool, point, number):
    store = killed(point, number)
    assert shared_in(store)
    assert (frames_of(sw.open(store))[:, 0] == ALL[:, 0]).all(), "readers see them before recovery"
    recover_store(store, shared_pool, threads=1)
    found = frames_of(store)
    assert (found[:, 0] == ALL[:, 0]).all()
    assert ((found == ALL) | (found == 0)).all()
    assert not (store / WORKSPACE).exists()
    assert not (store / DAMAGED).exists()
    assert verify_store(store).problems == []


def test_what_is_stored_in_it_alone_is_read_and_recovered(killed, shared_pool):
    store = killed("stored")
    assert shared_in(store)
    assert (frames_of(sw.open(store)) == ALL).all()
    recover_store(store, shared_pool, threads=1)
    assert (frames_of(store) == ALL).all()
    assert verify_store(store).problems == []


def test_a_writer_that_resumes_goes_on_in_it(killed):
    store = killed("stored")
    (before,) = shared_in(store)
    seals = threading.Event()
    failpoints.set_hook("shard.before_index", seals.wait)
    try:
        with sw.resume(store) as writer:
            assert before.exists()
            assert shared_in(store) == [before], "no row of it has another one"
            seals.set()
            writer.flush()
    finally:
        failpoints.set_hook("shard.before_index", None)
    assert (frames_of(store) == ALL).all()
    assert not (store / WORKSPACE).exists()


@pytest.mark.parametrize("point", ["journal.before_create", "journal.before_header"])
def test_one_that_was_never_begun_is_nothing(killed, shared_pool, point):
    """The third one: two rows have journals of their own."""
    store = killed(point, 3, "first")
    assert not look_at(store).unbegun or not shared_in(store)
    recover_store(store, shared_pool, threads=1)
    assert not (store / DAMAGED).exists()
    assert not (store / WORKSPACE).exists()


def test_one_with_a_damaged_header_is_set_aside_with_the_shards_that_nothing_else_explains(
    killed, shared_pool
):
    """Nobody knows which rows it was of; a shard that no journal names was deleted, with its frames."""
    store = killed("stored")
    (shared,) = shared_in(store)
    shards = {path.name for path in (store / WORKSPACE).glob("*.partial")}
    with shared.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff")
    recover_store(store, shared_pool, threads=1)
    aside = {path.name for path in (store / DAMAGED).iterdir()}
    assert shared.name in aside
    assert aside - {shared.name} == {name for name in shards if not name.startswith(("0.0.", "1.0."))}
    assert (frames_of(store)[:, 0] == ALL[:, 0]).all(), "they are staged as well"
    assert (frames_of(store)[:2] == ALL[:2]).all(), "rows that have journals of their own"


def test_without_room_for_it_each_row_is_tried_alone(folder):
    """One row may find the room that many did not."""
    full = failpoints.at_time(
        3, lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    )
    made = []
    failpoints.watch_all(made.append)
    failpoints.set_hook("journal.before_preallocate", full)
    try:
        _write(folder / "plate.ome.zarr")
    finally:
        failpoints.set_hook("journal.before_preallocate", None)
        failpoints.watch_all(None)
    assert made.count("journal.before_create") == 3 + IMAGES - 2
    assert (frames_of(folder / "plate.ome.zarr") == ALL).all()


@pytest.mark.parametrize(
    ("point", "number", "when"),
    [
        ("journal.before_create", 3, "first"),
        ("journal.before_header", 3, "first"),
        ("journal.before_sync", 3, "first"),
        ("shard.before_rename", 3, "later"),
        ("log.before_append", 1, "later"),
        ("journal.before_end", 1, "later"),
        ("journal.before_delete", 2, "later"),
    ],
)
def test_a_writer_that_stopped_within_a_batch_is_taken_over(folder, point, number, when):
    """And changes nothing when it goes on."""
    store = folder / "plate.ome.zarr"
    old = start_python("-c", SCRIPT, store, point, str(number), when, str(int(signal.SIGSTOP)))
    assert wait_until_stopped(old)
    try:
        with sw.resume(store, take_over=True, **how(on_duplicate="count")) as writer:
            for t in range(TIMES):
                append(writer, t, *range(IMAGES))
        found, before = frames_of(store), contents(store)
    finally:
        os.kill(old.pid, signal.SIGCONT)
        assert old.wait() not in (0, -signal.SIGKILL)
    assert (found == ALL).all()
    assert contents(store) == before
    assert verify_store(store).problems == []


WITHIN_THE_BATCH = {  # at which time, counted from the creation of the store on
    "journal.before_create": 3,
    "journal.before_preallocate": 3,
    "journal.before_header": 3,
    "journal.before_sync": 3,
    "shard.before_create": 4,
    "shard.before_preallocate": 5,
    "sealer.before_command": 2,
}
BEHIND_IT = (
    *("journal.before_frames", "journal.before_chunks", "journal.before_sync", "journal.before_end"),
    *("journal.before_delete", "journal.before_read", "shard.before_index", "shard.before_truncate"),
    *("shard.before_sync", "shard.before_rename", "directory.before_sync", "log.before_append"),
    *("log.before_sync", "sums.before_write", "sums.before_sync", "slots.before_write"),
)


FULL = (*WITHIN_THE_BATCH, "journal.before_end", "journal.before_delete", "log.before_append")


@pytest.mark.parametrize(
    ("point", "number"),
    [
        *((point, errno.EIO) for point in (*WITHIN_THE_BATCH, *BEHIND_IT)),
        *((point, errno.ENOSPC) for point in FULL),
    ],
)
def test_an_error_of_the_disk_at_any_call_costs_no_frame_that_is_not_told(folder, shared_pool, point, number):
    """Whether the writer gets over it or ends with it: all other frames are there once it is recovered."""

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    store = folder / "plate.ome.zarr"
    writer = plate_of_one_slab_rows(store)
    with suppress(ShardwrightError):
        if point in WITHIN_THE_BATCH:
            failpoints.set_hook(point, failpoints.at_time(WITHIN_THE_BATCH[point] - 1, fail))
        append_first_frames(writer)
        if point in BEHIND_IT:
            failpoints.set_hook(point, failpoints.at_time(2, fail))
        append(writer, 1, *range(IMAGES))
        writer.flush()
    failpoints.set_hook(point, None)
    with suppress(ShardwrightError):
        writer.close()
    lost = writer.receipt.frames_lost
    if (store / WORKSPACE).exists():
        lost += recover_store(store, shared_pool, threads=1).frames_lost
    found = frames_of(store)
    assert ((found == ALL) | (found == 0)).all()
    counts = writer.receipt.images
    received = [counts.get(f"{image}", {"frames_received": 0})["frames_received"] for image in range(IMAGES)]
    came = np.arange(TIMES) < np.array(received)[:, None]
    assert ((found != ALL) & came).sum() <= lost
    assert verify_store(store).problems == []


def _write(path: Path) -> None:
    with plate_of_one_slab_rows(path) as writer:
        append_first_frames(writer)
        append(writer, 1, *range(IMAGES))


def test_a_journal_of_its_own_counts_before_a_shared_one_and_of_these_the_newest(killed):
    """A row that was rewritten, or opened again, may be in all of them."""
    store = killed("stored")
    (shared,) = shared_in(store)
    rows = [image << IMAGE_SHIFT for image in range(2, IMAGES)]
    names = ["rows-1-10.journal", "rows-1-9.journal", "rows-2-1.journal", "rows-2-2.journal"]
    for name, newest in zip(names, ("10", "10", "1", "2"), strict=True):
        shutil.copy(shared, shared.with_name(name))
        found = _found_in(store)
        assert {found[row].name.removesuffix(".journal").rpartition("-")[2] for row in rows} == {newest}
    (shared.with_name(f"{rows[1]}.journal")).write_bytes(bytes(20_000))
    assert [_found_in(store)[row].name.startswith("rows-2-2.") for row in rows] == [True, False, True, True]


def _found_in(store: Path) -> dict[int, Path]:
    unfinished = UnfinishedStore.read(store)
    (placement,) = unfinished.placements
    return {row: path for row, (path, _) in unfinished.look_into(placement).journals.items()}


def test_a_reader_lets_a_row_go_that_has_ended(killed):
    """Its file stays, with its name and its inode, for other rows."""
    store = killed("stored")
    unfinished = UnfinishedStore.read(store)
    live = LiveAcquisition(unfinished, (0, 0), KeptPixels())
    rows = [live.row(image << IMAGE_SHIFT) for image in range(2, IMAGES)]
    assert all(row.is_current() for row in rows)
    _end_second_row(*shared_in(store))
    assert [row.is_current() for row in rows] == [True, False, True, True]


@pytest.fixture
def looks():
    """The names of the looks of readers."""
    names: list[str] = []
    failpoints.hold_looks(names.append)
    yield names
    failpoints.hold_looks(None)


def test_a_look_reads_each_header_once_however_many_rows_there_are(killed, looks, monkeypatch):
    """And works out what it says once, until a row ends. The rows of a file have it open together."""
    store = killed("stored")
    (shared,) = shared_in(store)
    decoded, decode = [], shared_journal.decode_header
    monkeypatch.setattr(
        shared_journal, "decode_header", lambda *args: (decoded.append(args[-1]), decode(*args))[1]
    )
    live = LiveAcquisition(UnfinishedStore.read(store), (0, 0), KeptPixels())
    for _ in range(5):
        live.look()
        assert set(live.rows) == {image << IMAGE_SHIFT for image in range(IMAGES)}
        assert all(live.row(row).is_stored(slab) for row in live.rows for slab in live.slabs_of(row))
    assert looks.count("look.journal.shared") == 5 + 1, "the rows' file is opened once"
    assert decoded == [shared]
    assert _descriptors_of(shared) == 1
    _end_second_row(shared)
    live.look()
    assert 3 << IMAGE_SHIFT not in live.rows
    assert len(live.rows) == IMAGES - 1
    assert looks.count("look.journal.shared") == 6 + 1
    assert decoded == [shared, shared]
    del live
    assert _descriptors_of(shared) == 0


def _descriptors_of(path: Path) -> int:
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += link.readlink() == path
    return found


def _end_second_row(shared: Path) -> None:
    with shared.open("r+b") as file:
        file.seek(4096 + 8)  # the state of the second row of the four
        file.write(b"SWENDED\0")


@pytest.mark.parametrize("keeps_inode", [False, True])
def test_another_file_of_the_name_is_seen_at_the_next_look(killed, keeps_inode):
    """As one that a take-over copied, or one that has got the inode of the one before."""
    store = killed("stored")
    (shared,) = shared_in(store)
    live = LiveAcquisition(UnfinishedStore.read(store), (0, 0), KeptPixels())
    live.look()
    ended = 3 << IMAGE_SHIFT
    other = shared if keeps_inode else Path(shutil.copy(shared, shared.with_name("copy")))
    _end_second_row(other)
    if keeps_inode:
        for row in live.rows.values():
            row.let_go()
    other.rename(shared)
    assert live.row(ended) is None, "asked by itself, too"
    live.look()
    assert ended not in live.rows
    assert len(live.rows) == IMAGES - 1
    assert all(row.identity[1] == shared.stat().st_ino for row in live.rows.values() if row.path == shared)


def test_a_recovery_reads_each_header_twice_however_many_rows_there_are(killed, looks, shared_pool):
    """To scan it, and to open it for what goes on; each row read it twice."""
    store = killed("stored")
    looks.clear()
    recover_store(store, shared_pool, threads=1)
    assert looks.count("look.journal.shared") <= 4
    assert (frames_of(store) == ALL).all()


def test_a_scan_has_one_file_of_several_rows_open_at_a_time(killed):
    """A store may have more of them than its reader may have open."""
    store = killed("stored")
    (shared,) = shared_in(store)
    _end_second_row(Path(shutil.copy(shared, shared.with_name("rows-1-10.journal"))))
    assert {path.name for path in _found_in(store).values()} >= {shared.name, "rows-1-10.journal"}
    counts = []
    failpoints.set_hook(
        "journal.before_read", lambda: counts.append(sum(map(_descriptors_of, shared_in(store))))
    )
    try:
        unfinished = UnfinishedStore.read(store)
        with closing(unfinished.open_log(read_only=True)) as log:
            facts = scan(unfinished, log, None, threads=1).facts
    finally:
        failpoints.set_hook("journal.before_read", None)
    assert max(counts) == 1
    assert [row.number for row in facts.shard_rows] == [image << IMAGE_SHIFT for image in range(IMAGES)]
    assert {row.journal for row in facts.shard_rows} == {JournalFact.VALID}
    assert sum(map(_descriptors_of, shared_in(store))) == 0


def test_a_reader_looks_once_into_one_that_has_not_its_row(killed, monkeypatch):
    """It looks for a journal with each chunk, and for most rows there is none any more. A row that is in
    progress may end, or be in a newer one."""
    store = killed("stored")
    unfinished, (shared,) = UnfinishedStore.read(store), shared_in(store)
    (placement,) = unfinished.placements
    placement.journal(0).unlink()  # as of a sealed row
    read, names = unfinished.read_shared, []
    monkeypatch.setattr(unfinished, "read_shared", lambda path: (names.append(path.name), read(path))[1])
    row = 2 << IMAGE_SHIFT
    for _ in range(2):
        assert unfinished.journal_path(placement, 0) == placement.journal(0)
        assert unfinished.journal_path(placement, row) == shared
    assert names == [shared.name] * 3
    newer = shared.with_name("rows-1-10.journal")
    shutil.copy(shared, newer)
    assert unfinished.journal_path(placement, row) == newer


def test_many_rows_have_one_journal(folder):
    made = []
    failpoints.watch_all(made.append)
    try:
        _write(folder / "plate.ome.zarr")
    finally:
        failpoints.watch_all(None)
    assert made.count("journal.before_create") == made.count("journal.before_delete") == 3
    assert made.count("journal.before_end") == IMAGES - 3, "the last row ends with the file"
    assert (frames_of(folder / "plate.ome.zarr") == ALL).all()
