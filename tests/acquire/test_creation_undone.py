"""A creation that fails at any step leaves nothing behind: no descriptor, no thread, no file; and the name
can be had the next time."""

from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import acquisition, core
from shardwright.disk import failpoints
from shardwright.disk.spare_memory import spare_memory
from shardwright.model.write_settings import WriteSettings
from shardwright.store.new_store import abandoned, remove_abandoned
from shardwright.writer import driver, frame_buffers

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 2


@pytest.fixture(autouse=True)
def nothing_watched():
    yield
    failpoints.watch_all(None)


@pytest.fixture
def left(tmp_path):
    """What there is now: descriptors by what they lead to, threads, files."""
    with sw.create(tmp_path / "warm up", spec(), threads=THREADS):
        pass  # what a process opens once and keeps
    gc.collect()
    gc.freeze()  # what earlier tests have imported need not be looked through at each look

    def look() -> tuple[list[str], list[str], list[str]]:
        gc.collect()
        descriptors = [
            str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
        ]
        files = sorted(str(path) for path in tmp_path.rglob("*"))
        return sorted(descriptors), sorted(t.name for t in threading.enumerate()), files

    yield look
    gc.unfreeze()


def spec() -> sw.ArraySpec:
    """Slabs of two frames, so that there is a staging area."""
    axes = [("t", None, 2), ("y", 4, 4), ("x", 6, 6)]
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[sw.Dimension(name=name, count=count, chunk_size=chunk) for name, count, chunk in axes],
    )


def create(path: Path) -> sw.Writer:
    return sw.create(path, spec(), threads=THREADS)


def calls_of_a_creation(path: Path) -> list[str]:
    seen: list[str] = []
    watch(seen.append)
    made = create(path)
    failpoints.watch_all(None)
    made.close()
    return seen


def watch(look: Callable[[str], None]) -> None:
    """Every call of storage; not where the sealer's thread dies, which ends the acquisition."""
    failpoints.watch_all(lambda name: look(name) if name != "sealer.before_command" else None)


CAN_DO_WITHOUT = {
    "ballast.before_fill",
    "ballast.before_open",
    "log.before_preallocate",
    "store.before_remove",
}


def test_a_storage_call_that_fails(tmp_path, left):
    calls = calls_of_a_creation(tmp_path / "counted")
    assert {
        "lock.before_take",
        "log.before_sync",
        "staging.before_preallocate",
        "ballast.before_fill",
        "journal.before_sync",
    } <= set(calls)
    before, failed = left(), 0

    def fail():
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for number in range(1, len(calls) + 1):
        hook = failpoints.at_time(number, fail)
        watch(lambda _, hook=hook: hook())
        try:
            made = create(tmp_path / "a.ome.zarr")
        except sw.errors.ShardwrightError:
            failpoints.watch_all(None)
            failed += 1
            assert left() == before, f"after a failure at call {number}, {calls[number - 1]}"
        else:
            failpoints.watch_all(None)
            assert calls[number - 1] in CAN_DO_WITHOUT
            made.close()  # without a frame: it leaves no store
            remove_what_is_left(tmp_path)
            assert left() == before
    assert failed >= len(calls) - sum(call in CAN_DO_WITHOUT for call in calls)
    create(tmp_path / "a.ome.zarr").close()


def remove_what_is_left(root: Path) -> None:
    """As the next creation does."""
    for folder in abandoned(root):
        remove_abandoned(folder)


PARTS = [
    (acquisition.SlabEncoder, "of_images"),
    (core, "SlabTable"),
    (core, "Accounts"),
    (core, "StagingScheduler"),
    (acquisition, "Sealer"),
    (core, "ShardRows"),
    (core.ShardRows, "prepare_first"),
    (driver, "FrameBuffers"),
    (frame_buffers, "SlotTable"),
    (acquisition.Acquisition, "settle_missing"),
]


