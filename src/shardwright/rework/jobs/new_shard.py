"""A shard that did not exist before, made of another array region by region in bounded memory.

    plan_shards:  how much of the shard at once
    make_shard:   for each region: MadeValues ──▶ encode ──▶ NewShard.append
                  or, of the same chunks in other shards: CopiedChunks ──▶ NewShard.append
    publish:      index ──▶ sync ──▶ every chunk and the index read back from the disk, crc32c compared
                  ──▶ rename, never over an existing file

A region is a box of whole chunks of the new shard. A source chunk that reaches past a region is decoded once
for each region that it touches, so larger regions read less. In the working file the chunks follow each other
as they come. A shard of which every chunk is absent gets no file, but a line in the array's record: it reads
as fill value.
"""

from __future__ import annotations

import itertools
import math
import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    AtomicFile,
    DurableFolders,
    raise_errno,
    storage_errors,
    sync_folders_above,
)
from shardwright.disk.working_file import PIECE_BYTES
from shardwright.kernels.downsample import shape_above
from shardwright.kernels.file_io import FILE_ENDED, read_ranges, write_slots
from shardwright.model.errors import (
    BudgetError,
    CodecError,
    OutputExistsError,
    ShardFormatError,
    StorageError,
)
from shardwright.read.store import parse_array
from shardwright.rework.chunk_encoder import chunk_encoder, encoder_peak_bytes
from shardwright.rework.made_values import MadeValues
from shardwright.rework.pack_plan import PackPlan, runs_of
from shardwright.rework.region_reader import RegionReader
from shardwright.rework.runtime.work_folder import new_working_path
from shardwright.shard.index import CHECKSUM_BYTES
from shardwright.shard.sealed_shard import SealedShard
from shardwright.shard.shard_sums import ShardSums, shard_sum

from .copied_chunks import CopiedChunks, are_copied

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from shardwright.array.spec import Method
    from shardwright.read.store import StoredArray
    from shardwright.rework.chunk_encoder import EncodedChunks
    from shardwright.rework.pack_plan import UInt32s
    from shardwright.rework.runtime.throttle import Throttle


DEFAULT_MEMORY_BYTES = 512 << 20

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RegionPlan:
    """The size of the regions by which a shard is made, and their cost. ``shape``: of one region, in elements
    of the new array. ``peak_bytes``: the most that one task holds in arrays, beside the interpreter and its
    libraries."""

    shape: Shape
    peak_bytes: int


def plan_regions(
    chunk: Shape,
    shard_chunks: Shape,
    source_chunk: tuple[float, ...],
    peak_bytes: Callable[[Shape], int],
    limit_bytes: int,
) -> RegionPlan:
    """The largest regions from which reading profits. ``source_chunk``: shape of a source chunk, in elements
    of the new array. ``peak_bytes``: the cost of a region of a given shape, which grows with it. Raises
    ``BudgetError`` when not even one chunk fits ``limit_bytes``."""
    counts = [1] * len(chunk)

    def shape_of(counts: list[int]) -> Shape:
        return tuple(n * c for n, c in zip(counts, chunk, strict=True))

    least = peak_bytes(shape_of(counts))
    if least > limit_bytes:
        raise BudgetError(
            "one chunk of the new array does not fit the memory of one worker",
            expected=f"{least} bytes or more",
            got=limit_bytes,
        )
    while True:
        factors = [_read_factor(n * c, s) for n, c, s in zip(counts, chunk, source_chunk, strict=True)]
        best, gain = counts, 1.0
        for axis, (count, most) in enumerate(zip(counts, shard_chunks, strict=True)):
            for longer in {min(2 * count, most), most} - {count}:
                grown = [*counts[:axis], longer, *counts[axis + 1 :]]
                saved = factors[axis] / _read_factor(longer * chunk[axis], source_chunk[axis])
                if saved > gain and peak_bytes(shape_of(grown)) <= limit_bytes:
                    best, gain = grown, saved
        if best is counts:
            return RegionPlan(shape_of(counts), peak_bytes(shape_of(counts)))
        counts = best


def _read_factor(length: int, source: float) -> float:
    """Source elements that are decoded for each element of a region of this length, at most."""
    if length % source == 0:
        return 1.0
    touched = source if source % length == 0 else (math.ceil((length - 1) / source) + 1) * source
    return touched / length


