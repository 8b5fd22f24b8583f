"""One session on the client's side, fed with a daemon's messages by hand."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.harness.ack_ranges import encode_ranges
from tests.harness.taken_slot import take_slot

from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.default_layout import default_layout
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.client.frame_ring import FrameRing
from shardwright.client.link import Link
from shardwright.client.outbox import Outbox
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    ClosedError,
    LostFramesError,
    ProtocolError,
    ResumeError,
    SessionLostError,
    StorageError,
    TimedOutError,
)
from shardwright.model.receipt import Receipt, Watermark
from shardwright.wire.controls import MAX_UPDATES, Open, Opened, Problem, Resume, Updated, Welcome
from shardwright.wire.descriptor import FRAME_DROPPED, FRAME_NOT_HELD
from shardwright.wire.messages import (
    MAX_PIXELLESS_FRAMES,
    Counter,
    Kind,
    Level,
    check_parts,
    decode_batch,
    decode_control,
    decode_header,
)
from shardwright.wire.session_tables import ClientState

SESSION = 77
RECEIPT = Receipt("/data/a", 4, 4, 4, 0, 0, 0, 1, 1, 1)
AXES = [
    Dimension(name="t", chunk_size=1),
    Dimension(name="y", count=4, chunk_size=4),
    Dimension(name="x", count=5, chunk_size=5),
]
SPEC = ArraySpec(dtype="uint8", dimensions=AXES)

WELCOME = Welcome(None, None, 1000, 10_000, 1000, 1 << 18, 1024, "test", 60_000)


def make_link(
    *, max_message_bytes: int = 1000, slots: int = 8, batch_frames: int = 4, **options: Any
) -> tuple[Link, Counter]:
    """A running link with message transport, and the daemon's counter."""
    welcome = replace(WELCOME, max_message_bytes=max_message_bytes)
    opened = Opened(
        0,
        "/data/a",
        SPEC.model_dump(mode="json"),
        "message",
        slots * 20,
        slots,
        20,
        None,
        "ab" * 16,
        1,
        0,
        (),
        "block",
        "stored",
    )
    outbox = Outbox(
        slot_count=slots,
        batch_frames=batch_frames,
        check_position=lambda position: position,
        wake=lambda: None,
        **options,
    )
    link = Link(
        Open(0, "a", None, None, "message"), SESSION, opened, parse_acquisition(SPEC), welcome, outbox
    )
    daemon = Counter(SESSION)
    assert tell(link, daemon.control(Kind.OPENED, opened.to_body())) is None
    assert list(link.outgoing()) == []
    outbox.swap_ring(FrameRing.local(parse_acquisition(SPEC), slots))
    link.ready()
    assert link.state is ClientState.RUNNING
    return link, daemon


def tell(link: Link, parts: list[bytes]) -> list[bytes] | None:
    return link.receive(decode_header(parts[0]), parts[1] if len(parts) > 1 else b"")


def acks(daemon: Counter, *ranges: tuple[Level, int, int]) -> list[bytes]:
    return daemon.message(Kind.ACK, [encode_ranges(list(ranges))], count=len(ranges))


def append(link: Link, values: range) -> None:
    ring = link.outbox.ring
    assert ring is not None
    for value in values:
        begun = take_slot(link.outbox)
        if begun.slots is None:
            link.outbox.drop(begun, None, value, (math.nan,) * 5)
        else:
            ring.frames[begun.slots] = value
            link.outbox.add(ring, begun, None, value, (math.nan,) * 5)


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
    tell(
        link,
        acks(
            daemon,
            (Level.RELEASED, 5, 6),
            (Level.RELEASED, 1, 1),
            (Level.STORED, 0, 1),
            (Level.DURABLE, 0, 0),
        ),
    )
    assert (link.outbox.watermark.stored, link.outbox.watermark.durable) == (2, 1)
    append(link, range(10, 13))
    link.outbox.finish()
    frames, finish = link.outgoing()
    assert sent_pixels(frames) == [[10], [11, 12]]
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
    tell(
        link,
        daemon.control(Kind.ERROR, Problem(ErrorText(StorageError, "the disk broke"), fatal=True).to_body()),
    )
    assert link.state is ClientState.FAILED
    tell(link, daemon.control(Kind.RECEIPT, {"receipt": RECEIPT.to_dict()}))
    assert link.outbox.receipt == RECEIPT
    with pytest.raises(StorageError, match="the disk broke"):
        take_slot(link.outbox)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda daemon: acks(daemon, (Level.RELEASED, 0, 4)),
        lambda daemon: acks(daemon, (Level.RELEASED, 0, 2**64 - 1)),
        lambda daemon: acks(daemon, (Level.RELEASED, 1, 1), (Level.RELEASED, 1, 1)),
        lambda daemon: daemon.control(Kind.RECEIPT, {"receipt": RECEIPT.to_dict()}),
        lambda daemon: daemon.control(Kind.FINISH, {"frames": 1}),
        lambda daemon: daemon.control(Kind.ERROR, {"code": "storage"}),
        lambda daemon: [daemon.control(Kind.HEARTBEAT), daemon.control(Kind.HEARTBEAT)][1],
    ],
    ids=[
        "release unsent",
        "release all",
        "release twice",
        "early receipt",
        "client kind",
        "half an error",
        "hole",
    ],
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
        take_slot(link.outbox)
    assert list(link.outgoing()) == []


