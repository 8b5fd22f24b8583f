"""The acquisitions in a folder are what their stores tell, finished and running."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.full_disk import full_below
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import slot_file
from shardwright.disk.typed_errors import storage_errors
from shardwright.rework import catalog
from shardwright.rework.catalog import listed_acquisitions

if TYPE_CHECKING:
    from pathlib import Path

FRAME = np.full((8, 8), 7, np.uint8)
LAYOUT = {"shape": (None, 8, 8), "dtype": "uint8", "axes": "tyx"}


def write(path: Path, frames: int, **settings: object) -> None:
    with sw.create(path, **LAYOUT, **settings) as writer:
        for _ in range(frames):
            writer.append(FRAME)


def test_finished_running_and_unfinished_ones_are_told_apart(tmp_path):
    write(tmp_path / "b.ome.zarr", 3)
    left = sw.create(tmp_path / "a.ome.zarr", images=["x", "y"], **LAYOUT)
    for image in ("x", "y", "y"):
        left.append(FRAME, image=image)
    left.flush()
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden.ome.zarr").mkdir()
    zarr.create_group(tmp_path / "foreign.zarr")
    (tmp_path / "link.ome.zarr").symlink_to(tmp_path / "b.ome.zarr")
    found = list(listed_acquisitions(tmp_path))
    assert [(one.name, one.state, one.frames, one.trouble) for one in found] == [
        ("a", "running", 3, {}),
        ("b", "finished", 3, {}),
    ]
    assert all(one.started_s is not None and one.stored_bytes for one in found)
    assert [one.name for one in listed_acquisitions(tmp_path / "b.ome.zarr")] == ["b"], "itself"
    left.close()
    assert {one.state for one in listed_acquisitions(tmp_path)} == {"finished"}


def test_a_store_whose_writer_was_killed_waits_for_recovery(tmp_path):
    pid = os.fork()
    if pid == 0:
        writer = sw.create(tmp_path / "a.ome.zarr", **LAYOUT)
        writer.append(FRAME)
        writer.flush()
        os._exit(1)
    os.waitpid(pid, 0)
    (one,) = listed_acquisitions(tmp_path)
    assert (one.state, one.frames) == ("unfinished", 1)


def test_the_verdict_is_that_of_the_receipt(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", **LAYOUT, **how(on_duplicate="count")) as writer:
        for t in (0, 1, 1, 4):
            writer.append(FRAME, index=(t,))
    (one,) = listed_acquisitions(tmp_path)
    assert one.trouble == writer.receipt.trouble == {"frames_missing": 2, "frames_duplicate": 1}
    assert one.frames == writer.receipt.frames_stored == 3


def test_a_place_that_was_skipped_is_no_trouble(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", **LAYOUT) as writer:
        writer.append(FRAME)
        writer.skip()
        writer.append(FRAME)
    (one,) = listed_acquisitions(tmp_path)
    assert (one.frames, one.trouble) == (2, {}) == (2, writer.receipt.trouble)


def test_places_of_all_images_count(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", images=["x", "y"], **LAYOUT) as writer:
        writer.append(FRAME, image="x", index=(1,))
        writer.append(FRAME, image="y", index=(3,))
    (one,) = listed_acquisitions(tmp_path)
    assert (one.frames, one.trouble) == (2, {"frames_missing": 4}) == (2, writer.receipt.trouble)


def test_parts_below_a_second_root_are_named_and_counted(tmp_path, monkeypatch):
    main, second = tmp_path / "main", tmp_path / "second"
    main.mkdir()
    shards = {"chunks": {"t": 2}, "shards": {"t": 8}}
    with sw.create(
        main / "a.ome.zarr", **LAYOUT, **shards, on_full="spill", **how(spill_root=second)
    ) as writer:
        writer.append(FRAME)
        writer.flush()
        monkeypatch.setattr(slot_file, "preallocate", full_below(main))
        for _ in range(40):
            writer.append(FRAME)
    links = [file for file in main.rglob("*") if file.is_symlink()]
    assert links, "it was really spilled"
    (one,) = listed_acquisitions(main)
    assert one.elsewhere == (str(second / "a.ome.zarr"),)
    shards = [file for file in (second / "a.ome.zarr").rglob("*") if file.is_file()]
    assert one.stored_bytes >= sum(file.stat().st_blocks * 512 for file in shards) > 0


def test_what_cannot_be_read_is_named_and_hides_no_other(tmp_path):
    write(tmp_path / "a.ome.zarr", 1)
    write(tmp_path / "b.ome.zarr", 1)
    (tmp_path / "a.ome.zarr/zarr.json").write_text("{")
    damaged, sound = listed_acquisitions(tmp_path)
    assert (damaged.name, damaged.state, sound.state) == ("a", "unreadable", "finished")
    assert "a.ome.zarr" in damaged.problem


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(sw.errors.StorageError, match="no such folder"):
        list(listed_acquisitions(tmp_path / "absent"))


def test_a_data_frame_has_a_row_for_each(tmp_path):
    write(tmp_path / "a.ome.zarr", 3)
    with sw.create(tmp_path / "b.ome.zarr", **LAYOUT) as writer:
        writer.append(FRAME, index=(1,))
    table = sw.acquisitions(tmp_path)
    assert table["name"].tolist() == ["a", "b"]
    assert table["complete"].tolist() == [True, False]
    assert table["frames_missing"].tolist() == [0, 1]
    assert table["frames"].tolist() == [3, 1]
    assert str(table["started"].dtype).startswith("datetime64")
    assert sw.acquisitions(tmp_path / "a.ome.zarr")["stored_bytes"].tolist() == [table["stored_bytes"][0]]
    (tmp_path / "empty").mkdir()
    assert len(sw.acquisitions(tmp_path / "empty")) == 0


def test_a_store_that_may_not_be_looked_into_is_named(tmp_path, monkeypatch):
    """Not the lost+found of a disk, which is none."""
    write(tmp_path / "a.ome.zarr", 1)
    (tmp_path / "lost+found").mkdir()

    def closed(path: Path) -> bool:
        with storage_errors("look at", path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(catalog, "_may_be_store", lambda path: path != tmp_path and closed(path))
    (one,) = listed_acquisitions(tmp_path)
    assert (one.name, one.state) == ("a", "unreadable")


def test_a_file_that_may_not_be_looked_into_is_named(tmp_path, monkeypatch):
    for name in ("a.ozx", "b.OZX"):
        (tmp_path / name).write_bytes(b"PK")

    def closed(path: Path) -> None:
        with storage_errors("read", path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(catalog, "open_store", closed)
    found = [(one.name, one.path, one.state) for one in listed_acquisitions(tmp_path)]
    assert found == [(name[0], str(tmp_path / name), "unreadable") for name in ("a.ozx", "b.OZX")]


def test_a_file_that_goes_while_it_is_looked_at_counts_nothing(tmp_path, monkeypatch):
    """As the file in progress of a running store, which gets its name or is deleted."""
    write(tmp_path / "a.ome.zarr", 1)
    walk = catalog.beneath.walk
    monkeypatch.setattr(
        catalog.beneath,
        "walk",
        lambda *given, **more: (
            (folder, folders, [*names, "c.1.0.0.partial"]) for folder, folders, names in walk(*given, **more)
        ),
    )
    (found,) = listed_acquisitions(tmp_path)
    assert (found.state, found.problem, found.frames) == ("finished", "", 1)
    assert found.stored_bytes


def test_a_table_of_a_later_release_hides_no_other(tmp_path):
    write(tmp_path / "a.ome.zarr", 1)
    write(tmp_path / "b.ome.zarr", 1)
    zarr.open_array(tmp_path / "a.ome.zarr/frames/status", mode="r+")[0] = 200
    strange, sound = listed_acquisitions(tmp_path)
    assert (strange.state, sound.state) == ("unreadable", "finished")
    assert "unknown numbers; got [200]" in strange.problem