class NewShard:
    """A shard that is being written. Owns its working file until ``publish``. A context manager: leaving it
    earlier deletes the file."""

    def __init__(
        self, array: StoredArray, coordinates: tuple[int, ...], work_folder: Path, throttle: Throttle
    ) -> None:
        """``work_folder``: on the array's filesystem. Nothing is made yet."""
        self.array = array
        self.coordinates = coordinates
        self._path = new_working_path(work_folder, array.shard_key(coordinates))
        self._throttle = throttle
        self._written: list[EncodedChunks] = []  # as they lie in the file
        self._position = array.index.before_bytes
        self._file: AtomicFile | None = None  # from the first chunk on

    @staticmethod
    def peak_bytes(array: StoredArray) -> int:
        """The memory that it holds: index, checksums and order, twice while they are encoded and checked, and
        one chunk that is read back."""
        return 8 * array.index_bytes + array.codecs.max_encoded_bytes(array.chunk_bytes)

    @property
    def chunks(self) -> int:
        return sum(len(chunks.numbers) for chunks in self._written)

    @property
    def target(self) -> Path:
        return self.array.path / self.array.shard_key(self.coordinates)

    def append(self, chunks: EncodedChunks) -> None:
        """Write chunks behind those that are there. Raises ``StorageError``, ``StorageFullError``."""
        chunks = chunks.live()
        if not chunks.nbytes.size:
            return
        total = int(chunks.nbytes.sum())
        self._throttle.take(total)
        offsets = self._position + np.cumsum(chunks.nbytes) - chunks.nbytes
        if self._file is None:
            self._file = AtomicFile(self._path, "compact")
        with storage_errors("write", self._path):
            reach("compact.before_write")
            raise_errno(
                write_slots(
                    np.full(offsets.size, self._file.descriptor, np.int64),
                    offsets,
                    chunks.addresses,
                    chunks.nbytes,
                    1,
                )
            )
        self._written.append(chunks)
        self._position += total

    def publish(self) -> int:
        """Complete the shard and give it its name, durably. Returns the bytes of the file, 0 when there is
        none.

        Raises ``StorageError``, ``ShardFormatError`` when what the disk gives back is not what was written,
        ``OutputExistsError``.
        """
        key = self.array.shard_key(self.coordinates)
        if self._file is None:
            ShardSums(self.array.path).append({key: None})
            return 0
        numbers, nbytes, crcs = (
            np.concatenate([getattr(chunks, name) for chunks in self._written])
            for name in ("numbers", "nbytes", "crcs")
        )
        plan = PackPlan(self.array, self.coordinates, numbers, np.full_like(numbers, -1), nbytes, 0)
        with storage_errors("write", self._path):
            reach("compact.before_index")
        self._file.write(plan.index_offset, self.array.index.encode(plan.entries()))
        self._file.sync(forget=True)
        self._check(plan, crcs)
        DurableFolders(self.array.path).make(self.target.parent)
        ShardSums(self.array.path).append({key: shard_sum(numbers, nbytes, crcs)})
        self._file.take_name(self.target)
        return plan.file_bytes

    def _check(self, plan: PackPlan, crcs: UInt32s) -> None:
        """Compare what the disk gives back with the encoder's checksums."""
        # as ``data_crc``, in the kernel, which sums what it reads
        inner = CHECKSUM_BYTES if self.array.codecs.checksum else 0
        with SealedShard.open(self._path, self.array.index) as sealed:
            if sealed.entries.tobytes() != plan.entries().tobytes():
                raise ShardFormatError(
                    f"the index of {self._path} reads back differently",
                    hint="The disk returns other bytes than were written; check it first",
                )
            offsets, nbytes = plan.target_offset, plan.nbytes
            # one for all of them: only their checksums are wanted
            room = np.empty(int(nbytes.max()), np.uint8)
            found = np.zeros(nbytes.size, np.uint32)
            for part in runs_of(nbytes, PIECE_BYTES):
                self._throttle.take(int(nbytes[part].sum()))
                rooms = np.full(part.stop - part.start, room.ctypes.data, np.int64)
                error = read_ranges(
                    sealed.file.descriptor, offsets[part], rooms, nbytes[part] - inner, found[part]
                )
                if error:
                    raise StorageError(
                        f"cannot read {self._path} back: "
                        f"{'it was cut' if error == FILE_ENDED else os.strerror(error)}"
                    )
        for i in np.flatnonzero(found != crcs).tolist():
            raise ShardFormatError(
                f"chunk {plan.name(i)} of {self._path} reads back differently",
                expected=f"crc32c {crcs[i]:08x}",
                got=f"{found[i]:08x}",
                hint="The disk returns other bytes than were written; check it first",
            )

    def __enter__(self) -> NewShard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.discard()


def is_made(array: StoredArray, coordinates: tuple[int, ...]) -> bool:
    """Returns whether an earlier run made this shard: only complete ones have their name."""
    return beneath.is_file(array.path / array.shard_key(coordinates))


