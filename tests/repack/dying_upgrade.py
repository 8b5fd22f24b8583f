"""An upgrade that dies, in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.crash.kills.processes import kill_at

from shardwright.rework.jobs.ome_upgrade import upgrade_store

if TYPE_CHECKING:
    from tests.harness.fork_server import Channel


def upgrade_and_die(channel: Channel, path: str, number: int) -> None:
    """Dies at the ``number``-th storage call, 0: never; then says how many there were."""
    points = kill_at(number)
    upgrade_store(Path(path))
    channel.send(len(points))
