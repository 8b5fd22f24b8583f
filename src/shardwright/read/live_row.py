"""A shard row in progress, as its journal tells: which slabs are stored, and where their chunks are.

The journal is read again and again while its writer fills it. A slab that was stored once stays stored, so
that a look reads only what belongs to the others: the entry of the first chunk of each, and all of a slab
whose first entry is there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.shard.journal import CHUNK_ENTRY, JournalLayout, ShardRowJournal
from shardwright.shard.layout import slabs_of_shard_row

if TYPE_CHECKING:
    from shardwright.shard.layout import ArrayLayout
    from shardwright.shard.shard_row_files import Placement

Identity = tuple[int, int]  # device and inode


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


class LiveRow:
    """One shard row with a journal. ``identity``: of the journal's file; another one under its name speaks of
    other files. ``tables[f]``: CHUNK_ENTRY[slots] of file f, valid where ``stored`` (by slot layer) is true.
    """

    def __init__(
        self,
        layout: ArrayLayout,
        shard_row: int,
        placement: Placement,
        record: np.dtype[np.void],
        identity_bytes: bytes,
    ) -> None:
        """Raises ``ShardFormatError`` for a journal that is damaged or not made yet, ``StorageError``."""
        self.layout = layout
        self.number = shard_row
        self.placement = placement
        tables = JournalLayout.of(layout, shard_row, record)
        self._journal = ShardRowJournal.open(
            placement.journal(shard_row), tables, identity_bytes, shard_row, read_only=True
        )
        self.identity = identity_of(os.fstat(self._journal.descriptor))
        self.slabs = slabs_of_shard_row(layout, shard_row)
        places = [layout.layer_of_slab(slab) for slab in self.slabs]
        self.slot_layer = {slab: place[1] for slab, place in zip(self.slabs, places, strict=True)}
        self.index_layer = {slab: place[0] for slab, place in zip(self.slabs, places, strict=True)}
        self.slab_of_index_layer = {layer: slab for slab, layer in self.index_layer.items()}
        self._slab_of_slot_layer = {layer: slab for slab, layer in self.slot_layer.items()}
        self.tables = [np.zeros(slots, CHUNK_ENTRY) for slots in tables.slots]
        self.stored = np.zeros(tables.slabs, np.bool_)
        self._untold: list[tuple[int, np.ndarray]] = []  # found by ``is_stored``, for the next ``look``

    def look(self) -> list[tuple[int, np.ndarray]]:
        """Returns (slab, frame records) of each slab that is stored since the last look. Raises
        ``StorageError``."""
        waiting = np.flatnonzero(~self.stored)
        for layer in waiting[self._journal.begun(waiting)].tolist():
            self._read(layer)
        found, self._untold = self._untold, []
        return found

    def is_stored(self, slab: int) -> bool:
        """Looks at one slab, whose chunks are then in ``tables``. Raises ``StorageError``."""
        layer = self.slot_layer[slab]
        if not self.stored[layer]:
            self._read(layer)
        return bool(self.stored[layer])

    def _read(self, layer: int) -> None:
        found = self._journal.read_stored_slab(layer)
        if found is None:
            return
        records, valid, entries = found
        for table, mine in zip(self.tables, entries, strict=True):
            table[layer * mine.size : (layer + 1) * mine.size] = mine
        self.stored[layer] = True
        self._untold.append((self._slab_of_slot_layer[layer], records[valid]))

    def is_current(self) -> bool:
        """Returns whether the journal's name is still this one's: if not, the shard row is sealed, its files
        were replaced, or another writer has them."""
        with suppress(OSError):
            return identity_of(self._journal.path.stat()) == self.identity
        return False

    @property
    def is_reopened(self) -> bool:
        return self._journal.reopened

    def __del__(self) -> None:  # not sooner: another thread may still read what the view lets go
        with suppress(AttributeError):  # it was never opened
            self._journal.close()


def open_row(
    layout: ArrayLayout,
    shard_row: int,
    placement: Placement,
    record: np.dtype[np.void],
    identity_bytes: bytes,
) -> LiveRow | None:
    """Opens the journal of a shard row. Returns None where none says anything: it is gone, has no header yet,
    so that nothing is stored there, or is damaged, which recovery reports."""
    if not placement.journal(shard_row).exists():  # of a sealed shard row: the usual case
        return None
    try:
        return LiveRow(layout, shard_row, placement, record, identity_bytes)
    except (ShardFormatError, OSError):
        return None
