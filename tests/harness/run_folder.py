"""The temporary folders of one run of the tests: they lie in memory if it has room and opens files for direct
I/O, as a disk does; what only a disk can refuse lies on one.

Every process of the run holds a shared lock of each. They are deleted at the end, also of an interrupted
run. One that was killed cannot do that: the next run finds the lock free, unmounts what is mounted there
(filesystems on loop devices) and deletes it. What a failed test left stays until this checkout's next run.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from shardwright.disk.filesystems import memory_filesystem

MEMORY = Path("/dev/shm")
DISK = Path("/var/tmp")  # where the usual place is in memory
MEMORY_BYTES = 4 << 30  # more than a whole run has there at once; a container often has 64 MiB
PREFIX = "sw-run-"
KEPT = "kept-for"  # names the checkout
CHECKOUT = Path(__file__).parents[2]
THAW = 0xC0045878  # FITHAW


class Folders(NamedTuple):
    temporary: Path  # ``TMPDIR`` of this process and of all that it starts
    on_disk: Path  # the same where memory is no place for them, or where ``TMPDIR`` told of another
    is_maker: bool


def roomy_memory(nbytes: int = MEMORY_BYTES) -> Path | None:
    """None where fewer bytes fit into memory, or where direct I/O is refused there."""
    try:
        with tempfile.NamedTemporaryFile(dir=MEMORY) as file:
            os.close(os.open(file.name, os.O_RDWR | os.O_DIRECT))
        return MEMORY if shutil.disk_usage(MEMORY).free >= nbytes else None
    except OSError:
        return None


def enter() -> Folders:
    """Makes the folders of this run; in a process that another one of the run started, joins it."""
    if (made := os.environ.get("SHARDWRIGHT_TEST_DISK")) is not None:
        folders = Folders(Path(tempfile.gettempdir()), Path(made), is_maker=False)
        for folder in (folders.temporary, folders.on_disk):
            _hold(folder)
        return folders
    told = Path(tempfile.gettempdir())
    memory = roomy_memory() if "TMPDIR" not in os.environ else None
    has_disk = DISK.is_dir() and not memory_filesystem(DISK)
    places = memory or told, DISK if memory_filesystem(told) and has_disk else told
    for place in {MEMORY, *places}:
        sweep(place)
    made_in = {place: _make(place) for place in {*places}}
    folders = Folders(*(made_in[place] for place in places), is_maker=True)
    os.environ["SHARDWRIGHT_TEST_DISK"] = str(folders.on_disk)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folders.temporary)
    return folders


def keep(folders: Folders) -> None:
    """For whoever looks at what a failed test left."""
    for folder in (folders.temporary, folders.on_disk) if folders.is_maker else ():
        (folder / KEPT).write_text(str(CHECKOUT), encoding="utf-8")


def sweep(place: Path) -> None:
    """Deletes what runs left in ``place`` that did not come to their end."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, or somebody else's
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_kept_for_another(folder):
                    _delete(folder)
            finally:
                os.close(descriptor)


def _is_kept_for_another(folder: Path) -> bool:
    try:
        checkout = Path((folder / KEPT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return checkout != CHECKOUT and checkout.exists()


def _make(place: Path) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        with contextlib.suppress(FileNotFoundError):  # swept before it was held
            folder.chmod(0o711)  # tests go through it as another user
            _hold(folder)
            atexit.register(_leave, folder, os.getpid())
            return folder


def _hold(folder: Path) -> None:
    """Until this process ends."""
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)
    folder.stat()


def _leave(folder: Path, pid: int) -> None:
    if os.getpid() == pid and not (folder / KEPT).exists():
        _delete(folder)


def _delete(folder: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    for mounted in reversed([line.split()[4] for line in mounts]):
        if mounted.startswith(f"{folder}/"):
            _thaw(mounted)
            subprocess.run(["umount", "-l", mounted], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def _thaw(mounted: str) -> None:
    """A frozen filesystem would keep its loop device for good."""
    with contextlib.suppress(OSError):  # not frozen, or broken
        descriptor = os.open(mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, THAW, struct.pack("i", 0))
        finally:
            os.close(descriptor)
