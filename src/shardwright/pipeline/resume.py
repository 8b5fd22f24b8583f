"""From an unfinished store on disk back to an acquisition that goes on: takes the lock, decides about every file by ``shard.recover``'s table, checks
what the journals claim, and hands over what ``Acquisition`` needs. Everything found good is synced, so that what is stored afterwards is durable.

Each step leaves the disk so that the next try finds the same or more: recovery may be killed and begun again at any point.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Grid
from shardwright.array.ome import IMAGE_PATH
from shardwright.array.parse import parse_spec
from shardwright.model.errors import ResumeError, ShardFormatError, StorageFullError
from shardwright.shard.frame_log import BlockKind, FrameLog
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.group_files import JOURNAL_SUFFIX, REWRITE_SUFFIX, WORKING_SUFFIX, WORKSPACE, GroupFiles, Placement
from shardwright.shard.index import EMPTY as ABSENT
from shardwright.shard.journal import VALID, GroupJournal, JournalLayout
from shardwright.shard.layout import page_aligned
from shardwright.shard.manifest import MANIFEST_NAME, read_manifest, write_manifest
from shardwright.shard.open_shard import OpenShard, make_link
from shardwright.shard.read_back import ReadBack, read_back
from shardwright.shard.recover import Action, FileFacts, JournalFact, decide
from shardwright.shard.staging import StagingArea
from shardwright.storage.ballast import Ballast
from shardwright.storage.failpoints import reach
from shardwright.storage.files import make_directories, storage_errors, sync_directory
from shardwright.storage.lock import StoreLock

from .accounts import Accounts
from .encoding import SlabEncoder
from .store_folder import StoreFolder
from .take_over import leave_old_inodes, spill_workspace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.shard.layout import ArrayLayout
    from shardwright.shard.manifest import Manifest

    from .limits import Limits
    from .settings import WriteSettings


DAMAGED = ".shardwright.damaged"  # beside the workspace


@dataclass(frozen=True)
class RestoredGroup:
    """``slabs``: of the group in all; ``whole_slabs``: stored. ``holes``: of these, the places that have a frame where some have none.
    ``sealing_begun``: some of its shards have their final names, so it takes no more."""

    files: GroupFiles
    slabs: int
    whole_slabs: list[int]
    holes: dict[int, np.ndarray]
    frames: int
    sealing_begun: bool


@dataclass
class GroupReport:
    """What recovery found of one group, for people."""

    group: int
    actions: dict[str, str] = field(default_factory=dict)  # shard key -> action
    frames_kept: int = 0
    frames_unfinished: int = 0  # journaled, but their slab was not whole: never acknowledged, or staged as well
    chunks_kept: int = 0
    chunks_dropped: int = 0

    def take(self, found: ReadBack) -> None:
        self.frames_kept = sum(found.frames_of(places).size for places in found.whole)
        self.frames_unfinished = sum(found.frames_of(places).size for places in found.torn)
        self.chunks_kept, self.chunks_dropped = found.chunks_kept, found.chunks_dropped


@dataclass
class Restored:
    folder: StoreFolder
    spec: ArraySpec
    limits: Limits
    accounts: Accounts
    groups: list[RestoredGroup] = field(default_factory=list)
    closed_groups: set[int] = field(default_factory=set)
    staged: np.ndarray = field(default_factory=lambda: np.zeros(0))
    staged_slots: list[int] = field(default_factory=list)
    staged_addresses: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    reports: list[GroupReport] = field(default_factory=list)
    checked_bytes: int = 0

    def close(self) -> None:
        """Let go of everything; the store stays as it is."""
        for group in self.groups:
            group.files.abandon()
        self.folder.close()


def restore(
    path: Path,
    limits_of: Callable[[ArraySpec], Limits],
    settings: WriteSettings,
    *,
    threads: int,
    take_over: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Restored:
    """Raises ``LockedError``, ``ResumeError`` when there is nothing to go on with, ``ShardFormatError`` for a damaged manifest, ``StorageError``."""
    workspace = path / WORKSPACE
    if not (workspace / MANIFEST_NAME).exists():
        raise ResumeError(
            f"{path} is not unfinished", expected=f"a store with {WORKSPACE}/{MANIFEST_NAME}", hint="A finished store cannot be appended to"
        )
    lock = StoreLock.replace(workspace / "lock") if take_over else StoreLock.take(workspace / "lock")
    try:
        manifest = read_manifest(workspace)
        spill = spill_workspace(path, manifest)
        _check_spill(path, spill)
        manifest = replace(manifest, writer_epoch=manifest.writer_epoch + 1)
        _write_manifest(workspace, manifest)  # from here on an older writer is fenced off
        if take_over:
            leave_old_inodes(path, manifest)
        restored = _open_folder(path, manifest, lock, limits_of, settings)
    except BaseException:
        lock.release()
        raise
    try:
        _Finder(restored, threads, progress).run()
    except BaseException:
        restored.close()
        raise
    return restored


def _check_spill(path: Path, spill: Path | None) -> None:
    """Without its second root a store would come back with holes, and its journals there be forgotten."""
    if spill is not None and not spill.is_dir():
        raise ResumeError(f"shards of {path} may lie in {spill}, which is not there", hint="Mount the second root, then try again")


def _write_manifest(workspace: Path, manifest: Manifest) -> None:
    """On a full disk in the ballast's room."""
    try:
        write_manifest(workspace, manifest)
    except StorageFullError:
        if not Ballast(workspace / "ballast", 0).release():
            raise
        write_manifest(workspace, manifest)


