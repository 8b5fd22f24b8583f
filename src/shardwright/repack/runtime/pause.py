"""The pause files, which make jobs wait, and the daemon's side of them.

    ARRAY/.compact/pause      made by a person: while it exists, jobs on this array wait
    ROOT/.shardwright-pause   made by the daemon that writes below ROOT, while its cameras need the machine:
                              jobs below ROOT wait

The second one counts only while it is locked. The kernel drops the lock when the daemon dies, so that the
file of a dead daemon holds up nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from shardwright.storage.lock import StoreLock, is_locked

from .work_folder import PAUSE_NAME, WORK_FOLDER

RIG_PAUSE_NAME = ".shardwright-pause"


def pause_files(array: Path, *folders: Path) -> list[str]:
    """The pause files of a job that reads ``array`` and writes there, or into ``folders``, which need not
    exist."""
    return [str(array / WORK_FOLDER / PAUSE_NAME), *rig_pause_files(array, *folders)]


def rig_pause_files(*places: Path) -> list[str]:
    """The pause files of daemons. One may start at any time, so its file is looked for in every folder above
    on the same filesystem."""
    above = [folder for place in places for folder in _folders_above(place.resolve())]
    return list(dict.fromkeys(str(folder / RIG_PAUSE_NAME) for folder in above))


def _folders_above(place: Path) -> list[Path]:
    folders = [folder for folder in place.parents if folder.is_dir()]
    return [folder for folder in folders if folder.stat().st_dev == folders[0].stat().st_dev]


def pausing_file(files: list[str] | tuple[str, ...]) -> str | None:
    """The first of ``pause_files`` that makes jobs wait now."""
    return next((file for file in files if _says_wait(file)), None)


def _says_wait(file: str) -> bool:
    return is_locked(Path(file)) if os.path.basename(file) == RIG_PAUSE_NAME else os.path.lexists(file)  # noqa: PTH119  (asked with every grant)


def pause_note(files: list[str] | tuple[str, ...]) -> str:
    """One line that says why a job waits now; empty when it does not."""
    file = pausing_file(files)
    if file is None:
        return ""
    folder, name = os.path.split(file)
    return (
        f"paused: the cameras of the daemon at {folder} need the machine"
        if name == RIG_PAUSE_NAME
        else f"paused by {file}"
    )


class RigPause:
    """The pause file of a daemon. One thread's."""

    def __init__(self, root: Path) -> None:
        """``root``: its output root."""
        self._path = root / RIG_PAUSE_NAME
        self._lock: StoreLock | None = None

    @property
    def held(self) -> bool:
        return self._lock is not None

    def begin(self) -> None:
        """Make jobs wait. Raises ``StorageError``, ``LockedError`` when another daemon makes them wait
        already."""
        if self._lock is None:
            self._lock = StoreLock.take(self._path)

    def end(self) -> None:
        """Let jobs continue, also when this raises ``StorageError``."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.delete()

    def clear(self) -> None:
        """Delete the file that a dead daemon has left. Raises as ``begin`` does."""
        if self._path.exists():
            self.begin()
            self.end()
