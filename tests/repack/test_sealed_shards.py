"""What is still being written is named and left alone."""

import time

import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.model.errors import ShardFormatError
from shardwright.read.store import open_store
from shardwright.rework.jobs.sealed_shards import sealed_shards
from shardwright.rework.runtime.tasks import run_task

from .stores import task

SPEC = sw.ArraySpec(
    dtype="uint16",
    dimensions=(
        sw.Dimension(name="t", count=12, chunk_size=1, shard_size_chunks=2),
        sw.Dimension(name="y", count=32, chunk_size=16),
        sw.Dimension(name="x", count=32, chunk_size=32),
    ),
)


def frame(number: int) -> np.ndarray:
    return np.full((32, 32), number + 1, np.uint16)


def keys(shards) -> list[str]:
    return [shard.key for shard in shards]


def test_of_a_finished_store_all_are_sealed(store_of):
    found = sealed_shards(open_store(store_of().path.parent))
    assert keys(found.sealed) == [f"c/{t}/0/{x}" for t in range(2) for x in range(2)]
    assert not found.open
    assert not found.unknown


def test_files_that_are_no_shards_are_named(store_of):
    array = store_of()
    (array.path / "c/0/0/notes.txt").write_text("x")
    found = sealed_shards(open_store(array.path.parent))
    assert len(found.sealed) == 4
    assert {path.name: why for path, why in found.unknown.items()} == {
        "notes.txt": "not a chunk key of this array"
    }


def test_shards_that_a_crop_has_left_are_sealed(store_of):
    array = store_of()
    (array.path / "c/7/0").mkdir(parents=True)
    (array.path / "c/7/0/0").write_bytes((array.path / "c/0/0/0").read_bytes())
    found = sealed_shards(open_store(array.path.parent))
    assert keys(found.sealed) == ["c/0/0/0", "c/0/0/1", "c/1/0/0", "c/1/0/1", "c/7/0/0"]
    assert not found.unknown


@pytest.mark.parametrize("opened_by", ["store", "array", "shard"])
def test_while_an_acquisition_runs_its_sealed_shards_may_be_packed(tmp_path, opened_by):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, **how(io="mmap")) as writer:
        for i in range(7):
            writer.append(frame(i))
        writer.flush()
        while (
            not (path / "0/c/2/1/0").exists()
            or (path / ".shardwright/2.journal").exists()
            or open_store(path).arrays[0].shape[0] < 6
        ):
            time.sleep(0.01)  # the sealer seals when it gets to it
        store = open_store({"store": path, "array": path / "0", "shard": path / "0/c/1/1/0"}[opened_by])
        found = sealed_shards(store)
        expected = (
            ["c/1/1/0"] if opened_by == "shard" else [f"c/{t}/{y}/0" for t in range(3) for y in range(2)]
        )
        assert keys(found.sealed) == expected
        assert not found.unknown
        for shard in found.sealed:
            assert run_task(task(shard.array, *shard.coordinates, order="morton"))["ok"]
        for i in range(7, 12):
            writer.append(frame(i))
    import zarr

    assert np.array_equal(np.asarray(zarr.open_array(path / "0", mode="r")[:, 0, 0]), np.arange(1, 13))


def test_shards_with_a_name_whose_group_has_a_journal_are_open(store_of, tmp_path):
    """As a crash between the names of a group leaves it, on either side of a spill."""
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, SPEC, on_full="spill", **how(io="mmap", spill_root=tmp_path / "second"))
    with writer:
        for i in range(5):
            writer.append(frame(i))
        writer.flush()
        while (path / ".shardwright/1.journal").exists() or open_store(path).arrays[0].shape[0] < 4:
            time.sleep(0.01)
        manifest = (path / ".shardwright/acquisition.1.json").read_bytes()
    (path / ".shardwright").mkdir()
    (path / ".shardwright/acquisition.1.json").write_bytes(manifest)
    second = tmp_path / "second/a.ome.zarr/.shardwright"
    second.mkdir(parents=True)
    (path / ".shardwright/1.journal").touch()
    (second / "0.journal.rewrite").touch()
    (second / "c.2.1.0.partial").touch()
    found = sealed_shards(open_store(path))
    assert keys(found.open) == ["c/0/0/0", "c/0/1/0", "c/1/0/0", "c/1/1/0", "c/2/1/0"]
    assert keys(found.sealed) == ["c/2/0/0"]
    # the first that the end deletes: what is left then is of no use
    (path / ".shardwright/acquisition.1.json").unlink()
    assert not sealed_shards(open_store(path)).open


def test_work_in_progress_that_cannot_be_understood_stops_everything(store_of):
    array = store_of()
    (array.path.parent / ".shardwright").mkdir()
    (array.path.parent / ".shardwright/acquisition.1.json").write_text("{}")
    with pytest.raises(ShardFormatError, match="damaged"):
        sealed_shards(open_store(array.path.parent))
