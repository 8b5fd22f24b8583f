"""The levels of encoding under the overload policy ``degrade``: as the array specifies, faster, or not
compressed."""

from __future__ import annotations

from enum import IntEnum


class DegradeLevel(IntEnum):
    """A level of encoding; higher is faster. A chunk of any level opens by the array's own metadata."""

    CONFIGURED = 0
    FASTER = 1  # a faster setting of the codec
    UNCOMPRESSED = 2  # stored, in the codec's own framing

    @property
    def label(self) -> str:
        return self.name.lower()
