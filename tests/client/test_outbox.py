"""The outbox: what user threads put in comes out in batches, in order; back-pressure, failure and the end reach whoever waits."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from shardwright.client.outbox import Outbox
from shardwright.model.errors import ClosedError, FrameIndexError, StorageError
from shardwright.model.receipt import Receipt
from shardwright.wire.descriptor import DESCRIPTOR

NO_METADATA = (math.nan,) * 5
RECEIPT = Receipt("/data/a", 1, 1, 1, 0, 0, 0, 1, 1, 1)


def check_position(position: int) -> int:
    if position >= 100:
        raise FrameIndexError("outside")
    return position


class Wakes:
    count = 0

    def __call__(self) -> None:
        self.count += 1


def make_outbox(slot_count: int = 8, batch_frames: int = 3, *, shared: bool = True) -> tuple[Outbox, Wakes]:
    wakes = Wakes()
    outbox = Outbox(slot_count=slot_count, batch_frames=batch_frames, slots_are_shared=shared, check_position=check_position, wake=wakes)
    return outbox, wakes


def add(outbox: Outbox, count: int = 1) -> None:
    for _ in range(count):
        outbox.add(outbox.take_slot(), None, -1, NO_METADATA)


def test_frames_come_out_in_batches_with_every_field_in_its_place():
    outbox, _ = make_outbox()
    outbox.add(outbox.take_slot(), 42, 7, (0.5, 1.5, 2.5, 3.5, 4.5))
    add(outbox, 3)
    batch = outbox.next_batch()
    assert batch is not None
    descriptors = np.frombuffer(batch.descriptors, DESCRIPTOR)
    assert (batch.first, batch.slots, len(descriptors)) == (0, [0, 1, 2], 3)
    assert descriptors[["sequence", "frame_id", "position", "slot", "flags", "reserved"]].tolist() == [
        (0, 7, 42, 0, 0, 0),
        (1, -1, 1, 1, 0, 0),
        (2, -1, 2, 2, 0, 0),
    ]
    fields = ["delta_t", "exposure_time", "position_x", "position_y", "position_z"]
    assert descriptors[fields][0].item() == (0.5, 1.5, 2.5, 3.5, 4.5)
    assert np.isnan(descriptors["delta_t"][1:]).all()
    assert (descriptors["camera_ns"] > 0).all()
    assert outbox.next_batch() is None


def test_slots_of_a_message_number_its_frames():
    outbox, _ = make_outbox(shared=False)
    add(outbox, 6)
    for first in (0, 3):
        batch = outbox.next_batch()
        assert batch is not None
        assert np.frombuffer(batch.descriptors, DESCRIPTOR)["slot"].tolist() == [0, 1, 2]
        assert batch.slots == [first, first + 1, first + 2]


def test_a_batch_that_does_not_fill_is_sealed_by_age():
    outbox, wakes = make_outbox()
    assert outbox.seal_if_older(1.0, 0.0) is None
    add(outbox)
    assert wakes.count == 1
    due_s = outbox.seal_if_older(1.0, 0.0)
    assert due_s is not None
    assert outbox.next_batch() is None
    assert outbox.seal_if_older(1.0, due_s) is None
    batch = outbox.next_batch()
    assert batch is not None
    assert (batch.first, batch.slots) == (0, [0])


def test_the_last_slot_taken_sends_what_waits_and_a_release_goes_on():
    outbox, _ = make_outbox(slot_count=2)
    add(outbox, 2)
    taken: list[int] = []
    waiter = threading.Thread(target=lambda: taken.append(outbox.take_slot()))
    waiter.start()
    while (batch := outbox.next_batch()) is None:
        pass
    assert batch.slots == [0, 1]
    assert taken == []
    outbox.release([1])
    waiter.join()
    assert taken == [1]


@pytest.mark.parametrize("end", ["fail", "finish"])
def test_whoever_waits_for_a_slot_hears_of_the_end(end: str):
    outbox, _ = make_outbox(slot_count=1)
    add(outbox)
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            outbox.take_slot()
        except (StorageError, ClosedError) as error:
            heard.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    if end == "fail":
        outbox.fail(StorageError("full", got="nothing"))
    else:
        outbox.finish()
    waiter.join()
    assert [type(error) for error in heard] == [StorageError if end == "fail" else ClosedError]


def test_each_caller_gets_its_own_error():
    outbox, _ = make_outbox()
    outbox.fail(StorageError("full", hint="make room"))
    outbox.fail(ClosedError("a later reason"))
    caught = []
    for _ in range(2):
        with pytest.raises(StorageError, match="make room") as info:
            outbox.take_slot()
        caught.append(info.value)
    assert caught[0] is not caught[1]


def test_finish_counts_only_once_everything_was_taken():
    outbox, _ = make_outbox()
    add(outbox, 4)
    outbox.finish()
    totals = []
    while outbox.next_batch() is not None:
        totals.append(outbox.total_when_finished())
    assert totals == [None, 4]
    with pytest.raises(ClosedError):
        add(outbox)


def test_the_receipt_ends_the_wait_and_a_failure_goes_before_it():
    outbox, _ = make_outbox()
    outbox.settle(RECEIPT)
    assert outbox.wait_for_end() == RECEIPT
    outbox.fail(StorageError("full"))
    with pytest.raises(StorageError):
        outbox.wait_for_end()
    assert outbox.receipt == RECEIPT


def test_a_frame_counted_beyond_the_array_uses_up_nothing():
    outbox, _ = make_outbox(slot_count=200, batch_frames=200)
    add(outbox, 100)
    slot = outbox.take_slot()
    with pytest.raises(FrameIndexError):
        outbox.add(slot, None, -1, NO_METADATA)
    outbox.give_back(slot)
    assert outbox.frames == 100
    assert outbox.take_slot() == slot
