"""The plan of a packed shard: where each of its chunks goes. Pure arithmetic on index entries that were
checked. Shared by compaction and by moves, which pack shards on their way.

    index at the end:    | chunk | chunk | ... | chunk | index |
    index at the start:  | index | chunk | chunk | ... | chunk |
    without shards:      | chunk |

A shard that describes itself has its description behind the last chunk (``shard_description``).

Chunks follow each other in the chosen order without gaps. Absent chunks stay absent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import numpy.typing as npt

from shardwright.model.errors import ShardFormatError
from shardwright.shard.chunk_order import chunk_order
from shardwright.shard.index import EMPTY, empty_index
from shardwright.shard.shard_description import encode_description

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.read.store import StoredArray

Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]

LEFT_AS_IT_IS = "The shard is left as it is; `shardwright verify` lists all of its faults"


@dataclass(frozen=True)
class PackPlan:
    """The plan for one shard. The arrays have one element for each live chunk, in the order in which they are
    written.

    chunks          chunk numbers, row-major
    source_offset   where the chunk is now, -1 for one that is in no shard yet
    nbytes          its encoded bytes
    gap_bytes       unused bytes before and between the chunks as they are now, which packing saves. Chunks
                    that share bytes now will not
    description     behind the last chunk, if the shard is to describe itself; its sum may still be to come
    """

    array: StoredArray
    shard: tuple[int, ...]
    chunks: Int64s
    source_offset: Int64s
    nbytes: Int64s
    gap_bytes: int
    description: bytes = b""

    @classmethod
    def of(
        cls, array: StoredArray, shard_coordinates: tuple[int, ...], entries: npt.NDArray[np.void], order: str
    ) -> PackPlan:
        """``entries``: INDEX_ENTRY[chunks], without faults. Raises ``ConfigError`` for an
        unknown order."""
        chunks = chunk_order(order, array.shard_chunks)
        chunks = chunks[entries["offset"][chunks] != EMPTY]
        offsets, nbytes = (
            entries["offset"][chunks].astype(np.int64),
            entries["nbytes"][chunks].astype(np.int64),
        )
        gap_bytes = _gap_bytes(array.index.before_bytes, offsets, nbytes)
        return cls(array, shard_coordinates, chunks, offsets, nbytes, gap_bytes)

    @property
    def path(self) -> Path:
        """The path of the shard in the store."""
        return self.array.path / self.array.shard_key(self.shard)

    def with_description(self, value: int) -> PackPlan:
        """The same plan with the description that says this ``shard_sum``, as long as any."""
        return replace(self, description=encode_description(self.array.described, self.shard, value))

    def name(self, i: int) -> str:
        """For messages: the coordinates of the i-th chunk in the array's grid of inner chunks."""
        return "/".join(map(str, self.array.chunk_coordinates(self.shard, int(self.chunks[i]))))

    @property
    def data_start(self) -> int:
        return self.array.index.before_bytes

    @property
    def live_bytes(self) -> int:
        return int(self.nbytes.sum())

    @property
    def data_end(self) -> int:
        return self.data_start + self.live_bytes

    @property
    def target_offset(self) -> Int64s:
        """The offset of each chunk in the packed file."""
        ends: Int64s = self.data_start + np.cumsum(self.nbytes)
        return ends - self.nbytes

    @property
    def index_bytes(self) -> int:
        return self.array.index_bytes

    @property
    def index_offset(self) -> int:
        return self.array.index.offset(self.data_end + len(self.description))

    @property
    def file_bytes(self) -> int:
        return self.live_bytes + len(self.description) + self.index_bytes

    def segments(self, crcs: UInt32s | None = None) -> tuple[Int64s, UInt32s]:
        """The sizes of the parts of the packed file as they lie, and the crc32c of each. ``crcs``: of the
        chunks.

        The index is two parts: one that ends in its own crc32c has the same crc32c whatever it says.
        """
        index = self.array.index.encode(self.entries())
        halves = [half for half in (index[: len(index) // 2], index[len(index) // 2 :]) if half]
        described = [self.description] if self.description else []
        before, behind = (halves, described) if self.data_start else ([], [*described, *halves])
        sizes = [*map(len, before), *self.nbytes.tolist(), *map(len, behind)]
        chunks = np.zeros(len(self.chunks), np.uint32) if crcs is None else crcs
        values = [*map(crc32c.crc32c, before), *chunks.tolist(), *map(crc32c.crc32c, behind)]
        return np.array(sizes, np.int64), np.array(values, np.uint32)

    def segment_name(self, segment: int) -> str:
        """For messages, as ``segments`` counts them."""
        i = segment - 2 * (self.data_start > 0)
        return (
            f"chunk {self.array.chunk_name(self.shard, int(self.chunks[i]))}"
            if 0 <= i < len(self.chunks)
            else f"the index of {self.path}"
        )

    def entries(self) -> npt.NDArray[np.void]:
        """INDEX_ENTRY[chunks] of the packed shard."""
        entries = empty_index(self.array.chunks_per_shard)
        entries["offset"][self.chunks] = self.target_offset
        entries["nbytes"][self.chunks] = self.nbytes
        return entries

    def matches(self, file_bytes: int) -> bool:
        """Returns whether a file of this size is packed already: every chunk is at its offset, and the file
        holds nothing else."""
        return file_bytes == self.file_bytes and bool(np.array_equal(self.source_offset, self.target_offset))


def _gap_bytes(data_start: int, offsets: Int64s, nbytes: Int64s) -> int:
    """Bytes before the end of the last chunk that belong to no chunk."""
    order = np.argsort(offsets, kind="stable")
    reach = np.maximum.accumulate(np.concatenate([[data_start], (offsets + nbytes)[order]]))
    return int(np.maximum(0, offsets[order] - reach[:-1]).sum())


def chunk_error(
    array: StoredArray, shard_coordinates: tuple[int, ...], chunk: int, what: str
) -> ShardFormatError:
    """The error that names a chunk (its coordinates in the array's grid of inner chunks) and its shard."""
    return ShardFormatError(f"chunk {array.chunk_name(shard_coordinates, chunk)}: {what}", hint=LEFT_AS_IT_IS)


def parts_between(starts: Int64s, ends: Int64s, start: int, stop: int) -> slice:
    """The runs [starts[i], ends[i]) that have bytes in [start, stop). None is empty, and each begins where
    the one before ends."""
    return slice(int(np.searchsorted(ends, start, "right")), int(np.searchsorted(starts, stop, "left")))


def runs_of(nbytes: Int64s, most_bytes: int) -> Iterator[slice]:
    """Yields runs of chunks of about ``most_bytes`` together, of one chunk where that is longer."""
    number = (np.cumsum(nbytes) - 1) // most_bytes
    begin = 0
    while begin < number.size:
        stop = int(np.searchsorted(number, number[begin], "right"))
        yield slice(begin, stop)
        begin = stop
