"""The ring that outlives its session: for the same peer and size only, never two, and given back as soon as
nobody can come for it."""

from __future__ import annotations

import ctypes
import os

import pytest

from shardwright.disk.ring import Ring, SpareRing

RING_BYTES = 1 << 16


class Peer:
    pass


@pytest.fixture
def freed(monkeypatch):
    rings = []
    free = Ring.free
    monkeypatch.setattr(Ring, "free", lambda ring: (rings.append(ring), free(ring))[1])
    return rings


def test_the_next_session_of_a_peer_takes_the_ring_over(freed):
    spare, peer = SpareRing(), Peer()
    first = spare.take(peer, RING_BYTES)
    ctypes.memset(first.address, 7, RING_BYTES)
    first.close()
    second = spare.take(peer, RING_BYTES)
    assert second is first
    assert freed == []
    os.fstat(second.descriptor)
    assert ctypes.string_at(second.address, 1) == b"\7", "not even touched"
    third = spare.take(peer, RING_BYTES)
    assert third is not second, "one that is in use is nobody else's"
    second.close()
    third.close()
    assert freed == [second], "one is kept, not two"
    spare.release()
    assert freed == [second, third]


@pytest.mark.parametrize("other", ["peer", "size"])
def test_nobody_else_gets_it_and_its_memory_goes_first(freed, other):
    """What another client has mapped is never handed on: it could read the frames, or scribble in them."""
    spare, peer = SpareRing(), Peer()
    first = spare.take(peer, RING_BYTES)
    first.close()
    second = spare.take(Peer(), RING_BYTES) if other == "peer" else spare.take(peer, 2 * RING_BYTES)
    assert second is not first
    assert freed == [first]
    spare.release()
    second.close()
    spare.release()


def test_a_peer_that_is_gone_leaves_nothing_behind(freed):
    spare, peer, other = SpareRing(), Peer(), Peer()
    kept, in_use = spare.take(peer, RING_BYTES), spare.take(peer, RING_BYTES)
    kept.close()
    spare.release(other)
    assert freed == []
    spare.release(peer)
    assert freed == [kept]
    in_use.close()
    assert freed == [kept, in_use], "also one whose frames were still needed when it left"
