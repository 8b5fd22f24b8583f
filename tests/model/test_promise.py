"""A promise tells those who cannot wait for it in a thread when it is settled."""

from __future__ import annotations

import pytest

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import StorageError
from shardwright.model.promise import Promise


@pytest.mark.parametrize(
    "settle",
    [
        lambda promise: promise.keep(1),
        lambda promise: promise.fail(ErrorText.of(StorageError("full"))),
        lambda promise: promise.cancel(),
    ],
    ids=["keep", "fail", "cancel"],
)
def test_it_calls_back_once_when_it_is_settled_and_at_once_when_it_is(settle):
    promise: Promise[int] = Promise()
    called = []
    promise.when_settled(lambda: called.append(promise.done()))
    assert called == []
    for _ in range(2):
        settle(promise)
    assert called == [True]
    promise.when_settled(lambda: called.append("late"))
    assert called == [True, "late"]


def test_the_first_settling_counts():
    promise: Promise[int] = Promise()
    assert promise.keep(1)
    assert not promise.keep(2)
    promise.fail(ErrorText.of(StorageError("full")))
    promise.cancel()
    assert promise.result() == 1
    assert not promise.cancelled()
