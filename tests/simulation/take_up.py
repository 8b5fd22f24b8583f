"""Recovery on the simulated disk: its own scan and its own executor around the real tables and the real
``recovery.decide``. Each call of the disk is a place where recovery may be killed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.acquire.recovered_state import RecoveredShardRow, RecoveredState
from shardwright.kernels.place import slabs_and_places
from shardwright.recovery.decide import decide
from shardwright.recovery.facts import ShardRowFacts, SlabFacts, StagedFacts, StoreFacts
from shardwright.recovery.table import Action, FileFacts, JournalFact, Stray, action_for
from shardwright.shard.frame_log import BlockKind
from shardwright.shard.frame_record import record_dtype

from .disk import ABSENT, FINAL, JOURNAL, REWRITE, WORKING, Log, Place, final
from .shard_row import HEADER, Files, Found, Journal, Shard, files_of_slab, read_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.acquire.limits import Limits
    from shardwright.recovery.decide import Decisions, ShardRowDecision

    from .disk import Disk, File, Manifest, Name
    from .story import Plan


def take_up(disk: Disk, plan: Plan, limits: Limits, *, take_over: bool) -> RecoveredState:
    """An unfinished store is taken up: by a new writer, which is fenced against older ones from then on."""
    assert disk.manifest is not None, "there is something to take up"
    manifest = replace(disk.manifest, writer_epoch=disk.manifest.writer_epoch + 1)
    disk.lock = manifest.writer_epoch
    disk.taking_over = take_over = take_over or disk.taking_over
    disk.call("take up")
    disk.manifest = manifest
    _clear_older(disk, manifest)
    if take_over:
        manifest = _take_files(disk, manifest)
        _clear_older(disk, manifest)
    elif not disk.boot:  # it is not marked as intact
        _write_again(disk, manifest)
    scan = _Scan(disk, plan)
    decisions = decide(scan.facts(), _blocks(disk.log), plan.layout, limits)
    return _Executor(disk, scan).run(decisions)


def _take_files(disk: Disk, manifest: Manifest) -> Manifest:
    """The old writer may still write through its descriptors, and act on the names that it knows: go on with
    copies in a folder of their own."""
    source, target = Place(manifest.files_epoch), Place(manifest.writer_epoch)
    disk.call("take up")
    staging = None if disk.staging is None else disk.staging.copy()
    for kind in (JOURNAL, WORKING):
        for name in sorted(name for name in disk.names if source.has(name) and name[0] == kind):
            disk.call("take up")
            if name in disk.names:
                disk.put((*name[:3], target.epoch), disk.names[name].copy())
    disk.sync_folder(target.folder)
    disk.sync_folder(FINAL)
    disk.call("take up")
    log = Log(list(disk.log.blocks), len(disk.log.blocks))
    disk.call("take up")
    disk.manifest, disk.staging, disk.log = replace(manifest, files_epoch=target.epoch), staging, log
    return disk.manifest


def _clear_older(disk: Disk, manifest: Manifest) -> None:
    """What earlier writers know of shard rows in progress, and were about to put in place."""
    ours = Place(manifest.files_epoch)
    for name in sorted(disk.names):
        if name[0] != FINAL and not ours.has(name):
            disk.call("take up")
            disk.delete(name)
    disk.call("take up")
    disk.cleared = manifest.writer_epoch


def _write_again(disk: Disk, manifest: Manifest) -> None:
    """What a sync that failed may have left in the page cache."""
    place = Place(manifest.files_epoch)
    files = [disk.names[name] for name in sorted(disk.names) if place.has(name)]
    for file in (*files, *([] if disk.staging is None else [disk.staging])):
        disk.call("take up")
        file.unsynced[:0] = file.doubtful
        file.doubtful.clear()


def _blocks(log: Log) -> Iterator[tuple[BlockKind, int, np.ndarray]]:
    for block in log.counted():
        kind = BlockKind.EVENTS if block.shard_row is None else BlockKind.SHARD_ROW
        yield kind, -1 if block.shard_row is None else block.shard_row, block.records


def opened_anew(disk: Disk, file: File) -> None:
    """Nobody who opens a file hears of a sync that failed before."""
    file.sync_failed, file.heard = False, disk.sync_failures


class _Scan:
    """As ``recovery.scan``: the names of ``strays``, and what was read back of each shard row."""

    def __init__(self, disk: Disk, plan: Plan) -> None:
        self._disk, self.layout, self._grids = disk, plan.layout, plan.spec.grids
        assert disk.manifest is not None, "it is ours"
        self._place = Place(disk.manifest.files_epoch)
        self.strays: list[Name] = []
        self.read_back: dict[int, Found] = {}

    def facts(self) -> StoreFacts:
        disk = self._disk
        assert disk.manifest is not None
        place = self._place
        names = sorted(name for name in disk.names if place.has(name))
        empty = [name for name in names if name[0] == JOURNAL and HEADER not in disk.names[name].data]
        begun = [name[1] for name in names if name[0] == JOURNAL and name not in empty]
        strays = [(Stray.REWRITE, name) for name in names if name[0].endswith(REWRITE)]
        strays += [(Stray.JOURNAL, name) for name in empty]
        strays += [(Stray.SHARD, name) for name in names if name[0] == WORKING and name[1] not in begun]
        self.strays = [name for _, name in strays]
        logged = frozenset(disk.log.shard_rows())
        shards = sum(name[0] == FINAL for name in disk.names)
        return StoreFacts(
            seen_stop=disk.manifest.seen_stop,
            seen_extents=disk.manifest.seen_extents,
            intact=disk.intact,
            taking_over=disk.taking_over,
            set_aside=disk.set_aside,
            log_shard_rows=logged,
            log_torn_bytes=0,
            shard_rows=tuple(self._shard_row(number, logged) for number in begun),
            strays=tuple(stray for stray, _ in strays),
            staged=None if disk.staging is None else self._staged(disk.staging),
            sealed_shards=shards,
            sealed_bytes=shards,
        )

    def _shard_row(self, number: int, logged: frozenset[int]) -> ShardRowFacts:
        disk, table = self._disk, self._disk.names[self._place.journal(number)]
        reopened = table.data[HEADER] is True
        fact = JournalFact.REOPENED if reopened else JournalFact.VALID
        if not isinstance(table.data[HEADER], bool):
            fact = JournalFact.DAMAGED  # a power cut tore it
        layout = self.layout.of(number)
        count = layout.files_of(number)
        files = tuple(
            FileFacts(
                fact,
                working=self._place.working(number, f) in disk.names,
                final=final(number, f) in disk.names,
                holds=_holds(table, f),
            )
            for f in range(count)
        )
        if fact is JournalFact.DAMAGED or (number in logged and not reopened):
            return ShardRowFacts(number, fact, files)
        actions = [action_for(file) for file in files]
        names = [self._place.working(number, f) for f in range(count)]
        shards = [
            Shard(disk.names[name], name) if action is Action.CONTINUE else None
            for name, action in zip(names, actions, strict=True)
        ]
        lost = frozenset(f for f, action in enumerate(actions) if action is Action.LOST)
        found = self.read_back[number] = read_back(
            disk, layout, Files(self._place, number, layout, shards, Journal(table, reopened)), lost
        )
        whole = [
            self._slab(slab, records, whole=True, stored=True, told=True)
            for slab, records in found.whole.items()
        ]
        torn = [
            self._slab(
                slab, records, whole=False, stored=slab in found.stored, told=slab in found.has_all_records
            )
            for slab, records in found.torn.items()
        ]
        present = tuple(int(file.final) for file in files)
        good = tuple(sum(f in files_of_slab(layout, slab.slab) for slab in whole) for f in range(count))
        return ShardRowFacts(number, fact, files, good, present, (*whole, *torn))

    def _slab(self, slab: int, records: np.ndarray, *, whole: bool, stored: bool, told: bool) -> SlabFacts:
        filled = np.zeros(self._grids.of(slab).frames_per_slab, np.bool_)
        filled[slabs_and_places(records["position"].astype(np.int64), *self._grids.tables)[1]] = True
        layer = self.layout.of(slab).layer_of_slab(slab)[1]
        return SlabFacts(slab, layer, records, filled, whole, stored, told)

    def _staged(self, staging: File) -> StagedFacts:
        slots, sound, spoiled, unreadable = [], [], [], False
        for key, value in sorted(
            ((key, value) for key, value in staging.data.items() if key[0] == "record"),
            key=lambda item: item[0][1],
        ):
            if not isinstance(value, tuple):
                unreadable = True
            elif self._pixels(staging, key[1], int(value[0]["position"])) != {value[1]}:
                spoiled.append(value[0])
            else:
                slots.append(key[1])
                sound.append(value[0])
        return StagedFacts(np.array(slots, np.int64), _records(sound), _records(spoiled), unreadable)

    def _pixels(self, staging: File, slot: int, position: int) -> set[int | None]:
        """The tokens of a frame, one if it is whole: in the staging area, or in the chunks of its slab."""
        if not self._grids.in_place:
            return {staging.data.get(("pixels", slot))}
        slab, place = self._grids.slab_of_position(position), self._grids.of(position).place_in_slab(position)
        row, layout = self._grids.shard_row_of_slab(slab), self.layout.of(position)
        names = [self._place.working(row, f) for f in files_of_slab(layout, slab)]
        files = [self._disk.names.get(name) for name in names]
        return {None if file is None else file.data.get(("part", slab, place)) for file in files}


def _holds(table: File, file: int) -> bool:
    return any(
        key != HEADER and key[0] == "chunk" and key[1] == file and isinstance(value, tuple)
        for key, value in table.data.items()
    )


def _records(rows: list[np.void]) -> np.ndarray:
    records = np.zeros(len(rows), record_dtype(0))
    for i, row in enumerate(rows):
        records[i] = row
    return records


class _Executor:
    """As ``recovery.execute``."""

    def __init__(self, disk: Disk, scan: _Scan) -> None:
        self._disk, self._scan = disk, scan
        assert disk.manifest is not None, "it is ours"
        self._place = Place(disk.manifest.files_epoch)

    def run(self, decisions: Decisions) -> RecoveredState:
        disk, accounts = self._disk, decisions.standing.accounts
        disk.call("take up")
        disk.sync_folder(self._place.folder)
        disk.log.synced = len(disk.log.blocks)
        if disk.staging is not None:
            self._sync(disk.staging)
        if decisions.remember_seen:
            disk.call("take up")
            assert disk.manifest is not None
            disk.manifest = replace(
                disk.manifest,
                seen_stop=accounts.seen.stop,
                seen_extents=tuple(accounts.extents.ravel().tolist()),
            )
        for name, action in zip(self._scan.strays, decisions.strays, strict=True):
            if action is Action.DELETE:
                self._delete(name)
        restored = RecoveredState(None, decisions.standing)  # type: ignore[arg-type]
        for shard_row in decisions.shard_rows:
            self._settle_files(shard_row)
            if shard_row.standing is None:
                self._delete(self._place.journal(shard_row.number))
            else:
                restored.shard_rows.append(RecoveredShardRow(self._take_up(shard_row), shard_row.standing))  # type: ignore[arg-type]
        disk.call("take up")
        disk.taking_over = False
        return restored

    def _delete(self, name: Name) -> None:
        self._disk.call("take up")
        self._disk.delete(name)

    def _sync(self, file: File) -> None:
        self._disk.call("take up")
        opened_anew(self._disk, file)
        file.sync()

    def _settle_files(self, shard_row: ShardRowDecision) -> None:
        for file, action in enumerate(shard_row.actions):
            if action is Action.SEALED:
                self._disk.sync_folder("final")
            if action in (Action.SEALED, Action.SET_ASIDE):  # the latter under another name, of no more use
                self._delete(self._place.working(shard_row.number, file))
        self._disk.set_aside = self._disk.set_aside or shard_row.set_aside

    def _take_up(self, shard_row: ShardRowDecision) -> Files:
        disk, found = self._disk, self._scan.read_back[shard_row.number]
        layout = self._scan.layout.of(shard_row.number)
        table = disk.names[self._place.journal(shard_row.number)]
        files = Files(
            self._place,
            shard_row.number,
            layout,
            [self._open(shard_row.number, f, action) for f, action in enumerate(shard_row.actions)],
            Journal(table, shard_row.reopened),
        )
        if Action.LOST in shard_row.actions:
            disk.sync_folder(self._place.folder)
        for slab in found.whole:
            for f in files_of_slab(layout, slab):
                shard = files.shards[f]
                if shard is not None and (chunk := table.data[("chunk", f, slab)]) != ABSENT:
                    shard.entries[slab] = chunk
        for slab in found.torn:
            disk.call("take up")
            table.clear(("frames", slab))
            for f in files_of_slab(layout, slab):
                table.clear(("chunk", f, slab))
        for file in (*(shard.file for shard in files.slots), table):
            self._sync(file)
        return files

    def _open(self, number: int, file: int, action: Action) -> Shard | None:
        if action not in (Action.CONTINUE, Action.LOST):
            return None
        name = self._place.working(number, file)
        return Shard(self._disk.names[name] if action is Action.CONTINUE else self._disk.make(name), name)
