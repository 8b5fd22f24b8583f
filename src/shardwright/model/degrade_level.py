"""How chunks are encoded under the overload policy ``degrade``: as the array says, or faster, or not at
all."""

from __future__ import annotations

from enum import IntEnum


class DegradeLevel(IntEnum):
    """Higher is faster. Whatever the level, a chunk opens by the array's own metadata."""

    CONFIGURED = 0
    FASTER = 1  # a faster setting of the codec
    UNCOMPRESSED = 2  # stored, in the codec's own framing

    @property
    def label(self) -> str:
        return self.name.lower()
