"""The commit ledger: frames that are stored but not yet durable, and what becomes free once they are durable.
Owned by the acquisition's thread.

There is one entry for each target that is synced on its own: a shard row's files, the staging area, the frame
log. A commit takes all pending entries, the sealer syncs their targets, and entries whose sync succeeded are
settled: one sync for all frames of an interval, never one for each frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

STAGED, LOGGED = -1, -2  # keys beside shard row numbers


@dataclass
class Uncommitted:
    """The effects of a sync of one target: ``sequences`` become durable, ``slots`` of the staging area free.
    With durability ``durable`` also ``releases`` (sequences whose pixels are released only now) and ``rows``
    of the slab table, which keep the frames in case a sync fails and their slab must be written again."""

    sequences: list[np.ndarray] = field(default_factory=list)
    slots: list[np.ndarray] = field(default_factory=list)
    releases: list[np.ndarray] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def absorb(self, other: Uncommitted) -> None:
        self.sequences += other.sequences
        self.slots += other.slots
        self.releases += other.releases
        self.rows += other.rows


class CommitLedger:
    """The frames that are stored and not durable yet, by what must be synced for them.

    ``holds_pixels``: they are released only once they are durable, with durability ``durable``: a slab whose
    files fail before that is written again."""

    def __init__(self, *, holds_pixels: bool) -> None:
        self.holds_pixels = holds_pixels
        self._flush_goal = 0  # sequences that a flush wants durable; until then nothing waits for its time
        # By place: what its next sync makes durable.
        self._pending: dict[int, Uncommitted] = {}
        # What the sync under way makes durable; None: there is none. Apart from ``_pending``, since what is
        # stored during a sync may not be covered by it.
        self._in_commit: dict[int, Uncommitted] | None = None
        # when the oldest of ``_pending`` was added, or the last commit began without some of them
        self._since_s = 0.0

    def flush(self, sequences: int) -> None:
        """Wants so many sequences durable, now."""
        self._flush_goal = sequences

    def is_flushing(self, durable: int) -> bool:
        """Returns whether a flush waits, while so many sequences are durable."""
        return durable < self._flush_goal

    @property
    def committing(self) -> bool:
        return self._in_commit is not None

    @property
    def busy(self) -> bool:
        """True if anything waits for a sync or is being synced."""
        return bool(self._pending) or self._in_commit is not None

    def commits(self, key: int) -> bool:
        """Returns whether this target is being synced."""
        return self._in_commit is not None and key in self._in_commit

    @property
    def in_commit(self) -> set[int]:
        """The targets that are being synced."""
        return set(self._in_commit or {})

    @property
    def slots_to_come(self) -> bool:
        """True if a commit would free staging slots."""
        return any(entry.slots for entry in self._pending.values())

    @property
    def rows_to_come(self) -> bool:
        """True if a commit frees, or would free, rows of the slab table."""
        return self.holds_pixels and any(
            entry.rows for entry in (*self._pending.values(), *(self._in_commit or {}).values())
        )

    def add(
        self,
        key: int,
        now_s: float,
        sequences: np.ndarray,
        *,
        slots: np.ndarray | None = None,
        held_row: int | None = None,
        release: bool = False,
    ) -> None:
        """Adds stored frames. ``held_row``: the row that keeps them until they are durable; ``release``:
        their pixels are released then, from no row."""
        if not self._pending:
            self._since_s = now_s
        entry = self._pending.setdefault(key, Uncommitted())
        entry.sequences.append(sequences)
        if slots is not None and slots.size:
            entry.slots.append(slots)
        if held_row is not None:
            entry.rows.append(held_row)
        if held_row is not None or release:
            entry.releases.append(sequences)

    def due(self, now_s: float, interval_s: float) -> bool:
        return bool(self._pending) and self._in_commit is None and now_s - self._since_s >= interval_s

    def begin(self, now_s: float, can_sync: Callable[[int], bool]) -> set[int]:
        """Starts a commit of all pending that ``can_sync``; of the others the seal will settle most, and they
        are asked for again after an interval. Returns the keys to sync."""
        assert self._in_commit is None, "one commit at a time"
        taken = {key: self._pending.pop(key) for key in list(filter(can_sync, self._pending))}
        self._in_commit, self._since_s = taken or None, now_s
        return set(taken)

    @property
    def releases_waiting(self) -> int:
        """The number of frames whose pixels are released by the next commit."""
        if not self.holds_pixels:
            return 0  # asked at each step, of many shard rows perhaps
        return sum(array.size for entry in self._pending.values() for array in entry.releases)

    @property
    def unsynced_frames(self) -> int:
        """The number of frames whose pixels are released by the next commit or the one under way."""
        if not self.holds_pixels:
            return 0
        return self.releases_waiting + sum(
            array.size for entry in (self._in_commit or {}).values() for array in entry.releases
        )

    def end(self, failed: set[int]) -> list[tuple[int, Uncommitted]]:
        """Ends a commit. Returns the synced entries with their keys. Those that failed are pending again
        (their files will be rewritten)."""
        entries, self._in_commit = self._in_commit or {}, None
        for key in failed & entries.keys():
            entry = entries.pop(key)
            entry.absorb(self._pending.pop(key, Uncommitted()))
            self._pending[key] = entry
        return list(entries.items())

    def take_all(self) -> list[tuple[int, Uncommitted]]:
        """Removes and returns all entries, since the store is finished or has failed."""
        entries = [*(self._in_commit or {}).items(), *self._pending.items()]
        self._pending, self._in_commit = {}, None
        return entries

    def take(self, key: int) -> Uncommitted:
        """Removes and returns what is pending for a target that was synced otherwise (a sealed shard row), is
        being rewritten, or is given up."""
        return self._pending.pop(key, Uncommitted())


def joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
