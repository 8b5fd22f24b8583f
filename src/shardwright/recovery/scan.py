"""Reads all that an unfinished store holds, file by file, and changes nothing. It returns the facts for
``decide``, and the places and contents of files for ``execute``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shardwright.acquire.store_folder import is_intact
from shardwright.model.errors import ShardFormatError
from shardwright.model.names import REWRITE_SUFFIX
from shardwright.shard.index import EMPTY as ABSENT
from shardwright.shard.journal import VALID, JournalLayout, ShardRowJournal, was_never_begun
from shardwright.shard.read_back import read_back
from shardwright.shard.shard_row_files import WORKING_SUFFIX
from shardwright.storage import beneath
from shardwright.storage.files import read_range, storage_errors

from .facts import ShardRowFacts, SlabFacts, StagedFacts, StoreFacts
from .table import Action, FileFacts, JournalFact, Stray, action_for
from .unfinished import journals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.shard.frame_log import FrameLog
    from shardwright.shard.read_back import ReadBack
    from shardwright.shard.shard_row_files import Placement
    from shardwright.shard.staging import StagingArea

    from .unfinished import Unfinished


@dataclass
class Scanned:
    """The result of a scan. ``strays``: the paths of the strays of ``facts``, one for one. By shard row:
    ``placements`` of its files, and what was ``read_back`` of them. ``spoiled_slots``: int64[n], slots of the
    staging area whose pixels do not fit their records."""

    facts: StoreFacts
    strays: list[Path] = field(default_factory=list)
    placements: dict[int, Placement] = field(default_factory=dict)
    read_back: dict[int, ReadBack] = field(default_factory=dict)
    checked_bytes: int = 0
    spoiled_slots: np.ndarray = field(default_factory=partial(np.zeros, 0, np.int64))


@dataclass(frozen=True)
class _FoundFile:
    """A shard in progress, read only."""

    path: Path

    def read(self, offset: int, nbytes: int) -> bytes:
        return read_range(self.path, offset, nbytes)


def scan(
    store: Unfinished,
    log: FrameLog,
    staging: StagingArea | None,
    *,
    threads: int,
    progress: Callable[[int], None] | None = None,
    taking_over: bool = False,
) -> Scanned:
    """Scans a store. ``progress`` is called with numbers of bytes as they are checked. ``taking_over``: as in
    ``StoreFacts``. Raises ``StorageError``."""
    return _Scan(store, threads, progress).run(log, staging, taking_over=taking_over)


class _Scan:
    def __init__(self, store: Unfinished, threads: int, progress: Callable[[int], None] | None) -> None:
        self._store = store
        self._layout = store.layout
        self._threads = threads
        self._progress = progress
        self._strays: list[tuple[Stray, Path]] = []
        self._found_in: dict[int, Placement] = {}
        self._read_back: dict[int, ReadBack] = {}
        self._hold_frames: set[int] = set()  # shard rows of which only the staging area names frames in place
        # of sealed shards below the second root to which the store has no link yet
        self._unlinked_bytes: list[int] = []

    def run(self, log: FrameLog, staging: StagingArea | None, *, taking_over: bool) -> Scanned:
        store = self._store
        placements = [placement for placement in store.placements if beneath.is_dir(placement.files)]
        staged, spoiled = _staged(staging, store)
        grids = store.spec.grids
        if staged is not None and grids.in_place:
            slabs = set(map(grids.slab_of_position, staged.records["position"].tolist()))
            self._hold_frames = set(map(grids.shard_row_of_slab, slabs))
        shard_rows = tuple(
            shard_row for placement in placements for shard_row in self._workspace(placement, log.shard_rows)
        )
        sealed = self._sealed_bytes()
        facts = StoreFacts(
            seen_stop=store.manifest.seen_stop,
            seen_extents=store.manifest.seen_extents,
            intact=is_intact(store.workspace),
            taking_over=taking_over,
            set_aside=store.was_set_aside,
            log_shard_rows=frozenset(log.shard_rows),
            log_torn_bytes=log.torn_bytes,
            shard_rows=shard_rows,
            strays=tuple(stray for stray, _ in self._strays),
            staged=staged,
            sealed_shards=len(sealed),
            sealed_bytes=sum(sealed),
        )
        checked_bytes = sum(found.checked_bytes for found in self._read_back.values())
        strays = [path for _, path in self._strays]
        return Scanned(facts, strays, self._found_in, self._read_back, checked_bytes, spoiled)

    # ------------------------------------------------------------------ a workspace

    def _workspace(self, placement: Placement, logged: set[int]) -> list[ShardRowFacts]:
        """Returns the shard rows that have a journal. A file in progress that no journal names is a stray."""
        with storage_errors("look into", placement.files):
            names = sorted(beneath.names_in(placement.files))
        self._strays += [
            (Stray.REWRITE, placement.files / name) for name in names if name.endswith(REWRITE_SUFFIX)
        ]
        begun = []
        for number, path in journals(placement):
            file_bytes = self._tables(number).file_bytes
            if number not in self._hold_frames and was_never_begun(path, file_bytes):
                self._strays.append((Stray.JOURNAL, path))
            else:
                begun.append(number)
        named = {
            placement.working(self._layout.of(number).shard_path(number, file))
            for number in begun
            for file in range(self._layout.of(number).files_of(number))
        }
        working = [placement.files / name for name in names if name.endswith(WORKING_SUFFIX)]
        self._strays += [(Stray.SHARD, path) for path in working if path not in named]
        return [self._shard_row(placement, number, logged) for number in begun]

    def _tables(self, number: int) -> JournalLayout:
        return JournalLayout.of(self._layout.of(number), number, self._store.record_dtype)

    def _shard_row(self, placement: Placement, number: int, logged: set[int]) -> ShardRowFacts:
        self._found_in[number] = placement
        try:
            journal = ShardRowJournal.open(
                placement.journal(number), self._tables(number), self._store.manifest.identity_bytes, number
            )
        except ShardFormatError:
            return ShardRowFacts(
                number, JournalFact.DAMAGED, self._files(placement, number, JournalFact.DAMAGED, None)
            )
        try:
            fact = JournalFact.REOPENED if journal.reopened else JournalFact.VALID
            files = self._files(placement, number, fact, journal)
            if number in logged and not journal.reopened:  # sealed: only the journal is left
                return ShardRowFacts(number, fact, files)
            return self._read(placement, number, fact, files, journal)
        finally:
            journal.close()

    def _files(
        self, placement: Placement, number: int, fact: JournalFact, journal: ShardRowJournal | None
    ) -> tuple[FileFacts, ...]:
        facts, layout = [], self._layout.of(number)
        for file in range(layout.files_of(number)):
            path, holds = layout.shard_path(number, file), False
            if journal is not None:
                entries, states = journal.read_chunks(file)
                holds = bool(((states == VALID) & (entries["offset"] != ABSENT)).any())
            final, link = placement.final(path), placement.link(path)
            facts.append(
                FileFacts(
                    fact,
                    working=beneath.exists(placement.working(path)),
                    final=beneath.exists(final),
                    holds=holds,
                    live=self._store.manifest.live != "none",
                )
            )
            unlinked = journal is not None and link is not None and not beneath.exists(link)
            if unlinked and beneath.exists(final):
                self._unlinked_bytes.append(_bytes_on_disk(final))
        return tuple(facts)

    def _read(
        self,
        placement: Placement,
        number: int,
        fact: JournalFact,
        files: tuple[FileFacts, ...],
        journal: ShardRowJournal,
    ) -> ShardRowFacts:
        layout = self._layout.of(number)
        paths = [layout.shard_path(number, file) for file in range(len(files))]
        actions = [action_for(file) for file in files]
        shards = [
            _FoundFile(placement.working(path)) if a is Action.CONTINUE else None
            for path, a in zip(paths, actions, strict=True)
        ]
        lost = {file for file, action in enumerate(actions) if action is Action.LOST}
        found = read_back(
            layout, number, journal, shards, lost=lost, threads=self._threads, progress=self._progress
        )
        self._read_back[number] = found
        good = [
            entries["nbytes"][good & (entries["offset"] != ABSENT)].sum()
            for entries, good in zip(found.entries, found.good, strict=True)
        ]
        whole = {places.slab for places in found.whole}
        slabs = [
            SlabFacts(
                places.slab,
                places.slot_layer,
                found.frames_of(places),
                found.record_valid[places.slot_layer],
                places.slab in whole,
                found.was_stored(places),
                found.has_all_records(places),
            )
            for places in (*found.whole, *found.torn)
        ]
        final_bytes = tuple(_bytes_on_disk(placement.final(path)) for path in paths)
        return ShardRowFacts(
            number,
            fact,
            files,
            tuple(int(nbytes) for nbytes in good),
            final_bytes,
            tuple(slabs),
            placement.spill is not None,
        )

    # ------------------------------------------------------------------ sealed shards

    def _sealed_bytes(self) -> list[int]:
        """Returns the size on disk of each sealed shard. None is opened: rot in one must not hinder the
        recovery of the others."""
        sealed = self._unlinked_bytes.copy()
        for array_path in self._store.spec.all_array_paths():
            folder = self._store.path / array_path / "c"
            with storage_errors("look into", folder):
                shards = filter(beneath.is_file, beneath.all_below(folder))
                sealed += [_bytes_on_disk(path) for path in shards if path.name.isdigit()]
        return sealed


def _staged(staging: StagingArea | None, store: Unfinished) -> tuple[StagedFacts | None, np.ndarray]:
    """Returns the facts, None without a staging area, and the slots (int64[n]) whose pixels do not fit."""
    if staging is None:
        return None, np.zeros(0, np.int64)
    records, valid = staging.read(store.frames_in_place)
    spoiled, unreadable = staging.spoiled(records, valid)
    slots = np.flatnonzero(valid)
    return StagedFacts(slots, records[slots], records[spoiled], unreadable), spoiled


def _bytes_on_disk(path: Path) -> int:
    """Returns the size on disk; 0 for a shard that is not there, since all of it is fill value."""
    with storage_errors("look into", path):
        return beneath.stat(path).st_blocks * 512 if beneath.exists(path) else 0
