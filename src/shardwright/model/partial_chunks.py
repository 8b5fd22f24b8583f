"""Where frames are until their slab is full: in memory, or in its chunks (``shard.frames_in_place``)."""

from typing import Literal

PartialChunks = Literal["collect", "in_place"]
PARTIAL_CHUNKS: tuple[PartialChunks, ...] = ("collect", "in_place")
