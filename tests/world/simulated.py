"""What every world takes from the code's surroundings: the disk, random names, and the moments at which
somebody else may act."""

from __future__ import annotations

import random
import secrets
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import shardwright.shard.frame_log as log_module
import shardwright.storage.files as files_module
import shardwright.storage.lock as lock_module
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ShardwrightError
from shardwright.storage import failpoints, system

from .disk import DefectError
from .process import give_way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
) -> Iterator[None]:
    """A context in which the code runs on ``disk`` and calls ``reach`` at every failpoint. ``instead``:
    what else is patched."""
    names = random.Random(seed)
    patches = (
        (secrets, "token_hex", lambda n: names.randbytes(n).hex()),
        (secrets, "token_bytes", names.randbytes),
        (lock_module, "datetime", SimpleNamespace(now=lambda _: _THEN)),
        (log_module, "EXTENT_BYTES", 8192),  # the disk copies what is synced
        (files_module, "sleep", lambda _: give_way()),
        (files_module, "monotonic", lambda: 0.0),  # who waits for a lock waits until it is free
        (ErrorText, "of", classmethod(_of_a_typed_error)),
    )
    with patched((*patches, *instead)), ExitStack() as stack:
        system.use(disk)
        stack.callback(system.use, None)
        failpoints.watch_all(reach)
        stack.callback(failpoints.watch_all, None)
        yield


def _of_a_typed_error(
    cls: type[ErrorText], error: BaseException, defect: ShardwrightError | None = None
) -> ErrorText:
    """In place of ``ErrorText.of``: an error of any other class is a defect, and never one of the disk."""
    if not isinstance(error, ShardwrightError):
        raise DefectError(f"an error that is not typed: {error!r}") from error
    text: ErrorText = _text_of(cls, error, defect)
    return text
