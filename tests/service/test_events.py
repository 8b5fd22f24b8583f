"""Events as lines: JSON where a program reads them, levels from the names, and no way to break the daemon through its log."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest

from shardwright.service.events import EventLog, level_of


def lines(output: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_one_event_is_one_json_line() -> None:
    output = io.StringIO()
    log = EventLog(output)
    log.emit("acquisition_opened", {"name": "embryo\n42", "frames": 3})
    log.emit("acquisition_failed", {"error": OSError("disk")})
    first, second = lines(output)
    assert first == {"event": "acquisition_opened", "level": "info", "name": "embryo\n42", "frames": 3, "timestamp": first["timestamp"]}
    assert first["timestamp"].endswith("Z")
    assert (second["level"], second["error"]) == ("error", "disk")


def test_an_exception_keeps_its_traceback_in_the_line() -> None:
    output = io.StringIO()
    try:
        raise RuntimeError("no more")
    except RuntimeError as error:
        EventLog(output).emit("thread_died", {"exc_info": error})
    (line,) = lines(output)
    assert "Traceback" in line["exception"]
    assert "RuntimeError: no more" in line["exception"]


def test_facts_cannot_replace_the_events_own_fields() -> None:
    output = io.StringIO()
    EventLog(output).emit("opened", {"event": "other", "level": "none", "timestamp": 0})
    (line,) = lines(output)
    assert (line["event"], line["level"], line["event_"]) == ("opened", "info", "other")


@pytest.mark.parametrize(
    ("event", "level"),
    [("ready", "info"), ("session_lost", "warning"), ("request_refused", "warning"), ("thread_died", "error"), ("credit_debug", "debug")],
)
def test_levels_follow_names(event: str, level: str) -> None:
    assert level_of(event) == level


def test_events_below_the_level_are_left_out() -> None:
    output = io.StringIO()
    log = EventLog(output, level="warning")
    log.emit("ready", {})
    log.emit("session_lost", {})
    assert [line["event"] for line in lines(output)] == ["session_lost"]


def test_console_form_is_for_people() -> None:
    output = io.StringIO()
    EventLog(output, form="console").emit("ready", {"endpoint": "ipc:///x"})
    assert "ready" in output.getvalue()
    assert "endpoint=ipc:///x" in output.getvalue()
    assert not output.getvalue().startswith("{")


def test_a_log_that_nobody_reads_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = os.fdopen(writing, "w")
    log = EventLog(output)
    log.emit("ready", {})
    log.emit("ready", {})
    assert log.lines_lost == 2
    os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        output.close()  # the unwritten text goes with it
