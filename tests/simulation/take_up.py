"""Recovery on the simulated disk: ``take_up`` turns what is there into a ``Restored``, by the real table, as ``pipeline.resume`` and
``pipeline.finder`` do. Each call of the disk is a place where recovery may be killed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.kernels.place import slabs_and_places
from shardwright.pipeline.accounts import Accounts
from shardwright.pipeline.assembly import grid_tables
from shardwright.pipeline.earlier_row import EarlierRow
from shardwright.pipeline.evidence import Evidence
from shardwright.pipeline.restored import Restored, RestoredGroup
from shardwright.shard.frame_record import PASSED_OVER, record_dtype
from shardwright.shard.recover import Action, FileFacts, JournalFact, decide
from shardwright.shard.slab_map import frames_of_group, slabs_of_group

from . import known
from .disk import ABSENT, FINAL, JOURNAL, REWRITE, WORKING, Log, final, journal, working
from .group import HEADER, Files, Found, Journal, Shard, read_back

if TYPE_CHECKING:
    from shardwright.pipeline.limits import Limits

    from .disk import Disk, File
    from .story import Plan


def take_up(disk: Disk, plan: Plan, limits: Limits, *, take_over: bool) -> Restored:
    """An unfinished store is taken up: by a new writer, which is fenced against older ones from then on."""
    assert disk.manifest is not None, "there is something to take up"
    epoch = disk.manifest.writer_epoch + 1
    disk.lock = epoch
    if take_over:
        disk.end_intact()
    disk.call("take up")
    disk.manifest = replace(disk.manifest, writer_epoch=epoch)
    if take_over:
        _leave_old_files(disk)
    return _Scan(disk, plan, limits).run()


def _leave_old_files(disk: Disk) -> None:
    """The old writer may still write through its descriptors: go on with copies."""
    for name in sorted(name for name in disk.names if name[0] != FINAL):
        disk.call("take up")
        if name in disk.names:
            disk.names[name] = disk.names[name].copy()
    disk.call("take up")
    if disk.staging is not None:
        disk.staging = disk.staging.copy()
    disk.log = Log(list(disk.log.blocks), len(disk.log.blocks))
    disk.names_are_durable()


def opened_anew(file: File) -> None:
    """Nobody who opens a file hears of a sync that failed before."""
    file.sync_failed = False
    if known.RECOVERY_WRITES_AGAIN:
        file.unsynced[:0] = file.doubtful
        file.doubtful.clear()


class _Scan:
    def __init__(self, disk: Disk, plan: Plan, limits: Limits) -> None:
        grid = plan.grid
        self._disk, self._layout, self._grid = disk, plan.encoder.layout, grid
        self._tables = grid_tables(grid)
        per_step = math.prod(grid.counts[1:])
        self._accounts = Accounts(limits.frame_bytes, per_step, received_extent=0 if grid.counts else 1)
        self._restored = Restored(None, plan.spec, limits, self._accounts)  # type: ignore[arg-type]
        self._whole: dict[int, set[int]] = {}
        self._settled: set[int] = set()
        assert disk.manifest is not None
        self._evidence = Evidence(self._accounts, intact=disk.intact)
        self._accounts.expect_up_to(disk.manifest.seen_stop, disk.manifest.seen_extent)
        self._accounts.lost_stop = disk.manifest.seen_stop

    def run(self) -> Restored:
        self._disk.sync_folder("workspace")
        self._disk.log.synced = len(self._disk.log.blocks)
        self._read_log()
        self._find_groups()
        self._read_staging()
        self._restored.frames_forgotten = self._evidence.conclude(damaged=False)
        if self._accounts.missing_acknowledged():
            self._remember_seen()
        self._disk.call("take up")
        self._accounts.shards += sum(name[0] == FINAL and name not in self._replaced for name in self._disk.names)
        self._make_room()
        return self._restored

    # ------------------------------------------------------------------ the frame log

    def _read_log(self) -> None:
        accounts, log = self._accounts, self._disk.log
        reopened = {name[1] for name, file in self._disk.names.items() if name[0] == JOURNAL and file.data.get(HEADER)}
        self._replaced: set[tuple[str, int, int]] = set()
        for block in log.counted():
            records = block.records
            if block.group is None:
                sequences = records["sequence"].astype(np.int64)
                accounts.receive(sequences, records["position"].astype(np.int64))
                accounts.settle(records)
                self._settled.update(sequences.tolist())
                accounts.stored.add(sequences)
                accounts.durable.add(sequences)
            elif block.group in reopened:
                self._evidence.take_reopened(records)
            else:
                self._remember_row(block.group, records)
                accounts.find(records)
        self._restored.closed_groups |= log.groups().keys() - reopened

    def _remember_row(self, group: int, records: np.ndarray) -> None:
        restored = self._restored
        if records.size == frames_of_group(self._layout, group):
            return
        row = EarlierRow.of(self._grid, self._tables, records)
        for slab in slabs_of_group(self._layout, group):
            if slab in row.holes or not row.begins(slab):
                restored.holes.remember(slab, row.holes.get(slab))
        restored.earlier[group] = row
        if len(restored.earlier) > restored.limits.open_groups:
            del restored.earlier[min(restored.earlier)]

    # ------------------------------------------------------------------ groups

    def _find_groups(self) -> None:
        disk = self._disk
        for name in sorted(disk.names):
            if name[0].endswith(REWRITE) or (name[0] == JOURNAL and HEADER not in disk.names[name].data):
                disk.call("take up")
                disk.delete(name)
        numbers = sorted(name[1] for name in disk.names if name[0] == JOURNAL)
        for number in numbers:
            self._find_group(number)
        for name in sorted(disk.names):
            if name[0] == WORKING and name[1] not in numbers:
                assert decide(FileFacts(JournalFact.NONE, working=True, final=False, holds=False)) is Action.DELETE
                disk.call("take up")
                disk.delete(name)

    def _find_group(self, number: int) -> None:
        disk, table = self._disk, self._disk.names[journal(number)]
        actions = [self._decide(number, file, table) for file in range(self._layout.files_per_group)]
        if number in self._restored.closed_groups:
            disk.call("take up")
            disk.delete(journal(number))
            return
        reopened = bool(table.data[HEADER])
        shards = [self._open(number, file, action, replaces=reopened) for file, action in enumerate(actions)]
        files = Files(number, shards, Journal(table, reopened))
        lost = frozenset(file for file, action in enumerate(actions) if action is Action.LOST)
        found = read_back(disk, self._layout, files, lost)
        self._take_group(files, found, begun=any(action in (Action.SEALED, Action.ALL_FILL) for action in actions))

    def _decide(self, number: int, file: int, table: File) -> Action:
        disk = self._disk
        fact = JournalFact.REOPENED if table.data[HEADER] else JournalFact.VALID
        holds = any(key != HEADER and key[0] == "chunk" and key[1] == file and isinstance(value, tuple) for key, value in table.data.items())
        facts = FileFacts(fact, working=working(number, file) in disk.names, final=final(number, file) in disk.names, holds=holds)
        action = decide(facts)
        if action is Action.SEALED:
            disk.call("take up")
            disk.delete(working(number, file))
            disk.sync_folder("final")
        return action

    def _open(self, number: int, file: int, action: Action, *, replaces: bool) -> Shard | None:
        if action not in (Action.CONTINUE, Action.LOST):
            return None
        if replaces:
            self._replaced.add(final(number, file))
        name = working(number, file)
        return Shard(self._disk.names[name] if action is Action.CONTINUE else self._disk.make(name), name)

    def _take_group(self, files: Files, found: Found, *, begun: bool) -> None:
        disk, accounts = self._disk, self._accounts
        for slab in found.whole:
            for f, shard in enumerate(files.shards):
                if shard is not None and (chunk := files.journal.file.data[("chunk", f, slab)]) != ABSENT:
                    shard.entries[slab] = chunk
        self._clear_torn(files, found)
        for file in (*(shard.file for shard in files.slots), files.journal.file):
            disk.call("take up")
            opened_anew(file)
            file.sync()
        for records in found.whole.values():
            accounts.find(records)
        stored_bytes = len(found.whole)
        accounts.stored_bytes += stored_bytes
        self._whole[files.group] = set(found.whole)
        holes, takes_back = {}, {}
        for slab, records in found.whole.items():
            if records.size < self._grid.frames_in_slab(slab):
                _, places = slabs_and_places(records["position"].astype(np.int64), *self._tables)
                holes[slab] = np.zeros(self._grid.frames_per_slab, np.bool_)
                holes[slab][places] = True
                if not (records["flags"] & PASSED_OVER).any():
                    takes_back[slab] = holes[slab]
        slabs = len(slabs_of_group(self._layout, files.group))
        frames = sum(records.size for records in found.whole.values())
        self._restored.groups.append(
            RestoredGroup(files, slabs, sorted(found.whole), holes, takes_back, frames, stored_bytes, begun)  # type: ignore[arg-type]
        )

    def _clear_torn(self, files: Files, found: Found) -> None:
        told = False
        evidence, accounts = self._evidence, self._accounts
        for slab, records in found.torn.items():
            if slab in found.stored:
                told = True
                accounts.lose(records)
                evidence.in_doubt = evidence.in_doubt or slab not in found.tells_frames
            else:
                evidence._unfinished.append(records)
        evidence._expect_if_in_doubt()
        if told or (evidence.in_doubt and found.torn):
            self._remember_seen()
        for slab in found.torn:
            self._disk.call("take up")
            table = files.journal.file
            table.clear(("frames", slab))
            for f in range(len(files.shards)):
                table.clear(("chunk", f, slab))

    def _remember_seen(self) -> None:
        disk, accounts = self._disk, self._accounts
        assert disk.manifest is not None
        disk.call("take up")
        disk.manifest = replace(disk.manifest, seen_stop=accounts.seen.stop, seen_extent=accounts.received_extent)

    # ------------------------------------------------------------------ the staging area

    def _read_staging(self) -> None:
        restored, staging = self._restored, self._disk.staging
        if staging is None:
            return
        slot_of: dict[int, tuple[int, np.void]] = {}
        spoiled, unreadable = [], False
        for key, value in sorted(((key, value) for key, value in staging.data.items() if key[0] == "record"), key=lambda item: item[0][1]):
            slot = key[1]
            if not isinstance(value, tuple):
                unreadable = True
            elif staging.data.get(("pixels", slot)) != value[1]:
                spoiled.append(value[0])
            elif int(value[0]["sequence"]) in self._settled:
                continue
            elif self._is_open(int(value[0]["position"])):
                slot_of[int(value[0]["sequence"])] = (slot, value[0])
        self._disk.call("take up")
        opened_anew(staging)
        staging.sync()
        found = [slot_of[sequence] for sequence in sorted(slot_of)]
        restored.staged = _records([record for _, record in found])
        restored.staged_slots = [slot for slot, _ in found]
        self._accounts.find(restored.staged)
        gone = _records(spoiled)
        gone = gone[~self._accounts.seen.holds(gone["sequence"].astype(np.int64))]
        if gone.size:
            self._accounts.lose(gone)
        self._evidence.in_doubt = self._evidence.in_doubt or unreadable

    def _is_open(self, position: int) -> bool:
        slab = self._grid.slab_of_position(position)
        group = self._grid.group_of_slab(slab)
        begun = any(found.files.group == group and found.sealing_begun for found in self._restored.groups)
        return group not in self._restored.closed_groups and not begun and slab not in self._whole.get(group, set())

    def _make_room(self) -> None:
        grid, restored = self._grid, self._restored
        slabs = {grid.slab_of_position(position) for position in restored.staged["position"].tolist()} if restored.staged.size else set()
        groups = {grid.group_of_slab(slab) for slab in slabs} | {found.files.group for found in restored.groups}
        limits = restored.limits
        restored.limits = replace(limits, rows=limits.rows + len(slabs), open_groups=max(limits.open_groups, len(groups) + 2))


def _records(rows: list[np.void]) -> np.ndarray:
    records = np.zeros(len(rows), record_dtype(0))
    for i, row in enumerate(rows):
        records[i] = row
    return records
