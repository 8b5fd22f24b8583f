"""The oracle excuses no more than what happened: each of these is a loss that it must not take for one of
those."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardwright.acquire.accounts import Accounts
from shardwright.model.frame_status import FrameStatus, Reason

from .faults import Faults
from .finished_store import RECORD, Left
from .oracle import Oracle, ViolationError, metadata_of
from .story import Fault, Frame, Shape, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterable

FRAMES = 3
GRIDS = plan_of(Shape(axes=((None, 1, 4),), files=1, tasks=1)).spec.grids


@pytest.fixture
def oracle() -> Oracle:
    """Of an acquisition whose frames were sent."""
    oracle = Oracle(GRIDS, tuple(map(Frame, range(FRAMES))), Faults(random.Random(0)))
    oracle.sent.update(range(FRAMES))
    return oracle


def _accounts(stored: Iterable[int], durable: Iterable[int] = ()) -> Accounts:
    accounts = Accounts(GRIDS)
    accounts.stored.add(np.array([*stored], np.int64))
    accounts.durable.add(np.array([*durable], np.int64))
    return accounts


def _left(oracle: Oracle, lost: dict[int, Reason], stored: Iterable[int] = ()) -> Left:
    """A finished store in which frames have these statuses."""
    sequences = np.array([*lost, *stored], np.int64)
    records = np.zeros(sequences.size, RECORD)
    records["sequence"] = records["position"] = sequences
    for name, values in metadata_of(sequences).items():
        records[name] = values
    records["status"] = FrameStatus.STORED
    records["status"][: len(lost)], records["reason"][: len(lost)] = FrameStatus.LOST, [*lost.values()]
    oracle.arrive(stored, 0, 0)
    pixels = np.zeros((FRAMES, 1, 1), np.uint16)
    for n in stored:
        pixels[n] = oracle.token(n)
    return Left(GRIDS, records, [(0, 0, pixels)], 1)


def test_an_answer_that_comes_late_is_no_failure_of_the_disk() -> None:
    faults = Faults(random.Random(0))
    faults.begin((Fault("stall", 0), Fault("late", 0)))
    assert faults.stalls("shard.before_rename")
    assert faults.makes_late("shard.before_rename")
    assert faults.has_stalled
    assert not faults.met
    assert not faults.has_failed


def test_what_recovery_has_found_is_not_excused_any_more(oracle: Oracle) -> None:
    oracle.observe(_accounts((0, 1)))
    oracle.excuse({0})
    oracle.taken_up(_accounts((0, 1)), (), power=False)
    with pytest.raises(ViolationError, match="gone after a kill"):
        oracle.taken_up(_accounts((1,)), (), power=False)
    oracle.excuse({0})
    oracle.taken_up(_accounts((1,)), (), power=False)


def test_what_the_frame_log_has_as_lost_is_excused_still(oracle: Oracle) -> None:
    """Its pixels may lie in a shard whose record is gone."""
    oracle.observe(_accounts((0, 1)))
    oracle.excuse({0})
    oracle.taken_up(_accounts((1,)), (), power=False)
    oracle.taken_up(_accounts((0, 1)), [0], power=False)
    assert oracle.excused == {0}


def test_a_sync_that_failed_excuses_nothing_that_was_durable_before(oracle: Oracle) -> None:
    """Until a process that does not know of it has begun."""
    oracle.observe(_accounts((0, 1), (0,)))
    oracle.leave_unmarked()
    oracle.lose_power()
    with pytest.raises(ViolationError, match="gone after a power cut"):
        oracle.taken_up(_accounts(()), (), power=True)
    oracle.leave_unmarked()
    oracle.begin()
    oracle.lose_power()
    oracle.taken_up(_accounts(()), (), power=True)


def test_a_reader_hears_of_a_changed_byte_until_recovery_is_over(oracle: Oracle) -> None:
    began_before = len(oracle.excusals)
    oracle.flip()
    oracle.excuse(())
    oracle.taken_up(_accounts(()), (), power=False)
    assert oracle.had_a_flip(began_before)
    assert not oracle.had_a_flip(len(oracle.excusals))
    assert oracle.faulty, "frames may be gone"


def test_what_was_acknowledged_before_it_was_lost_is_told_so(oracle: Oracle) -> None:
    """It was settled since, and whoever had it has heard of that."""
    oracle.kills = oracle.power_cuts = 1
    oracle.observe(_accounts((0, 1)))
    oracle.taken_up(_accounts((1,), (1,)), (), power=True)
    oracle.written_off.add(0)
    oracle.judge(_left(oracle, {0: Reason.NOT_HELD}, [1]), None)
    with pytest.raises(ViolationError, match="acknowledged before it was lost"):
        oracle.judge(_left(oracle, {0: Reason.NOT_ACKNOWLEDGED}, [1]), None)


def test_what_was_acknowledged_before_it_was_lost_has_a_status(oracle: Oracle) -> None:
    """But if nothing behind it is known either, nobody knows of it."""
    oracle.kills = oracle.power_cuts = 1
    oracle.observe(_accounts((0, 1)))
    oracle.taken_up(_accounts((0,), (0,)), (), power=True)
    oracle.judge(_left(oracle, {}, [0]), None)
    with pytest.raises(ViolationError, match="without a status"):
        oracle.judge(_left(oracle, {}, [0, 2]), None)


def test_what_is_sent_again_may_be_lost_before_it_is_acknowledged(oracle: Oracle) -> None:
    oracle.kills = oracle.power_cuts = 1
    oracle.observe(_accounts((0, 1)))
    oracle.taken_up(_accounts((1,), (1,)), (), power=True)
    oracle.arrive([0], 0, 0)
    oracle.judge(_left(oracle, {0: Reason.NOT_ACKNOWLEDGED}, [1]), None)


def test_what_was_lost_may_be_there_in_part(oracle: Oracle) -> None:
    """One of its shards has its name, and another one could not be read. What was not lost may not."""
    oracle.kills = 1
    left = _left(oracle, {0: Reason.NOT_HELD}, [1])
    left.arrays[:] = [(0, 0, np.array([[[0, 1]], [[2, 2]], [[0, 0]]], np.uint16))]
    oracle.excuse({0})
    oracle.judge(left, None)
    oracle.excused.clear()
    with pytest.raises(ViolationError, match="no status tells of"):
        oracle.judge(left, None)
