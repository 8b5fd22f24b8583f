"""Whom the tasks of a slab wake, and when."""

from __future__ import annotations

import pytest

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import StorageError
from shardwright.pipeline.encoding import SlabDone, SlabJob

SOUND = SlabDone(0, 1, None)
FAILED = SlabDone(0, 0, ErrorText(StorageError, "no"))


def heard(reports: list[SlabDone]) -> list[str]:
    """What the owner hears of a slab whose tasks report so, in order."""
    told: list[str] = []
    job = SlabJob(
        None, None, None, row=0, slab=0, files=None, report=lambda done: told.append("failed" if done.error else "done"),
        wake=lambda: told.append("wake"), tasks=len(reports), queued_ns=0, overload=None,
    )  # fmt: skip
    for done in reports:
        job.tell(done)
    return told


@pytest.mark.parametrize("tasks", [1, 2, 16])
def test_the_last_task_wakes_the_owner_once_all_have_reported(tasks: int) -> None:
    assert heard([SOUND] * tasks) == ["done"] * tasks + ["wake"]


def test_an_error_is_heard_at_once() -> None:
    assert heard([SOUND, FAILED, SOUND]) == ["done", "failed", "wake", "done", "wake"]
