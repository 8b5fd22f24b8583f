"""Carries out the decisions for an unfinished store: makes valid files durable, deletes, sets aside, clears,
and opens the files of shard rows that are resumed.

A file is deleted only when its replacement is on disk, so that a recovery may be killed at any point and
started again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shardwright.acquire.recovered_state import RecoveredShardRow, RecoveredState
from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    make_directories,
    rename_without_replacing,
    storage_errors,
    sync_directory,
)
from shardwright.model.errors import OutputExistsError, ShardFormatError, StorageError, StorageFullError
from shardwright.model.names import DAMAGED, REWRITE_SUFFIX
from shardwright.scan.facts import JournalFact
from shardwright.scan.table import Action
from shardwright.scan.unfinished_store import is_shown
from shardwright.shard.final_name import is_one_file
from shardwright.shard.intact_mark import end_intact
from shardwright.shard.live_index import beside
from shardwright.shard.open_shard import make_link
from shardwright.shard.shard_row_files import (
    ShardRowFiles,
    damaged_folders,
    ranks_to_continue,
    shard_at,
    unmapped,
)
from shardwright.shard.shared_journal import is_shared

from .take_over import end_take_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from shardwright.model.write_options import IoMode, WriteOrder
    from shardwright.scan.store_scan import Scanned
    from shardwright.scan.unfinished_store import UnfinishedStore
    from shardwright.shard.layout import ArrayLayout
    from shardwright.shard.manifest import Manifest
    from shardwright.shard.open_shard import OpenShard
    from shardwright.shard.read_back import ReadBack
    from shardwright.shard.shard_row_files import Placement
    from shardwright.shard.shared_journal import SharedJournal
    from shardwright.store.store_folder import StoreFolder

    from .decide import Decisions, ShardRowDecision

_MOST_OF_A_NAME = 10_000  # damaged files


def execute(
    folder: StoreFolder,
    store: UnfinishedStore,
    scanned: Scanned,
    decisions: Decisions,
    order: WriteOrder,
    marks: Sequence[Path] = (),
) -> RecoveredState:
    """Returns the state with which an acquisition is resumed. Files in progress go on in ``order`` if that is
    the one they have. ``marks``: of the take-overs that end with this. Raises ``StorageError``; the next
    recovery then finds the same or more."""
    return _RecoveryExecutor(folder, store, scanned, order).run(decisions, marks)


class _RecoveryExecutor:
    def __init__(
        self, folder: StoreFolder, store: UnfinishedStore, scanned: Scanned, order: WriteOrder
    ) -> None:
        self._folder = folder
        self._store = store
        self._layout = store.layout
        self._scanned = scanned
        self._order = order
        self._shared: dict[Path, SharedJournal] = {}  # those of rows that were taken up
        self._files = {row.number: row.files for row in scanned.facts.shard_rows}

    def run(self, decisions: Decisions, marks: Sequence[Path]) -> RecoveredState:
        folder = self._folder
        restored, accounts = RecoveredState(folder, decisions.standing), decisions.standing.accounts
        try:
            self._make_durable()
            if decisions.remember_seen:  # before the only other traces of these frames are deleted
                folder.remember_seen(accounts.whole_stop, tuple(accounts.extents.ravel().tolist()))
            self._clear_spoiled(decisions.spoiled_slots)
            for path in self._scanned.strays:  # row ``unclaimed``
                self._delete(path)
            for shard_row in decisions.shard_rows:
                if shard_row.standing is None:
                    self._put_away(shard_row)
                else:
                    restored.shard_rows.append(
                        RecoveredShardRow(self._take_up(shard_row), shard_row.standing)
                    )
            self._end_shared()
            if self._scanned.facts.log_torn_bytes or any(
                shard_row.torn for shard_row in decisions.shard_rows
            ):
                # a reader that saw them before they were cleared, or that end of the log, has them still
                folder.renew_manifest()
            if self._scanned.facts.taking_over and not _is_of_one_program(folder.manifest):
                # Frames that the old writer acknowledges from now on, in files without a name, have sequences
                # behind those: its client, which comes to this writer next, says what it does not hold.
                end_intact(folder.workspace)
            restored.damaged = damaged_folders(folder.placements())
            end_take_over(marks)
        except BaseException:
            for taken in restored.shard_rows:
                taken.files.abandon()
            raise
        finally:
            for shared in self._shared.values():
                shared.let_go()
        return restored

    def _make_durable(self) -> None:
        """Makes durable what the decisions rely on, against a later power cut: names that a rewrite has
        given, the frame log (journals of its shard rows are deleted), staged frames. A writer that was killed
        may not have synced the store's own name, nor that of the folder of its files."""
        for placement in self._folder.placements():
            if beneath.is_dir(placement.files):
                placement.folders.make(placement.files)
                sync_directory(placement.files)
        self._folder.log.sync()
        if self._folder.staging is not None:
            self._folder.staging.sync()

    def _clear_spoiled(self, set_aside: np.ndarray) -> None:
        """Clears records of staged frames whose pixels a power cut or rot has taken, or that are
        ``set_aside`` with their chunks. Nothing needs them any more, and a reader that finds such a record
        would look for its frame without end: while a writer lives, pixels that do not fit mean that the frame
        is in its slab by now."""
        staging = self._folder.staging
        slots = np.union1d(self._scanned.spoiled_slots, set_aside)
        if staging is not None and slots.size:
            self._folder.owner.may_rename()
            staging.clear(slots)

    def _delete(self, path: Path) -> None:
        self._folder.owner.may_rename()  # raises if another writer, who then owns it, has taken over
        with storage_errors("delete", path):
            reach("recover.before_delete")
            beneath.unlink(path, missing_ok=True)

    def _set_aside(self, placement: Placement, path: Path, name: str | None = None) -> None:
        """Moves a file out of the workspace, which is deleted when the store is finished."""
        self._folder.owner.may_rename()
        set_aside(placement.root, path, name)

    def _hide(self, layout: ArrayLayout, placement: Placement, path: str) -> None:
        """Takes the final name from a file that readers saw grow: nobody knows what is in it (row
        ``unexplained``). A copy is set aside, since without the journal nothing tells it from another
        program's file, or from a sealed shard of which the frame log has lost the record."""
        working, final = placement.working(path), placement.final(path)
        live = layout.live(self._folder.manifest.live)
        if not is_shown(live, JournalFact.DAMAGED, placement, path):
            return
        if is_one_file(working, final):
            self._delete(final)
        else:
            self._set_aside(placement, final, beside(working, "copy").name.removesuffix(REWRITE_SUFFIX))
        # before the files that explain it go: nobody would take a name away that a power cut brings back
        sync_directory(final.parent)

    def _record_absent(self, placement: Placement, shard_row: int, files: Iterable[int]) -> None:
        """Puts on record that shards may have no file, if their sums are: these came before the names, which
        such shards have lost or never get. ``verify`` would take them for deleted. A row that goes on does
        so itself when it is sealed."""
        layout = self._layout.of(shard_row)
        keys: dict[str, list[str]] = {}
        for file in files:
            keys.setdefault(layout.array_path(file), []).append(layout.shard_key(shard_row, file))
        for array_path, of_array in keys.items():
            record = placement.record(array_path)
            with suppress(ShardFormatError, StorageError):  # no frame depends on it
                on_record = record.of_each(of_array)
                self._folder.owner.may_rename()
                record.append({key: None for key, sums in on_record.items() if sums and None not in sums})

    # ------------------------------------------------------------------ shard rows

    def _put_away(self, shard_row: ShardRowDecision) -> None:
        """Settles the files of a shard row with a damaged journal, or of one that is sealed and logged."""
        placement = self._scanned.placements[shard_row.number]
        self._settle_files(placement, shard_row)
        journal = self._scanned.journals.get(shard_row.number)
        if journal is None or is_shared(journal.name):
            return  # settled with its other rows: ``_end_shared``
        if shard_row.set_aside:
            # last: after a kill before this, the next recovery does the same again
            self._set_aside(placement, journal)
        else:
            self._delete(journal)

    def _end_shared(self) -> None:
        """Settles the journals that rows share. Rows that go on keep theirs; it ends for those that the log
        has, or that have a journal of their own. Last: after a kill before this, the next recovery does the
        same again."""
        for path in sorted({path for path in self._scanned.journals.values() if is_shared(path.name)}):
            if (shared := self._shared.get(path)) is None:
                self._delete(path)
            elif shared.unused:
                self._folder.owner.may_rename()
                for row in shared.unused:
                    shared.end(row)
                shared.sync()
        for placement, path in self._scanned.damaged:
            self._set_aside(placement, path)

    def _settle_files(self, placement: Placement, shard_row: ShardRowDecision) -> None:
        layout = self._layout.of(shard_row.number)
        paths = layout.shard_paths(shard_row.number)
        # the renames may not have been durable, nor the folders that were made for those to come
        placement.sync_names(map(placement.final, paths))
        if shard_row.number not in self._scanned.facts.log_shard_rows:
            actions = enumerate(shard_row.actions)
            self._record_absent(
                placement, shard_row.number, (file for file, action in actions if action is Action.SET_ASIDE)
            )
        for path, action in zip(paths, shard_row.actions, strict=True):
            if action is Action.SET_ASIDE:
                if shard_row.number not in self._scanned.facts.log_shard_rows:
                    self._hide(layout, placement, path)
                self._set_aside(placement, placement.working(path))
            elif action is Action.SEALED:  # row ``named-twice`` has a file in progress as well
                if (link := placement.link(path)) is not None:
                    may_rename = self._folder.owner.may_rename
                    make_link(link, placement.final(path), placement.folders, may_rename)
                self._delete(placement.working(path))

    def _take_up(self, shard_row: ShardRowDecision) -> ShardRowFiles:
        """Opens the files of a shard row, clears its torn slabs, and makes the rest durable."""
        placement = self._scanned.placements[shard_row.number]
        found = self._scanned.read_back[shard_row.number]
        self._settle_files(placement, shard_row)
        layout = self._layout.of(shard_row.number)
        path, tables = self._scanned.journals[shard_row.number], self._store.tables(shard_row.number)
        if is_shared(path.name) and path not in self._shared:
            self._shared[path] = self._store.open_shared(path)
        journal = self._store.open_journal(path, tables, shared=self._shared.get(path))
        ranks = ranks_to_continue(layout, shard_row.number, journal, self._order, found)
        in_runs = journal.packed and ranks is None
        io = unmapped(self._folder.io) if in_runs else self._folder.io
        shards: list[OpenShard | None] = []
        try:
            for file, action in enumerate(shard_row.actions):
                shards.append(self._open(placement, shard_row, file, action, io))
            # made anew (rows ``lost``, ``lost-again``): a power cut must not take it away again
            if Action.LOST in shard_row.actions:
                sync_directory(placement.files)
            files = ShardRowFiles(
                shard_row.number, placement, shards, journal, layout.paths_of_files(shard_row.number), ranks
            )
            _note_entries(files, found)
            files.continue_behind()
            if files.live:
                self._show(files, found, lists_less=bool(shard_row.torn))
            if shard_row.torn:
                if not (files.journal.reopened or found.whole):
                    # not of one that is lost: it may have had its name
                    actions = enumerate(shard_row.actions)
                    in_progress = (file for file, action in actions if action is Action.CONTINUE)
                    self._record_absent(placement, shard_row.number, in_progress)
                journal.clear_slabs(slab.slot_layer for slab in shard_row.torn)
            files.sync()
        except BaseException:
            journal.close()
            for shard in shards:
                if shard is not None:
                    shard.abandon()
            raise
        return files

    def _show(self, files: ShardRowFiles, found: ReadBack, *, lists_less: bool) -> None:
        """Lets readers see what is kept and, after a power cut, no more than that. Before torn slabs are
        cleared (``lists_less``): a copy that lists what the journal does not would be another program's to
        the next recovery, and keep its name from the row."""
        files.list_stored(found.whole)
        try:
            self._folder.ballast.spent_on(partial(files.show, self._folder.owner.may_rename, even_fewer=True))
        except StorageFullError:
            # They keep what they see, and sealing waits for room. In a store that is not intact the copy is
            # taken for the row's own: that of a writer that was taken over may list more than its journal.
            if lists_less or self._scanned.facts.taking_over:
                end_intact(self._folder.workspace)

    def _open(
        self, placement: Placement, shard_row: ShardRowDecision, file: int, action: Action, io: IoMode
    ) -> OpenShard | None:
        """Opens a shard in progress; None if it has its final name or holds nothing. A lost one is made
        anew."""
        if action not in (Action.CONTINUE, Action.LOST):
            return None
        layout = self._layout.of(shard_row.number)
        path, live = layout.shard_path(shard_row.number, file), layout.live(self._folder.manifest.live)
        is_foreign = beneath.exists(placement.final(path)) and not self._files[shard_row.number][file].final
        return shard_at(
            placement,
            layout,
            shard_row.number,
            file,
            placement.working(path),
            io=io,
            replaces=shard_row.reopened or (live != "none" and not is_foreign),
            reopened=shard_row.reopened,
            live=live,
            existing=action is Action.CONTINUE,
        )


