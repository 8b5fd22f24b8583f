"""Events of the daemon: one event is one structured line on standard output, readable on a terminal and JSON otherwise.

An event is a name and facts, such as ``acquisition_opened`` with the session, name and path. Names that end in ``_failed``, ``_died`` or ``_refused``
are errors or warnings; nothing else decides a level, so that a room below needs no logger.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEVEL_BY_SUFFIX = {"_failed": "error", "_died": "error", "_refused": "warning", "_lost": "warning", "_warning": "warning", "_debug": "debug"}
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def _event_first(logger: Any, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A JSON line begins with what a reader looks for."""
    first = {key: line.pop(key) for key in ("timestamp", "level", "event")}
    return {**first, **line}


_JSON_LINE = [structlog.processors.format_exc_info, _event_first, structlog.processors.JSONRenderer(default=str)]


def level_of(event: str) -> str:
    """The level that an event's name stands for; ``info`` where its ending says nothing."""
    return next((level for suffix, level in _LEVEL_BY_SUFFIX.items() if event.endswith(suffix)), "info")


class EventLog:
    """Writes events. Called from every thread; a log that nobody takes any more must never end an acquisition, so write errors are counted only."""

    def __init__(self, output: TextIO | None = None, *, form: Literal["auto", "console", "json"] = "auto", level: str = "info") -> None:
        file = sys.stdout if output is None else output
        on_terminal = file.isatty()
        console = form == "console" or (form == "auto" and on_terminal)
        render = [structlog.dev.ConsoleRenderer(colors=on_terminal)] if console else _JSON_LINE
        self._log = structlog.wrap_logger(
            structlog.PrintLogger(file),
            processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), *render],
            wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        )
        self.lines_lost = 0

    def emit(self, event: str, facts: Mapping[str, Any]) -> None:
        """Write one event. Facts must be printable; what JSON does not know is written as text."""
        write = getattr(self._log, level_of(event))
        try:
            write(event, **{f"{key}_" if key in ("event", "level", "timestamp") else key: value for key, value in facts.items()})
        except (OSError, ValueError):  # a closed or broken pipe
            self.lines_lost += 1
