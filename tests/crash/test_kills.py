"""P1 and P3, the quick part: processes killed at storage calls, system calls and any moment. The
long part: ``./tools/prove kills``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .kills.plans import SYSCALLS, strace_works
from .kills.suite import Campaign, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fork_server import ForkServer

KILLS, SOME_KILLS = 60, 8
# of scenes, io modes and ends only each so manieth: a run that nobody kills comes before the kills of each
EVERY, FEW = 5, 60


def test_some_kills_break_no_promise(server: ForkServer, tmp_path: Path) -> None:
    summary = run(server, tmp_path, Campaign(SOME_KILLS, every=FEW))
    assert summary.kills >= SOME_KILLS
    assert summary.frames_promised > 0
    assert not summary.violations


def test_no_kill_breaks_a_promise(server: ForkServer, tmp_path: Path) -> None:
    summary = run(server, tmp_path, Campaign(KILLS, every=EVERY))
    assert summary.kills >= KILLS
    assert summary.frames_promised > KILLS, "most victims had promised something"
    assert not summary.violations
    if not summary.left_out:
        assert set(SYSCALLS) - summary.syscalls.keys() <= {"linkat"}, "of live stores; others are always made"


@pytest.mark.skipif(
    not strace_works(),
    reason="SYSTEM CALLS ARE NOT TRIED: strace is missing, or this container forbids ptrace",
)
def test_system_calls_are_among_the_kills() -> None:
    """Fails never; it is skipped where a part of the suite is left out, so that this is seen in the
    report."""
