"""The state of a store by which a look was judged.

A reader finds what it is asked for by several looks at the filesystem, while writers move frames between
them. What it has found is there. What it has not found may have gone past it: into another folder, in which a
writer that took the store over has its files; or from the staging area into a shard that was looked for
before. So a reader works as with a seqlock, whose number are the names and versions of manifest, journal and
zarr.json: the looks lie between two that find the same ``StoreState``, and a search that misses something is
made twice, and must miss the same. Then, and only then, it was never stored:

    an index, a journal or a staged frame says where it is        ``Located``: it is there
    nothing has it, in one state before and after the looks       ``NeverStored``, the only source of fill
    the state has changed, or what was named is not there         ``ChangedError``: look again

A lookup that found nothing has no other answer than these, so that no miss of a moment becomes fill value.
Where a search finds everything in a finished store, zarr.json is looked at behind it alone: it was read
before.

A reader looks again ``TRIES`` times and ``LONGEST_S`` at most: a writer that changes without end gives it an
error, and does not hang it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.disk import beneath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHANGE_S = 0.03  # a frame is copied, a file renamed within a few of it, even by a writer that has to wait
TRIES = 8
LONGEST_S = 10.0  # of a machine that is slow or was stopped: no look begins later

Version = tuple[int, ...]
Identity = tuple[int, int]  # device and inode


@dataclass(frozen=True)
class StoreState:
    """The names and versions of the files by which a reader sees that the store has changed. ``manifest``:
    name and version of the newest manifest, None if no acquisition is unfinished. ``document``: the version
    of the array's zarr.json in a finished store, whose metadata go before its shards do
    (``rework.transfer.move_store``). ``journal``: of the shard row, None if it has none."""

    manifest: tuple[str | int, ...] | None
    document: Version | None = None
    journal: Identity | None = None


@dataclass(frozen=True)
class NeverStored:
    """The proof that what is absent was never stored: ``state`` was the store's before the first look for it
    and after the last."""

    state: StoreState


def folder_identity(folder: Path) -> Identity | None:
    """Returns what tells a folder from all others that ever had its name; None if there is none. Raises
    ``OSError``."""
    try:
        status = beneath.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def tries() -> Iterator[int]:
    """Yields the number of each look, from 0; waits a little longer each time."""
    begun_s = time.monotonic()
    for attempt in range(TRIES):
        if attempt > 1:
            time.sleep((attempt - 1) * CHANGE_S)
        if time.monotonic() - begun_s > LONGEST_S:
            return
        yield attempt
