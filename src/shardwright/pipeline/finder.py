"""Finds what an unfinished store holds, file by file, and acts on ``shard.recover``'s table: continue, believe, delete, set aside.

Everything that is found good is synced once. Nothing is deleted before what replaces it is on disk.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Grid
from shardwright.array.ome import IMAGE_PATH
from shardwright.model.errors import ShardFormatError
from shardwright.shard.frame_log import BlockKind
from shardwright.shard.frame_record import PASSED_OVER, record_dtype
from shardwright.shard.group_files import JOURNAL_SUFFIX, REWRITE_SUFFIX, WORKING_SUFFIX, GroupFiles, Placement
from shardwright.shard.index import EMPTY as ABSENT
from shardwright.shard.journal import VALID, GroupJournal, JournalLayout, was_never_begun
from shardwright.shard.open_shard import OpenShard, make_link
from shardwright.shard.read_back import ReadBack, read_back
from shardwright.shard.recover import Action, FileFacts, JournalFact, decide
from shardwright.shard.slab_map import frames_of_group, slabs_of_group
from shardwright.storage.failpoints import reach
from shardwright.storage.files import make_directories, storage_errors, sync_directory

from .assembly import grid_tables
from .earlier_row import EarlierRow
from .encoding import SlabEncoder
from .evidence import Evidence
from .restored import GroupReport, Restored, RestoredGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shardwright.shard.layout import ArrayLayout


DAMAGED = ".shardwright.damaged"  # beside the workspace


def journals(placement: Placement) -> list[Path]:
    """The journals in one workspace, by their group's number."""
    return sorted(placement.workspace.glob(f"[0-9]*{JOURNAL_SUFFIX}"), key=lambda path: int(path.name.removesuffix(JOURNAL_SUFFIX)))


def reopened_groups(placements: Iterable[Placement], layout: ArrayLayout, record_bytes: int, identity: bytes) -> set[int]:
    """The groups that were sealed, and took frames again when their writer died. What the frame log tells of them was so: their frames are
    in the new files, or staged, or lost. Raises ``StorageError``."""
    found = set()
    for path in (path for placement in placements for path in journals(placement)):
        number = int(path.name.removesuffix(JOURNAL_SUFFIX))
        with suppress(ShardFormatError):  # without their journal the new files are not believed, and the sealed ones are
            journal = GroupJournal.open(path, JournalLayout.of(layout, number, record_bytes), identity, number)
            journal.close()
            if journal.reopened:
                found.add(number)
    return found


def facts_of(placement: Placement, key: str, journal: GroupJournal | None, file: int) -> FileFacts:
    """What the disk shows of one file of a group; ``journal`` None: it is damaged. Raises ``StorageError``."""
    holds = False
    if journal is not None:
        entries, states = journal.read_chunks(file)
        holds = bool(((states == VALID) & (entries["offset"] != ABSENT)).any())
    fact = JournalFact.DAMAGED if journal is None else JournalFact.REOPENED if journal.reopened else JournalFact.VALID
    return FileFacts(fact, working=placement.working(key).exists(), final=placement.final(key).exists(), holds=holds)


def _set_aside(placement: Placement, path: Path) -> None:
    """Out of the workspace, which goes when the store is finished."""
    folder = placement.root / DAMAGED
    make_directories(folder)
    with storage_errors("set aside", path):
        reach("recover.before_set_aside")
        path.replace(folder / path.name)


def _bytes_on_disk(path: Path) -> int:
    """0 for a shard that is not there: all of it is fill value."""
    with storage_errors("look into", path):
        return path.stat().st_blocks * 512 if path.exists() else 0


