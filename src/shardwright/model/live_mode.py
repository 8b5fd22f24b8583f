"""Whether readers of files see shards before they are sealed (``shard.live_index``)."""

from typing import Literal

LiveMode = Literal["none", "index"]
LIVE_MODES: tuple[LiveMode, ...] = ("none", "index")