def _open_folder(path: Path, manifest: Manifest, lock: StoreLock, limits_of: Callable[[ArraySpec], Limits], settings: WriteSettings) -> Restored:
    spec = parse_spec(manifest.spec)
    limits = limits_of(spec)
    workspace, dtype = path / WORKSPACE, record_dtype(len(spec.frame_fields))
    log = FrameLog.open(workspace / "frames.log", dtype, manifest.identity_bytes)
    try:
        staging = open_staging(workspace, spec, manifest, dtype)
    except BaseException:
        log.close()
        raise
    ballast = Ballast(workspace / "ballast", settings.ballast_bytes)
    folder = StoreFolder(path, spec, manifest, lock, log, staging, ballast, extent=_visible_extent(path, spec))
    grid = Grid.of(spec)
    accounts = Accounts(limits.frame_bytes, int(np.prod(grid.counts[1:], dtype=np.int64)), received_extent=0 if grid.counts else 1)
    return Restored(folder, spec, limits, accounts)


def open_staging(workspace: Path, spec: ArraySpec, manifest: Manifest, dtype: np.dtype[np.void]) -> StagingArea | None:
    """The staging area of a store, None where there is none. Its number of slots follows from its length."""
    path = workspace / "staging"
    if not path.exists():
        return None
    room = path.stat().st_size - page_aligned(1)
    slots = room // (page_aligned(spec.frame_bytes) + dtype.itemsize)
    while slots > 1 and page_aligned(slots * dtype.itemsize) + slots * page_aligned(spec.frame_bytes) > room:
        slots -= 1
    return StagingArea.open(path, slots, spec.frame_bytes, dtype, manifest.identity_bytes)


def _visible_extent(path: Path, spec: ArraySpec) -> int:
    """How much of the first frame axis zarr.json covers already: it never shrinks."""
    with storage_errors("read", path / IMAGE_PATH):
        document = json.loads((path / IMAGE_PATH / "zarr.json").read_bytes())
    if len(spec.dimensions) == 2:
        return 0
    axis = [d.name for d in spec.stored_dimensions].index(spec.dimensions[0].name)
    return int(document["shape"][axis])


def journals(placement: Placement) -> list[Path]:
    """The journals in one workspace, by their group's number."""
    return sorted(placement.workspace.glob(f"[0-9]*{JOURNAL_SUFFIX}"), key=lambda path: int(path.name.removesuffix(JOURNAL_SUFFIX)))


def facts_of(placement: Placement, key: str, journal: GroupJournal | None, file: int) -> FileFacts:
    """What the disk shows of one file of a group; ``journal`` None: it is damaged. Raises ``StorageError``."""
    holds = False
    if journal is not None:
        entries, states = journal.read_chunks(file)
        holds = bool(((states == VALID) & (entries["offset"] != ABSENT)).any())
    fact = JournalFact.DAMAGED if journal is None else JournalFact.VALID
    return FileFacts(fact, working=placement.working(key).exists(), final=placement.final(key).exists(), holds=holds)


def _set_aside(placement: Placement, path: Path) -> None:
    """Out of the workspace, which goes when the store is finished."""
    folder = placement.root / DAMAGED
    make_directories(folder)
    with storage_errors("set aside", path):
        reach("recover.before_set_aside")
        path.replace(folder / path.name)


