"""A store that moves, as the tests of moving share it, and what must be true of it when it has arrived."""

from __future__ import annotations

import json
import shutil
import zipfile

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.transfer.address import open_destination

FRAMES = 20
PIXELS = np.random.default_rng(7).poisson(300, (FRAMES, 64, 96)).astype(np.uint16)


def execute(tasks):
    for task in tasks:
        yield run_task(task)


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """An acquisition with gaps and a frame table, a level beside it, attributes, and a shard that was
    spilled."""
    folder = tmp_path_factory.mktemp("rig")
    dimensions = [
        sw.Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=3),
        sw.Dimension(name="y", count=64, chunk_size=32, shard_size_chunks=2),
        sw.Dimension(name="x", count=96, chunk_size=32, shard_size_chunks=3),
    ]
    with sw.create(
        folder / "embryo.ome.zarr",
        sw.ArraySpec(dtype="uint16", dimensions=dimensions, attributes={"mouse": 12}),
        **how(io="mmap"),
    ) as writer:
        for frame in PIXELS:
            writer.append(frame)
    path = folder / "embryo.ome.zarr"
    shape = (FRAMES, 32, 48)
    level = zarr.create_array(
        path / "1",
        shape=shape,
        shards=(20, 32, 48),
        chunks=(5, 32, 48),
        dtype="uint16",
        dimension_names=["t", "y", "x"],
    )
    level[...] = PIXELS[:, ::2, ::2]
    metadata = json.loads((path / "zarr.json").read_text())
    scale = metadata["attributes"]["ome"]["multiscales"][0]
    scale["datasets"].append(
        {"path": "1", "coordinateTransformations": [{"type": "scale", "scale": [1, 2, 2]}]}
    )
    (path / "zarr.json").write_text(json.dumps(metadata))
    return path


@pytest.fixture
def store(original, tmp_path):
    """A copy of it, one shard behind a symbolic link on another disk."""
    path = tmp_path / "rig" / original.name
    shutil.copytree(original, path)
    spilled = tmp_path / "spill" / original.name / "0/c/1/0/0"
    spilled.parent.mkdir(parents=True)
    (path / "0/c/1/0/0").rename(spilled)
    (path / "0/c/1/0/0").symlink_to(spilled)
    return path


def files(path):
    return {
        file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def fetched(url, tmp_path):
    """What lies at a destination, as a folder."""
    destination = open_destination(url)
    copy = tmp_path / "fetched"
    if url.endswith(".ozx"):
        shutil.rmtree(copy, ignore_errors=True)
        with zipfile.ZipFile(url) as archive:
            assert archive.testzip() is None
            archive.extractall(copy)
        return copy
    if "://" not in url:
        return destination.root
    for key, nbytes in destination.sizes().items():
        (copy / key).parent.mkdir(parents=True, exist_ok=True)
        (copy / key).write_bytes(destination.read(key, 0, nbytes))
    return copy


def assert_arrived(url, source_files, tmp_path):
    copy = fetched(url, tmp_path)
    assert files(copy).keys() == source_files.keys()
    assert not any(path.is_symlink() for path in copy.rglob("*"))
    assert verify_store(copy).ok
    opened = open_store(copy)
    assert [shard.gap_bytes for array in opened.arrays for shard in inspect_shards(opened, array)] == [0] * 5
    group = zarr.open_group(copy, mode="r")
    np.testing.assert_array_equal(group["0"][...], PIXELS)
    np.testing.assert_array_equal(group["1"][...], PIXELS[:, ::2, ::2])
    assert group["0"].attrs["mouse"] == 12
    for key in source_files:
        if not key.startswith(("0/c/", "1/c/")):
            assert (copy / key).read_bytes() == source_files[key]


class KilledError(BaseException):
    """Stands for a kill: nothing of ours catches it."""
