"""Recovery without a client: an unfinished store is taken up, completed from what is on disk, sealed. And the same as a dry run, which only looks.

Restartable at any point: nothing is deleted before what replaces it is on disk.
"""

from __future__ import annotations

import math
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import Grid
from shardwright.array.ome import IMAGE_PATH
from shardwright.array.parse import parse_spec
from shardwright.model.errors import LockedError, ShardFormatError
from shardwright.model.fates import Fate, Reason
from shardwright.shard.frame_log import BlockKind, FrameLog
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.group_files import JOURNAL_SUFFIX, WORKSPACE, Placement
from shardwright.shard.journal import GroupJournal, JournalLayout, was_never_begun
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.manifest import has_manifest
from shardwright.shard.read_back import read_back
from shardwright.shard.recover import Action, decide
from shardwright.storage.failpoints import reach
from shardwright.storage.files import read_range, storage_errors, sync_directory
from shardwright.storage.lock import StoreLock

from .accounts import Accounts
from .acquisition import Acquisition, AcquisitionState
from .encoding import SlabEncoder
from .evidence import Evidence, is_intact
from .finder import DAMAGED, facts_of, journals, reopened_groups
from .limits import Limits
from .new_store import abandoned, is_making_folder, remove_abandoned, withdraw
from .restored import GroupReport
from .resume import open_staging, read_known_manifest, restore
from .settings import WriteSettings
from .take_over import spill_workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.array.spec import ArraySpec
    from shardwright.model.receipt import Receipt
    from shardwright.shard.manifest import Manifest

    from .workers import WorkerPool

_POLL_S = 0.5


@dataclass
class Recovery:
    """What was found in one store and what was made of it. ``action``: sealed, would be sealed, or leftovers removed (or would be).

    ``frames_lost`` were, or may have been, acknowledged; ``frames_unacknowledged`` are gone as well, but nothing had been promised for them.
    ``receipt`` counts both as lost, but for those of the latter that came behind everything that is kept."""

    path: str
    action: str
    identity: str | None = None
    groups: list[GroupReport] = field(default_factory=list)
    frames_kept: int = 0
    frames_completed_from_staging: int = 0
    frames_lost: int = 0
    frames_unacknowledged: int = 0
    chunks_kept: int = 0
    chunks_dropped: int = 0
    bytes_checked: int = 0
    seconds: float = 0.0
    receipt: Receipt | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def add_groups(self, reports: list[GroupReport]) -> None:
        self.groups = reports
        self.chunks_kept = sum(report.chunks_kept for report in reports)
        self.chunks_dropped = sum(report.chunks_dropped for report in reports)


def unfinished_stores(root: Path) -> list[Path]:
    """Stores below ``root`` (or ``root`` itself) that an acquisition has left unfinished, and what creations that were killed have left; folders that
    are closed to this user, such as a disk's lost+found, are passed over. Raises ``StorageError``."""
    with storage_errors("look into", root):
        if (root / WORKSPACE).is_dir():
            return [root]
        stores = [folder for folder in root.iterdir() if folder.is_dir() and not is_making_folder(folder) and _has_workspace(folder)]
    return sorted(stores + abandoned(root))


def _has_workspace(folder: Path) -> bool:
    try:
        return (folder / WORKSPACE).is_dir()
    except PermissionError:
        return False
    except OSError:
        return True  # whoever looks into it will say what is wrong


