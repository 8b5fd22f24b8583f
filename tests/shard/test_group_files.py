"""The files of one group as a whole: nothing leaks or goes missing when the making or the replacing of them fails half-way."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.array.grid import Grid
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.model.errors import StorageError
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.group_files import REWRITE_SUFFIX, WORKSPACE, GroupFiles, Placement
from shardwright.shard.layout import ArrayLayout
from shardwright.shard.open_shard import OpenShard

LAYOUT = ArrayLayout.of(
    Grid.of(
        ArraySpec(
            dtype="uint16", dimensions=[Dimension(name="t", count=None, chunk_size=2), *(Dimension(name=n, count=8, chunk_size=4) for n in "yx")]
        )
    ),
    4096,
    index_at_start=False,
)


def create(store: Path, suffix: str = "") -> GroupFiles:
    return GroupFiles.create(Placement(store), LAYOUT, 0, "pwrite", bytes(16), 1, record_dtype(0).itemsize, suffix=suffix)


def descriptors_below(folder: Path) -> list[str]:
    links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [str(link.readlink()) for link in links if str(link.readlink()).startswith(str(folder))]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / WORKSPACE).mkdir()
    return tmp_path


def test_files_that_cannot_be_made_are_all_closed(store, failing, monkeypatch):
    """Even when what was made cannot be deleted either."""

    def refuse(shard: OpenShard) -> None:
        shard.abandon()
        raise StorageError("cannot delete")

    monkeypatch.setattr(OpenShard, "discard", refuse)
    failing("shard.before_preallocate", at=4)
    with pytest.raises(StorageError, match="Input/output"):
        create(store)
    assert descriptors_below(store) == []


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_rewrite_that_takes_only_some_names_leaves_every_shard_in_its_place(store, failing, number):
    old, new = create(store), create(store, REWRITE_SUFFIX)
    failing("shard.before_replace", at=number)
    with pytest.raises(StorageError, match="Input/output"):
        new.replace(old)
    new.discard_rewrite()
    old.abandon()
    shards = {shard.working_path.name for shard in old.slots}
    assert {path.name for path in (store / WORKSPACE).iterdir()} == {*shards, "0.journal"}
    assert descriptors_below(store) == []
