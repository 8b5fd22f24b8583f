"""What ``io: auto`` means: by filesystem, and by whether direct writes work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.faults.disks import LoopDisk

import shardwright as sw
from shardwright.disk import choose_io
from shardwright.disk.choose_io import IoChoice, resolve_io
from shardwright.disk.filesystems import memory_filesystem
from shardwright.model.errors import StorageError
from shardwright.model.write_options import IO_MODES


def test_resolve_io_leaves_no_probe_and_keeps_what_was_asked_for(tmp_path):
    assert resolve_io("auto", [tmp_path]) in ("direct", "pwrite")
    assert list(tmp_path.iterdir()) == []
    assert [resolve_io(m, [tmp_path]) for m in IO_MODES[1:]] == list(IO_MODES[1:])


def test_auto_takes_only_what_suits_every_folder(tmp_path, monkeypatch):
    """One folder without O_DIRECT, or one where it gains nothing, is enough."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    monkeypatch.setattr(choose_io, "_takes_direct_writes", lambda folder: folder == good)
    assert resolve_io("auto", [good]) == "direct"
    assert resolve_io("auto", [good, bad]) == "pwrite", "a mapping is only for who asks for it"
    monkeypatch.setattr(choose_io, "_takes_direct_writes", lambda folder: True)
    assert resolve_io("auto", [good, bad]) == "direct"
    for kind in ("copy_on_write_filesystem", "unmappable_filesystem"):
        monkeypatch.setattr(choose_io, kind, lambda folder: "btrfs" if folder == bad else None)
    assert resolve_io("auto", [good, bad]) == "pwrite"
    assert resolve_io("direct", [good, bad]) == "direct", "io overrides"
    assert resolve_io("mmap", [good]) == "mmap"
    with pytest.raises(StorageError, match="cannot be mapped: on btrfs"):
        resolve_io("mmap", [good, bad])


@pytest.mark.parametrize(("filesystem", "mode"), [("ext4", "direct"), ("xfs", "direct"), ("btrfs", "pwrite")])
def test_the_choice_on_a_filesystem(filesystem, mode):
    with LoopDisk(filesystem) as disk:
        assert choose_io.choose_io(disk.path).mode == resolve_io("auto", [disk.path]) == mode


def test_memory_is_written_as_a_disk_is():
    """tmpfs takes direct writes since Linux 6.6."""
    folder, release = Path("/dev/shm"), tuple(map(int, os.uname().release.split(".")[:2]))
    assert memory_filesystem(folder) == "tmpfs"
    mode = "direct" if release >= (6, 6) else "pwrite"
    assert choose_io.choose_io(folder).mode == resolve_io("auto", [folder]) == mode


def test_where_direct_writes_do_not_work_they_are_not_chosen():
    assert choose_io.choose_io(Path("/proc")) == IoChoice("pwrite", "direct writes do not work here")


@pytest.mark.parametrize(("takes_direct", "io"), [(True, "direct"), (False, "pwrite")])
def test_stores_are_written_in_the_way_that_was_chosen(tmp_path, monkeypatch, takes_direct, io):
    monkeypatch.setattr(choose_io, "_takes_direct_writes", lambda folder: takes_direct)
    sizes = (("t", None, 16), ("y", 256, 256), ("x", 256, 256))  # smaller slabs go through the page cache
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=4 if name == "t" else 1)
        for name, count, chunk in sizes
    ]
    with sw.create(tmp_path / "a.ome.zarr", sw.ArraySpec(dtype="uint16", dimensions=dimensions)) as writer:
        assert writer._acquisition.folder.io == io
