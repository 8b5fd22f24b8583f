"""The folder in which numba keeps compiled kernels: private, and named after all that the machine code
depends on.

numba checks only the file of the function itself, so a cached kernel would stay in use after a change of
another kernel that it calls. It loads its cache with pickle, so nobody else may write into the folder or put
another one in its place. The first that is set counts: ``NUMBA_CACHE_DIR``, ``CACHE_DIRECTORY`` (by systemd),
``XDG_CACHE_HOME``, ``~/.cache``. If that cannot be used, kernels are compiled at each start. A kernel that
cannot be saved (the disk is full) is used all the same.
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
from typing import TYPE_CHECKING, Any

import numba
from llvmlite import binding
from numba.core import caching

from shardwright.codecs import native_library, parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPILED = "compiled"  # a file in the folder: set once every kernel of the pipeline is cached there
LONGEST_COMPILATION_S, _LOOK_S = 300.0, 0.05
KEPT = 8  # folders of other versions and CPUs; older ones are deleted
_unsaved: set[str] = set()  # kernels that this process has compiled in vain for the next one


def _version() -> str:
    """Returns a digest of the kernels' sources and of all else that decides their machine code."""
    digest = hashlib.sha256()
    for source in (*sorted(Path(__file__).parent.glob("*.py")), Path(parameters.__file__)):
        digest.update(source.read_bytes())
    facts = (
        # numba keeps the kernels of each Python and CPU apart, the mark COMPILED does not
        sys.implementation.cache_tag,
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        numba.config.CPU_NAME,  # and what somebody has told numba to compile for
        numba.config.CPU_FEATURES,
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


def _is_usable(folder: Path) -> bool:
    """Returns whether we can write there, and nobody else.

    Who may write into a folder above could put another one in its place. So each of them must belong to us or
    to root, and if everybody may write into it, only owners may rename (as in ``/tmp``). A group may
    write into folders above: many systems give each user a group of his own. The folders above our home do
    not count: who owns them owns our account."""
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    home = Path(os.environ.get("HOME") or "/").resolve()
    for above in folder.parents:
        found = above.stat()
        can_others_rename = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()) or can_others_rename:
            return False
        if above == home:
            break
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=True)


def _delete_old(newest: Path) -> None:
    """Deletes other folders except the last few; ``newest`` stays, whatever its time stamp."""
    others = sorted(
        set(newest.parent.glob("kernels-*")) - {newest},
        key=lambda folder: folder.stat().st_mtime,
        reverse=True,
    )
    for folder in others[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def choose_cache_folder() -> Path | None:
    """Creates the folder and sets it in numba; returns None, and kernels are not cached, if it cannot be used
    or is not ours alone."""
    try:
        # resolved: a link that somebody changes later leads nowhere else
        folder = _parent().resolve() / f"kernels-{_version()}"
        fresh = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_usable(folder):
            return None
        if fresh:
            _delete_old(folder)
    except (OSError, RuntimeError):  # no home, read-only, no room
        return None
    numba.config.CACHE_DIR = str(folder)
    return folder


class _Files(caching.CompileResultCacheImpl):
    """The files of one kernel: in our folder, or nowhere. numba would take ``__pycache__`` beside the
    sources, where a kernel stays in use when another one that it calls has changed."""

    _locator_classes = [caching.UserProvidedCacheLocator]  # noqa: RUF012 (numba's)


class _Cache(caching.FunctionCache):
    """numba's cache of one kernel. numba raises what a save raises out of the call of the kernel, which is
    compiled by then, and ready."""

    _impl_class = _Files

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError:
            _unsaved.add(self._py_func.__qualname__)


def njit(function: Any = None, *, cache: bool = False, **options: Any) -> Any:
    """numba's decorator, with ``_Cache`` for its cache: each kernel uses this one."""
    if function is None:
        return lambda function: njit(function, cache=cache, **options)
    kernel = numba.njit(**options)(function)
    if cache and kernel is not function:  # numba returns the function itself if NUMBA_DISABLE_JIT is set
        try:
            kernel._cache = _Cache(function)  # type: ignore[no-untyped-call]  # noqa: SLF001 (no public way)
        except RuntimeError:  # the folder cannot be used any more
            _unsaved.add(function.__qualname__)
    return kernel


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
    """Marks the folder as complete for the next process, unless a kernel could not be saved. If that fails,
    the next one announces a compilation again."""
    if folder is not None and not _unsaved:
        with contextlib.suppress(OSError):
            (folder / COMPILED).touch()
