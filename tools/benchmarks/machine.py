"""What a record says of where it was measured: processors, memory, kernel, filesystem, versions, commit. No
names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SOFTWARE = (
    "shardwright",
    "acquire-zarr",
    "tensorstore",
    "zarr",
    "zarrs",
    "numcodecs",
    "blosc2",
    "numba",
    "numpy",
    "pyzmq",
)
ROOT = Path(__file__).resolve().parents[2]


def machine_facts(folder: Path) -> dict[str, Any]:
    """``folder``: where the disk cases write; it exists."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "filesystem": filesystem_of(folder),
        "python": platform.python_version(),
    }


def filesystem_of(folder: Path) -> str:
    """Its type, such as ext4: that of the deepest mount above the folder."""
    mounts = [
        line.split()
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    above = [
        (len(mount[1]), number, mount[2])
        for number, mount in enumerate(mounts)
        if folder.resolve().is_relative_to(mount[1])
    ]
    return max(above)[2]  # of two mounts on the same folder the later one is seen


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def software_versions() -> dict[str, str | None]:
    """None: not installed."""
    return {name: _version(name) for name in SOFTWARE}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cores_busy(seconds: float = 1.0) -> float:
    """What all processes together, and others on the same host, take of this machine while the caller sleeps:
    0 where it is idle."""
    begin = _busy_seconds()
    time.sleep(seconds)
    return (_busy_seconds() - begin) / seconds


def _busy_seconds() -> float:
    """User, nice, system, interrupts and stolen, of the first line of /proc/stat; idle and waiting for the
    disk left out."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def commit() -> tuple[str | None, bool]:
    """The checkout's commit (None outside of one), and whether anything that is measured differs from it."""
    head = _git("rev-parse", "HEAD")
    changed = _git(
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        "src",
        "tools/benchmarks/*.py",
        "tools/benchmarks/cases",
        "tools/benchmarks/peers",
    )
    return head, bool(changed)


def _git(*arguments: str) -> str | None:
    try:
        return (
            subprocess.run(
                ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
            ).stdout.strip()
            or None
        )
    except (OSError, subprocess.CalledProcessError):
        return None
