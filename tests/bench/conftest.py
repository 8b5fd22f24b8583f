"""The fixtures of the tests of tools/bench."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch):
    """A round of a test may begin while the disk still works: nothing is measured."""
    monkeypatch.setattr("benchmarks.contest.MOST_QUIET_WAIT_S", 0.0)
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
def tmp_path(tmp_path):
    """In memory where that can be had: nothing here asks for a disk, and its other users would be waited
    for."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 1 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="shardwright-test-") as folder:
        yield Path(folder)
