"""The folder in which numba keeps compiled kernels: private, and named after all that the machine code
depends on.

numba checks only the file of the function itself, so a cached kernel would stay in use after a change of
another kernel that it calls. It loads its cache with pickle, so the folder must belong to this user alone.
Tried in order: ``NUMBA_CACHE_DIR``, ``CACHE_DIRECTORY`` (set by systemd), ``XDG_CACHE_HOME``, ``~/.cache``.
If none is usable, kernels are compiled at each start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numba

from shardwright.codecs import native_library, parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPILED = "compiled"  # a file in the folder: set once every kernel of the pipeline is cached there
LONGEST_COMPILATION_S, _LOOK_S = 300.0, 0.05
KEPT = 4  # folders of other versions; older ones are deleted


def _version() -> str:
    """Returns a digest of the kernels' sources and of all else that decides their machine code."""
    digest = hashlib.sha256()
    for source in (*sorted(Path(__file__).parent.glob("*.py")), Path(parameters.__file__)):
        digest.update(source.read_bytes())
    facts = (
        sys.implementation.cache_tag,  # numba keeps each Python's kernels apart, the mark COMPILED does not
        numba.__version__,
        native_library.available(),
        os.environ.get("NUMBA_BOUNDSCHECK", ""),
    )
    for fact in facts:
        digest.update(repr(fact).encode())
    return digest.hexdigest()[:16]


def _parent() -> Path:
    for variable in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        if folder := os.environ.get(variable):
            return Path(folder.split(":", maxsplit=1)[0]) / "shardwright"
    return Path.home() / ".cache" / "shardwright"


def _is_private(folder: Path) -> bool:
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _delete_old(newest: Path) -> None:
    """Deletes folders of other versions except the last few; ``newest`` stays, whatever its time stamp."""
    others = sorted(
        set(newest.parent.glob("kernels-*")) - {newest},
        key=lambda folder: folder.stat().st_mtime,
        reverse=True,
    )
    for folder in others[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def choose_cache_folder() -> Path | None:
    """Creates the folder and sets it in numba; returns None, and kernels are not cached, if no private folder
    is possible."""
    try:
        folder = _parent() / f"kernels-{_version()}"
        fresh = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_private(folder):
            return None
        if fresh:
            _delete_old(folder)
    except (OSError, RuntimeError):  # no home, read-only, no room
        return None
    numba.config.CACHE_DIR = str(folder)
    return folder


def is_compiled(folder: Path | None) -> bool:
    """Returns whether the kernels need only be loaded: a tenth of a second in place of half a minute."""
    return folder is not None and (folder / COMPILED).exists()


@contextlib.contextmanager
def one_compiles(folder: Path | None) -> Iterator[None]:
    """A context that only one process at a time is in while the folder is not complete: of several that start
    at once the first compiles, the others wait for it and load; not for ever."""
    with contextlib.ExitStack() as held:
        if folder is not None and not is_compiled(folder):
            with contextlib.suppress(OSError):  # a folder that cannot be written is never complete
                lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                held.callback(os.close, lock)
                _wait_for(lock)
        yield


def _wait_for(lock: int) -> None:
    """Takes the lock once its holder has compiled or died. One that was stopped meanwhile is not waited for
    longer than any compilation takes: two may compile the same."""
    give_up_s = time.monotonic() + LONGEST_COMPILATION_S
    while time.monotonic() < give_up_s:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOOK_S)


def note_compiled(folder: Path | None) -> None:
    """Marks the folder as complete for the next process. If that fails, the next one announces a compilation
    again."""
    if folder is not None:
        with contextlib.suppress(OSError):
            (folder / COMPILED).touch()
