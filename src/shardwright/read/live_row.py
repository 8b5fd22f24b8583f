"""A shard row in progress, as its journal tells: which slabs are stored, and where their chunks are.

The journal is read again and again while its writer fills it. A slab that was stored once stays stored, so
that a look reads only what belongs to the others: the entry of the first chunk of each, and all of a slab
whose first entry is there.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import look
from shardwright.disk.files import storage_errors
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.scan.facts import JournalFact
from shardwright.scan.unfinished_store import if_begun
from shardwright.shard.journal import CHUNK_ENTRY
from shardwright.shard.layout import slabs_of_shard_row
from shardwright.shard.shared_journal import is_shared

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.scan.unfinished_store import UnfinishedStore
    from shardwright.shard.journal import JournalLayout, ShardRowJournal
    from shardwright.shard.shard_row_files import Placement
    from shardwright.shard.shared_journal import SharedJournal

    from .store_state import Identity

MOST_OPEN_JOURNALS = 64  # files of one view: an acquisition may have a row in progress for each position


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


class OpenJournals:
    """The files with journals that are open, and their rows."""

    def __init__(self, store: UnfinishedStore) -> None:
        self._store = store
        # By file, that which was used last at the end: the rows that have it open. By weak references: a row
        # that its view has dropped must not live on for its descriptor.
        self._rows: OrderedDict[Path, WeakSet[LiveRow]] = OrderedDict()
        # The files of rows that share one, as long as any has it open.
        self._shared: WeakValueDictionary[Path, SharedJournal] = WeakValueDictionary()

    def open(self, path: Path, tables: JournalLayout) -> tuple[ShardRowJournal, SharedJournal | None]:
        """Opens the journal of a row; also returns the file if it is one of several rows. Raises
        ``ShardFormatError``, ``StorageError``."""
        if not is_shared(path.name):
            return self._store.open_journal(path, tables, read_only=True), None
        with storage_errors("look at", path):
            status = beneath.stat(path)
        shared = self._shared.get(path)
        if shared is None or not shared.hold(status):
            shared = self._shared[path] = self._store.open_shared(path, read_only=True)
        try:
            return shared.journal_at(tables), shared
        finally:
            shared.let_go()

    def used(self, row: LiveRow) -> None:
        """Notes that a row uses its journal now; closes another file if there are too many."""
        self._rows.setdefault(row.path, WeakSet()).add(row)
        self._rows.move_to_end(row.path)
        while len(self._rows) > MOST_OPEN_JOURNALS:
            for oldest in self._rows.popitem(last=False)[1]:
                oldest.let_go()


class LiveRow:
    """One shard row with a journal. ``identity``: of the journal's file; another one under its name speaks of
    other files. ``tables[f]``: CHUNK_ENTRY[slots] of file f, valid where ``stored`` (by slot layer) is true.
    """

    def __init__(
        self, store: UnfinishedStore, shard_row: int, placement: Placement, path: Path, opened: OpenJournals
    ) -> None:
        """``path``: of its journal. Raises ``ShardFormatError`` for one that is damaged or not made yet,
        ``StorageError``."""
        # Used under the lock of the view.
        self._opened = opened
        self.path, self._tables = path, store.tables(shard_row)
        self.layout = layout = self._tables.array
        self.number = shard_row
        self.placement = placement
        self._open_again = partial(opened.open, path, self._tables)
        look("look.journal.open")
        # None while other rows need the descriptor: an acquisition may have thousands of rows in progress.
        # The journal that is opened again must be the same file, or its tables are those of other shards.
        self._open: ShardRowJournal | None
        self._open, self._shared = self._open_again()
        self.identity = identity_of(os.fstat(self._open.descriptor))
        self.journal_fact = JournalFact.REOPENED if self._open.reopened else JournalFact.VALID
        opened.used(self)
        self.slabs = slabs_of_shard_row(layout, shard_row)
        ranks = [layout.layer_of_slab(slab) for slab in self.slabs]
        self.slot_layer = {slab: rank[1] for slab, rank in zip(self.slabs, ranks, strict=True)}
        self._slab_of_index_layer = {rank[0]: slab for slab, rank in zip(self.slabs, ranks, strict=True)}
        self._slab_of_slot_layer = {layer: slab for slab, layer in self.slot_layer.items()}
        # A slab is read once, when all of it is there: its entries never change then. Recovery, after which a
        # slab may be stored again, renews the manifest, and the view drops its rows.
        self.tables = [np.zeros(slots, CHUNK_ENTRY) for slots in self._tables.slots]
        self.stored = np.zeros(self._tables.slabs, np.bool_)
        # Found by ``is_stored`` for a reader of chunks; the next ``look`` tells the followers of frames.
        self._untold: list[tuple[int, np.ndarray]] = []

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
            found = None
            with suppress(ShardFormatError):
                found = if_begun(self.path, self._open_again)
            if found is None:
                return None
            opened, shared = found
            if identity_of(os.fstat(opened.descriptor)) != self.identity:
                opened.close()
                return None
            self._open, self._shared = opened, shared
        self._opened.used(self)
        return self._open

    def let_go(self) -> None:
        """Closes the journal until it is needed again."""
        if self._open is not None:
            self._open.close()
            self._open = self._shared = None

    def _read(self, layer: int) -> None:
        # Recovery takes a slab for stored only if all of its chunks fit their checksums (``read_back``). Here
        # no chunk is read: every view of a growing store would read all that is written once more, in the way
        # of its writer. After a kill both find the same slabs, since chunks are in the page cache before
        # their entries. A power cut may keep an entry and lose its chunk: each chunk of a journal is compared
        # before it is handed out (``Located.check``), so that a reader gets an error, and no other bytes.
        journal = self._journal()
        look("look.journal.slab")
        found = None if journal is None else journal.read_stored_slab(layer)
        if found is None:
            return
        records, valid, entries = found
        for (file, first, slots), mine in zip(self._tables.slots_of_slab(layer), entries, strict=True):
            self.tables[file][first : first + slots] = mine
        self.stored[layer] = True
        self._untold.append((self._slab_of_slot_layer[layer], records[valid]))

    def is_current(self) -> bool:
        """Returns whether the journal's name is still this one's: if not, the shard row is sealed, its files
        were replaced, or another writer has them."""
        look("look.journal.name")
        with suppress(OSError):
            return identity_of(beneath.stat(self.path)) == self.identity and not self._has_ended()
        return False

    def _has_ended(self) -> bool:
        """Returns whether a row that shares its journal has ended, or has one of its own by now."""
        if not is_shared(self.path.name):
            return False
        with suppress(StorageError):
            # Of the file itself, which is open: what was read of its header is no longer true of the row.
            gone = self._journal() is None or self._shared is None or self._shared.has_ended(self.number)
            return gone or beneath.exists(self.placement.journal(self.number))
        return True

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was never opened
            self.let_go()
