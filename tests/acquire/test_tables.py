"""The tables of an acquisition's life and of a shard row's files: each event in each state is in its table
once, or never comes."""

from __future__ import annotations

from itertools import product

import pytest

from shardwright.acquire.states import FILES, LIFE, AcquisitionState, FilesEvent, FilesState, Life, LifeEvent

MACHINES = [(LIFE, Life, LifeEvent), (FILES, FilesState, FilesEvent)]
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


@pytest.mark.parametrize(("table", "_states", "events"), MACHINES, ids=["life", "files"])
def test_every_event_says_when_it_never_comes(table, _states, events):
    assert table.never.keys() == set(events)


@pytest.mark.parametrize(
    ("table", "states", "first", "last"),
    [
        (LIFE, Life, {Life.OPEN}, {Life.SEALED, Life.FAILED}),
        (FILES, FilesState, {FilesState.PREPARING, FilesState.REOPENING}, {FilesState.GONE}),
    ],
    ids=["life", "files"],
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
