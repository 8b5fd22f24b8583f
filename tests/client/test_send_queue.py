"""The send queue against a list of frames: each is sent in order, again where it is missing, and its slot is
free once it is released."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from tests.harness.interrupted_call import interruptions

from shardwright.array.frame_order import Begun
from shardwright.client import send_queue
from shardwright.client.outbox import Outbox
from shardwright.client.send_queue import CLAIMED, COPYING, FREE, HELD, SendQueue
from shardwright.model.errors import ProtocolError
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_DROPPED, FRAME_NOT_HELD
from shardwright.wire.in_flight import NO_SLOT, ranges_of

NO_METADATA = (math.nan,) * 5
NO_RECORDS = np.zeros(0, DESCRIPTOR)
SLOTS, BATCH, MOST_PIXELLESS = 9, 4, 6


class Twin:
    """Does the same with a queue and with plain lists, and compares."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.queue = SendQueue(
            SLOTS, BATCH, DESCRIPTOR, 0, check_position=lambda position: position, wake=lambda: None
        )
        self.taken: list[int] = []  # slots, being copied into
        self.claimed: list[int] = []
        self.slots: list[int] = []  # of each frame, by sequence
        self.described: list[bool] = []  # those that the queue has a descriptor of
        self.to_send: deque[int] = deque()
        self.sent: set[int] = set()  # and not released
        self.sent_to = 0

    def pixelless(self, sequences: set[int]) -> int:
        return sum(self.slots[sequence] == NO_SLOT for sequence in sequences)

    def take(self) -> None:
        if self.queue.free:
            self.taken.append(self.queue.take_one(COPYING))

    def take_more(self) -> None:
        self.taken += self.queue.take(self.random.randint(1, 3)).tolist()

    def claim(self) -> None:
        if self.queue.free:
            self.claimed.append(self.queue.take_one(CLAIMED))

    def commit(self) -> None:
        if self.claimed:
            self.taken.append(self.claimed.pop(self.random.randrange(len(self.claimed))))
            self.queue.mark(self.taken[-1], COPYING)

    def give_back(self) -> None:
        if self.taken:
            self.queue.give_back(self.taken.pop())

    def add(self) -> None:
        if self.taken:
            slot = self.taken.pop(0)
            self.queue.mark(slot, HELD)
            self.queue.add(slot, None, len(self.slots), NO_METADATA)
            self.came([slot])

    def add_more(self) -> None:
        slots, self.taken = self.taken, []
        self.queue.mark(np.array(slots, np.int64), HELD)
        self.queue.add_many(np.array(slots, np.int64), np.zeros(len(slots), DESCRIPTOR), counted=True)
        self.came(slots)

    def drop(self) -> None:
        before = self.queue.next_sequence
        if self.random.random() < 0.5:
            self.queue.add_dropped(None, -1, NO_METADATA)
        else:
            self.queue.add_many_dropped(np.zeros(self.random.randint(1, 5), DESCRIPTOR), counted=True)
        self.came([NO_SLOT] * (self.queue.next_sequence - before))

    def came(self, slots: list[int]) -> None:
        self.to_send += range(len(self.slots), len(self.slots) + len(slots))
        self.slots += slots

    def seal(self) -> None:
        self.queue.seal()

    def at_daemon(self) -> set[int]:
        return self.sent.difference(self.to_send)

    def send(self) -> None:
        if (frames := self.queue.next_frames()) is None:
            return
        slots, records = frames
        for sequence, slot, record in zip(records["sequence"].tolist(), slots.tolist(), records, strict=True):
            assert sequence == self.to_send.popleft()
            assert slot == self.slots[sequence]
            assert record["flags"] in ((0,) if slot != NO_SLOT else (FRAME_DROPPED, FRAME_NOT_HELD))
            self.sent.add(sequence)
            self.sent_to = max(self.sent_to, sequence + 1)

    def release(self) -> None:
        there = sorted(self.at_daemon())
        some = set(self.random.sample(there, self.random.randint(0, len(there))))
        self.release_all(some)

    def release_all(self, sequences: set[int]) -> None:
        self.queue.release(np.array(ranges_of(np.array(sorted(sequences))), np.uint64).reshape(-1, 2))
        self.sent -= sequences

    def resume(self) -> None:
        # some are missing, or as after a power cut all from one on
        first, share = self.random.choice(((0, 0.3), (self.random.randint(0, self.sent_to), 1)))
        missing = {sequence for sequence in range(first, self.sent_to) if self.random.random() < share}
        # were to be sent again and are not missing: ranges were joined over them, since they are recorded
        recorded = {sequence for sequence in self.to_send if sequence < self.sent_to} - missing
        for sequence in missing - self.sent:
            self.slots[sequence] = NO_SLOT  # released: it cannot be sent again
        self.to_send = deque([*sorted(missing), *range(self.sent_to, len(self.slots))])
        self.queue.resume(ranges_of(np.array(sorted(missing))))
        self.release_all(recorded)

    def check(self) -> None:
        queue = self.queue
        waiting = {sequence for sequence in self.to_send if sequence >= self.sent_to}
        held = {self.slots[sequence] for sequence in self.sent | waiting} - {NO_SLOT}
        assert queue.held() == sorted(held)
        assert [queue.count(state) for state in (FREE, COPYING, CLAIMED, HELD)] == [
            len(queue.free),
            len(self.taken),
            len(self.claimed),
            len(held),
        ]
        assert sorted([*queue.free, *self.taken, *self.claimed, *held]) == list(range(SLOTS))
        assert self.pixelless(self.at_daemon()) <= MOST_PIXELLESS, "the daemon takes no more"
        assert queue.next_sequence == len(self.slots)
        assert queue.all_sent == (self.sent_to == len(self.slots))


