"""``shardwright recover``: recovers unfinished stores without a daemon, one after another, and reports
each."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING, Any

import typer

from shardwright.disk import beneath
from shardwright.model.display_text import format_bytes
from shardwright.model.errors import ShardFormatError, ShardwrightError, error_from_dict

from .existing_path import existing_path
from .progress import show_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardwright.recovery.recover_store import Recovery
    from shardwright.rework.edit.edit_recovery import RecoveredEdit

    Outcome = tuple[Path, Recovery | ShardwrightError]


def command(
    path: Path = typer.Argument(
        ...,
        help="An output root, for all unfinished stores in it, or one store.",
        metavar="ROOT_OR_STORE",
        callback=existing_path,
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only report what would be done; change nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print what was done as JSON."),
    take_over: bool = typer.Option(
        False,
        "--take-over",
        help="Also take over stores whose writer still holds the lock; that writer is shut out. For a daemon "
        "that hangs, not for one that works.",
    ),
) -> None:
    """Recover unfinished stores: every chunk whose checksum fits is kept, every shard is sealed. `serve` does
    the same at its start. Updates of finished stores that were interrupted are completed, too.

    May be stopped and run again at any point. Exits with 0 when everything is recovered or nothing was
    unfinished, with 1 when a store or an update could not be recovered, frames were lost that were, or may
    have been, acknowledged, damaged files were set aside, or an `upgrade-ome` was interrupted, which that
    command ends; and with 2 for wrong usage.
    """
    from shardwright.acquire.limits import default_threads
    from shardwright.acquire.workers import WorkerPool
    from shardwright.foreign.older_nodes import is_older_node, locate
    from shardwright.recovery.leftovers import unfinished_stores
    from shardwright.rework.edit.edit_recovery import recover_edits
    from shardwright.rework.jobs.ome_upgrade import interrupted_upgrades

    stores, outcomes = unfinished_stores(beneath.user_path(path)), []
    if not stores and is_older_node(locate(beneath.user_path(path))):
        raise ShardFormatError(
            f"{path} is of an older spelling than Zarr v3, which is read but not changed",
            hint="Make a store of today of it first: `shardwright rechunk SOURCE DEST`",
        )
    pool = WorkerPool(default_threads())
    if stores and not dry_run:
        pool.start()
    try:
        for store in stores:
            with show_progress(f"recover: {store.name}", "checked") as on_bytes:
                outcome = _recover(store, pool, dry_run=dry_run, take_over=take_over, progress=on_bytes)
            outcomes.append((store, outcome))
            if not as_json:
                typer.echo(summary(store, outcome))
    finally:
        pool.stop()
    edits = recover_edits(path, dry_run=dry_run)
    upgrades = interrupted_upgrades(path)
    ok = not any(map(_bad, outcomes)) and not any(edit.error for edit in edits) and not upgrades
    if as_json:
        facts = {
            "ok": ok,
            "dry_run": dry_run,
            "stores": [_facts(*outcome) for outcome in outcomes],
            "edits": [edit.to_dict() for edit in edits],
            "upgrades": [str(store) for store in upgrades],
        }
        typer.echo(json.dumps(facts))
    else:
        for line in _further(edits, upgrades):
            typer.echo(line)
        if not (stores or edits or upgrades):
            typer.echo(f"{path}: no store is unfinished")
    if not ok:
        raise typer.Exit(1)


def _further(edits: Iterable[RecoveredEdit], upgrades: Iterable[Path]) -> Iterator[str]:
    """The report on updates and upgrades as text."""
    for edit in edits:
        why = f": {error_from_dict(edit.error)}" if edit.error else ""
        yield f"{edit.path}: update {edit.action}{why}"
    for store in upgrades:
        yield (
            f"{store}: an upgrade to another version of OME-Zarr was interrupted; end it with `shardwright "
            f"upgrade-ome {store}`"
        )


def _recover(
    store: Path, pool: Any, *, dry_run: bool, take_over: bool, progress: Callable[[int], None]
) -> Recovery | ShardwrightError:
    """Recover one store. Returns any error instead of raising it, so that the other stores are recovered."""
    from shardwright.recovery.recover_store import recover_store

    try:
        return recover_store(
            store, pool, threads=pool.threads, dry_run=dry_run, take_over=take_over, progress=progress
        )
    except ShardwrightError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a foreign file may break anything; it is named
        return ShardFormatError(
            "this store cannot be read", got=repr(error)[:200], hint="It is left as it is; please report this"
        )


def _bad(outcome: Outcome) -> bool:
    _, result = outcome
    return isinstance(result, ShardwrightError) or not _is_whole(result)


def _is_whole(result: Recovery) -> bool:
    return not result.frames_lost and not result.set_aside


def _facts(store: Path, result: Recovery | ShardwrightError) -> dict[str, Any]:
    if isinstance(result, ShardwrightError):
        return {"path": str(store), "ok": False, "error": result.to_dict()}
    return {"ok": _is_whole(result), **result.to_dict()}


def summary(store: Path, result: Recovery | ShardwrightError) -> str:
    """The report on one store as text."""
    if isinstance(result, ShardwrightError):
        return f"{store}: not recovered: {' '.join(str(result).split())}"
    lines = [f"{store}: {result.action}, {result.seconds:.1f} s"]
    if result.identity is not None:
        lost = (
            f"{result.frames_lost:,} LOST: `shardwright inspect --missing` names them"
            if result.frames_lost
            else "none lost"
        )
        if result.frames_unacknowledged:
            lost += (
                f"; {result.frames_unacknowledged:,} more were in flight when the writer died or failed, "
                "never acknowledged"
            )
        lines += [
            (
                f"  frames: {result.frames_kept:,} kept, {result.frames_completed_from_staging:,} of them "
                f"from the staging area, {lost}"
            ),
            (
                f"  chunks: {result.chunks_kept:,} kept, {result.chunks_dropped:,} unfinished or damaged; "
                f"{format_bytes(result.bytes_checked)} checked"
            ),
        ]
    if result.set_aside:
        are = "would be" if result.action.startswith("would") else "are"
        lines.append(
            f"  damaged files {are} kept in {' and '.join(result.set_aside)}: frames in them that no later "
            "one shows to be missing are not counted"
        )
    return "\n".join(lines)
