"""P1 through the daemon: killed while a client sends, and started again, it has every frame, a reader beside
it sees no other pixels, and a follower gets each frame once. ``./tools/prove kills`` kills more."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .daemon_kills import DaemonTrialRun, draw_stop, run_daemon_kills

if TYPE_CHECKING:
    from tests.harness.fork_server import ForkServer


def test_a_killed_daemon_loses_nothing(server: ForkServer) -> None:
    summary = run_daemon_kills(server, 20, seed=1)
    assert summary["kills"] >= 20
    assert summary["looks"] > summary["trials"], "the reader has seen something"
    assert summary["spilled"] > 0
    assert summary["violations"] == []


def test_a_stop_that_is_cut_short_closes_no_place(server: ForkServer) -> None:
    """The client lives on: its next frames come in order, and none of them is late or a duplicate."""
    rng = np.random.default_rng(2)
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="sw-") as folder:  # short enough for a socket's path
            trial = DaemonTrialRun(server, draw_stop(rng), Path(folder)).run()
        assert trial.kills == 1, "it was killed while it sealed"
        assert trial.problems == []
