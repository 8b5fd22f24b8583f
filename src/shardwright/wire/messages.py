"""Messages as bytes: encode and decode, strictly checked and bounded, without I/O. PROTOCOL.md draws every
byte.

A message is a list of parts: header, body, pixels. For any bytes, ``decode_*`` raise only ``ProtocolError``
(``VersionError``).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import ProtocolError, VersionError
from shardwright.model.json_text import parse_json

from .descriptor import DESCRIPTOR, MAX_FRAME_JSON_BYTES, MAX_FURTHER_FIELDS, descriptor_dtype

MAGIC = b"SWR1"
VERSION = 2
HEADER = struct.Struct("<4sHBBQQIIQQ")
BATCH_PRELUDE = struct.Struct("<B3xIII")  # dtype code, height, width, 0
ACK_RANGE = np.dtype([("level", "<u4"), ("reserved", "<u4"), ("first", "<u8"), ("last", "<u8")])
assert (HEADER.size, BATCH_PRELUDE.size, ACK_RANGE.itemsize) == (48, 16, 24), "PROTOCOL.md draws these"

CONNECTION = 0  # the session number of messages that concern the whole connection
# A position is the number of an image, and below it the place within that image.
IMAGE_SHIFT = 48
MAX_POSITION = (1 << IMAGE_SHIFT) - 1  # within an image
MAX_IMAGES = 2**14  # so that a position is an int64
MAX_CONTROL_BYTES = 1 << 20  # of any JSON body that this side parses, whatever the peer announces
MAX_BATCH_FRAMES = 1 << 16
_LONGEST_RECORD_BYTES = descriptor_dtype(MAX_FURTHER_FIELDS, MAX_FRAME_JSON_BYTES).itemsize
# frames without pixels that may be on their way at once: they need no credit, so they need a bound of their
# own
MAX_PIXELLESS_FRAMES = 1 << 16
DTYPE_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
DTYPE_CODE = {name: code for code, name in enumerate(DTYPE_NAMES, start=1)}

Parts = list[bytes]
Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    OPEN = 3
    OPENED = 4
    FRAMES = 5
    ACK = 6
    HEARTBEAT = 7
    FINISH = 8
    RECEIPT = 9
    ERROR = 10
    FLUSH = 11
    UPDATE = 12
    UPDATED = 13
    ADD_IMAGE = 14
    FLUSH_TO = 15
    VISIBLE = 16


class Level(IntEnum):
    """The acknowledgement that an ACK range gives for its frames."""

    RELEASED = 1
    STORED = 2
    DURABLE = 3


@dataclass(frozen=True, slots=True)
class Header:
    kind: Kind
    session: int
    sequence: int
    count: int = 0
    parts: int = 0
    body_bytes: int = 0
    payload_bytes: int = 0

    def pack(self) -> bytes:
        return HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            0,
            self.session,
            self.sequence,
            self.count,
            self.parts,
            self.body_bytes,
            self.payload_bytes,
        )


def other_version(version: int) -> VersionError:
    """Returns the error for what is of another version of the protocol."""
    hint = "Use the same shardwright release on both sides"
    return VersionError("another protocol version", expected=VERSION, got=version, hint=hint)


def decode_header(data: Buffer) -> Header:
    """Returns the header in ``data``. Raises ``VersionError`` for another version, ``ProtocolError`` for
    anything that is no header."""
    if len(data) < 8 or bytes(data[:4]) != MAGIC:
        raise ProtocolError(
            "not a shardwright message",
            expected="a header that starts with 'SWR1'",
            got=f"{len(data)} bytes: {bytes(data[:8])!r}",
        )
    version = int.from_bytes(data[4:6], "little")
    if version != VERSION:
        raise other_version(version)
    if len(data) != HEADER.size:
        raise ProtocolError("wrong header length", expected=f"{HEADER.size} bytes", got=len(data))
    _, _, kind, flags, session, sequence, count, parts, body_bytes, payload_bytes = HEADER.unpack(data)
    if flags != 0 or kind not in Kind._value2member_map_:
        raise ProtocolError(
            "unknown message kind or flags",
            expected=f"kind 1 to {max(Kind)}, flags 0",
            got=f"kind {kind}, flags {flags}",
        )
    header = Header(Kind(kind), session, sequence, count, parts, body_bytes, payload_bytes)
    _check_shape_of_message(header)
    return header


def _check_shape_of_message(header: Header) -> None:
    """Checks what the header alone decides: counts and parts must fit the kind."""
    kind = header.kind
    if kind is Kind.FRAMES:
        good = 1 <= header.count <= MAX_BATCH_FRAMES and 1 <= header.parts <= 1 + header.count
        good = good and _descriptor_bytes(header) is not None
    elif kind is Kind.ACK:
        good = (
            1 <= header.count <= MAX_BATCH_FRAMES
            and header.parts == 1
            and header.body_bytes == header.count * ACK_RANGE.itemsize
        )
    elif kind in (Kind.HEARTBEAT, Kind.FLUSH):
        good = (header.count, header.parts, header.body_bytes) == (0, 0, 0)
    else:
        good = header.count == 0 and header.parts == 1 and 2 <= header.body_bytes <= MAX_CONTROL_BYTES
    if not good or (header.payload_bytes > 0) != (header.parts > 1):
        raise ProtocolError(
            f"a {kind.name} message with impossible counts or lengths",
            expected="as in PROTOCOL.md",
            got=header,
        )


def _descriptor_bytes(header: Header) -> int | None:
    """Returns the size of each record in a FRAMES body: 96 bytes, 8 for each of the array's further fields
    and those for JSON (the numbers of both are checked later); None if it is no record's size."""
    each, rest = divmod(header.body_bytes - BATCH_PRELUDE.size, header.count)
    possible = DESCRIPTOR.itemsize <= each <= _LONGEST_RECORD_BYTES and each % 8 == 0
    return each if rest == 0 and possible else None


