"""What earlier runs have sent, read back from the destination once more: in the time between the runs it may
have been lost or damaged there.

Each file is compared with the crc32c that was recorded when it was sent and verified, so that this needs
nothing of the source, of which a job that was killed may have deleted a part already.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import crc32c

from .open_destination import open_destination
from .transfer_item import stored_parts

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.repack.runtime.throttle import Throttle

    from .destination import Destination
    from .move_record import MoveRecord, SentFile
    from .move_report import Execute, MoveReport


def check_file(task: dict[str, Any], throttle: Throttle) -> dict[str, Any]:
    """Task: {kind: "check", destination, key, nbytes, crc32c}. The result adds ``same``. Raises
    ``StorageError``."""
    found = 0
    for part in stored_parts(open_destination(task["destination"]), task["key"], task["nbytes"], throttle):
        found = crc32c.crc32c(part, found)
    return {
        "ok": True,
        "skipped": True,
        "same": found == task["crc32c"],
        "bytes_read": task["nbytes"],
        "bytes_written": 0,
    }


def left_here(root: Path, record: MoveRecord) -> list[SentFile]:
    """The files that were sent of which the source is still there."""
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
    """The keys that are not at the destination any more as they were sent. Complete only if nothing failed
    and the report is not interrupted.

    Looked at is all that is left here and that this run has not proved itself, by sending it or before.
    ``found``: bytes of each key there.
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
