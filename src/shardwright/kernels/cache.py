"""Where numba keeps compiled kernels: a private folder named after everything the machine code depends on.

numba looks only at the file of the function itself, so a kernel would survive a change of another kernel that
it calls. And it loads its cache with pickle, so the folder must belong to this user alone. Looked for in
order: ``NUMBA_CACHE_DIR``, ``CACHE_DIRECTORY`` (set by systemd), ``XDG_CACHE_HOME``, ``~/.cache``. Where none
can be had, kernels are compiled at each start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from pathlib import Path

import numba

from shardwright.codecs import native, parameters

COMPILED = "compiled"  # a file in the folder: every kernel of the pipeline is in it
KEPT = 4  # folders of other versions; older ones are deleted


def _version() -> str:
    """A digest of the kernels' sources and of what else decides their machine code."""
    digest = hashlib.sha256()
    for source in (*sorted(Path(__file__).parent.glob("*.py")), Path(parameters.__file__)):
        digest.update(source.read_bytes())
    for fact in (numba.__version__, native.available(), os.environ.get("NUMBA_BOUNDSCHECK", "")):
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
    """Folders of other versions but the last few; ``newest`` stays, whatever the clock said when it was
    made."""
    others = sorted(
        set(newest.parent.glob("kernels-*")) - {newest},
        key=lambda folder: folder.stat().st_mtime,
        reverse=True,
    )
    for folder in others[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def choose_cache_folder() -> Path | None:
    """Creates the folder and tells numba; None (and numba's own choice stays unused) where no private folder
    can be had."""
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
    """Whether the kernels need only be loaded: a tenth of a second in place of half a minute."""
    return folder is not None and (folder / COMPILED).exists()


def note_compiled(folder: Path | None) -> None:
    """So that the next process knows. Where it cannot be noted, that one says once more that it compiles."""
    if folder is not None:
        with contextlib.suppress(OSError):
            (folder / COMPILED).touch()
