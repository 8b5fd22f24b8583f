"""Mounts, loop devices and the recording disk.

All of it lives in a mount and PID namespace of its own (``__main__`` starts it so): when the process in it
ends, in whatever way, the kernel ends what it started and takes its mounts away, and the loop devices, which
clear themselves, follow.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .requirements import tool

if TYPE_CHECKING:
    from collections.abc import Iterator

DISK_BYTES = {"ext4": 256 << 20, "xfs": 320 << 20, "btrfs": 256 << 20}  # xfs refuses less than 300 MiB
_MKFS = {"ext4": ("-q", "-F", "-m", "0"), "xfs": ("-q", "-f"), "btrfs": ("-q", "-f", "--nodiscard")}
_MOUNT_OPTIONS = {"ext4": "nodiscard", "xfs": "nouuid,nodiscard", "btrfs": "nodiscard"}
_MS_NOATIME, _MNT_DETACH = 0x400, 2
_LOOP_GET_FREE, _LOOP_CONFIGURE, _LOOP_AUTOCLEAR, _DROP_CACHE = 0x4C82, 0x4C0A, 4, 0x1261
_EBUSY = 16
_START_S = 120.0

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")


def mount(device: Path, folder: Path, filesystem: str, options: str = "") -> None:
    """Raises ``OSError``, as when there is no sound filesystem on the device."""
    all_options = ",".join(filter(None, [_MOUNT_OPTIONS.get(filesystem, ""), options]))
    _check(
        _libc.mount(
            os.fsencode(device), os.fsencode(folder), filesystem.encode(), _MS_NOATIME, all_options.encode()
        ),
        f"mount {filesystem} on {folder}",
    )


def unmount(folder: Path, *, lazy: bool = False) -> None:
    _check(_libc.umount2(os.fsencode(folder), _MNT_DETACH if lazy else 0), f"unmount {folder}")


def kernel_says(device: Path, lines: int = 6) -> str:
    """The newest lines of the kernel's log about a device, which is where a filesystem says why it does not
    mount."""
    done = subprocess.run(["dmesg"], capture_output=True, text=True, check=False, errors="replace")
    return " | ".join([line for line in done.stdout.splitlines() if device.name in line][-lines:]) or (
        "the kernel's log says nothing"
    )


@contextmanager
def memory_folder(folder: Path) -> Iterator[Path]:
    """A folder in memory, which nothing outside this namespace sees and which ends with it."""
    mount(Path("tmpfs"), folder, "tmpfs")
    try:
        yield folder
    finally:
        unmount(folder, lazy=True)


def make_filesystem(filesystem: str, path: Path) -> None:
    """A fresh filesystem in a sparse file."""
    with path.open("wb") as file:
        file.truncate(DISK_BYTES[filesystem])
    subprocess.run(
        [tool(f"mkfs.{filesystem}"), *_MKFS[filesystem], str(path)], check=True, capture_output=True
    )


class LoopDevice:
    """A block device over a file. It clears itself when the last one closes it, so that a killed process
    leaves none behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        while True:
            self.device = self._free_device()
            self._fd = os.open(self.device, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._configure()
            except OSError as error:
                os.close(self._fd)
                if error.errno != _EBUSY:  # else someone else was faster
                    raise
            else:
                return

    @staticmethod
    def _free_device() -> Path:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            return Path(f"/dev/loop{fcntl.ioctl(control, _LOOP_GET_FREE)}")
        finally:
            os.close(control)

    def _configure(self) -> None:
        backing = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            info = struct.pack("<52xI176x", _LOOP_AUTOCLEAR)
            fcntl.ioctl(self._fd, _LOOP_CONFIGURE, struct.pack("<II", backing, 512) + info + bytes(64))
        finally:
            os.close(backing)

    def drop_cache(self) -> None:
        """Forget what was read from the device: the file under it has been changed. Only while it is not
        mounted."""
        fcntl.ioctl(self._fd, _DROP_CACHE, 0)

    def close(self) -> None:
        os.close(self._fd)
        attached = Path("/sys/block") / self.device.name / "loop" / "backing_file"
        deadline = time.monotonic() + _START_S
        while attached.exists() and attached.read_text(encoding="utf-8").strip() == str(self.path):
            assert time.monotonic() < deadline, f"{self.device} does not let go of {self.path}"
            time.sleep(0.002)


class RecordedDisk:
    """A disk whose every write and flush is kept in ``log``, in the order in which they were completed.

    qemu's ``blklogwrites`` sees what arrives at the disk; a FUSE export makes a file of it and a loop device
    makes a disk of the file. The loop device knows no forced writes (FUA): the kernel sends a flush after the
    write instead.
    """

    def __init__(self, path: Path, log: Path) -> None:
        self.log = log
        export = path.with_suffix(".export")
        for empty in (log, export):
            empty.write_bytes(b"")
        self._daemon = subprocess.Popen(
            [
                *(tool("qemu-storage-daemon"), "--blockdev", f"driver=file,node-name=disk,filename={path}"),
                *("--blockdev", f"driver=file,node-name=log,filename={log}"),
                *(
                    "--blockdev",
                    "driver=blklogwrites,node-name=recorded,file=disk,log=log,log-sector-size=512,log-super-update-interval=1",
                ),
                *("--export", f"type=fuse,id=export,node-name=recorded,mountpoint={export},writable=on"),
            ]
        )
        try:
            self._wait_for(export)
            self.loop = LoopDevice(export)
        except BaseException:
            self._stop()
            raise

    def _wait_for(self, export: Path) -> None:
        deadline = time.monotonic() + _START_S
        while export.stat().st_size == 0:
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("qemu-storage-daemon does not export the recorded disk")
            time.sleep(0.002)

    def close(self) -> None:
        """End the recording; the log is complete then."""
        try:
            self.loop.close()
        finally:
            self._stop()

    def _stop(self) -> None:
        self._daemon.send_signal(signal.SIGTERM)
        self._daemon.wait()
