"""The free space of the disks. A thread of its own asks for it, since a network filesystem that hangs blocks
the caller."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable
    from pathlib import Path

LOOK_S = 2.0
SILENT_S = 10.0  # after so long without an answer, a disk's space counts as unknown


class DiskSpace:
    """The free space of ``roots``: (path, role) of each folder that is written to."""

    def __init__(self, roots: Iterable[tuple[Path, str]], low_water_bytes: int) -> None:
        self._low_water_bytes = low_water_bytes
        self._asked: tuple[Path, float] | None = None  # the path that is being asked, and since when
        self._seen: dict[Path, dict[str, Any]] = {
            path: {
                "path": str(path),
                "role": role,
                "free_bytes": None,
                "total_bytes": None,
                "low_water_bytes": low_water_bytes,
            }
            for path, role in roots
        }

    def set_low_water(self, low_water_bytes: int) -> None:
        """Changes the low water, from the next ``look`` on."""
        self._low_water_bytes = low_water_bytes

    def look(self) -> None:
        """Asks all disks now. ``free_bytes`` and ``total_bytes`` are None where that fails."""
        for path, last in self._seen.items():
            seen = {**last, "low_water_bytes": self._low_water_bytes}
            self._asked = path, time.monotonic()
            try:
                facts = os.statvfs(path)
            except OSError:
                self._seen[path] = {**seen, "free_bytes": None, "total_bytes": None}
            else:
                self._seen[path] = {
                    **seen,
                    "free_bytes": facts.f_bavail * facts.f_frsize,
                    "total_bytes": facts.f_blocks * facts.f_frsize,
                }
        self._asked = None

    def run(self, stop: threading.Event) -> None:
        """The disks thread: looks every ``LOOK_S`` until ``stop``."""
        self.look()
        while not stop.wait(LOOK_S):
            self.look()

    def snapshot(self) -> list[dict[str, Any]]:
        """Returns the result of the last look; None in place of the space of a disk that does not answer.
        From any thread."""
        asked = self._asked
        silent = asked[0] if asked is not None and time.monotonic() - asked[1] > SILENT_S else None
        unknown = {"free_bytes": None, "total_bytes": None}
        return [{**seen, **(unknown if path == silent else {})} for path, seen in self._seen.items()]
