"""How far an acquisition is safe, as its user sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Watermark:
    """Frames counted without holes from the first: ``stored`` survive a kill of the writer, ``durable`` a
    power cut.

    A frame that was counted as duplicate, late, dropped or lost is settled and holds nothing up: the frame
    table says which.
    """

    stored: int
    durable: int