class Finder:
    """Fills ``restored`` from the disk, group by group."""

    def __init__(self, restored: Restored, threads: int, progress: Callable[[int], None] | None) -> None:
        self._restored = restored
        self._folder = restored.folder
        self._threads = threads
        self._progress = progress
        self._layout: ArrayLayout = SlabEncoder(restored.spec, Grid.of(restored.spec)).layout
        self._record_bytes = record_dtype(len(restored.spec.frame_fields)).itemsize
        self._whole: dict[int, set[int]] = {}  # group -> whole slabs
        self._logged: set[int] = set()  # groups that have records in the frame log
        self._replaced: set[Path] = set()  # shards whose groups were opened again, as the store names them
        self._evidence = Evidence.of(self._folder.workspace, restored.accounts, self._folder.manifest)

    def run(self) -> None:
        self._make_durable()
        self._read_log()
        for placement in self._folder.placements():
            if placement.workspace.is_dir():
                self._find_groups(placement)
        self._read_staging()
        self._judge_losses()
        self._count_shards()
        self._make_room()

    def _make_durable(self) -> None:
        """No power cut may take back what is believed here: names that a rewrite has given, and the frame log, for whose groups journals go."""
        for placement in self._folder.placements():
            if placement.workspace.is_dir():
                sync_directory(placement.workspace)
        self._folder.log.sync()

    def _read_log(self) -> None:
        """Frames of sealed groups, and frames that were settled without being stored."""
        accounts, log = self._restored.accounts, self._folder.log
        self._evidence.take_log(log)
        reopened = reopened_groups(self._folder.placements(), self._layout, self._record_bytes, self._folder.manifest.identity_bytes)
        pieces: dict[int, list[np.ndarray]] = {}  # the records of the group whose block is being read
        for kind, group, records in log.blocks():
            if group in reopened:
                self._evidence.take_reopened(records)
            elif kind is BlockKind.GROUP:
                if group not in pieces:
                    self._remember_rows(pieces)
                    pieces = {group: []}
                pieces[group].append(records)
                accounts.find(records)
            else:
                sequences = records["sequence"].astype(np.int64)
                accounts.receive(sequences, records["position"].astype(np.int64))
                accounts.settle(records)
                accounts.stored.add(sequences)
                accounts.durable.add(sequences)
        self._remember_rows(pieces)
        self._restored.closed_groups |= log.groups - reopened
        empty = np.zeros(0, record_dtype(len(self._restored.spec.frame_fields)))
        for group in sorted(log.groups - reopened - self._logged)[-self._restored.limits.open_groups :]:
            self._remember_rows({group: [empty]})

    def _remember_rows(self, pieces: dict[int, list[np.ndarray]]) -> None:
        """Of a sealed group that is not full: so that it can be opened again, and a frame for a place that stays closed is late, not a duplicate.
        As many of the newest as could be open at once; the others were passed over by far."""
        grid, restored = self._layout.grid, self._restored
        for group, records in pieces.items():
            self._logged.add(group)
            if sum(piece.size for piece in records) == frames_of_group(self._layout, group):
                continue
            row = EarlierRow.of(grid, grid_tables(grid), np.concatenate(records))
            for slab in slabs_of_group(self._layout, group):
                if slab in row.holes or not row.begins(slab):
                    restored.holes.remember(slab, row.holes.get(slab))
            restored.earlier[group] = row
            if len(restored.earlier) > restored.limits.open_groups:
                del restored.earlier[min(restored.earlier)]

    def _find_groups(self, placement: Placement) -> None:
        """Look at every file of one workspace: journals lead to their groups, what no journal names goes."""
        with storage_errors("look into", placement.workspace):
            names = sorted(entry.name for entry in placement.workspace.iterdir())
        for name in names:
            if name.endswith((REWRITE_SUFFIX, ".copy")):
                self._delete(placement.workspace / name)
        for path in journals(placement):
            if was_never_begun(path):
                self._delete(path)
        numbers = [int(path.name.removesuffix(JOURNAL_SUFFIX)) for path in journals(placement)]
        for number in numbers:
            self._find_group(placement, number)
        named = {placement.working(self._layout.shard_key(number, file)) for number in numbers for file in range(self._layout.files_per_group)}
        for name in names:
            path = placement.workspace / name
            if name.startswith("c.") and name.endswith(WORKING_SUFFIX) and path not in named and path.exists():
                assert decide(FileFacts(JournalFact.NONE, working=True, final=False, holds=False)) is Action.DELETE
                self._delete(path)

    def _delete(self, path: Path) -> None:
        with storage_errors("delete", path):
            reach("recover.before_delete")
            path.unlink(missing_ok=True)

    def _find_group(self, placement: Placement, number: int) -> None:
        report = GroupReport(number)
        self._restored.reports.append(report)
        journal = self._journal(placement, number)
        actions = [self._decide(placement, number, file, journal, report) for file in range(self._layout.files_per_group)]
        if journal is None:
            _set_aside(placement, placement.journal(number))  # last: a recovery that is killed before this does the same again
            return
        if number in self._restored.closed_groups:
            journal.delete()  # sealed and logged: only the journal was left
            return
        shards = [self._take_up(placement, number, file, action, replaces=journal.reopened) for file, action in enumerate(actions)]
        files = GroupFiles(number, placement, shards, journal)
        lost = {file for file, action in enumerate(actions) if action is Action.LOST}
        found = read_back(self._layout, number, journal, shards, lost=lost, threads=self._threads, progress=self._progress)
        self._restored.checked_bytes += found.checked_bytes
        self._take_group(files, found, report, begun=any(action in (Action.SEALED, Action.ALL_FILL) for action in actions))

    def _journal(self, placement: Placement, number: int) -> GroupJournal | None:
        path = placement.journal(number)
        layout = JournalLayout.of(self._layout, number, self._record_bytes)
        try:
            return GroupJournal.open(path, layout, self._folder.manifest.identity_bytes, number)
        except ShardFormatError:
            return None

    def _decide(self, placement: Placement, number: int, file: int, journal: GroupJournal | None, report: GroupReport) -> Action:
        key = self._layout.shard_key(number, file)
        working, final = placement.working(key), placement.final(key)
        action = decide(facts_of(placement, key, journal, file))
        report.actions[key] = action.value
        if action is Action.SET_ASIDE:
            _set_aside(placement, working)
        elif action is Action.SEALED:
            self._delete(working)
            sync_directory(final.parent)  # the rename may not have been durable
            if (link := placement.link(key)) is not None:
                make_link(link, final)
        return action

    def _take_up(self, placement: Placement, number: int, file: int, action: Action, *, replaces: bool) -> OpenShard | None:
        """The shard to go on with; None where it has its final name or holds nothing. One that was lost begins anew."""
        if action not in (Action.CONTINUE, Action.LOST):
            return None
        key = self._layout.shard_key(number, file)
        if replaces:
            self._replaced.add(Placement(self._folder.path).final(key))
        return OpenShard(
            self._layout.shard(number, file),
            placement.working(key),
            placement.final(key),
            self._folder.io,
            link=placement.link(key),
            existing=action is Action.CONTINUE,
            replaces=placement.record if replaces else None,
        )

    def _take_group(self, files: GroupFiles, found: ReadBack, report: GroupReport, *, begun: bool) -> None:
        whole = found.whole
        for places in whole:
            for file, shard in enumerate(files.shards):
                if shard is not None:
                    mine = places.file == file
                    entries = found.entries[file][places.slot[mine]]
                    shard.entries["offset"][places.entry[mine]] = entries["offset"]
                    shard.entries["nbytes"][places.entry[mine]] = entries["nbytes"]
        accounts = self._restored.accounts
        self._clear_torn(files, found)
        files.go_on_behind()
        files.sync()
        kept = [found.frames_of(places) for places in whole]
        for records in kept:
            accounts.find(records)
        report.take(found)
        encoded = [entries["nbytes"][good & (entries["offset"] != ABSENT)].sum() for entries, good in zip(found.entries, found.good, strict=True)]
        stored_bytes = sum(int(encoded[file]) for file, shard in enumerate(files.shards) if shard is not None)
        accounts.stored_bytes += stored_bytes
        sealed = [self._layout.shard_key(files.group, file) for file, shard in enumerate(files.shards) if shard is None]
        stored_bytes += sum(_bytes_on_disk(files.placement.final(key)) for key in sealed)  # ``_count_shards`` has these
        slabs = files.journal.layout.slabs
        self._whole[files.group] = {places.slab for places in whole}
        filled = {places.slab: found.record_valid[places.slot_layer] for places in whole}
        grid = self._layout.grid
        holes = {slab: here for slab, here in filled.items() if here.sum() < grid.frames_in_slab(slab)}
        takes_back = {
            places.slab: holes[places.slab] for places in whole if places.slab in holes and not (found.frames_of(places)["flags"] & PASSED_OVER).any()
        }
        self._restored.groups.append(RestoredGroup(files, slabs, sorted(filled), holes, takes_back, report.frames_kept, stored_bytes, begun))

    def _clear_torn(self, files: GroupFiles, found: ReadBack) -> None:
        """Not stored. Where frames of theirs may have been acknowledged, these are to be sent again or recorded as lost, even if recovery dies once
        more."""
        if self._evidence.take_torn(found):
            self._folder.remember_seen(self._restored.accounts.seen.stop, self._restored.accounts.received_extent)
        if found.torn:
            files.journal.clear_slabs(places.slot_layer for places in found.torn)

    def _read_staging(self) -> None:
        """Staged frames whose slab is not stored: the others are in their chunks."""
        staging = self._folder.staging
        if staging is None:
            return
        records, valid = staging.read()
        slots = [slot for slot in np.flatnonzero(valid).tolist() if self._is_open(int(records["position"][slot]))]
        told = self._restored.accounts.stored.holds(records["sequence"][slots].astype(np.int64))  # lost by a rewrite, as the log says
        slots = [slot for slot, known in zip(slots, told.tolist(), strict=True) if not known]
        slot_of = {int(records["sequence"][slot]): slot for slot in slots}  # one each: a slab that was taken back leaves older copies behind
        slots = [slot_of[sequence] for sequence in sorted(slot_of)]
        staging.sync()
        restored = self._restored
        restored.staged = records[slots]
        restored.staged["pixels_crc"] = restored.staged["record_crc"] = 0
        restored.staged_slots = slots
        restored.accounts.find(restored.staged)
        self._evidence.take_staged(staging, records, valid)

    def _judge_losses(self) -> None:
        """What is missing is one thing or the other from now on, even if recovery dies once more."""
        restored, accounts = self._restored, self._restored.accounts
        damaged = any((placement.root / DAMAGED).exists() for placement in self._folder.placements())
        restored.frames_forgotten = self._evidence.conclude(damaged=damaged)
        if accounts.missing_acknowledged():
            self._folder.remember_seen(accounts.seen.stop, accounts.received_extent)

    def _is_open(self, position: int) -> bool:
        """Whether a position's slab still waits for frames."""
        grid = self._layout.grid
        slab = grid.slab_of_position(position)
        group = grid.group_of_slab(slab)
        begun = any(found.files.group == group and found.sealing_begun for found in self._restored.groups)
        return group not in self._restored.closed_groups and not begun and slab not in self._whole.get(group, set())

    def _make_room(self) -> None:
        """Rows and groups for what was found, whatever they were derived from this time."""
        grid, restored = self._layout.grid, self._restored
        slabs = {grid.slab_of_position(position) for position in restored.staged["position"].tolist()} if restored.staged.size else set()
        groups = {grid.group_of_slab(slab) for slab in slabs} | {found.files.group for found in restored.groups}
        limits = restored.limits
        restored.limits = replace(limits, rows=limits.rows + len(slabs), open_groups=max(limits.open_groups, len(groups) + 2))

    def _count_shards(self) -> None:
        """For the receipt: what is sealed already, by its size on disk. Nothing is opened: rot in one must not keep the others from coming back."""
        folder = self._folder.path / IMAGE_PATH / "c"
        accounts = self._restored.accounts
        with storage_errors("look into", folder):
            for path in folder.rglob("*") if folder.is_dir() else []:
                if path.is_file() and path.name.isdigit() and path not in self._replaced:
                    accounts.shards += 1
                    accounts.stored_bytes += _bytes_on_disk(path)
