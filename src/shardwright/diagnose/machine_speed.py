"""What the machine says, each by one small question that changes nothing. What cannot be found out is None,
or said in words."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Literal

from shardwright.storage.files import preallocate, punch_hole
from shardwright.storage.filesystems import copy_on_write_filesystem, memory_filesystem, remote_filesystem

Preallocation = Literal["guaranteed", "emulated", "absent"]
FilesystemKind = Literal["disk", "copy-on-write", "network", "memory"]
PROBE_BYTES = 1 << 20
_BLOCK_BYTES = 512  # the unit of st_blocks
_STA_UNSYNC = 0x0040


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>, up to the time; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("microseconds", ctypes.c_long),
        ("room", ctypes.c_char * 256),
    )


def text_of(path: str) -> str | None:
    """A file of /proc or /sys; None where it is not there."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def number_of(path: str) -> int | None:
    text = text_of(path)
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def memory_facts() -> dict[str, int]:
    """/proc/meminfo, in bytes (counts of huge pages as they are)."""
    found = {}
    for line in (text_of("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if number.isdecimal():
            found[name] = int(number) * (1024 if unit == "kB" else 1)
    return found


def chosen(path: str) -> str | None:
    """The word in brackets: ``always [madvise] never``."""
    text = text_of(path) or ""
    return text[text.index("[") + 1 : text.index("]")] if "[" in text and "]" in text else None


def mount_of(folder: Path, mounts: str) -> tuple[str, tuple[str, ...]]:
    """(type, options) of the filesystem that ``folder``, resolved, lies on, as ``mounts`` (the text of
    /proc/self/mountinfo) tells."""
    best = -1
    found: tuple[str, tuple[str, ...]] = ("unknown", ())
    for line in mounts.splitlines():
        own, _, filesystem = line.partition(" - ")
        fields, parts = own.split(), filesystem.split()
        if len(fields) < 6 or len(parts) < 3:
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))
        # of two on one point the later one counts
        if (point == folder or point in folder.parents) and len(point.parts) >= best:
            best, found = len(point.parts), (parts[0], (*fields[5].split(","), *parts[2].split(",")))
    return found


def filesystem_kind(folder: Path) -> FilesystemKind:
    """Raises ``StorageError``."""
    if remote_filesystem(folder):
        return "network"
    if memory_filesystem(folder):
        return "memory"
    return "copy-on-write" if copy_on_write_filesystem(folder) else "disk"


def preallocation_of(folder: Path) -> Preallocation:
    """Tried with a file of 1 MiB. Absent: blocks were asked for, and none are there. Raises ``OSError``."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        guaranteed = preallocate(probe.fileno(), PROBE_BYTES)
        os.fsync(probe.fileno())
        if os.fstat(probe.fileno()).st_blocks * _BLOCK_BYTES < PROBE_BYTES:
            return "absent"
        return "guaranteed" if guaranteed else "emulated"


def gives_gaps_back(folder: Path) -> bool:
    """Whether holes can be punched into a file here. Raises ``OSError``."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        preallocate(probe.fileno(), PROBE_BYTES)
        return punch_hole(probe.fileno(), 0, PROBE_BYTES // 2)


def clock_facts() -> tuple[bool | None, int, int]:
    """(synchronised, largest error in microseconds, seconds since 1970) by adjtimex(2); None where the kernel
    does not tell."""
    facts = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(facts)) < 0:
        return None, 0, 0
    return not facts.status & _STA_UNSYNC, int(facts.maxerror), int(facts.seconds)
