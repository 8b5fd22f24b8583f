"""The table of the overload policy ``degrade``: complete, without contradiction, and slow to change its
mind."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.acquire.overload_level import (
    DWELL_S,
    HIGH,
    LOW,
    STUCK_S,
    TABLE,
    TRIAL_S,
    Backlog,
    LevelMove,
    LevelRank,
    OverloadLevel,
    backlog_part,
    decide,
)
from shardwright.codecs.degrade import DegradeLevel

CASES = list(itertools.product(Backlog, LevelRank, (False, True), (False, True), (False, True)))
LADDERS = (
    (DegradeLevel.CONFIGURED,),
    (DegradeLevel.CONFIGURED, DegradeLevel.UNCOMPRESSED),
    tuple(DegradeLevel),
)


@pytest.mark.parametrize("case", CASES)
def test_each_case_matches_exactly_one_row(case):
    assert sum(row.matches(*case) for row in TABLE) == 1


@pytest.mark.parametrize("row", TABLE)
def test_each_row_has_a_case(row):
    assert any(row.matches(*case) for case in CASES)


@pytest.mark.parametrize("case", CASES)
def test_what_the_table_means(case):
    backlog, rank, tried, rested, stuck = case
    move = decide(*case)
    assert (move is LevelMove.UP) == (
        backlog is Backlog.HIGH and rank in (LevelRank.LOWEST, LevelRank.INNER) and tried
    )
    slower = backlog is Backlog.LOW and rank in (LevelRank.HIGHEST, LevelRank.INNER) and rested
    assert (move is LevelMove.DOWN) == (
        slower or (backlog is Backlog.HIGH and rank is LevelRank.HIGHEST and stuck)
    )


def test_marks():
    assert [Backlog.of(part) for part in (0, LOW, LOW + 0.01, HIGH - 0.01, HIGH, 1)] == [
        *[Backlog.LOW] * 2,
        *[Backlog.BETWEEN] * 2,
        *[Backlog.HIGH] * 2,
    ]


steps = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 3 * DWELL_S), st.integers(0, 6), st.sampled_from(DegradeLevel)),
    max_size=60,
)


@given(ladder=st.sampled_from(LADDERS), tasks_to_try=st.integers(1, 5), steps=steps)
def test_whatever_happens(ladder, tasks_to_try, steps):
    """One level at a time and only along the ladder; up only at the high mark and after enough tasks at this
    level, down only at the low mark and after the dwell."""
    control, now_s, changed_s, tasks = OverloadLevel(ladder, tasks_to_try), 0.0, None, tasks_to_try
    for part, wait_s, done, level in steps:
        for _ in range(done):
            control.task_done(level)
        tasks += done if level is control.level else 0
        now_s += wait_s
        was = control.level
        left = control.look(part, now_s)
        assert (left is None) == (control.level is was)
        if left is None:
            continue
        assert left is was
        move = ladder.index(control.level) - ladder.index(was)
        if move == 1:
            assert part >= HIGH
            assert tasks >= tasks_to_try
        else:
            assert move == -1
            assert part <= LOW or (part >= HIGH and now_s - changed_s >= STUCK_S)
            assert changed_s is None or now_s - changed_s >= DWELL_S
        changed_s, tasks = now_s, 0


@given(
    ladder=st.sampled_from(LADDERS),
    parts=st.lists(st.floats(LOW + 0.001, HIGH - 0.001)),
    at=st.integers(0, 2),
)
def test_between_the_marks_nothing_changes(ladder, parts, at):
    control = OverloadLevel(ladder, 1)
    for i in range(at):
        control.look(1.0, float(i))
        control.task_done(control.level)
    held = control.level
    assert [control.look(part, 10.0 + 10 * i) for i, part in enumerate(parts)] == [None] * len(parts)
    assert control.level is held


@given(ladder=st.sampled_from(LADDERS))
def test_a_ring_that_stays_full_reaches_the_top_and_an_empty_one_the_bottom(ladder):
    control = OverloadLevel(ladder, 2)
    for i in range(2 * len(ladder)):
        control.look(1.0, float(i))
        control.task_done(control.level)
        control.task_done(control.level)
    assert control.level is ladder[-1]
    for i in range(2 * len(ladder)):
        control.look(0.0, 100.0 + i * DWELL_S)
    assert control.level is ladder[0]


counts = st.integers(0, 200)


@given(ring=st.integers(1, 200), used=counts, collecting=counts, held=counts, unsynced=counts)
def test_the_backlog_is_a_part_that_grows_with_what_waits(ring, used, collecting, held, unsynced):
    def part(used_frames: int) -> float:
        return backlog_part(
            ring_frames=ring,
            used_frames=used_frames,
            collecting_frames=collecting,
            held_frames=held,
            unsynced_frames=unsynced,
        )

    assert 0 <= part(used) <= part(used + 1) <= 1
    assert part(min(used, collecting + unsynced)) == 0, "frames that no encoder can help are no backlog"


def test_a_ring_that_is_full_of_frames_for_the_encoders_is_full():
    """However many frames wait for their slab, or for a sync within its half."""
    for collecting, unsynced in itertools.product((0, 7, 15), (0, 8, 16)):
        full = backlog_part(
            ring_frames=49,
            used_frames=49,
            collecting_frames=collecting,
            held_frames=15,
            unsynced_frames=unsynced,
        )
        assert full == 1.0
    assert (
        backlog_part(ring_frames=49, used_frames=31, collecting_frames=15, held_frames=15, unsynced_frames=0)
        < HIGH
    ), "one slab at the workers"
    assert (
        backlog_part(ring_frames=49, used_frames=32, collecting_frames=0, held_frames=15, unsynced_frames=0)
        >= HIGH
    ), "and one more behind it"


def test_a_disk_that_cannot_take_uncompressed_chunks_is_not_asked_to_for_ever():
    """Each level below the highest gets time to show that the backlog falls."""
    control, now_s = OverloadLevel(tuple(DegradeLevel), 1), 0.0
    for _ in range(2):
        control.look(1.0, now_s)
        control.task_done(control.level)
    assert control.level is DegradeLevel.UNCOMPRESSED
    assert control.look(1.0, STUCK_S - 0.1) is None
    assert control.look(1.0, STUCK_S) is DegradeLevel.UNCOMPRESSED
    control.task_done(control.level)
    assert control.look(1.0, STUCK_S + TRIAL_S - 0.1) is None, "still full, but it has only begun"
    assert control.look(0.1, STUCK_S + TRIAL_S - 0.1) is DegradeLevel.FASTER, "the backlog is gone"
    assert control.level is DegradeLevel.CONFIGURED