def recover_store(
    path: Path,
    pool: WorkerPool,
    *,
    threads: int,
    dry_run: bool = False,
    take_over: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Recovery:
    """Seal everything that an unfinished store holds. ``progress`` hears of bytes as they are checked.

    Raises ``LockedError`` while another writer holds it, ``ShardFormatError`` for a damaged manifest or log, ``StorageError``.
    """
    started_s = time.monotonic()
    if is_leftover(path):
        recovery = Recovery(str(path), "leftovers would be removed") if dry_run else remove_leftovers(path)
    elif not take_over and is_unbegun(path):
        recovery = Recovery(str(path), "would be removed, no frame ever came" if dry_run else "removed, no frame ever came")
        if not dry_run:
            remove_unbegun(path)
    elif dry_run:
        recovery = _Examiner(path, threads, progress).run()
    else:
        recovery = _seal(path, pool, threads, take_over=take_over, progress=progress)
    recovery.seconds = time.monotonic() - started_s
    return recovery


def is_leftover(path: Path) -> bool:
    """Whether a workspace, or what a killed creation has left, is of no use: without a manifest it never took a frame, or is done with."""
    return is_making_folder(path) or not has_manifest(path / WORKSPACE)


def remove_leftovers(path: Path) -> Recovery:
    """Only for ``is_leftover``. A store that was never finished being made goes whole. Raises ``LockedError``, ``StorageError``."""
    if is_making_folder(path):
        remove_abandoned(path)
        return Recovery(str(path), "leftovers removed")
    lock = StoreLock.take(path / WORKSPACE / "lock")
    try:
        if not is_leftover(path):
            raise LockedError(f"{path} has just been begun by another writer")
        if _is_only_begun(path):
            withdraw(path)
        else:
            with storage_errors("remove", path):
                reach("leftovers.before_remove")
                shutil.rmtree(path / WORKSPACE)
            sync_directory(path)
    finally:
        lock.release()
    return Recovery(str(path), "leftovers removed")


def remove_unbegun(path: Path) -> None:
    """Free the name of a store that ``is_unbegun``. Raises ``LockedError``, ``StorageError``."""
    lock = StoreLock.take(path / WORKSPACE / "lock")
    try:
        if is_unbegun(path):
            withdraw(path)
    finally:
        lock.release()


def free_name(path: Path) -> None:
    """Remove what a creation that was killed has left under this name. Anything else stays as it is. Raises ``StorageError``."""
    if not (path / WORKSPACE).is_dir():
        return
    with suppress(LockedError, ShardFormatError):  # somebody is at it, or it is more than a beginning
        if not is_leftover(path):
            remove_unbegun(path)
        elif _is_only_begun(path):
            remove_leftovers(path)


def is_unbegun(path: Path) -> bool:
    """Whether the creation of a store was killed when the store had its name already, and no frame had come. Looks at tables, never at pixels. Only
    an intact store can say so: a power cut leaves tables empty whose frames were acknowledged.

    Raises ``ShardFormatError`` for what is damaged, ``StorageError``."""
    manifest = read_known_manifest(path)
    if not is_intact(path / WORKSPACE):
        return False
    spec = parse_spec(manifest.spec)
    dtype = record_dtype(len(spec.frame_fields))
    log = FrameLog.open(path / WORKSPACE / "frames.log", dtype, manifest.identity_bytes, read_only=True)
    log.close()
    found = [file for placement in _placements(path, manifest) for file in journals(placement)]
    tables = [(file, file.stat().st_size) for file in found]
    staging = open_staging(path / WORKSPACE, spec, manifest, dtype)
    if staging is not None:
        tables.append((staging.path, PAGE_BYTES + staging.slots * dtype.itemsize))
        staging.close()
    told = (manifest.writer_epoch, manifest.client_epoch, manifest.seen_stop) != (1, 1, 0) or log.rows or log.torn_bytes
    kept = any(file.is_file() for file in (path / IMAGE_PATH / "c").rglob("*")) or (path / DAMAGED).exists()
    later = [file for file in found if file.name != f"0{JOURNAL_SUFFIX}"]  # prepared when the first frame comes
    return not (told or kept or later) and not any(read_range(file, PAGE_BYTES, stop - PAGE_BYTES).strip(b"\0") for file, stop in tables)


def _placements(path: Path, manifest: Manifest) -> list[Placement]:
    spill = spill_workspace(path, manifest)
    return [Placement(path), *([Placement(path, spill.parent)] if spill is not None and spill.is_dir() else [])]


def _is_only_begun(path: Path) -> bool:
    """Whether a store holds nothing but what its creation wrote, in a release that made stores under their names: no shard, table or stranger."""
    with storage_errors("look into", path):
        files = {file.relative_to(path) for file in path.rglob("*") if not file.is_dir() or file.is_symlink()}
    begun = {Path(folder, name) for folder in ("", IMAGE_PATH) for name in ("zarr.json", ".zarr.json.new")}
    return all(file in begun or file.parts[0] == WORKSPACE for file in files)


def _seal(path: Path, pool: WorkerPool, threads: int, *, take_over: bool, progress: Callable[[int], None] | None) -> Recovery:
    settings = WriteSettings(on_full="fail")

    def limits_of(spec: ArraySpec) -> Limits:
        return Limits.derive(spec, threads=pool.threads)

    restored = restore(path, limits_of, settings, threads=threads, take_over=take_over, progress=progress)
    recovery = Recovery(str(path), "sealed", restored.folder.manifest.identity, bytes_checked=restored.checked_bytes)
    recovery.add_groups(restored.reports)
    recovery.frames_completed_from_staging = int(restored.staged.size)
    try:
        acquisition = Acquisition(path, restored.spec, restored.limits, pool, lambda: None, settings, restored=restored)
    except BaseException:
        restored.close()
        raise
    acquisition.settle_missing()
    acquisition.finish()
    while acquisition.state not in (AcquisitionState.SEALED, AcquisitionState.FAILED):
        acquisition.poll(_POLL_S)
    acquisition.close()
    if acquisition.error is not None:
        raise acquisition.error
    recovery.receipt = acquisition.receipt()
    settled = acquisition.accounts.frames_unacknowledged
    recovery.frames_kept, recovery.frames_lost = recovery.receipt.frames_stored, recovery.receipt.frames_lost - settled
    recovery.frames_unacknowledged = settled + restored.frames_forgotten
    return recovery


@dataclass(frozen=True)
class _WorkingFile:
    """A shard in progress, only looked at."""

    path: Path

    def read(self, offset: int, nbytes: int) -> bytes:
        return read_range(self.path, offset, nbytes)


class _Examiner:
    """Looks at everything that ``restore`` would look at, changes nothing."""

    def __init__(self, path: Path, threads: int, progress: Callable[[int], None] | None) -> None:
        self._path = path
        self._threads = threads
        self._progress = progress
        self._manifest = read_known_manifest(path)
        self._spec = parse_spec(self._manifest.spec)
        self._layout = SlabEncoder(self._spec, Grid.of(self._spec)).layout
        self._dtype = record_dtype(len(self._spec.frame_fields))
        self._whole: dict[int, set[int]] = {}
        self._closed: set[int] = set()
        grid, manifest = self._layout.grid, self._manifest
        self._accounts = Accounts(self._spec.frame_bytes, math.prod(grid.counts[1:]))
        self._evidence = Evidence.of(path / WORKSPACE, self._accounts, manifest)
        self.recovery = Recovery(str(path), "would be sealed", self._manifest.identity)

    def run(self) -> Recovery:
        recovery = self.recovery
        placements = _placements(self._path, self._manifest)
        self._read_log(placements)
        reports = [self._group(placement, file) for placement in placements for file in journals(placement) if not was_never_begun(file)]
        recovery.add_groups(reports)
        recovery.frames_kept += sum(report.frames_kept for report in reports)
        self._read_staging()
        recovery.frames_kept += recovery.frames_completed_from_staging
        self._judge_losses(placements)
        return recovery

    def _judge_losses(self, placements: list[Placement]) -> None:
        recovery, accounts = self.recovery, self._accounts
        set_aside = any(Action.SET_ASIDE.value in report.actions.values() for report in recovery.groups)
        forgotten = self._evidence.conclude(damaged=set_aside or any((placement.root / DAMAGED).exists() for placement in placements))
        missing = sum(last + 1 - first for first, last in accounts.seen.missing(accounts.seen.stop))
        acknowledged = accounts.missing_acknowledged()
        recovery.frames_lost += acknowledged
        recovery.frames_unacknowledged += missing - acknowledged + forgotten

    def _read_log(self, placements: list[Placement]) -> None:
        log = FrameLog.open(self._path / WORKSPACE / "frames.log", self._dtype, self._manifest.identity_bytes, read_only=True)
        try:
            self._evidence.take_log(log)
            reopened = reopened_groups(placements, self._layout, self._dtype.itemsize, self._manifest.identity_bytes)
            for kind, group, records in log.blocks():
                if group in reopened:
                    self._evidence.take_reopened(records)
                    continue
                self._receive(records)
                if kind is BlockKind.GROUP:
                    self.recovery.frames_kept += records.size
                else:
                    self._accounts.stored.add(records["sequence"].astype(np.int64))  # settled: what the staging area has of them is not taken
                    unacknowledged = int((records["reason"] == Reason.NOT_ACKNOWLEDGED).sum())
                    self.recovery.frames_lost += int((records["fate"] == Fate.LOST).sum()) - unacknowledged
                    self.recovery.frames_unacknowledged += unacknowledged
            self._closed = log.groups - reopened
        finally:
            log.close()

    def _receive(self, records: np.ndarray) -> None:
        self._accounts.receive(records["sequence"].astype(np.int64), records["position"].astype(np.int64))

    def _group(self, placement: Placement, file: Path) -> GroupReport:
        number = int(file.name.removesuffix(JOURNAL_SUFFIX))
        report = GroupReport(number)
        try:
            layout = JournalLayout.of(self._layout, number, self._dtype.itemsize)
            journal = GroupJournal.open(file, layout, self._manifest.identity_bytes, number)
        except ShardFormatError:
            report.actions = {self._layout.shard_key(number, f): Action.SET_ASIDE.value for f in range(self._layout.files_per_group)}
            return report
        try:
            if number not in self._closed:
                self._read_back(placement, number, journal, report)
        finally:
            journal.close()
        return report

    def _read_back(self, placement: Placement, number: int, journal: GroupJournal, report: GroupReport) -> None:
        shards: list[_WorkingFile | None] = []
        lost: set[int] = set()
        for f in range(self._layout.files_per_group):
            key = self._layout.shard_key(number, f)
            facts = facts_of(placement, key, journal, f)
            action = decide(facts)
            report.actions[key] = action.value
            shards.append(_WorkingFile(placement.working(key)) if action is Action.CONTINUE else None)
            if action is Action.LOST:
                lost.add(f)
        found = read_back(self._layout, number, journal, shards, lost=lost, threads=self._threads, progress=self._progress)
        report.take(found)
        for places in found.whole:
            self._receive(found.frames_of(places))
        self._evidence.take_torn(found)
        self._whole[number] = {places.slab for places in found.whole}
        self.recovery.bytes_checked += found.checked_bytes

    def _read_staging(self) -> None:
        staging = open_staging(self._path / WORKSPACE, self._spec, self._manifest, self._dtype)
        if staging is None:
            return
        grid = self._layout.grid
        try:
            records, valid = staging.read()
            slots = np.flatnonzero(valid)
            slots = slots[~self._accounts.stored.holds(records["sequence"][slots].astype(np.int64))]
            _, first = np.unique(records["sequence"][slots], return_index=True)  # a slab that was taken back leaves older copies behind
            for slot in slots[first].tolist():
                slab = grid.slab_of_position(int(records["position"][slot]))
                group = grid.group_of_slab(slab)
                if group not in self._closed and slab not in self._whole.get(group, set()):
                    self._receive(records[slot : slot + 1])
                    self.recovery.frames_completed_from_staging += 1
            self._evidence.take_staged(staging, records, valid)
        finally:
            staging.close()