class _Finder:
    """Fills ``restored`` from the disk, group by group."""

    def __init__(self, restored: Restored, threads: int, progress: Callable[[int], None] | None) -> None:
        self._restored = restored
        self._folder = restored.folder
        self._threads = threads
        self._progress = progress
        self._layout: ArrayLayout = SlabEncoder(restored.spec, Grid.of(restored.spec)).layout
        self._record_bytes = record_dtype(len(restored.spec.frame_fields)).itemsize
        self._whole: dict[int, set[int]] = {}  # group -> whole slabs

    def run(self) -> None:
        self._read_log()
        for placement in self._folder.placements():
            if placement.workspace.is_dir():
                self._find_groups(placement)
        self._read_staging()
        self._folder.log.sync()
        self._count_shards()
        self._make_room()

    def _read_log(self) -> None:
        """Frames of sealed groups, and frames that were settled without being stored."""
        accounts = self._restored.accounts
        for kind, _, records in self._folder.log.blocks():
            sequences = records["sequence"].astype(np.int64)
            stored = kind is BlockKind.GROUP
            fresh = ~accounts.seen.holds(sequences) if stored else np.ones(sequences.size, np.bool_)
            again = int((~fresh).sum())  # stored, and told lost later: counted where it was found first
            accounts.receive(sequences[fresh], records["position"].astype(np.int64)[fresh])
            if stored:
                accounts.frames_stored += sequences.size - again
                accounts.frames_durable += sequences.size - again
            else:
                accounts.settle(records)
            accounts.stored.add(sequences)
            accounts.durable.add(sequences)
        self._restored.closed_groups |= self._folder.log.groups

    def _find_groups(self, placement: Placement) -> None:
        """Look at every file of one workspace: journals lead to their groups, what no journal names goes."""
        with storage_errors("look into", placement.workspace):
            names = sorted(entry.name for entry in placement.workspace.iterdir())
        for name in names:
            if name.endswith((REWRITE_SUFFIX, ".copy")):
                self._delete(placement.workspace / name)
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
            return
        if number in self._restored.closed_groups:
            journal.delete()  # sealed and logged: only the journal was left
            return
        shards = [self._take_up(placement, number, file, action) for file, action in enumerate(actions)]
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
            _set_aside(placement, path)
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

    def _take_up(self, placement: Placement, number: int, file: int, action: Action) -> OpenShard | None:
        """The shard to go on with; None where it has its final name or holds nothing. One that was lost begins anew."""
        if action not in (Action.CONTINUE, Action.LOST):
            return None
        key = self._layout.shard_key(number, file)
        return OpenShard(
            self._layout.shard(number, file),
            placement.working(key),
            placement.final(key),
            self._folder.io,
            link=placement.link(key),
            existing=action is Action.CONTINUE,
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
        files.journal.clear_slabs(places.slot_layer for places in found.torn)
        files.sync()
        accounts = self._restored.accounts
        kept = [found.frames_of(places) for places in whole]
        for records in kept:
            sequences = records["sequence"].astype(np.int64)
            accounts.receive(sequences, records["position"].astype(np.int64))
            accounts.store(sequences)
            accounts.make_durable(sequences, frames=False)
        report.take(found)
        for places in found.torn:  # not stored; but they came, and are to be sent again or recorded as lost
            accounts.expect(found.frames_of(places))
        accounts.frames_durable += report.frames_kept
        accounts.stored_bytes += sum(int(e["nbytes"][g & (e["offset"] != ABSENT)].sum()) for e, g in zip(found.entries, found.good, strict=True))
        slabs = files.journal.layout.slabs
        self._whole[files.group] = {places.slab for places in whole}
        filled = {places.slab: found.record_valid[places.slot_layer] for places in whole}
        grid = self._layout.grid
        holes = {slab: here for slab, here in filled.items() if here.sum() < grid.frames_in_slab(slab)}
        self._restored.groups.append(RestoredGroup(files, slabs, sorted(filled), holes, report.frames_kept, begun))

    def _read_staging(self) -> None:
        """Staged frames whose slab is not stored: the others are in their chunks."""
        staging = self._folder.staging
        if staging is None:
            return
        records, valid = staging.read()
        slots = [slot for slot in np.flatnonzero(valid).tolist() if self._is_open(int(records["position"][slot]))]
        slots.sort(key=lambda slot: int(records["sequence"][slot]))
        staging.sync()
        restored, accounts = self._restored, self._restored.accounts
        restored.staged = records[slots]
        restored.staged["pixels_crc"] = restored.staged["record_crc"] = 0
        restored.staged_slots = slots
        restored.staged_addresses = staging.map() + staging.slot_bytes * np.array(slots, np.int64)
        sequences = restored.staged["sequence"].astype(np.int64)
        accounts.receive(sequences, restored.staged["position"].astype(np.int64))
        accounts.store(sequences)
        accounts.make_durable(sequences, frames=False)
        accounts.frames_durable += sequences.size

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
                if path.is_file() and path.name.isdigit():
                    accounts.shards += 1
                    accounts.stored_bytes += path.stat().st_blocks * 512
