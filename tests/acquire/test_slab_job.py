"""What the tasks of a slab report together, and when."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.acquire.commands import Encode, SlabEncoded, TaskTimes
from shardwright.acquire.encoding import SlabJob
from shardwright.codecs.degrade import DegradeLevel
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import StorageError

TIMES = TaskTimes(queue_ns=1, encode_ns=2, level=DegradeLevel.CONFIGURED, chunks=3)
ERROR = ErrorText(StorageError, "no")
ROW = 5


def reports_after_each(errors: list[ErrorText | None]) -> list[list[SlabEncoded]]:
    """What the owner has heard after each task of a slab whose tasks end so, in order."""
    heard: list[SlabEncoded] = []
    command = Encode(ROW, 0, None, np.zeros(2, np.int64), np.zeros(2, np.int64))
    job = SlabJob(command, None, None, tasks=len(errors), queued_ns=0, report=heard.append, samples=None)
    after = []
    for error in errors:
        job.task_ended(None if error else TIMES, 0 if error else 10, error)
        after.append(list(heard))
    return after


@pytest.mark.parametrize("tasks", [1, 2, 16])
def test_the_last_task_reports_for_all(tasks: int) -> None:
    *before, after = reports_after_each([None] * tasks)
    assert not any(before)
    assert after == [SlabEncoded(ROW, 10 * tasks, None, (TIMES,) * tasks)]


def test_an_error_waits_for_the_tasks_that_still_read_pixels() -> None:
    *before, after = reports_after_each([None, ERROR, ErrorText(StorageError, "nor here"), None])
    assert not any(before)
    assert after == [SlabEncoded(ROW, 20, ERROR, (TIMES, TIMES))]
