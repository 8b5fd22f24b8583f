"""Events as lines: JSON where a program reads them, levels from the names, and no way to break or to stop the
daemon through its log."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.daemon.events import KEPT, MAX_EVENT_BYTES, MOST_AT_ONCE, EventLog, level_of
from shardwright.model.event_text import event_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Output = tuple[int, Path]


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    """A descriptor, and the file that lies under it."""
    path = tmp_path / "events"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    yield descriptor, path
    os.close(descriptor)


@contextmanager
def writing(log: EventLog) -> Iterator[None]:
    """Everything that was emitted inside is written at the end."""
    thread = threading.Thread(target=log.run, daemon=True)
    thread.start()
    yield
    assert log.close(60)
    thread.join()


def lines(output: Output) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output[1].read_text().splitlines()]


def test_one_event_is_one_json_line(output: Output) -> None:
    log = EventLog(output[0])
    with writing(log):
        log.emit("acquisition_opened", {"name": "embryo\n42", "frames": 3})
        log.emit("acquisition_failed", {"error": OSError("disk")})
    first, second = lines(output)
    assert first == {
        "event": "acquisition_opened",
        "level": "info",
        "name": "embryo\n42",
        "frames": 3,
        "timestamp": first["timestamp"],
    }
    assert first["timestamp"].endswith("Z")
    assert (second["level"], second["error"]) == ("error", "disk")


def test_an_exception_keeps_its_traceback_in_the_line(output: Output) -> None:
    log = EventLog(output[0])
    with writing(log):
        try:
            raise RuntimeError("no more")
        except RuntimeError as error:
            log.emit("thread_died", {"exc_info": error})
    (line,) = lines(output)
    assert "Traceback" in line["exception"]
    assert "RuntimeError: no more" in line["exception"]


def test_facts_cannot_replace_the_events_own_fields(output: Output) -> None:
    log = EventLog(output[0])
    with writing(log):
        log.emit("opened", {"event": "other", "level": "none", "timestamp": 0})
    (line,) = lines(output)
    assert (line["event"], line["level"], line["event_"]) == ("opened", "info", "other")


@pytest.mark.parametrize(
    ("event", "level"),
    [
        ("ready", "info"),
        ("session_lost", "warning"),
        ("request_refused", "warning"),
        ("thread_died", "error"),
        ("credit_debug", "debug"),
        ("disk_full", "warning"),
        ("disk_has_room", "info"),
        ("io_error", "error"),
    ],
)
def test_levels_follow_names(event: str, level: str) -> None:
    assert level_of(event) == level


def test_events_below_the_level_are_left_out(output: Output) -> None:
    log = EventLog(output[0], level="warning")
    with writing(log):
        log.emit("ready", {})
        log.emit("session_lost", {})
    assert [line["event"] for line in lines(output)] == ["session_lost"]


def test_console_form_is_for_people(output: Output) -> None:
    log = EventLog(output[0], form="console")
    with writing(log):
        log.emit(
            "disk_full",
            {
                "name": "embryo-left",
                "path": "/data/embryo-left.ome.zarr",
                "reason": "no room",
                "hint": "Free some",
            },
        )
    (line,) = output[1].read_text().splitlines()
    assert line.endswith("[warning  ] embryo-left: the disk is full: no room. Free some")


def test_a_traceback_stays_below_its_sentence(output: Output) -> None:
    log = EventLog(output[0], form="console")
    with writing(log):
        try:
            raise RuntimeError("no more")
        except RuntimeError as error:
            log.emit("thread_died", {"thread": "disks", "error": "no more", "exc_info": error})
        log.emit("acquisition_failed", {"name": "a", "frames_stored": 1, "exception": "Traceback: a defect"})
    text = output[1].read_text()
    assert "The thread disks has died, and the daemon stops: no more\n" in text
    assert "test_a_traceback_stays_below_its_sentence" in text
    assert "a: failed with 1 frame stored\nTraceback: a defect\n" in text


def test_a_log_that_nobody_reads_is_no_error() -> None:
    reading, descriptor = os.pipe()
    os.close(reading)
    log = EventLog(descriptor)
    with writing(log):
        log.emit("ready", {})
        log.emit("ready", {})
    assert log.lines_unwritten == 2
    os.close(descriptor)


def fill(descriptor: int) -> None:
    """A pipe whose reader is stuck, full of whole lines."""
    line = json.dumps({"old": ""}).replace('""', '"' + "x" * 52 + '"').encode() + b"\n"
    assert 65536 % len(line) == 0, "the pipe ends with a line's end"
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(descriptor, line)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_stuck_reader_holds_nobody_up_and_hears_of_what_it_missed(blocking: bool) -> None:
    reading, descriptor = os.pipe()
    fill(descriptor)
    os.set_blocking(descriptor, blocking)
    log = EventLog(descriptor, most_lines=100, repeat_lines=0)
    thread = threading.Thread(target=log.run, daemon=True)
    thread.start()
    for i in range(5000):  # more than the queue holds; the emitting thread would wait here for ever
        log.emit("frame_debug" if i % 2 else "frame_taken", {"number": i})
    assert not log.flush(0.05)
    with os.fdopen(reading) as output:
        told = [json.loads(output.readline())]
        # earlier reports, of what was lost by then, come before
        while told[-1].get("lines") != log.lines_dropped:
            told.append(json.loads(output.readline()))
        assert log.lines_dropped > 0
        numbers = [line["number"] for line in told if "number" in line]
        assert numbers == sorted(numbers), "what was kept is in order and whole"
        assert log.close(60)
    thread.join()
    os.close(descriptor)


def test_repeating_lines_are_told_as_one_and_counted_exactly(output: Output) -> None:
    log = EventLog(output[0], repeat_lines=3, repeat_every_s=3600)
    with writing(log):
        for number in range(100):
            log.emit("disk_full", {"path": "/data/a", "number": number})
        log.emit("disk_full", {"path": "/data/b"})
    assert [line.get("number") for line in lines(output)] == [0, 1, 2, None, 99]
    assert lines(output)[-1]["repeated"] == 97
    assert log.snapshot()["by_name"] == {"disk_full": 101}


def test_what_was_repeated_is_told_in_time_without_another_event(output: Output) -> None:
    log = EventLog(output[0], repeat_lines=1, repeat_every_s=0.05)
    with writing(log):
        for _ in range(3):
            log.emit("disk_full", {"path": "/data/a"})
        while len(log.recent.after(0)) < 2:
            threading.Event().wait(0.01)
    told = sum(line.get("repeated", 1) for line in lines(output))
    assert told == 3


def test_events_below_the_level_are_counted(output: Output) -> None:
    log = EventLog(output[0], level="error")
    log.emit("ready", {})
    assert log.snapshot()["by_name"] == {"ready": 1}
    assert log.recent.after(0) == []


@pytest.mark.parametrize("form", ["json", "console"])
def test_recent_events_are_what_the_lines_say(output: Output, form: Any) -> None:
    log = EventLog(output[0], form=form)
    log.emit("ready", {"pid": 7, "event": "x"})
    log.emit("thread_died", {"error": OSError("disk"), "exc_info": OSError("disk")})
    first, second = log.recent.after(0)
    assert list(first) == ["number", "timestamp", "level", "event", "pid", "event_"]
    assert (first["number"], first["event"], first["pid"], first["level"]) == (1, "ready", 7, "info")
    assert (second["number"], second["error"], second["level"]) == (2, "disk", "error")
    assert "exc_info" not in second


def test_the_newest_events_are_kept_and_given(output: Output) -> None:
    log = EventLog(output[0], repeat_lines=0)
    for number in range(KEPT + 500):
        log.emit("tick", {"number_": number})
    newest = log.recent.after(0)
    assert [event["number"] for event in newest] == list(range(KEPT + 301, KEPT + 501))
    assert [event["number_"] for event in log.recent.after(KEPT + 497)] == [
        KEPT + 497,
        KEPT + 498,
        KEPT + 499,
    ]
    assert log.recent.after(KEPT + 500) == []
    assert log.recent.after(10**9) == newest, "a number of an earlier daemon"


FAILED = {"name": "embryo", "path": "/data/embryo.ome.zarr", "stream": "cam0", "frames_stored": 12}


def test_an_event_that_is_too_long_keeps_its_counts_and_whose_it_is(output: Output) -> None:
    log = EventLog(output[0])
    facts = {**FAILED, "path": f"/{'d' * 2000}/embryo.ome.zarr"}
    log.emit("acquisition_failed", {**facts, "reason": "short", "exception": "x" * MAX_EVENT_BYTES})
    log.emit("acquisition_failed", {**facts, "reason": "y" * MAX_EVENT_BYTES, "rows": ["a"] * 9000})
    log.emit("acquisition_failed", {**facts, **{f"text{n}": "\N{MICROSCOPE}" * 3000 for n in range(9)}})
    log.emit("reload_failed", {"name": "\N{MICROSCOPE}" * 3000, "path": "/" + "d" * MAX_EVENT_BYTES})
    traceless, cut, bare, nameless = log.recent.after(0)
    for event in (traceless, cut, bare):
        assert facts.items() <= event.items()
        assert event["shortened"] is True
        assert "exception" not in event
        assert len(json.dumps(event)) < MAX_EVENT_BYTES + 100
    assert traceless["reason"] == "short"
    assert cut["reason"] == "y" * 999 + "…"
    assert cut["rows"] == ["a"] * 20 + ["…"]
    assert event_text("acquisition_failed", cut).startswith("embryo: failed with 12 frames stored: yyy")
    assert "text0" not in bare
    assert nameless.keys() == {"number", "timestamp", "level", "event", "shortened"}


def test_only_events_of_a_level_or_above_are_given(output: Output) -> None:
    log = EventLog(output[0], repeat_lines=0)
    log.emit("acquisition_failed", FAILED)
    log.emit("disk_low", {})
    for _ in range(MOST_AT_ONCE):
        log.emit("ready", {})
    assert [event["event"] for event in log.recent.after(0, "warning")] == ["acquisition_failed", "disk_low"]
    assert [event["event"] for event in log.recent.after(0, "error")] == ["acquisition_failed"]
    assert {event["event"] for event in log.recent.after(0)} == {"ready"}


def test_a_traceback_cannot_command_the_terminal(output: Output) -> None:
    log = EventLog(output[0], form="console")
    with writing(log):
        try:
            raise RuntimeError("\x1b]0;owned\x07")
        except RuntimeError as error:
            log.emit("control_died", {"path": "/a", "error": "x", "exc_info": error})
        log.emit("acquisition_failed", {**FAILED, "exception": "Traceback\nRuntimeError: \x1b[2J"})
    text = output[1].read_text()
    assert "\nRuntimeError: ?]0;owned?\n" in text
    assert "Traceback\nRuntimeError: ?[2J\n" in text
    assert "\x1b" not in text
