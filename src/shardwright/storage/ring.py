"""The shared-memory ring a camera on this machine writes its frames into: a sealed memfd, mapped here, handed to one client.

A fresh one for each session: a client of an ended session may still hold the old one and scribble in it. It can neither shrink nor grow, so the peer
cannot make our reads fault; its pages are allocated before it is used, so that full memory is an error here and not a signal later.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os

import numpy as np

from shardwright.model.errors import BudgetError, StorageError

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap
_libc = ctypes.CDLL(None, use_errno=True)  # calls through it release the GIL, mmap.madvise does not
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Ring:
    """``descriptor`` goes to the client; ``address`` is where slot 0 is mapped in this process."""

    def __init__(self, ring_bytes: int) -> None:
        """Takes as long as the kernel needs to provide the memory; may be called from any thread."""
        self.ring_bytes = ring_bytes
        self.descriptor = os.memfd_create("shardwright-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, ring_bytes)
            _allocate(self.descriptor, ring_bytes)
            self._map = mmap.mmap(self.descriptor, ring_bytes)
            self.address = np.frombuffer(self._map, np.uint8).ctypes.data
            _populate(self.address, ring_bytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
        except BaseException:
            os.close(self.descriptor)
            raise

    def close(self) -> None:
        """Gives the memory back. Only when no worker reads from it any more; the client's own mapping stays valid."""
        self._map.close()
        os.close(self.descriptor)


def _allocate(descriptor: int, ring_bytes: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, ring_bytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise BudgetError("no memory for the frame ring", expected=f"{ring_bytes} bytes", got=error.strerror) from None
        raise StorageError("cannot allocate the frame ring", expected=f"{ring_bytes} bytes", got=error.strerror) from None


def _populate(address: int, ring_bytes: int) -> None:
    """Fills the page table now rather than at each frame's first touch. Kernels that cannot are slower in the first lap, no more."""
    if _libc.madvise(address, ring_bytes, _MADV_POPULATE_WRITE) != 0 and (code := ctypes.get_errno()) != errno.EINVAL:
        raise StorageError("cannot populate the frame ring", expected=f"{ring_bytes} bytes", got=os.strerror(code))
