"""One client's hold on an acquisition over one connection: the session's token, its messages both ways, and the ring that was made for it.

A new one each time that a client opens, resumes or reopens: messages of an older one find no session any more.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from shardwright.wire.messages import Counter, Header, Kind, Level, encode_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.storage.ring import Ring

    from .connection import Client

    Send = Callable[["Client", list[bytes]], None]

MAX_RANGES = 1024  # of one ACK


class Attachment:
    """``ring`` None: message transport. ``send`` takes a message for a client; it drops it when the client is gone."""

    def __init__(self, client: Client, ring: Ring | None, send: Send) -> None:
        self.token = secrets.randbits(63) | 1 << 63
        self.client = client
        self.ring = ring
        self.ring_token = None if ring is None else secrets.token_hex(16)
        self._send = send
        self._counter = Counter(self.token)
        self._told = {Level.STORED: 0, Level.DURABLE: 0}

    def accept(self, header: Header) -> None:
        """Raises ``ProtocolError`` unless this is the very next message of this session."""
        self._counter.accept(header)

    def is_ring_token(self, token: str) -> bool:
        return self.ring_token is not None and secrets.compare_digest(token, self.ring_token)

    def say(self, kind: Kind, body: dict[str, Any]) -> None:
        self._send(self.client, self._counter.control(kind, body))

    def acknowledge(self, released: Iterable[tuple[int, int]], stored: int, durable: int) -> None:
        """Tells of released frames, and of both watermarks where they have moved."""
        acks = [(Level.RELEASED, first, last) for first, last in released]
        for level, watermark in ((Level.STORED, stored), (Level.DURABLE, durable)):
            if watermark > self._told[level]:
                acks.append((level, self._told[level], watermark - 1))
                self._told[level] = watermark
        for start in range(0, len(acks), MAX_RANGES):
            part = acks[start : start + MAX_RANGES]
            self._send(self.client, self._counter.message(Kind.ACK, [encode_ranges(part)], count=len(part)))
