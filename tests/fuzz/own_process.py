"""The fuzzer's commands in a process of their own: they count descriptors and memory, and other tests'
threads would be counted with them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def tally_of(module: str, *options: str) -> dict[str, Any]:
    """What ``python -m tests.fuzz.MODULE`` with these options says of its one parser or side; whatever goes
    wrong there fails here with its words."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{module}", *options, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tally: dict[str, Any] = json.loads(done.stdout)
    return tally
