"""A run of the suite ends with what it left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.json_process import environment

ROOT = Path(__file__).parents[2]
SUITE = """
import pytest

@pytest.mark.skipif(True, reason="NOT TESTED: clocks; apt-get install faketime")
@pytest.mark.parametrize("jump", [1, 2])
def test_clocks(jump):
    pass

def test_disks():
    pytest.skip("no room")

def test_sound():
    pass
"""


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")])
def test_what_was_left_out_is_the_last_that_is_said(tmp_path, workers):
    """Without the plugins that happen to be installed: each process of the run would import all of them."""
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        *workers,
    ]
    # with the variables of an outer run, a worker of the inner one took more than a minute to start
    alone = {name: value for name, value in environment().items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", tmp_path, suite],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**alone, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "NOT TESTED (2 tests): clocks; apt-get install faketime",
        "NOT TESTED: no room",
    ]
