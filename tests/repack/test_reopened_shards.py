"""A shard that its acquisition seals once more while it is compacted: the new one stays, whoever comes
first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk.failpoints import at_time
from shardwright.disk.lock import is_locked
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.sealed_shards import sealed_shards
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.source_shard import SourceShard
from shardwright.shard import open_shard
from shardwright.shard.shard_sums import ShardSums

from .stores import leftovers, task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore::shardwright.model.errors.LayoutWarning"
)
FRAMES = 8
RECOMPRESS = {"cname": "zstd", "clevel": 9, "shuffle": "bitshuffle"}


class _Died(BaseException):
    pass


def _die() -> None:
    raise _Died


def frame(number: int) -> np.ndarray:
    return np.full((8, 8), number + 1, np.uint16)


@pytest.fixture
def store(tmp_path: Path, at_point: Callable[..., None]) -> Path:
    """One shard of eight chunks, sealed with five of them. Its writer died when nothing but the workspace was
    left."""
    dimensions = [sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=FRAMES)]
    dimensions += [sw.Dimension(name=name, count=8, chunk_size=8, shard_size_chunks=1) for name in "yx"]
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(
        path,
        sw.ArraySpec(dtype="uint16", dimensions=dimensions, codec=sw.Blosc(cname="lz4", clevel=0)),
        **how(io="mmap"),
    )
    for number in range(5):
        writer.append(frame(number))
    at_point("workspace.before_manifest", _die)
    with pytest.raises(sw.errors.ShardwrightError):
        writer.close()
    at_point("workspace.before_manifest", None)
    assert [shard.key for shard in sealed_shards(open_store(path)).sealed] == ["c/0/0/0"]
    return path


def go_on(path: Path) -> None:
    with sw.resume(path) as writer:
        for number in range(writer.frames, FRAMES):
            writer.append(frame(number))


def crop(path: Path, frames: int) -> None:
    document = json.loads((path / "0/zarr.json").read_text())
    (path / "0/zarr.json").write_text(json.dumps({**document, "shape": [frames, 8, 8]}))


@pytest.mark.parametrize(
    ("options", "left", "point"),
    [
        ({}, 5, "compact.before_rename"),
        ({"recompress": RECOMPRESS}, 5, "compact.before_rename"),
        ({"trim": True}, 2, "compact.before_rename"),
        ({"trim": True}, 0, "compact.before_drop"),
    ],
)
def test_the_shard_that_was_sealed_again_stays(
    store: Path, at_point: Callable[..., None], options: dict, left: int, point: str
) -> None:
    crop(store, left)
    at_point(point, at_time(1, lambda: go_on(store)))
    (array,) = open_store(store).arrays
    result = run_task(task(array, 0, 0, 0, **options))
    assert "c/0/0/0 was changed while it was packed" in result["error"]["message"]
    assert zarr.open_array(store / "0", mode="r")[:, 0, 0].tolist() == list(range(1, FRAMES + 1))
    assert verify_store(store).ok
    assert not leftovers(store)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("left", [5, 0])
def test_compaction_looks_at_it_and_replaces_it_under_the_lock_of_the_record(
    store: Path, monkeypatch: pytest.MonkeyPatch, left: int, recorded: bool
) -> None:
    crop(store, left)
    record, held, look = ShardSums(store / "0"), [], SourceShard.is_as_it_was
    if not recorded:
        record.path.unlink()
    monkeypatch.setattr(
        SourceShard, "is_as_it_was", lambda source: held.append(is_locked(record.path)) or look(source)
    )
    (array,) = open_store(store).arrays
    assert run_task(task(array, 0, 0, 0, trim=not left))["ok"]
    assert held[-1]
    assert not is_locked(record.path)


def test_an_acquisition_replaces_it_under_the_same_lock(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, held, rename = ShardSums(store / "0"), [], open_shard.replace_by_rename
    monkeypatch.setattr(
        open_shard, "replace_by_rename", lambda *paths: held.append(is_locked(record.path)) or rename(*paths)
    )
    go_on(store)
    assert held == [True]
    assert not is_locked(record.path)


def test_an_array_of_another_program_gets_no_record(store: Path) -> None:
    go_on(store)
    (store / "0/shards.crc32c").unlink()
    (array,) = open_store(store).arrays
    assert run_task(task(array, 0, 0, 0, order="morton", recompress=RECOMPRESS))["ok"]
    assert not (store / "0/shards.crc32c").exists()
