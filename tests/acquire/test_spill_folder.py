"""Stores of one name in two roots that spill to the same folder: none touches what is another's there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.full_disk import full_below
from tests.harness.store_contents import snapshot
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import failpoints, slot_file
from shardwright.model.errors import OutputExistsError, StorageError
from shardwright.model.names import WORKSPACE
from shardwright.read.live_view import LiveView
from shardwright.recovery.recover_store import recover_store
from shardwright.shard import spill_folder
from shardwright.store.new_store import abandoned, remove_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FRAME = np.ones((16, 16), np.uint8)
LAYOUT: dict[str, Any] = {
    "shape": (None, 16, 16),
    "dtype": "uint8",
    "axes": "tyx",
    "chunks": {"t": 1},
    "shards": {"t": 4},
    "threads": 1,
}


class Roots:
    """Two roots and their one second root. The disk of the second root alone has room for shards."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first, self.other, self.spill = folder / "first", folder / "other", folder / "spill"
        self.folder = self.spill / "a.zarr" / WORKSPACE
        full = full_below(self.other)
        monkeypatch.setattr(slot_file, "preallocate", full)

    def create(self, root: Path) -> sw.Writer:
        settings = how(spill_root=self.spill, ballast_bytes=0, store_within_ms=10)
        return sw.create(root / "a.zarr", **LAYOUT, on_full="spill", **settings)

    def spilled(self) -> sw.Writer:
        """Returns the other's writer once a frame of it is durable below the second root."""
        writer = self.create(self.other)
        writer.append(FRAME)
        writer.flush()
        assert list(self.folder.glob("*.journal"))
        return writer

    def check_whole(self, writer: sw.Writer) -> None:
        writer.close()
        np.testing.assert_array_equal(sw.open_array(self.other / "a.zarr")[:], [FRAME])


@pytest.fixture
def roots(tmp_path, monkeypatch) -> Roots:
    return Roots(tmp_path, monkeypatch)


def at(point: str, act: Callable[[], None]) -> None:
    failpoints.set_hook(point, failpoints.at_time(1, act))


def append_all(writer: sw.Writer) -> None:
    """Appends frames of three shard rows, and ends."""
    with writer:
        for _ in range(12):
            writer.append(FRAME)


def killed_creation(roots: Roots) -> Path:
    """The folder that a creation below the first root has left, killed before it had its name."""
    left = roots.first / ".shardwright-0123456789abcdef.making"

    def leave() -> None:
        (making,) = roots.first.glob("*.making")
        snapshot(making, left)
        shutil.copytree(roots.folder, roots.spill / "kept")

    at("store.before_rename", leave)
    try:
        roots.create(roots.first).close()
    finally:
        failpoints.set_hook("store.before_rename", None)
    roots.folder.parent.mkdir(parents=True)
    (roots.spill / "kept").rename(roots.folder)
    return left


def test_what_a_killed_creation_has_left_goes(roots):
    left = killed_creation(roots)
    assert abandoned(roots.first) == [left]
    remove_abandoned(left)
    assert not left.exists()
    assert not list(roots.spill.iterdir())


def test_what_a_killed_creation_has_left_goes_without_the_files_of_whoever_has_its_folder(roots):
    left = killed_creation(roots)
    with pytest.raises(OutputExistsError, match="delete this folder"):
        roots.create(roots.other)
    shutil.rmtree(roots.folder.parent)
    writer = roots.spilled()
    remove_abandoned(left)
    assert not left.exists()
    roots.check_whole(writer)


def test_of_two_stores_that_are_made_at_once_one_has_the_folder(roots):
    writers: list[sw.Writer] = []
    at("store.before_create", lambda: writers.append(roots.spilled()))
    try:
        with pytest.raises(OutputExistsError, match="spilled shards of another store"):
            roots.create(roots.first)
    finally:
        failpoints.set_hook("store.before_create", None)
    assert not list(roots.first.iterdir())
    roots.check_whole(writers[0])


def test_a_store_whose_folder_is_another_ones_is_told_and_leaves_that_alone(roots, tmp_path, shared_pool):
    writer = roots.create(roots.first)
    writer.append(FRAME)
    writer.flush()
    path = roots.first / "a.zarr"
    snapshot(path, tmp_path / "left" / "a.zarr")
    shutil.rmtree(roots.folder.parent)
    others = roots.spilled()
    with pytest.raises(StorageError, match="not there or another store's"):
        LiveView(path).look()
    writer.close()  # its end removes nothing there
    shutil.rmtree(path)
    (tmp_path / "left" / "a.zarr").rename(path)
    with pytest.raises(StorageError, match="not there or another store's"):
        recover_store(path, shared_pool, threads=1)
    roots.check_whole(others)


def test_no_shard_is_made_below_a_second_root_that_is_not_mounted(roots, shared_pool):
    """The next mount would hide it."""
    writer, unmounted = roots.create(roots.other), roots.spill.with_name("unmounted")
    roots.spill.rename(unmounted)
    roots.spill.mkdir()
    with pytest.raises(StorageError, match="another store's"):
        append_all(writer)
    assert not [path for path in roots.spill.rglob("*") if path.is_file()]
    shutil.rmtree(roots.spill)
    unmounted.rename(roots.spill)
    assert recover_store(roots.other / "a.zarr", shared_pool, threads=1).frames_kept > 0


def unmark(roots: Roots) -> None:
    """Leaves the folder as those of earlier releases are."""
    (owner,) = roots.folder.glob("of-*")
    owner.unlink()


def test_the_folder_of_an_earlier_release_which_names_no_store_goes_at_the_end_of_its_store(roots):
    writer = roots.spilled()
    unmark(roots)
    roots.check_whole(writer)
    assert not list(roots.spill.rglob("*.shardwright"))


def test_a_creation_that_is_refused_leaves_the_folder_of_an_earlier_release_alone(roots):
    writer = roots.spilled()
    unmark(roots)
    with pytest.raises(OutputExistsError, match="spilled shards of another store"):
        roots.create(roots.first)
    assert list(roots.folder.glob("*.journal"))
    roots.check_whole(writer)


def test_who_finds_its_folder_marked_by_another_one_gives_it_back(roots):
    """A third creation removed it before it was marked, and a fourth made it anew."""

    make = spill_folder._make_alone

    def make_both(workspace: Path, **more: bool) -> None:
        make(workspace, **more)
        (workspace / "of-5a5a").touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill_folder, "_make_alone", make_both)
        with pytest.raises(OutputExistsError, match="spilled shards of another store"):
            roots.create(roots.first)
    assert [path.name for path in roots.folder.iterdir()] == ["of-5a5a"]
