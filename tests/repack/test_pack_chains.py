"""Shards of any codec chain are packed: chunks as they are, the index by its own codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.read.spellings import LEGAL, Spelling
from tests.read.test_spellings import ignored_warnings, same

from shardwright.model.errors import ConfigError
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.pack_shard import pack_shard

from .images import POLITE

if TYPE_CHECKING:
    from pathlib import Path


def sharded(spelling: Spelling) -> bool:
    return [codec["name"] for codec in spelling.codecs] == ["sharding_indexed"] and spelling.respelled is None


@pytest.mark.parametrize("name", [name for name, made in LEGAL.items() if sharded(made)])
def test_a_shard_of_any_chain_is_packed(tmp_path: Path, name: str) -> None:
    values = LEGAL[name].write(tmp_path / "a.zarr")
    (array,) = open_store(tmp_path / "a.zarr").arrays
    done = []
    for _, shard in array.shard_files():
        path = array.path / array.shard_key(shard or ())
        before = path.stat().st_size
        for order in ("column_major", "row_major"):
            task = {"array": str(array.path), "shard": list(shard or ()), "order": order}
            done.append(pack_shard(task, POLITE))
        assert path.stat().st_size == before
    moved = not all(result["skipped"] for result in done)
    assert moved or not done or len(array.shape) == 1
    with ignored_warnings():
        assert same(np.asarray(zarr.open_array(tmp_path / "a.zarr", mode="r")[...]), values)
    assert verify_store(tmp_path / "a.zarr", threads=1).problems == []


@pytest.mark.parametrize("name", ["big", "numcodecs zlib", "nested"])
def test_chunks_of_a_chain_that_is_not_ours_are_not_encoded_again(tmp_path: Path, name: str) -> None:
    LEGAL[name].write(tmp_path / "a.zarr")
    task = {"array": str(tmp_path / "a.zarr"), "shard": [0, 0, 0], "order": "row_major"}
    with pytest.raises(ConfigError, match="only reads"):
        pack_shard({**task, "recompress": {"cname": "zstd", "clevel": 3}}, POLITE)
