"""P1 and P3, the quick part: processes killed at storage calls, system calls and any moment, writers and
daemons, while a store is made, filled, ended and continued. The long part: ``./tools/prove kills``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .kills.plans import SYSCALLS, strace_works
from .kills.scenes import SCENES
from .kills.suite import CREATION, EARLY_END, KILLS_OF_EACH, OVERWRITING, WHOLE, Campaign, run
from .kills.trial import recovered_facts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fork_server import ForkServer

KILLS, SOME_KILLS, OF_A_PART, DAEMONS = KILLS_OF_EACH * len(SCENES), 8, 24, 16


def test_some_kills_break_no_promise(server: ForkServer, tmp_path: Path) -> None:
    summary = run(server, tmp_path, Campaign(SOME_KILLS))
    assert summary.kills >= SOME_KILLS
    assert summary.frames_promised > 0
    assert not summary.violations


def test_no_kill_breaks_a_promise(server: ForkServer, tmp_path: Path) -> None:
    summary = run(server, tmp_path, Campaign(KILLS))
    assert summary.kills >= KILLS
    assert summary.frames_promised > KILLS, "most victims had promised something"
    assert not summary.violations
    assert {scene for scene, _, _ in summary.surveyed} == SCENES.keys()
    if not summary.left_out and WHOLE in {part for _, _, part in summary.surveyed}:
        assert set(SYSCALLS) - summary.syscalls.keys() <= {"linkat"}, "of live stores; others are always made"


def test_a_store_that_recovery_removed_can_be_compared(tmp_path: Path) -> None:
    """One that had no frame."""
    assert recovered_facts(tmp_path / "killed.ome.zarr", grown=True) == {}


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (CREATION, ("plain", "plate")),
        (OVERWRITING, ("plain", "several files")),
        (EARLY_END, ("in place", "levels", "slow camera", "without shards")),
        (WHOLE, ("live", "live append")),
        (WHOLE, ("detected",)),
    ],
)
def test_no_kill_in_this_part_of_a_life_breaks_a_promise(
    server: ForkServer, tmp_path: Path, part: str, names: tuple[str, ...]
) -> None:
    """A name is never burned; one of two stores is whole; an end that was not reached changes nothing; what
    readers saw does not go back."""
    scenes = tuple(SCENES[name] for name in names)
    summary = run(server, tmp_path, Campaign(OF_A_PART, scenes=scenes, io=("pwrite",), parts=(part,)))
    assert summary.kills >= OF_A_PART
    assert not summary.violations


def test_no_killed_daemon_breaks_a_promise(server: ForkServer, tmp_path: Path) -> None:
    """Also while it stops: the client's next frames are neither late nor duplicates."""
    summary = run(server, tmp_path, Campaign(0, daemons=DAEMONS))
    assert summary.daemons >= DAEMONS
    assert summary.looks > summary.trials, "the reader has seen something"
    assert summary.spilled > 0
    assert {"daemons", "daemons stopped"} <= summary.ways.keys()
    assert not summary.violations


@pytest.mark.skipif(
    not strace_works(),
    reason="SYSTEM CALLS ARE NOT TRIED: strace is missing, or this container forbids ptrace",
)
def test_system_calls_are_among_the_kills(server: ForkServer, tmp_path: Path) -> None:
    """Where this is skipped, a part of the suite is left out: that is seen in the report."""
    campaign = Campaign(2, scenes=(SCENES["plain"],), io=("pwrite",), syscalls=("fdatasync",))
    summary = run(server, tmp_path, campaign)
    assert summary.kills >= 2
    assert {way.partition(",")[0] for way in summary.ways} >= {"AtSyscall"}
    assert not summary.violations