def plan_shards(
    source: StoredArray,
    target: StoredArray,
    factors: Shape,
    method: Method | None,
    memory_bytes: int,
) -> RegionPlan:
    """The regions in which each shard of ``target`` is made. ``factors``, ``method``: as ``MadeValues`` takes
    them. Raises ``BudgetError``."""
    fixed = RegionReader.peak_bytes(source) + encoder_peak_bytes(target) + NewShard.peak_bytes(target)

    def peak_bytes(shape: Shape) -> int:
        inside = tuple(map(min, shape, target.shape))
        values = math.prod(inside) * target.dtype.itemsize
        return fixed + values + MadeValues.peak_bytes(source, factors, method, inside)

    reach = tuple(c / f for c, f in zip(source.chunk_shape, factors, strict=True))
    return plan_regions(target.chunk_shape, target.shard_chunks, reach, peak_bytes, memory_bytes)


def make_shard(task: dict[str, Any], throttle: Throttle) -> dict[str, Any]:
    """Do the task {kind: "make", source, array, shard, factors, method, work, memory_bytes, lossy}: make a
    shard unless it is there. ``source``, ``array``: folders of the old and the new array; ``shard``:
    coordinates of the new shard; ``factors``, ``method``: as ``MadeValues`` takes them; ``work``: the folder
    for its working file; ``lossy``: its codecs may round.

    The result adds chunks, file_bytes and peak_bytes. Raises ``ValuesChangedError`` for codecs that do more
    than round, ``ShardFormatError``, ``StorageError``.
    """
    source, target = parse_array(Path(task["source"])), parse_array(Path(task["array"]))
    shard, factors, method = tuple(task["shard"]), tuple(task["factors"]), task["method"]
    if target.shape != shape_above(source.shape, factors) or source.dtype != target.dtype:
        raise ShardFormatError(
            "the new array has another shape or dtype",
            expected=(shape_above(source.shape, factors), source.dtype),
            got=(target.shape, target.dtype),
        )
    plan = plan_shards(source, target, factors, method, task["memory_bytes"])
    result = {"ok": True, "peak_bytes": plan.peak_bytes, "chunks": 0, "file_bytes": 0, "bytes_written": 0}
    if is_made(target, shard):
        sync_folders_above(target.path, target.shard_key(shard))  # its worker may have died right then
        return {**result, "skipped": True}
    values = (
        CopiedChunks(source, target, shard, throttle)
        if are_copied(source, target, method)
        else MadeValues(source, factors, method, throttle)
    )
    try:
        with NewShard(target, shard, Path(task["work"]), throttle) as new:
            if isinstance(values, CopiedChunks):
                for chunks in values.read():
                    new.append(chunks)
            else:
                _fill(new, plan, values, lossy=task["lossy"])
            try:
                nbytes = new.publish()
            except OutputExistsError as error:
                if error.got != str(new.target):
                    raise
                # another worker was given the same task again and was first: its shard holds the same values
                sync_folders_above(target.path, target.shard_key(shard))
                return {**result, "skipped": True, "bytes_read": values.bytes_read}
    except CodecError as error:
        error.message = f"{target.shard_key(shard)}, {error.message}"  # the array's folder is gone afterwards
        raise
    made = {"chunks": new.chunks, "file_bytes": nbytes, "bytes_written": nbytes}
    return {**result, **made, "bytes_read": values.bytes_read}


def _fill(new: NewShard, plan: RegionPlan, values: MadeValues, *, lossy: bool) -> None:
    """Append the chunks of all regions of a shard."""
    array = new.array
    low = tuple(i * s for i, s in zip(new.coordinates, array.shard_shape, strict=True))
    high = tuple(min(a + s, n) for a, s, n in zip(low, array.shard_shape, array.shape, strict=True))
    extent = tuple(min(r, b - a) for r, a, b in zip(plan.shape, low, high, strict=True))
    # one for all regions: fresh memory is expensive
    memory = np.empty(np.prod(extent, dtype=np.int64), array.dtype)
    starts = itertools.product(*(range(a, b, r) for a, b, r in zip(low, high, plan.shape, strict=True)))
    with closing(values), closing(chunk_encoder(array, lossy=lossy)) as encoder:
        for start in starts:
            shape = tuple(min(r, b - a) for r, a, b in zip(plan.shape, start, high, strict=True))
            region = memory[: np.prod(shape, dtype=np.int64)].reshape(shape)
            values.read(start, region)
            first_chunk = tuple((a - b) // c for a, b, c in zip(start, low, array.chunk_shape, strict=True))
            for chunks in encoder.encode(region, first_chunk):
                new.append(chunks)
