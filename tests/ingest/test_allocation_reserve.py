"""What is kept for pixels in messages: never more than the acquisitions in hand and the last client's may
need; nothing once that client is gone."""

from __future__ import annotations

import gc
import weakref

import pytest

import shardwright as sw
from shardwright.client.send_queue import COPYING
from shardwright.disk import allocation_reserve
from shardwright.disk.allocation_reserve import AllocationReserve, give_back, trim
from shardwright.ingest.transport.inbound_byte_limit import FURTHER_BYTES
from shardwright.model.promise import Promise

A, B = object(), object()


@pytest.fixture
def done() -> list:
    return []


@pytest.fixture
def promises() -> list[Promise[None]]:
    """Of what was submitted."""
    return []


@pytest.fixture
def reserve(done, promises) -> AllocationReserve:
    def submit(call) -> Promise[None]:
        done.append(call)
        promises.append(Promise())
        return promises[-1]

    return AllocationReserve(submit)


def test_the_next_acquisition_of_a_client_finds_what_its_last_one_had(reserve, done) -> None:
    reserve.expect(A, 100, 0)
    reserve.tick(100, 0, FURTHER_BYTES)
    reserve.tick(0, 0, 0)
    assert (reserve.kept_bytes, done) == (100, [])
    reserve.expect(A, 100, 0)
    assert (reserve.kept_bytes, done) == (100, [])


def test_one_that_needs_more_adds_to_it(reserve, done) -> None:
    reserve.expect(A, 100, 0)
    reserve.expect(A, 150, 0)
    assert (reserve.kept_bytes, done) == (150, [])
    reserve.expect(A, 50, 150)  # beside the one that runs
    assert (reserve.kept_bytes, done) == (200, [])


def test_several_streams_of_a_client_find_what_they_had_at_once(reserve, done) -> None:
    for in_use in (0, 100, 0, 100):
        reserve.expect(A, 100, in_use)
    assert (reserve.kept_bytes, done) == (200, [])


def test_another_client_has_its_own_and_what_nobody_uses_goes_first(reserve, done) -> None:
    reserve.expect(A, 100, 0)
    reserve.expect(B, 60, 0)
    assert (reserve.kept_bytes, done) == (60, [give_back])


def test_a_ring_beside_it_takes_nothing_of_what_is_in_use_and_it_is_kept_on(reserve, done) -> None:
    reserve.expect(A, 100, 0)
    reserve.make_room(100)
    reserve.tick(0, 0, 0)
    assert (reserve.kept_bytes, done) == (100, [])


def test_a_ring_takes_the_place_of_what_nobody_uses(reserve, done) -> None:
    reserve.expect(A, 100, 0)
    reserve.expect(A, 50, 100)
    reserve.make_room(50)
    assert (reserve.kept_bytes, done) == (50, [trim])
    reserve.make_room(0)
    assert (reserve.kept_bytes, done) == (0, [trim, give_back])


def test_nothing_is_kept_for_a_client_that_is_gone(reserve, done) -> None:
    reserve.expect(A, 100, 0)
    reserve.forget(B)
    reserve.tick(0, 0, 0)
    assert reserve.kept_bytes == 100
    reserve.forget(A)
    reserve.tick(100, 0, FURTHER_BYTES)  # its acquisition is not sealed yet
    assert reserve.kept_bytes == 100
    reserve.tick(0, 0, 0)
    assert (reserve.kept_bytes, done) == (0, [give_back])


@pytest.mark.parametrize(("in_use", "kept_for_nobody"), [(0, 100), (60, 40), (100, 0)])
def test_what_is_kept_counts_once_when_it_is_in_use(
    reserve, monkeypatch, in_use: int, kept_for_nobody: int
) -> None:
    """The ring of an acquisition with pixels in messages is in its plan, and is what is kept."""
    tables = 30
    monkeypatch.setattr(allocation_reserve, "resident_bytes", lambda: 1000)
    reserve.expect(A, 100, 0)
    assert reserve.beyond_plan(in_use, in_use + tables) == 1000 - in_use - tables - kept_for_nobody


