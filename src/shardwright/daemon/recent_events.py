"""The last events that were emitted as lines, for requests to the daemon."""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping

KEPT = 1000
MOST_AT_ONCE = 200
MAX_EVENT_BYTES = 16 << 10  # so that ``MOST_AT_ONCE`` of them fit into a reply of the control socket


class RecentEvents:
    """The last ``KEPT`` events. ``keep`` is one of structlog's processors. Both methods may be called from
    any thread."""

    def __init__(self) -> None:
        # number and JSON: no object of an event is kept alive
        self._kept: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self._number = 0
        self._lock = threading.Lock()

    def keep(self, logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Keeps a line that is about to be rendered, and returns it unchanged."""
        facts = {key: value for key, value in line.items() if key != "exc_info"}
        text = json.dumps(facts, default=str)
        if len(text) > MAX_EVENT_BYTES:
            text = json.dumps(
                {**{key: facts[key] for key in ("timestamp", "level", "event")}, "shortened": True}
            )
        with self._lock:
            self._number += 1
            self._kept.append((self._number, text))
        return line

    def after(self, number: int) -> list[dict[str, Any]]:
        """Returns the newest ``MOST_AT_ONCE`` events with higher numbers, oldest first. A number that was not
        given yet is an earlier daemon's: all events are new."""
        with self._lock:
            kept, last = list(self._kept), self._number
        first = number if number <= last else 0
        new = [(n, text) for n, text in kept if n > first][-MOST_AT_ONCE:]
        return [_ordered(n, json.loads(text)) for n, text in new]


def _ordered(number: int, facts: dict[str, Any]) -> dict[str, Any]:
    first = {key: facts.pop(key) for key in ("timestamp", "level", "event")}
    return {"number": number, **first, **facts}
