"""The time of the present call. The core has no clock: a simulation replays any order of events."""

from __future__ import annotations

from typing import NamedTuple

_TICK_NS = 1_000_000  # of the clocks in here: a camera may poll after each of a hundred thousand frames


class Now(NamedTuple):
    """The time of a call: ``ns`` of a monotonic clock, ``utc_ns`` since the epoch."""

    ns: int
    utc_ns: int


class CallTime:
    """Holds the time that came with the latest call, and when the core next looks at what time alone changes.
    Owned by the acquisition's thread."""

    def __init__(self) -> None:
        self.ns = self.utc_ns = 0
        self._next_look_ns = 0  # nothing is looked at before; 0: at once

    @property
    def s(self) -> float:
        return self.ns * 1e-9

    def set(self, now: Now) -> None:
        self.ns, self.utc_ns = now

    def look_at_next_tick(self) -> None:
        """After a report, or a worker's death."""
        self._next_look_ns = 0

    def has_looked(self) -> None:
        self._next_look_ns = self.ns + _TICK_NS

    def looks_at(self, now: Now) -> bool:
        """Returns whether a tick at this time is one to look at things."""
        return now.ns >= self._next_look_ns