def test_what_is_to_go_counts_until_it_has_gone(reserve, promises, monkeypatch) -> None:
    """The trim waits for its thread: meanwhile the memory is nobody's who sends."""
    monkeypatch.setattr(allocation_reserve, "resident_bytes", lambda: 100)
    reserve.expect(A, 100, 0)
    reserve.make_room(0)
    assert reserve.beyond_plan(0, 0) == 0
    reserve.expect(B, 60, 0)  # its memory takes the place, not more
    reserve.make_room(0)
    promises[0].keep(None)
    assert reserve.beyond_plan(0, 0) == 0
    promises[1].keep(None)
    assert reserve.beyond_plan(0, 0) == 100
    assert not reserve.is_trimming
    reserve.trim()
    assert reserve.is_trimming
    promises[2].keep(None)
    assert not reserve.is_trimming


def test_cameras_that_run_are_held_up_only_for_much_memory(reserve, done, monkeypatch) -> None:
    """A trim has the lock of the heap from which their messages come."""
    beyond_bytes = 1
    monkeypatch.setattr(allocation_reserve, "resident_bytes", lambda: 10 + beyond_bytes)
    reserve.ended()
    reserve.tick(0, 10, FURTHER_BYTES)
    assert done == []
    reserve.tick(0, 10, 0)
    assert done == [trim]
    beyond_bytes = FURTHER_BYTES + 1
    reserve.tick(0, 10, FURTHER_BYTES)  # nothing has ended since
    assert done == [trim]
    reserve.ended()
    reserve.tick(0, 10, FURTHER_BYTES)
    assert done == [trim, trim]


def acquire(connection: sw.Connection, name: str, spec: sw.ArraySpec, frames) -> int:
    """Sends ``frames``; returns where they waited to be sent."""
    with connection.acquire(name, spec) as stream:
        address = stream._outbox.ring.memory.ctypes.data
        for frame in frames:
            stream.append(frame)
    assert stream.receipt.frames_durable == len(frames)
    return address


def test_acquisitions_one_after_the_other_share_memory_on_both_sides(start, spec_of, frames_of, wait) -> None:
    daemon, frames = start(), frames_of(20)
    reserve = daemon.server._openings._reserve
    with sw.connect(daemon.ipc, transport="message") as connection:
        first = acquire(connection, "a", spec_of(), frames)
        kept = reserve.kept_bytes
        assert kept > 0
        assert [acquire(connection, name, spec_of(), frames) for name in "bc"] == [first] * 2
        assert reserve.kept_bytes == kept
        acquire(connection, "d", spec_of(chunk=4), frames)
        assert reserve.kept_bytes > 0
        with sw.connect(daemon.ipc, transport="shm") as other:
            other.acquire("e", spec_of()).close()
        assert reserve.kept_bytes == 0
        acquire(connection, "f", spec_of(), frames)
        assert reserve.kept_bytes == kept
    wait(lambda: reserve.kept_bytes == 0)


def test_a_closed_connection_keeps_no_memory_and_reuse_wraps_nothing(start, spec_of, frames_of, wait) -> None:
    """A user may keep the stream for its receipt; and a chain of views of views would be torn down in one go
    at the end."""
    daemon, memory = start(), []
    with sw.connect(daemon.ipc, transport="message") as connection:
        for name in "abc":
            with connection.acquire(name, spec_of()) as stream:
                memory.append(stream._outbox.ring.memory)
                stream.append(frames_of(1)[0])
    assert all(each is memory[0] for each in memory)
    kept = weakref.ref(memory.pop())
    memory.clear()
    gc.collect()
    wait(lambda: kept() is None)  # a thread of pyzmq lets go of what was sent from it
    assert stream.receipt.frames_durable == 1


def test_memory_that_somebody_still_writes_to_is_not_used_again(start, spec_of, wait) -> None:
    daemon = start()
    with sw.connect(daemon.ipc, transport="message") as connection:
        stream = connection.acquire("a", spec_of())
        outbox = stream._outbox
        with outbox._lock.held:
            slot = outbox._queue.take_one(COPYING)  # another thread is at a frame that comes too late
        outbox.finish()
        ring = outbox.ring
        wait(lambda: outbox.receipt is not None and outbox.ring is None)
        other = connection.acquire("b", spec_of())
        assert other._outbox.ring.memory.ctypes.data != ring.memory.ctypes.data
        with outbox._lock.held:
            outbox._queue.give_back(slot)
