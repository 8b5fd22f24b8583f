"""Where a program that writes in its own process begins: ``create`` and ``resume`` make a ``Writer`` of plain arguments; ``release_memory``."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.array.ome import layout_warnings
from shardwright.model.errors import LayoutWarning
from shardwright.storage.spare_memory import spare_memory

from .acquisition import Acquisition
from .limits import Limits, default_threads
from .settings import WriteSettings
from .writer import Writer

if TYPE_CHECKING:
    import os

    from shardwright.array.spec import ArraySpec
    from shardwright.storage.slot_file import IoMode

    from .settings import Durability, OnFull, Overload


def create(
    path: str | os.PathLike[str],
    spec: ArraySpec,
    *,
    threads: int | None = None,
    memory_bytes: int | None = None,
    io: IoMode = "auto",
    durability: Durability = "stored",
    store_within_ms: int = 1000,
    sync_interval_ms: int = 1000,
    overload: Overload = "block",
    on_full: OnFull = "fail",
    spill_root: str | os.PathLike[str] | None = None,
) -> Writer:
    """A writer in this process. ``path`` must not exist yet (``OutputExistsError``). Its buffers stay with the process for the next one, see
    ``release_memory``.

    ``threads`` compress (default: ``default_threads``); ``memory_bytes`` bounds what is held (``BudgetError`` when the layout needs more).
    ``io`` is how shards are filled: ``pwrite``, ``direct``, ``mmap`` (whoever truncates a working file then ends this process by SIGBUS), or
    ``auto``, which is never ``mmap`` (see ``storage.choose_io``: the first time on a filesystem it measures, a few tenths of a second). The others
    are those of ``pipeline.settings.WriteSettings``. A layout that some readers will not open is a ``LayoutWarning``.
    """
    settings = WriteSettings.checked(
        io=io,
        durability=durability,
        store_within_ms=store_within_ms,
        sync_interval_ms=sync_interval_ms,
        overload=overload,
        on_full=on_full,
        spill_root=None if spill_root is None else Path(spill_root).absolute(),
    )
    for warning in layout_warnings(spec):
        warnings.warn(warning, LayoutWarning, stacklevel=2)
    threads = threads or default_threads()
    limits = Limits.derive(spec, threads=threads, memory_bytes=memory_bytes)
    return Writer(lambda pool, wake: Acquisition(Path(path).absolute(), spec, limits, pool, wake, settings), threads)


def resume(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    memory_bytes: int | None = None,
    durability: Durability = "stored",
    store_within_ms: int = 1000,
    sync_interval_ms: int = 1000,
    overload: Overload = "block",
    on_full: OnFull = "fail",
    take_over: bool = False,
) -> Writer:
    """Go on with a store whose writer died: what it had stored is there, the next frame is number ``writer.frames``.

    ``take_over`` even though another process holds it; that one can then seal nothing any more. Raises ``ResumeError`` for a store that is finished,
    ``LockedError`` while another writer holds it, ``ShardFormatError`` for damaged bookkeeping, ``BudgetError``, ``StorageError``.
    """
    settings = WriteSettings.checked(
        durability=durability, store_within_ms=store_within_ms, sync_interval_ms=sync_interval_ms, overload=overload, on_full=on_full
    )
    threads = threads or default_threads()
    limits_of = partial(Limits.derive, threads=threads, memory_bytes=memory_bytes)
    return Writer(lambda pool, wake: Acquisition.resume(Path(path).absolute(), pool, wake, settings, limits_of, take_over=take_over), threads)


def release_memory() -> None:
    """Give the system the buffers that closed writers left for the next one: at most what was in use at once."""
    spare_memory.release()