# Frames without pixels, flush, losses
# ----------------------------------------------------------------------------------------------------


def rows(message: list[bytes]) -> np.ndarray:
    return decode_batch(decode_header(message[0]), message[1]).descriptors


def kinds(messages: list[list[bytes]]) -> list[Kind]:
    return [decode_header(message[0]).kind for message in messages]


def test_dropped_frames_travel_without_pixels_between_the_others():
    link, daemon = make_link(slots=2, batch_frames=2, overload="drop")
    append(link, range(5))
    link.outbox.seal_if_older(0.0, 1e18)
    first, second, third = link.outgoing()
    assert sent_pixels(first) == [[0, 1]]
    for message in (second, third):
        assert len(message) == 2
        assert rows(message)["flags"].tolist() == [FRAME_DROPPED] * len(rows(message))
    tell(link, acks(daemon, (Level.RELEASED, 0, 3)))
    append(link, range(7, 8))
    link.outbox.finish()
    mixed, finish = link.outgoing()
    assert sent_pixels(mixed) == [[7]]
    assert decode_control(finish[1]) == {"frames": 6}
    tell(link, acks(daemon, (Level.RELEASED, 4, 5)))


def test_slots_of_a_message_number_its_frames_with_pixels():
    link, daemon = make_link(slots=3, batch_frames=8, overload="drop")
    append(link, range(2))
    list(link.outgoing())
    append(link, range(2, 4))  # the second of these is dropped
    link.outbox.seal_if_older(0.0, 1e18)
    list(link.outgoing())
    tell(link, acks(daemon, (Level.RELEASED, 0, 1)))
    append(link, range(5, 7))
    link.outbox.seal_if_older(0.0, 1e18)
    (message,) = link.outgoing()
    assert rows(message)["slot"].tolist() == [0, 1]
    assert sent_pixels(message) in ([[5, 6]], [[5], [6]])


def test_no_more_frames_without_pixels_are_on_their_way_than_the_daemon_takes():
    link, daemon = make_link(slots=1, batch_frames=4096, overload="drop")
    append(link, range(1))
    append(link, range(MAX_PIXELLESS_FRAMES + 5000))
    link.outbox.finish()
    messages = list(link.outgoing())
    told = [rows(message) for message in messages]
    assert sum(int(np.count_nonzero(each["flags"])) for each in told) == MAX_PIXELLESS_FRAMES
    tell(link, acks(daemon, (Level.RELEASED, 0, MAX_PIXELLESS_FRAMES - 1)))
    *more, finish = link.outgoing()
    told += [rows(message) for message in more]
    sequences = np.concatenate([each["sequence"] for each in told])
    assert sequences.tolist() == list(range(MAX_PIXELLESS_FRAMES + 5001))
    assert {int(flags) for each in told for flags in each["flags"]} == {0, FRAME_DROPPED, FRAME_NOT_HELD}
    assert decode_control(finish[1]) == {"frames": MAX_PIXELLESS_FRAMES + 5001}


def test_a_flush_goes_out_behind_the_frames_it_is_about_and_once():
    link, daemon = make_link(batch_frames=8)
    append(link, range(3))
    with pytest.raises(TimedOutError):
        link.outbox.flush("durable", 0.0)
    assert kinds(list(link.outgoing())) == [Kind.FRAMES, Kind.FLUSH]
    assert list(link.outgoing()) == []
    tell(link, acks(daemon, (Level.DURABLE, 0, 2)))
    link.outbox.flush("durable", 0.0)
    assert list(link.outgoing()) == []


def test_losses_are_kept_and_the_stream_goes_on():
    link, daemon = make_link()
    append(link, range(4))
    list(link.outgoing())
    tell(
        link,
        daemon.control(
            Kind.ERROR, Problem(ErrorText(LostFramesError, "gone"), fatal=False, first=1, last=2).to_body()
        ),
    )
    assert [(loss.first, loss.last, type(loss.error)) for loss in link.losses] == [(1, 2, LostFramesError)]
    assert link.state is ClientState.RUNNING


