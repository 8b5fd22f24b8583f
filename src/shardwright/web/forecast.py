"""The time until the disks are full, from the bytes stored in the last minutes.

Changes of the free space are no measure: shards are preallocated and give back what they did not need, so the
free space jumps by whole shards.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

WINDOW_S = 120.0
STEP_S = 1.0
SHORTEST_S = 5.0  # a shorter time says little: bytes are stored slab by slab


class Forecast:
    """The rate of storing, and the forecast from it. Owned by the event loop."""

    def __init__(self) -> None:
        # (time, bytes since the daemon's start), STEP_S apart or more
        self._stored: deque[tuple[float, int]] = deque()

    def added_to(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the snapshot with ``full_in_s`` for each disk: None where nothing is stored, or the rate is
        not known yet."""
        now_s, stored_bytes = (
            time.monotonic(),
            sum(stream["bytes_stored"] for stream in snapshot["streams"].values()),
        )
        self._note(now_s, stored_bytes)
        begin_s, begin_bytes = self._stored[0]
        elapsed_s = now_s - begin_s
        rate = (stored_bytes - begin_bytes) / elapsed_s if elapsed_s >= SHORTEST_S else 0.0
        disks = [
            {
                **disk,
                "full_in_s": disk["free_bytes"] / rate
                if rate > 0 and disk["free_bytes"] is not None
                else None,
            }
            for disk in snapshot["disks"]
        ]
        return {**snapshot, "disks": disks}

    def _note(self, now_s: float, stored_bytes: int) -> None:
        if not self._stored or now_s - self._stored[-1][0] >= STEP_S:
            self._stored.append((now_s, stored_bytes))
        while len(self._stored) > 2 and now_s - self._stored[1][0] >= WINDOW_S:
            self._stored.popleft()
