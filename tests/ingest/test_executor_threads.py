"""The supervision of the blocking executor's threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from shardwright.ingest.blocking_executor import BlockingExecutor
from shardwright.model.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def executor() -> Iterator[BlockingExecutor]:
    nothing = [None] * 3
    made = BlockingExecutor(*nothing, lambda: None, *nothing[:2])  # type: ignore[arg-type]
    yield made
    made.close()


def test_a_thread_that_is_being_started_is_not_dead(executor, monkeypatch):
    """The main thread may look at any moment of a start: a machine under load stops each of them anywhere."""
    seen = []

    def look(thread: threading.Thread, start=threading.Thread._set_ident) -> None:
        start(thread)  # from here on it has an identity, and is not alive before it is told to have started
        seen.append((thread.is_alive(), executor.dead_threads()))

    monkeypatch.setattr(threading.Thread, "_set_ident", look)
    assert executor.submit(lambda: "made").result(60) == "made"
    assert seen == [(False, [])]


def test_a_thread_that_ended_is_dead_and_fails_the_calls_that_wait(executor):
    def end() -> None:
        raise SystemExit

    with pytest.raises(WorkerError, match="died"):
        executor.submit(end).result(60)
    assert executor.dead_threads() == ["shardwright-opener"]