def test_a_frame_of_colours_is_lost_once_though_its_channels_are_one_by_one():
    link, daemon = make_link()
    link.spec = parse_acquisition(default_layout((None, 4, 5, 3), "uint8", "tyxc"))
    append(link, range(6))
    list(link.outgoing())
    for lost in (0, 3, 1, 4):
        problem = Problem(ErrorText(LostFramesError, "gone"), fatal=False, first=lost, last=lost)
        tell(link, daemon.control(Kind.ERROR, problem.to_body()))
    assert [(loss.first, loss.last) for loss in link.losses] == [(0, 0), (1, 1)]


# Resume
# ----------------------------------------------------------------------------------------------------


def resume(link: Link, *missing: tuple[int, int], session: int = SESSION + 1, **changes: Any) -> Counter:
    """The link breaks, and a daemon that lacks ``missing`` goes on with it."""
    link.detach()
    assert list(link.outgoing()) == []
    request = link.resumption(9)
    assert request.resume is not None
    opened = replace(
        link.opened, request=9, missing=missing, next_sequence=request.resume.next_sequence, **changes
    )
    daemon = Counter(session)
    link.resumed(session, opened, WELCOME)
    assert tell(link, daemon.control(Kind.OPENED, opened.to_body())) is None
    return daemon


def test_what_the_daemon_lacks_is_sent_again_before_anything_new():
    link, _ = make_link()
    append(link, range(6))
    link.outbox.seal_if_older(0.0, 1e18)
    list(link.outgoing())
    link.detach()
    append(link, range(10, 12))  # the camera goes on
    daemon = resume(link, (2, 2), (4, 5))
    link.ready()
    link.outbox.finish()
    one, two, new, finish = link.outgoing()
    assert [rows(message)["sequence"].tolist() for message in (one, two, new)] == [[2], [4, 5], [6, 7]]
    assert [sent_pixels_of(message) for message in (one, two, new)] == [[2], [4, 5], [10, 11]]
    assert decode_control(finish[1]) == {"frames": 8}
    tell(link, acks(daemon, (Level.RELEASED, 0, 1), (Level.RELEASED, 3, 3)))
    # told twice: it may have heard so before
    tell(link, acks(daemon, (Level.RELEASED, 0, 1), (Level.RELEASED, 2, 2)))
    assert link.reconnects == 1
    assert link.state is ClientState.FINISHING


def sent_pixels_of(message: list[bytes]) -> list[int]:
    header = decode_header(message[0])
    check_parts(header, [len(part) for part in message[1:]])
    return [
        value
        for part in message[2:]
        for value in np.frombuffer(part, np.uint8).reshape(-1, 20)[:, 0].tolist()
    ]


def test_frames_that_are_not_held_any_more_are_told_of_with_what_is_known():
    """Released, because they were stored, and then lost to a power cut."""
    link, daemon = make_link()
    append(link, range(8))
    list(link.outgoing())
    tell(link, acks(daemon, (Level.RELEASED, 0, 5)))
    append(link, range(20, 24))
    list(link.outgoing())
    daemon = resume(link, (1, 6))
    link.ready()
    messages = list(link.outgoing())
    records = np.concatenate([rows(message) for message in messages])
    assert records["sequence"].tolist() == [1, 2, 3, 4, 5, 6]
    assert records["flags"].tolist() == [FRAME_NOT_HELD] * 5 + [0]
    # of the batch that is still partly held, everything is known
    assert records["frame_id"].tolist() == [-1, -1, -1, 4, 5, 6]
    assert records["position"].tolist() == [-1, -1, -1, 4, 5, 6]
    assert [value for message in messages for value in sent_pixels_of(message)] == [6]
    tell(link, acks(daemon, (Level.RELEASED, 1, 6)))
    again = resume(link, (1, 2), session=SESSION + 2)  # those are let go of as well
    link.ready()
    assert rows(next(link.outgoing()))["flags"].tolist() == [FRAME_NOT_HELD] * 2
    tell(link, acks(again, (Level.RELEASED, 1, 2)))


def test_slots_that_come_back_while_the_ring_is_exchanged_wait():
    link, _ = make_link(slots=4)
    append(link, range(4))
    list(link.outgoing())
    daemon = resume(link, (3, 3))
    tell(link, acks(daemon, (Level.RELEASED, 0, 1), (Level.STORED, 0, 1)))
    assert link.outbox.watermark.stored == 2
    new = FrameRing.local(parse_acquisition(SPEC), 4)
    assert len(link.outbox._queue.free) == 0
    link.outbox.swap_ring(new)
    link.ready()
    assert sorted(link.outbox._queue.free) == [0, 1]
    assert new.frames[:, 0, 0].tolist() == [0, 1, 2, 3]


def test_a_flush_and_a_finish_are_said_again():
    link, _ = make_link()
    append(link, range(2))
    with pytest.raises(TimedOutError):
        link.outbox.flush("durable", 0.0)
    link.outbox.finish()
    assert kinds(list(link.outgoing())) == [Kind.FRAMES, Kind.FLUSH, Kind.FINISH]
    resume(link, (0, 1))
    link.ready()
    assert kinds(list(link.outgoing())) == [Kind.FRAMES, Kind.FLUSH, Kind.FINISH]


