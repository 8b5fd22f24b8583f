"""Runs a suite against the writer as it is, or against a mutant of it.

``sabotage/`` stands on PYTHONPATH of the suite: it breaks every Python process of it, at its start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.gears import ROOT

if TYPE_CHECKING:
    from .mutant import Mutant

SABOTAGE = Path(__file__).parent / "sabotage"
TIMEOUT_S = 900
# the exit code of every suite here, pytest's own included; anything else is a suite that did not run
BROKEN_PROMISE = 1


@dataclass(frozen=True)
class Outcome:
    """``caught``: the suite ran and found a broken promise. ``is_mistaken``: something in it did not fit the
    code as it is now. ``tail`` is the end of what it printed."""

    caught: bool
    is_mistaken: bool
    code: int
    seconds: float
    tail: str


def run_suite(command: tuple[str, ...], sabotage: str = "") -> Outcome:
    """A hang counts as caught: some promise of progress was broken."""
    path = os.pathsep.join([str(SABOTAGE), str(ROOT / "src"), str(ROOT)])
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "SHARDWRIGHT_SABOTAGE": sabotage},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return Outcome(
            True,
            False,
            process.returncode,
            time.monotonic() - started,
            f"hung for {TIMEOUT_S} s\n{output[-2000:]}",
        )
    ran = "pytest" not in command or any(
        line.startswith(("FAILED ", "ERROR ")) for line in output.splitlines()
    )
    return Outcome(
        process.returncode == BROKEN_PROMISE and ran,
        any(error in output for error in ("AttributeError", "NameError", "TypeError")),
        process.returncode,
        round(time.monotonic() - started, 1),
        output[-2000:],
    )


def try_mutant(mutant: Mutant) -> Outcome:
    """What catches the mistake of a patch, which fits the code as it was once, proves nothing."""
    from .mutant import SUITES

    outcome = run_suite((*SUITES[mutant.suite], *mutant.options), mutant.sabotage)
    fits = not mutant.is_patch or not outcome.is_mistaken
    return replace(outcome, caught=outcome.caught and fits)
