"""The simulation proves itself: each of these puts a known defect, or a mistake like one, back into the real
code, and must be found."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from greenlet import getcurrent

from shardwright.acquire.accounts import Accounts
from shardwright.acquire.closed_shard_rows import EarlierMemory, HoleMemory
from shardwright.acquire.commit_ledger import LOGGED, STAGED, CommitLedger
from shardwright.acquire.core import Core
from shardwright.acquire.earlier_shard_rows import EarlierShardRows
from shardwright.acquire.live_scheduler import LiveScheduler
from shardwright.acquire.recorder import Recorder
from shardwright.acquire.rewrites import Rewrites
from shardwright.acquire.sealer import Sealer
from shardwright.acquire.shard_rows import ShardRow, ShardRows
from shardwright.acquire.staging_scheduler import StagingScheduler
from shardwright.acquire.states import Life
from shardwright.disk import beneath
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import StorageFullError
from shardwright.recovery import leftovers, resume, take_over
from shardwright.recovery.decide import _Judge
from shardwright.recovery.leftovers import FolderAction
from shardwright.scan import store_scan, table
from shardwright.scan.facts import JournalFact
from shardwright.scan.table import Action
from shardwright.shard.read_back import read_back
from shardwright.shard.shard_row_files import ShardRowFiles
from shardwright.store import frame_table_writer
from shardwright.store.store_folder import StoreFolder
from shardwright.store.store_metadata import StoreMetadata

from .creation import draw_naming, play_naming
from .story import ADDED_FROM, FEW_FILES_FROM, IN_PLACE_FROM, LIVE_FROM, READERS_FROM, SPLIT_FROM, draw
from .surroundings import patched
from .world import play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.scan.unfinished_store import UnfinishedStore

    from .story import Fault, Story
    from .surroundings import Patch


@dataclass(frozen=True)
class Mend:
    """``removes``: what is taken out. ``patches`` makes the replacements. ``first``: seed of the stories in
    which it is looked for; ``shows_in``: those of them that can show it. ``creates``: it is one of creations
    instead. ``unseen``: why no story can show it."""

    name: str
    removes: str
    patches: Callable[[], list[Patch]]
    first: int = 0
    shows_in: Callable[[Story], bool] = lambda _: True
    creates: bool = False
    unseen: str = ""

    @contextmanager
    def taken_out(self) -> Iterator[None]:
        with patched(self.patches()):
            yield


def _takes_over(story: Story) -> bool:
    return any(life.ends == "take over" for life in story.lives)


def _ends_early(story: Story) -> bool:
    return any(life.ending for life in story.lives)


def _loses_power(story: Story) -> bool:
    return any(life.ends == "power" for life in story.lives)


def _is_split(story: Story) -> bool:
    return story.shape.row_shards > 1


def _is_in_place(story: Story) -> bool:
    return story.shape.in_place


def _may_rewrite(story: Story) -> bool:
    """Whether the disk fails where files move to new ones."""
    return any(fault.kind in ("chunk", "journal", "sync shard row") for fault in _faults(story))


def _may_hold(story: Story) -> bool:
    """Whether rows may be held meanwhile."""
    return story.settings.durability == "durable" and _may_rewrite(story)


def _stages_beside(story: Story) -> bool:
    """Whether one worker may stage what another one encodes."""
    return story.workers > 1 and story.staging > 0 and not story.shape.in_place


def _fills_the_disk(story: Story) -> bool:
    return story.settings.on_full == "block" and any(fault.kind == "full" for fault in _faults(story))


def _faults(story: Story) -> list[Fault]:
    return [fault for life in story.lives for fault in life.faults]


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _rows_stay_closed() -> list[Patch]:
    restore = ShardRows.restore_closed
    return [
        (
            ShardRows,
            "restore_closed",
            lambda self, numbers, holes, _: restore(self, numbers, holes, EarlierMemory(self.layout.grids)),
        ),
        (EarlierShardRows, "remember", _nothing),
    ]


def _few_are_remembered() -> list[Patch]:
    """As many as may be open at once, whichever image they are of."""

    def remember_few(self: _Judge, pieces: dict[int, list[np.ndarray]]) -> None:
        remember(self, pieces)
        for number in list(self._standing.earlier)[: -self._standing.limits.open_shard_rows]:
            self._standing.earlier.pop(number)

    remember = _Judge._remember_shard_rows
    return [(_Judge, "_remember_shard_rows", remember_few)]


def _slabs_stay_closed() -> list[Patch]:
    restore = Core._restore_shard_row
    return [
        (
            Core,
            "_restore_shard_row",
            lambda self, found: restore(
                self, replace(found, standing=replace(found.standing, fillable_slabs={}, sealing_begun=False))
            ),
        )
    ]


def _everything_is_passed_over() -> list[Patch]:
    close = Core._close_slab
    return [(Core, "_close_slab", lambda self, slab, passed_over=False: close(self, slab, passed_over=True))]


def _nothing_is_copied() -> list[Patch]:
    begin = Rewrites.begin
    return [(Rewrites, "begin", lambda self, shard_row, stored, held: begin(self, shard_row, set(), held))]


def _held_rows_are_dropped() -> list[Patch]:
    def settle_held_rows(self: Core, shard_row: Any, saved: set[int]) -> None:
        for row in self.rewrites.take_held(shard_row.number):
            self._released.append(self.table.sequences[row][self.table.filled(row)])
            self.table.free(row)

    return [(Core, "_settle_held_rows", settle_held_rows)]


def _pixels_come_back_while_staged() -> list[Patch]:
    stored = Core._slab_stored

    def slab_stored(self: Core, shard_row: Any, row: int) -> None:
        tasks, self.scheduler.tasks[row] = int(self.scheduler.tasks[row]), 0
        stored(self, shard_row, row)
        self.scheduler.tasks[row] = tasks

    return [(Core, "_slab_stored", slab_stored)]


def _pixels_come_back_at_the_workers() -> list[Patch]:
    start = Core._start_waiting

    def start_waiting(self: Core, shard_row: Any) -> None:
        before = set(self.encoders.rows)
        start(self, shard_row)
        for row in self.encoders.rows - before:
            self._released.append(self.table.sequences[row][self.table.filled(row)])

    return [(Core, "_start_waiting", start_waiting)]


def _staged_slabs_wait_for_ever() -> list[Patch]:
    staged = Core._frames_staged

    def frames_staged(self: Core, report: Any) -> None:
        self.scheduler.held_back.discard(report.row)
        staged(self, report)

    return [(Core, "_frames_staged", frames_staged)]


def _records_alone_make_durable() -> list[Patch]:
    noted = Core._note_staged

    def note_staged(self: Core, row: int, sequences: Any) -> None:
        if not self.grids.in_place:
            noted(self, row, sequences)
            return
        self.shard_rows.note_frames(self._owner_of(row))
        self._ledger.add(STAGED, self._time.s, sequences, release=self._ledger.holds_pixels)
        if not self._ledger.holds_pixels:
            self._released.append(sequences)

    return [(Core, "_note_staged", note_staged)]


def _only_whole_slabs_count(_: ShardRows, shard_row: ShardRow) -> None:
    shard_row.holds_frames = bool(shard_row.done_slabs)


def _durable_when_asked() -> list[Patch]:
    commit = Core._commit

    def early(self: Core) -> None:
        commit(self)
        for key, entry in (self._ledger._in_commit or {}).items():
            for sequences in entry.sequences:
                self.accounts.make_durable(sequences, frames=key != LOGGED)

    return [(Core, "_commit", early)]


def _commits_of_sealed_shard_rows() -> list[Patch]:
    begin = CommitLedger.begin
    return [(CommitLedger, "begin", lambda self, now_s, can_sync: begin(self, now_s, lambda _: True))]


def _failed_slabs_are_forgotten() -> list[Patch]:
    old = Core._slab_encoded

    def encoded(self: Core, report: Any) -> None:
        old(self, report)
        shard_row = self._owner_of(report.row) if report.error is not None and self.end.why is None else None
        if shard_row is not None and report.row in shard_row.waiting:
            shard_row.waiting.remove(report.row)

    return [(Core, "_slab_encoded", encoded)]


def _staged_frames_are_not_taken_up() -> list[Patch]:
    restore = Core.restore

    def without(self: Core, restored: Any, addresses: Any, *args: Any) -> None:
        restored.standing.staged, restored.standing.staged_slots = restored.standing.staged[:0], []
        restore(self, restored, addresses[:0], *args)

    return [(Core, "restore", without)]


def _acknowledged_before_recorded() -> list[Patch]:
    settle = Recorder.settle

    def early(self: Recorder, records: Any, *args: Any, **kwargs: Any) -> None:
        settle(self, records, *args, **kwargs)
        self._accounts.stored.add(records["sequence"].astype(np.int64))

    return [(Recorder, "settle", early)]


def _failed_syncs_count() -> list[Patch]:
    end = CommitLedger.end
    return [(CommitLedger, "end", lambda self, failed: end(self, set())), (Core, "_commit_failed", _nothing)]


def _believes(journal: JournalFact, working: bool, final: bool, action: Action) -> Callable[[], list[Patch]]:
    """Another action in rows of the table of recovery."""

    def patches() -> list[Patch]:
        rows: list[table.Case] = []
        for row in table.TABLE:
            if row.journal is journal and row.working in (working, None) and row.final in (final, None):
                rows.extend(_split(row, working, final, action))
            else:
                rows.append(row)
        return [(table, "TABLE", tuple(rows))]

    return patches


def _unbegun_stores_are_taken_up() -> list[Patch]:
    rows = [
        replace(row, action=FolderAction.TAKE_UP) if row.unbegun else row for row in leftovers.FOLDER_TABLE
    ]
    return [(leftovers, "FOLDER_TABLE", tuple(rows))]


def _taken_files_keep_their_names() -> list[Patch]:
    def take_files(store: UnfinishedStore, _: Callable[[], None]) -> UnfinishedStore:
        for placement in store.placements:
            copies = replace(placement, epoch=store.manifest.writer_epoch)
            take_over._copy_files(placement.files, copies.files)
            take_over._keep_final_names(store, copies)
            for copy in beneath.paths_in(copies.files):
                beneath.replace(copy, placement.files / copy.name)
            beneath.remove_folder(copies.files)
        return store

    return [(resume, "take_files", take_files)]


def _cut_short_is_forgotten() -> list[Patch]:
    """Only who has begun a take-over takes over."""
    begin, marks, takers = take_over.begin_take_over, take_over.marks_in, set[Any]()

    def begin_take_over(workspace: Any) -> None:
        takers.add(getcurrent())
        begin(workspace)

    def marks_in(workspace: Any) -> list[Any]:
        return marks(workspace) if getcurrent() in takers else []

    return [(resume, "begin_take_over", begin_take_over), (resume, "marks_in", marks_in)]


def _shown_in_silence() -> list[Patch]:
    show = Sealer._show

    def shown(self: Sealer, command: Any) -> None:
        explained = self._explained
        try:
            self._explained = ErrorText.of  # type: ignore[method-assign]
            show(self, command)
        finally:
            self._explained = explained  # type: ignore[method-assign]

    return [(Sealer, "_show", shown)]


def _full_in_silence() -> list[Patch]:
    note = StoreFolder.note_disk_error

    def note_disk_error(self: StoreFolder, error: BaseException) -> None:
        if not isinstance(error, StorageFullError):
            note(self, error)

    return [(StoreFolder, "note_disk_error", note_disk_error)]


def _names_before_bytes() -> list[Patch]:
    sync = ShardRowFiles.sync_shards
    return [
        (ShardRowFiles, "sync_shards", _nothing),
        (ShardRowFiles, "sync", lambda self, step=_nothing: sync(self, self.unsealed().values(), step)),
    ]


def _named_ahead_is_sealing() -> list[Patch]:
    named = _Judge._named_without_frames

    def whole_ones_too(self: _Judge, shard_row: int, actions: tuple[Action, ...], _: object) -> set[int]:
        return named(self, shard_row, actions, [])

    return [(_Judge, "_named_without_frames", whole_ones_too)]


def _no_staged_frame_waits() -> list[Patch]:
    return [(_Judge, "_staged_nowhere_else", lambda _: set())]


def _rows_that_are_passed_over_stay_closed() -> list[Patch]:
    close = Core._close_shard_row

    def close_shard_row(
        self: Core, shard_row: Any, *, aside: bool = False, passed_over: bool = False
    ) -> None:
        again = aside and bool(self.shard_rows.earlier.fillable(shard_row.number))
        close(self, shard_row, aside=again, passed_over=passed_over or (aside and not again))

    return [(Core, "_close_shard_row", close_shard_row)]


def _shapes_grow_over_abandoned_rows() -> list[Patch]:
    abandon = Sealer._abandon

    def keeping_shape(self: Sealer, shard_row: int) -> None:
        later = dict(self._grows_later)
        abandon(self, shard_row)
        self._grows_later.update(later)

    return [(Sealer, "_abandon", keeping_shape), (StoreMetadata, "is_made", lambda *_: True)]


def _shapes_ignore_stages() -> list[Patch]:
    show = Core._show_stored

    def show_stored(self: Core) -> None:
        waits, self.scheduler.held_back = self.scheduler.held_back, set()
        show(self)
        self.scheduler.held_back = waits

    return [(Core, "_show_stored", show_stored)]


def _shapes_are_asked_for_again() -> list[Patch]:
    cover = LiveScheduler._cover

    def cover_again(self: LiveScheduler, *args: Any) -> None:
        self._asked.clear()
        cover(self, *args)

    return [(LiveScheduler, "_cover", cover_again)]


def _found_again_is_lost_too() -> list[Patch]:
    nobody = np.zeros(0, np.uint64)
    return [(frame_table_writer, "_found_again", lambda *_: nobody)]


def _held_rows_are_gone() -> list[Patch]:
    def rows_under_way(self: Core) -> bool:
        waiting = any(shard_row.waiting for shard_row in self.shard_rows.by_number.values())
        coming = self.encoders.rows or self.scheduler.held_back
        return waiting or bool(coming) or self._ledger.rows_to_come

    return [(Core, "_rows_under_way", property(rows_under_way))]


def _entries_alone_stay() -> list[Patch]:

    def with_records(*args: Any, **kwargs: Any) -> Any:
        found = read_back(*args, **kwargs)
        found.torn = [slab for slab in found.torn if found.frames_of(slab).size]
        return found

    return [(store_scan, "read_back", with_records)]


def _shown_when_finished() -> list[Patch]:
    show = Core._show_stored

    def show_stored(self: Core) -> None:
        life, self.end.life = self.end.life, Life.OPEN
        show(self)
        self.end.life = life

    return [(Core, "_show_stored", show_stored)]


def _shown_from_before() -> list[Patch]:
    sealed = LiveScheduler.sealed

    def keep(self: LiveScheduler, shard_row: Any, extents: Any) -> None:
        waiting = self._waiting.get(shard_row.number)
        sealed(self, shard_row, extents)
        if waiting is not None:
            self._waiting[shard_row.number] = waiting

    return [(LiveScheduler, "sealed", keep)]


def _split(row: table.Case, working: bool, final: bool, action: Action) -> Iterator[table.Case]:
    for is_working in (False, True) if row.working is None else (row.working,):
        for is_final in (False, True) if row.final is None else (row.final,):
            changed = action if (is_working, is_final) == (working, final) else row.action
            yield replace(row, working=is_working, final=is_final, action=changed)


def _adds_images(story: Story) -> bool:
    return story.shape.added > 0


def _images_are_only_in_memory() -> list[Patch]:
    def record_images(folder: StoreFolder, spec: AcquisitionSpec) -> None:
        folder.spec = spec
        folder.metadata.take_images(spec)

    return [(StoreFolder, "record_images", record_images)]


MENDS = {
    mend.name: mend
    for mend in (
        Mend(
            "images-in-memory",
            "an image is recorded before a frame of it comes",
            _images_are_only_in_memory,
            ADDED_FROM,
            shows_in=_adds_images,
        ),
        Mend(
            "rows-stay-closed",
            "frames after a kill while sealing: a row that was closed early is opened again",
            _rows_stay_closed,
        ),
        Mend(
            "few-rows-remembered",
            "likewise of an image that rests while many rows of another are sealed",
            _few_are_remembered,
            FEW_FILES_FROM,
        ),
        Mend("slabs-stay-closed", "likewise of a slab whose row is still open", _slabs_stay_closed),
        Mend(
            "not-opened-again",
            "likewise of a row whose sealing had begun",
            lambda: [(EarlierShardRows, "remember", _nothing)],
        ),
        Mend(
            "all-passed-over",
            "an end that comes early passes nothing over",
            _everything_is_passed_over,
            FEW_FILES_FROM,
        ),
        Mend(
            "flush-while-making",
            "a flush is not stuck while files are made",
            lambda: [(ShardRows, "making_files", property(lambda _: False))],
            shows_in=lambda story: any(life.client == "writer" and life.flushes for life in story.lives),
        ),
        Mend(
            "nothing-copied",
            "frames that a rewrite lost: what was stored is copied",
            _nothing_is_copied,
            shows_in=_may_rewrite,
        ),
        Mend(
            "held-rows-dropped",
            "frames that a rewrite lost: what cannot be read back is encoded again",
            _held_rows_are_dropped,
            shows_in=_may_hold,
        ),
        Mend(
            "failed-slab-forgotten",
            "a slab whose write failed is encoded again",
            _failed_slabs_are_forgotten,
            shows_in=_may_rewrite,
        ),
        Mend(
            "holes-forgotten",
            "a late frame is not reported as a duplicate: holes are remembered",
            lambda: [(HoleMemory, "remember", _nothing)],
        ),
        Mend(
            "released-while-staged",
            "pixels come back once staged frames were read",
            _pixels_come_back_while_staged,
            shows_in=_stages_beside,
        ),
        Mend(
            "released-at-workers",
            "pixels come back once the slab is stored",
            _pixels_come_back_at_the_workers,
        ),
        Mend(
            "waits-for-stage",
            "a slab that waits for a stage is stored once that is done",
            _staged_slabs_wait_for_ever,
            shows_in=_stages_beside,
        ),
        Mend("durable-when-asked", "durable comes with the report of the commit", _durable_when_asked),
        Mend("failed-syncs-count", "what failed to sync is not durable", _failed_syncs_count),
        Mend(
            "commit-of-sealed",
            "a shard row that is being sealed is not committed",
            _commits_of_sealed_shard_rows,
        ),
        Mend(
            "slots-never",
            "slots of the staging area come back",
            lambda: [(StagingScheduler, "give_back", _nothing)],
        ),
        Mend("staged-not-taken-up", "staged frames are taken up", _staged_frames_are_not_taken_up),
        Mend(
            "settled-before-recorded",
            "a settled frame is acknowledged once the log has it",
            _acknowledged_before_recorded,
        ),
        Mend(
            "no-retry",
            "a full disk is tried again",
            lambda: [(ShardRows, "retry_full_disk", _nothing)],
            shows_in=_fills_the_disk,
        ),
        Mend(
            "old-shard-believed",
            "the successor of a sealed shard is filled further",
            _believes(JournalFact.REOPENED, True, True, Action.SEALED),
            shows_in=_ends_early,
        ),
        Mend(
            "shard-in-progress-lost",
            "a shard in progress is filled further",
            _believes(JournalFact.VALID, True, False, Action.ALL_FILL),
        ),
        Mend(
            "name-burned",
            "a store that never got a frame keeps no name from the next one",
            _unbegun_stores_are_taken_up,
            creates=True,
        ),
        Mend(
            "written-once",
            "what a failed sync may have left in the page cache is written again",
            lambda: [(resume, "_renew_page_cache", _nothing)],
            shows_in=_loses_power,
        ),
        Mend(
            "same-names",
            "shard rows that were taken over have names that their old writer does not know",
            _taken_files_keep_their_names,
            shows_in=_takes_over,
        ),
        Mend(
            "cut-short-forgotten",
            "a take-over that was cut short is finished by the next writer",
            _cut_short_is_forgotten,
            shows_in=_takes_over,
        ),
        Mend(
            "final-name-ignored",
            "a shard that has its final name is complete",
            _believes(JournalFact.VALID, False, True, Action.LOST),
            shows_in=_ends_early,
        ),
        Mend(
            "shown-in-silence",
            "a sync that fails while shards get their names ends the intact mark",
            _shown_in_silence,
            SPLIT_FROM,
            shows_in=_is_split,
        ),
        Mend(
            "full-in-silence",
            "a sync that fails on a full disk ends the intact mark, too",
            _full_in_silence,
            shows_in=_loses_power,
        ),
        Mend(
            "names-before-bytes",
            "shards and their journal are durable before they get their names",
            _names_before_bytes,
            SPLIT_FROM,
            shows_in=lambda story: _is_split(story) and _loses_power(story),
        ),
        Mend(
            "earlier-shard-taken",
            "no shard of an earlier row that the log has lost counts as named by the journal of a torn slab",
            lambda: [(store_scan._Scan, "_is_unfinished", lambda *_: False)],
            shows_in=_loses_power,
        ),
        Mend(
            "sealing-begun",
            "names ahead of their shard row do not mean that its sealing has begun",
            _named_ahead_is_sealing,
            SPLIT_FROM,
            shows_in=_is_split,
            unseen="then a row is sealed early and opened again for what is missing, which takes only time",
        ),
        Mend(
            "named-slab-rotten",
            "rot in the journal takes one slab of a split shard row, not the staged frames of the others",
            _no_staged_frame_waits,
            SPLIT_FROM,
            shows_in=_is_split,
        ),
        Mend(
            "passed-over-rows",
            "a shard row of many shards that is passed over opens again",
            _rows_that_are_passed_over_stay_closed,
            SPLIT_FROM,
            shows_in=_is_split,
        ),
        Mend(
            "hidden-rows",
            "no shape covers a shard row whose slabs could not be shown",
            lambda: [(Sealer, "_hides_rows", lambda self, image: False)],
            SPLIT_FROM,
            shows_in=_is_split,
        ),
        Mend(
            "abandoned-covered",
            "no shape grows over a shard row that was given up",
            _shapes_grow_over_abandoned_rows,
            SPLIT_FROM,
            shows_in=_is_split,
        ),
        Mend(
            "opened-again-covered",
            "no shape grows while a sealed shard row is opened again, and lacks what it has got since",
            lambda: [(ShardRows, "replace_sealed", lambda self: set())],
            READERS_FROM,
            shows_in=_ends_early,
        ),
        Mend(
            "waiting-covered",
            "no shape covers a frame that waits for its sealed shard row to be opened again",
            lambda: [(Core, "_whole_steps", lambda self: self.accounts.whole_steps(()))],
            READERS_FROM,
            shows_in=_ends_early,
        ),
        Mend(
            "half-steps-covered",
            "no shape covers the rest of a step, which a sealed shard row takes when it is opened again",
            lambda: [(Accounts, "whole_steps", lambda self, waiting: self.extents)],
            READERS_FROM,
            shows_in=_ends_early,
        ),
        Mend(
            "staged-are-covered",
            "no shape covers a slab that waits for a stage",
            _shapes_ignore_stages,
            SPLIT_FROM,
            shows_in=_is_split,
        ),
        Mend(
            "parts-and-records",
            "frames in their chunks are durable once these are synced",
            _records_alone_make_durable,
            IN_PLACE_FROM,
            shows_in=_is_in_place,
        ),
        Mend(
            "parts-hold-files",
            "files with frames in chunks that are not whole are no empty ones",
            lambda: [(ShardRows, "note_frames", _only_whole_slabs_count)],
            IN_PLACE_FROM,
            shows_in=_is_in_place,
        ),
        Mend(
            "slots-are-made",
            "a slab closes when no record finds a slot",
            lambda: [(Core, "_make_slots", lambda self: None)],
            IN_PLACE_FROM,
            shows_in=_is_in_place,
        ),
        Mend(
            "asked-again",
            "a shape is asked for once",
            _shapes_are_asked_for_again,
            SPLIT_FROM,
            shows_in=_is_split,
        ),
        Mend(
            "lost-and-stored",
            "what was given up, and found again by recovery, is stored and not lost",
            _found_again_is_lost_too,
            shows_in=_may_rewrite,
        ),
        Mend(
            "held-rows-come-back",
            "no slab is closed for rows that a rewrite holds",
            _held_rows_are_gone,
            shows_in=_may_hold,
        ),
        Mend(
            "entries-alone",
            "a journal entry of a chunk that never reached the disk is cleared",
            _entries_alone_stay,
            shows_in=_loses_power,
        ),
        Mend(
            "passed-over-by-nothing",
            "a slab beyond all frames that are kept takes frames again",
            lambda: [(_Judge, "_open_beyond_newest", _nothing)],
        ),
        Mend(
            "final-names-kept",
            "a take-over makes names durable that the old writer has given and not synced",
            lambda: [(take_over, "_keep_final_names", _nothing)],
            shows_in=_takes_over,
        ),
        Mend(
            "shown-when-finished",
            "readers of a finished store are told nothing",
            _shown_when_finished,
            LIVE_FROM,
            shows_in=lambda story: story.settings.live != "none",
            unseen="then a Show finds no files, a Grow no larger shape, and nobody hears of an error",
        ),
        Mend(
            "shown-from-before",
            "a shard row that is sealed shows no slab of the time before",
            _shown_from_before,
            SPLIT_FROM,
            shows_in=_is_split,
        ),
    )
}


def find(mend: Mend, seeds: int, first: int = 0) -> tuple[int, str] | None:
    """The first seed at which a mend that is taken out shows, and how. Stories that cannot show it are
    passed over."""
    with mend.taken_out():
        for seed in range(mend.first + first, mend.first + first + seeds):
            if mend.creates:
                violation = play_naming(draw_naming(seed))[1]
            elif mend.shows_in(story := draw(seed)):
                violation = play(story)[1]
            else:
                continue
            if violation is not None:
                return seed, violation
    return None
