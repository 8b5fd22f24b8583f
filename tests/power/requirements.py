"""What a machine needs to record a filesystem's writes and to mount what is left of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

APT_LINE = "apt-get install qemu-system-common e2fsprogs xfsprogs btrfs-progs fuse3 util-linux"
FILESYSTEMS = ("ext4", "xfs", "btrfs")
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")  # where mkfs lies, whether or not it is on PATH


def find_tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_SYSTEM_FOLDERS))


def tool(name: str) -> str:
    """The path of a program that ``missing`` looked for."""
    found = find_tool(name)
    assert found is not None, f"{name} is not installed"
    return found


def missing(filesystems: tuple[str, ...] = FILESYSTEMS) -> list[str]:
    """What is not there, in words; empty when the proof can run."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root")
    lacks += [device for device in ("/dev/fuse", "/dev/loop-control") if not Path(device).exists()]
    programs = ["qemu-storage-daemon", "fusermount3", "unshare", *(f"mkfs.{name}" for name in filesystems)]
    lacks += [program for program in programs if find_tool(program) is None]
    known = Path("/proc/filesystems").read_text(encoding="ascii").split()
    lacks += [f"{name} in this kernel" for name in filesystems if name not in known]
    return lacks


def why_not(filesystems: tuple[str, ...] = FILESYSTEMS) -> str | None:
    """One loud line for a skip, None when everything is there."""
    lacks = missing(filesystems)
    if not lacks:
        return None
    return (
        f"NOT TESTED: power cuts. This machine lacks {', '.join(lacks)}. On Debian or Ubuntu, as root: "
        f"{APT_LINE}"
    )
