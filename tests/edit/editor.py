"""Processes that edit and recover one shard, each killed at a storage call. Who lives says which calls it
came to."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.crash.kills.processes import kill_at

from shardwright.read.store import parse_array
from shardwright.rework.edit.edit_recovery import recover_edits
from shardwright.rework.edit.shard_edit import edit_shard

from .arrays import encoded, make_array

if TYPE_CHECKING:
    from tests.harness.fork_server import Channel


def edit(
    channel: Channel,
    path: Path,
    shard: tuple[int, ...],
    chunks: dict[int, bytes | None],
    strategy: str,
    call: int,
) -> None:
    array, points = parse_array(path), kill_at(call)
    edit_shard(array, shard, chunks, strategy=strategy)
    channel.send(points)


def recover(channel: Channel, path: Path, call: int) -> None:
    points = kill_at(call)
    recover_edits(path)
    channel.send(points)


def load_kernels() -> None:
    """Once, not in each process."""
    with tempfile.TemporaryDirectory() as folder:
        array = make_array(Path(folder) / "a", recorded=True)
        edit_shard(array, (0, 0), {0: encoded(array, 1), 1: encoded(array, 2)})
        for strategy in ("in_place", "append", "gap", "rewrite"):
            edit_shard(array, (0, 0), {0: encoded(array, 1)}, strategy=strategy)
