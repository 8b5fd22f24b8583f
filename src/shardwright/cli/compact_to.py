"""``shardwright compact STORE --to DEST``: packs one store into another place and reports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shardwright.model.errors import ConfigError

from .job_command import job_progress, run_with_progress

if TYPE_CHECKING:
    from shardwright.repack.runtime.executors import Executor
    from shardwright.repack.transfer.move_plan import MoveOptions, MoveReport

_NAMED_AT_MOST = 20  # in what is printed for people; --json has all


def check_options(
    stores: list[Path], to: str | None, *, move: bool, recompress: str | None, trim: bool, dry_run: bool
) -> None:
    """Raises ``ConfigError`` for options that do not go together."""
    if move and to is None:
        raise ConfigError("--move needs --to DEST", hint="It deletes the source once all of it is at DEST")
    if to is not None and len(stores) != 1:
        raise ConfigError("--to takes exactly one store: DEST is the new store", got=f"{len(stores)} stores")
    if to is not None and recompress is not None:
        raise ConfigError(
            "--recompress and --to do not go together",
            hint="Recompress the store in place first, then run it again with --to",
        )
    if to is not None and trim:
        raise ConfigError(
            "--trim and --to do not go together",
            hint="Trim the store in place first, then run it again with --to",
        )
    if to is not None and dry_run:
        raise ConfigError(
            "--dry-run and --to do not go together: --dry-run reports what packing would save and ignores "
            "DEST",
            hint="Leave out --to to see how large the shards will be. Before --to sends anything, it "
            "checks that DEST is new and has room",
        )


def send(
    store: Path, options: MoveOptions, executor: Executor, *, bytes_per_s: float | None, as_json: bool
) -> bool:
    """Send one store and print the report. Returns True if all of it has arrived (and, with ``--move``, is
    deleted here)."""
    from dataclasses import replace

    from shardwright.read.store import open_store
    from shardwright.repack.runtime.throttle import pause_files
    from shardwright.repack.transfer.move_plan import METADATA_NAME
    from shardwright.repack.transfer.move_store import bytes_to_move, move_store

    sizes = bytes_to_move(store, options)
    here = [] if "://" in options.destination else [Path(options.destination)]
    arrays = open_store(store).arrays if (store / METADATA_NAME).exists() else ()
    pause = pause_files(arrays[0].path, *here) if arrays else []
    throttle = replace(
        options.throttle, bytes_per_s=bytes_per_s, pause_files=tuple(pause), workers=executor.workers
    ).of_one_worker(len(sizes))
    with job_progress(f"compact: {store.name}", "sent", pause) as on_progress:
        execute = run_with_progress(executor, sizes, on_progress)
        report = move_store(store, replace(options, throttle=throttle), execute)
    typer.echo(json.dumps(report.to_dict()) if as_json else summary(report))
    return report.ok


def summary(report: MoveReport) -> str:
    """The report as text."""
    from shardwright.config.quantities import format_bytes

    if report.nothing_left:
        return (
            f"{report.store}: there is no file left to move, and its empty folders are deleted now; a "
            f"store is at {report.destination}"
        )
    counts = [f"{report.sent} files sent ({format_bytes(report.bytes_written)})"]
    counts += [f"{report.verified} were there and were verified"] if report.verified else []
    counts += [f"{report.finished} were finished before"] if report.finished else []
    state = "all verified" if report.complete else "INTERRUPTED" if report.interrupted else "INCOMPLETE"
    if report.complete and report.damaged:
        state = f"all there, {len(report.damaged)} shards DAMAGED"
    if report.deleting and not report.ok:
        state = "INTERRUPTED while the source is deleted" if report.interrupted else "PARTLY DELETED here"
    deleted = f"; {report.deleted} files deleted here" if report.deleted else ""
    lines = [f"{report.store} -> {report.destination}: {state}: {', '.join(counts)}{deleted}"]
    lines += [
        f"  left: {failure['key']}: {' '.join(failure['error']['message'].split())}"
        for failure in report.failures[:_NAMED_AT_MOST]
    ]
    lines += [
        f"  {hint}"
        for hint in dict.fromkeys(failure["error"].get("hint") for failure in report.failures)
        if hint
    ]
    lines += [
        f"  sent as it is: {shard['key']}: {' '.join(shard['error']['message'].split())}"
        for shard in report.unpacked[:_NAMED_AT_MOST]
    ]
    lines += [
        f"  damaged, sent as it is: {shard['key']}: {' '.join(shard['error']['message'].split())}"
        for shard in report.damaged[:_NAMED_AT_MOST]
    ]
    if report.complete and report.damaged:
        lines.append(
            "  nothing was deleted; the copy has the same damaged shards as the source. Replace each "
            "damaged shard here by a sound copy, from a backup, and run the same command again; without a "
            f"backup, {report.destination} can be used as it is"
        )
    nothing = "left as it is" if report.deleting else "nothing was deleted"
    lines += [
        f"  {nothing}: {key} is new or was changed after it was sent" for key in report.kept[:_NAMED_AT_MOST]
    ]
    if report.deleting and report.kept:
        lines.append(
            f"  an earlier run has deleted a part of {report.store}; the whole store is at "
            f"{report.destination}. Move these files away and run the same command again: it deletes the "
            "rest"
        )
    elif not report.complete:
        lines.append("  run the same command again to continue; what has arrived is not sent again")
    return "\n".join(lines)
