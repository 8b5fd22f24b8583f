"""Repeating lines, by a clock that the test moves: the first are written, then one tells of the others, and
none is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardwright.daemon.repeats import MOST_SOURCES, Repeats

HERE = {"path": "/data/a"}


def admitted(repeats: Repeats, times: int, now_s: float, **facts: object) -> int:
    return sum(repeats.admit("disk_full", facts or HERE, now_s) for _ in range(times))


def test_the_first_lines_are_written_and_the_others_told_at_the_windows_end() -> None:
    repeats = Repeats(10, 10.0)
    assert admitted(repeats, 25, 0.0) == 10
    assert repeats.due_in_s(4.0) == 6.0
    assert repeats.take_due(9.9) == []
    assert repeats.take_due(10.0) == [("disk_full", {**HERE, "repeated": 15})]


def test_what_goes_on_is_one_line_a_window() -> None:
    repeats = Repeats(10, 10.0)
    admitted(repeats, 11, 0.0)
    for window in range(1, 5):
        assert repeats.take_due(window * 10.0) == [
            ("disk_full", {**HERE, "repeated": 1 if window == 1 else 30})
        ]
        assert admitted(repeats, 30, window * 10.0 + 1) == 0


def test_after_a_quiet_window_the_next_is_a_first_one_again() -> None:
    repeats = Repeats(2, 10.0)
    admitted(repeats, 3, 0.0)
    assert len(repeats.take_due(10.0)) == 1
    assert repeats.take_due(20.0) == []
    assert repeats.due_in_s(20.0) is None, "nothing is remembered"
    assert admitted(repeats, 3, 21.0) == 2


def test_a_window_that_nobody_looked_at_does_not_hold_the_next_event_back() -> None:
    repeats = Repeats(2, 10.0)
    assert admitted(repeats, 2, 0.0) == 2
    assert admitted(repeats, 2, 10.0) == 2


def test_sources_and_events_are_told_apart() -> None:
    repeats = Repeats(1, 10.0)
    assert admitted(repeats, 2, 0.0, path="/data/a") == 1
    assert admitted(repeats, 2, 0.0, path="/data/b", host="rig") == 1
    assert admitted(repeats, 2, 0.0, host="rig", name="x") == 1
    assert admitted(repeats, 2, 0.0, host="rig", name="y") == 0
    assert repeats.admit("disk_has_room", HERE, 0.0)


def test_the_line_carries_the_latest_facts_and_keeps_no_exception_alive() -> None:
    repeats = Repeats(1, 10.0)
    for frame in range(3):
        repeats.admit("io_error", {"path": "/a", "frame": frame, "exc_info": ValueError()}, 0.0)
    assert repeats.take_all() == [("io_error", {"path": "/a", "frame": 2, "repeated": 2})]
    assert repeats.take_all() == []


def test_no_limit() -> None:
    assert admitted(Repeats(0, 10.0), 1000, 0.0) == 1000


def test_a_flood_of_sources_costs_bounded_memory_and_is_limited_too() -> None:
    repeats = Repeats(1, 10.0)
    written = sum(admitted(repeats, 1, 0.0, host=str(i)) for i in range(5 * MOST_SOURCES))
    assert written == MOST_SOURCES + 1
    assert sum(facts["repeated"] for _, facts in repeats.take_due(10.0)) == 4 * MOST_SOURCES - 1


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0, 5)), max_size=200), st.integers(1, 5))
def test_every_event_is_a_line_or_counted_in_one(steps: list[tuple[str, float]], lines: int) -> None:
    repeats, now_s, told = Repeats(lines, 10.0), 0.0, 0
    for source, pause_s in steps:
        now_s += pause_s
        told += sum(facts["repeated"] for _, facts in repeats.take_due(now_s))
        told += repeats.admit("e", {"path": source}, now_s)
    assert told + sum(facts["repeated"] for _, facts in repeats.take_all()) == len(steps)
