"""Measures each stage alone, for a fraction of a second: its rate if nothing else uses the machine, which is
a floor."""

from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.acquire.encoding import SlabEncoder
from shardwright.acquire.workers import WorkerState
from shardwright.array.grid import Grid
from shardwright.codecs.degrade import DegradeLevel
from shardwright.ingest.transport.ipc_throughput import ipc_rate
from shardwright.kernels.encode import NOT_PACKED
from shardwright.model.errors import StorageError
from shardwright.shard.layout import PAGE_BYTES, page_aligned
from shardwright.storage.choose_io import MeasuredFile
from shardwright.storage.ring import Ring

from .verdict import KernelRate, StageRate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.model.write_options import IoMode

COPY_BYTES = 64 << 20
LEAST_FILE_BYTES, MOST_FILE_BYTES = 64 << 20, 512 << 20
MOST_MESSAGES = 16
PIECE_BYTES = 4 << 20  # about what a worker writes at once of packed chunks
_RING_BYTES = 128 << 20


def cores() -> int:
    """CPUs that this process, and a daemon that it starts, may use."""
    return len(os.sched_getaffinity(0))


@dataclass
class _Spent:
    seconds: float = 0.0
    cpu_s: float = 0.0

    def rate(self, nbytes: int) -> StageRate:
        return StageRate(nbytes / max(self.seconds, 1e-9), self.cpu_s / max(nbytes, 1) * 1e9)


@contextmanager
def _spending(total: _Spent) -> Iterator[None]:
    begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
    yield
    total.seconds += time.perf_counter() - begin_s
    total.cpu_s += time.process_time() - cpu_begin_s


def memory_copy(seconds: float) -> StageRate:
    """Plain copies in memory that is in use already, every core at its own."""
    pairs = [(np.zeros(COPY_BYTES, np.uint8), np.ones(COPY_BYTES, np.uint8)) for _ in range(cores())]
    spent, copied = _Spent(), 0
    with ThreadPoolExecutor(len(pairs)) as pool:
        while spent.seconds < seconds:
            with _spending(spent):
                list(pool.map(lambda pair: np.copyto(*pair), pairs))
            copied += COPY_BYTES * len(pairs)
    return spent.rate(copied)


