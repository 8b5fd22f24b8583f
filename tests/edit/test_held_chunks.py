"""Who reads a finished store chunk by chunk and is held, while it is moved, replaced or edited, never takes a
stored chunk for fill value, nor a shard for a chunk."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.model.errors import ShardwrightError, StoreGoneError
from shardwright.read.store import parse_array
from shardwright.rework.region_reader import RegionReader
from shardwright.rework.runtime.throttle import Throttle

SHAPE = (8, 8, 8)
VALUES = np.arange(1, 513, dtype=np.uint16).reshape(SHAPE)


def make(path, values=VALUES, **more):
    with sw.create(path, shape=(None, 8, 8), dtype="uint16", axes="tyx", **how(**more)) as writer:
        for plane in values:
            writer.append(plane)


@pytest.fixture
def path(tmp_path):
    make(tmp_path / "a.ome.zarr")
    return tmp_path / "a.ome.zarr"


def documents_go(path):
    """As a move begins to delete what it has sent."""
    for document in path.rglob("zarr.json"):
        document.unlink()


def moved(path):
    documents_go(path)
    shutil.rmtree(path)


def replaced(path):
    make(path, VALUES[:1], overwrite=True)


def edited(path):
    array = zarr.open_array(sw.ChunkStore(path, strategy="append"), path="0", mode="r+")
    array[:] = VALUES


EVENTS = [documents_go, moved, replaced, edited]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("point", ["", "look.shard", "look.bytes"])
def test_a_chunk_that_was_stored_is_no_fill_value(path, event, point):
    def held(name):
        if name == point:
            failpoints.hold_looks(None)
            event(path)

    array = zarr.open_array(sw.ChunkStore(path, "r"), path="0", mode="r")
    failpoints.hold_looks(held)
    try:
        if not point:
            event(path)
        np.testing.assert_array_equal(array[:], VALUES)
    except ShardwrightError:
        assert event is not edited
    finally:
        failpoints.hold_looks(None)


@pytest.mark.parametrize("event", [documents_go, moved])
def test_an_array_that_has_gone_is_told_as_often_as_it_is_read(path, event):
    array = zarr.open_array(sw.ChunkStore(path, "r"), path="0", mode="r")
    event(path)
    for _ in range(2):
        with pytest.raises(StoreGoneError):
            array[0]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("point", ["", "look.shard", "look.bytes", "look.chunks"])
def test_a_job_reads_what_was_stored(path, event, point):
    def held(name):
        if name == point:
            failpoints.hold_looks(None)
            event(path)

    reader, box = RegionReader(parse_array(path / "0"), Throttle()), np.zeros(SHAPE, np.uint16)
    failpoints.hold_looks(held)
    try:
        if not point:
            event(path)
        reader.read((0, 0, 0), box)
        np.testing.assert_array_equal(box, VALUES)
    except ShardwrightError:
        assert event is not edited
    finally:
        failpoints.hold_looks(None)
        reader.close()
