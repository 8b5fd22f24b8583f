"""Free slots: what a plain deque would do, in batches."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire.free_slots import FreeRuns, FreeSlots


@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.sampled_from(["one", "take", "back", "first"]), st.integers(0, 10)), max_size=60),
)
def test_it_is_a_queue_of_slots(slot_count, steps):
    slots, twin, taken = FreeSlots(slot_count), deque(range(slot_count)), []
    for step, count in steps:
        if step == "one" and twin:
            taken.append(slots.take_one())
            assert taken[-1] == twin.popleft()
        elif step == "take":
            got = slots.take(count)
            assert got.tolist() == [twin.popleft() for _ in range(min(count, len(twin)))]
            taken += got.tolist()
        elif step == "back":
            back, taken = taken[:count], taken[count:]
            slots.give_back(np.array(back, np.uint32))
            twin.extend(back)
        elif step == "first":
            back, taken = taken[:count], taken[count:]
            slots.give_back_first(np.array(back, np.int64))
            twin.extendleft(reversed(back))
        assert (len(slots), list(slots)) == (len(twin), list(twin))


def test_some_may_be_taken_from_the_beginning():
    slots = FreeSlots(5, [4, 1])
    assert list(slots) == [4, 1]
    assert slots.take(9).tolist() == [4, 1]
    assert not slots


def test_what_it_gives_away_does_not_change_later():
    slots = FreeSlots(4)
    taken = slots.take(3)
    slots.give_back(taken[::-1].copy())
    slots.take(1)
    assert taken.tolist() == [0, 1, 2]


def test_nothing_can_be_free_twice():
    slots = FreeSlots(2)
    with pytest.raises(AssertionError, match="once"):
        slots.give_back(np.array([0]))


def test_no_slots_at_all():
    slots = FreeSlots(0)
    slots.give_back(np.zeros(0, np.int64))
    assert (len(slots), slots.take(3).tolist()) == (0, [])


@given(
    st.integers(1, 16),
    st.integers(2, 4),
    st.lists(st.tuples(st.sampled_from(["one", "take", "back", "first"]), st.integers(0, 10)), max_size=60),
)
def test_runs_are_taken_whole_and_free_once_every_slot_is(slot_count, length, steps):
    runs, taken = FreeRuns(slot_count, length), list[int]()
    whole = set(range(slot_count // length * length))
    for step, count in steps:
        if step == "one" and len(runs):
            first = runs.take_one()
            taken += range(first, first + length)
        elif step == "take":
            got = runs.take(count).tolist()
            assert len(got) % length == 0
            taken += got
        elif step == "back":
            back, taken = taken[::2][:count], taken[1::2] + taken[::2][count:]
            runs.give_back(np.array(back, np.uint32))
        elif step == "first":
            first = next((slot for slot in taken if slot % length == 0), None)
            unused = [] if first is None else range(first, first + length)
            if set(unused) <= set(taken):
                runs.give_back_first(np.array(unused, np.int64))
                taken = [slot for slot in taken if slot not in unused]
        assert len(taken) == len(set(taken))
        free = {run for run in range(slot_count // length) if not {slot // length for slot in taken} & {run}}
        assert len(runs) == len(free) * length
    rest = runs.take(slot_count).tolist()
    assert rest == [slot for run in rest[::length] for slot in range(run, run + length)]
    assert set(rest) <= whole - set(taken)


def test_no_slot_of_a_run_can_be_free_twice():
    runs = FreeRuns(6, 3)
    runs.give_back(runs.take(3)[:2])
    with pytest.raises(AssertionError, match="once"):
        runs.give_back(np.array([0, 1]))