@pytest.mark.parametrize(("owner", "name"), PARTS, ids=[name for _, name in PARTS])
@pytest.mark.parametrize("error", [OverflowError, KeyboardInterrupt])
def test_a_part_that_cannot_be_made(tmp_path, left, monkeypatch, owner, name, error):
    before, kept = left(), spare_memory._in_use_bytes
    spare_memory.release()

    def fail(*_: object, **__: object) -> None:
        raise error("too large for a table")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(error):
            create(tmp_path / "a.ome.zarr")
    assert left() == before
    assert spare_memory._in_use_bytes == kept
    create(tmp_path / "a.ome.zarr").close()


@pytest.mark.parametrize("number", range(1, THREADS + 3))
def test_a_thread_that_cannot_be_started(tmp_path, left, monkeypatch, number):
    """Workers, the sealer, the writer's helper; what does files side by side goes on with fewer."""
    before, start = left(), threading.Thread.start

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    hook = failpoints.at_time(number, refuse)

    def start_or_refuse(thread: threading.Thread) -> None:
        if "-files-" not in thread.name:
            hook()
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_or_refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            create(tmp_path / "a.ome.zarr")
    assert left() == before


NOT_BY_RESUME = ("prepare_first", "Accounts")  # its first files and its accounts are those that were found


@pytest.mark.parametrize(
    ("owner", "name"),
    [part for part in PARTS if part[1] not in NOT_BY_RESUME],
    ids=[name for _, name in PARTS if name not in NOT_BY_RESUME],
)
def test_a_resume_that_fails_leaves_the_store_and_nothing_else(
    tmp_path, left, monkeypatch, pool, drive_of, owner, name
):
    path = tmp_path / "a.ome.zarr"
    drive = drive_of(path, spec(), pool, WriteSettings(store_within_ms=10, sync_interval_ms=10))
    drive.submit(0, 1, 2)
    drive.until(lambda: drive.acquisition.durable_watermark == 3)
    drive.acquisition.close()
    before = left()[:2]

    def fail(*_: object, **__: object) -> None:
        raise OverflowError("too large for a table")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(OverflowError):
            sw.resume(path, threads=THREADS)
    assert left()[:2] == before
    with sw.resume(path, threads=THREADS) as again:
        assert again.frames == 3


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_an_array_that_this_machine_cannot_hold_is_refused_before_anything_is_made(
    tmp_path, left, monkeypatch
):
    """Memory that is promised and not there would end the process while it is filled."""
    before = left()
    monkeypatch.setattr("shardwright.acquire.limits.machine_memory_bytes", lambda: 64 << 30)
    plane = [
        sw.Dimension(name=name, count=2**18 - 1, chunk_size=2**10, shard_size_chunks=2**8) for name in "yx"
    ]
    large = sw.ArraySpec(dtype="uint8", dimensions=[sw.Dimension(name="t", count=None, chunk_size=1), *plane])
    with pytest.raises(sw.errors.BudgetError, match="does not fit the memory budget"):
        sw.create(tmp_path / "a.ome.zarr", large, threads=THREADS)
    assert left() == before


def test_what_another_store_has_spilled_under_the_same_name_stays(tmp_path, left):
    """Its store was renamed; its links lead here. The shards of two stores would meet under one name."""
    spilled = tmp_path / "second/a.ome.zarr/0/c/0/0/0"
    spilled.parent.mkdir(parents=True)
    spilled.write_bytes(b"a shard")
    before = left()
    with pytest.raises(sw.errors.OutputExistsError, match="spilled shards of another store"):
        sw.create(
            tmp_path / "a.ome.zarr",
            spec(),
            threads=THREADS,
            on_full="spill",
            **how(spill_root=tmp_path / "second"),
        )
    assert spilled.read_bytes() == b"a shard"
    assert left()[:2] == before[:2]
    assert not (tmp_path / "a.ome.zarr").exists()
