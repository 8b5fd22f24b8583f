"""The session tables: every (state, event) has exactly one row, and the sentences of PROTOCOL.md hold."""

from __future__ import annotations

import itertools
from enum import Enum

import pytest

from shardwright.wire.session_tables import (
    CLIENT_TABLE,
    DAEMON_TABLE,
    ClientEvent,
    ClientState,
    DaemonEvent,
    DaemonState,
    Verdict,
    rows_for,
    step,
)

PAIRS = [
    *((DAEMON_TABLE, state, event) for state, event in itertools.product(DaemonState, DaemonEvent)),
    *((CLIENT_TABLE, state, event) for state, event in itertools.product(ClientState, ClientEvent)),
]


@pytest.mark.parametrize(
    ("table", "state", "event"), PAIRS, ids=lambda value: value.value if isinstance(value, Enum) else ""
)
def test_each_pair_matches_exactly_one_row(table, state, event):
    assert len(rows_for(table, state, event)) == 1


@pytest.mark.parametrize(
    ("table", "state", "event"), PAIRS, ids=lambda value: value.value if isinstance(value, Enum) else ""
)
def test_what_is_ignored_changes_nothing_and_what_is_refused_ends_the_session(table, state, event):
    verdict, then = step(table, state, event)
    if verdict is Verdict.IGNORE:
        assert then is state
    if verdict is Verdict.REFUSE:
        assert then in (DaemonState.DRAINING, ClientState.FAILED)


@pytest.mark.parametrize("over", [DaemonState.DRAINING, DaemonState.ENDED])
def test_a_session_that_is_over_never_opens_again(over: DaemonState):
    assert all(
        step(DAEMON_TABLE, over, event)[1] in (DaemonState.DRAINING, DaemonState.ENDED)
        for event in DaemonEvent
    )


@pytest.mark.parametrize("over", [ClientState.ENDED, ClientState.FAILED])
def test_a_client_that_has_ended_stays_ended(over: ClientState):
    assert all(step(CLIENT_TABLE, over, event)[1] is over for event in ClientEvent)


def test_the_ordinary_life_of_a_session():
    state = DaemonState.AWAIT_RING
    for event, expected in [
        (DaemonEvent.RING_TAKEN, DaemonState.RUNNING),
        (DaemonEvent.FRAMES, DaemonState.RUNNING),
        (DaemonEvent.FINISH, DaemonState.FINISHING),
        (DaemonEvent.SETTLED, DaemonState.ENDED),
    ]:
        verdict, state = step(DAEMON_TABLE, state, event)
        assert (verdict, state) == (Verdict.ACCEPT, expected)


def test_a_client_that_vanishes_may_come_back_until_its_time_is_over():
    state = DaemonState.RUNNING
    for event, expected in [
        (DaemonEvent.LINK_LOST, DaemonState.DETACHED),
        (DaemonEvent.ATTACHED, DaemonState.AWAIT_RING),
        (DaemonEvent.LINK_LOST, DaemonState.DETACHED),
        (DaemonEvent.ATTACHED, DaemonState.AWAIT_RING),
        (DaemonEvent.RING_TAKEN, DaemonState.RUNNING),
        # the old connection is dead, and the daemon does not know yet
        (DaemonEvent.ATTACHED, DaemonState.AWAIT_RING),
        (DaemonEvent.RING_TAKEN, DaemonState.RUNNING),
        (DaemonEvent.LINK_LOST, DaemonState.DETACHED),
        (DaemonEvent.TIMED_OUT, DaemonState.DRAINING),
    ]:
        verdict, state = step(DAEMON_TABLE, state, event)
        assert (verdict, state) == (Verdict.ACCEPT, expected)


def test_a_client_that_leaves_has_its_acquisition_sealed():
    assert step(DAEMON_TABLE, DaemonState.RUNNING, DaemonEvent.CLIENT_LEFT) == (
        Verdict.ACCEPT,
        DaemonState.DRAINING,
    )


def test_whoever_finished_stays_finishing_whatever_becomes_of_the_link():
    for event in (DaemonEvent.LINK_LOST, DaemonEvent.ATTACHED, DaemonEvent.STOPPING, DaemonEvent.TIMED_OUT):
        assert step(DAEMON_TABLE, DaemonState.FINISHING, event) == (Verdict.IGNORE, DaemonState.FINISHING)


def test_only_a_detached_acquisition_times_out():
    accepted = [
        state
        for state in DaemonState
        if step(DAEMON_TABLE, state, DaemonEvent.TIMED_OUT)[0] is Verdict.ACCEPT
    ]
    assert accepted == [DaemonState.DETACHED]


@pytest.mark.parametrize("before", [ClientState.TAKING_RING, ClientState.RUNNING, ClientState.FINISHING])
def test_a_client_keeps_its_stream_through_a_broken_link(before: ClientState):
    state = before
    for event, expected in [
        (ClientEvent.LINK_DOWN, ClientState.DETACHED),
        (ClientEvent.FINISH, ClientState.DETACHED),  # asked for again once everything was sent
        (ClientEvent.RESUMED, ClientState.TAKING_RING),
        (ClientEvent.READY, ClientState.RUNNING),
        (ClientEvent.FINISH, ClientState.FINISHING),
        (ClientEvent.LINK_DOWN, ClientState.DETACHED),
        (ClientEvent.RECEIPT, ClientState.ENDED),  # it had been sealed meanwhile
    ]:
        _, state = step(CLIENT_TABLE, state, event)
        assert state is expected


def test_no_frame_before_the_ring_and_none_after_finish():
    for state in (DaemonState.AWAIT_RING, DaemonState.FINISHING):
        assert step(DAEMON_TABLE, state, DaemonEvent.FRAMES) == (Verdict.REFUSE, DaemonState.DRAINING)


def test_frames_that_crossed_the_end_are_not_held_against_the_client():
    assert step(DAEMON_TABLE, DaemonState.DRAINING, DaemonEvent.FRAMES) == (
        Verdict.IGNORE,
        DaemonState.DRAINING,
    )


def test_a_receipt_nobody_asked_for_is_refused():
    assert step(CLIENT_TABLE, ClientState.RUNNING, ClientEvent.RECEIPT) == (
        Verdict.REFUSE,
        ClientState.FAILED,
    )
