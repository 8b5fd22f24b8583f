"""The ranges of an ACK as tuples (level, first, last), both included."""

from __future__ import annotations

import numpy as np

from shardwright.wire.messages import ACK_RANGE, Buffer, Level, decode_acks


def encode_ranges(ranges: list[tuple[Level, int, int]]) -> bytes:
    return np.array([(level, 0, first, last) for level, first, last in ranges], ACK_RANGE).tobytes()


def decode_ranges(body: Buffer) -> list[tuple[Level, int, int]]:
    """Raises as ``decode_acks``."""
    return [(Level(level), first, last) for level, _, first, last in decode_acks(body).tolist()]
