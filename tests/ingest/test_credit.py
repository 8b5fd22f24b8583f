"""What a session's client has sent, and what it is told of it, where two clients follow each other; and the
checks of what it sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.ingest.credit import Credit, addresses_in_parts, check_content, check_ring_slots
from shardwright.model.errors import MetadataError, ProtocolError
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_DROPPED, descriptor_dtype
from shardwright.wire.messages import Batch

FRAME_BYTES = 8


def take(credit: Credit, first: int, count: int, *, dropped: bool = False) -> Any:
    """A batch of frames, each with its pixels in a part of its own, or without. Returns its new descriptors,
    their addresses, and the ranges that were released before."""
    descriptors = np.zeros(count, DESCRIPTOR)
    descriptors["sequence"] = first + np.arange(count)
    descriptors["slot"] = 0 if dropped else np.arange(count)
    descriptors["flags"] = FRAME_DROPPED if dropped else 0
    return credit.take(descriptors, [] if dropped else [memoryview(bytes(FRAME_BYTES))] * count, None)


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


def test_a_client_that_repeats_frames_hears_which_of_them_are_released():
    """The answer that said so may have been lost with its connection."""
    credit = Credit(FRAME_BYTES)
    credit.begin(0, 8)
    take(credit, 0, 4)
    credit.release(np.array([0, 2]), 0)
    again, released = credit.resume(4, [], 8)
    assert (again, released) == ([], [(0, 0), (2, 2)])
    new, _, released = take(credit, 0, 5)
    assert new["sequence"].tolist() == [4], "each frame is taken once"
    assert released == [(0, 0), (2, 2)]


def test_none_of_the_frames_that_must_be_sent_again_may_be_left_out():
    credit = Credit(FRAME_BYTES)
    credit.begin(0, 8)
    take(credit, 0, 6)
    credit.release(np.arange(6), 0)
    assert credit.resume(6, [(1, 2), (4, 4)], 8) == ([(1, 2), (4, 4)], [(0, 0), (3, 3), (5, 5)])
    with pytest.raises(ProtocolError, match="sent again are missing"):
        take(credit, 2, 1)
    assert take(credit, 1, 2)[0]["sequence"].tolist() == [1, 2]
    assert not credit.all_came()
    with pytest.raises(ProtocolError, match="sent again are missing"):
        take(credit, 5, 2)
    assert take(credit, 4, 3)[0]["sequence"].tolist() == [4, 6]
    assert credit.all_came()


@pytest.mark.parametrize("slots", [[0, 8], [1, 2], [4, 4]])
def test_ring_slots_are_there_free_and_different(slots: list[int]) -> None:
    taken = np.zeros(8, np.bool_)
    check_ring_slots(np.array([0, 1, 7], np.uint32), taken)
    taken[2] = True
    with pytest.raises(ProtocolError, match="not free"):
        check_ring_slots(np.array(slots, np.uint32), taken)


@pytest.mark.parametrize("parts", [[8, 8], [8, 17], [8, 8, 7], [16, 0, 8], [25]])
def test_parts_of_a_message_hold_whole_frames(parts: list[int]) -> None:
    """One that is longer would shift the frames behind it, and one that is cut be read past its end."""
    slots = np.arange(3, dtype=np.uint32)
    assert addresses_in_parts([memoryview(bytes(8)), memoryview(bytes(16))], slots, FRAME_BYTES).size == 3
    with pytest.raises(ProtocolError, match="do not hold the frames"):
        addresses_in_parts([memoryview(bytes(nbytes)) for nbytes in parts], slots, FRAME_BYTES)


JSON_BYTES = 20  # its field has 24


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", None),
        (b'{"a": 12345678901234}'[:JSON_BYTES], MetadataError),
        (b'{"a": 123456789012}', None),
        (b'{"a": 12345678901234}', ProtocolError),  # readers rely on the array's limit
        (b'{"a": NaN}', MetadataError),
        (b"[1]", MetadataError),
        (b'{"a": "\xff"}', MetadataError),
        (b'{"a": 1} 2', MetadataError),
        (b"x", MetadataError),
    ],
)
def test_json_of_frames_is_an_object_that_readers_can_parse(
    text: bytes, error: type[Exception] | None
) -> None:
    spec = parse_acquisition(
        sw.ArraySpec(
            dtype="uint8",
            dimensions=[
                sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=1),
                *(sw.Dimension(name=name, count=8, chunk_size=8, shard_size_chunks=1) for name in "yx"),
            ],
            frame_json_bytes=JSON_BYTES,
        )
    )
    frames = np.zeros(2, descriptor_dtype(0, JSON_BYTES))
    frames["json"][1] = text
    batch = Batch("uint8", 8, 8, frames)
    if error is None:
        check_content(batch, spec)
    else:
        with pytest.raises(error):
            check_content(batch, spec)
