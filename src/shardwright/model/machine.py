"""The identity of this machine: two processes with the same boot id share one kernel, so that shared memory
between them can work, and what one of them left in the page cache is there for the other.

A module of its own, since the client, the daemon and the marks of stores need it, and only ``model`` lies
below all three.
"""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str | None:
    """Returns the kernel's random id of this boot; None if there is none (Windows, macOS)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None
