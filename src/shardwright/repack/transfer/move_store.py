"""A whole store packed into another place: every file of it, shard by shard, verified, and only then, if
asked for, deleted here.

    locks, claim ──▶ shards, then all other files but ──▶ zarr.json, the deepest first ──▶ record: complete
                                                                                           │ with move
                                          all that an earlier run has sent: read back once more
                                                                                           │ record: deleting
    claim released ◀── locks, folders ◀── shards, other files ◀── zarr.json, the highest ◀─┘

    move_plan       which files there are, and in which phases they go
    send_store      the upper line: the claim, phase by phase
    check_sent      between the lines; what is lost there is sent again, until the record says deleting
    delete_source   the lower line

Readers find a store by its zarr.json. So nobody sees one at the destination before all of its shards are
there, and nobody opens the source while its shards vanish. A phase begins only when all of the one before has
arrived; a job that is killed goes on where it was (see ``move_record``).

A damaged shard is sent as it is, and named. The store there is then what it is here, readable but for that
shard; the place stays claimed, nothing is deleted, and the next run of the same job sends the shard once it
has been mended.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from shardwright.model.errors import ConfigError, LockedError, OutputExistsError, StorageError
from shardwright.repack.runtime.work_folder import LOCK_NAME, WORK_FOLDER, locked

from .check_sent import check_sent, left_here
from .delete_source import clear_dead_work, delete_source, remove_empty_folders
from .local_folder import LocalFolder
from .move_plan import METADATA_NAME, check_room, files_and_links, plan_move
from .move_record import MoveRecord
from .move_report import MoveReport
from .open_destination import open_destination
from .send_store import claimed_record, send_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .destination import Destination
    from .move_plan import MovePlan
    from .move_report import Execute, MoveOptions

MOVE_LOCK_NAME = "move.lock"  # beside the lock of an array's other jobs, which is taken as well


def move_store(
    path: Path, options: MoveOptions, execute: Execute, *, records: Path | None = None
) -> MoveReport:
    """Send a store; goes on with what an earlier job to the same destination left. A file that fails is in
    ``failures``; its phase goes on.

    An interrupt (``KeyboardInterrupt``) while files are sent is told in the report. ``records``: the folder
    of its record, if not the work folder.

    Raises before anything is sent: ``LockedError`` for a store that is still being written or worked on, and
    for a destination that another job writes to; ``OutputExistsError``; ``ConfigError``;
    ``ShardFormatError``; ``StorageFullError``; ``StorageError``.
    """
    path = path.absolute()
    destination = open_destination(options.destination)
    if (path / ".shardwright").exists():
        raise LockedError(
            f"{path} is still being written, or its acquisition ended without sealing all shards",
            hint="Wait until it has ended; `shardwright recover` finishes what a daemon that died has left",
        )
    records = records or path / WORK_FOLDER
    with locked(path, MOVE_LOCK_NAME):
        record = _found_record(path, options, records, destination)
        report = MoveReport(str(path), destination.url)
        if record is None and options.delete_source and _nothing_is_left(path, destination):
            report.complete = report.nothing_left = True
        elif record is not None and record.deleting:
            _go_on_deleting(path, options, record, destination, execute, report)
        else:
            _move(path, options, records, record, destination, execute, report)
    if options.delete_source and report.ok:
        remove_empty_folders(path)  # the last one, in which the record was
    return report


def _found_record(
    path: Path, options: MoveOptions, records: Path, destination: Destination
) -> MoveRecord | None:
    """One that a release before ``deleting`` has left tells by the metadata, which goes first, that it has
    begun to."""
    record = MoveRecord.find(records, destination.url)
    if (
        record is not None
        and record.complete
        and options.delete_source
        and not (path / METADATA_NAME).exists()
    ):
        record.deleting = True
    return record


def _move(
    path: Path,
    options: MoveOptions,
    records: Path,
    record: MoveRecord | None,
    destination: Destination,
    execute: Execute,
    report: MoveReport,
) -> None:
    found = {} if record is None else destination.sizes()
    if record is not None and record.complete and not options.delete_source:
        lost = {sent.key for sent in record.sent.values() if found.get(sent.key) != sent.nbytes}
        if lost:
            record.reopen(without=lost)
    if record is None or not record.complete or options.delete_source:
        plan = plan_move(path, options)
        arrays = [array.path for array in plan.store.arrays]
        with _locked_arrays(arrays):
            record = _send_until_there(plan, options, records, record, found, destination, execute, report)
            if record is None:
                return
            report.complete = True
            if options.delete_source and not _delete(path, arrays, record, destination, report):
                record.reopen()
                return
    report.complete = True
    report.finished = len(record.unproved)
    _end(path, options, record, destination)


def _send_until_there(
    plan: MovePlan,
    options: MoveOptions,
    records: Path,
    record: MoveRecord | None,
    found: dict[str, int],
    destination: Destination,
    execute: Execute,
    report: MoveReport,
) -> MoveRecord | None:
    """Send what is not there. With ``delete_source``, all that another run has sent is read back first, and
    sent again where it was lost.

    None if that did not come to its end: the report says why.
    """
    while True:
        if record is None or not record.complete:
            record = _claimed(plan, options, records, record, found, destination)
            send_store(plan, record, found, destination, execute, report)
            report.finished = len(record.unproved)
            if not record.complete:
                return None
        if not options.delete_source:
            return record
        found = destination.sizes()
        lost = check_sent(plan.store.root, record, found, destination, options.throttle, execute, report)
        report.finished = len(record.unproved)
        if report.failures or report.interrupted:
            report.complete = False
            return None
        if not lost:
            return record
        report.complete = False
        record.reopen(without=lost)


def _claimed(
    plan: MovePlan,
    options: MoveOptions,
    records: Path,
    record: MoveRecord | None,
    found: dict[str, int],
    destination: Destination,
) -> MoveRecord:
    if isinstance(destination, LocalFolder):
        check_room(plan, destination, found)
    try:
        return claimed_record(records, destination, record)
    except OutputExistsError as error:
        raise (_copied_before(destination) if options.delete_source else error) from error


def _go_on_deleting(
    path: Path,
    options: MoveOptions,
    record: MoveRecord,
    destination: Destination,
    execute: Execute,
    report: MoveReport,
) -> None:
    """An earlier run had sent all and begun to delete: what is left here is checked there and deleted, or
    told of. Nothing is sent any more."""
    if not options.delete_source:
        raise ConfigError(
            f"an earlier run with --move has begun to delete {path}",
            hint="Run it with --move again: it deletes what is left",
        )
    report.deleting = True
    arrays = [(path / key).parent for key in record.sent if key.endswith(METADATA_NAME)]
    with _locked_arrays(arrays):
        lost = check_sent(path, record, destination.sizes(), destination, options.throttle, execute, report)
        if report.failures or report.interrupted:
            return
        if lost:
            report.failures += [
                {"key": key, "error": _lost(path, key, destination).to_dict()} for key in sorted(lost)
            ]
            return
        report.complete = True
        if not _delete(path, arrays, record, destination, report):
            return
    _end(path, options, record, destination)


def _delete(
    path: Path, arrays: list[Path], record: MoveRecord, destination: Destination, report: MoveReport
) -> bool:
    """Whether the source is gone; else it was not touched."""
    report.deleted, report.kept = delete_source(path, record, destination.sizes())
    if report.kept:
        return False
    clear_dead_work(path, arrays)
    return True


def _end(path: Path, options: MoveOptions, record: MoveRecord, destination: Destination) -> None:
    if options.delete_source:
        remove_empty_folders(path)
    destination.release(record.token)
    record.delete()


@contextmanager
def _locked_arrays(folders: list[Path]) -> Iterator[None]:
    """No other job works on them, until their files are gone as well: the locks go last."""
    with ExitStack() as locks:
        for folder in folders:
            if folder.is_dir():
                locks.enter_context(locked(folder, LOCK_NAME))
        yield


def _lost(path: Path, key: str, destination: Destination) -> StorageError:
    return StorageError(
        f"{destination.url}/{key} is not what was sent any more, and a part of the store here is deleted "
        f"already",
        hint=f"What is left in {path} was not touched. Put it into another store with the metadata that is "
        f"at the destination, or read it by hand",
    )


def bytes_to_move(path: Path, options: MoveOptions, *, records: Path | None = None) -> dict[str, int]:
    """By key: what a job is to send, or, when an earlier run has begun to delete, what is still to be
    checked. Raises as ``plan_move`` does."""
    record = _found_record(
        path, options, records or path / WORK_FOLDER, open_destination(options.destination)
    )
    if record is not None and record.deleting:
        return {sent.key: sent.nbytes for sent in left_here(path, record)}
    if path.is_dir() and _is_empty(path):
        return {}  # moved before, perhaps
    return plan_move(path, options).file_bytes


def _nothing_is_left(path: Path, destination: Destination) -> bool:
    """That is so as well of a folder that never was a store: all the same, no data is here that could be
    moved."""
    return _is_empty(path) and destination.size(METADATA_NAME) is not None


def _is_empty(path: Path) -> bool:
    return next(files_and_links(path), None) is None


def _copied_before(destination: Destination) -> OutputExistsError:
    return OutputExistsError(
        f"the destination {destination.url} is not empty, and nothing is ever overwritten",
        hint="If an earlier run without --move has filled it: check it with `shardwright verify`, then "
        "delete the store here yourself."
        " Else choose another one",
    )
