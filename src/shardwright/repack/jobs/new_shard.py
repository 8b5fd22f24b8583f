"""A shard that did not exist before, made region by region in bounded memory.

    plan_regions: how much of the shard at once
    make_shard:   for each region: fill_region ──▶ encode ──▶ NewShard.append
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.codecs.parameters import CHECKSUM_BYTES
from shardwright.kernels.file_io import FILE_ENDED, read_ranges, write_slots
from shardwright.model.errors import (
    BudgetError,
    CodecError,
    OutputExistsError,
    ShardFormatError,
    StorageError,
)
from shardwright.read.shard_file import ShardFile
from shardwright.repack.runtime.work_folder import new_working_path
from shardwright.shard.index import empty_index
from shardwright.shard.shard_sums import ShardSums, shard_sum
from shardwright.storage import beneath
from shardwright.storage.failpoints import reach
from shardwright.storage.files import (
    AtomicFile,
    DurableFolders,
    raise_errno,
    storage_errors,
)
from shardwright.storage.working_file import PIECE_BYTES

from .chunk_encoder import chunk_encoder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from shardwright.read.store import StoredArray
    from shardwright.repack.runtime.throttle import Throttle

    from .chunk_encoder import EncodedChunks


DEFAULT_MEMORY_BYTES = 512 << 20

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RegionPlan:
    """``shape``: of one region, in elements of the new array. ``read_factor``: how often a source element is
    decoded, on average, at most. ``peak_bytes``: the most that one task holds in arrays, beside the
    interpreter and its libraries."""

    shape: Shape
    peak_bytes: int
    read_factor: float


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
            return RegionPlan(shape_of(counts), peak_bytes(shape_of(counts)), math.prod(factors))
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
        self.target = array.path / array.shard_key(coordinates)
        self._path = new_working_path(work_folder, array.shard_key(coordinates))
        self._throttle = throttle
        self._entries = empty_index(array.chunks_per_shard)
        self._crcs = np.zeros(array.chunks_per_shard, np.uint32)
        self._order: list[int] = []  # chunk numbers as they lie in the file
        self._position = array.index.before_bytes
        self._file: AtomicFile | None = None  # from the first chunk on

    @staticmethod
    def peak_bytes(array: StoredArray) -> int:
        """The memory that it holds: index, checksums and order, twice while they are encoded and checked, and
        one chunk that is read back."""
        return 8 * array.index_bytes + array.codecs.max_encoded_bytes(array.chunk_bytes)

    @property
    def chunks(self) -> int:
        return len(self._order)

    def append(self, chunks: EncodedChunks) -> None:
        """Write chunks behind those that are there. Raises ``StorageError``, ``StorageFullError``."""
        live = chunks.nbytes > 0
        nbytes, numbers = chunks.nbytes[live], chunks.numbers[live]
        if not nbytes.size:
            return
        total = int(nbytes.sum())
        self._throttle.take(total)
        offsets = self._position + np.cumsum(nbytes) - nbytes
        if self._file is None:
            self._file = AtomicFile(self._path, "compact")
        with storage_errors("write", self._path):
            reach("compact.before_write")
            raise_errno(
                write_slots(
                    np.full(nbytes.size, self._file.descriptor, np.int64),
                    offsets,
                    chunks.addresses[live],
                    nbytes,
                    1,
                )
            )
        self._entries["offset"][numbers] = offsets
        self._entries["nbytes"][numbers] = nbytes
        self._crcs[numbers] = chunks.crcs[live]
        self._order += numbers.tolist()
        self._position += total

    def publish(self) -> int:
        """Complete the shard and give it its name, durably. Returns the bytes of the file, 0 when there is
        none.

        Raises ``StorageError``, ``ShardFormatError`` when what the disk gives back is not what was written,
        ``OutputExistsError``.
        """
        key = self.target.relative_to(self.array.path).as_posix()
        if self._file is None:
            ShardSums(self.array.path).append({key: None})
            return 0
        index = self.array.index
        with storage_errors("write", self._path):
            reach("compact.before_index")
        self._file.write(index.offset(self._position), index.encode(self._entries))
        self._file.sync(forget=True)
        nbytes = os.fstat(self._file.descriptor).st_size
        self._check()
        DurableFolders(self.array.path).make(self.target.parent)
        order = np.array(self._order, np.int64)
        ShardSums(self.array.path).append(
            {key: shard_sum(order, self._entries["nbytes"][order], self._crcs[order])}
        )
        self._file.take_name(self.target)
        return nbytes

    def _check(self) -> None:
        """Compare what the disk gives back with the encoder's checksums."""
        inner = CHECKSUM_BYTES if self.array.codecs.checksum else 0
        with ShardFile(self.array, self._path) as file:
            if file.read_index().tobytes() != self._entries.tobytes():
                raise ShardFormatError(
                    f"the index of {self._path} reads back differently",
                    hint="The disk returns other bytes than were written; check it first",
                )
            order = np.array(self._order, np.int64)
            offsets, nbytes = (self._entries[name][order].astype(np.int64) for name in ("offset", "nbytes"))
            # one for all of them: only their checksums are wanted
            room = np.empty(int(nbytes.max()), np.uint8)
            found = np.zeros(order.size, np.uint32)
            for part in _pieces(nbytes):
                self._throttle.take(int(nbytes[part].sum()))
                rooms = np.full(part.stop - part.start, room.ctypes.data, np.int64)
                error = read_ranges(file.fileno(), offsets[part], rooms, nbytes[part] - inner, found[part])
                if error:
                    raise StorageError(
                        f"cannot read {self._path} back: "
                        f"{'it was cut' if error == FILE_ENDED else os.strerror(error)}"
                    )
        for i in np.flatnonzero(found != self._crcs[order]).tolist():
            raise ShardFormatError(
                f"chunk {order[i]} of {self._path} reads back differently",
                expected=f"crc32c {self._crcs[order[i]]:08x}",
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
    """Whether an earlier run made this shard: only complete ones have their name."""
    return beneath.is_file(array.path / array.shard_key(coordinates))


def _pieces(nbytes: npt.NDArray[np.int64]) -> Iterator[slice]:
    """Runs of chunks of about ``PIECE_BYTES`` together, of one chunk where that is longer."""
    number = (np.cumsum(nbytes) - 1) // PIECE_BYTES
    begin = 0
    while begin < number.size:
        stop = int(np.searchsorted(number, number[begin], "right"))
        yield slice(begin, stop)
        begin = stop


# Fills an array with the values of the region that begins at these coordinates of the new array.
FillRegion = Callable[[tuple[int, ...], npt.NDArray[Any]], None]


def make_shard(
    array: StoredArray,
    shard: tuple[int, ...],
    plan: RegionPlan,
    fill_region: FillRegion,
    work_folder: Path,
    throttle: Throttle,
    *,
    lossy: bool,
) -> dict[str, Any]:
    """Make a shard unless it is there. Returns the result of the task, without the bytes that were read.
    ``lossy``: its codecs may round. Raises ``ValuesChangedError`` if they do more than that."""
    result = {"ok": True, "peak_bytes": plan.peak_bytes, "chunks": 0, "file_bytes": 0, "bytes_written": 0}
    if is_made(array, shard):
        return {**result, "skipped": True}
    low = tuple(i * s for i, s in zip(shard, array.shard_shape, strict=True))
    high = tuple(min(a + s, n) for a, s, n in zip(low, array.shard_shape, array.shape, strict=True))
    extent = tuple(min(r, b - a) for r, a, b in zip(plan.shape, low, high, strict=True))
    # one for all regions: fresh memory is expensive
    memory = np.empty(np.prod(extent, dtype=np.int64), array.dtype)
    encoder = chunk_encoder(array, lossy=lossy)
    try:
        with NewShard(array, shard, work_folder, throttle) as new:
            for start in itertools.product(
                *(range(a, b, r) for a, b, r in zip(low, high, plan.shape, strict=True))
            ):
                shape = tuple(min(r, b - a) for r, a, b in zip(plan.shape, start, high, strict=True))
                values = memory[: np.prod(shape, dtype=np.int64)].reshape(shape)
                fill_region(start, values)
                first_chunk = tuple(
                    (a - b) // c for a, b, c in zip(start, low, array.chunk_shape, strict=True)
                )
                for chunks in encoder.encode(values, first_chunk):
                    new.append(chunks)
            try:
                nbytes = new.publish()
            except OutputExistsError as error:
                if error.got != str(new.target):
                    raise
                # another worker was given the same task again and was first: its shard holds the same values
                return {**result, "skipped": True}
            return {**result, "chunks": new.chunks, "file_bytes": nbytes, "bytes_written": nbytes}
    except CodecError as error:
        error.message = f"{array.shard_key(shard)}, {error.message}"  # the array's folder is gone afterwards
        raise
    finally:
        encoder.close()