def _is_of_one_program(manifest: Manifest) -> bool:
    """Returns whether a store is written by the program whose frames it takes, not for clients of a daemon:
    then each writer counts its own frames, from where the one before had come. A daemon records a stream,
    also for a client that brings its array."""
    return manifest.opened_as is not None and manifest.opened_as.stream is None


def _note_entries(files: ShardRowFiles, found: ReadBack) -> None:
    """Sets the index of each shard in progress, for whole slabs."""
    for slab_chunks in found.whole:
        for file in np.unique(slab_chunks.file).tolist():
            if (shard := files.shards[file]) is not None:
                mine = slab_chunks.file == file
                entries = found.entries[file][slab_chunks.slot[mine]]
                shard.entries["offset"][slab_chunks.entry[mine]] = entries["offset"]
                shard.entries["nbytes"][slab_chunks.entry[mine]] = entries["nbytes"]


def set_aside(root: Path, path: Path, name: str | None = None) -> None:
    """Moves a damaged file to where it stays when the store is finished, durably, under its own name or
    another, with a number where an earlier recovery has set one of that name aside. Raises
    ``StorageError``."""
    make_directories(root / DAMAGED)
    wanted = root / DAMAGED / (name or path.name)
    for number in range(1, _MOST_OF_A_NAME):
        with storage_errors("set aside", path), suppress(OutputExistsError):
            reach("recover.before_set_aside")
            rename_without_replacing(
                path, wanted if number == 1 else wanted.with_name(f"{wanted.name}.{number}")
            )
            break
    else:
        raise StorageError(f"cannot set {path} aside", got=f"{_MOST_OF_A_NAME} files of this name")
    sync_directory(root / DAMAGED)  # before the next act: the workspace may be gone when the power is
