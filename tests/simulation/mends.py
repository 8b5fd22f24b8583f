"""The simulation proves itself: each of these puts a known defect, or a mistake like one, back into the real
core, and must be found."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.acquire.closed_shard_rows import HoleMemory
from shardwright.acquire.commit_ledger import LOGGED, STAGED, CommitLedger
from shardwright.acquire.core import Core
from shardwright.acquire.live_scheduler import LiveScheduler
from shardwright.acquire.shard_rows import ShardRow, ShardRows
from shardwright.acquire.staging_scheduler import StagingScheduler
from shardwright.model.errors import StorageError
from shardwright.recovery import leftovers, table
from shardwright.recovery.decide import _Judge
from shardwright.recovery.leftovers import FolderAction
from shardwright.recovery.table import Action, JournalFact

from . import creation, take_up
from .disk import Disk
from .sealer import Sealer
from .story import IN_PLACE_FROM, SPLIT_FROM, draw
from .world import play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .disk import Manifest

    Patch = tuple[Any, str, Any]  # object, attribute, what stands there instead


@dataclass(frozen=True)
class Mend:
    """``removes``: what is taken out. ``patches`` makes the replacements."""

    name: str
    removes: str
    patches: Callable[[], list[Patch]]
    first: int = 0  # seed that it may show at

    @contextmanager
    def taken_out(self) -> Iterator[None]:
        patches = self.patches()
        before = [getattr(where, name, None) for where, name, _ in patches]
        for where, name, instead in patches:
            setattr(where, name, instead)
        try:
            yield
        finally:
            for (where, name, _), old in zip(patches, before, strict=True):
                if old is None:
                    delattr(where, name)
                else:
                    setattr(where, name, old)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _rows_stay_closed() -> list[Patch]:
    restore = ShardRows.restore_closed
    return [
        (
            ShardRows,
            "restore_closed",
            lambda self, numbers, holes, earlier: restore(self, numbers, holes, {}),
        ),
        (ShardRows, "opens_again", _nothing),
    ]


def _slabs_stay_closed() -> list[Patch]:
    restore = Core._restore_shard_row
    return [
        (
            Core,
            "_restore_shard_row",
            lambda self, found: restore(
                self, replace(found, standing=replace(found.standing, takes_back={}, sealing_begun=False))
            ),
        )
    ]


def _everything_is_passed_over() -> list[Patch]:
    close = Core._close_slab
    return [(Core, "_close_slab", lambda self, slab, passed_over=False: close(self, slab, passed_over=True))]


def _nothing_is_copied() -> list[Patch]:
    rewrite = ShardRows.rewrite
    return [
        (ShardRows, "rewrite", lambda self, shard_row, stored, held: rewrite(self, shard_row, set(), held))
    ]


def _held_rows_are_dropped() -> list[Patch]:
    def take_back(self: Core, shard_row: Any, saved: set[int]) -> None:
        held, shard_row.held_rows = shard_row.held_rows, []
        for row in held:
            self._released.append(self.table.sequences[row][self.table.filled(row)])
            self.table.free(row)

    return [(Core, "_take_back_held", take_back)]


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
        self._waits_for_stage.discard(report.row)
        staged(self, report)

    return [(Core, "_frames_staged", frames_staged)]


def _records_alone_make_durable() -> list[Patch]:
    noted = Core._note_staged

    def note_staged(self: Core, row: int, sequences: Any) -> None:
        if not self.grids.in_place:
            noted(self, row, sequences)
            return
        self._owner_of(row).has_parts = True
        self._ledger.add(STAGED, self._now.s, sequences, release=self._keeps_frames)
        if not self._keeps_frames:
            self._released.append(sequences)

    return [(Core, "_note_staged", note_staged)]


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
    return [(CommitLedger, "begin", lambda self, skip: begin(self, set()))]


def _failed_slabs_are_forgotten() -> list[Patch]:
    old = Core._slab_encoded

    def encoded(self: Core, report: Any) -> None:
        old(self, report)
        shard_row = self._owner_of(report.row) if report.error is not None and self.why is None else None
        if shard_row is not None and report.row in shard_row.waiting:
            shard_row.waiting.remove(report.row)

    return [(Core, "_slab_encoded", encoded)]


def _staged_frames_are_not_taken_up() -> list[Patch]:
    restore = Core.restore

    def without(self: Core, restored: Any, addresses: Any, now: Any) -> None:
        restored.standing.staged, restored.standing.staged_slots = restored.standing.staged[:0], []
        restore(self, restored, addresses[:0], now)

    return [(Core, "restore", without)]


def _acknowledged_before_recorded() -> list[Patch]:
    settle = Core._settle

    def early(self: Core, records: Any, *args: Any, **kwargs: Any) -> None:
        settle(self, records, *args, **kwargs)
        self.accounts.stored.add(records["sequence"].astype(np.int64))

    return [(Core, "_settle", early)]


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
    def take_files(disk: Disk, manifest: Manifest) -> Manifest:
        made = take_files_(disk, manifest)
        for name in [name for name in disk.names if name[3] == made.writer_epoch]:
            disk.put((*name[:3], manifest.files_epoch), disk.names[name])
        disk.manifest = replace(made, files_epoch=manifest.files_epoch)
        return disk.manifest

    take_files_ = take_up._take_files
    return [(take_up, "_take_files", take_files)]


def _cut_short_is_forgotten() -> list[Patch]:
    return [(Disk, "taking_over", property(lambda _: False, _nothing))]


def _shown_in_silence() -> list[Patch]:
    named = Sealer._named_ahead

    def named_ahead(self: Sealer, files: Any, slabs: Any) -> Any:
        with suppress(StorageError):
            yield from named(self, files, slabs)

    return [(Sealer, "_named_ahead", named_ahead)]


def _names_before_bytes() -> list[Patch]:
    sync, everything = Disk.sync_shard_rows_file, Disk.sync_everything

    def unless_sealing(old: Any) -> Any:
        return lambda self, file, kind: None if kind == "seal" else old(self, file, kind)

    return [
        (Disk, "sync_shard_rows_file", unless_sealing(sync)),
        (Disk, "sync_everything", unless_sealing(everything)),
    ]


def _named_ahead_is_sealing() -> list[Patch]:
    named = (Action.SEALED, Action.ALL_FILL)
    return [(_Judge, "_sealing_begun", lambda self, number, actions, whole: any(a in named for a in actions))]


def _rows_that_are_passed_over_stay_closed() -> list[Patch]:
    close = Core._close_shard_row

    def close_shard_row(self: Core, shard_row: Any, *, passed_over: bool = False) -> None:
        aside = not (self.is_finishing or shard_row.takes_back)
        close(self, shard_row, passed_over=passed_over or aside)

    return [(Core, "_close_shard_row", close_shard_row)]


def _shapes_ignore_stages() -> list[Patch]:
    show = Core._show_stored

    def show_stored(self: Core) -> None:
        waits, self._waits_for_stage = self._waits_for_stage, set()
        show(self)
        self._waits_for_stage = waits

    return [(Core, "_show_stored", show_stored)]


def _shapes_are_asked_for_again() -> list[Patch]:
    cover = LiveScheduler._cover

    def cover_again(self: LiveScheduler, *args: Any) -> None:
        self._asked.clear()
        cover(self, *args)

    return [(LiveScheduler, "_cover", cover_again)]


def _split(row: table.Case, working: bool, final: bool, action: Action) -> Iterator[table.Case]:
    for is_working in (False, True) if row.working is None else (row.working,):
        for is_final in (False, True) if row.final is None else (row.final,):
            changed = action if (is_working, is_final) == (working, final) else row.action
            yield replace(row, working=is_working, final=is_final, action=changed)


MENDS = {
    mend.name: mend
    for mend in (
        Mend(
            "rows-stay-closed",
            "frames after a kill while sealing: a row that was closed early is opened again",
            _rows_stay_closed,
        ),
        Mend("slabs-stay-closed", "likewise of a slab whose row is still open", _slabs_stay_closed),
        Mend(
            "not-opened-again",
            "likewise of a row whose sealing had begun",
            lambda: [(ShardRows, "opens_again", _nothing)],
        ),
        Mend("all-passed-over", "an end that comes early passes nothing over", _everything_is_passed_over),
        Mend(
            "flush-while-making",
            "a flush is not stuck while files are made",
            lambda: [(ShardRows, "making_files", property(lambda _: False))],
        ),
        Mend("nothing-copied", "frames that a rewrite lost: what was stored is copied", _nothing_is_copied),
        Mend(
            "held-rows-dropped",
            "frames that a rewrite lost: what cannot be read back is encoded again",
            _held_rows_are_dropped,
        ),
        Mend(
            "failed-slab-forgotten", "a slab whose write failed is encoded again", _failed_slabs_are_forgotten
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
        Mend("no-retry", "a full disk is tried again", lambda: [(ShardRows, "retry_full_disk", _nothing)]),
        Mend(
            "old-shard-believed",
            "the successor of a sealed shard is filled further",
            _believes(JournalFact.REOPENED, True, True, Action.SEALED),
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
        ),
        Mend(
            "written-once",
            "what a failed sync may have left in the page cache is written again",
            lambda: [(take_up, "_write_again", _nothing)],
        ),
        Mend(
            "same-names",
            "shard rows that were taken over have names that their old writer does not know",
            _taken_files_keep_their_names,
        ),
        Mend(
            "cut-short-forgotten",
            "a take-over that was cut short is finished by the next writer",
            _cut_short_is_forgotten,
        ),
        Mend(
            "final-name-ignored",
            "a shard that has its final name is complete",
            _believes(JournalFact.VALID, False, True, Action.LOST),
        ),
        Mend(
            "shown-in-silence",
            "a sync that fails while shards get their names ends the intact mark",
            _shown_in_silence,
            SPLIT_FROM,
        ),
        Mend(
            "names-before-bytes",
            "shards and their journal are durable before they get their names",
            _names_before_bytes,
            SPLIT_FROM,
        ),
        Mend(
            "sealing-begun",
            "names ahead of their shard row do not mean that its sealing has begun",
            _named_ahead_is_sealing,
            SPLIT_FROM,
        ),
        Mend(
            "passed-over-rows",
            "a shard row of many shards that is passed over opens again",
            _rows_that_are_passed_over_stay_closed,
            SPLIT_FROM,
        ),
        Mend(
            "hidden-rows",
            "no shape covers a shard row whose slabs could not be shown",
            lambda: [(Sealer, "_hides_rows", lambda self, image: False)],
            SPLIT_FROM,
        ),
        Mend(
            "staged-are-covered",
            "no shape covers a slab that waits for a stage",
            _shapes_ignore_stages,
            SPLIT_FROM,
        ),
        Mend(
            "parts-and-records",
            "frames in their chunks are durable once these are synced",
            _records_alone_make_durable,
            IN_PLACE_FROM,
        ),
        Mend(
            "parts-hold-files",
            "files with frames in chunks that are not whole are no empty ones",
            lambda: [(ShardRow, "has_parts", property(lambda self: False, lambda self, value: None))],
            IN_PLACE_FROM,
        ),
        Mend(
            "slots-are-made",
            "a slab closes when no record finds a slot",
            lambda: [(Core, "_make_slots", lambda self: None)],
            IN_PLACE_FROM,
        ),
        Mend("asked-again", "a shape is asked for once", _shapes_are_asked_for_again, SPLIT_FROM),
    )
}


def find(mend: Mend, seeds: int, first: int = 0) -> tuple[int, str] | None:
    """The first seed at which a mend that is taken out shows, and how."""
    with mend.taken_out():
        for seed in range(mend.first + first, mend.first + first + seeds):
            violation = play(draw(seed))[1] or creation.play(seed)[1]
            if violation is not None:
                return seed, violation
    return None
