"""The allocation reserve: memory of the heap for pixels that come in messages, and for which client it is
kept.

ZeroMQ takes memory with malloc and gives it back with free, one part of a message at a time. By default each
frame would be fresh memory from the system, whose first touch costs more than the copy into it. So all
threads have one heap (``have_one_heap``) with room for what a camera may have in flight, touched and in large
pages before it sends (``make_ready``). The heap keeps that room until the camera is gone or something else
needs the memory (``trim``, ``give_back``); ``AllocationReserve`` decides which. With several cameras the
first lap of a later one may still touch fresh memory. glibc only: elsewhere messages work as well, if slower.
Measured on two cores, frames of 8 MiB by ipc: 1.41 GB/s stored without, 1.72 with, 1.24 and 1.00 CPU seconds
per GB.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from .files import advise, populate

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.model.promise import Promise

# mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_NEVER = -1
# larger allocations come from the system and go back there; glibc's own rule moves with the sizes that are
# freed
_FROM_SYSTEM_BYTES = 1 << 20
# the most that glibc allows; what the heap has room for comes from it in any size
_FROM_HEAP_BYTES = 32 << 20
_USUAL_TRIM_BYTES = 2 * _FROM_HEAP_BYTES  # glibc's own rule
_PIECE_BYTES = 16 << 20  # taken at once: neighbours become one when they are free again
_MADV_HUGEPAGE = 14
_STATUS_BYTES = 16 << 10  # more than there is

_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.argtypes, _libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
_libc.free.argtypes = (ctypes.c_void_p,)
_one_heap = False  # of this process; nothing below has an effect without
# descriptor of /proc/self/status, kept open: a new one may not be available when it is needed
_status = -1


def _mallopt(option: int, value: int) -> bool:
    mallopt = getattr(_libc, "mallopt", None)
    return mallopt is not None and mallopt(option, value) == 1


def have_one_heap() -> bool:
    """Gives all threads one heap, so that each can reuse memory that another has freed. To be called before
    this process has a second thread. Returns False if the C library cannot."""
    global _one_heap, _status  # noqa: PLW0603  (there is one heap)
    _one_heap = _mallopt(_M_ARENA_MAX, 1) and _mallopt(_M_MMAP_THRESHOLD, _FROM_SYSTEM_BYTES)
    if _one_heap and _status < 0:
        with suppress(OSError):
            _status = os.open("/proc/self/status", os.O_RDONLY)
    return _one_heap


def make_ready(nbytes: int) -> bool:
    """Makes the heap keep freed memory, with room for ``nbytes``, all of it touched. Returns False, and
    nothing has changed, if this process does not have one heap. Takes as long as the system needs to provide
    the memory, without the GIL."""
    if not (
        _one_heap and _mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES) and _mallopt(_M_TRIM_THRESHOLD, _NEVER)
    ):
        return False
    pieces = []
    for done in range(0, nbytes, _PIECE_BYTES):
        size = min(_PIECE_BYTES, nbytes - done)
        if (piece := _libc.malloc(size)) is None:
            break  # if memory is short, ZeroMQ reports it
        pieces.append(piece)
        _touch(piece, size)
    for piece in reversed(pieces):
        _libc.free(piece)
    return True


def _touch(address: int, nbytes: int) -> None:
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = max(0, (address + nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE)
    advise(first, whole, _MADV_HUGEPAGE)
    if populate(first, whole) == errno.EINVAL:  # before Linux 5.14
        ctypes.memset(first, 0, whole)


def trim() -> None:
    """Gives free memory to the system. Until it returns, other threads of this process wait for
    allocations."""
    malloc_trim = getattr(_libc, "malloc_trim", None)
    if _one_heap and malloc_trim is not None:
        malloc_trim(0)


def give_back() -> None:
    """As ``trim``; and large pieces that are freed from now on go to the system as well."""
    if _one_heap:
        _mallopt(_M_TRIM_THRESHOLD, _USUAL_TRIM_BYTES)
        _mallopt(_M_MMAP_THRESHOLD, _FROM_SYSTEM_BYTES)
    trim()


def resident_bytes() -> int:
    """Returns the memory of this process without files, rings and shared memory, but with free pieces of the
    heap; 0 if this process does not have one heap, or the system does not report it."""
    if not _one_heap:
        return 0
    try:
        status = os.pread(_status, _STATUS_BYTES, 0)
    except OSError:
        return 0
    return next(
        (int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(b"RssAnon:")), 0
    )


class AllocationReserve:
    """The room of the heap for pixels in messages. The room that a client used at once is kept for its next
    acquisitions, as its ring is. Kept room was admitted, and is given back before other memory is made ready:
    the budget holds.

    All methods are called from the ingest thread; ``submit`` makes the calls that take time in another.
    ``in_use_bytes``: of all acquisitions with pixels in messages, open or being opened. ``planned_bytes``:
    the planned memory of this process and all its acquisitions.
    """

    def __init__(self, submit: Callable[[Callable[[], None]], Promise[None]]) -> None:
        self._submit = submit
        self._peer: object | None = None  # compared by identity: the client that sent last
        self.kept_bytes = 0
        self._held_bytes = 0  # at the last trim
        self._trimming: Promise[None] | None = None  # the last
        self._ended = False

    def expect(self, peer: object, more_bytes: int, in_use_bytes: int) -> None:
        """Keeps room for ``more_bytes`` that a client is about to send, and gives back the room of
        another."""
        if peer is not self._peer:
            self.make_room(in_use_bytes)
        self._peer = peer
        self.kept_bytes = max(self.kept_bytes, in_use_bytes + more_bytes)

    def make_room(self, in_use_bytes: int) -> None:
        """Gives back room that is not in use, since other memory is about to be needed."""
        if self.kept_bytes > in_use_bytes:
            self._held_bytes = self.held_bytes
            self._peer, self.kept_bytes = None, in_use_bytes
            self._trimming = self._submit(trim if in_use_bytes else give_back)

    @property
    def held_bytes(self) -> int:
        """``kept_bytes``, plus room that is still being given back."""
        return max(self.kept_bytes, self._held_bytes) if self.is_trimming else self.kept_bytes

    @property
    def is_trimming(self) -> bool:
        """True while memory is being given back to the system."""
        return self._trimming is not None and not self._trimming.done()

    def trim(self) -> None:
        """Gives free memory to the system, since memory is short."""
        self._held_bytes = self.held_bytes
        self._trimming = self._submit(trim)

    def forget(self, peer: object) -> None:
        """Notes that a client is gone, and with it all that it had begun to send."""
        self._ended = True
        if peer is self._peer:
            self._peer = None

    def ended(self) -> None:
        """Notes that an acquisition has ended: memory that it freed may still belong to this process."""
        self._ended = True

    def tick(self, in_use_bytes: int, planned_bytes: int, tolerated_bytes: int) -> None:
        """Gives back room that is kept for no client and, after an end, memory that is beyond the plan by
        more than ``tolerated_bytes``. To be called from time to time."""
        if self._peer is None:
            self.make_room(in_use_bytes)
        if self._ended and self.beyond_plan(in_use_bytes, planned_bytes) > tolerated_bytes:
            self._ended = False
            self.trim()

    def beyond_plan(self, in_use_bytes: int, planned_bytes: int) -> int:
        """Returns how much more memory this process has than planned: measured, not computed. Kept room that
        is in use is planned already."""
        return resident_bytes() - planned_bytes - max(0, self.held_bytes - in_use_bytes)
