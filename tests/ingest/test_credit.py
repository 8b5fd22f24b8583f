"""What a session's client has sent, and what it is told of it, where two clients follow each other."""

from __future__ import annotations

import numpy as np

from shardwright.ingest.credit import Credit
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_DROPPED

FRAME_BYTES = 8


def take(credit: Credit, first: int, count: int, *, dropped: bool = False) -> None:
    """A batch of frames, each with its pixels in a part of its own, or without."""
    descriptors = np.zeros(count, DESCRIPTOR)
    descriptors["sequence"] = first + np.arange(count)
    descriptors["slot"] = 0 if dropped else np.arange(count)
    descriptors["flags"] = FRAME_DROPPED if dropped else 0
    credit.take(descriptors, [] if dropped else [memoryview(bytes(FRAME_BYTES))] * count, None)


def test_a_client_hears_nothing_of_the_frames_of_the_one_before_it():
    """Also while it has told of frames that it dropped: a release that ends before its first frame is none of
    its own."""
    credit = Credit(FRAME_BYTES)
    credit.begin(0, 8)
    take(credit, 0, 4)
    credit.begin(4, 8)
    take(credit, 4, 1)
    take(credit, 5, 2, dropped=True)
    assert [tuple(pair) for pair in credit.release(np.array([1, 2, 3]), 0).tolist()] == []
    assert [tuple(pair) for pair in credit.release(np.array([0, 4]), 0).tolist()] == [(4, 4)]
    assert [tuple(pair) for pair in credit.release(np.array([]), 7).tolist()] == [(5, 6)]
    assert credit.frames_in_flight == 0


def test_a_release_over_the_border_of_two_clients_is_told_from_the_second_ones_first_frame():
    credit = Credit(FRAME_BYTES)
    credit.begin(0, 8)
    take(credit, 0, 4)
    credit.begin(4, 8)
    take(credit, 4, 2)
    assert [tuple(pair) for pair in credit.release(np.array([2, 3, 4, 5]), 0).tolist()] == [(4, 5)]
