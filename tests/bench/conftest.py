"""The fixtures of the tests of tools/bench."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.harness.python import start_python

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch):
    """A round of a test may begin while the disk still works: nothing is measured."""
    monkeypatch.setattr("benchmarks.contest.MOST_QUIET_WAIT_S", 0.0)
    monkeypatch.setattr(os, "sync", lambda: None)


# Pythons of the tools are forked where all of it is imported: each that starts anew costs a second and a half
FORKING = SimpleNamespace(
    Popen=lambda command, **options: start_python(*command[1:], **options),
    PIPE=subprocess.PIPE,
    TimeoutExpired=subprocess.TimeoutExpired,
)


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    monkeypatch.setattr("benchmarks.processes.subprocess", FORKING)
    monkeypatch.setattr("benchmarks.testbed.subprocess", FORKING)
