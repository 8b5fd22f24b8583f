"""Specs in few words."""

from __future__ import annotations

import pytest

from shardwright.array.spec import ArraySpec, Dimension


@pytest.fixture(scope="session")
def spec_of():
    def make(*axes: tuple, dtype: str = "uint16", **fields) -> ArraySpec:
        """Axes as (name, count, chunk size, chunks per shard)."""
        keys = ("name", "count", "chunk_size", "shard_size_chunks")
        return ArraySpec(
            dtype=dtype,
            dimensions=[Dimension(**dict(zip(keys, axis, strict=True))) for axis in axes],
            **fields,
        )

    return make
