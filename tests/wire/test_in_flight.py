"""Credit bookkeeping against a plain dictionary."""

from __future__ import annotations

import itertools
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.model.errors import ProtocolError
from shardwright.wire.in_flight import NO_SLOT, InFlight, at_most, ranges_of, runs_of, sequences_in, without


def release(in_flight: InFlight, first: int, last: int) -> np.ndarray:
    return in_flight.release_ranges(np.array([[first, last]]))


@given(st.sets(st.integers(0, 60)), st.randoms())
def test_ranges_hold_exactly_the_sequences(sequences: set[int], random):
    order = list(sequences)
    random.shuffle(order)
    ranges = ranges_of(np.array(order, np.uint64))
    assert [s for first, last in ranges for s in range(first, last + 1)] == sorted(sequences)
    assert all(earlier[1] + 1 < later[0] for earlier, later in itertools.pairwise(ranges))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.randoms())
def test_slots_come_back_once_in_any_order(batch_sizes: list[int], random):
    in_flight, slot_of, total = InFlight(), {}, 0
    for size in batch_sizes:
        slots = np.array([random.randrange(1000) for _ in range(size)], np.uint32)
        in_flight.add(total, slots)
        slot_of.update(zip(range(total, total + size), slots.tolist(), strict=True))
        total += size
    waiting = list(range(total))
    random.shuffle(waiting)
    while waiting:
        taken = np.array([waiting.pop() for _ in range(min(len(waiting), random.randint(1, 6)))], np.uint64)
        for first, last in ranges_of(taken):
            assert release(in_flight, first, last).tolist() == [slot_of[s] for s in range(first, last + 1)]
            with pytest.raises(ProtocolError):
                release(in_flight, first, last)
        assert in_flight.frames == len(waiting)


@pytest.mark.parametrize(("first", "last"), [(0, 6), (5, 5), (4, 9), (10**12, 10**12), (0, 2**62)])
def test_a_wrong_release_is_refused_and_changes_nothing(first: int, last: int):
    in_flight = InFlight()
    in_flight.add(0, np.arange(3, dtype=np.uint32))
    in_flight.add(3, np.arange(2, dtype=np.uint32))
    with pytest.raises(ProtocolError):
        release(in_flight, first, last)
    assert in_flight.frames == 5
    assert release(in_flight, 0, 4).tolist() == [0, 1, 2, 0, 1]


@given(st.sets(st.integers(0, 60)))
def test_runs_and_their_sequences_are_the_same_thing(sequences: set[int]):
    ordered = np.array(sorted(sequences), np.int64)
    assert sequences_in(runs_of(ordered)).tolist() == ordered.tolist()


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.sets(st.integers(0, 40)),
    st.sets(st.integers(0, 40)),
    st.randoms(),
)
def test_many_ranges_are_released_as_one_after_the_other(
    batch_sizes: list[int], gone: set[int], wanted: set[int], random
):
    at_once, one_by_one, total = InFlight(), InFlight(), 0
    for size in batch_sizes:
        for each in (at_once, one_by_one):
            each.add(total, np.arange(total, total + size, dtype=np.uint32))
        total += size
    for sequence in gone:
        for each in (at_once, one_by_one):
            each.release_known(sequence, sequence)
    ranges = runs_of(np.array(sorted(wanted), np.int64))
    order = list(range(len(ranges)))
    random.shuffle(order)
    if wanted & gone or wanted - set(range(total)):
        with pytest.raises(ProtocolError):
            at_once.release_ranges(ranges[order])
        assert at_once.ranges() == one_by_one.ranges()
        known = np.array(sorted(wanted), np.int64)
        assert at_once.release_all(known).tolist() == [
            s for first, last in ranges.tolist() for s in one_by_one.release_known(first, last).tolist()
        ]
    else:
        assert at_once.release_ranges(ranges[order]).tolist() == sorted(wanted)
        for first, last in ranges.tolist():
            one_by_one.release_known(first, last)
    assert (at_once.ranges(), at_once.frames) == (one_by_one.ranges(), one_by_one.frames)


def test_a_frame_that_is_named_twice_is_refused():
    in_flight = InFlight()
    in_flight.add(0, np.arange(5, dtype=np.uint32))
    with pytest.raises(ProtocolError):
        in_flight.release_ranges(np.array([[0, 2], [2, 3]]))
    assert in_flight.frames == 5


def test_a_message_is_kept_until_its_last_frame_is_released():
    class Message:
        pass

    message = Message()
    alive = weakref.ref(message)
    in_flight = InFlight()
    in_flight.add(0, np.arange(2, dtype=np.uint32), keep=message)
    del message
    release(in_flight, 1, 1)
    assert alive() is not None
    release(in_flight, 0, 0)
    assert alive() is None


def as_set(ranges: list[tuple[int, int]]) -> set[int]:
    return {s for first, last in ranges for s in range(first, last + 1)}


def test_frames_sent_again_enter_before_and_between_others():
    in_flight = InFlight()
    for first, count in ((10, 3), (4, 2), (7, 1), (0, 1)):
        in_flight.add(first, np.arange(first, first + count, dtype=np.uint32))
    assert in_flight.ranges() == [(0, 0), (4, 5), (7, 7), (10, 12)]
    assert release(in_flight, 4, 5).tolist() == [4, 5]
    with pytest.raises(ProtocolError):
        release(in_flight, 7, 10)
    assert in_flight.release_known(0, 11).tolist() == [0, 7, 10, 11]
    assert (in_flight.ranges(), in_flight.frames) == ([(12, 12)], 1)
    assert in_flight.release_known(0, 11).tolist() == []
    assert in_flight.release_known(13, 20).tolist() == []


def test_a_ring_is_held_until_the_last_of_its_frames():
    in_flight, old, new = InFlight(), object(), object()
    in_flight.add(0, np.array([5, NO_SLOT], np.uint32), keep=old)
    in_flight.add(2, np.array([6], np.uint32), keep=new)
    release(in_flight, 0, 0)
    assert (in_flight.holds(old), in_flight.holds(new)) == (True, True)
    assert release(in_flight, 1, 1).tolist() == [NO_SLOT]
    assert (in_flight.holds(old), in_flight.holds(new)) == (False, True)


RANGES = st.sets(st.integers(0, 50)).map(lambda sequences: ranges_of(np.array(list(sequences), np.uint64)))


@given(RANGES, RANGES, st.integers(0, 50), st.integers(0, 20))
def test_what_is_left_without_others(
    some: list[tuple[int, int]], others: list[tuple[int, int]], first: int, more: int
):
    left = without((first, first + more), some, others)
    assert as_set(left) == set(range(first, first + more + 1)) - as_set(some) - as_set(others)
    assert as_set(left) == set() or left == sorted(left)


@given(RANGES, st.integers(1, 10))
def test_ranges_are_closed_up_over_the_smallest_gaps(ranges: list[tuple[int, int]], most: int):
    fewer = at_most(ranges, most)
    assert len(fewer) == min(most, len(ranges))
    assert as_set(fewer) >= as_set(ranges)
    closed = sorted(later[0] - earlier[1] for earlier, later in itertools.pairwise(ranges))[
        : len(ranges) - len(fewer)
    ]
    assert len(as_set(fewer)) - len(as_set(ranges)) == sum(closed) - len(closed)