def test_a_receipt_that_was_missed_ends_the_link_well():
    link, _ = make_link()
    append(link, range(2))
    link.outbox.finish()
    list(link.outgoing())
    link.detach()
    link.refused(Problem(ErrorText(ClosedError, "it was finished"), fatal=False, request=3, receipt=RECEIPT))
    assert link.state is ClientState.ENDED
    assert link.outbox.wait_for_end() == RECEIPT
    assert link.outbox.watermark == Watermark(2, 2), "with the acknowledgements that were missed"


@pytest.mark.parametrize("receipt", [RECEIPT, None])
def test_an_acquisition_that_ended_without_its_client_is_an_error(receipt: Receipt | None):
    link, _ = make_link()
    append(link, range(1))
    link.detach()
    link.refused(Problem(ErrorText(ResumeError, "gone"), fatal=False, request=3, receipt=receipt))
    assert link.state is ClientState.FAILED
    assert link.outbox.receipt == receipt
    with pytest.raises(ResumeError):
        take_slot(link.outbox)


@pytest.mark.parametrize(
    "changes",
    [{"acquisition": "00" * 16}, {"client_epoch": 2}, {"ring_slots": 9}, {"slot_bytes": 21}],
    ids=str,
)
def test_an_answer_about_something_else_is_refused(changes: dict[str, Any]):
    link, _ = make_link()
    with pytest.raises(ResumeError, match="resumed something else"):
        resume(link, **changes)


def test_a_resumption_says_what_was_sent_and_not_what_waits():
    link, _ = make_link(batch_frames=2)
    append(link, range(2))
    list(link.outgoing())
    append(link, range(2, 3))
    link.detach()
    request = link.resumption(4)
    assert (request.request, request.spec, request.resume) == (4, None, Resume("ab" * 16, 1, 2, 8))


def test_an_update_without_an_answer_is_asked_again_and_answered_once():
    link, daemon = make_link()
    with ThreadPoolExecutor(1) as caller:
        asked = caller.submit(link.outbox.update, "left", {"x": 1}, 1 << 18, None)
        while not (first := list(link.outgoing())):
            time.sleep(0.001)
        assert (kinds(first), list(link.outgoing())) == ([Kind.UPDATE], [])
        daemon = resume(link)
        link.ready()
        again = list(link.outgoing())
        assert decode_control(again[0][1]) == decode_control(first[0][1])
        assert decode_control(again[0][1]) == {"request": 0, "image": "left", "attributes": {"x": 1}}
        for _ in range(2):  # the answer to the first may come as well
            assert tell(link, daemon.control(Kind.UPDATED, Updated(0, None).to_body())) is None
        assert asked.result() is None
    with pytest.raises(TimedOutError):
        link.outbox.update(None, {}, 1 << 18, 0.0)
    assert list(link.outgoing()) == []


def test_updates_beyond_the_bound_wait_for_answers_also_to_those_that_were_given_up():
    link, daemon = make_link()
    sent: list[int] = []
    with ThreadPoolExecutor(1) as caller:
        while len(sent) < MAX_UPDATES:
            given_up = caller.submit(link.outbox.update, None, {}, 1 << 18, 0.001)
            while not given_up.done():
                sent += [decode_control(message[1])["request"] for message in link.outgoing()]
        asked = caller.submit(link.outbox.update, None, {"x": 1}, 1 << 18, None)
        while not link.outbox.updates_behind(sent[-1]):
            time.sleep(0.001)
        link.outbox.finish()
        assert list(link.outgoing()) == [], "the end waits too, or the daemon would refuse the update"
        assert tell(link, daemon.control(Kind.UPDATED, Updated(sent[0], None).to_body())) is None
        update, finish = link.outgoing()
        assert kinds([update, finish]) == [Kind.UPDATE, Kind.FINISH]
        answer = Updated(decode_control(update[1])["request"], None)
        assert tell(link, daemon.control(Kind.UPDATED, answer.to_body())) is None
        assert asked.result() is None


def test_updates_go_out_before_the_end_and_end_with_it():
    link, _ = make_link()
    with ThreadPoolExecutor(1) as caller:
        asked = caller.submit(link.outbox.update, None, {"x": 1}, 1 << 18, None)
        while not link.outbox.updates_behind(-1):
            time.sleep(0.001)
        link.outbox.finish()
        assert kinds(list(link.outgoing())) == [Kind.UPDATE, Kind.FINISH]
        link.outbox.fail(ErrorText(SessionLostError, "gone"))
        with pytest.raises(SessionLostError):
            asked.result()
