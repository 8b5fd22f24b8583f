"""Where frames are until their slab is full: in memory, or in the chunks of the slab (``shard.parts``)."""

from typing import Literal

PartialChunks = Literal["collect", "in_place"]
PARTIAL_CHUNKS: tuple[PartialChunks, ...] = ("collect", "in_place")
