"""Brings back what a scenario left unfinished: by ``shardwright recover``, as its user would, or, where it
takes thousands, in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.harness.daemon import run_cli

from shardwright.acquire.workers import WorkerPool
from shardwright.model.errors import ShardwrightError
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store

if TYPE_CHECKING:
    from pathlib import Path

_pools: list[WorkerPool] = []


def pool() -> WorkerPool:
    """Started once for all recoveries of this process."""
    if not _pools:
        _pools.append(WorkerPool(2))
        _pools[0].start()
    return _pools[0]


def is_unfinished(store: Path) -> bool:
    return store in unfinished_stores(store.parent)


def recover_here(store: Path) -> ShardwrightError | None:
    """Recovers an unfinished store; returns the error that stopped it, None when it is whole."""
    if not is_unfinished(store):
        return None
    try:
        recover_store(store, pool(), threads=2)
    except ShardwrightError as error:
        return error
    assert not is_unfinished(store)
    return None


def recover_by_command(root: Path) -> list[dict[str, Any]]:
    """What it says of each store. Its status is 1 where frames were lost."""
    result = run_cli("recover", root, "--json")
    facts = json.loads(result.stdout)
    assert result.returncode == (0 if facts["ok"] else 1), result.stdout + result.stderr
    return facts["stores"]


def missing_by_command(store: Path) -> list[int]:
    """The places that ``shardwright inspect --missing --json`` lists."""
    result = run_cli("inspect", "--missing", store, "--json")
    assert result.returncode == 0, result.stderr
    ranges = json.loads(result.stdout)["missing"]
    return [place for entry in ranges for place in range(entry["first"], entry["last"] + 1)]
