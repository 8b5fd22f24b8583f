"""The faulty disks themselves: full means full, failing means EIO, stalled means waiting, and leaving them
leaves nothing behind."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from .disks import FaultyDisk, LoopDisk


def mounts_below(folder) -> list[str]:
    return [
        line for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines() if str(folder) in line
    ]


def write_synced(path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@pytest.mark.parametrize(
    "format_name",
    ["ext4", pytest.param("xfs", marks=pytest.mark.slow), pytest.param("btrfs", marks=pytest.mark.slow)],
)
def test_a_filled_disk_has_no_room_until_it_is_released(format_name):
    with LoopDisk(format_name) as disk:
        disk.filler.fill()
        with pytest.raises(OSError, match="No space") as caught:
            write_synced(disk.path / "more", b"x" * (1 << 20))
        assert caught.value.errno == errno.ENOSPC
        (disk.path / "more").unlink(missing_ok=True)  # made, unless its name found no room either
        disk.filler.release()
        write_synced(disk.path / "more", b"x" * (1 << 20))
    assert mounts_below(disk.path.parent) == []


def test_a_failing_disk_refuses_writes_and_later_takes_them():
    with FaultyDisk(nbytes=16 << 20) as disk:
        write_synced(disk.path / "before", b"before")
        with disk.failing(), pytest.raises(OSError, match="Input/output") as caught:
            write_synced(disk.path / "during", b"x" * 4096)
        assert caught.value.errno == errno.EIO
        disk.remount()
        assert (disk.path / "before").read_bytes() == b"before"
        write_synced(disk.path / "after", b"after")
        server = disk.server_pid
    assert mounts_below(disk.path.parent) == []
    assert subprocess.run(["kill", "-0", str(server)], capture_output=True).returncode != 0


def test_a_stalled_disk_keeps_a_sync_waiting():
    with FaultyDisk(nbytes=16 << 20) as disk:
        writer = threading.Thread(target=write_synced, args=(disk.path / "file", b"x" * (1 << 20)))
        with disk.stalled():
            writer.start()
            writer.join(0.5)
            assert writer.is_alive(), "the sync waits for the disk"
        writer.join()
        disk.remount()
        assert (disk.path / "file").read_bytes() == b"x" * (1 << 20)


def test_a_frozen_filesystem_keeps_writers_waiting_and_readers_not(tmp_path):
    with LoopDisk(folder=tmp_path) as disk:
        write_synced(disk.path / "before", b"before")
        writer = threading.Thread(target=write_synced, args=(disk.path / "file", b"x" * (1 << 20)))
        with disk.frozen():
            writer.start()
            writer.join(0.5)
            assert writer.is_alive(), "the write waits"
            assert (disk.path / "before").read_bytes() == b"before"
        writer.join()
        assert (disk.path / "file").read_bytes() == b"x" * (1 << 20)
        disk.keep_as = tmp_path / "kept"
    assert b"before" in (tmp_path / "kept").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_power_is_cut_though_a_mount_namespace_has_a_copy_of_the_mount():
    with LoopDisk() as disk:
        namespace = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo ready; read end"]
        with subprocess.Popen(namespace, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            write_synced(disk.path / "before", b"before")
            disk.cut_power()
            assert (disk.path / "before").read_bytes() == b"before"
            write_synced(disk.path / "after", b"after")
            other.communicate()
    assert mounts_below(disk.path.parent) == []