@pytest.mark.parametrize("seed", range(60))
def test_each_frame_is_sent_in_order_and_each_slot_is_in_one_state(seed: int):
    random = Random(seed)
    with patch.object(send_queue, "MAX_PIXELLESS_FRAMES", MOST_PIXELLESS):
        twin = Twin(random)
        steps = [twin.take, twin.take_more, twin.claim, twin.commit, twin.give_back, twin.add, twin.add_more]
        steps += [twin.drop, twin.seal, twin.send, twin.send, twin.release, twin.resume]
        weights = [random.choice((1, 1, 4)) for _ in steps]
        for step in random.choices(steps, weights, k=150):
            step()
            twin.check()
        twin.seal()
        while twin.to_send or twin.sent:
            before = len(twin.to_send)
            twin.send()
            assert len(twin.to_send) < before or twin.at_daemon() or not before, "it waits for no release"
            twin.release()
            twin.check()
        assert len(twin.queue.free) == SLOTS - len(twin.taken) - len(twin.claimed)


def test_a_release_after_a_resume_may_come_twice_and_any_other_not():
    twin = Twin(Random(0))
    queue = twin.queue
    for _ in range(8):
        twin.take()
        twin.add()
    twin.send()
    queue.release(np.array([[0, 1]], np.uint64))
    with pytest.raises(ProtocolError):
        queue.release(np.array([[0, 1]], np.uint64))
    queue.resume([])
    twin.send()
    queue.release(np.array([[0, 2]], np.uint64))
    for wrong in ([[3, 4], [4, 5]], [[7, 8]], [[4, 2**63 + 4]]):
        with pytest.raises(ProtocolError):
            queue.release(np.array(wrong, np.uint64))


def test_missing_frames_that_are_gone_do_not_wait_for_the_release_of_later_ones():
    with patch.object(send_queue, "MAX_PIXELLESS_FRAMES", MOST_PIXELLESS):
        twin = Twin(Random(0))
        queue = twin.queue

        def sent() -> list[int]:
            return [n for _, records in iter(queue.next_frames, None) for n in records["sequence"].tolist()]

        for _ in range(BATCH):
            twin.take()
            twin.add()
        queue.add_many_dropped(np.zeros(MOST_PIXELLESS, DESCRIPTOR), counted=True)
        queue.seal()
        assert sent() == list(range(10))
        queue.release(np.array([[0, 3]], np.uint64))
        for _ in range(2):  # the power of the daemon is cut, and again before it has all of them
            queue.resume([(0, 9)])
            assert sent() == [0, 1, 2, 3], "6 of 10 at most, and a batch is not cut"
        queue.release(np.array([[0, 3]], np.uint64))
        assert sent() == [4, 5, 6, 7, 8, 9]
        queue.release(np.array([[4, 9]], np.uint64))
        queue.add_many_dropped(np.zeros(MOST_PIXELLESS, DESCRIPTOR), counted=True)
        queue.seal()
        records = np.concatenate([records for _, records in iter(queue.next_frames, None)])
        assert records["flags"].tolist() == [FRAME_DROPPED] * MOST_PIXELLESS, "there is room for all again"


def test_what_a_call_leaves_that_is_interrupted_anywhere_is_still_sent_without_a_hole():
    """The I/O thread goes on: the frame is there, or not, or there without its pixels."""
    outboxes: list[Outbox] = []

    def append() -> None:
        begun = Begun()
        try:
            outboxes[-1].take_slot(begun)
            outboxes[-1].add(None, begun, None, -1, NO_METADATA)
        except BaseException:
            outboxes[-1].give_up(begun)
            raise

    def begin():
        outboxes.append(Outbox(slot_count=8, batch_frames=2, check_position=lambda n: n, wake=lambda: None))
        for _ in range(3):
            append()
        return append

    broken = 0
    for _ in interruptions(begin):
        outbox = outboxes[-1]
        broken += outbox._lock.broken is not None
        outbox.finish()
        records = np.concatenate([records for _, records in iter(outbox.next_frames, None)])
        assert records["sequence"].tolist() == list(range(len(records)))
        assert outbox.total_when_finished() == len(records) in (3, 4)
        assert not records["flags"][:3].any(), "their calls had returned"
        outbox.release(np.array([[0, len(records) - 1]], np.uint64))
    assert broken


