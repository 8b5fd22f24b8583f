"""The surroundings of the code that every world replaces: the disk, random names, and the moments at which
somebody else may act."""

from __future__ import annotations

import os
import random
import secrets
import sys
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import shardwright.disk.files as files_module
import shardwright.disk.lock as lock_module
import shardwright.shard.frame_log as log_module
from shardwright.disk import beneath, failpoints, system
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ShardwrightError

from .disk import DefectError
from .process import give_way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from .disk import SimulatedDisk

_text_of = ErrorText.of.__func__  # type: ignore[attr-defined]
_THEN = datetime(2026, 1, 1, tzinfo=UTC)  # the text of a lock is the same each time


Patch = tuple[Any, str, Any]
"""(module or class, name, what stands there instead)"""


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """A context in which each name stands for something else. Raises ``AttributeError`` for one that is not
    there any more."""
    with ExitStack() as stack:
        for where, name, instead in patches:
            stack.enter_context(mock.patch.object(where, name, instead))
        yield


@contextmanager
def simulated(
    disk: SimulatedDisk,
    reach: Callable[[str], None],
    seed: int,
    instead: Iterable[Patch],
    order: random.Random | None,
) -> Iterator[None]:
    """A context in which the code runs on ``disk`` and calls ``reach`` at every failpoint. ``instead``:
    what else is patched. ``order``: by which chance the entries of folders come; None: as they do."""
    names = random.Random(seed)
    patches: tuple[Patch, ...] = (
        (secrets, "token_hex", lambda n: names.randbytes(n).hex()),
        (secrets, "token_bytes", names.randbytes),
        (lock_module, "datetime", SimpleNamespace(now=lambda _: _THEN)),
        (os, "getpid", lambda: 10_000),  # as many digits in each: the text is in a file
        (log_module, "EXTENT_BYTES", 8192),  # the disk copies what is synced
        (files_module, "sleep", lambda _: give_way()),
        (files_module, "monotonic", lambda: 0.0),  # who waits for a lock waits until it is free
        (ErrorText, "of", classmethod(_of_a_typed_error)),
    )
    if order is not None:
        patches += ((beneath, "entries_in", _in_no_order(beneath.entries_in, disk, order)),)
    with patched((*patches, *instead)), ExitStack() as stack:
        system.use(disk)
        stack.callback(system.use, None)
        failpoints.watch_all(reach)
        stack.callback(failpoints.watch_all, None)
        yield


def everywhere(function: Callable[..., object], instead: object) -> list[Patch]:
    """Patches for every module of the program that has the function: one that imports it later than its world
    was written must not call the real one."""
    name = function.__name__
    modules = [module for key, module in sys.modules.items() if key.startswith("shardwright.")]
    return [(module, name, instead) for module in modules if vars(module).get(name) is function]


def _in_no_order(
    entries_in: Callable[..., AbstractContextManager[Iterator[os.DirEntry[str]]]],
    disk: SimulatedDisk,
    chance: random.Random,
) -> Callable[..., AbstractContextManager[Iterator[os.DirEntry[str]]]]:
    """In place of ``beneath.entries_in``: before each entry somebody else may act."""

    def looked_at(entries: list[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for entry in entries:
            disk.look()
            yield entry

    @contextmanager
    def in_no_order(path: Path, *, folder: int | None = None) -> Iterator[Iterator[os.DirEntry[str]]]:
        with entries_in(path, folder=folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
            chance.shuffle(entries)
            yield looked_at(entries)

    return in_no_order


def _of_a_typed_error(
    cls: type[ErrorText], error: BaseException, defect: ShardwrightError | None = None
) -> ErrorText:
    """In place of ``ErrorText.of``: an error of any other class is a defect, and never one of the disk."""
    if not isinstance(error, ShardwrightError):
        raise DefectError(f"an error that is not typed: {error!r}") from error
    text: ErrorText = _text_of(cls, error, defect)
    return text
