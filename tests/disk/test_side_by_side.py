"""Calls of the filesystem in a few threads at once."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from shardwright.disk import side_by_side as module
from shardwright.disk.side_by_side import LEAST_EACH, MOST_THREADS, MOST_WAITING, side_by_side


@pytest.mark.parametrize("slow_s", [0.0, 3600.0])
@pytest.mark.parametrize("count", [0, 1, LEAST_EACH, 5 * LEAST_EACH, 1000])
def test_each_is_called_once_and_no_thread_is_left(count, slow_s, monkeypatch):
    monkeypatch.setattr(module, "SLOW_S", slow_s)
    before, called = threading.active_count(), Counter()
    side_by_side(lambda number: called.update((number,)), count)
    assert called == Counter(range(count))
    assert threading.active_count() == before


@pytest.fixture
def slow(monkeypatch):
    """Every call counts as one that waits in the kernel."""
    monkeypatch.setattr(module, "SLOW_S", 0.0)


@pytest.mark.usefixtures("slow")
def test_they_are_in_calls_at_once(monkeypatch):
    monkeypatch.setattr(module, "_CORES", MOST_THREADS + 3)
    together = threading.Barrier(MOST_THREADS)

    def call(number: int) -> None:
        if number >= LEAST_EACH:  # the first ones tell how slow they are
            together.wait(60)

    side_by_side(call, (1 + MOST_THREADS) * LEAST_EACH)


def test_syncs_wait_together_from_the_first_on():
    together = threading.Barrier(MOST_WAITING)
    side_by_side(lambda _: together.wait(60), 2 * MOST_WAITING, syncs=True)


def test_calls_that_wait_for_nothing_take_no_thread(monkeypatch):
    monkeypatch.setattr(module, "SLOW_S", 3600.0)
    threads = set()
    side_by_side(lambda _: threads.add(threading.current_thread()), 1000)
    assert threads == {threading.current_thread()}


@pytest.mark.usefixtures("slow")
def test_a_few_take_no_thread():
    threads = set()
    side_by_side(lambda _: threads.add(threading.current_thread()), LEAST_EACH)
    assert threads == {threading.current_thread()}


@pytest.mark.usefixtures("slow")
def test_the_first_error_ends_it_when_no_call_is_going_on(monkeypatch):
    monkeypatch.setattr(module, "_CORES", 2)
    begun, ended, failed = [], [], threading.Event()

    def call(number: int) -> None:
        begun.append(number)
        if number == LEAST_EACH:
            failed.set()
            raise KeyboardInterrupt
        assert number < LEAST_EACH or failed.wait(60)
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        side_by_side(call, 100)
    assert sorted([*ended, LEAST_EACH]) == sorted(begun)
    assert len(begun) <= LEAST_EACH + 3


@pytest.mark.usefixtures("slow")
def test_without_threads_the_caller_does_all(monkeypatch):
    monkeypatch.setattr(module, "_CORES", MOST_THREADS)
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


@pytest.mark.usefixtures("slow")
def test_an_interrupt_while_it_waits_ends_no_call_of_another_thread(monkeypatch):
    """What these calls have made is undone behind it."""
    monkeypatch.setattr(module, "_CORES", 2)
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


@pytest.mark.usefixtures("slow")
def test_an_interrupt_while_a_thread_starts_leaves_it_in_no_call(monkeypatch):
    monkeypatch.setattr(module, "_CORES", 2)
    start, begun, ended = threading.Thread.start, [], []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    def call(number: int) -> None:
        begun.append(number)
        if threading.current_thread() is not caller:
            time.sleep(0.2)  # longer than the caller takes to raise
        ended.append(number)

    caller = threading.current_thread()
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(call, 20)
    assert sorted(ended) == sorted(begun)
