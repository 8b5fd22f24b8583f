"""The file under a shard: three ways to fill it, one interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.disk.choose_io import resolve_io
from shardwright.disk.slot_file import SlotFile
from shardwright.model.errors import StorageError
from shardwright.model.write_options import IO_MODES


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
