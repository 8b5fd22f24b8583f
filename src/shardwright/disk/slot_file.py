"""The file under a shard in progress: preallocated, filled chunk by chunk, then truncated, synced and
renamed. Three modes of filling it behind one interface.

    mapped   the file is mapped and chunks are encoded straight into it; a page fault and a journal entry for
             every 4 KiB page
    pwrite   chunks are encoded into a worker's buffer and written, packed, through the page cache; errors
             come back as errno
    direct   the same with O_DIRECT: no page cache, durable as it goes

Measured with two threads and 1 MiB pieces, final sync included: mapped 0.6 to 1.4 GB/s at 0.9 to 2.5 CPU
seconds per GB, pwrite 2.0 to 2.9 at 0.33, direct 2.1 to 2.8 at 0.03. choose_io.py decides what ``auto``
means. A mapping is not safe on copy-on-write filesystems: preallocation covers no second write of a page
there, so that a full disk kills the process. On any filesystem, truncating a mapped file kills it too.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from . import beneath
from .failpoints import reach
from .files import (
    DataSync,
    preallocate,
    punch_hole,
    remove_own,
    set_direct,
    storage_errors,
    truncate,
    write_all,
)

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.model.write_options import IoMode

DIRECT_ALIGNMENT_BYTES = 4096


class SlotFile:
    """Owns the descriptor and, when mapped, the mapping. One owner thread creates, ends and closes it;
    workers fill slots in between.

    ``address`` is the start of the mapping, None when slots are written through ``descriptor``. It stays
    valid until ``end_filling``, which must wait for all workers that use it. All blocks are really
    preallocated, so that no mode can meet a full disk.
    """

    def __init__(self, path: Path, nbytes: int, mode: IoMode, *, existing: bool = False) -> None:
        """``existing``: opens a file that was preallocated before a crash. Raises ``StorageError``,
        ``StorageFullError``."""
        assert mode != "auto", "resolved by choose_io.resolve_io"
        self.path = path
        self.nbytes = nbytes
        self.direct = mode == "direct"
        self._mapping: mmap.mmap | None = None
        self._sync = DataSync("shard")
        self._bytes: np.ndarray | None = None
        self.address: int | None = None
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if existing else os.O_CREAT | os.O_EXCL)
        with storage_errors("preallocate", path):
            self.descriptor = beneath.open_file(path, flags, 0o644)
            try:
                reach("shard.before_preallocate")
                # of an existing file only the end that sealing had truncated: punched gaps stay
                size = os.fstat(self.descriptor).st_size
                self.guaranteed = size >= nbytes or preallocate(self.descriptor, nbytes - size, start=size)
                if mode == "mmap":
                    self._map()
                elif mode == "direct":  # not before: glibc's emulated preallocation writes single bytes
                    set_direct(self.descriptor, on=True)
            except BaseException:
                beneath.close(self.descriptor)
                if not existing:
                    beneath.unlink(path)
                raise

    def _map(self) -> None:
        self._mapping = mmap.mmap(self.descriptor, self.nbytes)
        self._bytes = np.frombuffer(self._mapping, np.uint8)
        self.address = int(self._bytes.ctypes.data)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Writes bytes that no worker writes (the index, chunks of another file) at any offset; only the
        owner thread, while no worker writes. Later writes go through the page cache."""
        if self._bytes is not None:
            # NumPy copies without the GIL, so a page fault that waits for the disk stops no other thread
            self._bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
            return
        with storage_errors("write", self.path):
            reach("shard.before_write")
            self._drop_direct()
            write_all(self.descriptor, offset, data)

    def write_pages(self, offset: int, pages: bytes) -> None:
        """Writes whole pages at a page's edge in one call, while workers write others: through the page cache
        or past it, as the file was opened. Only the owner thread. Raises ``StorageError``."""
        buffer = mmap.mmap(-1, len(pages))  # page-aligned, as direct writes need it
        buffer[:] = pages
        with storage_errors("write", self.path):
            reach("shard.before_live_index")
            write_all(self.descriptor, offset, memoryview(buffer))

    def reserve(self, nbytes: int) -> None:
        """Preallocates further, up to ``nbytes`` in all. Raises ``StorageFullError``, ``StorageError``."""
        with storage_errors("preallocate", self.path):
            size = os.fstat(self.descriptor).st_size
            if size < nbytes:
                reach("shard.before_reserve")
                if self.direct:
                    set_direct(self.descriptor, on=False)  # an emulated preallocation writes single bytes
                try:
                    preallocate(self.descriptor, nbytes - size, start=size)
                finally:
                    if self.direct:
                        set_direct(self.descriptor, on=True)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Returns bytes of the file, no bytes if it ends before ``offset + nbytes``; through the page cache
        or past it, as the file was opened. Raises ``StorageError``."""
        start = offset // DIRECT_ALIGNMENT_BYTES * DIRECT_ALIGNMENT_BYTES
        stop = -(-(offset + nbytes) // DIRECT_ALIGNMENT_BYTES) * DIRECT_ALIGNMENT_BYTES
        # page-aligned, as direct reads need it
        with storage_errors("read", self.path), mmap.mmap(-1, max(stop - start, 1)) as buffer:
            reach("shard.before_read")
            done = 0
            while done < offset + nbytes - start:
                count = os.preadv(self.descriptor, [memoryview(buffer)[done:]], start + done)
                if count == 0:
                    break
                done += count
            return (
                bytes(buffer[offset - start : offset - start + nbytes])
                if done >= offset + nbytes - start
                else b""
            )

    def _drop_direct(self) -> None:
        """Ends direct I/O, so that writes of any alignment are allowed; earlier direct writes are complete,
        so both access the same bytes."""
        if self.direct:
            set_direct(self.descriptor, on=False)
            self.direct = False

    def end_filling(self) -> None:
        """Unmaps the file; no slot may be used after this."""
        self._bytes = None
        self.address = None
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None

    def punch(self, offset: int, nbytes: int) -> bool:
        """Frees a gap; returns False if the filesystem cannot."""
        with storage_errors("give back a gap of", self.path):
            return punch_hole(self.descriptor, offset, nbytes)

    def truncate(self, nbytes: int) -> None:
        """Truncates the preallocated tail; only when unmapped, since access to a mapped page past the end
        raises SIGBUS."""
        assert self._mapping is None, "unmapped before truncate"
        with storage_errors("truncate", self.path):
            reach("shard.before_truncate")
            truncate(self.descriptor, nbytes)

    def sync(self) -> None:
        """As ``DataSync.sync``."""
        self._sync.sync(self.descriptor, self.path)

    @property
    def has_failed(self) -> bool:
        """True once a sync has failed."""
        return self._sync.has_failed

    def drop_cache(self) -> None:
        """Drops the synced file from the page cache: an acquisition of hours would otherwise displace all
        else and then wait for room."""
        with suppress(OSError):  # advice, which a filesystem may not support
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, path: Path) -> None:
        """Renames the file and replaces any file of that name; the folder is not synced. Raises
        ``StorageError``."""
        with storage_errors("rename", self.path):
            reach("shard.before_replace")
            beneath.replace(self.path, path)
        self.path = path

    def close(self) -> None:
        self.end_filling()
        if self.descriptor >= 0:
            beneath.close(self.descriptor)
            self.descriptor = -1

    def discard(self) -> None:
        """Deletes and closes the file of a shard that was prepared but never used. Raises ``StorageError``:
        it is open still, since a deletion that found no room is tried again."""
        with storage_errors("delete", self.path):
            remove_own(self.path, self.descriptor, "shard")
        self.close()
