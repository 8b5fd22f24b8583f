"""The files of a store sent to a destination that this job has claimed, phase by phase (see ``move_store``).

What an earlier run of the same job has sent and verified is not sent again, as long as both sides are still
as they were then. Where a run has to send a shard although an earlier one has sent metadata already (the
shard was damaged and has been mended, or changed, or was lost there), it deletes the metadata first: a reader
finds no store rather than one of which something is missing.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import LockedError, OutputExistsError, StorageError, StorageFullError
from shardwright.repack.runtime.tasks import run_task
from shardwright.repack.runtime.throttle import Throttle

from .destination import CLAIM_KEY
from .move_record import MoveRecord, SentFile
from .transfer_item import is_as_sent

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from .destination import Destination
    from .move_plan import MovePlan
    from .move_report import Execute, MoveReport


def claimed_record(folder: Path, destination: Destination, record: MoveRecord | None = None) -> MoveRecord:
    """The record of this job, not complete, its claim made. ``record``: if there is one that was read
    already."""
    record = record or MoveRecord.open(folder, destination.url)
    if not record.claimed:
        destination.release(record.token)  # of a job killed before it knew that the place was empty
    try:
        if destination.size(CLAIM_KEY) is None:
            record.forget()  # before there is a claim again, by which the next run would believe it
        if destination.claim(record.token):
            record.forget()  # nothing is there, also if somebody has cleared it since
    except (OutputExistsError, LockedError):
        if not record.claimed:
            record.delete()
        raise
    if not record.claimed:
        record.claimed = True
        record.save()
    return record


def send_store(
    plan: MovePlan,
    record: MoveRecord,
    found: dict[str, int],
    destination: Destination,
    execute: Execute,
    report: MoveReport,
) -> None:
    """``found``: bytes of each key at the destination. The record is complete afterwards if all files have
    arrived and no shard is damaged.

    Where a phase stays incomplete, none of the next begins.
    """
    wanted = {task["key"] for phase in plan.phases for task in phase}
    try:
        gone = record.sent.keys() - wanted  # here, since they were sent
        if gone or not all(_is_finished(task, record, found) for task in plan.data):
            found = _without_metadata(plan, found, destination)
        for key in gone:
            destination.delete(key)
            record.drop(key)
        for phase in plan.phases:
            _send_phase(
                phase, record, found, destination, execute if phase is plan.data else _run_here, report
            )
            if report.failures or not {task["key"] for task in phase} <= record.sent.keys():
                return
        report.complete = True
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        report.damaged = [
            {"key": sent.key, "error": sent.damaged} for sent in record.sent.values() if sent.damaged
        ]
    if report.complete and not report.damaged:
        record.complete = True
        record.save()


def _without_metadata(plan: MovePlan, found: dict[str, int], destination: Destination) -> dict[str, int]:
    """Close a store that an earlier run has opened to readers, the highest first; what is found there
    then."""
    metadata = [task["key"] for level in reversed(plan.metadata) for task in level if task["key"] in found]
    for key in metadata:
        destination.delete(key)
    return {key: nbytes for key, nbytes in found.items() if key not in metadata}


def _send_phase(
    phase: list[dict[str, Any]],
    record: MoveRecord,
    found: dict[str, int],
    destination: Destination,
    execute: Execute,
    report: MoveReport,
) -> None:
    todo = {task["key"]: task for task in phase if not _is_finished(task, record, found)}
    for key in todo:
        record.drop(key)
    given_up = False
    with closing(execute(task for task in todo.values() if not given_up)) as results:
        for result in results:
            report.add(result)
            if result["ok"]:
                facts = (
                    result["source"],
                    result["nbytes"],
                    result["crc32c"],
                    todo[result["key"]].get("order"),
                    result.get("damaged"),
                )
                record.add(SentFile(result["key"], *facts))
            else:
                full = result["error"]["code"] == StorageFullError.code  # then so it is for the others
                given_up = given_up or full or not _can_go_on(destination)


def _run_here(tasks: Iterable[dict[str, Any]]) -> Generator[dict[str, Any], None, None]:
    """Small files, for which no worker need be started; at this process's priority."""
    for task in tasks:
        yield run_task(task | {"throttle": Throttle(idle=False).to_dict()})


def _can_go_on(destination: Destination) -> bool:
    """Whether a failure was one file's. Where the destination does not answer, or the claim is gone, every
    other file would fail as well."""
    try:
        return destination.size(CLAIM_KEY) is not None
    except StorageError:
        return False


def _is_finished(task: dict[str, Any], record: MoveRecord, found: dict[str, int]) -> bool:
    """Sent and verified by an earlier job, and both sides are still as they were then."""
    sent = record.sent.get(task["key"])
    if sent is None or sent.order != task.get("order"):
        return False
    return found.get(sent.key) == sent.nbytes and is_as_sent(Path(task["file"]), sent.source)
