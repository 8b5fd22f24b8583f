"""Where chunks lie in sealed shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.read.store import open_store
from shardwright.shard.chunk_order import chunk_order

if TYPE_CHECKING:
    from pathlib import Path

_ABSENT = np.uint64(2**64 - 1)


def check_orders(store: Path, order: str) -> int:
    """Returns the number of shards, each of which has its chunks in ``order``."""
    checked = 0
    for array in open_store(store).arrays:
        places = np.argsort(chunk_order(order, array.shard_chunks))
        for _, shard in array.shard_files():
            assert shard is not None
            with array.open_shard(shard) as file:
                entries = file.entries
            here = entries["offset"] != _ABSENT
            assert (np.diff(entries["offset"][here][np.argsort(places[here])].astype(np.int64)) > 0).all()
            checked += 1
    return checked
