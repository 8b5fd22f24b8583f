"""A shard row in progress, as its journal tells: which slabs are stored, and where their chunks are.

The journal is read again and again while its writer fills it. A slab that was stored once stays stored, so
that a look reads only what belongs to the others: the entry of the first chunk of each, and all of a slab
whose first entry is there.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.shard.file_header import is_begun
from shardwright.shard.journal import CHUNK_ENTRY, JournalLayout, ShardRowJournal
from shardwright.shard.layout import slabs_of_shard_row
from shardwright.storage import beneath
from shardwright.storage.failpoints import look

if TYPE_CHECKING:
    from shardwright.shard.layout import ArrayLayout
    from shardwright.shard.shard_row_files import Placement

    from .store_state import Identity

MOST_OPEN_JOURNALS = 64  # of one view: an acquisition may have a shard row in progress for each position


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


class OpenJournals:
    """The rows whose journals are open, those that were used last at the end."""

    def __init__(self) -> None:
        self._rows: OrderedDict[ref[LiveRow], None] = OrderedDict()

    def used(self, row: LiveRow) -> None:
        """Notes that a row uses its journal now; closes that of another one if there are too many."""
        self._rows[ref(row)] = None
        self._rows.move_to_end(ref(row))
        while len(self._rows) > MOST_OPEN_JOURNALS:
            oldest = self._rows.popitem(last=False)[0]()
            if oldest is not None:
                oldest.let_go()


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
        opened: OpenJournals,
    ) -> None:
        """Raises ``ShardFormatError`` for a journal that is damaged or not made yet, ``StorageError``."""
        self._opened = opened
        self.layout = layout
        self.number = shard_row
        self.placement = placement
        tables = JournalLayout.of(layout, shard_row, record)
        self._path, self._facts = placement.journal(shard_row), (tables, identity_bytes, shard_row)
        look("look.journal.open")
        self._open: ShardRowJournal | None = ShardRowJournal.open(self._path, *self._facts, read_only=True)
        self.identity = identity_of(os.fstat(self._open.descriptor))
        self.is_reopened = self._open.reopened
        opened.used(self)
        self.slabs = slabs_of_shard_row(layout, shard_row)
        places = [layout.layer_of_slab(slab) for slab in self.slabs]
        self.slot_layer = {slab: place[1] for slab, place in zip(self.slabs, places, strict=True)}
        self._slab_of_index_layer = {place[0]: slab for slab, place in zip(self.slabs, places, strict=True)}
        self._slab_of_slot_layer = {layer: slab for slab, layer in self.slot_layer.items()}
        self.tables = [np.zeros(slots, CHUNK_ENTRY) for slots in tables.slots]
        self.stored = np.zeros(tables.slabs, np.bool_)
        self._untold: list[tuple[int, np.ndarray]] = []  # found by ``is_stored``, for the next ``look``

    def look(self) -> list[tuple[int, np.ndarray]]:
        """Returns (slab, frame records) of each slab that is stored since the last look. Raises
        ``StorageError``."""
        waiting = np.flatnonzero(~self.stored)
        look("look.journal.begun")
        journal = self._journal() if waiting.size else None
        if journal is not None:
            for layer in waiting[journal.begun(waiting)].tolist():
                with suppress(ShardFormatError):  # who reads its chunks is told
                    self._read(layer)
        found, self._untold = self._untold, []
        return found

    def slab_in(self, file: int, index_layer: int) -> int | None:
        """Returns the slab that a layer of a file's index belongs to, None past the array."""
        if self.layout.grid.is_split:
            return self._slab_of_slot_layer[file // self.layout.files_per_slab]
        return self._slab_of_index_layer.get(index_layer)

    def is_stored(self, slab: int) -> bool:
        """Looks at one slab, whose chunks are then in ``tables``. Raises ``StorageError``,
        ``ShardFormatError``."""
        layer = self.slot_layer[slab]
        if not self.stored[layer]:
            self._read(layer)
        return bool(self.stored[layer])

    def _journal(self) -> ShardRowJournal | None:
        """Returns the journal, opened again if need be; None if its name is another file's by now, or
        nobody's. Raises ``StorageError``."""
        if self._open is None:
            look("look.journal.again")
            try:
                opened = ShardRowJournal.open(self._path, *self._facts, read_only=True)
            except ShardFormatError:
                return None
            except StorageError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    return None
                raise
            if identity_of(os.fstat(opened.descriptor)) != self.identity:
                opened.close()
                return None
            self._open = opened
        self._opened.used(self)
        return self._open

    def let_go(self) -> None:
        """Closes the journal until it is needed again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _read(self, layer: int) -> None:
        journal = self._journal()
        look("look.journal.slab")
        found = None if journal is None else journal.read_stored_slab(layer)
        if found is None:
            return
        records, valid, entries = found
        for (file, first, slots), mine in zip(self._facts[0].slots_of_slab(layer), entries, strict=True):
            self.tables[file][first : first + slots] = mine
        self.stored[layer] = True
        self._untold.append((self._slab_of_slot_layer[layer], records[valid]))

    def is_current(self) -> bool:
        """Returns whether the journal's name is still this one's: if not, the shard row is sealed, its files
        were replaced, or another writer has them."""
        look("look.journal.name")
        with suppress(OSError):
            return identity_of(beneath.stat(self._path)) == self.identity
        return False

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was never opened
            self.let_go()


def open_row(
    layout: ArrayLayout,
    shard_row: int,
    placement: Placement,
    record: np.dtype[np.void],
    identity_bytes: bytes,
    opened: OpenJournals,
) -> LiveRow | None:
    """Opens the journal of a shard row. Returns None where none says anything: it is gone, or has no header
    yet, so that nothing is stored there. Raises ``ShardFormatError`` for one that is damaged: it may say
    anything, ``StorageError``."""
    look("look.journal")
    if not beneath.exists(placement.journal(shard_row)):  # of a sealed shard row: the usual case
        return None
    try:
        return LiveRow(layout, shard_row, placement, record, identity_bytes, opened)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    except ShardFormatError:
        if is_begun(placement.journal(shard_row)):
            raise
        return None
