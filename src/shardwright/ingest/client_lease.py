"""A client's lease of an acquisition over one connection: the session's token, the counters of its messages,
and the ring that was made for it.

Each open, resume or reopen makes a new lease: messages of an older one no longer find a session.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.wire.messages import Counter, Header, Kind, Level, ack_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from shardwright.storage.ring import Ring

    from .transport.client_connections import Client

    Send = Callable[["Client", list[bytes]], None]

MAX_RANGES = 1024  # of one ACK


class ClientLease:
    """``ring`` None: message transport. ``send`` takes a message for a client, and drops it when the client
    is gone."""

    def __init__(self, client: Client, ring: Ring | None, send: Send) -> None:
        self.token = secrets.randbits(63) | 1 << 63
        self.client = client
        self.ring = ring
        self.ring_token = None if ring is None else secrets.token_hex(16)
        self._send = send
        self._counter = Counter(self.token)
        self._acknowledged = {Level.STORED: 0, Level.DURABLE: 0}

    def accept(self, header: Header) -> None:
        """Raises ``ProtocolError`` unless this is the very next message of this session."""
        self._counter.accept(header)

    def is_ring_token(self, token: str) -> bool:
        return self.ring_token is not None and secrets.compare_digest(token, self.ring_token)

    def send(self, kind: Kind, body: dict[str, Any]) -> None:
        """Sends a control message of this session."""
        self._send(self.client, self._counter.control(kind, body))

    def acknowledge(self, released: npt.ArrayLike, stored: int, durable: int) -> None:
        """Acknowledges released frames, as (first, last) pairs int64[n, 2], and both watermarks where they
        have moved."""
        acks = [ack_ranges(Level.RELEASED, released)]
        for level, watermark in ((Level.STORED, stored), (Level.DURABLE, durable)):
            if watermark > self._acknowledged[level]:
                acks.append(ack_ranges(level, (self._acknowledged[level], watermark - 1)))
                self._acknowledged[level] = watermark
        ranges = np.concatenate(acks)
        for start in range(0, len(ranges), MAX_RANGES):
            part = ranges[start : start + MAX_RANGES]
            self._send(self.client, self._counter.message(Kind.ACK, [part.tobytes()], count=len(part)))
