"""Arrays without shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.array.spec import parse_spec

if TYPE_CHECKING:
    from shardwright.array.spec import ArraySpec


def without_shards(spec: ArraySpec) -> ArraySpec:
    """The same array with a file for each chunk."""
    facts = spec.model_dump()
    dimensions = [{**d, "shard_size_chunks": None} for d in facts["dimensions"]]
    return parse_spec({**facts, "dimensions": dimensions, "index_location": "end"})
