"""Whether readers of files see shards before they are sealed (``shard.live_index``, ``growing_copy``)."""

from typing import Literal

LiveMode = Literal["none", "index", "append"]
LIVE_MODES: tuple[LiveMode, ...] = ("none", "index", "append")
_INDEX_LOCATIONS: dict[LiveMode, Literal["start", "end"]] = {"index": "start", "append": "end"}


def index_location_of(live: LiveMode) -> Literal["start", "end"] | None:
    """Returns where shards must have their index; None: anywhere."""
    return _INDEX_LOCATIONS.get(live)
