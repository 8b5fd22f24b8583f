"""``shardwright compact``: repacks the sealed shards of stores, one store after another, and reports the
bytes saved and the faults found."""

from __future__ import annotations

import json
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.disk import beneath
from shardwright.model.errors import (
    ConfigError,
    InterruptedJobError,
    LockedError,
    ShardwrightError,
)
from shardwright.model.local_path import is_address
from shardwright.model.names import ARCHIVE_SUFFIX, DOCUMENT, is_archive_name

from .array_options import parse_sizes
from .job_command import (
    AsJson,
    NoIdle,
    Rate,
    Scheduler,
    Workers,
    interrupt_on_signals,
    job_executor,
    job_note,
    job_progress,
    parse_rate,
)
from .progress import show_steps, told_at_this_priority

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardwright.config.model import Config
    from shardwright.rework.jobs.compact_store import JobPlan, Options, Report
    from shardwright.rework.runtime.executors import Executor
    from shardwright.rework.transfer.move_plan import MoveOptions, MoveReport

    Outcome = tuple[Path, JobPlan | Report | ShardwrightError]

_NAMED_AT_MOST = 20  # of each sort, in what is printed for people; --json has all

Stores = Annotated[
    list[Path] | None,
    typer.Argument(help="Stores, arrays in them, or single shard files.", metavar="STORE"),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="In place of STORE: every finished store below output.root of a daemon's YAML file, with its "
        "compaction's order, recompress, shards, parity, rate and workers, unless they are given here; then "
        "its scrub.",
    ),
]
ChunkOrder = Annotated[
    str | None,
    typer.Option(
        "--order",
        metavar="ORDER",
        help="Order of the chunks in a shard: row_major (unless given), column_major or morton.",
    ),
]
Recompress = Annotated[
    str | None,
    typer.Option(
        "--recompress",
        metavar="CNAME[:LEVEL]",
        help="Encode chunks again where that makes them smaller, e.g. zstd:5. The array's codec stays. "
        "codec: encode with the array's own codec what was written faster or uncompressed under overload.",
    ),
]
MergedShards = Annotated[
    str | None,
    typer.Option(
        "--shards",
        metavar="SIZES",
        help="First merge shards that are shorter into ones of so many elements, t=32, chunks copied without "
        "decoding. Programs that have the store open must open it again, and it cannot go on.",
    ),
]
Trim = Annotated[
    bool,
    typer.Option(
        "--trim",
        help="Drop chunks and shards outside the array's shape, left by another program that cropped the "
        "array; with --shards in the same pass.",
    ),
]
Parity = Annotated[
    str | None,
    typer.Option(
        "--parity",
        metavar="PERCENT",
        help="Then make PAR2 files of each shard row, from which `shardwright repair` restores up to so much "
        "of it, such as 10% (extra parity).",
    ),
]
Container = Annotated[
    str | None,
    typer.Option(
        "--container",
        metavar="hdf5",
        help="Make each shard an HDF5 file at the same time, which Zarr readers still read, and "
        "acquisition.h5, one dataset over all of them (extra hdf5). Its shards are not changed afterwards.",
    ),
]
Describe = Annotated[
    bool,
    typer.Option(
        "--describe",
        help="Add a description to each shard, by which `inspect --standalone` decodes a lone file.",
    ),
]
_FIRST = "the store in place first, then run it again with --to"
_NEW_STORE = "`shardwright rechunk STORE DEST --shards ...` writes a new store"
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="DEST",
        help="Leave the store as it is and write a packed one to DEST: a new folder, one file NAME.ozx, or "
        "s3://BUCKET/PREFIX.",
    ),
]
Move = Annotated[
    bool,
    typer.Option("--move", help="With --to: delete the store here once all of it is at DEST and verified."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report what would be saved; change nothing.")]


def command(
    stores: Stores = None,
    config: ConfigFile = None,
    order: ChunkOrder = None,
    recompress: Recompress = None,
    shards: MergedShards = None,
    trim: Trim = False,
    parity: Parity = None,
    container: Container = None,
    describe: Describe = False,
    rate: Rate = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    to: To = None,
    move: Move = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    no_idle: NoIdle = False,
) -> None:
    """Pack the chunks of sealed shards without gaps. Each new shard is read back and compared before it takes
    the old one's place at once.

    May be stopped and run again at any point: finished shards are not done again. Shards that are still being
    written are skipped and named, which is no failure. Exits with 0 when all sealed shards are packed, with 1
    when a store or a shard could not be packed (each is named) or after an interrupt, and with 2 for wrong
    usage.

    With --config a store on which another job works is skipped, which is no failure either. Where its
    compaction.scrub is report or repair, each store that was not read for 30 days is then verified or
    repaired, as the daemon's own compaction does; exits with 1 when one is not sound.

    With --to the whole store goes to DEST, where it must not exist: shards packed on their way, everything
    else as it is, metadata last. A DEST that ends with .ozx is one zip file (RFC-9 of OME-Zarr), which gets
    its name once all of it is verified. Shards with bytes of unknown meaning are sent whole and named, which
    is no failure. S3 needs AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for a server of your own,
    AWS_ENDPOINT_URL in the environment.
    """
    # Here and in each function, not above: what a job is made of takes longer to import than the shell's
    # completion or a wrong option should take to be answered.
    from shardwright.codecs.recompress import parse_recompress
    from shardwright.rework.jobs.compact_store import Options
    from shardwright.rework.jobs.scrub import sealed_stores
    from shardwright.rework.runtime.throttle import Throttle
    from shardwright.rework.transfer.move_plan import MoveOptions

    sizes = {} if shards is None else parse_sizes("--shards", shards)
    stores, bytes_per_s = [beneath.user_path(store) for store in stores or []], parse_rate(rate)
    scrubs = None
    if config is not None:
        loaded = _configured(config, stores, to)
        wanted, stores = loaded.compaction, sealed_stores(loaded.output.root)
        order, recompress = order or wanted.order, recompress or wanted.recompress
        sizes = sizes or wanted.shards
        workers = workers or wanted.workers
        bytes_per_s = wanted.rate if bytes_per_s is None else bytes_per_s
        parity = parity or (None if wanted.parity is None else str(wanted.parity))
        scrubs = None if wanted.scrub == "none" else (loaded.output.root, wanted.scrub == "repair")
    elif not stores:
        raise ConfigError("no store to compact is given", expected="STORE... or --config FILE")
    order = _checked_order(order or "row_major")
    wish = None if recompress is None else parse_recompress(recompress)
    options = Options(
        order, wish, bytes_per_s, not no_idle, trim, _parity_percent(parity), sizes, container, describe
    )
    _check_options(stores, to, options, move=move, dry_run=dry_run)
    if to is not None and is_archive_name(to):
        workers = _one_worker(workers, scheduler)
    interrupt_on_signals()
    throttle = Throttle(idle=options.idle)
    with told_at_this_priority():
        # Before the first look: it reads every shard's index from a disk that a camera may be writing to, and
        # threads of the executor have the priority of the one that starts them.
        throttle.be_idle()
        if to is not None:
            way = MoveOptions(to, move, order, throttle)
            # First: a shard in the middle of an update is refused.
            complete_edits(stores)
            with job_executor("compact --to", "what has arrived is kept", workers, scheduler) as executor:
                if not send(stores[0], way, executor, bytes_per_s=bytes_per_s, as_json=as_json):
                    raise typer.Exit(1)
        else:
            left = config is not None
            how = {"dry_run": dry_run, "as_json": as_json}
            _repack(stores, options, workers, scheduler, scrubs, leave_locked=left, **how)


def _parity_percent(text: str | None) -> int:
    """The percent of --parity, 0 without it. Raises ``ConfigError``."""
    if text is None:
        return 0
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdecimal() and 1 <= int(number[:9]) <= 100):
        raise ConfigError("--parity: no percentage", expected="1% to 100%", got=text)
    import_module("par2")  # before a night's work: the extra may be missing
    return int(number)


def complete_edits(stores: Sequence[Path]) -> None:
    """Completes updates of stores that were interrupted. One that cannot be is left: its shard is refused. A
    store that cannot be looked into is told of, and the others follow."""
    from shardwright.rework.edit.edit_recovery import recover_edits

    for store in stores:
        try:
            for edit in recover_edits(store) if beneath.exists(store) else ():
                typer.echo(f"{edit.path}: interrupted update {edit.action}", err=True)
        except ShardwrightError as error:
            typer.echo(f"{store}: interrupted updates stay: {' '.join(str(error).split())}", err=True)


def _configured(file: Path, stores: Sequence[Path], to: str | None) -> Config:
    """The daemon's configuration in ``file``. Raises ``ConfigError``, also for what cannot go with
    ``--config``."""
    from shardwright.config.load import load_config

    if stores or to is not None:
        raise ConfigError(
            "--config already names the stores",
            expected="no STORE and no --to beside it",
            got=to if to is not None else str(stores[0]),
        )
    return load_config(file).config


def _checked_order(order: str) -> str:
    from shardwright.shard.chunk_order import ORDERS

    if order not in ORDERS:
        raise ConfigError("unknown --order", expected=" or ".join(ORDERS), got=order)
    return order


def _repack(
    stores: Sequence[Path],
    options: Options,
    workers: int | None,
    scheduler: str | None,
    scrubs: tuple[Path, bool] | None,
    *,
    leave_locked: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compact the stores where they are, and print the reports; exit code 1 when something is wrong.
    ``leave_locked``: a store that another job is at work on, such as the daemon's own, is left to that
    job. ``scrubs``: the root of stores to scrub then, and whether to repair them."""
    if not dry_run:
        complete_edits(stores)
    try:
        plans = {store: _planned(store, options) for store in stores}
    except KeyboardInterrupt:
        raise InterruptedJobError("interrupted while the shards were examined; nothing was changed") from None
    outcomes: list[Outcome] = (
        list(plans.items()) if dry_run else _run_all(plans, workers, scheduler, quiet=as_json)
    )
    ok = not any(
        _bad(outcome) and not (leave_locked and isinstance(outcome[1], LockedError)) for outcome in outcomes
    )
    scrubbed: list[dict[str, Any]] | None = None
    if scrubs is not None and not (dry_run or any(getattr(one, "interrupted", False) for _, one in outcomes)):
        scrubbed = _scrub(*scrubs, options, quiet=as_json)
        ok = ok and all(each["ok"] for each in scrubbed)
    _print_outcomes(outcomes, scrubbed, ok=ok, dry_run=dry_run, as_json=as_json)
    if not ok:
        raise typer.Exit(1)


def _scrub(root: Path, repairs: bool, options: Options, *, quiet: bool) -> list[dict[str, Any]]:
    """Scrub the stores that are due. Returns the reports, and prints them unless ``quiet``. A store that
    another job is at work on is left to the next run. An interrupt is the last report."""
    from shardwright.rework.jobs.repair_store import repair_store
    from shardwright.rework.jobs.scrub import due_stores, note_scrub
    from shardwright.rework.runtime.throttle import Throttle

    from .repair import summary as scrub_summary

    throttle = Throttle(options.bytes_per_s, idle=options.idle)

    def scrub(store: Path) -> tuple[dict[str, Any], str]:
        with job_progress(f"scrub: {store.name}", "verified", idle=options.idle) as on_progress:
            report = repair_store(store, throttle, dry_run=not repairs, on_progress=on_progress)
        try:
            note_scrub(store)
        except ShardwrightError as error:  # the report is worth more, and the next run reads it again
            typer.echo(f"{store}: its scrub is not noted: {' '.join(str(error).split())}", err=True)
        return report.to_dict(), scrub_summary(report)

    reports: list[dict[str, Any]] = []
    for store in due_stores(root):
        try:
            facts, text = scrub(store)
        except LockedError:
            continue
        except KeyboardInterrupt:
            facts = {"path": str(store), "ok": False, "interrupted": True}
            text = f"{store}: INTERRUPTED while it was verified: the next run begins with it"
        except ShardwrightError as error:
            facts, text = _facts(store, error), f"{store}: not scrubbed: {' '.join(str(error).split())}"
        reports.append(facts)
        if not quiet:
            typer.echo(text)
        if facts.get("interrupted"):
            break
    return reports


def _print_outcomes(
    outcomes: list[Outcome],
    scrubbed: list[dict[str, Any]] | None,
    *,
    ok: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Print all outcomes as JSON, or those of a dry run as text. The text of a real run was printed store by
    store."""
    if as_json:
        facts = {"ok": ok, "dry_run": dry_run, "stores": [_facts(*outcome) for outcome in outcomes]}
        facts |= {} if scrubbed is None else {"scrubbed": scrubbed}
        typer.echo(
            json.dumps({**facts, **({"total": _total([plan for _, plan in outcomes])} if dry_run else {})})
        )
    elif dry_run:
        for outcome in outcomes:
            typer.echo(summary(*outcome))
        if len(outcomes) > 1:
            typer.echo(f"in total: {_would_do(_total([plan for _, plan in outcomes]))}")
    if not outcomes and not as_json:
        typer.echo("there is no finished store yet")


def _planned(store: Path, options: Options) -> JobPlan | ShardwrightError:
    """The plan of a store, or the error why it has none: the other stores are compacted all the same. Raises
    ``ConfigError``."""
    from shardwright.read.store import open_store
    from shardwright.rework.jobs.compact_store import plan
    from shardwright.rework.runtime.throttle import rig_pause_files

    note = job_note(rig_pause_files(store), idle=options.idle)
    try:
        with show_steps(f"compact: {store.name}", "examining shards", note) as on_look:
            return plan(open_store(store), options, on_look)
    except ConfigError:
        raise
    except ShardwrightError as error:
        return error


def _run_all(
    plans: Mapping[Path, JobPlan | ShardwrightError],
    workers: int | None,
    scheduler: str | None,
    *,
    quiet: bool,
) -> list[Outcome]:
    """Run the plans one after another. The list ends with the store that was interrupted. Nothing is run when
    one store has no room."""
    from shardwright.rework.jobs.compact_store import Report, check_room
    from shardwright.rework.runtime.executors import open_executor

    outcomes: list[Outcome] = []
    with closing(open_executor(workers=workers, scheduler=scheduler)) as executor:
        # Of all stores before any is touched: a user who starts this in the evening must hear of a full disk
        # at once and not in the morning.
        check_room(
            [plan for plan in plans.values() if not isinstance(plan, ShardwrightError)], executor.workers
        )
        for store, plan in plans.items():
            outcome: Report | ShardwrightError = (
                plan if isinstance(plan, ShardwrightError) else _run(plan, executor)
            )
            outcomes.append((store, outcome))
            if not quiet:
                typer.echo(summary(store, outcome))
            # A failure of one store is its own; an interrupt means all of them.
            if isinstance(outcome, Report) and outcome.interrupted:
                break
    return outcomes


def _run(plan: JobPlan, executor: Executor) -> Report | ShardwrightError:
    from shardwright.rework.jobs.compact_store import run

    label = f"compact: {plan.store.root.name}"
    try:
        with job_progress(label, "packed", plan.pause_files, idle=plan.options.idle) as on_progress:
            report = run(plan, executor, on_progress)
        if plan.options.parity and not (report.interrupted or report.open):
            _make_parity(plan, executor.workers, report)
    except ShardwrightError as error:
        return error
    return report


def _make_parity(plan: JobPlan, threads: int, report: Report) -> None:
    """Adds to the report. Raises as ``make_parity``."""
    from shardwright.read.store import open_store
    from shardwright.rework.jobs.shard_parity import make_parity

    options, label = plan.options, f"parity: {plan.store.root.name}"
    throttle = plan.throttle(1)
    try:
        with job_progress(label, "covered", plan.pause_files, idle=options.idle) as on_progress:
            made = make_parity(open_store(plan.store.root), options.parity, throttle, threads, on_progress)
    except KeyboardInterrupt:
        report.interrupted = True
        return
    report.parity_rows = made[0]
    report.failures.update({name: error.to_dict() for name, error in made[1].items()})


def _bad(outcome: Outcome) -> bool:
    _, result = outcome
    return (
        isinstance(result, ShardwrightError) or bool(result.failures) or getattr(result, "interrupted", False)
    )


def _facts(store: Path, result: JobPlan | Report | ShardwrightError) -> dict[str, Any]:
    if isinstance(result, ShardwrightError):
        return {"path": str(store), "ok": False, "error": result.to_dict()}
    return result.to_dict()


def summary(store: Path, result: JobPlan | Report | ShardwrightError) -> str:
    """The report or the plan of one store as text."""
    from shardwright.rework.jobs.compact_store import JobPlan

    if isinstance(result, ShardwrightError):
        return f"{store}: not compacted: {' '.join(str(result).split())}"
    facts = result.to_dict()
    lines = [f"{store}: {_would_do(facts) if isinstance(result, JobPlan) else _done(facts)}"]
    lines += _some(
        [
            f"  left as it is: {name}: {' '.join(error['message'].split())}"
            for name, error in facts["failures"].items()
        ]
    )
    lines += _some([f"  not merged: {name}: {why}" for name, why in facts.get("unmerged", {}).items()])
    lines += _some([f"  skipped, still being written: {name}" for name in facts["open"]])
    lines += _some([f"  skipped, spilled to another root: {name}" for name in facts["spilled"]])
    lines += _some([f"  no shard: {name}: {reason}" for name, reason in facts["unknown"].items()])
    return "\n".join(lines)


def _would_do(facts: Mapping[str, Any]) -> str:
    from shardwright.model.display_text import format_bytes

    return (
        f"{facts['shards_todo']} of {facts['shards']} shards to do, {facts['shards_packed']} packed already;"
        f" {format_bytes(facts['file_bytes'])} in files ({format_bytes(facts['allocated_bytes'])} on disk), "
        f"{format_bytes(facts['gap_bytes'])} of it"
        f" in gaps, {format_bytes(facts['expected_bytes'])} when packed"
    )


def _done(facts: Mapping[str, Any]) -> str:
    from shardwright.model.display_text import size_change

    recoded = f", {facts['chunks_recoded']} chunks recompressed" if facts["chunks_recoded"] else ""
    recoded += f", {facts['dropped']} shards outside the shape deleted" if facts["dropped"] else ""
    recoded += f", parity of {facts['parity_rows']} shard rows" if facts["parity_rows"] else ""
    interrupted = (
        f"; INTERRUPTED, {facts['left']} shards left: run the same command again to continue"
        if facts["interrupted"]
        else ""
    )
    merged = f"merged: {', '.join(facts['merged'])}; " if facts["merged"] else ""
    return (
        f"{merged}{facts['packed']} shards packed, {facts['skipped']} were already{recoded}; files are "
        f"{size_change(facts['gain_bytes'])}; {facts['seconds']:.1f} s{interrupted}"
    )


def _abandoned(report: MoveReport) -> list[str]:
    return [
        f"  {url} has a part of it, from a run that was interrupted. No run can continue that: delete it"
        for url in report.abandoned[:_NAMED_AT_MOST]
    ]


def _some(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _NAMED_AT_MOST
    return [*lines[:_NAMED_AT_MOST], *([f"  and {more} more"] if more > 0 else [])]


def _total(plans: Sequence[Any]) -> dict[str, int]:
    facts = [plan.to_dict() for plan in plans if not isinstance(plan, ShardwrightError)]
    names = (
        "shards_todo",
        "shards",
        "shards_packed",
        "file_bytes",
        "allocated_bytes",
        "gap_bytes",
        "expected_bytes",
    )
    return {name: sum(fact[name] for fact in facts) for name in names}


def _one_worker(workers: int | None, scheduler: str | None) -> int:
    """The number of workers that make one file. Raises ``ConfigError``."""
    if workers not in (None, 1) or scheduler is not None:
        raise ConfigError(
            f"one worker makes a file {ARCHIVE_SUFFIX}: its parts are written one after another",
            got=f"--scheduler {scheduler}" if scheduler is not None else f"--workers {workers}",
            hint="Leave the option out",
        )
    return 1


def _check_options(
    stores: list[Path], to: str | None, options: Options, *, move: bool, dry_run: bool
) -> None:
    """Raises ``ConfigError`` for options that do not go together, and for a DEST that is none."""
    from shardwright.rework.transfer.address import open_destination

    if to is not None:
        open_destination(to)  # nothing is looked at or made yet
    if move and to is None:
        raise ConfigError("--move needs --to DEST", hint="It deletes the source once all of it is at DEST")
    if to is not None and len(stores) != 1:
        raise ConfigError("--to takes exactly one store: DEST is the new store", got=f"{len(stores)} stores")
    if options.container not in (None, "hdf5"):
        raise ConfigError("unknown --container", expected="hdf5", got=options.container)
    if options.shards and dry_run and to is None:
        raise ConfigError("--shards and --dry-run do not go together", hint=_NEW_STORE)
    in_place = (
        ("--recompress", options.recompress is not None, f"Recompress {_FIRST}"),
        ("--trim", options.trim, f"Trim {_FIRST}"),
        ("--parity", options.parity > 0, "Make the parity at DEST, then"),
        ("--shards", bool(options.shards), _NEW_STORE),
    )
    for name, is_given, hint in in_place:
        if to is not None and is_given:
            raise ConfigError(f"{name} and --to do not go together", hint=hint)
    if to is not None and (options.container is not None or options.describe):
        raise ConfigError(
            "--container and --describe do not go with --to",
            hint="Pack the store in place first, then run it again with --to: it keeps the form",
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
    from shardwright.rework.runtime.job_report import run_with_progress
    from shardwright.rework.runtime.throttle import sending_pause_files
    from shardwright.rework.transfer.move_store import bytes_to_move, move_store

    sizes = bytes_to_move(store, options)
    here = [] if is_address(options.destination) else [Path(options.destination)]
    arrays = open_store(store).arrays if beneath.exists(store / DOCUMENT) else ()
    pause = sending_pause_files(arrays[0].path, *here) if arrays else []
    throttle = replace(
        options.throttle, bytes_per_s=bytes_per_s, pause_files=tuple(pause), workers=executor.workers
    ).of_one_worker(len(sizes))
    with job_progress(f"compact: {store.name}", "sent", pause, idle=options.throttle.idle) as on_progress:
        run = run_with_progress(executor, sizes, on_progress)
        report = move_store(store, replace(options, throttle=throttle), run)
    typer.echo(json.dumps(report.to_dict()) if as_json else send_summary(report))
    return report.ok


def send_summary(report: MoveReport) -> str:
    """The report as text."""
    from shardwright.model.display_text import format_bytes

    if report.nothing_left:
        left = f"{report.store}: there is no file left to move, and its empty folders are deleted now"
        return "\n".join([f"{left}; a store is at {report.destination}", *_abandoned(report)])
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
        f"  {nothing}: {key} is new, changed or gone since it was sent"
        for key in report.kept[:_NAMED_AT_MOST]
    ]
    lines += _abandoned(report)
    if report.deleting and report.kept:
        lines.append(
            f"  an earlier run has deleted a part of {report.store}; the whole store is at "
            f"{report.destination}. Move these files away and run the same command again: it deletes the "
            "rest"
        )
    elif not report.complete:
        lines.append("  run the same command again to continue; what has arrived is not sent again")
    return "\n".join(lines)