def test_frames_that_waited_for_an_interrupted_one_are_added_behind_it():
    outboxes: list[Outbox] = []
    waiting = Begun[Callable[[], None]]()

    def begin():
        nonlocal waiting
        outbox = Outbox(slot_count=8, batch_frames=1, check_position=lambda n: n, wake=lambda: None)
        outboxes.append(outbox)
        interrupted, waiting, complete = Begun(), Begun(), Begun()
        for begun in (interrupted, waiting, complete):
            outbox.take_slot(begun)
        outbox.add(None, complete, None, 7, NO_METADATA)
        return lambda: outbox.add(None, interrupted, None, -1, NO_METADATA)

    numbered = 0
    for _ in interruptions(begin):
        outbox = outboxes[-1]
        outbox.give_up(waiting)
        outbox.finish()
        records = np.concatenate([records for _, records in iter(outbox.next_frames, None)] or [NO_RECORDS])
        assert records["sequence"].tolist() == list(range(len(records)))
        assert not records["flags"].any()
        numbered += records["frame_id"].tolist() == [-1, 7]
    assert numbered


def test_a_number_without_a_descriptor_is_never_sent_with_that_of_another_frame():
    queues: list[SendQueue] = []

    def begin():
        queue = SendQueue(2, 4, DESCRIPTOR, 0, check_position=lambda n: n, wake=lambda: None)
        queues.append(queue)
        queue.add_dropped(None, 5, NO_METADATA)
        queue.add_dropped(None, 6, NO_METADATA)
        return lambda: queue.add_many_dropped(np.zeros(2, DESCRIPTOR), counted=True)

    with patch.object(send_queue, "MAX_PIXELLESS_FRAMES", 2):
        for _ in interruptions(begin, instructions=True):
            queue = queues[-1]
            queue.seal()
            records = []
            while (frames := queue.next_frames()) is not None:
                records += frames[1][["sequence", "frame_id", "flags"]].tolist()
                queue.release(frames[1]["sequence"][[[0, -1]]])
            assert queue.all_sent
            described = [(0, 5, FRAME_DROPPED), (1, 6, FRAME_DROPPED)]
            assert records in (described, described + [(n, -1, FRAME_NOT_HELD) for n in (2, 3)])


class _InterruptedError(Exception):
    """As of a signal's handler."""


def queue_of_colours(wake=lambda: None, **fields) -> SendQueue:
    given = {"check_position": lambda n: n, "wake": wake, "frame_places": 3} | fields
    return SendQueue(9, 6, DESCRIPTOR, 0, **given)


def test_all_places_of_a_frame_of_colours_come_at_once():
    def interrupt() -> None:
        raise _InterruptedError

    queue = queue_of_colours(interrupt)
    with pytest.raises(_InterruptedError):
        queue.add(queue.take_one(HELD), None, 7, NO_METADATA)
    assert queue.next_sequence == 3, "else a part of it would be sent"
    with pytest.raises(_InterruptedError):
        queue.seal()
    slots, records = queue.next_frames()
    assert slots.tolist() == records["position"].tolist() == records["sequence"].tolist() == [0, 1, 2]
    assert len(set(records["camera_ns"].tolist())) == len(set(records["monotonic_ns"].tolist())) == 1


def test_a_message_of_a_daemon_that_takes_few_at_once_ends_within_a_frame_of_colours():
    queue = queue_of_colours(message_frames=2)
    queue.add(queue.take_one(HELD), None, -1, NO_METADATA)
    queue.seal()
    assert [records["sequence"].tolist() for _, records in iter(queue.next_frames, None)] == [[0, 1], [2]]


def test_dropped_frames_of_colours_have_descriptors_for_all_channels_or_none():
    with patch.object(send_queue, "MAX_PIXELLESS_FRAMES", 4):
        queue = queue_of_colours()
        queue.add_many_dropped(np.zeros(6, DESCRIPTOR), counted=True)
        queue.seal()
        flags = []
        while (frames := queue.next_frames()) is not None:
            flags += frames[1]["flags"].tolist()
            queue.release(frames[1]["sequence"][[[0, -1]]])
    assert flags == [FRAME_DROPPED] * 3 + [FRAME_NOT_HELD] * 3
