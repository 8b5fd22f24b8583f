"""The table of a shard row's files: each event in each state is in it once, or never comes."""

from __future__ import annotations

from itertools import product

import pytest

from shardwright.pipeline.row_files import NEVER, TABLE, FilesEvent, FilesState, after

PAIRS = list(product(FilesState, FilesEvent))


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=[f"{state.value}, {event.value}" for state, event in PAIRS])
def test_each_event_in_each_state_is_one_row_or_a_mistake(state, event):
    rows = [step for step in TABLE if step.event is event and state in step.states]
    if rows:
        (row,) = rows
        assert after(state, event) is row.after
    else:
        with pytest.raises(AssertionError, match=event.value):
            after(state, event)


def test_every_event_says_when_it_never_comes():
    assert NEVER.keys() == set(FilesEvent)


def test_every_state_is_reached_and_all_of_them_end():
    reached, ending = {FilesState.PREPARING, FilesState.REOPENING}, {FilesState.GONE}
    for _ in FilesState:
        reached |= {step.after for step in TABLE if step.states & reached}
        ending |= {state for step in TABLE if step.after in ending for state in step.states}
    assert reached == ending == set(FilesState)
    assert not any(FilesState.GONE in step.states for step in TABLE)
