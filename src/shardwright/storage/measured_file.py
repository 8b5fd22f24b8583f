"""A file for measuring a disk: preallocated and written like a shard in progress, but unnamed, so that the
system frees it in any case."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from .files import populate, preallocate, raise_errno, set_direct
from .slot_file import IO_MODES

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from .slot_file import IoMode


class MeasuredFile:
    """An unnamed file of ``nbytes`` preallocated in ``folder``, written by ``mode``. Raises ``OSError``. A
    context manager."""

    def __init__(self, folder: Path, mode: IoMode, nbytes: int) -> None:
        assert mode in IO_MODES[1:]
        self._pages: mmap.mmap | None = None
        self._file: IO[bytes] = cast("IO[bytes]", tempfile.TemporaryFile(dir=folder, buffering=0))  # noqa: SIM115  (closed in __exit__)
        try:
            preallocate(self._file.fileno(), nbytes)
            if mode == "direct":
                set_direct(self._file.fileno(), on=True)
            elif mode == "mmap":
                self._pages = mmap.mmap(self._file.fileno(), nbytes)
        except BaseException:
            self._file.close()
            raise

    def put(self, offset: int, data: memoryview) -> None:
        """Writes whole pages, from any thread; no other thread may write there. For direct writes ``data``
        must begin at a page of memory."""
        if self._pages is None:
            done = 0
            while done < len(data):
                done += os.pwrite(self._file.fileno(), data[done:], offset + done)
            return
        pages = np.frombuffer(self._pages, np.uint8, len(data), offset)
        # if the disk fails this returns an error, where a plain write to the page would raise SIGBUS
        raise_errno(populate(int(pages.ctypes.data), pages.size))
        pages[:] = np.frombuffer(data, np.uint8)  # without the GIL

    def sync(self) -> None:
        os.fdatasync(self._file.fileno())

    def __enter__(self) -> MeasuredFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the file. No thread may be in ``put`` any more."""
        if self._pages is not None:
            self._pages.close()
        self._file.close()
