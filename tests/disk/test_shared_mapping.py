"""The ring's pages: shared with the file, at an address that large pages can have, large where the kernel
says so, and gone after close."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from pathlib import Path

import pytest

from shardwright.disk.shared_mapping import SharedMapping, large_page_bytes

NBYTES = (4 << 20) + 8192
LARGE_BYTES = large_page_bytes() or mmap.PAGESIZE
WHOLE = NBYTES - NBYTES % LARGE_BYTES


@pytest.fixture
def descriptor():
    made = os.memfd_create("shardwright-test", os.MFD_CLOEXEC)
    os.posix_fallocate(made, 0, NBYTES)
    yield made
    os.close(made)


def lines_of(address: int) -> str:
    """What the kernel says of the mapping that begins there; empty without one."""
    found = re.search(
        rf"^{address:08x}-.*?(?=^[0-9a-f]+-|\Z)",
        Path("/proc/self/smaps").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    return found.group() if found else ""


def large_bytes(address: int) -> int:
    return 1024 * sum(
        int(number)
        for number in re.findall(r"^(?:Shmem|File)PmdMapped: *(\d+) kB", lines_of(address), re.MULTILINE)
    )


def test_what_is_written_is_in_the_file_and_stays_there_in_large_pages(descriptor: int) -> None:
    mapping = SharedMapping(descriptor, NBYTES)
    content = os.urandom(NBYTES)
    ctypes.memmove(mapping.address, content, NBYTES)
    assert large_bytes(mapping.address) in (0, WHOLE)
    large = mapping.use_large_pages()
    assert (large_bytes(mapping.address) == WHOLE) == large
    assert mapping.address % LARGE_BYTES == 0
    assert ctypes.string_at(mapping.address, NBYTES) == content == os.pread(descriptor, NBYTES, 0)
    os.pwrite(descriptor, b"theirs", NBYTES - 6)
    assert ctypes.string_at(mapping.address + NBYTES - 6, 6) == b"theirs"
    mapping.close()


def test_nothing_stays_mapped(descriptor: int) -> None:
    mapping = SharedMapping(descriptor, NBYTES)
    assert "shardwright-test" in lines_of(mapping.address)
    before = Path("/proc/self/maps").read_text().count("shardwright-test")
    mapping.close()
    assert Path("/proc/self/maps").read_text().count("shardwright-test") == before - 1
    assert "shardwright-test" not in lines_of(mapping.address)


def test_a_ring_smaller_than_a_large_page_or_on_a_kernel_without_them_has_small_ones(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SharedMapping(descriptor, 8192)
    assert not small.use_large_pages()
    small.close()
    monkeypatch.setattr("shardwright.disk.shared_mapping.large_page_bytes", lambda: 0)
    plain = SharedMapping(descriptor, NBYTES)
    assert not plain.use_large_pages()
    plain.close()


def test_what_cannot_be_mapped_is_an_error_and_leaves_nothing(descriptor: int) -> None:
    before = Path("/proc/self/maps").read_text().count("\n")
    with pytest.raises(OSError, match="Bad file descriptor"):
        SharedMapping(-1, NBYTES)
    assert Path("/proc/self/maps").read_text().count("\n") <= before + 1
