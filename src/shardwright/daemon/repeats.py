"""Decides which of repeated lines are written, and which are only counted until one line reports their
number.

    first event of a source ──▶ a window of every_s: so many lines are written, the others are counted
    its end, some counted   ──▶ one line for them, and another window in which all are counted
    its end, none counted   ──▶ forgotten: the next event is a first one again

A source is the subject of an event: the same event of another acquisition or host is no repetition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Key = tuple[str, str | None]  # event and source

MOST_SOURCES = 1000  # all further sources of an event count as one, so that no flood of names costs memory
_SOURCES = ("path", "host", "thread", "name")  # the first of these facts that an event has is its source


@dataclass
class _Window:
    ends_s: float
    written: int
    counted: int = 0
    last_facts: Mapping[str, Any] | None = None  # of the latest event that was only counted


class Repeats:
    """The windows of all sources. ``lines``: how many of a source are written in a window; 0: all. Not
    thread-safe."""

    def __init__(self, lines: int, every_s: float) -> None:
        self._lines = lines
        self._every_s = every_s
        self._windows: dict[Key, _Window] = {}  # the one that ends first comes first

    def admit(self, event: str, facts: Mapping[str, Any], now_s: float) -> bool:
        """True if a line is to be written for this event; otherwise counts it."""
        if not self._lines:
            return True
        key = self._key(event, facts)
        window = self._windows.get(key)
        if window is not None and not window.counted and window.ends_s <= now_s:
            del self._windows[key]
            window = None
        if window is None:
            self._windows[key] = _Window(now_s + self._every_s, 1)
            return True
        if window.written < self._lines:
            window.written += 1
            return True
        window.counted += 1
        # exc_info would keep whole stacks alive
        window.last_facts = {name: fact for name, fact in facts.items() if name != "exc_info"}
        return False

    def due_in_s(self, now_s: float) -> float | None:
        """Returns the time until ``take_due`` has something to do; None: not before the next event."""
        first = next(iter(self._windows.values()), None)
        return None if first is None else max(0.0, first.ends_s - now_s)

    def take_due(self, now_s: float) -> list[tuple[str, dict[str, Any]]]:
        """Returns one event for each source whose window has ended with counted events."""
        due = []
        while self._windows and (first := next(iter(self._windows.items())))[1].ends_s <= now_s:
            key, window = first
            del self._windows[key]
            if window.counted:
                due.append(self._summary(key, window))
                self._windows[key] = _Window(now_s + self._every_s, self._lines)
        return due

    def take_all(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns the same for all windows, ended or not."""
        due = [self._summary(key, window) for key, window in self._windows.items() if window.counted]
        self._windows.clear()
        return due

    def _summary(self, key: Key, window: _Window) -> tuple[str, dict[str, Any]]:
        return key[0], {**(window.last_facts or {}), "repeated": window.counted}

    def _key(self, event: str, facts: Mapping[str, Any]) -> Key:
        source = next((str(facts[name]) for name in _SOURCES if facts.get(name) is not None), "")
        key = (event, source)
        return key if key in self._windows or len(self._windows) < MOST_SOURCES else (event, None)
