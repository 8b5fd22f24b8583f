"""The two records of the ring handover (request and answer on the Unix socket) as bytes; PROTOCOL.md draws
them. No I/O."""

from __future__ import annotations

import struct

from shardwright.model.errors import ProtocolError

from .messages import VERSION, other_version

MAGIC = b"SWRR"
REQUEST = struct.Struct("<4sHHQ16s")  # magic, version, 0, session, token
ANSWER = struct.Struct("<4sHHQ")  # magic, version, status, ring bytes
GIVEN, REFUSED = 0, 1


def encode_request(session: int, token_hex: str) -> bytes:
    return REQUEST.pack(MAGIC, VERSION, 0, session, bytes.fromhex(token_hex))


def decode_request(data: bytes) -> tuple[int, str]:
    """Returns (session, token in hex). Raises ``VersionError``, ``ProtocolError``."""
    _check_version(data)
    if len(data) != REQUEST.size or data[:8] != REQUEST.pack(MAGIC, VERSION, 0, 0, b"")[:8]:
        raise ProtocolError(
            "not a ring request", expected=f"{REQUEST.size} bytes that start with 'SWRR'", got=repr(data[:8])
        )
    _, _, _, session, token = REQUEST.unpack(data)
    return session, token.hex()


def encode_answer(status: int, ring_bytes: int) -> bytes:
    return ANSWER.pack(MAGIC, VERSION, status, ring_bytes)


def decode_answer(data: bytes) -> int:
    """Returns the ring's size in bytes. Raises ``VersionError``, ``ProtocolError`` when refused or
    malformed."""
    _check_version(data)
    if len(data) != ANSWER.size or data[:6] != ANSWER.pack(MAGIC, VERSION, 0, 0)[:6]:
        raise ProtocolError(
            "not an answer to a ring request",
            expected=f"{ANSWER.size} bytes that start with 'SWRR'",
            got=repr(data[:8]),
        )
    _, _, status, ring_bytes = ANSWER.unpack(data)
    if status != GIVEN:
        raise ProtocolError(
            "the daemon refused to hand over the ring",
            expected="a fresh token of this session",
            got=f"status {status}",
        )
    return int(ring_bytes)


def _check_version(data: bytes) -> None:
    """Raises ``VersionError`` for another version: magic and version keep their offsets in every version."""
    version = int.from_bytes(data[4:6], "little")
    if len(data) >= 6 and data[:4] == MAGIC and version != VERSION:
        raise other_version(version)
