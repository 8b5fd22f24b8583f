"""A shard that is to be packed: read in the order of the packed file, each chunk checksummed as it is read,
and checked as far as possible without decoding. Shared by compaction and by moves, which pack shards on their
way.

With an inner crc32c codec the check proves that a chunk's bytes are those that were encoded: the crc32c over
bytes and checksum together is one known number. Without it only the first bytes are checked: they must be a
header of this codec with the right sizes.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.codecs.decode import HEAD_BYTES, ChunkCodecs
from shardwright.codecs.parameters import BLOSC_HEADER_BYTES
from shardwright.disk.files import FileIdentity
from shardwright.kernels.file_io import FILE_ENDED, read_ranges, will_need
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.shard.index import CHECKSUM_BYTES, EMPTY
from shardwright.shard.shard_description import find_description

from .pack_plan import LEFT_AS_IT_IS, PackPlan, chunk_error, parts_between

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from shardwright.read.store import StoredArray
    from shardwright.shard.shard_description import ShardDescription

    from .pack_plan import Int64s, UInt32s

    UInt8s = npt.NDArray[np.uint8]

CRC_OF_BYTES_AND_CRC = 0x48674BC7  # the crc32c of any bytes followed by their own crc32c, little-endian
_SEEN_BYTES = 16  # of a chunk's front: Blosc's header, or a magic number


class SourceShard:
    """A sealed shard, open for reading: its ``file``, and its ``index``, which is sound. A context manager.
    ``path`` may be a symbolic link in the store; ``file.status`` is of the file behind it.

    Raises ``ShardFormatError`` for a shard that cannot be packed as it is, ``StorageError``.
    """

    def __init__(self, array: StoredArray, shard: tuple[int, ...]) -> None:
        self.array = array
        self.shard = shard
        sealed = self._sealed = array.open_shard(shard)
        self.file = sealed.file
        try:
            self.index = sealed.index
            for chunk in self.index.bad.tolist():
                self.index.check(chunk, array.chunk_name(shard, chunk), LEFT_AS_IT_IS)
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    @property
    def key(self) -> str:
        return self.array.shard_key(self.shard)

    @property
    def path(self) -> Path:
        return self.array.path / self.key

    @cached_property
    def description(self) -> ShardDescription | None:
        """The shard's description of itself, if it has one."""
        return find_description(self._sealed, self.array.described, self.shard)

    def is_packed(self, plan: PackPlan) -> bool:
        """Returns whether it is already as planned: it holds nothing else."""
        has_it = self.description is not None and self.description.is_of(self.array.described, self.shard)
        return plan.matches(self.file.nbytes) and has_it == bool(plan.description)

    @property
    def live_chunks(self) -> int:
        return self.index.live.size

    def pack_plan(self, order: str, *, trim: bool = False, describe: bool = False) -> PackPlan:
        """The plan to pack it. ``trim``: without chunks that lie wholly outside the array's shape.
        ``describe``: with a description, which it keeps if it has one."""
        entries = self.index.entries
        if trim:
            entries = entries.copy()
            entries[~self.array.chunks_in_shape(self.shard)] = (EMPTY, EMPTY)
        plan = PackPlan.of(self.array, self.shard, entries, order)
        return plan.with_description(0) if describe or self.description is not None else plan

    def is_cropped_whole(self) -> bool:
        """Returns whether the array was cropped and nothing of this shard is left in its shape."""
        inside, live = self.array.chunks_in_shape(self.shard), self.index.live
        return not inside.any() or bool(live.size and not inside[live].any())

    def read_ranges(self, offsets: Int64s, addresses: Int64s, nbytes: Int64s, crcs: UInt32s) -> None:
        """As the kernel of this name. Raises ``ShardFormatError``, ``StorageError``."""
        number = read_ranges(self.file.descriptor, offsets, addresses, nbytes, crcs)
        if number == FILE_ENDED:
            raise ShardFormatError(f"{self.path} was cut short while it was read")
        if number:
            raise StorageError(f"cannot read {self.path}: {os.strerror(number)}")

    def is_as_it_was(self) -> bool:
        """Returns whether the store still names the file that was opened, and it has not been written to
        since."""
        try:
            return FileIdentity.at(self.path) == self.file.identity and self.file.is_unchanged()
        except OSError:
            return False


