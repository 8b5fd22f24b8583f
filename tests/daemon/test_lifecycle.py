"""Every way a daemon ends, each in a process of its own: which exit code, and what it said."""

from __future__ import annotations

import json
import select
import signal
from subprocess import PIPE
from typing import Any

import pytest
from tests.harness.json_process import wait_for
from tests.harness.python import start_python

# A daemon in small: an ingest thread that ends when it is asked to, unless its mode says otherwise. Its time
# stands still, or a second lies between two signals in the mode "never drains". It sends itself the signals
# that are named.
DAEMON = """
import itertools, os, signal, sys, threading, time
from shardwright.daemon.events import EventLog
from shardwright.daemon.lifecycle import Lifecycle

mode = sys.argv[1]
log = EventLog(form="json")
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()  # like a library's: it was there before
if mode == "log breaks":
    log._write = lambda line: 1 / 0
seconds = itertools.count() if mode == "never drains" else itertools.repeat(0)
life = Lifecycle(log, clock=seconds.__next__)
if mode == "hangups ignored":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
life.take_signals()
life.watch_uncaught()

def ingest():
    log.emit("ready", {})
    if mode == "log breaks":
        os.write(1, b'{"event": "ready"}\\n')
    if mode == "raises":
        raise RuntimeError("broken")
    if mode == "system_exit":
        raise SystemExit(0)
    if mode == "returns":
        return
    life.stop.wait()
    if mode == "never drains":
        time.sleep(600)
    log.emit("drained", {})

def foreign():
    raise ValueError("a thread of a library")

thread = life.spawn("ingest", ingest)
if mode == "foreign thread":
    threading.Thread(target=foreign, name="foreign").start()
for name in sys.argv[2:]:
    signal.raise_signal(signal.Signals[name])
code = life.supervise(thread, lambda: ["worker"] if mode == "dead worker" else [])
life.end()
sys.exit(code)
"""


class Daemon:
    def __init__(self, mode: str, *signals: str) -> None:
        self.process = start_python("-c", DAEMON, mode, *signals, stdout=PIPE, stderr=PIPE)

    def next_event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        event: dict[str, Any] = json.loads(self.process.stdout.readline())
        return event

    def has_said_more(self) -> bool:
        """Whether an event waits in its pipe. Nobody reads it."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def end(self) -> tuple[int, list[str]]:
        """Exit code and the names of the remaining events."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        with self.process.stdout as output, self.process.stderr as errors:
            events = [json.loads(line)["event"] for line in output]
            self.errors = errors.read()
        return self.process.wait(timeout=60), events


def test_each_ending_signal_drains_and_exits_with_0() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        daemon = Daemon("good")
        assert daemon.next_event()["event"] == "ready"
        daemon.process.send_signal(number)
        stopping = daemon.next_event()
        assert (stopping["event"], stopping["signal"]) == ("stopping", number.name)
        assert daemon.end() == (0, ["drained"])


def test_a_signal_that_is_ignored_at_the_start_stays_ignored() -> None:
    """nohup ignores SIGHUP: what it started outlives its terminal."""
    daemon = Daemon("hangups ignored")
    assert daemon.next_event()["event"] == "ready"
    daemon.process.send_signal(signal.SIGHUP)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.next_event()["signal"] == "SIGTERM"
    assert daemon.end() == (0, ["drained"])


def test_a_second_signal_ends_at_once_and_not_with_0() -> None:
    daemon = Daemon("never drains")
    assert daemon.next_event()["event"] == "ready"
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.next_event()["event"] == "stopping"
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.end() == (128 + signal.SIGINT, ["stopped_by_force_warning"])


@pytest.mark.parametrize("signals", [("SIGHUP", "SIGHUP"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGINT")])
def test_signals_at_the_same_time_are_one_end_in_good_order(signals: tuple[str, ...]) -> None:
    """A terminal that closes may send SIGHUP twice."""
    code, events = Daemon("good", *signals).end()
    assert (code, sorted(events)) == (0, ["drained", "ready", "stopping"])


def test_sighup_never_ends_at_once() -> None:
    code, events = Daemon("never drains", "SIGHUP", "SIGHUP", "SIGHUP", "SIGTERM").end()
    assert (code, events[-1]) == (128 + signal.SIGTERM, "stopped_by_force_warning")


def died_in(mode: str) -> tuple[str, int]:
    """The name of the thread that was reported dead, and the exit code."""
    daemon = Daemon(mode)
    event = daemon.next_event()
    while event["event"] != "thread_died":
        event = daemon.next_event()
    return event["thread"], daemon.end()[0]


def test_an_exception_in_the_ingest_thread_is_told_and_ends_with_1() -> None:
    assert died_in("raises") == ("ingest", 1)


def test_an_ingest_thread_that_just_returns_ends_with_1() -> None:
    assert died_in("returns") == ("ingest", 1)


def test_system_exit_in_a_thread_does_not_pass_for_a_clean_end() -> None:
    assert died_in("system_exit") == ("ingest", 1)


def test_a_dead_worker_drains_and_ends_with_1() -> None:
    assert died_in("dead worker") == ("worker", 1)


def test_an_uncaught_exception_in_any_thread_ends_with_1() -> None:
    assert died_in("foreign thread") == ("foreign", 1)


def test_a_log_that_breaks_ends_with_1_and_says_so_on_standard_error() -> None:
    daemon = Daemon("log breaks")
    assert daemon.next_event()["event"] == "ready"
    assert daemon.end() == (1, [])
    assert "ZeroDivisionError" in daemon.errors


def test_a_second_signal_ends_at_once_although_nobody_reads_the_events() -> None:
    daemon = Daemon("never drains")
    assert daemon.next_event()["event"] == "ready"
    daemon.process.send_signal(signal.SIGTERM)
    wait_for(daemon.has_said_more, "the first signal to be told: two at once would be one")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(timeout=60) == 128 + signal.SIGTERM
    assert daemon.end()[1] == ["stopping", "stopped_by_force_warning"]
