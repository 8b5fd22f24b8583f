"""Threads for acquisitions that are not made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardwright.acquire.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(2)
    pool.start()
    yield pool
    pool.stop()
