"""Disks that can be filled, broken and stalled: small filesystems on loop devices, with or without an NBD
server under them. Needs root.

    LoopDisk     an image file, mounted: full when ``fill`` says so
    FaultyDisk   the same image behind nbdkit and nbdfuse: every write fails while ``failing``, every call
                 waits while ``stalled``

    image file <- nbdkit (error filter) <- nbdfuse, one file of a FUSE folder <- loop device <- filesystem <-
    what is tested

What a machine lacks is a loud skip that names the package. Leaving a disk's ``with`` block unmounts it and
ends its processes.

A mount namespace that begins meanwhile (``tests.power``) has a copy of the mount. The folder around it is a
shared mount, so that unmounting reaches the copy: else the filesystem lives on, shut down as a power cut
left it, and the next ``mount`` is of that one again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from tests.harness.json_process import wait_for

from .filler import Filler

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMATS: dict[str, tuple[str, ...]] = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0"),
    "ext4-nojournal": ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f", "--mixed"),
}
LEAST_BYTES = {"ext4": 8 << 20, "ext4-nojournal": 8 << 20, "xfs": 300 << 20, "btrfs": 120 << 20}
PACKAGES = {
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "nbdkit": "nbdkit",
    "nbdfuse": "libnbd-bin",
    "fusermount3": "fuse3",
    "strace": "strace",
}
# EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN, and their flag NOLOGFLUSH
SHUT_DOWN, WITHOUT_ITS_LOG = 0x8004587D, 2
FREEZE, THAW = 0xC0045877, 0xC0045878  # FIFREEZE, FITHAW
WAIT_S = 60.0  # only so that a hang becomes a failure


def need_tools(*tools: str) -> None:
    """Skip, loudly, where one of these commands is missing."""
    if missing := [tool for tool in tools if not shutil.which(tool)]:
        packages = " ".join(sorted({PACKAGES[tool] for tool in missing}))
        pytest.skip(f"NOT TESTED: {', '.join(missing)} not installed; apt-get install {packages}")


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: mounting a small filesystem needs root; run this suite as root")


def run(*command: object) -> None:
    """Raises ``CalledProcessError`` with what the command said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=WAIT_S)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)


class LoopDisk:
    """A filesystem of ``nbytes`` (at least what the format needs) on a loop device. ``path`` is where it is
    mounted.

    Everything lies in a folder of its own, outside pytest's: that one is swept by other runs, which a mount
    in it would stop. ``folder``: where that one is made, among the temporary ones unless told. ``keep_as``:
    where the image goes at the end, for whoever wants to look at it.
    """

    def __init__(self, format_name: str = "ext4", nbytes: int = 0, *, folder: Path | None = None) -> None:
        need_root()
        need_tools(FORMATS[format_name][0])
        self.format_name = format_name
        self._format = FORMATS[format_name]
        self._nbytes = max(nbytes, LEAST_BYTES[format_name])
        self._folder = Path(tempfile.mkdtemp(prefix="sw-disk-", dir=folder))
        self._image = self._folder / "image"
        self._mounted = False
        self.keep_as: Path | None = None
        self.path = self._folder / "mount"
        self.filler = Filler(self.path)

    def __enter__(self) -> Self:
        try:
            run("mount", "--bind", self._folder, self._folder)
            run("mount", "--make-shared", self._folder)
            self.path.mkdir()
            with self._image.open("xb") as image:
                image.truncate(self._nbytes)
            run(*self._format, self._image)
            self._attach()
            self.mount()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def free_bytes(self) -> int:
        facts = os.statvfs(self.path)
        return facts.f_bavail * facts.f_frsize

    def mount(self) -> None:
        try:
            run("mount", "-o", "loop", self._source(), self.path)
        except subprocess.CalledProcessError as error:
            if "loop device" in error.stderr:
                pytest.skip(
                    f"NOT TESTED: this machine has no loop device to mount with: {error.stderr.strip()}"
                )
            raise
        self._mounted = True

    def unmount(self) -> None:
        """Also drops every cached page: what is read after the next ``mount`` is what the disk holds."""
        end = time.monotonic() + WAIT_S  # a process that ends may not have closed its files yet
        while True:
            try:
                run("umount", self.path)
            except subprocess.CalledProcessError as error:
                users = self.users()
                if "busy" not in error.stderr or time.monotonic() > end:
                    raise AssertionError(
                        f"{self.path} cannot be unmounted, files are still open: {users}"
                    ) from error
                time.sleep(0.05)
            else:
                self._mounted = False
                return

    def remount(self) -> None:
        self.unmount()
        self.mount()

    def cut_power(self) -> None:
        """What was not synced is gone: the filesystem is shut down as it stands, its log unwritten, and
        mounted again (ext4 and xfs can do that).

        Whoever has files open here must be dead by then.
        """
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, SHUT_DOWN, struct.pack("I", WITHOUT_ITS_LOG))
        finally:
            os.close(folder)
        self.remount()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Whoever writes here waits, in the middle of its call; reading goes on."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, FREEZE, 0)
            try:
                yield
            finally:
                fcntl.ioctl(folder, THAW, 0)
        finally:
            os.close(folder)

    def users(self) -> list[str]:
        """Files of this disk that processes hold open: "pid: path"."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with contextlib.suppress(OSError):  # it ends meanwhile
                    targets = [str(link.readlink()) for link in (process / "fd").iterdir()]
                    found += [
                        f"{process.name}: {target}" for target in targets if target.startswith(str(self.path))
                    ]
        return found

    def close(self) -> None:
        """Leaves nothing behind, even when somebody still has a file open: that raises ``AssertionError`` at
        the end."""
        try:
            if self._mounted:
                self.unmount()
        finally:
            if self._mounted:
                run("umount", "-l", self.path)
            self._detach()
            with contextlib.suppress(subprocess.CalledProcessError):  # entering failed before it was mounted
                run("umount", "-l", self._folder)
            if self.keep_as is not None:
                shutil.move(self._image, self.keep_as)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _source(self) -> Path:
        return self._image

    def _attach(self) -> None:
        """Nothing under the image."""

    def _detach(self) -> None:
        """Nothing to end."""


def _is_served(path: Path) -> bool:
    """A socket has its name before anybody listens to it."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


