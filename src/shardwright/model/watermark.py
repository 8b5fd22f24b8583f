"""The watermark of an acquisition: how many of its frames are safe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Watermark:
    """Numbers of frames, counted without a hole from the first: ``stored`` ones survive a kill of the writer,
    ``durable`` ones a power cut.

    A frame that is duplicate, late, dropped or lost is settled and counts too: the frame table shows which.
    """

    stored: int
    durable: int
