"""Calls of the filesystem in a few threads at once."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from shardwright.disk import side_by_side as module
from shardwright.disk.side_by_side import LEAST_EACH, MOST_THREADS, side_by_side


@pytest.mark.parametrize("count", [0, 1, LEAST_EACH, 5 * LEAST_EACH, 1000])
def test_each_is_called_once_and_no_thread_is_left(count):
    before, called = threading.active_count(), Counter()
    side_by_side(lambda number: called.update((number,)), count)
    assert called == Counter(range(count))
    assert threading.active_count() == before


def test_they_are_in_calls_at_once(monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: MOST_THREADS + 3)
    together = threading.Barrier(MOST_THREADS)
    side_by_side(lambda _: together.wait(60), MOST_THREADS * LEAST_EACH)


def test_a_few_take_no_thread():
    threads = set()
    side_by_side(lambda _: threads.add(threading.current_thread()), LEAST_EACH)
    assert threads == {threading.current_thread()}


def test_the_first_error_ends_it_when_no_call_is_going_on(monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    begun, ended, failed = [], [], threading.Event()

    def call(number: int) -> None:
        begun.append(number)
        if number == 1:
            failed.set()
            raise KeyboardInterrupt
        assert failed.wait(60)
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        side_by_side(call, 100)
    assert sorted([*ended, 1]) == sorted(begun)
    assert len(begun) <= 3


def test_without_threads_the_caller_does_all(monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: MOST_THREADS)
    start, started = threading.Thread.start, []

    def only_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", only_one)
    called: Counter[int] = Counter()
    side_by_side(lambda number: called.update((number,)), 100)
    assert called == Counter(range(100))
    assert not started[0].is_alive()


def test_an_interrupt_while_it_waits_ends_no_call_of_another_thread(monkeypatch):
    """What these calls have made is undone behind it."""
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    join, interrupts, going_on, ended = threading.Thread.join, [KeyboardInterrupt()], threading.Event(), []

    def interrupted(thread: threading.Thread) -> None:
        if interrupts:
            raise interrupts.pop()
        join(thread)

    def call(number: int) -> None:
        if threading.current_thread() is not caller:
            going_on.wait(0.2)  # longer than the caller's own calls
        ended.append(number)

    caller = threading.current_thread()
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(call, 20)
    assert sorted(ended) == list(range(20))
