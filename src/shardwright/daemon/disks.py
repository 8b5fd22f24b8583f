"""The disks that frames are written to: checked before anything opens, and watched while the daemon runs.

A disk that is not mounted or not writable is refused at the start, before an acquisition is lost. A thread of
its own asks for the free space, since a network filesystem that hangs blocks the caller. It also measures how
fast bytes are stored, and so until when the space lasts. Changes of the free space are no measure: shards are
preallocated and give back what they did not need, so that it jumps by whole shards.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections import deque
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any

from shardwright.disk.files import make_directories
from shardwright.disk.filesystems import memory_filesystem, nearest_folder
from shardwright.model.errors import StorageError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shardwright.config.model import Config

LOOK_S = 2.0
RATE_SPAN_S = 120.0  # a rate is that of the last minutes; the page has one of seconds (``web.history``)
RATE_LEAST_S = 5.0  # a shorter time says little of a disk: bytes are stored slab by slab
SILENT_S = 10.0  # after so long without an answer, a disk's space counts as unknown

_UNKNOWN = {"free_bytes": None, "total_bytes": None, "full_in_s": None}


def written_folders(config: Config) -> list[tuple[Path, str]]:
    """Returns (folder, role) of each folder that frames are written to."""
    spill_root = config.output.spill_root
    return [(config.output.root, "root"), *([] if spill_root is None else [(spill_root, "spill")])]


def prepare_output_root(root: Path, *, create: bool, in_memory: bool = False) -> None:
    """Makes sure that stores can be written below ``root``; ``in_memory``: also where a power cut destroys
    them. Raises ``StorageError``."""
    above = nearest_folder(root)
    if (create or above == root) and not in_memory and (kind := memory_filesystem(above)):
        hint = "Choose a folder on a disk. output.in_memory: true allows it, for trials."
        raise StorageError(
            f"output root {root} is in memory ({kind}): nothing there survives a power cut", hint=hint
        )
    if create:
        make_directories(root)
    try:
        is_folder: bool | None = S_ISDIR(root.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_folder = None
    except OSError as error:
        hint = f"This daemon runs as user {os.geteuid()}; every folder above must let it in."
        raise StorageError(f"output root {root} cannot be reached", got=error.strerror, hint=hint) from None
    if not is_folder:
        what = "does not exist" if is_folder is None else "is not a folder"
        raise StorageError(
            f"output root {root} {what}",
            hint="Mount its disk or make the folder; output.create: true makes it at each start.",
        )
    try:
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(b"shardwright")
    except OSError as error:
        raise StorageError(
            f"output root {root} cannot be written", got=error.strerror, hint=_whose(root, error)
        ) from None


def _whose(root: Path, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        facts = root.stat()
        return (
            f"It belongs to user {facts.st_uid}, mode {facts.st_mode & 0o7777:o}; this daemon runs as "
            f"user {os.geteuid()}."
        )
    return "Check the disk and how it is mounted."


class DiskSpace:
    """The free space of ``roots``: (path, role) of each folder that is written to. ``bytes_stored`` returns
    the bytes stored since the start; the thread that looks calls it."""

    def __init__(
        self,
        roots: Iterable[tuple[Path, str]],
        low_water_bytes: int,
        bytes_stored: Callable[[], int],
    ) -> None:
        self._low_water_bytes = low_water_bytes
        self._bytes_stored = bytes_stored
        self._stored: deque[tuple[float, int]] = deque()  # when, how many bytes; by the thread that looks
        self._asked: tuple[Path, float] | None = None  # the path that is being asked, and since when
        self._seen: dict[Path, dict[str, Any]] = {
            path: {"path": str(path), "role": role, **_UNKNOWN, "low_water_bytes": low_water_bytes}
            for path, role in roots
        }

    def set_low_water(self, low_water_bytes: int) -> None:
        """Changes the low water, from the next ``look`` on."""
        self._low_water_bytes = low_water_bytes

    def look(self) -> None:
        """Asks all disks now. ``free_bytes``, ``total_bytes`` and ``full_in_s`` are None where that fails."""
        bytes_per_s = self._rate()
        for path, last in self._seen.items():
            seen = {**last, "low_water_bytes": self._low_water_bytes}
            self._asked = path, time.monotonic()
            try:
                facts = os.statvfs(path)
            except OSError:
                self._seen[path] = {**seen, **_UNKNOWN}
            else:
                free_bytes = facts.f_bavail * facts.f_frsize
                self._seen[path] = {
                    **seen,
                    "free_bytes": free_bytes,
                    "total_bytes": facts.f_blocks * facts.f_frsize,
                    "full_in_s": free_bytes / bytes_per_s if bytes_per_s else None,
                }
        self._asked = None

    def _rate(self) -> float:
        """Returns the bytes stored in a second of the last ``RATE_SPAN_S``; 0 before ``RATE_LEAST_S`` are
        known."""
        now_s, stored = time.monotonic(), self._bytes_stored()
        while len(self._stored) > 1 and self._stored[1][0] <= now_s - RATE_SPAN_S:
            self._stored.popleft()
        self._stored.append((now_s, stored))
        then_s, stored_then = self._stored[0]
        return (stored - stored_then) / (now_s - then_s) if now_s - then_s > RATE_LEAST_S else 0.0

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
        return [{**seen, **(_UNKNOWN if path == silent else {})} for path, seen in self._seen.items()]