def check_parts(header: Header, sizes: list[int]) -> None:
    """Raises ``ProtocolError`` unless the parts fit the header. ``sizes``: bytes of each part after it."""
    body_bytes, payload_bytes = (sizes[0] if sizes else 0), sum(sizes[1:])
    came = (len(sizes), body_bytes, payload_bytes)
    if came != (header.parts, header.body_bytes, header.payload_bytes):
        expected = f"{header.parts} parts, body {header.body_bytes}, payload {header.payload_bytes} bytes"
        raise ProtocolError(
            "a message whose parts differ from its header",
            expected=expected,
            got=f"{came[0]}, {came[1]}, {came[2]}",
        )


class Counter:
    """The message sequences of one session (or of the connection itself), one for each direction."""

    def __init__(self, session: int) -> None:
        self.session = session
        self._sent = 0
        self._received = 0

    def control(self, kind: Kind, body: dict[str, Any] | None = None) -> Parts:
        """Returns a message with a JSON body, or with none."""
        parts = [] if body is None else [encode_control(body)]
        return self.message(kind, parts)

    def message(
        self, kind: Kind, parts: Parts, *, count: int = 0, pixel_parts: int = 0, payload_bytes: int = 0
    ) -> Parts:
        """Returns the header and ``parts``; the caller appends ``pixel_parts`` parts of ``payload_bytes`` in
        all, without copying."""
        body_bytes = len(parts[0]) if parts else 0
        header = Header(
            kind, self.session, self._sent, count, len(parts) + pixel_parts, body_bytes, payload_bytes
        )
        self._sent += 1
        return [header.pack(), *parts]

    def accept(self, header: Header) -> None:
        """Raises ``ProtocolError`` unless ``header`` is of the next message of this session."""
        if header.sequence != self._received:
            raise ProtocolError(
                "messages are missing or repeated", expected=f"message {self._received}", got=header.sequence
            )
        self._received += 1


# Control bodies
# ----------------------------------------------------------------------------------------------------


def encode_control(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def decode_control(data: Buffer) -> dict[str, Any]:
    """Returns one JSON object. Raises ``ProtocolError`` for anything else."""
    expected = f"one object of at most {MAX_CONTROL_BYTES} bytes"
    if len(data) > MAX_CONTROL_BYTES:
        raise ProtocolError("a control body that is too long", expected=expected, got=f"{len(data)} bytes")
    try:
        body = parse_json(bytes(data))
    except ValueError as error:
        raise ProtocolError(
            "a control body that is no JSON", expected=expected, got=str(error)[:120]
        ) from None
    if not isinstance(body, dict):
        raise ProtocolError(
            "a control body that is no JSON object", expected="an object", got=type(body).__name__
        )
    return body


# Packed bodies
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """One FRAMES body. ``descriptors`` is its own copy: it outlives the message."""

    dtype: str
    height: int
    width: int
    descriptors: npt.NDArray[np.void]


def decode_batch(header: Header, body: Buffer, further_fields: int = 0, json_bytes: int = 0) -> Batch:
    """Decodes a FRAMES body of ``header.body_bytes`` bytes (see ``check_parts``). Checks the prelude's coding
    and that each record has as many further fields and bytes of JSON as the array; the caller compares the
    rest with its spec."""
    record = descriptor_dtype(further_fields, json_bytes)
    if _descriptor_bytes(header) != record.itemsize:
        fields = f"{further_fields} frame_fields and {json_bytes} frame_json_bytes"
        expected = f"{record.itemsize} bytes a frame, for {fields}"
        raise ProtocolError(
            "descriptors that do not fit the array",
            expected=expected,
            got=f"{header.body_bytes} bytes for {header.count} frames",
        )
    code, height, width, reserved = BATCH_PRELUDE.unpack_from(body)
    if not 1 <= code <= len(DTYPE_NAMES) or reserved != 0 or bytes(body[1:4]) != b"\0\0\0":
        raise ProtocolError(
            "unknown dtype code or reserved bytes in FRAMES",
            expected=f"dtype 1 to {len(DTYPE_NAMES)}, zeros",
            got=f"dtype {code}",
        )
    descriptors = np.frombuffer(body, record, header.count, BATCH_PRELUDE.size).copy()
    return Batch(DTYPE_NAMES[code - 1], height, width, descriptors)


def ack_ranges(level: Level, ranges: npt.ArrayLike) -> npt.NDArray[np.void]:
    """Returns ACK_RANGE[n] of one level from (first, last) pairs, int64[n, 2]."""
    pairs = np.asarray(ranges, np.int64).reshape(-1, 2)
    acks = np.zeros(len(pairs), ACK_RANGE)
    acks["level"], acks["first"], acks["last"] = level, pairs[:, 0], pairs[:, 1]
    return acks


def decode_acks(body: Buffer) -> npt.NDArray[np.void]:
    """Returns ACK_RANGE[n], first and last both included, each with first <= last. Raises
    ``ProtocolError``."""
    acks: npt.NDArray[np.void] = np.frombuffer(body, ACK_RANGE)
    wrong = (
        (acks["level"] < Level.RELEASED)
        | (acks["level"] > Level.DURABLE)
        | (acks["reserved"] != 0)
        | (acks["first"] > acks["last"])
    )
    if wrong.any():
        level, _, first, last = acks[wrong.argmax()].item()
        raise ProtocolError(
            "an impossible ACK range", expected="level 1 to 3, first <= last", got=(level, first, last)
        )
    return acks
