"""Tells people of events: each receiver in the configuration (``notify``) gets those that it has chosen, by a
command or an HTTP POST.

    any thread      notice   puts a notification into the queue of each receiver that wants it; never waits
    notify threads  run      one for each receiver: one notification after the other, each sent by a process
                             of its own, which is killed with all that it started if it takes too long

So a receiver that hangs delays nothing but its own queue. That holds ``MOST_WAITING``; the oldest is dropped
and counted. Each notification is sent at most once: one that failed may have arrived. At the end of the
daemon, what waits still has ``STOP_TIMEOUT_S``.

The process is the command itself, or http_post.py. Its standard input is a file in memory, so that a command
which reads nothing blocks nobody.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shardwright.config.model import MESSAGE_FIELD
from shardwright.model.display_text import plain
from shardwright.model.errors import ConfigError
from shardwright.model.event_text import event_text
from shardwright.model.names import acquisition_name
from shardwright.rework.runtime.child import start_child, take

from .http_post import read_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shardwright.config.model import Config, NotifyEvent, Receiver

    Emit = Callable[[str, Mapping[str, Any]], None]

MOST_WAITING = 100
REPEAT_S = 600.0
STOP_TIMEOUT_S = 3.0
COUNTS = ("waiting", "sent", "failed", "dropped")
_LOOK_S = 0.05
_ERROR_TAIL_BYTES = 2000
CHOSEN: dict[str, NotifyEvent] = {  # by the event of the log
    "disk_low": "disk_low",
    "disk_full": "disk_low",
    "frames_dropped": "frames_missing",
    "frames_late": "frames_missing",
    "frames_lost": "frames_missing",
    "acquisition_incomplete": "frames_missing",
    "acquisition_detached": "camera_gone",
    "acquisition_ended": "acquisition_ended",
    "acquisition_failed": "acquisition_ended",
    "compaction_behind": "archive_behind",
    "compaction_failed": "archive_behind",
    "compaction_died": "archive_behind",
    "scrub_failed": "store_damaged",
    "encode_check_failed": "encode_check_failed",
}
_COME_AND_GO = frozenset({"disk_low", "disk_full", "acquisition_detached"})


def message_of(chosen: str, text: str, acquisition: str = "", log_event: str = "") -> dict[str, str]:
    """Returns a notification of now. No part has an end of line, by which it could add headers to a mail."""
    return {
        "event": chosen,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": plain(socket.gethostname()),
        "acquisition": plain(acquisition),
        "text": plain(text),
        "log_event": log_event,
    }


class Notifier:
    """The receivers. ``notice`` and ``snapshot`` may be called from any thread."""

    def __init__(self, receivers: Iterable[Receiver], emit: Emit) -> None:
        self._queues = [_ReceiverQueue(receiver, emit) for receiver in receivers]
        self._threads: list[threading.Thread] = []
        self._told_s: dict[
            tuple[str, str], float
        ] = {}  # under _lock: when an event that comes and goes was told
        self._lock = threading.Lock()

    def begin(self, spawn: Callable[[str, Callable[[], None]], threading.Thread]) -> None:
        """Starts the threads."""
        self._threads = [spawn(f"notify-{i}", each.run) for i, each in enumerate(self._queues)]

    def notice(self, event: str, facts: Mapping[str, Any]) -> None:
        """Gets every event but those of this module; never waits."""
        if event == "compaction_failed" and facts["again"]:
            return
        if event == "acquisition_incomplete" and "frames_missing" not in facts:
            return  # duplicates alone
        chosen = CHOSEN.get(event)
        wanted = [each for each in self._queues if chosen in each.receiver.events]
        if chosen is not None and wanted:
            name = facts.get("name") or acquisition_name(str(facts.get("path", "")).rpartition("/")[2])
            if event in _COME_AND_GO and self._is_repeat(event, name):
                return
            message = message_of(chosen, event_text(event, facts), name, event)
            for each in wanted:
                each.put(message)

    def _is_repeat(self, event: str, name: str) -> bool:
        """Returns whether this was told within ``REPEAT_S``: a full disk gets room for one shard each second,
        and a loose cable is a thousand mails a night."""
        now_s = time.monotonic()
        with self._lock:
            self._told_s = {key: at_s for key, at_s in self._told_s.items() if now_s - at_s < REPEAT_S}
            return self._told_s.setdefault((event, name), now_s) != now_s

    def end(self) -> None:
        """Ends the threads, after what waits is sent or the time for it is over."""
        for each in self._queues:
            each.close()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S + 1.0)

    def snapshot(self) -> dict[str, int]:
        """Returns the number of receivers, and of notifications since the start, of all receivers."""
        total = sum((each.counts() for each in self._queues), Counter[str]())
        return {"receivers": len(self._queues), **{name: total[name] for name in COUNTS}}


class _ReceiverQueue:
    """The notifications of one receiver that wait. ``run`` is its thread."""

    def __init__(self, receiver: Receiver, emit: Emit) -> None:
        self.receiver = receiver
        self._emit = emit
        self._waiting: deque[dict[str, str]] = deque()  # under _changed, as are the counts and the end
        self._counts = Counter[str]()
        self._ends_s: float | None = None
        self._changed = threading.Condition()

    def put(self, message: dict[str, str]) -> None:
        with self._changed:
            if len(self._waiting) == MOST_WAITING:
                self._waiting.popleft()
                self._counts["dropped"] += 1
            self._waiting.append(message)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._ends_s = time.monotonic() + STOP_TIMEOUT_S
            self._changed.notify()

    def counts(self) -> Counter[str]:
        with self._changed:
            return Counter({**self._counts, "waiting": len(self._waiting)})

    def run(self) -> None:
        """Sends until ``close``. An error costs one notification, and nothing else."""
        while (message := self._next()) is not None:
            try:
                why, _ = send(self.receiver, message, self._is_over)
            except Exception as error:  # noqa: BLE001  (the cameras must not suffer for it)
                why = getattr(error, "strerror", None) or type(error).__name__
            with self._changed:
                self._counts["failed" if why else "sent"] += 1
            if why:
                facts = {"receiver": self.receiver.label, "about": message["event"], "error": why}
                self._emit("notification_failed", facts)

    def _next(self) -> dict[str, str] | None:
        """Returns the next one, after waiting for it; None at the end."""
        with self._changed:
            while not self._waiting and self._ends_s is None:
                self._changed.wait()
            if self._is_over():
                self._counts["dropped"] += len(self._waiting)
                self._waiting.clear()
            return self._waiting.popleft() if self._waiting else None

    def _is_over(self) -> bool:
        return self._ends_s is not None and time.monotonic() >= self._ends_s


def send(
    receiver: Receiver, message: dict[str, str], is_over: Callable[[], bool] = lambda: False
) -> tuple[str, str]:
    """Sends one notification. Returns why that failed, empty if it did not, and the last line of what the
    process said, which may be secret and is not for the log. ``is_over``: kill it."""
    template, kind = receiver.message, "text/plain; charset=utf-8"
    if template is None:
        body, kind = json.dumps(message), "application/json"
    else:
        body = re.sub(MESSAGE_FIELD, lambda field: message[field[1]], template)
    if receiver.command is None:
        command = [sys.executable, "-m", "shardwright.daemon.http_post"]
        places = receiver.model_dump(mode="json", include={"post", "headers_file"})
        body = json.dumps({**places, "type": kind, "body": body})
    elif (program := shutil.which(receiver.command[0])) is not None:
        command = [program, *receiver.command[1:]]
    else:
        return f"there is no program {receiver.command[0]}", ""
    with os.fdopen(os.memfd_create("notification"), "w+b") as stdin:
        stdin.write(body.encode(errors="replace"))
        stdin.seek(0)
        process = start_child(command, stdin=stdin.fileno(), is_ours=receiver.command is None)
    code, last = _ended(process, time.monotonic() + receiver.timeout_s, is_over)
    if code is None:
        return "the daemon ended first" if is_over() else f"no end within {receiver.timeout_s:g} s", last
    if code and receiver.command is None and last:
        return last, last  # of http_post, which is careful
    return (f"ended by signal {-code}" if code < 0 else f"exit code {code}" if code else ""), last


def _ended(
    process: subprocess.Popen[bytes], ends_s: float, is_over: Callable[[], bool]
) -> tuple[int | None, str]:
    """Waits for a process. Returns its exit code, None if it had to be killed, and its last line."""
    assert process.stdout is not None
    assert process.stderr is not None
    errors, killed = b"", False
    with process.stdout, process.stderr:
        while (code := process.poll()) is None and not killed:
            time.sleep(_LOOK_S)
            take(process.stdout, 1)  # a piece at each look: one that writes without end is killed, too
            errors = (errors + take(process.stderr, 1))[-_ERROR_TAIL_BYTES:]
            if time.monotonic() >= ends_s or is_over():
                killed = True
                with suppress(PermissionError, subprocess.TimeoutExpired):  # one that became another user's
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(1.0)
        errors += take(process.stderr, 1)
    lines = errors.decode(errors="replace").strip().splitlines()
    return None if killed else code, plain(lines[-1]) if lines else ""


def notify_problems(config: Config) -> Iterator[str]:
    """Yields why receivers cannot be told, or not of what they chose. It is no reason to take no frames."""
    for i, receiver in enumerate(config.notify):
        if receiver.command and shutil.which(receiver.command[0]) is None:
            yield f"notify[{i}]: there is no program {receiver.command[0]} that this user may run"
        if receiver.headers_file is not None:
            try:
                read_headers(receiver.headers_file)
            except ConfigError as error:
                yield f"notify[{i}]: {error}"
        if "archive_behind" in receiver.events and not config.compaction.enabled:
            yield f"notify[{i}]: archive_behind is never told while compaction.enabled is false"
        is_scrubbing = config.compaction.enabled and config.compaction.scrub != "none"
        if "store_damaged" in receiver.events and not is_scrubbing:
            yield f"notify[{i}]: store_damaged is never told unless compaction scrubs"
        if "encode_check_failed" in receiver.events and config.reliability.encode_check == "none":
            yield f"notify[{i}]: encode_check_failed is never told while no chunk is checked"
