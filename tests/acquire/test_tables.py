"""The tables of an acquisition's life, of a shard row and of its files: each event in each state is in its
table once, or never comes. Likewise each frame that no slab collects has one verdict."""

from __future__ import annotations

from itertools import product

import pytest

from shardwright.acquire.states import (
    FILES,
    LIFE,
    SHARD_ROW,
    AcquisitionState,
    FilesEvent,
    FilesState,
    Life,
    LifeEvent,
    ShardRowEvent,
    ShardRowState,
)
from shardwright.acquire.verdicts import REFUSALS, REFUSING, TABLE, VERDICTS, FrameVerdict, Stored, decide

MACHINES = [
    (LIFE, Life, LifeEvent),
    (SHARD_ROW, ShardRowState, ShardRowEvent),
    (FILES, FilesState, FilesEvent),
]
CASES = [
    (table, state, event) for table, states, events in MACHINES for state, event in product(states, events)
]


@pytest.mark.parametrize(
    ("table", "state", "event"), CASES, ids=[f"{state}, {event.value}" for _, state, event in CASES]
)
def test_each_event_in_each_state_is_one_row_or_a_mistake(table, state, event):
    rows = [step for step in table.steps if step.event is event and state in step.states]
    if rows:
        (row,) = rows
        assert table.after(state, event) is row.after
    else:
        with pytest.raises(AssertionError, match=event.value):
            table.after(state, event)


@pytest.mark.parametrize(("table", "_states", "events"), MACHINES, ids=["life", "shard row", "files"])
def test_every_event_says_when_it_never_comes(table, _states, events):
    assert table.never.keys() == set(events)


@pytest.mark.parametrize(
    ("table", "states", "first", "last"),
    [
        (LIFE, Life, {Life.OPEN}, {Life.SEALED, Life.FAILED}),
        (
            SHARD_ROW,
            ShardRowState,
            {ShardRowState.NEW, ShardRowState.REOPENING},
            {ShardRowState.SEALED, ShardRowState.EARLIER},
        ),
        (FILES, FilesState, {FilesState.PREPARING, FilesState.REOPENING}, {FilesState.GONE}),
    ],
    ids=["life", "shard row", "files"],
)
def test_every_state_is_reached_and_all_of_them_end(table, states, first, last):
    reached, ending = set(first), set(last)
    for _ in states:
        reached |= {step.after for step in table.steps if step.states & reached}
        ending |= {state for step in table.steps if step.after in ending for state in step.states}
    assert reached == ending == set(states)
    assert not any(step.states & last for step in table.steps)


def test_every_state_of_a_life_is_one_that_others_see():
    assert {one.state for one in Life} == set(AcquisitionState)


FRAMES = list(product(ShardRowState, Stored))


@pytest.mark.parametrize(("state", "stored"), FRAMES, ids=[f"{s.value}, {p.name.lower()}" for s, p in FRAMES])
def test_each_frame_has_one_verdict(state, stored):
    (row,) = [row for row in TABLE if row.matches(state, stored)]
    assert decide(state, stored) is row.verdict
    assert VERDICTS[state][stored] == row.verdict
    assert row.verdict not in REFUSALS or state in REFUSING, "else nobody asks"


def test_only_a_place_that_is_taken_or_passed_over_is_refused_while_its_shard_row_can_be_open():
    can_be = set(ShardRowState) - {ShardRowState.CLOSED, ShardRowState.SEALED}
    refused = {(stored, decide(state, stored)) for state in can_be for stored in Stored}
    assert {each for each in refused if each[1] in REFUSALS} == {
        (Stored.FRAME, FrameVerdict.DUPLICATE),
        (Stored.CLOSED, FrameVerdict.LATE),
    }
