"""A shared file mapped at an address where the processor's large pages can be used, which mmap would not
choose by itself.

Encoders read a frame in short rows, one page after another: with pages of 4 KiB each row costs a lookup in
the page table. Measured with rows of 512 bytes of 4 KiB: 2.50 GB/s encoded from small pages, 2.72 from large
ones. MADV_COLLAPSE (Linux 6.1) makes large pages with any setting of
/sys/kernel/mm/transparent_hugepage/shmem_enabled except ``deny``; if it fails, small pages are used.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from .files import advise

_LARGE_PAGE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MAP_FIXED = 0x10
_MADV_COLLAPSE = 25
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def large_page_bytes() -> int:
    """Returns the size of this machine's large pages; 0 if the kernel has none."""
    try:
        return int(_LARGE_PAGE.read_text())
    except (OSError, ValueError):
        return 0


class SharedMapping:
    """Maps the first ``nbytes`` of ``descriptor`` at ``address``, for reading and writing, until ``close``.
    Raises ``OSError``."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._nbytes = nbytes
        align = max(large_page_bytes(), mmap.PAGESIZE)
        self._reserved_bytes = nbytes + align  # of addresses only: enough to contain an aligned range
        self._reserved = _map(None, self._reserved_bytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        try:
            protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
            self.address = _map(
                self._reserved + -self._reserved % align, nbytes, protection, flags, descriptor
            )
        except OSError:
            self.close()
            raise

    def use_large_pages(self) -> bool:
        """Moves the content to large pages, which takes about as long as copying it, without the GIL. Returns
        False if some of it, or all, stays in small pages."""
        large = large_page_bytes()
        whole = self._nbytes // large * large if large else 0
        return whole > 0 and advise(self.address, whole, _MADV_COLLAPSE) == 0

    def close(self) -> None:
        """Unmaps. Only when no thread uses the address any more; a second call does nothing."""
        # a second munmap could hit another mapping; with size 0 it fails and does nothing
        reserved_bytes, self._reserved_bytes = self._reserved_bytes, 0
        _libc.munmap(self._reserved, reserved_bytes)


def _map(address: int | None, nbytes: int, protection: int, flags: int, descriptor: int) -> int:
    mapped = _libc.mmap(address, nbytes, protection, flags, descriptor, 0)
    if mapped is None or mapped == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(mapped)


def lies_in_file(memory: object) -> bool:
    """Returns whether an array is memory of a mapped file, through whichever objects between them."""
    owner: object = memory
    while owner is not None:
        if isinstance(owner, mmap.mmap):
            return True
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return False
