"""The files of a store sent to a destination that this job has claimed, phase by phase (see ``move_store``),
and what earlier runs have sent checked there once more.

A file that an earlier run of the same job has sent and verified is not sent again if both sides are still as
they were then. Sometimes a run sends a shard although an earlier one has sent metadata already: the shard was
damaged and has been repaired, or it changed, or was lost there. Then it deletes the metadata first, so that a
reader finds no store rather than an incomplete one.
"""

from __future__ import annotations

import os
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
    from .move_plan import Execute, MovePlan, MoveReport


def claimed_record(folder: Path, destination: Destination, record: MoveRecord | None = None) -> MoveRecord:
    """The record of this job, not complete, with its claim made. ``record``: the one that was read already,
    if there is one."""
    record = record or MoveRecord.open(folder, destination.url)
    if not record.claimed:
        destination.release(record.token)  # of a job killed before it knew that the place was empty
    try:
        if destination.size(CLAIM_KEY) is None:
            record.forget()  # before there is a claim again, by which the next run would believe it
        if destination.claim(record.token):
            record.forget()  # nothing is there, also if a user has cleared it since
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
    """Send all files of ``plan``. ``found``: bytes of each key at the destination. The record is complete
    afterwards if all files have arrived and no shard is damaged.

    A phase begins only if the one before is complete.
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
    """Delete the metadata that an earlier run has sent, the highest first, so that no reader opens the store;
    returns what is found there then."""
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
                full = result["error"]["code"] == StorageFullError.code  # for the other files as well
                given_up = given_up or full or not _can_continue(destination)


def _run_here(tasks: Iterable[dict[str, Any]]) -> Generator[dict[str, Any], None, None]:
    """Run tasks of small files without a worker, at this process's priority."""
    for task in tasks:
        yield run_task(task | {"throttle": Throttle(idle=False).to_dict()})


def _can_continue(destination: Destination) -> bool:
    """Whether other files may still be sent: when the destination does not answer, or the claim is gone, all
    would fail."""
    try:
        return destination.size(CLAIM_KEY) is not None
    except StorageError:
        return False


def _is_finished(task: dict[str, Any], record: MoveRecord, found: dict[str, int]) -> bool:
    """Whether an earlier run has sent and verified the file, and both sides are as they were then."""
    sent = record.sent.get(task["key"])
    if sent is None or sent.order != task.get("order"):
        return False
    return found.get(sent.key) == sent.nbytes and is_as_sent(Path(task["file"]), sent.source)


def left_here(root: Path, record: MoveRecord) -> list[SentFile]:
    """The files that were sent and whose source is still there."""
    return [sent for sent in record.sent.values() if os.path.lexists(root / sent.key)]


def check_sent(
    root: Path,
    record: MoveRecord,
    found: dict[str, int],
    destination: Destination,
    throttle: Throttle,
    execute: Execute,
    report: MoveReport,
) -> set[str]:
    """Read back what earlier runs have sent: in between it may have been lost or damaged. Returns the keys
    that are not at the destination any more as they were sent; all of them only if nothing failed and the
    report is not interrupted.

    Only files whose source is still there are checked, and none that this run has sent or checked. Each is
    compared with the crc32c that was recorded when it was sent, so that the source is not needed: a run that
    was killed may have deleted a part of it. ``found``: bytes of each key there.
    """
    files = [sent for sent in left_here(root, record) if sent.key in record.unproved]
    lost = {sent.key for sent in files if found.get(sent.key) != sent.nbytes}
    tasks = (
        {
            "kind": "check",
            "destination": destination.url,
            "key": sent.key,
            "nbytes": sent.nbytes,
            "crc32c": sent.crc32c,
            "throttle": throttle.to_dict(),
        }
        for sent in files
        if sent.key not in lost and not report.failures
    )
    try:
        with closing(execute(tasks)) as results:
            for result in results:
                if result["ok"] and not result["same"]:
                    lost.add(result["key"])
                else:
                    report.add(result)
                    if result["ok"]:
                        record.unproved.discard(result["key"])
    except KeyboardInterrupt:
        report.interrupted = True
    return lost
