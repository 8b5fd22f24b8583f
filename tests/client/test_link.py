"""One session on the client's side, fed with a daemon's messages by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shardwright.array.spec import ArraySpec, Dimension
from shardwright.client.frame_ring import FrameRing
from shardwright.client.link import Link
from shardwright.client.outbox import Outbox
from shardwright.model.errors import ProtocolError, StorageError
from shardwright.model.receipt import Receipt
from shardwright.wire.controls import Opened, Problem, Welcome
from shardwright.wire.messages import Counter, Kind, Level, check_parts, decode_batch, decode_control, decode_header, encode_ranges
from shardwright.wire.session import ClientState

SESSION = 77
RECEIPT = Receipt("/data/a", 4, 4, 4, 0, 0, 0, 1, 1, 1)
AXES = [Dimension(name="t", chunk_size=1), Dimension(name="y", count=4, chunk_size=4), Dimension(name="x", count=5, chunk_size=5)]
SPEC = ArraySpec(dtype="uint8", dimensions=AXES)


def make_link(*, max_message_bytes: int = 1000, slots: int = 8, batch_frames: int = 4) -> tuple[Link, Counter]:
    """A running link with message transport, and the daemon's counter."""
    welcome = Welcome(None, None, 1000, 10_000, max_message_bytes, 1 << 18, 1024, "test", 60_000)
    opened = Opened(0, "/data/a", SPEC.model_dump(mode="json"), "message", slots * 20, slots, 20, None, "ab" * 16, 1, 0, (), "block", "stored")
    outbox = Outbox(slot_count=slots, batch_frames=batch_frames, slots_are_shared=False, check_position=lambda position: position, wake=lambda: None)
    link = Link(SESSION, opened, SPEC, welcome, outbox)
    link.ring = FrameRing.local(SPEC, slots)
    daemon = Counter(SESSION)
    assert tell(link, daemon.control(Kind.OPENED, opened.to_body())) is None
    assert list(link.outgoing()) == []
    assert link.state is ClientState.RUNNING
    return link, daemon


def tell(link: Link, parts: list[bytes]) -> list[bytes] | None:
    return link.receive(decode_header(parts[0]), parts[1] if len(parts) > 1 else b"")


def acks(daemon: Counter, *ranges: tuple[Level, int, int]) -> list[bytes]:
    return daemon.message(Kind.ACK, [encode_ranges(list(ranges))], count=len(ranges))


def append(link: Link, values: range) -> None:
    assert link.ring is not None
    for value in values:
        slot = link.outbox.take_slot()
        link.ring.frames[slot] = value
        link.outbox.add(slot, None, -1, (math.nan,) * 5)


def sent_pixels(message: list[bytes]) -> list[list[int]]:
    """The value of each frame, part by part; the message is checked as the daemon would."""
    header = decode_header(message[0])
    check_parts(header, [len(part) for part in message[1:]])
    assert (header.kind, header.session) == (Kind.FRAMES, SESSION)
    assert len(decode_batch(header, message[1]).descriptors) == header.count
    return [np.frombuffer(part, np.uint8).reshape(-1, 20)[:, 0].tolist() for part in message[2:]]


def test_neighbouring_slots_travel_as_one_part_and_released_ones_are_used_again():
    link, daemon = make_link()
    append(link, range(8))
    assert [sent_pixels(message) for message in link.outgoing()] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    tell(link, acks(daemon, (Level.RELEASED, 5, 6), (Level.RELEASED, 1, 1), (Level.STORED, 0, 1), (Level.DURABLE, 0, 0)))
    assert (link.stored_frames, link.durable_frames) == (2, 1)
    append(link, range(10, 13))
    link.outbox.finish()
    frames, finish = link.outgoing()
    assert sent_pixels(frames) == [[10, 11], [12]]
    assert (decode_header(finish[0]).kind, decode_control(finish[1])) == (Kind.FINISH, {"frames": 11})


def test_parts_end_where_the_daemon_takes_no_more():
    link, _ = make_link(max_message_bytes=50)
    append(link, range(4))
    (message,) = link.outgoing()
    assert sent_pixels(message) == [[0, 1], [2, 3]]


def test_the_receipt_ends_the_link():
    link, daemon = make_link()
    link.outbox.finish()
    assert len(list(link.outgoing())) == 1
    assert tell(link, daemon.control(Kind.RECEIPT, {"receipt": RECEIPT.to_dict()})) is None
    assert link.state is ClientState.ENDED
    assert link.outbox.wait_for_end() == RECEIPT


def test_an_error_ends_the_link_and_a_receipt_may_still_follow():
    link, daemon = make_link()
    tell(link, daemon.control(Kind.ERROR, Problem(StorageError("the disk broke"), fatal=True).to_body()))
    assert link.state is ClientState.FAILED
    tell(link, daemon.control(Kind.RECEIPT, {"receipt": RECEIPT.to_dict()}))
    assert link.outbox.receipt == RECEIPT
    with pytest.raises(StorageError, match="the disk broke"):
        link.outbox.take_slot()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda daemon: acks(daemon, (Level.RELEASED, 0, 4)),
        lambda daemon: acks(daemon, (Level.RELEASED, 1, 1), (Level.RELEASED, 1, 1)),
        lambda daemon: daemon.control(Kind.RECEIPT, {"receipt": RECEIPT.to_dict()}),
        lambda daemon: daemon.control(Kind.FINISH, {"frames": 1}),
        lambda daemon: daemon.control(Kind.ERROR, {"code": "storage"}),
        lambda daemon: [daemon.control(Kind.HEARTBEAT), daemon.control(Kind.HEARTBEAT)][1],
    ],
    ids=["release unsent", "release twice", "early receipt", "client kind", "half an error", "hole"],
)
def test_a_daemon_that_breaks_the_protocol_is_told_and_the_stream_fails(wrong):
    link, daemon = make_link()
    append(link, range(4))
    assert len(list(link.outgoing())) == 1
    answer = tell(link, wrong(daemon))
    assert answer is not None
    assert (decode_header(answer[0]).kind, decode_control(answer[1])["code"]) == (Kind.ERROR, "protocol")
    assert link.state is ClientState.FAILED
    with pytest.raises(ProtocolError):
        link.outbox.take_slot()
    assert list(link.outgoing()) == []
