"""Headers and bodies: what is encoded decodes to itself, and whatever else comes is a ProtocolError."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.ack_ranges import decode_ranges, encode_ranges

from shardwright.model.errors import ProtocolError, VersionError
from shardwright.model.write_options import DTYPES
from shardwright.wire import handover, messages
from shardwright.wire.descriptor import (
    DESCRIPTOR,
    MAX_FRAME_JSON_BYTES,
    MAX_FURTHER_FIELDS,
    descriptor_dtype,
)
from shardwright.wire.messages import BATCH_PRELUDE, Counter, Header, Kind, Level

LONGEST = descriptor_dtype(MAX_FURTHER_FIELDS, MAX_FRAME_JSON_BYTES).itemsize
U64 = st.integers(0, 2**64 - 1)


def frames_header(count: int = 1, **changes: int) -> Header:
    facts = {
        "session": 7,
        "sequence": 0,
        "count": count,
        "parts": 1,
        "body_bytes": 16 + 96 * count,
        "payload_bytes": 0,
    }
    return Header(Kind.FRAMES, **{**facts, **changes})


def test_the_header_is_laid_out_as_drawn():
    data = Header(Kind.FRAMES, 0x1122334455667788, 9, 1, 2, 112, 4096).pack()
    assert data[:4] == b"SWR1"
    assert data[4:8] == bytes([2, 0, 5, 0])
    assert struct.unpack("<QQIIQQ", data[8:]) == (0x1122334455667788, 9, 1, 2, 112, 4096)


def test_every_dtype_of_a_spec_has_a_code():
    assert messages.DTYPE_NAMES == DTYPES


@given(
    session=U64,
    sequence=U64,
    count=st.integers(1, 1000),
    parts=st.integers(1, 1001),
    payload=st.integers(0, 2**40),
)
def test_frames_headers_round_trip(session: int, sequence: int, count: int, parts: int, payload: int):
    header = frames_header(
        count, session=session, sequence=sequence, parts=min(parts, count + 1), payload_bytes=payload
    )
    if (header.parts > 1) == (payload > 0):
        assert messages.decode_header(header.pack()) == header
    else:
        with pytest.raises(ProtocolError):
            messages.decode_header(header.pack())


@pytest.mark.parametrize(
    "changes", [{"count": 1}, {"parts": 1, "body_bytes": 2}, {"payload_bytes": 1, "parts": 1}]
)
def test_a_flush_has_no_body(changes: dict[str, int]):
    assert messages.decode_header(Counter(7).message(Kind.FLUSH, [])[0]).kind is Kind.FLUSH
    with pytest.raises(ProtocolError):
        messages.decode_header(Header(Kind.FLUSH, 7, 0, **changes).pack())


@pytest.mark.parametrize(
    "changes",
    [
        *({"count": 0}, {"count": 2**32 - 1}, {"body_bytes": 111}, {"body_bytes": 116}, {"body_bytes": 16}),
        *({"body_bytes": 16 + LONGEST + 8}, {"count": 2, "body_bytes": 16 + 96 + 104}),
        *({"parts": 0}, {"parts": 3, "payload_bytes": 1}, {"payload_bytes": 1}),
    ],
)
def test_frames_headers_that_contradict_themselves_are_refused(changes: dict[str, int]):
    with pytest.raises(ProtocolError):
        messages.decode_header(frames_header(**changes).pack())


def test_another_version_is_named():
    data = bytearray(frames_header().pack())
    data[4] = 1
    with pytest.raises(VersionError, match="expected 2; got 1"):
        messages.decode_header(bytes(data))
    with pytest.raises(VersionError):
        messages.decode_header(bytes(data) + b"a longer header of the future")


@given(st.binary(max_size=80))
def test_random_bytes_are_no_header(data: bytes):
    with pytest.raises(ProtocolError):
        messages.decode_header(data)


@given(st.binary(min_size=40, max_size=40), st.integers(0, 255), st.integers(0, 255))
def test_random_fields_never_raise_anything_but_protocol_errors(rest: bytes, kind: int, flags: int):
    try:
        header = messages.decode_header(b"SWR1\2\0" + bytes([kind, flags]) + rest)
    except ProtocolError:
        return
    assert header.body_bytes <= max(messages.MAX_CONTROL_BYTES, 16 + LONGEST * messages.MAX_BATCH_FRAMES)


def test_parts_must_be_what_the_header_says():
    header = frames_header(parts=3, count=2, body_bytes=208, payload_bytes=20)
    messages.check_parts(header, [208, 10, 10])
    for sizes in ([208, 20], [208, 10, 9], [207, 10, 11], []):
        with pytest.raises(ProtocolError):
            messages.check_parts(header, sizes)


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
        max_size=4,
    )
)
def test_control_bodies_round_trip(body: dict[str, object]):
    assert messages.decode_control(messages.encode_control(body)) == body


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"null", b'{"a": NaN}', b'{"a": Infinity}', b"\xff"),
        *(b"[" * 100_000, b'{"a":' * 50_000, b'{"a": ' + b"9" * 5000 + b"}", b" " * (2**20 + 1)),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_bad_control_bodies_are_protocol_errors(data: bytes):
    with pytest.raises(ProtocolError):
        messages.decode_control(data)


@given(st.binary(max_size=200))
def test_random_control_bodies_never_raise_anything_else(data: bytes):
    with contextlib.suppress(ProtocolError):
        assert isinstance(messages.decode_control(data), dict)


def test_a_batch_decodes_to_its_own_copy():
    descriptors = np.zeros(3, DESCRIPTOR)
    descriptors["sequence"] = [5, 6, 7]
    body = bytearray(BATCH_PRELUDE.pack(messages.DTYPE_CODE["uint16"], 4, 6, 0) + descriptors.tobytes())
    batch = messages.decode_batch(frames_header(3), body)
    body[:] = bytes(len(body))
    assert (batch.dtype, batch.height, batch.width) == ("uint16", 4, 6)
    assert batch.descriptors["sequence"].tolist() == [5, 6, 7]


def test_further_fields_lengthen_every_record():
    descriptors = np.zeros(2, descriptor_dtype(3))
    descriptors["further"] = [[1, 2, 3], [4, 5, 6]]
    body = BATCH_PRELUDE.pack(messages.DTYPE_CODE["uint16"], 4, 6, 0) + descriptors.tobytes()
    header = messages.decode_header(frames_header(2, body_bytes=len(body)).pack())
    assert messages.decode_batch(header, body, 3).descriptors["further"].tolist() == [[1, 2, 3], [4, 5, 6]]
    for other in (0, 2, 4):
        with pytest.raises(ProtocolError, match="do not fit the array"):
            messages.decode_batch(header, body, other)


def test_json_lengthens_every_record():
    descriptors = np.zeros(2, descriptor_dtype(1, 13))
    assert descriptors.itemsize == 96 + 8 + 16, "whole words"
    descriptors["json"] = [b'{"note":"a"}', b""]
    body = BATCH_PRELUDE.pack(messages.DTYPE_CODE["uint16"], 4, 6, 0) + descriptors.tobytes()
    header = messages.decode_header(frames_header(2, body_bytes=len(body)).pack())
    assert messages.decode_batch(header, body, 1, 13).descriptors["json"].tolist() == [b'{"note":"a"}', b""]
    for other in (0, 8, 17):
        with pytest.raises(ProtocolError, match="do not fit the array"):
            messages.decode_batch(header, body, 1, other)


@pytest.mark.parametrize("prelude", [(0, 4, 6, 0), (13, 4, 6, 0), (7, 4, 6, 1)])
def test_a_batch_of_unknown_coding_is_refused(prelude: tuple[int, int, int, int]):
    with pytest.raises(ProtocolError):
        messages.decode_batch(frames_header(1), BATCH_PRELUDE.pack(*prelude) + bytes(96))


def test_ack_ranges_round_trip():
    ranges = [(Level.RELEASED, 0, 3), (Level.STORED, 2**40, 2**41), (Level.DURABLE, 5, 5)]
    assert decode_ranges(encode_ranges(ranges)) == ranges


@pytest.mark.parametrize("entry", [(0, 0, 1, 2), (4, 0, 1, 2), (1, 1, 1, 2), (1, 0, 2, 1)])
def test_impossible_ack_ranges_are_refused(entry: tuple[int, int, int, int]):
    with pytest.raises(ProtocolError):
        decode_ranges(np.array([entry], messages.ACK_RANGE).tobytes())


def test_a_counter_accepts_only_the_next_message():
    sender, receiver = Counter(3), Counter(3)
    headers = [messages.decode_header(sender.control(Kind.HEARTBEAT)[0]) for _ in range(3)]
    assert [header.sequence for header in headers] == [0, 1, 2]
    receiver.accept(headers[0])
    for wrong in (headers[0], headers[2]):
        with pytest.raises(ProtocolError, match="expected message 1"):
            receiver.accept(wrong)
    receiver.accept(headers[1])


def test_ring_requests_and_answers_round_trip():
    token = "0123456789abcdef" * 2
    assert handover.decode_request(handover.encode_request(2**64 - 1, token)) == (2**64 - 1, token)
    assert handover.decode_answer(handover.encode_answer(handover.GIVEN, 4096)) == 4096
    with pytest.raises(ProtocolError, match="refused"):
        handover.decode_answer(handover.encode_answer(handover.REFUSED, 0))


@given(st.binary(max_size=40))
def test_random_ring_records_are_protocol_errors(data: bytes):
    for decode in (handover.decode_request, handover.decode_answer):
        with pytest.raises(ProtocolError):
            decode(data)
