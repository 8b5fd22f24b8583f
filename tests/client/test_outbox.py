"""The outbox: what user threads put in comes out in batches, in order; back-pressure, failure and the end
reach whoever waits."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from tests.harness.taken_slot import take_slot

from shardwright.client.outbox import Outbox
from shardwright.model import progress_teller
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    ClosedError,
    FrameIndexError,
    OverloadError,
    SessionLostError,
    StorageError,
    TimedOutError,
)
from shardwright.model.receipt import Receipt
from shardwright.wire.descriptor import FRAME_DROPPED, FRAME_NOT_HELD, descriptor_dtype
from shardwright.wire.in_flight import NO_SLOT
from shardwright.wire.messages import MAX_PIXELLESS_FRAMES

if TYPE_CHECKING:
    import numpy.typing as npt

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


def make_outbox(slot_count: int = 8, batch_frames: int = 3, **options: Any) -> tuple[Outbox, Wakes]:
    wakes = Wakes()
    outbox = Outbox(
        slot_count=slot_count, batch_frames=batch_frames, check_position=check_position, wake=wakes, **options
    )
    return outbox, wakes


class Frames(NamedTuple):
    """What the I/O thread takes at once."""

    slots: npt.NDArray[np.uint32]
    records: npt.NDArray[np.void]

    @property
    def first(self) -> int:
        return int(self.records["sequence"][0])


def next_frames(outbox: Outbox) -> Frames | None:
    frames = outbox.next_frames()
    return None if frames is None else Frames(*frames)


def release(outbox: Outbox, first: int, last: int) -> None:
    outbox.release(np.array([[first, last]], np.uint64))


def add(outbox: Outbox, count: int = 1) -> None:
    for _ in range(count):
        begun = take_slot(outbox)
        assert begun.slots is not None
        assert outbox.add(None, begun, None, -1, NO_METADATA) is None


def test_frames_come_out_in_batches_with_every_field_in_its_place():
    outbox, _ = make_outbox()
    outbox.add(None, take_slot(outbox), 42, 7, (0.5, 1.5, 2.5, 3.5, 4.5))
    add(outbox, 3)
    batch = next_frames(outbox)
    assert batch is not None
    descriptors = batch.records
    assert (batch.first, batch.slots.tolist(), len(descriptors)) == (0, [0, 1, 2], 3)
    assert descriptors[["sequence", "frame_id", "position", "slot", "flags", "reserved"]].tolist() == [
        (0, 7, 42, 0, 0, 0),
        (1, -1, 1, 0, 0, 0),
        (2, -1, 2, 0, 0, 0),
    ]
    fields = ["delta_t", "exposure_time", "position_x", "position_y", "position_z"]
    assert descriptors[fields][0].item() == (0.5, 1.5, 2.5, 3.5, 4.5)
    assert np.isnan(descriptors["delta_t"][1:]).all()
    assert (descriptors["camera_ns"] > 0).all()
    assert next_frames(outbox) is None


def test_further_fields_stand_behind_the_known_ones():
    outbox, _ = make_outbox(descriptor=descriptor_dtype(2), first_sequence=50)
    outbox.add(None, take_slot(outbox), 42, 7, (0.5, 1.5, 2.5, 3.5, 4.5, 8.0, 9.0))
    outbox.finish()
    batch = next_frames(outbox)
    assert batch is not None
    (descriptor,) = batch.records
    assert (
        batch.first,
        descriptor["sequence"],
        descriptor["position_z"],
        descriptor["further"].tolist(),
    ) == (50, 50, 4.5, [8.0, 9.0])
    assert (outbox.frames, outbox.total_when_finished()) == (1, 51)


def test_a_batch_that_does_not_fill_is_sealed_by_age():
    outbox, wakes = make_outbox()
    assert outbox.seal_if_older(1.0, 0.0) is None
    add(outbox)
    assert wakes.count == 1
    due_s = outbox.seal_if_older(1.0, 0.0)
    assert due_s is not None
    assert next_frames(outbox) is None
    assert outbox.seal_if_older(1.0, due_s) is None
    batch = next_frames(outbox)
    assert batch is not None
    assert (batch.first, batch.slots.tolist()) == (0, [0])


def test_the_last_slot_taken_sends_what_waits_and_a_release_goes_on():
    outbox, _ = make_outbox(slot_count=2)
    add(outbox, 2)
    taken: list[int] = []
    waiter = threading.Thread(target=lambda: taken.append(take_slot(outbox).slots))
    waiter.start()
    while (batch := next_frames(outbox)) is None:
        pass
    assert batch.slots.tolist() == [0, 1]
    assert taken == []
    release(outbox, 1, 1)
    waiter.join()
    assert taken == [1]


@pytest.mark.parametrize("end", ["fail", "finish"])
def test_whoever_waits_for_a_slot_hears_of_the_end(end: str):
    outbox, _ = make_outbox(slot_count=1)
    add(outbox)
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            take_slot(outbox)
        except (StorageError, ClosedError) as error:
            heard.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    if end == "fail":
        outbox.fail(ErrorText(StorageError, "full", got="nothing"))
    else:
        outbox.finish()
    waiter.join()
    assert [type(error) for error in heard] == [StorageError if end == "fail" else ClosedError]


def test_each_caller_gets_its_own_error():
    outbox, _ = make_outbox()
    outbox.fail(ErrorText(StorageError, "full", hint="make room"))
    outbox.fail(ErrorText(ClosedError, "a later reason"))
    caught = []
    for _ in range(2):
        with pytest.raises(StorageError, match="make room") as info:
            take_slot(outbox)
        caught.append(info.value)
    assert caught[0] is not caught[1]


def test_finish_counts_only_once_everything_was_taken():
    outbox, _ = make_outbox()
    add(outbox, 4)
    outbox.finish()
    totals = []
    while next_frames(outbox) is not None:
        totals.append(outbox.total_when_finished())
    assert totals == [None, 4]
    with pytest.raises(ClosedError):
        add(outbox)


def test_the_receipt_ends_the_wait_and_a_failure_goes_before_it():
    outbox, _ = make_outbox()
    outbox.settle(RECEIPT)
    assert outbox.wait_for_end() == RECEIPT
    outbox.fail(ErrorText(StorageError, "full"))
    with pytest.raises(StorageError):
        outbox.wait_for_end()
    assert outbox.receipt == RECEIPT


@pytest.mark.parametrize("lost", [False, True])
def test_progress_ends_with_the_stream(monkeypatch: pytest.MonkeyPatch, *, lost: bool):
    """Also of one that was lost, and that nobody closes."""
    monkeypatch.setattr(progress_teller, "INTERVAL_S", 600)
    monkeypatch.setattr(progress_teller, "LAST_CALL_S", 120)
    outbox, _ = make_outbox(frame_places=3)
    told: list[tuple[int, int | None]] = []
    ended = threading.Event()

    def tell(done: int, total: int | None) -> None:
        told.append((done, total))
        ended.set()

    outbox.tell_progress(tell, lambda: 5)
    outbox.advance_watermark(stored=13)
    assert not told
    if lost:
        outbox.fail(ErrorText(SessionLostError, "no daemon"))
        assert ended.wait(60)
    else:
        outbox.settle(RECEIPT)
        assert outbox.wait_for_end() == RECEIPT
    assert told == [(4, 5)], "of whole frames"


def test_progress_of_a_stream_that_is_over_is_told_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_teller, "LAST_CALL_S", 120)
    outbox, _ = make_outbox()
    outbox.settle(RECEIPT)
    told: list[tuple[int, int | None]] = []
    tell = lambda *counts: told.append(counts)  # noqa: E731 - kept alive here
    outbox.tell_progress(tell, lambda: None)
    assert outbox.wait_for_end() == RECEIPT
    assert told == [(0, None)]


def test_a_frame_counted_beyond_the_array_uses_up_nothing():
    outbox, _ = make_outbox(slot_count=200, batch_frames=200)
    add(outbox, 100)
    begun = take_slot(outbox)
    with pytest.raises(FrameIndexError):
        take_slot(outbox, counted=True)
    outbox.give_up(begun)
    assert outbox.frames == 100
    assert take_slot(outbox).slots == begun.slots


# Overload
# ----------------------------------------------------------------------------------------------------


def drop(outbox: Outbox, count: int = 1) -> None:
    for i in range(count):
        begun = take_slot(outbox)
        assert begun.slots is None
        outbox.drop(begun, i % 100, i, NO_METADATA)


def test_a_dropped_frame_takes_a_number_and_is_told_of():
    outbox, _ = make_outbox(slot_count=2, batch_frames=100, overload="drop")
    add(outbox, 2)
    drop(outbox, 3)
    assert (outbox.frames, outbox.frames_dropped) == (2, 3)
    held = next_frames(outbox)  # sealed when there was no slot left
    assert held is not None
    assert held.slots.tolist() == [0, 1]
    release(outbox, 1, 1)
    add(outbox)
    outbox.finish()
    batches = [Frames(*frames) for frames in iter(outbox.next_frames, None)]
    assert [slot for batch in batches for slot in batch.slots.tolist()] == [NO_SLOT] * 3 + [1]
    descriptors = np.concatenate([batch.records for batch in batches])
    assert descriptors["sequence"].tolist() == [2, 3, 4, 5]
    assert descriptors["flags"].tolist() == [FRAME_DROPPED] * 3 + [0]


def test_descriptors_of_dropped_frames_are_bounded_and_all_are_counted():
    outbox, _ = make_outbox(slot_count=1, batch_frames=64, overload="drop")
    add(outbox)
    drop(outbox, MAX_PIXELLESS_FRAMES + 1000)
    assert outbox.frames_dropped == MAX_PIXELLESS_FRAMES + 1000
    first, flags = 0, []
    while (batch := next_frames(outbox)) is not None:
        assert batch.first == first
        first += len(batch.slots)
        flags += batch.records["flags"].tolist()
    assert flags == [0, *[FRAME_DROPPED] * MAX_PIXELLESS_FRAMES]  # no room for more without pixels
    release(outbox, 0, 9)
    assert next_frames(outbox) is None, "9 are fewer than a message's"
    release(outbox, 10, first - 1)
    counts = []
    while (batch := next_frames(outbox)) is not None:
        assert (batch.first, set(batch.slots.tolist())) == (first, {NO_SLOT})
        assert set(batch.records["flags"].tolist()) == {FRAME_NOT_HELD}
        counts.append(len(batch.slots))
        first += counts[-1]
    assert sum(counts) == 1000
    assert max(counts) == 64
    outbox.finish()
    assert outbox.total_when_finished() == first == MAX_PIXELLESS_FRAMES + 1001


def test_who_may_not_wait_fails_and_stays_closable():
    outbox, _ = make_outbox(slot_count=1, overload="fail")
    add(outbox)
    with pytest.raises(OverloadError):
        take_slot(outbox)
    assert next_frames(outbox) is not None
    release(outbox, 0, 0)
    with pytest.raises(OverloadError):  # even when there is room again: a frame is gone
        take_slot(outbox)
    outbox.finish()
    assert outbox.total_when_finished() == 1
    outbox.settle(RECEIPT)
    assert outbox.wait_for_end() == RECEIPT


# Flush and rings
# ----------------------------------------------------------------------------------------------------


def test_a_flush_waits_for_what_was_added_before():
    outbox, _ = make_outbox(batch_frames=8)
    add(outbox, 2)
    with pytest.raises(TimedOutError, match="expected 2 durable frames"):
        outbox.flush("durable", 0.0)
    assert next_frames(outbox) is not None  # not waited for its batch to fill
    assert outbox.flush_wanted() == 2
    waiter = threading.Thread(target=outbox.flush, args=("durable", None))
    waiter.start()
    outbox.advance_watermark(stored=2, durable=1)
    assert waiter.is_alive()
    outbox.advance_watermark(durable=2)
    waiter.join()
    assert outbox.flush_wanted() == 0
    outbox.fail(ErrorText(StorageError, "full"))
    with pytest.raises(StorageError):
        outbox.flush("durable", None)


class ArrayRing:
    def __init__(self) -> None:
        self.frames = np.zeros((8, 2), np.uint8)


def test_frames_move_to_the_new_ring_whatever_their_stage():
    """Sent or not, each added frame is copied; one that is just being copied in by its user is told where to
    go."""
    outbox, _ = make_outbox(batch_frames=2)
    old, new = ArrayRing(), ArrayRing()
    outbox.swap_ring(old)
    for value in range(1, 5):
        begun = take_slot(outbox)
        old.frames[begun.slots] = value
        assert outbox.add(old, begun, None, -1, NO_METADATA) is None
    assert next_frames(outbox).slots.tolist() == [0, 1]
    release(outbox, 1, 1)  # one of them has come back
    begun = take_slot(outbox)
    old.frames[begun.slots] = 9
    outbox.swap_ring(new)
    assert outbox.add(old, begun, None, -1, NO_METADATA) is new
    new.frames[begun.slots] = 9
    assert outbox.add(new, begun, None, -1, NO_METADATA) is None
    assert new.frames[:, 0].tolist() == [1, 0, 3, 4, 9, 0, 0, 0]
    assert outbox.frames == 5


def test_users_that_append_while_rings_are_swapped_lose_nothing():
    outbox, _ = make_outbox(slot_count=400, batch_frames=16)
    outbox.swap_ring(ArrayRing400())
    stop = threading.Event()

    def append(values: range) -> None:
        for value in values:
            begun = take_slot(outbox)
            ring = outbox.ring
            while ring is not None:
                ring.frames[begun.slots] = value
                ring = outbox.add(ring, begun, value % 100, value, NO_METADATA)

    def swap() -> None:
        while not stop.is_set():
            outbox.swap_ring(ArrayRing400())

    users = [threading.Thread(target=append, args=(range(start, 400, 4),)) for start in range(4)]
    swapper = threading.Thread(target=swap)
    for thread in (swapper, *users):
        thread.start()
    for user in users:
        user.join()
    stop.set()
    swapper.join()
    outbox.finish()
    for slots, records in iter(outbox.next_frames, None):
        assert outbox.ring.frames[slots].tolist() == records["frame_id"].tolist()
    assert outbox.frames == 400


class ArrayRing400:
    def __init__(self) -> None:
        self.frames = np.zeros(400, np.int64)


def test_what_readers_see_is_what_the_daemon_of_now_says():
    """After a power cut that may be less than the one before has told."""
    outbox, _ = make_outbox()
    outbox.see(5, {"left": 3, "right": 2})
    outbox.resume([])
    assert (outbox.watermark.visible, outbox.watermark.images) == (0, {})
    outbox.see(2, {"left": 2})
    assert (outbox.watermark.visible, outbox.watermark.images) == (2, {"left": 2})
