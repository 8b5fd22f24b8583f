"""How one array's slabs become chunks: the tables that every task of an acquisition shares, and the task itself."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardwright.codecs.parameters import CodecParameters
from shardwright.kernels.encode import encode_chunks
from shardwright.kernels.write import write_slots
from shardwright.model.errors import WorkerError
from shardwright.shard.layout import PAGE_BYTES, ArrayLayout
from shardwright.storage.failpoints import reach
from shardwright.storage.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.array.grid import Grid
    from shardwright.array.spec import ArraySpec
    from shardwright.shard.open_shard import OpenShard

    from .workers import WorkerState


@dataclass(frozen=True)
class SlabDone:
    """A worker's report on chunks of one slab: ``error`` is set when they were not stored."""

    row: int
    stored_bytes: int
    error: Exception | None


class SlabEncoder:
    """Frozen after construction; shared by all workers without a lock."""

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        codec = CodecParameters.of(spec, grid.chunk_bytes)
        self.layout = ArrayLayout.of(grid, codec.max_encoded_bytes, spec.index_location == "start")
        self.grid = grid
        self._codec = codec.as_array()
        self._block_bytes = codec.block_bytes
        self._scratch_bytes = codec.scratch_bytes
        self._keep_empty = spec.write_empty_chunks
        plane = self.layout.plane
        self._fill_row = np.frombuffer(spec.fill_bytes() * (plane.row_bytes // spec.itemsize), np.uint8).copy()

    @property
    def chunks_per_slab(self) -> int:
        return len(self.layout.plane.file)

    def encode(self, frames: np.ndarray, slab: int, shards: list[OpenShard], first: int, stop: int, state: WorkerState) -> int:
        """Encode chunks [first, stop) of a slab into their slots and record them; returns the encoded bytes.

        ``frames`` int64[P]: address of each frame's pixels in storage order, 0 where none came.
        """
        plane, slot_bytes = self.layout.plane, self.layout.slot_bytes
        index_layer, slot_layer = self.layout.layer_of_slab(slab)
        part = slice(first, stop)
        file = plane.file[part]
        slot = slot_layer * plane.layer_slots[file] + plane.slot[part]
        entry = index_layer * plane.layer_entries + plane.entry[part]
        offset = np.array([shard.layout.data_start for shard in shards], np.int64)[file] + slot * slot_bytes
        mapped = [shard.slots_address for shard in shards]
        targets = self._mapped_slots(mapped, file, slot) if None not in mapped else state.slots(stop - first, slot_bytes)
        nbytes, forms, crcs = np.zeros(stop - first, np.int64), np.zeros(stop - first, np.uint8), np.zeros(stop - first, np.uint32)
        encode_chunks(
            frames,
            plane.frame_row_bytes,
            plane.geometry[part],
            targets,
            slot_bytes,
            plane.chunk_rows,
            plane.row_bytes,
            self._codec,
            self._block_bytes,
            self._keep_empty,
            self._fill_row,
            state.contexts.addresses,
            state.scratch(self._scratch_bytes),
            nbytes,
            forms,
            crcs,
        )
        if None in mapped:
            self._write(np.array([shard.descriptor for shard in shards], np.int64)[file], offset, targets, nbytes)
        for number, shard in enumerate(shards):
            mine = file == number
            shard.record(entry[mine], slot[mine], nbytes[mine])
        return int(nbytes.sum())

    def _mapped_slots(self, addresses: list[int | None], file: np.ndarray, slot: np.ndarray) -> np.ndarray:
        targets: np.ndarray = np.array(addresses, np.int64)[file] + slot * self.layout.slot_bytes
        return targets

    def _write(self, descriptors: np.ndarray, offsets: np.ndarray, addresses: np.ndarray, nbytes: np.ndarray) -> None:
        """From the worker's buffer into the files. Raises ``StorageError``."""
        with storage_errors("write chunks of", "a shard"):
            reach("slots.before_write")
            number = write_slots(descriptors, offsets, addresses, nbytes, PAGE_BYTES)
            if number:
                raise OSError(number, os.strerror(number))

    def task_ranges(self, chunks_per_task: int) -> list[tuple[int, int]]:
        """The chunk ranges that a slab is cut into, of about equal size."""
        tasks = math.ceil(self.chunks_per_slab / chunks_per_task)
        edges = [self.chunks_per_slab * i // tasks for i in range(tasks + 1)]
        return list(pairwise(edges))


@dataclass(frozen=True)
class SlabTask:
    """Chunks [first, stop) of one slab. ``frames`` is the slab table's row: it stays put until every task of the row has reported."""

    encoder: SlabEncoder
    frames: np.ndarray
    row: int
    slab: int
    first: int
    stop: int
    shards: list[OpenShard]
    report: Callable[[SlabDone], None]

    def run(self, state: WorkerState) -> None:
        try:
            stored_bytes = self.encoder.encode(self.frames, self.slab, self.shards, self.first, self.stop, state)
        except Exception as error:  # noqa: BLE001  (whatever it was, the acquisition must hear of it)
            self.report(SlabDone(self.row, 0, error))
        except BaseException as error:
            self.report(SlabDone(self.row, 0, WorkerError(f"a worker thread died: {error!r}")))  # nobody else would report this task
            raise
        else:
            self.report(SlabDone(self.row, stored_bytes, None))