class FaultyDisk(LoopDisk):
    """Errors are injected into writes only: what was written before stays readable, as on most failing
    disks."""

    def __init__(self, format_name: str = "ext4-nojournal", nbytes: int = 256 << 20) -> None:
        need_root()
        need_tools("nbdkit", "nbdfuse", "fusermount3")
        super().__init__(format_name, nbytes)
        self._trigger = self._folder / "trigger"
        self._fuse = self._folder / "fuse"
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def server_pid(self) -> int:
        return self._processes[0].pid

    def start_failing(self) -> None:
        self._trigger.touch()

    def stop_failing(self) -> None:
        self._trigger.unlink(missing_ok=True)

    def stall(self) -> None:
        self._processes[0].send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._processes[0].send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        self.start_failing()
        try:
            yield
        finally:
            self.stop_failing()

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        self.stall()
        try:
            yield
        finally:
            self.go_on()

    def _source(self) -> Path:
        return self._fuse / "disk"

    def _attach(self) -> None:
        self._fuse.mkdir()
        served = self._folder / "nbd.sock"
        rates = [f"error-{call}-rate=100%" for call in ("pwrite", "zero", "trim")]
        self._start(
            "nbdkit",
            "--exit-with-parent",
            "-f",
            "-U",
            served,
            "--filter=error",
            "file",
            self._image,
            f"error-file={self._trigger}",
            *rates,
        )
        wait_for(lambda: _is_served(served), "nbdkit")
        self._start("nbdfuse", self._source(), "--unix", served)
        wait_for(self._source().exists, "nbdfuse")

    def _start(self, *command: object) -> None:
        log = (self._folder / f"{command[0]}.log").open("ab")
        with log:
            self._processes.append(subprocess.Popen([str(part) for part in command], stdout=log, stderr=log))

    def close(self) -> None:
        if self._processes:
            self.go_on()
            self.stop_failing()
        super().close()

    def _detach(self) -> None:
        if len(self._processes) > 1:
            # already gone when nbdfuse ended by itself
            with contextlib.suppress(subprocess.CalledProcessError):
                run("fusermount3", "-u", self._fuse)
        for process in reversed(self._processes):
            process.terminate()
            process.wait(WAIT_S)
        self._processes.clear()
