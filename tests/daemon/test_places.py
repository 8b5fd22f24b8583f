"""Output roots that a daemon can or cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardwright.daemon.disks import prepare_output_root
from shardwright.disk.filesystems import memory_filesystem
from shardwright.model.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    return on_disk


def test_a_usable_root_is_left_as_it_is(tmp_path: Path) -> None:
    prepare_output_root(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_root_is_refused_unless_it_may_be_made(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    with pytest.raises(StorageError, match=r"does not exist\. Mount its disk"):
        prepare_output_root(root, create=False)
    assert not root.parent.exists()
    prepare_output_root(root, create=True)
    assert root.is_dir()


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    if not Path("/dev/shm").is_dir() or not memory_filesystem(Path("/dev/shm")):
        pytest.skip("NOT TESTED: /dev/shm is no tmpfs here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_root_in_memory_is_refused_unless_that_is_wanted(memory_folder: Path) -> None:
    for root, create in ((memory_folder, False), (memory_folder / "a", True)):
        with pytest.raises(StorageError, match=r"is in memory \(tmpfs\).*output\.in_memory: true"):
            prepare_output_root(root, create=create)
    with pytest.raises(StorageError, match="does not exist"):  # its disk may be mounted there later
        prepare_output_root(memory_folder / "a", create=False)
    assert list(memory_folder.iterdir()) == []
    prepare_output_root(memory_folder / "a", create=True, in_memory=True)
    assert (memory_folder / "a").is_dir()


def test_a_file_is_no_root(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_text("")
    for create in (False, True):
        with pytest.raises(StorageError, match=r"is not a folder|cannot create folder"):
            prepare_output_root(root, create=create)


def test_a_root_of_somebody_else_is_refused_with_both_users(tmp_path: Path) -> None:
    """In a process of its own: root may write everywhere, so it first becomes somebody else."""
    tmp_path.chmod(0o755)
    code = f"""
import os, sys
from pathlib import Path
from shardwright.model.errors import StorageError
from shardwright.daemon.disks import prepare_output_root
if os.geteuid() == 0:
    os.setuid(65534)
try:
    prepare_output_root(Path({str(tmp_path)!r}), create=False)
except StorageError as error:
    print(error)
    sys.exit(7)
"""
    if os.geteuid() != 0:
        tmp_path.chmod(0o555)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    tmp_path.chmod(0o755)
    assert result.returncode == 7, result.stderr
    assert "cannot be written; got Permission denied" in result.stdout
    assert "It belongs to user" in result.stdout
