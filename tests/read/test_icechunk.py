"""Repositories of icechunk that are filled from a store of ours, in the two ways of its users: with the
values, and with references to the shards where they lie."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.store_contents import stored
from zarr.buffer import cpu

import shardwright as sw

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="NOT TESTED: icechunk 2; it needs Python 3.12"
)
PIXELS = np.random.default_rng(5).poisson(90, (7, 32, 48)).astype(np.uint16)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    sizes = (("t", None, 2, 2), ("y", 32, 16, 2), ("x", 48, 16, 3))
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for name, count, chunk, shard in sizes
    ]
    with sw.create(tmp_path / "a.ome.zarr", sw.ArraySpec(dtype="uint16", dimensions=dimensions)) as writer:
        for frame in PIXELS:
            writer.append(frame)
    return tmp_path / "a.ome.zarr"


def test_values_and_metadata_are_copied(store: Path) -> None:
    import icechunk

    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session, ours = repository.writable_session("main"), zarr.open_group(sw.open(store), mode="r")
    zarr.open_group(session.store, mode="a", attributes=dict(ours.attrs))
    zarr.from_array(session.store, name="0", data=ours["0"])
    session.commit("an acquisition")
    there = repository.readonly_session("main").store
    np.testing.assert_array_equal(stored(there), PIXELS)
    image = zarr.open_array(there, path="0", mode="r")
    assert (image.shards, image.chunks) == ((4, 32, 48), (2, 16, 16))
    assert dict(zarr.open_group(there, mode="r").attrs) == dict(ours.attrs)


def test_shards_are_referred_to_where_they_lie(store: Path) -> None:
    import icechunk

    here = f"file://{store}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(here, icechunk.local_filesystem_store(str(store)))
    )
    repository = icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config,
        authorize_virtual_chunk_access={here: icechunk.credentials.LocalFileSystemAccess},
    )
    session = repository.writable_session("main")

    async def copy_documents() -> None:
        for document in ("zarr.json", "0/zarr.json"):
            await session.store.set(document, cpu.Buffer.from_bytes((store / document).read_bytes()))

    asyncio.run(copy_documents())
    chunks = store / "0/c"
    shards = [
        icechunk.VirtualChunkSpec(
            index=[int(number) for number in path.relative_to(chunks).parts],
            location=f"{here}{path.relative_to(store).as_posix()}",
            offset=0,
            length=path.stat().st_size,
        )
        for path in chunks.rglob("*")
        if path.is_file()
    ]
    assert len(shards) == 2
    assert not session.store.set_virtual_refs("0", shards, validate_containers=True)
    session.commit("references")
    np.testing.assert_array_equal(stored(repository.readonly_session("main").store), PIXELS)
