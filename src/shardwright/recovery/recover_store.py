"""Recovery without a client: an unfinished store is completed from its files, and sealed. A dry run ends
after the decisions."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.limits import Limits
from shardwright.array.acquisition_spec import ARRAY_NAME
from shardwright.disk.files import storage_errors
from shardwright.model.errors import ShardwrightError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.names import DAMAGED
from shardwright.model.write_settings import WriteSettings
from shardwright.shard.shard_row_files import damaged_folders
from shardwright.store.replaced_store import aside_of

from .admission import admit, check_second_root
from .leftovers import FolderAction, is_done_by_another, is_leftover, look_at, remove, row_for
from .resume import begin_restored, look, restore
from .take_over import marks_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool
    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.model.receipt import Receipt

    from .decide import ShardRowDecision
    from .resume import Found

_POLL_S = 0.5


@dataclass
class ShardRowReport:
    """A report on one shard row for the user. ``actions``: shard key -> action. ``frames_unfinished``:
    journaled, but their slab was not whole: never acknowledged, or staged as well."""

    shard_row: int
    actions: dict[str, str]
    frames_kept: int
    frames_unfinished: int
    chunks_kept: int
    chunks_dropped: int


@dataclass
class Recovery:
    """The result of recovering one store. ``action``: sealed, would be sealed, leftovers removed (or would
    be), or finished by another process meanwhile.

    ``frames_lost`` were, or may have been, acknowledged; ``frames_unacknowledged`` are lost as well, but were
    never acknowledged. ``receipt`` counts both as lost, except those of the latter whose sequences are behind
    all that are kept. ``set_aside``: the folders with damaged files, of which nobody knows which frames, or
    updates of metadata, they have."""

    path: str
    action: str
    identity: str | None = None
    shard_rows: list[ShardRowReport] = field(default_factory=list)
    frames_kept: int = 0
    frames_completed_from_staging: int = 0
    frames_lost: int = 0
    frames_unacknowledged: int = 0
    chunks_kept: int = 0
    chunks_dropped: int = 0
    bytes_checked: int = 0
    seconds: float = 0.0
    receipt: Receipt | None = None
    set_aside: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        receipt = None if self.receipt is None else self.receipt.to_dict()
        return {**asdict(self), "receipt": receipt}


def recover_store(
    path: Path,
    pool: WorkerPool,
    *,
    threads: int,
    dry_run: bool = False,
    take_over: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Recovery:
    """Seals all that an unfinished store holds. ``progress`` is called with numbers of bytes as they are
    checked. ``take_over``: also a store that another writer holds, whether a frame came or not.

    Raises ``LockedError`` while another writer holds it, ``ShardFormatError`` for a damaged manifest or log,
    ``StorageError``.
    """
    started_s = time.monotonic()
    try:
        with storage_errors("look into", path):
            row = None if take_over and not is_leftover(path) else row_for(look_at(path))
        if row is not None and row.action is not FolderAction.TAKE_UP:
            if not dry_run:
                remove(path, row)
            recovery = Recovery(str(path), row.would_be_done if dry_run else row.done)
        elif dry_run:
            with storage_errors("look into", path):
                recovery = _examine(path, pool, threads, progress)
        else:
            recovery = _seal(path, pool, threads, take_over=take_over, progress=progress)
    # Two recoveries, or a recovery and the end of the store's own writer, may be at work at once. Files that
    # vanish under the slower one are no error if the store is finished by then.
    except ShardwrightError:
        if not is_done_by_another(path):
            raise
        recovery = Recovery(str(path), "finished by another process")
    recovery.seconds = time.monotonic() - started_s
    return recovery


def _seal(
    path: Path, pool: WorkerPool, threads: int, *, take_over: bool, progress: Callable[[int], None] | None
) -> Recovery:
    # A full disk ends the recovery, which can be run again. With another policy the loop below could wait for
    # room for ever: nobody is there to be told.
    settings = WriteSettings(on_full="fail")

    def limits_of(spec: AcquisitionSpec) -> Limits:
        return Limits.derive(spec, threads=pool.threads)

    restored, found = restore(
        path, limits_of, settings, threads=threads, take_over=take_over, progress=progress
    )
    try:
        # Asked before the end, which may give the name back to the store that this one has replaced.
        stays = _stays_empty(found)
        recovery = _reported(found, "sealed")
    except BaseException:
        restored.close()
        raise
    acquisition = begin_restored(restored, pool, lambda: None, settings)
    # No client is there to send again what is missing, and what is missing holds up the watermarks.
    acquisition.settle_missing()
    acquisition.finish(keep_empty=False)
    while acquisition.state not in (AcquisitionState.SEALED, AcquisitionState.FAILED):
        acquisition.poll(_POLL_S)
    acquisition.close()
    if acquisition.error is not None:
        raise acquisition.error
    recovery.receipt = acquisition.receipt()
    if not recovery.receipt.frames_received and not stays:
        recovery.action = "removed, no frame was stored"
    settled = acquisition.accounts.frames_unacknowledged
    recovery.frames_kept, recovery.frames_lost = (
        recovery.receipt.frames_stored,
        recovery.receipt.frames_lost - settled,
    )
    recovery.frames_unacknowledged = settled + found.decisions.frames_forgotten
    return recovery


def _examine(path: Path, pool: WorkerPool, threads: int, progress: Callable[[int], None] | None) -> Recovery:
    """Reports what ``_seal`` would find and do. Changes nothing and does not take the lock."""
    store = admit(path)
    check_second_root(store)
    with closing(store.open_log(read_only=True)) as log:
        staging = store.open_staging(read_only=True)
        try:
            found = look(
                store,
                log,
                staging,
                Limits.derive(store.spec, threads=pool.threads),
                threads=threads,
                progress=progress,
                taking_over=bool(marks_in(store.workspace)),
            )
        finally:
            if staging is not None:
                staging.close()
    recovery = _reported(found, "would be sealed")
    accounts = found.decisions.standing.accounts
    missing = sum(last + 1 - first for first, last in accounts.seen.missing(accounts.whole_stop))
    acknowledged = accounts.missing_acknowledged()
    recovery.frames_kept = accounts.frames_stored
    recovery.frames_lost = (
        accounts.frames_by_status[FrameStatus.LOST] - accounts.frames_unacknowledged + acknowledged
    )
    recovery.frames_unacknowledged = (
        accounts.frames_unacknowledged + missing - acknowledged + found.decisions.frames_forgotten
    )
    if not accounts.frames_received + missing and not _stays_empty(found):
        recovery.action = "would be removed, no frame was stored"
    return recovery


def _stays_empty(found: Found) -> bool:
    """Returns whether the store stays though no frame of it is known: with damaged files, and in doubt unless
    the store whose name it has taken gets that back. Raises ``StorageError``."""
    in_doubt = found.decisions.standing.in_doubt and aside_of(found.store.path) is None
    return in_doubt or found.store.was_set_aside or _sets_aside(found)


def _damaged(found: Found) -> list[str]:
    """Returns the folders of damaged files, set aside by this recovery or one before it."""
    folders = list(map(str, damaged_folders(found.store.placements)))
    return folders or [str(found.store.path / DAMAGED)] * _sets_aside(found)


def _sets_aside(found: Found) -> bool:
    return any(shard_row.set_aside for shard_row in found.decisions.shard_rows)


def _reported(found: Found, action: str) -> Recovery:
    """Makes the report with all that is known before anything is sealed."""
    store, shard_rows = (
        found.store,
        [_shard_row_report(found, shard_row) for shard_row in found.decisions.shard_rows],
    )
    return Recovery(
        str(store.path),
        action,
        store.manifest.identity,
        shard_rows,
        frames_completed_from_staging=len(found.decisions.standing.staged_slots),
        chunks_kept=sum(report.chunks_kept for report in shard_rows),
        chunks_dropped=sum(report.chunks_dropped for report in shard_rows),
        bytes_checked=found.scanned.checked_bytes,
        set_aside=_damaged(found),
    )


def _shard_row_report(found: Found, shard_row: ShardRowDecision) -> ShardRowReport:
    layout = found.store.layout.of(shard_row.number)
    alone = f"{ARRAY_NAME}/" if found.store.spec.is_single else ""  # left out, as by earlier releases
    paths = layout.shard_paths(shard_row.number)
    actions = {
        path.removeprefix(alone): action.value for path, action in zip(paths, shard_row.actions, strict=True)
    }
    read_back = found.scanned.read_back.get(shard_row.number)
    kept, dropped = (0, 0) if read_back is None else (read_back.chunks_kept, read_back.chunks_dropped)
    frames, unfinished = (
        0 if shard_row.standing is None else shard_row.standing.frames,
        sum(slab.records.size for slab in shard_row.torn),
    )
    return ShardRowReport(shard_row.number, actions, frames, unfinished, kept, dropped)
