"""The files of a store sent to a destination that this job has claimed, phase by phase (see ``move_store``).

What an earlier run of the same job has sent and verified is not sent again, as long as both sides are still as they were then.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import LockedError, OutputExistsError, StorageError, StorageFullError

from .destination import CLAIM_KEY
from .manners import Manners
from .move import identify
from .move_record import MoveRecord, SentFile
from .tasks import run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from .destination import Destination
    from .move_plan import MovePlan
    from .move_store import MoveReport

    Execute = Callable[[Iterable[dict[str, Any]]], Generator[dict[str, Any], None, None]]  # run_task on each task, results as they come


def claimed_record(folder: Path, destination: Destination) -> MoveRecord:
    """The record of this job, its claim made. One that says complete is of an output that is not there any more, and means nothing."""
    record = MoveRecord.find(folder, destination.url)
    if record is not None and record.complete:
        record.delete()
    record = MoveRecord.open(folder, destination.url)
    if not record.claimed:
        destination.release(record.token)  # of a job killed before it knew that the place was empty
    try:
        if destination.claim(record.token):
            record.sent = {}  # nothing is there, also if somebody has cleared it since
    except (OutputExistsError, LockedError):
        if not record.claimed:
            record.delete()
        raise
    if not record.claimed:
        record.claimed = True
        record.save()
    return record


def send_store(plan: MovePlan, record: MoveRecord, destination: Destination, execute: Execute, report: MoveReport) -> None:
    """Phase by phase; where one stays incomplete, none of the next begins."""
    wanted: set[str] = set()
    try:
        for phase, run in ((plan.data, execute), *((level, _run_here) for level in plan.metadata)):
            wanted |= {task["key"] for task in phase}
            _send_phase(phase, record, destination, run, report)
            if report.failures or not wanted <= record.sent.keys():
                return
    except KeyboardInterrupt:
        report.interrupted = True
        return
    record.sent = {key: file for key, file in record.sent.items() if key in wanted}
    record.complete = True
    record.save()
    report.complete = True


def _send_phase(phase: list[dict[str, Any]], record: MoveRecord, destination: Destination, execute: Execute, report: MoveReport) -> None:
    todo = {task["key"]: task for task in phase if not _is_finished(task, record, destination)}
    report.finished += len(phase) - len(todo)
    for key in todo:
        record.sent.pop(key, None)
    given_up = False
    with closing(execute(task for task in todo.values() if not given_up)) as results:
        for result in results:
            report.add(result)
            if result["ok"]:
                record.add(SentFile(result["key"], result["source"], result["nbytes"], todo[result["key"]].get("order")))
            else:
                full = result["error"]["code"] == StorageFullError.code  # then so it is for the others
                given_up = given_up or full or not _can_go_on(destination)


def _run_here(tasks: Iterable[dict[str, Any]]) -> Generator[dict[str, Any], None, None]:
    """Small files, for which no worker need be started; at this process's priority."""
    for task in tasks:
        yield run_task(task | {"manners": Manners(idle=False).to_dict()})


def _can_go_on(destination: Destination) -> bool:
    """Whether a failure was one file's. Where the destination does not answer, or the claim is gone, every other file would fail as well."""
    try:
        return destination.size(CLAIM_KEY) is not None
    except StorageError:
        return False


def _is_finished(task: dict[str, Any], record: MoveRecord, destination: Destination) -> bool:
    """Sent and verified by an earlier job, and both sides are still as they were then."""
    sent = record.sent.get(task["key"])
    if sent is None or sent.order != task.get("order"):
        return False
    return sent.source == identify(Path(task["file"])) and destination.size(sent.key) == sent.nbytes


def all_there(record: MoveRecord, destination: Destination) -> bool:
    return all(destination.size(sent.key) == sent.nbytes for sent in record.sent.values())
