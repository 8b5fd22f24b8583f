"""The events of the daemon. An event is one line on standard output, a sentence on a terminal
(``model/event_text.py``) and JSON otherwise, and is counted by name.

    any thread      emit   counts, renders the line and puts it into a bounded queue; never waits for the
                    reader of the lines
    events thread   run    writes the lines; a pipe or a journal that is stuck blocks only this thread

Counts are exact: below the level, repeated (``repeats.py``) or dropped, an event is counted. The last lines
are kept for requests (``RecentEvents``).

An event is a name and facts, such as ``acquisition_opened`` with the session, name and path. The ending of a
name, such as ``_failed``, ``_died``, ``_refused`` or ``_dropped``, makes it an error or a warning. Nothing
else sets a level, so a room below needs no logger.
"""

from __future__ import annotations

import json
import os
import queue
import select
import threading
import time
import traceback
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Literal

import structlog

from shardwright.model.display_text import plain
from shardwright.model.event_text import event_text
from shardwright.model.json_text import parse_json

from .repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

_LEVEL_BY_SUFFIX = {
    "_failed": "error",
    "_died": "error",
    "_error": "error",
    "_refused": "warning",
    "_lost": "warning",
    "_dropped": "warning",
    "_late": "warning",
    "_duplicate": "warning",
    "_incomplete": "warning",
    "_behind": "warning",
    "_warning": "warning",
    "_low": "warning",
    "_full": "warning",
    "_debug": "debug",
}
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
MOST_LINES = 10_000  # the most lines that wait for the events thread: minutes of a busy daemon, a few MB
STDOUT = 1
LogFormat = Literal["auto", "console", "json"]
REPEAT_LINES, REPEAT_EVERY_S = 10, 10.0  # of one source, unless the configuration says otherwise
KEPT = 1000
MOST_AT_ONCE = 200
MAX_EVENT_BYTES = 16 << 10  # so that ``MOST_AT_ONCE`` of them fit into a reply of the control socket
MOST_CHARACTERS, MOST_LISTED = 1000, 20  # of a text and of a list in an event that would be longer


