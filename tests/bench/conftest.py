"""The fixtures of the tests of tools/bench."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch):
    """A round of a test may begin while the disk still works: nothing is measured."""
    monkeypatch.setattr("benchmarks.contest.MOST_QUIET_WAIT_S", 0.0)
    monkeypatch.setattr(os, "sync", lambda: None)