def shared_memory(frames: np.ndarray[Any, Any], seconds: float) -> StageRate:
    """One camera thread copies frames into a ring as the daemon hands them out."""
    slots = max(1, min(len(frames), _RING_BYTES // frames[0].nbytes))
    ring = Ring(slots * frames[0].nbytes)
    spent, copied = _Spent(), 0
    try:
        memory = (ctypes.c_uint8 * ring.ring_bytes).from_address(ring.address)
        places = np.ctypeslib.as_array(memory).view(frames.dtype).reshape(slots, *frames.shape[1:])
        while spent.seconds < seconds:
            with _spending(spent):
                for slot in range(slots):
                    places[slot] = frames[slot]
            copied += slots * frames[0].nbytes
    finally:
        ring.close()
    return spent.rate(copied)


def messages(frames: np.ndarray[Any, Any], seconds: float) -> StageRate:
    """Pixels in ZeroMQ messages over a Unix socket, both ends in this process."""
    cpu_begin_s = time.process_time()
    took_s, received = ipc_rate(
        [memoryview(frame.reshape(-1).view(np.uint8)) for frame in frames[:MOST_MESSAGES]], seconds
    )
    return StageRate(
        received / max(took_s, 1e-9), (time.process_time() - cpu_begin_s) / max(received, 1) * 1e9
    )


class SlabKernel:
    """One stream's kernel call, as its workers make it: ranges of a slab's chunks into a worker's own
    buffer."""

    def __init__(self, spec: ArraySpec, frames: np.ndarray[Any, Any]) -> None:
        grid = Grid.of(spec)
        self._encoder = SlabEncoder(spec, grid)
        self.layout, self.chunks = self._encoder.layout, self._encoder.chunks_per_slab
        self.slab_bytes = grid.frames_per_slab * grid.frame_bytes
        self._addresses = [frame.ctypes.data for frame in frames]
        self._frames = frames  # whose addresses these are
        self._frames_per_slab = grid.frames_per_slab
        self.ranges = self._encoder.task_ranges
        self.encoded_bytes = np.zeros(self.chunks, np.int64)  # of the last slab

    def encode(self, slab: int, first: int, stop: int, state: WorkerState) -> np.ndarray:
        """int64[n]: addresses of the encoded chunks in the worker's buffer, of the last part if levels make
        the range one of several parts; their lengths in ``encoded_bytes``."""
        begin, distinct = slab * self._frames_per_slab, len(self._addresses)
        frames = np.array(
            [self._addresses[(begin + i) % distinct] for i in range(self._frames_per_slab)], np.int64
        )
        slots = np.zeros(0, np.int64)
        for sources, *ends in self._encoder.parts_of(frames, 0, first, stop, state):
            part, slots = slice(*ends), state.slots(ends[1] - ends[0], self.layout.slot_bytes)
            self.encoded_bytes[part], _, _ = self._encoder.to_slots(
                sources, part, slots, NOT_PACKED, state, DegradeLevel.CONFIGURED
            )
        return slots


def kernel(spec: ArraySpec, frames: np.ndarray[Any, Any], seconds: float) -> KernelRate:
    """Frames to encoded chunks in memory, on all cores."""
    work = SlabKernel(spec, frames)
    states = [WorkerState() for _ in range(cores())]
    spent, slabs, encoded = _Spent(), 0, 0
    # As many slabs a turn as give every core a range of chunks.
    turn = max(1, -(-len(states) // len(work.ranges)))
    try:
        with ThreadPoolExecutor(len(states)) as pool:
            _encode_turn(work, states, pool, 0, 1)  # touches the buffers
            while spent.seconds < seconds:
                with _spending(spent):
                    _encode_turn(work, states, pool, slabs, turn)
                slabs += turn
                encoded += turn * int(work.encoded_bytes.sum())
    finally:
        for state in states:
            state.close()
    raw = slabs * work.slab_bytes
    return KernelRate(spent.rate(raw), raw / max(encoded, 1), tuple(work.encoded_bytes.tolist()))


def _encode_turn(
    work: SlabKernel, states: list[WorkerState], pool: ThreadPoolExecutor, first_slab: int, slabs: int
) -> None:
    tasks = [(first_slab + slab, first, stop) for slab in range(slabs) for first, stop in work.ranges]

    def share(number: int) -> None:
        for slab, first, stop in tasks[number :: len(states)]:
            work.encode(slab, first, stop, states[number])

    list(pool.map(share, range(len(states))))


def disk(
    folder: Path,
    mode: IoMode,
    chunk_bytes: Sequence[int],
    slot_bytes: int,
    threads: int,
    seconds: float,
    room_bytes: int,
) -> StageRate:
    """Chunks of these lengths to their slots in preallocated files, on as many threads as there are workers,
    the sync of each file counted.

    ``bytes_per_s`` are those of whole pages. ``room_bytes``: most that may lie on the disk at once. Raises
    ``StorageError``.
    """
    pieces = _pieces(chunk_bytes, slot_bytes)
    slab_bytes = max(len(chunk_bytes), 1) * slot_bytes
    most = max(1, min(room_bytes, MOST_FILE_BYTES) // slab_bytes)
    slabs = min(most, max(1, LEAST_FILE_BYTES // slab_bytes))
    source = _page_aligned_memory(max(length for _, length in pieces))
    spent, written = _Spent(), 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            while spent.seconds < seconds:
                places = [
                    (slab * slab_bytes + offset, length) for slab in range(slabs) for offset, length in pieces
                ]
                # closing frees the blocks, which a shard keeps: it is not timed
                with ExitStack() as opened, _spending(spent):
                    file = opened.enter_context(MeasuredFile(folder, mode, slabs * slab_bytes))
                    list(pool.map(partial(_put, file, source), places))
                    file.sync()
                written += slabs * sum(length for _, length in pieces)
                slabs = min(most, 2 * slabs)  # small files first: a slow disk is not kept busy for long
        except OSError as error:
            raise StorageError(
                f"cannot measure {mode} writes below {folder}", got=error.strerror or str(error)
            ) from error
    return spent.rate(written)


def _pieces(chunk_bytes: Sequence[int], slot_bytes: int) -> list[tuple[int, int]]:
    """(offset, bytes) of the writes of one slab: neighbours go out together, as packed chunks do."""
    pieces: list[tuple[int, int]] = []
    for number, length in enumerate(chunk_bytes):
        if pieces and pieces[-1][1] + length <= PIECE_BYTES:
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + length)
        elif length:
            pieces.append((number * slot_bytes, length))
    return [(offset, page_aligned(length)) for offset, length in pieces] or [(0, page_aligned(slot_bytes))]


def _put(file: MeasuredFile, source: memoryview, place: tuple[int, int]) -> None:
    offset, length = place
    file.put(offset, source[:length])


def _page_aligned_memory(nbytes: int) -> memoryview:
    """Of bytes that a filesystem cannot shrink; begins at a page, as direct writes want it."""
    memory = np.empty(nbytes + PAGE_BYTES, np.uint8)
    start = -int(memory.ctypes.data) % PAGE_BYTES
    memory[start : start + nbytes] = np.frombuffer(np.random.default_rng(1).bytes(nbytes), np.uint8)
    return memory[start : start + nbytes].data