def _event_first(logger: Any, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Puts the time, level and event of a JSON line first."""
    first = {key: line.pop(key) for key in ("timestamp", "level", "event")}
    return {**first, **line}


def _as_sentence(logger: Any, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Puts the sentence of an event in the place of its name and facts. A traceback stays, its lines as plain
    text: the message of an exception may come from a client."""
    kept = {key: line.pop(key) for key in ("timestamp", "level", "exception") if key in line}
    if "exception" in kept:
        kept["exception"] = "\n".join(map(plain, kept["exception"].split("\n")))
    return {**kept, "event": event_text(line["event"], line)}


_JSON_LINE = [
    structlog.processors.format_exc_info,
    _event_first,
    structlog.processors.JSONRenderer(default=str),
]


def level_of(event: str) -> str:
    """Returns the level of an event by the ending of its name; ``info`` for any other ending."""
    return next((level for suffix, level in _LEVEL_BY_SUFFIX.items() if event.endswith(suffix)), "info")


class _Lines:
    """The bounded queue from the threads that emit to the one that writes; structlog's logger."""

    def __init__(self, most: int) -> None:
        self.waiting: queue.Queue[str | threading.Event | None] = queue.Queue(most)
        self.dropped = 0
        self._lock = threading.Lock()

    def put(self, line: str) -> None:
        try:
            self.waiting.put_nowait(line)
        except queue.Full:
            with self._lock:
                self.dropped += 1

    debug = info = warning = error = put


class EventLog:
    """The event log. ``emit`` may be called from every thread. ``lines_dropped``: lines that found the queue
    full; ``lines_unwritten``: lines whose output was closed."""

    def __init__(
        self,
        descriptor: int = STDOUT,
        *,
        form: LogFormat = "auto",
        level: str = "info",
        most_lines: int = MOST_LINES,
        repeat_lines: int = REPEAT_LINES,
        repeat_every_s: float = REPEAT_EVERY_S,
    ) -> None:
        self.recent = RecentEvents()
        self.lines_unwritten = 0
        self._descriptor = descriptor
        self._lines = _Lines(most_lines)
        self._counts: Counter[str] = Counter()
        self._repeats = Repeats(repeat_lines, repeat_every_s)
        self._lock = threading.Lock()  # of the two above; held for as long as a count takes
        self.configure(form=form, level=level, repeat_lines=repeat_lines, repeat_every_s=repeat_every_s)

    def configure(
        self,
        *,
        form: LogFormat,
        level: str,
        repeat_lines: int = REPEAT_LINES,
        repeat_every_s: float = REPEAT_EVERY_S,
    ) -> None:
        """Changes the form of lines, and which are written. From any thread."""
        on_terminal = os.isatty(self._descriptor)
        console = form == "console" or (form == "auto" and on_terminal)
        for_people: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            _as_sentence,
            structlog.dev.ConsoleRenderer(
                colors=on_terminal, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
        self._log = structlog.wrap_logger(
            self._lines,
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                self.recent.keep,
                *(for_people if console else _JSON_LINE),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        )
        with self._lock:
            repeated, self._repeats = self._repeats.take_all(), Repeats(repeat_lines, repeat_every_s)
            self._least = LEVELS[level]
        for event, facts in repeated:
            self._put_line(event, facts)

    @property
    def lines_dropped(self) -> int:
        return self._lines.dropped

    def snapshot(self) -> dict[str, Any]:
        """Returns the numbers of lines that were not written, and of each event, at whatever level. From any
        thread."""
        with self._lock:
            counts = dict(self._counts)
        return {
            "lines_dropped": self.lines_dropped,
            "lines_unwritten": self.lines_unwritten,
            "by_name": counts,
        }

    def emit(self, event: str, facts: Mapping[str, Any]) -> None:
        """Emits one event. Facts must be printable; values that JSON lacks are written as text."""
        with self._lock:
            self._counts[event] += 1
            is_written = LEVELS[level_of(event)] >= self._least and self._repeats.admit(
                event, facts, time.monotonic()
            )
        if is_written:
            self._put_line(event, facts)

    def run(self) -> None:
        """Writes lines until ``close``, in a thread of its own."""
        reported = 0
        try:
            while (item := self._next()) is not None:
                if isinstance(item, threading.Event):
                    item.set()
                    continue
                self._write(item)
                if reported != (dropped := self._lines.dropped):
                    reported = dropped
                    self.emit(
                        "events_lost",
                        {"lines": dropped, "hint": "The reader of standard output is too slow"},
                    )
        except BaseException:
            traceback.print_exc()  # on standard error, the only way left to report it
            raise

    def _next(self) -> str | threading.Event | None:
        """Returns the next item of the queue. Until there is one, emits repetitions when they are due."""
        while True:
            with self._lock:
                due = self._repeats.take_due(time.monotonic())
                wait_s = self._repeats.due_in_s(time.monotonic())
            for event, facts in due:
                self._put_line(event, facts)
            try:
                return self._lines.waiting.get(timeout=wait_s)
            except queue.Empty:
                continue

    def _put_line(self, event: str, facts: Mapping[str, Any]) -> None:
        write = getattr(self._log, level_of(event))
        write(
            event,
            **{
                f"{key}_" if key in ("event", "level", "timestamp") else key: value
                for key, value in facts.items()
            },
        )

    def flush(self, timeout_s: float) -> bool:
        """Waits until every event so far is written, or emitted as repeated; returns False when that took too
        long."""
        with self._lock:
            repeated = self._repeats.take_all()
        for event, facts in repeated:
            self._put_line(event, facts)
        written = threading.Event()
        try:
            self._lines.waiting.put(written, timeout=timeout_s)
        except queue.Full:
            return False
        return written.wait(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Calls ``flush``, then ends ``run``."""
        flushed = self.flush(timeout_s)
        if flushed:
            self._lines.waiting.put(None)
        return flushed

    def _write(self, line: str) -> None:
        """Writes a line without Python's buffers: a thread stuck here would hold their lock, which the
        interpreter needs to exit."""
        data = f"{line}\n".encode(errors="backslashreplace")
        try:
            while data:
                select.select([], [self._descriptor], [])  # the pipe may have been made non-blocking
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # a closed or broken pipe
            self.lines_unwritten += 1


class RecentEvents:
    """The last ``KEPT`` events. ``keep`` is one of structlog's processors. Both methods may be called from
    any thread."""

    def __init__(self) -> None:
        # number, level and JSON: no object of an event is kept alive
        self._kept: deque[tuple[int, int, str]] = deque(maxlen=KEPT)
        self._number = 0
        self._lock = threading.Lock()

    def keep(self, logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Keeps a line that is about to be rendered, and returns it unchanged."""
        facts = {key: value for key, value in line.items() if key != "exc_info"}
        text = json.dumps(facts, default=str)
        if len(text) > MAX_EVENT_BYTES:
            text = _shortened(parse_json(text, may_be_nan=True))
        with self._lock:
            self._number += 1
            self._kept.append((self._number, LEVELS[facts["level"]], text))
        return line

    def after(self, number: int, least: str = "debug") -> list[dict[str, Any]]:
        """Returns the newest ``MOST_AT_ONCE`` events with higher numbers, of the level ``least`` or above,
        oldest first. A number that was not given yet is an earlier daemon's: all events are new."""
        with self._lock:
            kept, last = list(self._kept), self._number
        first = number if number <= last else 0
        new = [(n, text) for n, level, text in kept if n > first and level >= LEVELS[least]][-MOST_AT_ONCE:]
        return [_ordered(n, parse_json(text, may_be_nan=True)) for n, text in new]


def _ordered(number: int, facts: dict[str, Any]) -> dict[str, Any]:
    first = {key: facts.pop(key) for key in ("timestamp", "level", "event")}
    return {"number": number, **first, **facts}


def _shortened(facts: dict[str, Any]) -> str:
    """Returns the JSON of a too long event, in ``MAX_EVENT_BYTES``: without its traceback; if that is not
    enough, with long texts and lists cut; then without all but counts and whose event it is."""
    whole = {**facts, "shortened": True}
    whole.pop("exception", None)
    # a path is kept whole: its end is the acquisition's name
    cut = {name: fact if name == "path" else _cut(fact) for name, fact in whole.items()}
    line = {name: cut[name] for name in ("timestamp", "level", "event", "shortened")}
    owner = {name: cut[name] for name in ("name", "path", "stream", "image") if name in cut}
    counts = {name: fact for name, fact in cut.items() if isinstance(fact, int | float)}
    texts = (json.dumps(each) for each in (whole, cut, line | owner | counts, line))
    return next(text for text in texts if len(text) <= MAX_EVENT_BYTES)


def _cut(fact: Any) -> Any:
    if isinstance(fact, str) and len(fact) > MOST_CHARACTERS:
        return f"{fact[: MOST_CHARACTERS - 1]}…"
    if isinstance(fact, list):
        return [*map(_cut, fact[:MOST_LISTED]), *(["…"] if len(fact) > MOST_LISTED else [])]
    return fact
