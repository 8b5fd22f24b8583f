"""Reads all that an unfinished store holds, file by file, and changes nothing. It returns the facts for
``decide``, and the places and contents of files for ``execute``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from stat import S_ISREG
from typing import TYPE_CHECKING

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.files import read_range, storage_errors
from shardwright.disk.spill_links import shard_status
from shardwright.model.errors import LinkError, ShardFormatError
from shardwright.shard.final_name import chunks_on_record, is_of_journal, is_one_file
from shardwright.shard.index import EMPTY as ABSENT
from shardwright.shard.intact_mark import is_intact
from shardwright.shard.journal import VALID, was_never_begun
from shardwright.shard.open_shard import is_link_to
from shardwright.shard.read_back import read_back
from shardwright.shard.shard_row_files import shard_of_working

from .facts import FileFacts, JournalFact, ShardRowFacts, SlabFacts, StagedFacts, StoreFacts
from .table import Action, action_for
from .unfinished_store import is_shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.shard.frame_log import FrameLog
    from shardwright.shard.journal import ShardRowJournal
    from shardwright.shard.read_back import ReadBack
    from shardwright.shard.shard_row_files import Placement
    from shardwright.shard.shared_journal import SharedHeader, SharedJournal
    from shardwright.shard.staging import StagingArea

    from .unfinished_store import UnfinishedStore


@dataclass
class Scanned:
    """The result of a scan. By shard row: ``journals``, its file, but where that is not known, ``placements``
    of its files, and what was ``read_back`` of them. ``spoiled_slots``: int64[n], slots of the staging area
    whose pixels do not fit their records."""

    facts: StoreFacts = field(init=False)  # at last
    # Files in progress that no journal names. Recovery deletes them: nothing of an acknowledged frame may be
    # in one.
    strays: list[Path] = field(default_factory=list)
    journals: dict[int, Path] = field(default_factory=dict)
    # Of several rows, and nobody knows of which: the only trace of these is a shard in progress.
    damaged: list[tuple[Placement, Path]] = field(default_factory=list)
    placements: dict[int, Placement] = field(default_factory=dict)
    # Which chunks are good. The executor fills the shards further by it and does not check again, which would
    # read every byte a second time.
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
    store: UnfinishedStore,
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
    """One scan of a store: reads each of its files in progress once."""

    def __init__(self, store: UnfinishedStore, threads: int, progress: Callable[[int], None] | None) -> None:
        self._store = store
        self._layout = store.layout
        self._threads = threads
        self._progress = progress
        # Used by one thread; only ``read_back`` checks chunks in several.
        self._scanned = Scanned()
        # by shard row, once one of its final names is another file's: its files with slabs that are not whole
        self._unfinished: dict[int, set[int]] = {}
        # Shard rows with staged frames whose pixels are in their chunks. The header of their journal was
        # durable before these: one without a whole header is damaged, and not of a row that was never begun.
        # As a stray it would be deleted, and the frames with it.
        self._hold_frames: set[int] = set()
        # Under names of sealed shards, and not counted as such: shards that lose their final names, since
        # their journal is damaged, and files of others.
        self._uncounted: set[Path] = set()
        # Of sealed shards below the second root. A kill before the link is made leaves them out of the store,
        # where sealed shards are counted.
        self._unlinked_bytes: list[int] = []
        self._only_kills = False  # nothing worse has happened to the store

    def run(self, log: FrameLog, staging: StagingArea | None, *, taking_over: bool) -> Scanned:
        store = self._store
        intact = is_intact(store.workspace)
        self._only_kills = intact and not taking_over
        scanned = self._scanned
        staged, scanned.spoiled_slots = _staged(staging, store)
        grids = store.spec.grids
        if staged is not None and grids.in_place:
            slabs = set(map(grids.slab_of_position, staged.records["position"].tolist()))
            self._hold_frames = set(map(grids.shard_row_of_slab, slabs))
        shard_rows = tuple(
            shard_row
            for placement in store.placements
            for shard_row in self._workspace(placement, log.shard_rows)
        )
        sealed = self._sealed_bytes()
        scanned.facts = StoreFacts(
            seen_stop=store.manifest.seen_stop,
            seen_extents=store.manifest.seen_extents,
            intact=intact,
            taking_over=taking_over,
            set_aside=store.was_set_aside or bool(self._scanned.damaged),
            log_shard_rows=frozenset(log.shard_rows),
            log_torn_bytes=log.torn_bytes,
            shard_rows=shard_rows,
            staged=staged,
            sealed_shards=len(sealed),
            sealed_bytes=sum(sealed),
        )
        scanned.checked_bytes += sum(found.checked_bytes for found in scanned.read_back.values())
        return scanned

    # ------------------------------------------------------------------ a workspace

    def _workspace(self, placement: Placement, logged: set[int]) -> list[ShardRowFacts]:
        """Returns the shard rows that have a journal. A file in progress that no journal names is a stray
        (row ``unclaimed``), and so is a journal without a header, since that is written last."""
        found, begun = self._store.look_into(placement), []
        # Until all new files are durable, a shard row that is rewritten has its old ones. Only then the
        # suffix goes, so that a file that has it holds nothing of its own.
        strays = sorted(found.rewrites)
        for number, (path, _) in sorted(found.journals.items()):
            if path.name not in found.shared and self._was_never_begun(placement, number, logged):
                strays.append(path.name)
            else:
                begun.append(number)
                self._scanned.journals[number] = path
        damaged = []
        for name, header in sorted(found.shared.items()):
            path = placement.files / name
            if header is None and not was_never_begun(path, None):
                damaged.append((placement, path))
            elif path not in self._scanned.journals.values():
                strays.append(name)  # of its rows each has ended, or a journal of its own
        self._scanned.damaged += damaged
        paths = (path for number in begun for path in self._layout.of(number).shard_paths(number))
        unnamed = sorted(set(found.shards) - {placement.working(path).name for path in paths})
        rows = {
            name: self._store.row_of_shard(shard_of_working(name)) if damaged else None for name in unnamed
        }
        strays += [name for name, row in rows.items() if row is None]
        self._scanned.strays += [placement.files / name for name in strays]
        unknown = sorted({row for row in rows.values() if row is not None})
        self._scanned.placements.update(dict.fromkeys(unknown, placement))
        rows_begun = self._shard_rows(placement, begun, found.shared, logged)
        return rows_begun + [
            ShardRowFacts(
                number, JournalFact.DAMAGED, self._files(placement, number, JournalFact.DAMAGED, None)
            )
            for number in unknown
        ]

    def _shard_rows(
        self, placement: Placement, begun: list[int], shared: dict[str, SharedHeader | None], logged: set[int]
    ) -> list[ShardRowFacts]:
        """``shared``: by name the headers of journals of several rows. Each is opened once, and alone: a
        store may have more of them than its reader may have open files."""
        rows_in: dict[Path, list[int]] = {}
        for number in begun:
            rows_in.setdefault(self._scanned.journals[number], []).append(number)
        found: dict[int, ShardRowFacts] = {}
        for path, rows in rows_in.items():
            file = None
            if (header := shared.get(path.name)) is not None:
                with suppress(ShardFormatError):  # each row of it is told
                    file = self._store.open_shared(path, header, read_only=True)
            try:
                found |= {number: self._shard_row(placement, number, file, logged) for number in rows}
            finally:
                if file is not None:
                    file.let_go()
        return [found[number] for number in begun]

    def _was_never_begun(self, placement: Placement, number: int, logged: set[int]) -> bool:
        """Returns whether nothing can be lost with a shard row's files. A row that recovery has cleared looks
        the same once rot has its header, but readers have seen its shards, and would see them for ever."""
        path, tables = placement.journal(number), self._store.tables(number)
        if number in self._hold_frames or not was_never_begun(path, tables.file_bytes):
            return False
        return number in logged or not self._shown(placement, number)

    def _shard_row(
        self, placement: Placement, number: int, shared: SharedJournal | None, logged: set[int]
    ) -> ShardRowFacts:
        self._scanned.placements[number] = placement
        try:
            path, tables = self._scanned.journals[number], self._store.tables(number)
            journal = self._store.open_journal(path, tables, read_only=True, shared=shared)
        except ShardFormatError:
            if number not in logged:
                self._uncounted.update(self._shown(placement, number))
            return ShardRowFacts(
                number, JournalFact.DAMAGED, self._files(placement, number, JournalFact.DAMAGED, None)
            )
        try:
            fact = JournalFact.REOPENED if journal.reopened else JournalFact.VALID
            files = self._files(placement, number, fact, journal, is_logged=number in logged)
            # Sealed and logged: the writer died before it deleted the journal. Its chunks are not checked,
            # since the shards with their final names are believed as they are.
            if number in logged and not journal.reopened:
                return ShardRowFacts(number, fact, files)
            return self._read(placement, number, fact, files, journal)
        finally:
            journal.close()

    def _shown(self, placement: Placement, number: int) -> list[Path]:
        """Returns the final names under which readers see a row whose journal is damaged."""
        layout = self._layout.of(number)
        live, paths = layout.live(self._store.manifest.live), layout.shard_paths(number)
        return [
            placement.final(path) for path in paths if is_shown(live, JournalFact.DAMAGED, placement, path)
        ]

    def _files(
        self,
        placement: Placement,
        number: int,
        fact: JournalFact,
        journal: ShardRowJournal | None,
        *,
        is_logged: bool = False,
    ) -> tuple[FileFacts, ...]:
        facts, layout = [], self._layout.of(number)
        for file, path in enumerate(layout.shard_paths(number)):
            holds = False
            if journal is not None:
                entries, states = journal.read_chunks(file)
                holds = bool(((states == VALID) & (entries["offset"] != ABSENT)).any())
            working, final = placement.working(path), placement.final(path)
            there = beneath.exists(final)
            # The record of a logged row came after its names: both of them are of its shards.
            foreign = (
                there
                and journal is not None
                and fact is JournalFact.VALID
                and not is_logged
                and self._is_foreign(number, file, journal, working, final)
            )
            facts.append(
                FileFacts(
                    fact,
                    working=beneath.exists(working),
                    final=there and not foreign,
                    holds=holds,
                    live=layout.live(self._store.manifest.live) != "none",
                )
            )
            if foreign:
                self._uncounted.add(final)
            link = placement.link(path)
            if journal is not None and link is not None and not is_link_to(link, final):
                self._uncounted.add(link)
                if facts[-1].final:
                    self._unlinked_bytes.append(_bytes_on_disk(final))
        return tuple(facts)

    def _is_foreign(
        self, number: int, file: int, journal: ShardRowJournal, working: Path, final: Path
    ) -> bool:
        """Returns whether another file than the shard in progress has its final name. Taken for that shard,
        or replaced by it, it would cost what was stored in it. So the shard goes on, and is not sealed before
        the name is free."""
        if not beneath.exists(working) or is_one_file(working, final):
            return False
        layout = self._layout.of(number)
        live = layout.live(self._store.manifest.live)
        if live != "none" and not self._only_kills:
            # A power cut may have taken any part of what readers were shown, and an older writer, or the
            # files before an I/O error, may have shown more than is left.
            return not beneath.is_file(final)
        # of a row that is shown the final name may be a copy, of more than the journal still has
        if live == "none" and self._is_unfinished(number, file, journal):
            return True
        on_record = chunks_on_record(layout, number, file, journal)
        return not is_of_journal(final, layout.shard(number, file), on_record, live, self._note_compared)

    def _is_unfinished(self, number: int, file: int, journal: ShardRowJournal) -> bool:
        """Returns whether the journal lacks something of a begun slab with chunks in this shard. What it has
        of a shard is whole, and durable, before that gets its final name: then that is of an earlier row of
        this number, whose block of the log is lost, and may hold the same chunks."""
        if number not in self._unfinished:
            layout = self._layout.of(number)
            torn = read_back(layout, number, journal, [None] * layout.files_of(number)).torn
            self._unfinished[number] = {each for slab_chunks in torn for each in slab_chunks.file.tolist()}
        return file in self._unfinished[number]

    def _note_compared(self, nbytes: int) -> None:
        self._scanned.checked_bytes += nbytes
        if self._progress is not None:
            self._progress(nbytes)

    def _read(
        self,
        placement: Placement,
        number: int,
        fact: JournalFact,
        files: tuple[FileFacts, ...],
        journal: ShardRowJournal,
    ) -> ShardRowFacts:
        layout = self._layout.of(number)
        paths = layout.shard_paths(number)
        actions = [action_for(file) for file in files]
        shards = [
            _FoundFile(placement.working(path)) if a is Action.CONTINUE else None
            for path, a in zip(paths, actions, strict=True)
        ]
        lost = {file for file, action in enumerate(actions) if action is Action.LOST}
        found = read_back(
            layout, number, journal, shards, lost=lost, threads=self._threads, progress=self._progress
        )
        self._scanned.read_back[number] = found
        good = [
            entries["nbytes"][good & (entries["offset"] != ABSENT)].sum()
            for entries, good in zip(found.entries, found.good, strict=True)
        ]
        whole = {slab_chunks.slab for slab_chunks in found.whole}
        slabs = [
            SlabFacts(
                slab_chunks.slab,
                slab_chunks.slot_layer,
                found.frames_of(slab_chunks),
                found.record_valid[slab_chunks.slot_layer],
                slab_chunks.slab in whole,
                found.was_stored(slab_chunks),
                found.has_all_records(slab_chunks),
            )
            for slab_chunks in (*found.whole, *found.torn)
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
        """Returns the size on disk of each shard that stays sealed. None is opened: rot in one must not
        hinder the recovery of the others."""
        sealed = self._unlinked_bytes.copy()
        for array_path in self._store.spec.all_array_paths():
            folder = self._store.path / array_path / "c"
            with storage_errors("look into", folder):
                # a folder that cannot be read counts nothing: it must not hinder the recovery either
                for parent, _, names in beneath.walk(folder):
                    for path in (parent / name for name in names if name.isdigit()):
                        # a link that leads to no shard of it
                        with suppress(FileNotFoundError, LinkError):
                            found = shard_status(path)
                            counts = S_ISREG(found.st_mode) and path not in self._uncounted
                            sealed += [found.st_blocks * 512] if counts else []
        return sealed


def _staged(staging: StagingArea | None, store: UnfinishedStore) -> tuple[StagedFacts | None, np.ndarray]:
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
