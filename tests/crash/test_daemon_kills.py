"""P1 through the daemon: killed while a client sends, and started again, it has every frame. ``./tools/prove kills`` kills more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .daemon_kills import run_daemon_kills

if TYPE_CHECKING:
    from .fork_server import ForkServer


def test_a_killed_daemon_loses_nothing(server: ForkServer) -> None:
    summary = run_daemon_kills(server, 20, seed=1)
    assert summary["kills"] >= 20
    assert summary["violations"] == []
