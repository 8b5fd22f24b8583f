"""A disk that is really full: a small ext4 filesystem in a file, mounted for these tests. Needs root and loop
devices."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess

import numpy as np
import pytest

from shardwright.disk.ballast import Ballast
from shardwright.disk.files import replace_file
from shardwright.disk.slot_file import SlotFile
from shardwright.model.errors import StorageFullError
from shardwright.shard.frame_log import BlockKind, FrameLog
from shardwright.shard.frame_record import record_dtype

FILESYSTEM_BYTES = 8 << 20


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: a full disk, because mounting a small filesystem needs root")
    if not shutil.which("mkfs.ext4"):
        pytest.skip("NOT TESTED: a full disk, because mkfs.ext4 is not installed")
    folder = tmp_path_factory.mktemp("disk")
    image, mount = folder / "image", folder / "mount"
    image.write_bytes(b"")
    os.truncate(image, FILESYSTEM_BYTES)
    mount.mkdir()
    made = run("mkfs.ext4", "-q", "-F", "-m", "0", image)
    assert made.returncode == 0, made.stderr
    mounted = run("mount", "-o", "loop", image, mount)
    if mounted.returncode != 0:
        pytest.skip(
            f"NOT TESTED: a full disk, because this machine cannot mount a loop device: "
            f"{mounted.stderr.strip()}"
        )
    yield mount
    unmounted = run("umount", mount)
    assert unmounted.returncode == 0, unmounted.stderr


@pytest.fixture
def free_bytes(small_disk):
    def measure() -> int:
        facts = os.statvfs(small_disk)
        return facts.f_bavail * facts.f_frsize

    return measure


def fill_up(small_disk, free_bytes) -> None:
    with (small_disk / "hog").open("wb", buffering=0) as hog, contextlib.suppress(OSError):
        while free_bytes():
            hog.write(bytes(min(free_bytes(), 1 << 20)))


@pytest.mark.parametrize("mode", ["mmap", "pwrite", "direct"])
def test_a_shard_that_does_not_fit_is_refused_and_leaves_no_file(small_disk, free_bytes, mode):
    before = free_bytes()
    with pytest.raises(StorageFullError, match="No space left on device") as caught:
        SlotFile(small_disk / "shard", before + (1 << 20), mode)
    assert "Free some space" in str(caught.value)
    assert [p.name for p in small_disk.iterdir()] == ["lost+found"]
    assert free_bytes() == before


@pytest.mark.parametrize("mode", ["mmap", "pwrite", "direct"])
def test_a_preallocated_shard_takes_every_byte_although_the_disk_fills_up(small_disk, free_bytes, mode):
    """What preallocation is for: no SIGBUS in the middle of a mapped shard, no ENOSPC in the middle of a
    written one."""
    shard = SlotFile(small_disk / "shard", 1 << 20, mode)
    try:
        fill_up(small_disk, free_bytes)
        shard.write(0, b"x" * (1 << 20))
        shard.end_filling()
        shard.sync()
        assert (small_disk / "shard").read_bytes() == b"x" * (1 << 20)
    finally:
        (small_disk / "hog").unlink()
        shard.discard()


def test_the_ballast_makes_room_on_a_full_disk(small_disk, free_bytes):
    ballast = Ballast(small_disk / "ballast", 1 << 20)
    assert ballast.fill()
    try:
        fill_up(small_disk, free_bytes)
        assert Ballast(small_disk / "second", 1 << 20).fill() is False
        assert not (small_disk / "second").exists()
        with pytest.raises(StorageFullError):
            replace_file(small_disk / "zarr.json", bytes(500_000))
        assert ballast.release() is True
        replace_file(small_disk / "zarr.json", bytes(500_000))
        (small_disk / "zarr.json").unlink()
    finally:
        (small_disk / "hog").unlink()
        ballast.release()
    assert ballast.fill()
    ballast.release()


def append_for_ever(log: FrameLog, records: np.ndarray) -> None:
    for group in itertools.count():
        log.append(BlockKind.SHARD_ROW, group, records)


def test_the_frame_log_goes_on_into_the_room_it_has_and_loses_nothing_on_a_full_disk(small_disk, free_bytes):
    record = record_dtype(0)
    log = FrameLog.create(small_disk / "frames.log", record, bytes(16))
    try:
        log.reserve(1 << 20)
        fill_up(small_disk, free_bytes)
        with pytest.raises(StorageFullError):
            append_for_ever(log, np.zeros(500, record))
        appended = len(log.shard_rows)
        log.sync()
        assert appended * 500 * record.itemsize > 1 << 20
        assert log.shard_rows == set(range(appended))
        log.close()
        log = FrameLog.open(small_disk / "frames.log", record, bytes(16))
        assert (log.shard_rows, log.torn_bytes) == (set(range(appended)), 0)
        (small_disk / "hog").unlink()
        log.append(BlockKind.SHARD_ROW, appended, np.zeros(500, record))
    finally:
        (small_disk / "hog").unlink(missing_ok=True)
        log.close()
        log.path.unlink()


def test_replace_on_a_full_disk_keeps_the_old_file(small_disk, free_bytes):
    path = small_disk / "zarr.json"
    replace_file(path, b"old")
    with pytest.raises(StorageFullError):
        replace_file(path, bytes(free_bytes() + (1 << 20)))
    assert path.read_bytes() == b"old"
    assert sorted(p.name for p in small_disk.iterdir()) == ["lost+found", "zarr.json"]
    path.unlink()