class PackedBytes:
    """The chunks of a shard as one run of bytes, as they lie between ``data_start`` and ``data_end`` of the
    packed file.

    ``crcs``: uint32[live chunks], the crc32c of each as far as it was read.
    """

    def __init__(self, source: SourceShard, plan: PackPlan) -> None:
        self._source = source
        self._plan = plan
        self._starts = plan.target_offset
        self._ends = self._starts + plan.nbytes
        self.position = plan.data_start
        self.crcs: UInt32s = np.zeros(len(plan.chunks), np.uint32)

    @property
    def left_bytes(self) -> int:
        return self._plan.data_end - self.position

    def read_into(self, room: UInt8s) -> int:
        """Fill the front of ``room`` with the bytes that follow; returns how many. Raises
        ``ShardFormatError`` for a bad chunk, ``StorageError``."""
        start, stop = self.position, min(self.position + room.size, self._plan.data_end)
        part = parts_between(self._starts, self._ends, start, stop)
        begin, end = np.maximum(self._starts[part], start), np.minimum(self._ends[part], stop)
        self._look_ahead(stop, stop + room.size)
        offsets: Any = self._plan.source_offset[part] + (begin - self._starts[part])
        self._source.read_ranges(offsets, room.ctypes.data + begin - start, end - begin, self.crcs[part])
        self.position = stop
        if self._source.array.codecs.checksum:
            self._check_crcs(part, stop)
        self._check_heads(part, room[: stop - start], start)
        return stop - start

    def _look_ahead(self, start: int, stop: int) -> None:
        """Let the disk fetch what comes next: the kernel does not read ahead by itself from slot to slot."""
        part = parts_between(self._starts, self._ends, start, stop)
        will_need(self._source.file.descriptor, self._plan.source_offset[part], self._plan.nbytes[part])

    def _check_crcs(self, part: slice, stop: int) -> None:
        """Check the chunks that were read to their end."""
        wrong = (self._ends[part] <= stop) & (self.crcs[part] != CRC_OF_BYTES_AND_CRC)
        for i in np.flatnonzero(wrong).tolist():
            raise self._error(part.start + i, "crc32c of the chunk does not match")

    def _check_heads(self, part: slice, piece: UInt8s, start: int) -> None:
        """Check the chunks that begin in this piece. One that looks wrong, or whose first bytes are not all
        in it, is read again by itself."""
        starts, nbytes = self._starts[part], self._plan.nbytes[part]
        begun = starts >= start
        in_sight = begun & (nbytes >= _SEEN_BYTES) & (starts - start + _SEEN_BYTES <= piece.size)
        doubtful = begun.copy()
        heads = piece[(starts[in_sight] - start)[:, np.newaxis] + np.arange(_SEEN_BYTES)]
        doubtful[in_sight] = ~_plausible_heads(heads, nbytes[in_sight], self._source.array)
        for i in np.flatnonzero(doubtful).tolist():
            self._describe(part.start + i)

    def _describe(self, i: int) -> None:
        """Raises ``ShardFormatError`` when chunk i of the plan does not begin as it must."""
        array, nbytes = self._source.array, int(self._plan.nbytes[i])
        head = bytearray(min(HEAD_BYTES, nbytes))
        self._source.file.read_into(int(self._plan.source_offset[i]), memoryview(head))
        try:
            array.describe(head, nbytes)
        except ShardFormatError as error:
            raise self._error(i, str(error)) from None
        codecs = array.codecs
        if codecs.name == "none" and nbytes != codecs.max_encoded_bytes(array.chunk_bytes):
            raise self._error(i, f"uncompressed chunk has the wrong length: {nbytes} bytes")

    def _error(self, i: int, what: str) -> ShardFormatError:
        return chunk_error(self._source.array, self._source.shard, int(self._plan.chunks[i]), what)


def _plausible_heads(heads: UInt8s, nbytes: Int64s, array: StoredArray) -> npt.NDArray[np.bool_]:
    """bool[n]: whether uint8[n, _SEEN_BYTES] begin chunks of ``nbytes`` of this array, for all of them at
    once."""
    if not isinstance(array.codecs, ChunkCodecs):
        return np.ones(len(nbytes), np.bool_)
    encoded = nbytes - (CHECKSUM_BYTES if array.codecs.checksum else 0)
    if array.codecs.compressor is None:
        return np.asarray(encoded == array.chunk_bytes)
    if array.codecs.compressor == "blosc":
        sizes = np.ascontiguousarray(heads[:, 4:16]).view("<u4")
        flags = heads[:, 2]
        sound = (
            (heads[:, 0] == 2)
            & (flags & 0x08 == 0)
            & (flags & 0x05 != 0x05)
            & (flags >> 5 <= 4)
            & (heads[:, 3] > 0)
        )
        sound &= (
            (sizes[:, 0] == array.chunk_bytes)
            & (sizes[:, 1] > 0)
            & (sizes[:, 1] <= array.chunk_bytes)
            & (sizes[:, 2] == encoded)
        )
        stored: npt.NDArray[np.bool_] = flags & 0x02 != 0
        return np.asarray(sound & (~stored | (encoded == array.chunk_bytes + BLOSC_HEADER_BYTES)))
    magic = b"\x28\xb5\x2f\xfd" if array.codecs.compressor == "zstd" else b"\x1f\x8b\x08"
    return np.asarray((heads[:, : len(magic)] == np.frombuffer(magic, np.uint8)).all(axis=1))
