"""Runs a suite against the writer as it is, or against a mutant of it.

``sabotage/`` stands on PYTHONPATH of the suite: it breaks every Python process of it, at its start.
"""

from __future__ import annotations

import os
import re
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
# raised, not only named: what Python says where a text does not fit the code around it
_MISTAKE = re.compile(r"""\b(AttributeError|NameError|TypeError)(?:: |\(["'\\])""")


@dataclass(frozen=True)
class Outcome:
    """``caught``: the suite ran and found a broken promise. ``mistakes``: errors of Python that it printed.
    ``tail`` is the end of what it printed."""

    caught: bool
    mistakes: frozenset[str]
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
            frozenset(),
            process.returncode,
            time.monotonic() - started,
            f"hung for {TIMEOUT_S} s\n{output[-2000:]}",
        )
    ran = "pytest" not in command or any(
        line.startswith(("FAILED ", "ERROR ")) for line in output.splitlines()
    )
    return Outcome(
        process.returncode == BROKEN_PROMISE and ran,
        frozenset(_MISTAKE.findall(output)),
        process.returncode,
        round(time.monotonic() - started, 1),
        output[-2000:],
    )


def try_mutant(mutant: Mutant) -> Outcome:
    """A suite that fails for a mistake of the mutant, whose text fits other code than is there, proves
    nothing."""
    from .mutant import SUITES

    outcome = run_suite((*SUITES[mutant.suite], *mutant.options), mutant.sabotage)
    mistakes = outcome.mistakes - {mutant.error}
    return replace(outcome, caught=outcome.caught and not mistakes, mistakes=mistakes)
