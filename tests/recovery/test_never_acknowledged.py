"""Frames that a writer took in and never acknowledged are no loss, however it ended: `recover` exits with
0."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.workers import WorkerPool
from shardwright.cli import recover as recover_command
from shardwright.disk import failpoints
from shardwright.model.errors import FencedError, StorageFullError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.recovery.recover_store import Recovery, recover_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.writer.writer import Writer

FRAMES = 20


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(1)
    pool.start()
    yield pool
    pool.stop()


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def append_and_close(writer: Writer) -> None:
    for i in range(1, FRAMES):
        writer.append(np.full((16, 16), i + 1, np.uint8))
    writer.close()


def begun(path: Path, durability: str) -> Writer:
    """A writer to which one frame was appended."""
    writer = sw.create(
        path,
        shape=(None, 16, 16),
        dtype="uint8",
        axes="tyx",
        chunks={"t": 1},
        shards={"t": 4},
        codec="none",
        threads=1,
        durability=durability,
        **how(io="pwrite", store_within_ms=20, sync_interval_ms=20),
    )
    writer.append(np.ones((16, 16), np.uint8))
    return writer


def fail(writer: Writer, point: str, durability: str) -> tuple[int, int]:
    """Writes until the writer fails of a disk that is full from now on. Returns how many frames it had taken
    in, and how many it had acknowledged."""
    failpoints.set_hook(point, full)
    try:
        with pytest.raises(StorageFullError):
            append_and_close(writer)
        with suppress(StorageFullError):  # said before by close itself
            writer.close()
    finally:
        failpoints.set_hook(point, None)
    assert writer.receipt is not None
    acknowledged = writer.watermark.durable if durability == "durable" else writer.watermark.stored
    return writer.receipt.frames_received, acknowledged


@pytest.mark.parametrize("durability", ["stored", "durable"])
@pytest.mark.parametrize("point", ["shard.before_write", "journal.before_sync", "directory.before_sync"])
def test_a_writer_that_fails_at_its_first_shard_row_loses_none(
    point: str, durability: str, tmp_path: Path, pool: WorkerPool
) -> None:
    path = tmp_path / "a.ome.zarr"
    received, acknowledged = fail(begun(path, durability), point, durability)
    recovery = recover_store(path, pool, threads=1)
    assert acknowledged <= recovery.frames_kept <= received
    assert recovery.frames_lost == 0, "each was acknowledged, or there is a record that it was not"
    assert not recover_command._bad((path, recovery)), "exit code 0"
    table = sw.frame_table(path)
    assert (table["status"] == FrameStatus.STORED.name.lower()).sum() == recovery.frames_kept
    lost = table[table["status"] == FrameStatus.LOST.name.lower()]
    assert set(lost["reason"]) <= {Reason.NOT_ACKNOWLEDGED.name.lower()}


@pytest.mark.parametrize("point", ["shard.before_write", "journal.before_sync"])
def test_a_successor_that_fails_after_a_take_over_loses_none(
    point: str, tmp_path: Path, pool: WorkerPool
) -> None:
    """What the old writer may have acknowledged is known by then, and is all on disk."""
    path = tmp_path / "a.ome.zarr"
    old = begun(path, "stored")
    old.flush()
    successor = sw.resume(path, take_over=True, threads=1, **how(store_within_ms=20, sync_interval_ms=20))
    received, acknowledged = fail(successor, point, "stored")
    recovery = recover_store(path, pool, threads=1)
    assert 1 <= acknowledged <= recovery.frames_kept <= received
    assert recovery.frames_lost == 0
    assert not recover_command._bad((path, recovery)), "exit code 0"
    with pytest.raises(FencedError):
        old.close()


def test_they_are_told_as_such(tmp_path: Path) -> None:
    text = recover_command.summary(
        tmp_path, Recovery(str(tmp_path), "sealed", "00", frames_kept=12, frames_unacknowledged=8)
    )
    assert "none lost; 8 more were in flight when the writer died or failed, never acknowledged" in text
