"""Compiles every kernel, or loads it from numba's cache, before the first frame: a compilation in the frame
path would cost seconds. The encoding takes longer than all others, which another process compiles meanwhile
(numba compiles in one thread at a time)."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from shardwright.codecs.parameters import KIND_NONE, CodecParameters

from . import CACHE_FOLDER
from .cache import is_compiled, note_compiled, one_compiles
from .compressed_forms import CompressorContexts
from .copy import copy_streaming
from .encode_planes import encode_whole
from .file_io import start_writeback, write_runs, write_slots
from .gather import sample_pixels
from .journal_kernels import journal_chunks, journal_frames, stage_frames
from .parts import place_parts, shifts_behind
from .place import place_frames, slabs_and_indices

COMPILING = "compiling the kernels, once after an installation or an upgrade: this takes 5 to 30 seconds"
OTHERS = "from shardwright.kernels.warm_up import run_others; run_others()"  # for a process of its own
MOST_S = 120.0  # that it may take; then its part is compiled here
_lock = threading.Lock()  # held while kernels are compiled: a second thread waits, and then finds them done
_done = False  # in this process; under _lock


def compiles() -> bool:
    """Returns whether ``warm_up`` will compile: a long wait, to be announced before it begins
    (``COMPILING``)."""
    return not _done and not is_compiled(CACHE_FOLDER)


def warm_up() -> None:
    """Runs each kernel once on a tiny input of the types that the pipeline uses."""
    global _done  # noqa: PLW0603
    with _lock:
        if not _done:
            with one_compiles(CACHE_FOLDER):
                _run_each()
                note_compiled(CACHE_FOLDER)
            _done = True


def _run_each() -> None:
    others = None if CACHE_FOLDER is None or is_compiled(CACHE_FOLDER) else _start_others()
    try:
        _run_encoding()
        if others is not None:
            others.wait(MOST_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if others is not None:
            others.kill()
            others.wait()
    run_others()  # what the other process has compiled is loaded


def _start_others() -> subprocess.Popen[bytes] | None:
    """Starts a process that compiles the other kernels into the same folder; None where this one is no
    Python, but a program with one in it."""
    if not Path(sys.executable or "").name.startswith("python"):
        return None
    nowhere = subprocess.DEVNULL
    try:
        # -P: what lies in the working folder is not imported
        return subprocess.Popen(  # noqa: S603  (our own interpreter)
            [sys.executable, "-P", "-c", OTHERS], stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
    except OSError:
        return None


def _run_encoding() -> None:
    contexts = CompressorContexts()
    codec = CodecParameters(KIND_NONE, 0, 0, 0, 0, 1, checksum=True, chunk_bytes=64)
    chunk, slot, scratch = np.ones(64, np.uint8), np.zeros(4096, np.uint8), np.zeros(128, np.uint8)
    encode_whole(chunk, codec, slot, (contexts.addresses, scratch))
    contexts.close()


def run_others() -> None:
    """Runs every kernel but the encoding."""
    frame, slot = np.ones(64, np.uint8), np.zeros(4096, np.uint8)
    copy_streaming(int(slot.ctypes.data), int(frame.ctypes.data), frame.size)
    one = np.ones(1, np.int64)
    write_slots(-one, 0 * one, one, 0 * one, 1)
    start_writeback(-one, 0 * one, 0 * one, one)
    write_runs(-one, 0 * one, 0 * one, one, 0 * one, 1, 0 * one)
    no_file, records = -1, np.zeros((1, 128), np.uint8)
    journal_chunks(no_file, 0 * one, 0 * one, one, np.zeros(1, np.uint32), 1, 0, np.zeros(32, np.uint8))
    journal_frames(no_file, 0, records, np.ones(1, np.bool_), 0, np.zeros(128, np.uint8))
    stage_frames(no_file, one * frame.ctypes.data, frame.size, 0 * one, 0 * one, records, 0)
    joined = np.zeros(1, np.uint32), np.zeros(1, np.bool_)
    plane, cut = np.array([[0, 0, 8, 8]], np.int64), (8, 8, 8, np.zeros(8, np.uint8), False)
    target = np.array([[slot.ctypes.data]], np.int64)
    place_parts(one * frame.ctypes.data, shifts_behind(1, 64), plane, cut, target, joined)
    sample_pixels(one * frame.ctypes.data, frame.size, 1, 0, np.zeros(1, np.uint8))
    table = np.zeros((1, 1), np.int64)
    words, axes = np.zeros((1, 16), np.int64), (np.ones((1, 1), np.int64),) * 4
    row = (0 * one, table, table.copy(), words.reshape(1, 1, -1).copy(), 0 * one, one)
    slabs_and_indices(0 * one, *axes)
    place_frames(0, (0 * one, 0 * one, one, words), axes, row, np.zeros(1, np.uint8), 0 * one)
