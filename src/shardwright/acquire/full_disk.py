"""The waiting of an acquisition for room on a full disk: one event when it begins, one when it ends; and one
before that, when little room is left.

Several things of an acquisition may wait at once and get room one after another; for the user that is one
full disk. So each says here that it waits and that it has got room, and none emits an event of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FRAMES_WAIT = "Frames wait until there is room: free some space"
RECORDS, END = "records of frames", "the end of the store"
RETRY_S = 1.0


def retry_at_s(now_s: float) -> float:
    """Returns when to try again what found no room now."""
    return now_s + RETRY_S


class FullDisk:
    """Owned by the acquisition's thread; ``is_waited_for`` may be read from any. ``on_event`` takes (name,
    facts)."""

    def __init__(self, on_event: Callable[[str, dict[str, Any]], None]) -> None:
        self.is_waited_for = False  # True from the first that waits until the last has got room
        self._waiting: set[int | str] = set()  # shard rows by number, RECORDS, END
        # The last look found less free than the low-water mark. Told once, until there is more again.
        self._is_low = False
        self._on_event = on_event

    def wait(self, what: int | str, reason: str, hint: str = FRAMES_WAIT) -> None:
        """Notes that ``what`` waits, also when it does already."""
        self._waiting.add(what)
        if not self.is_waited_for:
            self.is_waited_for = True
            self._on_event("disk_full", {**_facts_of(what), "reason": reason, "hint": hint})

    def has_room(self, what: int | str) -> None:
        """Notes that ``what``, if it waits, has got room or needs none any more."""
        self._waiting.discard(what)
        if self.is_waited_for and not self._waiting:
            self.is_waited_for = False
            self._on_event("disk_has_room", _facts_of(what))

    def look(self, free_bytes: int, low_water_bytes: int, shard_row_bytes: int) -> None:
        """Notes the free space of the disk; 0: not known."""
        low = 0 < free_bytes < low_water_bytes
        if low and not self._is_low:
            facts = {
                "free_bytes": free_bytes,
                "low_water_bytes": low_water_bytes,
                "shards_left": free_bytes // max(1, shard_row_bytes),
            }
            self._on_event("disk_low", facts)
        self._is_low = low or (self._is_low and free_bytes == 0)


def _facts_of(what: int | str) -> dict[str, Any]:
    return {"shard_row": what} if isinstance(what, int) else {"for": what}
