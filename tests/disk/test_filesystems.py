"""What may be expected of a filesystem: by its number, and of real ones."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from shardwright.disk import beneath, filesystems
from shardwright.disk.filesystems import syncs_as_one
from shardwright.model.errors import StorageError


@pytest.mark.parametrize(
    ("magic", "expected"),
    [(0xEF53, True), (0x58465342, False), (0x01021994, True), (0x65735546, False), (0xFF534D42, False)],
    ids=["ext4", "xfs", "tmpfs", "fuse", "cifs"],
)
def test_one_sync_stands_for_many_only_where_that_is_known(tmp_path, monkeypatch, magic, expected):
    monkeypatch.setattr(filesystems, "_magic", lambda path: magic)
    assert syncs_as_one(tmp_path) is expected


@pytest.mark.parametrize(("release", "expected"), [("5.7.19", False), ("5.8", True), ("6.1.0-13", True)])
def test_an_older_kernel_hides_what_failed(tmp_path, monkeypatch, release, expected):
    monkeypatch.setattr(filesystems, "_magic", lambda path: 0xEF53)
    system = filesystems.os.uname()
    monkeypatch.setattr(
        filesystems.os, "uname", lambda: filesystems.os.uname_result((*system[:2], release, *system[3:]))
    )
    assert syncs_as_one(tmp_path) is expected


def test_an_overlay_is_not_trusted_for_what_lies_below_it(tmp_path):
    """overlayfs as containers have it."""
    upper, merged = tmp_path / "upper", tmp_path / "merged"
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={upper},workdir={tmp_path}/work"
    made = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, merged], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip(f"NOT TESTED: an overlay, because none can be mounted here: {made.stderr.decode()}")
    try:
        assert not syncs_as_one(merged)
        assert syncs_as_one(upper)
    finally:
        subprocess.run(["umount", merged], check=True)


def test_a_folder_that_cannot_be_read_is_not_taken_for_synced(tmp_path, monkeypatch):
    """On a filesystem where each file is synced by itself: those in it are not known."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(filesystems, "syncs_as_one", lambda _: False)
    monkeypatch.setattr(beneath, "entries_in", fails)
    with (
        pytest.raises(StorageError, match="Input/output error"),
        filesystems.synced_as_one(tmp_path, "table"),
    ):
        pass
