"""The file under a shard: three ways to fill it, one interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.model.errors import StorageError
from shardwright.storage import slot_file
from shardwright.storage.slot_file import IO_MODES, SlotFile, resolve_io


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture(params=[m for m in IO_MODES if m != "auto"])
def mode(request, tmp_path):
    if request.param == "direct" and resolve_io("auto", [tmp_path]) != "direct":
        pytest.skip(f"the filesystem of {tmp_path} has no O_DIRECT")
    return request.param


def test_write_anywhere_cut_and_close(tmp_path, mode):
    path = tmp_path / "f"
    file = SlotFile(path, 8192, mode)
    assert (file.address is not None) == (mode == "mmap")
    file.write(5, b"abc")
    file.end_filling()
    assert file.address is None
    file.truncate(8)
    file.sync()
    file.close()
    file.close()
    assert path.read_bytes() == bytes(5) + b"abc"


def test_an_existing_file_is_refused_and_kept(tmp_path, mode):
    path = tmp_path / "f"
    path.write_bytes(b"mine")
    with pytest.raises(StorageError, match="File exists"):
        SlotFile(path, 8192, mode)
    assert path.read_bytes() == b"mine"


def test_discard_leaves_nothing(tmp_path, mode):
    before = open_descriptors()
    SlotFile(tmp_path / "f", 8192, mode).discard()
    assert list(tmp_path.iterdir()) == []
    assert open_descriptors() == before


def test_resolve_io_leaves_no_probe_and_keeps_what_was_asked_for(tmp_path):
    assert resolve_io("auto", [tmp_path]) in ("direct", "mmap")
    assert list(tmp_path.iterdir()) == []
    assert [resolve_io(m, [tmp_path]) for m in IO_MODES[1:]] == list(IO_MODES[1:])


def test_auto_takes_only_what_every_folder_can_take(tmp_path, monkeypatch):
    """One folder without O_DIRECT, or one whose full disk would end the process, is enough."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    monkeypatch.setattr(slot_file, "_takes_direct_writes", lambda folder: folder == good)
    assert resolve_io("auto", [good]) == "direct"
    assert resolve_io("auto", [good, bad]) == "mmap"
    monkeypatch.setattr(slot_file, "unmappable_filesystem", lambda folder: "btrfs" if folder == bad else None)
    assert resolve_io("auto", [good, bad]) == "pwrite"
    assert resolve_io("mmap", [good]) == "mmap"
    with pytest.raises(StorageError, match="cannot be mapped: on btrfs"):
        resolve_io("mmap", [good, bad])
