"""These tests once more in processes of their own: with bounds checking compiled in, and without the native
library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BOUNDS = {"NUMBA_BOUNDSCHECK": "1"}
MODES = {
    "bounds checked": (
        BOUNDS,
        [
            "test_cuts.py",
            "test_encode.py",
            "test_encode_check.py",
            "test_gather.py",
            "test_place.py",
            "test_runs.py",
        ],
    ),
    "all bounds checked": (BOUNDS, ["."]),
    # the other kernels call nothing of it: they are the same without
    "without the native library": (
        {"SHARDWRIGHT_TEST_WITHOUT_NATIVE": "1"},
        ["test_degrade.py", "test_encode.py", "test_filters.py", "test_stored_forms.py"],
    ),
}


SLOW = ("all bounds checked",)  # as many kernels compiled as there are


@pytest.mark.parametrize("mode", [pytest.param(m, marks=[pytest.mark.slow] * (m in SLOW)) for m in MODES])
def test_kernels_in_another_mode(mode, pytestconfig):
    """The compiled kernels of each mode live in a cache of their own: they must never be taken for the usual
    ones. It lies outside of the checkout, so that the next one need not compile them again."""
    cache = Path.home() / ".cache" / "shardwright-tests" / mode.removeprefix("all ").replace(" ", "-")
    variables, files = MODES[mode]
    environment = {**os.environ, **variables, "NUMBA_CACHE_DIR": str(cache)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--ignore",
        __file__,
        *(str(HERE / file) for file in files),
    ]
    done = subprocess.run(
        command,
        cwd=pytestconfig.rootpath,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
