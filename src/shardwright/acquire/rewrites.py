"""The rewrites of shard rows whose files met an I/O error: once no worker uses the old files, the sealer
copies what can be read back to new ones, and slabs whose frames are still held are encoded again. Owned by
the acquisition's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.model.errors import StorageError, StorageFullError

from .commands import Rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardwright.model.error_text import ErrorText

    from .commands import SealerCommand
    from .shard_rows import ShardRow, ShardRows

MOST_REWRITES = 2  # of one shard row; a disk that fails more often than that ends the acquisition


class Rewrites:
    """The rewrites under way, and how often each shard row broke.

    ``ask`` takes commands for the sealer, ``on_event`` (name, facts). ``in_place``: chunks of slabs that are
    not whole are in the files as well, and cannot be copied."""

    def __init__(
        self,
        shard_rows: ShardRows,
        ask: Callable[[SealerCommand], None],
        on_event: Callable[[str, dict[str, Any]], None],
        *,
        in_place: bool,
    ) -> None:
        # by shard row in progress: how often its files broke. A disk that takes no file any more would be
        # tried for ever otherwise.
        self._broke: dict[int, int] = {}
        # by shard row that is being rewritten: rows of the slab table whose slabs are in the old files, not
        # durable. They keep their frames: what cannot be read back is encoded again, so nothing is lost.
        self._held: dict[int, list[int]] = {}
        self._shard_rows = shard_rows
        self._ask = ask
        self._on_event = on_event
        self._in_place = in_place

    def note_io_error(self, shard_row: ShardRow, error: ErrorText) -> bool:
        """Stops writing into the old files. Returns False when the shard row cannot be saved by new ones."""
        if self._in_place:
            return False
        if not shard_row.ready:
            self._shard_rows.broke(shard_row)
            return True
        broke = self._broke.get(shard_row.number, 0)
        if not error.is_a(StorageError) or error.is_a(StorageFullError) or broke >= MOST_REWRITES:
            return False
        self._shard_rows.broke(shard_row)
        self._broke[shard_row.number] = broke + 1
        facts = {
            "shard_row": shard_row.number,
            **error.as_reason(),
            "then": "its shards are rewritten to new files",
        }
        self._on_event("io_error", facts)
        return True

    def begin(self, shard_row: ShardRow, stored_slabs: set[int], held: Mapping[int, int]) -> None:
        """Lets the sealer move a shard row to new files, once no worker uses the old ones. ``stored_slabs``
        were acknowledged; of these, ``held`` (row of the slab table -> slab) can be encoded again."""
        self._shard_rows.rewrite_begins(shard_row)
        self._held[shard_row.number] = list(held)
        self._ask(Rewrite(shard_row.number, frozenset(stored_slabs), frozenset(held.values())))

    @property
    def holds_rows(self) -> bool:
        """True if rows of the slab table are held: they become free when the sealer reports."""
        return any(self._held.values())

    def take_held(self, number: int) -> list[int]:
        """Removes and returns the rows that are held for a shard row."""
        return self._held.pop(number, [])

    def closed(self, number: int) -> None:
        """Forgets a shard row that is sealed or given up."""
        self._broke.pop(number, None)
