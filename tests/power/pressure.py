"""Dirty pages that reach the disk before anyone asked for it, as under memory pressure: in any order, and
without a flush."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator


_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE: begins to write, waits for nothing, flushes nothing
_LONGEST_BYTES = 64 * 1024
_PAUSE_S = 0.003

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


@contextmanager
def write_back(root: Path, seed: int) -> Iterator[None]:
    """Meanwhile random ranges of random files below ``root`` are written back, again and again."""
    done = threading.Event()

    def work() -> None:
        rng = np.random.default_rng(seed)
        while not done.wait(_PAUSE_S):
            files = [Path(folder) / name for folder, _, names in os.walk(root) for name in names]
            if files:
                _write_back_some(files[int(rng.integers(len(files)))], rng)

    thread = threading.Thread(target=work, name="write-back")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _write_back_some(path: Path, rng: np.random.Generator) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
    except OSError:
        return  # gone
    try:
        first = int(rng.integers(max(1, os.fstat(descriptor).st_size)))
        _libc.sync_file_range(descriptor, first, int(rng.integers(1, _LONGEST_BYTES)), _START_WRITING)
    finally:
        os.close(descriptor)
