"""A job at idle priority on a busy machine says that it starves, and what to do. Clock and counters are the
test's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from shardwright.cli import job_command, progress
from shardwright.rework.runtime import starvation
from shardwright.rework.runtime.starvation import LOOK_EVERY_S, StarvationWatch, thread_times

S = 1_000_000_000
TOLD = "slowed down: at idle priority it waits for other programs 90% of the time"


class Machine:
    """Threads by name, with the ns that each has run and waited, and a clock."""

    def __init__(self):
        self.now_s = 100.0
        self.threads = {"main": (0, 0), "worker": (7 * S, 50 * S)}

    def times(self):
        return dict(self.threads)

    def watch(self):
        return StarvationWatch(self.times, lambda: self.now_s)

    def go_on(self, seconds, ran_s, waited_s, thread="worker"):
        self.now_s += seconds
        ran, waited = self.threads[thread]
        self.threads[thread] = ran + int(ran_s * S), waited + int(waited_s * S)


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "starves"),
    [
        (0.5, 4.5, True),
        (0.0, 5.0, True),  # it did not run at all
        (1.0, 18.0, True),  # four workers
        (5.0, 0.1, False),  # it has a processor for itself
        (3.0, 2.4, False),  # less than half
        (10.0, 8.0, False),  # two workers, likewise
        (0.0, 0.0, False),  # it waits for a disk, for its rate, or paused
        (0.02, 0.5, False),  # it mostly waits for a disk, and seldom wants to run
    ],
)
def test_it_is_told_from_the_time_that_threads_waited_for_a_processor(ran_s, waited_s, starves):
    machine = Machine()
    watch = machine.watch()
    machine.go_on(LOOK_EVERY_S, ran_s, waited_s)
    note = watch.note()
    assert bool(note) is starves
    if starves:
        assert f"other programs {waited_s / (ran_s + waited_s):.0%} of the time" in note
        assert "--no-idle runs it at normal priority" in note


def test_the_last_seconds_count_and_not_what_was_before():
    machine = Machine()
    watch = machine.watch()
    assert watch.note() == "", "what was before it began does not count"
    machine.go_on(LOOK_EVERY_S / 2, 0.0, 2.5)
    assert watch.note() == "", "too early to judge"
    machine.go_on(LOOK_EVERY_S / 2, 0.5, 2.0)
    assert watch.note().startswith(TOLD)
    machine.go_on(1, 1.0, 0.0)
    assert watch.note().startswith(TOLD), "until the next look"
    machine.go_on(LOOK_EVERY_S, 5.0, 0.0)
    assert watch.note() == ""


def test_workers_come_and_go():
    machine = Machine()
    watch = machine.watch()
    del machine.threads["worker"]
    machine.threads["next"] = (0, 99 * S)
    machine.now_s += LOOK_EVERY_S
    assert watch.note() == "", "nothing is known of the time before it was seen first"
    machine.go_on(LOOK_EVERY_S, 0.5, 4.5, "next")
    assert watch.note().startswith(TOLD)
    machine.threads.clear()
    machine.now_s += LOOK_EVERY_S
    assert watch.note() == "", "a kernel that does not count"


def test_all_threads_of_this_process_and_of_its_children_are_counted():
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = thread_times()
        for process, task in (
            (os.getpid(), os.getpid()),
            (os.getpid(), thread.native_id),
            (child.pid, child.pid),
        ):
            ran, waited = found[f"/proc/{process}/task/{task}"]
            assert ran >= 0
            assert waited >= 0
        assert found[f"/proc/{os.getpid()}/task/{os.getpid()}"][0] > 0
        assert not any(path.startswith(f"/proc/{os.getppid()}/") for path in found)
    finally:
        over.set()
        thread.join()
        child.communicate()


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("terminal", [True, False])
def test_the_line_of_progress_says_so(idle, terminal, monkeypatch, capsys, tmp_path):
    """Also with --json: it goes to standard error. What pauses a job is told rather than that."""
    machine, actions = Machine(), []

    @contextmanager
    def now_and_then(_interval_s, action):
        actions.append(action)
        yield

    monkeypatch.setattr(progress, "_every", now_and_then)
    monkeypatch.setattr(starvation, "StarvationWatch", machine.watch)
    pause, told = tmp_path / "pause", []
    if terminal:
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        monkeypatch.setattr(
            "rich.progress.Progress.update",
            lambda _self, _task, *, description=None, **_: description and told.append(description),
        )

    def line():
        (action,) = actions
        action()
        return told[-1] if terminal else capsys.readouterr().err

    with job_command.job_progress("compact: S", "packed", [str(pause)], idle=idle) as on_progress:
        on_progress(1, 10)
        machine.go_on(LOOK_EVERY_S, 0.5, 4.5)
        assert (TOLD in line()) is idle
        pause.touch()
        assert "paused by" in line()
        assert TOLD not in line()


def test_what_shows_progress_does_not_starve_with_the_job():
    """A thread that an idle one starts is idle: the line that tells of it would come as late as the job."""
    code = """
import os, threading
from shardwright.cli.progress import show_steps, told_at_this_priority
from shardwright.rework.runtime.throttle import make_idle
before = os.getpriority(os.PRIO_PROCESS, 0)
with told_at_this_priority():
    make_idle()
    with show_steps("job", "looking"):
        (thread,) = [each for each in threading.enumerate() if each.name == "progress"]
        assert os.getpriority(os.PRIO_PROCESS, thread.native_id) == before
        assert os.getpriority(os.PRIO_PROCESS, 0) == 19
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
