"""The seam through which everything below a store goes: one object that tests replace, never called for a
frame."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import system

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Counted(system.OperatingSystem):
    """Counts the calls that are made through it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "counts":
            self.counts[name] += 1
        return super().__getattribute__(name)


@pytest.fixture
def counted() -> Iterator[Counted]:
    calls = Counted()
    system.use(calls)
    yield calls
    system.use(None)


def calls_of(path: Path, counted: Counted, frames: int, **options: Any) -> Counter[str]:
    """Of an acquisition of one shard of four slabs, from its begin to its end."""
    with sw.create(
        path,
        shape=(None, 16, 16),
        dtype="uint16",
        axes="tyx",
        chunks={"t": frames // 4, "y": 8, "x": 8},
        shards={"t": frames},
        threads=1,
        **how(store_within_ms=60_000, sync_interval_ms=60_000, **options),
    ) as writer:
        for number in range(frames):
            writer.append(np.full((16, 16), number, np.uint16))
    counts = Counter(counted.counts)
    counted.counts.clear()
    return counts


@pytest.mark.parametrize("io", ["mmap", "pwrite"])
def test_no_call_is_made_for_a_frame(tmp_path: Path, counted: Counted, io: str) -> None:
    few = calls_of(tmp_path / "few.ome.zarr", counted, 16, io=io)
    many = calls_of(tmp_path / "many.ome.zarr", counted, 1600, io=io)
    # gaps that are large enough are given back, and the sealer may sync once more
    assert many.total() < few.total() + 100, "about as many for a hundred times as many frames"


def test_the_operating_system_is_what_is_called_without_a_test() -> None:
    assert type(system.calls) is system.OperatingSystem
