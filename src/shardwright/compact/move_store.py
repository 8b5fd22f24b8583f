"""A whole store packed into another place: every file of it, shard by shard, verified, and only then, if asked for, deleted here.

    lock, claim ──▶ shards, then all other files but ──▶ zarr.json, the deepest first ──▶ record: complete
                                                                                              │ with move
    claim released ◀── folders ◀── shards and other files ◀── zarr.json, the highest first ◀──┘

    move_plan       which files there are, and in which phases they go
    send_store      the upper line: the claim, phase by phase
    check_sent      between the lines, when another run has sent it: all of it read back once more
    delete_source   the lower line

Readers find a store by its zarr.json. So nobody sees one at the destination before all of its shards are there, and nobody opens the source while its
shards vanish. A phase begins only when all of the one before has arrived; a job that is killed goes on where it was (see ``move_record``).

A damaged shard is sent as it is, and named. The store there is then what it is here, readable but for that shard; the place stays claimed, nothing is
deleted, and the next run of the same job sends the shard once it has been mended.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import LockedError, OutputExistsError, StorageError

from .check_sent import check_sent, left_here
from .delete_source import clear_dead_work, delete_source, remove_empty_folders
from .destination import open_destination
from .local_folder import LocalFolder
from .manners import Manners
from .move_plan import METADATA_NAME, check_room, files_and_links, plan_move
from .move_record import MoveRecord
from .send_store import claimed_record, send_store
from .work_folder import LOCK_NAME, WORK_FOLDER, locked

if TYPE_CHECKING:
    from pathlib import Path

    from .destination import Destination
    from .send_store import Execute

MOVE_LOCK_NAME = "move.lock"  # beside the lock of an array's other jobs, which is taken as well


@dataclass(frozen=True)
class MoveOptions:
    """``destination``: a folder or s3://BUCKET/PREFIX. ``delete_source``: once all is there and verified. ``order``: of the chunks in a shard."""

    destination: str
    delete_source: bool = False
    order: str = "row_major"
    manners: Manners = field(default_factory=Manners)


@dataclass
class MoveReport:
    """``verified``: files that an earlier, unfinished job had sent and this one only verified; ``finished``: those it had verified as well.

    ``complete``: all is there. ``damaged``: shards that were sent as they are; ``kept``: source files that came or were changed after they were sent.
    With either nothing was deleted. ``deleted``: source files.
    """

    store: str
    destination: str
    complete: bool = False
    sent: int = 0
    verified: int = 0
    finished: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    interrupted: bool = False
    deleted: int = 0
    damaged: list[dict[str, Any]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.complete and not self.damaged and not self.kept

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def add(self, result: dict[str, Any]) -> None:
        """Count the result of one task."""
        self.bytes_read += result["bytes_read"]
        self.bytes_written += result["bytes_written"]
        if not result["ok"]:
            self.failures.append({"key": result["key"], "error": result["error"]})
        elif result["skipped"]:
            self.verified += 1
        else:
            self.sent += 1


def move_store(path: Path, options: MoveOptions, execute: Execute, *, records: Path | None = None) -> MoveReport:
    """Send a store; goes on with what an earlier job to the same destination left. A file that fails is in ``failures``; its phase goes on.

    An interrupt (``KeyboardInterrupt``) while files are sent is told in the report. ``records``: the folder of its record, if not the work folder.

    Raises before anything is sent: ``LockedError`` for a store that is still being written or worked on, and for a destination that another job
    writes to; ``OutputExistsError``; ``ConfigError``; ``ShardFormatError``; ``StorageFullError``; ``StorageError``.
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
        record = MoveRecord.find(records, destination.url)
        report = MoveReport(str(path), destination.url)
        if record is None and options.delete_source and _has_moved(path, destination):
            report.complete = True  # a job that was killed when only its lock and folders were left
        else:
            _move(path, options, records, record, destination, execute, report)
    if options.delete_source and report.ok:
        remove_empty_folders(path)  # the last one, in which the record was
    return report


def _move(
    path: Path, options: MoveOptions, records: Path, record: MoveRecord | None, destination: Destination, execute: Execute, report: MoveReport
) -> None:
    found = {} if record is None else destination.sizes()
    if record is not None and record.complete and not _is_still_there(path, options, record, found, destination, execute, report):
        return
    if record is None or not record.complete:
        record = _send(path, options, records, found, destination, execute, report)
        if not record.complete:
            return
    report.complete = True
    if options.delete_source:
        report.deleted, report.kept = delete_source(path, record, destination.sizes())
        if report.kept:
            if (path / METADATA_NAME).exists():
                record.reopen()
            return
        clear_dead_work(path)
        remove_empty_folders(path)
    destination.release(record.token)
    record.delete()


def _send(
    path: Path, options: MoveOptions, records: Path, found: dict[str, int], destination: Destination, execute: Execute, report: MoveReport
) -> MoveRecord:
    plan = plan_move(path, options)
    with ExitStack() as locks:
        for array in plan.store.arrays:
            locks.enter_context(locked(array.path, LOCK_NAME))
        if isinstance(destination, LocalFolder):
            check_room(plan, destination, found)
        try:
            record = claimed_record(records, destination)
        except OutputExistsError as error:
            raise (_copied_before(destination) if options.delete_source else error) from error
        send_store(plan, record, found, destination, execute, report)
    return record


def _is_still_there(
    path: Path, options: MoveOptions, record: MoveRecord, found: dict[str, int], destination: Destination, execute: Execute, report: MoveReport
) -> bool:
    """Whether the job can go on after an earlier run had sent all: before the source is deleted, every byte is read back once more.

    What was lost there is sent again, as long as the source is whole.
    """
    if options.delete_source:
        lost = check_sent(left_here(path, record), found, destination, options.manners, execute, report)
    else:
        lost = {sent.key for sent in record.sent.values() if found.get(sent.key) != sent.nbytes}
    if report.failures or report.interrupted:
        return False
    if lost and (path / METADATA_NAME).exists():
        record.reopen(without=lost)
    elif lost:
        report.failures += [{"key": key, "error": _lost(path, key, destination).to_dict()} for key in sorted(lost)]
        return False
    return True


def _lost(path: Path, key: str, destination: Destination) -> StorageError:
    return StorageError(
        f"{destination.url}/{key} is not what was sent any more, and the metadata of the store here is deleted already",
        hint=f"What is left in {path} was not touched. Put it into another store with the metadata that is at the destination, or read it by hand",
    )


def bytes_left(path: Path, options: MoveOptions, *, records: Path | None = None) -> dict[str, int]:
    """Of a source that an earlier run has begun to delete: by key, what is still to be checked before it may go."""
    record = MoveRecord.find(records or path / WORK_FOLDER, open_destination(options.destination).url)
    return {} if record is None else {sent.key: sent.nbytes for sent in left_here(path, record)}


def _has_moved(path: Path, destination: Destination) -> bool:
    """Nothing is left of the source, and the store is at the destination."""
    return next(files_and_links(path), None) is None and destination.size(METADATA_NAME) is not None


def _copied_before(destination: Destination) -> OutputExistsError:
    return OutputExistsError(
        f"the destination {destination.url} is not empty, and nothing is ever overwritten",
        hint="If an earlier run without --move has filled it: check it with `shardwright verify`, then delete the store here yourself."
        " Else choose another one",
    )
