"""Messages that break the protocol, sent by hand: a clear error to the sender, nothing written for it,
everyone else unaffected."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import numpy as np
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.ack_ranges import decode_ranges

import shardwright as sw
from shardwright.client import frame_ring
from shardwright.ingest.transport import endpoints
from shardwright.wire import handover, messages
from shardwright.wire.descriptor import DESCRIPTOR, descriptor_dtype
from shardwright.wire.messages import BATCH_PRELUDE, Counter, Kind, Level


def frames_message(
    counter: Counter,
    pixels: np.ndarray,
    *,
    first: int = 0,
    dtype: str = "uint16",
    cut: int = 0,
    **fields: object,
) -> list[bytes]:
    """A FRAMES message of message transport; ``fields`` replace descriptor fields, ``cut`` bytes are missing
    from the pixels."""
    count, height, width = pixels.shape
    descriptors = np.zeros(
        count, descriptor_dtype(0, len(fields["json"][0])) if "json" in fields else DESCRIPTOR
    )
    descriptors["sequence"] = descriptors["position"] = first + np.arange(count)
    descriptors["slot"] = np.arange(count)
    descriptors["frame_id"] = -1
    for name, value in fields.items():
        descriptors[name] = value
    body = BATCH_PRELUDE.pack(messages.DTYPE_CODE[dtype], height, width, 0) + descriptors.tobytes()
    payload = pixels.tobytes()[: pixels.nbytes - cut]
    return [
        *counter.message(Kind.FRAMES, [body], count=count, pixel_parts=1, payload_bytes=len(payload)),
        payload,
    ]


@pytest.fixture
def bystander(start, double, spec_of, frames_of):
    """A daemon with another client in the middle of its acquisition; checked at the end."""
    daemon = start(doubled=double)
    frames = frames_of(40)
    with sw.connect(daemon.tcp) as connection, connection.acquire("bystander", spec_of()) as stream:
        for frame in frames[:20]:
            stream.append(frame)
        yield daemon
        for frame in frames[20:]:
            stream.append(frame)
    assert daemon.acquisitions[0].frames == {i: frame.tobytes() for i, frame in enumerate(frames)}
    assert stream.receipt.frames_received == 40


BAD_BATCHES = [
    ({"dtype": "uint8"}, "frame_dtype"),
    ({"sequence": [2, 4]}, "protocol"),
    ({"sequence": [3, 4]}, "protocol"),
    ({"position": [2, 10]}, "frame_index"),
    ({"position": [-1, 2]}, "frame_index"),
    ({"flags": 1}, "protocol"),
    ({"reserved": 1}, "protocol"),
    ({"frame_id": -2}, "protocol"),
    ({"slot": [0, 0]}, "protocol"),
    ({"slot": [1, 0]}, "protocol"),
    ({"cut": 1}, "protocol"),
    ({"cut": 8 * 12 * 2}, "protocol"),
]


@pytest.mark.parametrize(("changes", "code"), BAD_BATCHES, ids=lambda value: str(value))
def test_a_bad_batch_ends_its_session_and_nothing_of_it_is_written(
    bystander, raw, spec_of, frames_of, changes, code: str
):
    client, frames = raw(bystander.ipc), frames_of(4)
    counter, _ = client.open("bad", spec_of(count=10))
    client.send(frames_message(counter, frames[:2]))
    client.send(frames_message(counter, frames[2:], first=2, **changes))
    header, facts = client.receive_error(until=True)
    assert (header.session, facts["code"], facts["fatal"], facts["first"], facts["last"]) == (
        counter.session,
        code,
        True,
        2,
        3,
    )
    header, parts = client.receive()
    receipt = messages.decode_control(parts[0])["receipt"]
    assert (header.kind, receipt["frames_received"], receipt["frames_stored"]) == (Kind.RECEIPT, 2, 2)
    again, _ = client.open("good", spec_of())
    assert again.session != counter.session


@pytest.mark.parametrize(
    "json",
    [
        *(b'{"a":"\xff"}', b"[1,2,3,4]", b'{"a":1}  ', b'{"a":"\xc3', b"\0" * 7 + b"}", b'{"a": "a'),
        *(
            b"{nonsense}",
            b'{"a":nonsense}',
            b'{"a":NaN}',
            b'{"a":1e999}',
            b'{"a":1},{"b":2}',
            b'{"a":1}}',
            b"{}{}",
        ),
        *(b'{"a":[{}', b"{}]}", b'{"a":"b\0c"}', b'{"a":"b\nc"}', b'{"a":01}', b" {}"),
    ],
)
def test_metadata_that_are_no_object_end_a_session(bystander, raw, spec_of, frames_of, json):
    """A client of ours sends none of these."""
    client = raw(bystander.ipc)
    spec = spec_of().model_copy(update={"frame_json_bytes": 16})
    counter, _ = client.open("bad", spec)
    good, bad = (text.ljust(16, b"\0") for text in ('{"a":"\u00b5"}'.encode(), json))
    client.send(frames_message(counter, frames_of(2), json=[good, bytes(16)]))
    client.send(frames_message(counter, frames_of(2), first=2, json=[good, bad]))
    _, facts = client.receive_error(until=True)
    assert (facts["code"], facts["message"]) == ("metadata", "a frame with metadata that are no JSON")
    assert (facts["first"], facts["last"], facts["fatal"]) == (2, 3, True)
    header, parts = client.receive()
    receipt = messages.decode_control(parts[0])["receipt"]
    assert (header.kind, receipt["frames_received"], receipt["frames_stored"]) == (Kind.RECEIPT, 2, 2)


def test_metadata_that_fit_only_into_the_padding_end_a_session(bystander, raw, spec_of, frames_of):
    """Readers take ``frame_json_bytes`` for the bound of each text."""
    client = raw(bystander.ipc)
    counter, _ = client.open("bad", spec_of().model_copy(update={"frame_json_bytes": 17}))
    longest, longer = (b'{"a":"' + b"x" * n + b'"}' for n in (9, 10))
    good, bad = longest.ljust(24, b"\0"), longer.ljust(24, b"\0")
    client.send(frames_message(counter, frames_of(1), json=[good]))
    client.send(frames_message(counter, frames_of(1), first=1, json=[bad]))
    _, facts = client.receive_error(until=True)
    assert (facts["code"], facts["expected"], facts["got"], facts["first"]) == (
        "protocol",
        "at most 17 bytes of JSON",
        "18 bytes",
        1,
    )


def test_a_wrong_shape_is_told_with_both_shapes(bystander, raw, spec_of, frames_of):
    client = raw(bystander.ipc)
    counter, _ = client.open("bad", spec_of())
    client.send(frames_message(counter, frames_of(1, (12, 8))))
    _, facts = client.receive_error()
    assert (facts["code"], facts["expected"], facts["got"]) == ("frame_shape", "(8, 12)", "(12, 8)")


def test_a_hole_in_the_messages_of_a_session_ends_it(bystander, raw, spec_of, frames_of):
    client = raw(bystander.ipc)
    counter, _ = client.open("bad", spec_of())
    counter.control(Kind.FINISH)  # counted, never sent
    client.send(frames_message(counter, frames_of(1)))
    header, facts = client.receive_error()
    assert (header.session, facts["code"], facts["expected"], facts["got"]) == (
        counter.session,
        "protocol",
        "message 0",
        "1",
    )
    assert bystander.event("acquisition_ended")["frames_received"] == 0


def test_more_frames_than_credit_end_the_session(start, double, raw, spec_of, frames_of):
    double.holding = True
    client = raw(start(doubled=double).ipc)
    counter, opened = client.open("greedy", spec_of(shape=(512, 512)))
    slots = opened["ring_slots"]
    frames = frames_of(1, (512, 512))
    for i in range(slots):
        client.send(frames_message(counter, frames, first=i))
    client.send(frames_message(counter, frames, first=slots))
    _, facts = client.receive_error(until=True)
    assert (facts["code"], facts["first"]) == ("protocol", slots)
    assert facts["message"] == "more frames than credit"


def test_finish_must_count_what_came(bystander, raw, spec_of, frames_of):
    client = raw(bystander.ipc)
    counter, _ = client.open("bad", spec_of())
    client.send(frames_message(counter, frames_of(3)))
    client.send(counter.control(Kind.FINISH, {"frames": 2}))
    _, facts = client.receive_error(until=True)
    assert (facts["code"], facts["expected"], facts["got"]) == ("protocol", "3 frames", "2")


@pytest.mark.parametrize("kind", [Kind.RECEIPT, Kind.OPENED, Kind.WELCOME])
def test_what_only_a_daemon_says_ends_the_session(bystander, raw, spec_of, kind: Kind):
    client = raw(bystander.ipc)
    counter, _ = client.open("bad", spec_of())
    client.send(counter.control(kind, {}))
    header, facts = client.receive_error()
    assert (header.session, facts["code"]) == (counter.session, "protocol")


def test_another_clients_session_cannot_be_used(bystander, raw, spec_of, frames_of):
    owner, thief = raw(bystander.ipc), raw(bystander.ipc)
    counter, _ = owner.open("mine", spec_of())
    thief.send(frames_message(Counter(counter.session), frames_of(2)))
    header, facts = thief.receive_error()
    assert (header.session, facts["code"]) == (counter.session, "session_lost")
    owner.send(frames_message(counter, frames_of(2)))
    owner.send(counter.control(Kind.FINISH, {"frames": 2}))
    header, parts = owner.receive()
    while header.kind is Kind.ACK:
        assert {level for level, _, _ in decode_ranges(parts[0])} <= set(Level)
        header, parts = owner.receive()
    assert messages.decode_control(parts[0])["receipt"]["frames_stored"] == 2


def test_another_version_gets_a_clear_answer(bystander, raw):
    client = raw(bystander.ipc, hello=False)
    parts = client.connection.control(Kind.HELLO, {})
    client.send([parts[0][:4] + b"\1\0" + parts[0][6:], parts[1]])
    header, facts = client.receive_error()
    assert (header.session, facts["code"], facts["expected"], facts["got"], facts["fatal"]) == (
        0,
        "version",
        "2",
        "1",
        True,
    )


def test_frames_without_hello_are_answered_and_forgotten(bystander, raw, frames_of):
    client = raw(bystander.ipc, hello=False)
    client.send(frames_message(Counter(99), frames_of(1)))
    _, facts = client.receive_error()
    assert facts["code"] == "session_lost"
    assert bystander.server.snapshot()["clients"] == 1


def test_a_hole_in_the_messages_of_a_connection_ends_it_and_its_sessions(bystander, raw, spec_of):
    client = raw(bystander.ipc)
    client.open("bad", spec_of())
    client.connection.control(Kind.HEARTBEAT)
    client.send(client.connection.control(Kind.HEARTBEAT))
    header, facts = client.receive_error()
    assert (header.session, facts["code"], facts["fatal"]) == (0, "protocol", True)
    assert bystander.event("acquisition_ended")["frames_received"] == 0


def test_too_many_connections_are_turned_away(start, double, raw):
    daemon = start(doubled=double, max_connections=2)
    raw(daemon.ipc)
    raw(daemon.ipc)
    third = raw(daemon.ipc, hello=False)
    third.send(third.connection.control(Kind.HELLO, {"software": "raw", "host": "test", "pid": 1}))
    _, facts = third.receive_error()
    assert facts["code"] == "budget"


def test_an_open_that_is_too_long_ends_the_connection(start, double, raw, spec_of):
    client = raw(start(doubled=double, max_control_bytes=4096).ipc)
    body = {
        "request": 1,
        "name": "a",
        "spec": {"attributes": {"notes": "x" * 5000}},
        "stream": None,
        "transport": "message",
    }
    client.send(client.connection.control(Kind.OPEN, body))
    _, facts = client.receive_error()
    assert (facts["code"], facts["fatal"]) == ("protocol", True)


def _lists_of_lists(depth: int) -> list:
    return [_lists_of_lists(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "complex64"},
        {"dimensions": []},
        {
            "dimensions": [
                {"name": "y", "count": 2**62, "chunk_size": 2**62},
                {"name": "x", "count": 2**62, "chunk_size": 1},
            ]
        },
        {
            "dimensions": [
                {"name": "t", "count": 2**63, "chunk_size": 1},
                {"name": "y", "count": 8, "chunk_size": 8},
                {"name": "x", "count": 8, "chunk_size": 8},
            ]
        },
        {"dtype": "\n"},
        {"attributes": {"deep": _lists_of_lists(100)}},
        {"codec": {"name": "lzma"}},
        {"surprise": 1},
    ],
    ids=str,
)
def test_a_wrong_spec_is_refused_and_the_connection_goes_on(bystander, raw, spec_of, changes):
    client = raw(bystander.ipc)
    before = sorted(thread.name for thread in threading.enumerate()), sorted(bystander.root.iterdir())
    spec = {**spec_of().model_dump(mode="json"), **changes}
    client.send(
        client.connection.control(
            Kind.OPEN, {"request": 5, "name": "a", "spec": spec, "stream": None, "transport": "message"}
        )
    )
    header, facts = client.receive_error()
    assert (header.session, facts["code"], facts["fatal"], facts["request"]) == (0, "spec", False, 5)
    assert (
        sorted(thread.name for thread in threading.enumerate()),
        sorted(bystander.root.iterdir()),
    ) == before
    client.open("a", spec_of())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_messages_never_hurt_anybody_else(bystander, spec_of, frames_of, raw, data: st.DataObject):
    """A valid conversation with one part changed, cut, dropped or repeated."""
    client = raw(bystander.ipc, hello=False)
    hello = client.connection.control(Kind.HELLO, {"software": "raw", "host": "test", "pid": 1})
    body = {"request": 1, "name": "../x", "spec": None, "stream": None, "transport": "message"}
    conversation = [
        hello,
        client.connection.control(Kind.OPEN, body),
        frames_message(Counter(0), frames_of(2)),
    ]
    place = data.draw(st.integers(0, 2))
    message = [bytearray(part) for part in conversation[place]]
    part = data.draw(st.integers(0, len(message) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "drop", "repeat", "random"])):
        case "flip":
            message[part][data.draw(st.integers(0, len(message[part]) - 1))] ^= data.draw(st.integers(1, 255))
        case "cut":
            del message[part][data.draw(st.integers(0, len(message[part]) - 1)) :]
        case "drop":
            del message[part]
        case "repeat":
            message.insert(part, message[part])
        case "random":
            message[part] = bytearray(data.draw(st.binary(max_size=64)))
    conversation[place] = [bytes(p) for p in message] or [b""]
    for parts in conversation:
        client.send(parts)
    client.receive()  # an answer of some kind: the daemon lives
    client.close()


def test_raw_bytes_on_the_tcp_port_hurt_nobody(bystander):
    host, port = bystander.tcp.removeprefix("tcp://").split(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    random = np.random.default_rng(2)
    for i in range(60):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall((greeting if i % 2 else b"") + random.bytes(200))
    with sw.connect(bystander.tcp) as connection:
        assert connection.daemon.software


def test_an_oversize_message_costs_only_its_sender(start, double, spec_of, frames_of):
    daemon = start(doubled=double, max_message_bytes=10_000)
    with sw.connect(daemon.tcp) as connection, connection.acquire("good", spec_of()) as stream:
        context = zmq.Context()
        offender = context.socket(zmq.DEALER)
        offender.connect(daemon.tcp)
        offender.send(bytes(50_000))
        stream.append(frames_of(1)[0])
        with sw.connect(daemon.tcp):
            pass
        context.destroy(linger=0)
    assert stream.receipt.frames_stored == 1


# The ring socket
# ----------------------------------------------------------------------------------------------------


def ask_for_ring(daemon, request: bytes) -> tuple[bytes, list[int]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(daemon.root / "ring.sock"))
        connection.sendall(request)
        answer, descriptors, _, _ = socket.recv_fds(connection, 100, 1)
    return answer, descriptors


def test_a_ring_goes_out_once_and_only_for_its_token(bystander, raw, spec_of):
    client = raw(bystander.ipc)
    counter, opened = client.open("ring", spec_of(), "shm")
    refusal = handover.encode_answer(handover.REFUSED, 0)
    assert ask_for_ring(bystander, handover.encode_request(counter.session, "00" * 16)) == (refusal, [])
    assert ask_for_ring(bystander, handover.encode_request(1, opened["ring_token"])) == (refusal, [])
    request = handover.encode_request(counter.session, opened["ring_token"])
    answer, (descriptor,) = ask_for_ring(bystander, request)
    assert (
        handover.decode_answer(answer)
        == opened["ring_slots"] * opened["slot_bytes"]
        == os.fstat(descriptor).st_size
    )
    for size in (0, 2 * os.fstat(descriptor).st_size):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)
    assert ask_for_ring(bystander, request) == (refusal, [])


@pytest.mark.parametrize(
    "request_bytes", [b"", b"SWRR", bytes(32), b"GET / HTTP/1.1\r\nHost: rig\r\n\r\n", bytes(5000)], ids=len
)
def test_nonsense_on_the_ring_socket_is_dropped(bystander, request_bytes: bytes):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(bystander.root / "ring.sock"))
        if request_bytes:
            connection.sendall(request_bytes)
        else:
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # closed with our bytes unread
            assert connection.recv(100) == b""


def test_silent_connections_on_the_ring_socket_starve_no_client(bystander, spec_of, frames_of):
    """More than may wait, and more than may stand in line behind them."""
    with contextlib.ExitStack() as silent:
        for _ in range(endpoints.MAX_WAITING + 100):
            silent.enter_context(socket.socket(socket.AF_UNIX)).connect(str(bystander.root / "ring.sock"))
        with (
            sw.connect(bystander.ipc, transport="shm") as connection,
            connection.acquire("let-in", spec_of()) as stream,
        ):
            stream.append(frames_of(1)[0])
    assert (stream.transport, stream.receipt.frames_stored) == ("shm", 1)


def test_a_client_waits_in_line_for_the_ring_socket(folder):
    """A line that is full for a moment is no reason to give up."""
    path, connected = str(folder / "ring.sock"), []
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as others:
        listener.bind(path)
        listener.listen(0)
        listener.settimeout(0.05)
        with contextlib.suppress(BlockingIOError):  # the line is full
            while True:
                other = others.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                other.connect(path)
        client = threading.Thread(target=lambda: connected.append(frame_ring._connected(path)))
        client.start()
        while client.is_alive():
            with contextlib.suppress(TimeoutError):
                others.enter_context(listener.accept()[0])
        client.join()
    assert connected, "it gave up"
    connected[0].close()


def shm_message(counter: Counter, slots: list[int], first: int = 0) -> list[bytes]:
    descriptors = np.zeros(len(slots), DESCRIPTOR)
    descriptors["sequence"] = descriptors["position"] = first + np.arange(len(slots))
    descriptors["slot"] = slots
    body = BATCH_PRELUDE.pack(messages.DTYPE_CODE["uint16"], 8, 12, 0) + descriptors.tobytes()
    return counter.message(Kind.FRAMES, [body], count=len(slots))


def test_frames_before_the_ring_was_fetched_are_refused(bystander, raw, spec_of):
    client = raw(bystander.ipc)
    counter, _ = client.open("early", spec_of(), "shm")
    client.send(shm_message(counter, [0]))
    header, facts = client.receive_error()
    assert (header.session, facts["code"]) == (counter.session, "protocol")


@pytest.mark.parametrize("wrong", [[1, 1], [2**20, 3], [2**32 - 1, 0], [0, 4]], ids=str)
def test_ring_slots_must_exist_and_be_free(start, double, raw, spec_of, wrong: list[int]):
    double.holding = True
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    counter, opened = client.open("slots", spec_of(), "shm")
    _, (descriptor,) = ask_for_ring(daemon, handover.encode_request(counter.session, opened["ring_token"]))
    os.close(descriptor)
    client.send(shm_message(counter, [4, 5]))
    client.send(shm_message(counter, wrong, first=2))
    _, facts = client.receive_error(until=True)
    assert (facts["code"], facts["message"], facts["first"], facts["last"]) == (
        "protocol",
        "ring slots that are not free",
        2,
        3,
    )
    assert daemon.event("acquisition_ended")["frames_received"] == 2
