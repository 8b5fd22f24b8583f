"""What an acquisition leaves in the page cache: nothing that waits to be written for long, and nothing of a
sealed shard."""

from __future__ import annotations

import ctypes
import os
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardwright.disk.filesystems import memory_filesystem
from shardwright.model.write_settings import WriteSettings

if TYPE_CHECKING:
    from pathlib import Path

CACHESTAT = 451  # Linux 6.5, the same number everywhere
NEVER_MS = 3_600_000
KERNEL_WAITS_S = 25.0  # before it writes on its own, if nobody asks (vm.dirty_expire_centisecs is 30 s)
PAGE_BYTES = 4096


def cached_pages(path: Path) -> tuple[int, int]:
    """(pages of a file in memory, of these not written yet)."""
    libc = ctypes.CDLL(None, use_errno=True)
    extent, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if libc.syscall(CACHESTAT, descriptor, ctypes.byref(extent), ctypes.byref(counts), 0) != 0:
            pytest.skip(f"NOT TESTED: this kernel does not count pages: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
    return counts[0], counts[1] + counts[2]


@pytest.mark.parametrize("io", ["mmap", "pwrite", "direct"])
def test_written_at_once_and_gone_once_sealed(on_disk, shared_pool, drive_of, spec_of, io):
    if memory_filesystem(on_disk):
        pytest.skip("NOT TESTED: a filesystem in memory is page cache")
    settings = WriteSettings(io=io, store_within_ms=NEVER_MS, sync_interval_ms=NEVER_MS, ballast_bytes=0)
    drive = drive_of(on_disk / "a.zarr", spec_of(chunk=4, shard=2, codec=None), shared_pool, settings)
    drive.submit(*range(4))
    drive.until(lambda: drive.acquisition.stored_watermark == 4)
    working = sorted(drive.path.glob(".shardwright/*.partial"))
    give_up_s = time.monotonic() + KERNEL_WAITS_S
    while (dirty := sum(cached_pages(path)[1] for path in working)) and time.monotonic() < give_up_s:
        time.sleep(0.05)
    assert dirty == 0, "nothing was synced, and still it is written"
    assert drive.acquisition.durable_watermark == 0, "which is no promise"
    if io == "direct":
        assert sum(cached_pages(path)[0] for path in working) == 0
    drive.submit(*range(4, 8))
    receipt = drive.finish()
    assert receipt.shards > 0
    for path in (drive.path / "0" / "c").rglob("*"):
        if path.is_file():
            assert cached_pages(path)[0] == 0, path
    assert np.array_equal(drive.read(), drive.expected(range(8)))
