"""The identity of this machine: two processes with the same boot id share one kernel, so that shared memory
between them can work."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str | None:
    """Returns the kernel's random id of this boot; None if there is none (Windows, macOS)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None
