"""Recovery without a client: an unfinished store is taken up, completed from what is on disk, sealed. And the same as a dry run, which only looks.

Restartable at any point: nothing is deleted before what replaces it is on disk.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.array.grid import Grid
from shardwright.array.parse import parse_spec
from shardwright.model.errors import ShardFormatError
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.group_files import JOURNAL_SUFFIX, WORKSPACE, Placement
from shardwright.shard.index import EMPTY as ABSENT
from shardwright.shard.journal import VALID, GroupJournal, JournalLayout
from shardwright.shard.manifest import MANIFEST_NAME, read_manifest
from shardwright.shard.read_back import read_back
from shardwright.shard.recover import Action, FileFacts, JournalFact, decide
from shardwright.storage.files import read_range, storage_errors, sync_directory
from shardwright.storage.lock import StoreLock

from .acquisition import Acquisition, AcquisitionState
from .encoding import SlabEncoder
from .limits import Limits
from .resume import GroupReport, open_staging, restore
from .settings import WriteSettings
from .take_over import spill_workspace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.model.receipt import Receipt

    from .workers import WorkerPool

_POLL_S = 0.5


@dataclass
class Recovery:
    """What was found in one store and what was made of it. ``action``: sealed, would be sealed, or leftovers removed (or would be)."""

    path: str
    action: str
    identity: str | None = None
    groups: list[GroupReport] = field(default_factory=list)
    frames_kept: int = 0
    frames_completed_from_staging: int = 0
    frames_lost: int = 0
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
    """Stores below ``root`` (or ``root`` itself) that an acquisition has left unfinished. Raises ``StorageError``."""
    with storage_errors("look into", root):
        if (root / WORKSPACE).is_dir():
            return [root]
        return sorted(folder for folder in root.iterdir() if folder.is_dir() and (folder / WORKSPACE).is_dir())


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
    if not (path / WORKSPACE / MANIFEST_NAME).exists():
        recovery = _remove_leftovers(path, dry_run=dry_run)
    elif dry_run:
        recovery = _examine(path, threads, progress)
    else:
        recovery = _seal(path, pool, threads, take_over=take_over, progress=progress)
    recovery.seconds = time.monotonic() - started_s
    return recovery


def _remove_leftovers(path: Path, *, dry_run: bool) -> Recovery:
    """A workspace without a manifest never took a frame, or is done with. A store that was never finished being made goes whole."""
    if dry_run:
        return Recovery(str(path), "leftovers would be removed")
    lock = StoreLock.take(path / WORKSPACE / "lock")
    try:
        begun = (path / "zarr.json").exists()
        with storage_errors("remove", path):
            shutil.rmtree(path / WORKSPACE if begun else path)
        sync_directory(path if begun else path.parent)
    finally:
        lock.release()
    return Recovery(str(path), "leftovers removed")


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
    recovery.frames_kept, recovery.frames_lost = recovery.receipt.frames_stored, recovery.receipt.frames_lost
    return recovery


@dataclass(frozen=True)
class _WorkingFile:
    """A shard in progress, only looked at."""

    path: Path

    def read(self, offset: int, nbytes: int) -> bytes:
        return read_range(self.path, offset, nbytes)


def _examine(path: Path, threads: int, progress: Callable[[int], None] | None) -> Recovery:
    """Look at everything that ``restore`` would look at, change nothing."""
    manifest = read_manifest(path / WORKSPACE)
    spec = parse_spec(manifest.spec)
    layout = SlabEncoder(spec, Grid.of(spec)).layout
    dtype = record_dtype(len(spec.frame_fields))
    recovery = Recovery(str(path), "would be sealed", manifest.identity)
    spill = spill_workspace(path, manifest)
    reports: list[GroupReport] = []
    for placement in [Placement(path), *([Placement(path, spill.parent)] if spill is not None and spill.is_dir() else [])]:
        for file in sorted(placement.workspace.glob(f"[0-9]*{JOURNAL_SUFFIX}")):
            number = int(file.name.removesuffix(JOURNAL_SUFFIX))
            report = GroupReport(number)
            reports.append(report)
            try:
                journal = GroupJournal.open(file, JournalLayout.of(layout, number, dtype.itemsize), manifest.identity_bytes, number)
            except ShardFormatError:
                report.actions = {layout.shard_key(number, f): Action.SET_ASIDE.value for f in range(layout.files_per_group)}
                continue
            try:
                shards: list[_WorkingFile | None] = []
                lost: set[int] = set()
                for f in range(layout.files_per_group):
                    key = layout.shard_key(number, f)
                    working, final = placement.working(key), placement.final(key)
                    entries, states = journal.read_chunks(f)
                    holds = bool(((states == VALID) & (entries["offset"] != ABSENT)).any())
                    action = decide(FileFacts(JournalFact.VALID, working=working.exists(), final=final.exists(), holds=holds))
                    report.actions[key] = action.value
                    shards.append(_WorkingFile(working) if action is Action.CONTINUE else None)
                    if action is Action.LOST:
                        lost.add(f)
                found = read_back(layout, number, journal, shards, lost=lost, threads=threads, progress=progress)
            finally:
                journal.close()
            report.frames_kept = sum(found.frames_of(places).size for places in found.whole)
            report.frames_unfinished = sum(found.frames_of(places).size for places in found.torn)
            report.chunks_kept, report.chunks_dropped = found.chunks_kept, found.chunks_dropped
            recovery.bytes_checked += found.checked_bytes
    recovery.add_groups(reports)
    recovery.frames_kept = sum(report.frames_kept for report in reports)
    staging = open_staging(path / WORKSPACE, spec, manifest, dtype)
    if staging is not None:
        recovery.frames_completed_from_staging = int(staging.read()[1].sum())
        staging.close()
    return recovery
