"""The description of a shard in its own file: what zarr.json says of the form of every shard of the array,
the place of this one in the grid, and the sum of its chunks. A lone file can be decoded by it.

    index at the end       | chunks | description | index |
    index at the start     | index | chunks | description |
    HDF5 at the same time  | index | zeros | description | HDF5, from the end of the user block on |

    description            | JSON | its bytes u32 | its crc32c u32 | "SWSHARD1" |        little-endian

It is found by its end alone. Nothing that it says counts before the index has been compared with it. A shard
that is an HDF5 file as well always has one: by it a file that we made is told from any other HDF5 file.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import crc32c

from shardwright.array.metadata import with_index_at_start
from shardwright.model.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardwright.disk.read_file import ReadFile

    from .sealed_shard import SealedShard

# the fields of an array's zarr.json that say how its shards are read
FIELDS = ("data_type", "chunk_grid", "fill_value", "codecs", "dimension_names")
SHARD, SUM = "shard", "crc32c"
MAGIC = b"SWSHARD1"
HDF5_NAME = "acquisition.h5"  # of the file over all shards that are HDF5 files, in the store
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_LEAST_USER_BLOCK = 512
_FOOTER = struct.Struct("<II8s")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class ShardDescription:
    """A description that was found. ``start``: of its first byte; ``facts``: its JSON; ``user_block``: where
    HDF5 begins in the file, 0 if it is no HDF5 file."""

    start: int
    facts: dict[str, Any]
    user_block: int = 0

    def is_of(self, fields: Mapping[str, Any], shard: Sequence[int], value: int | None = None) -> bool:
        """Returns whether it is what a shard with this ``shard_sum`` says of itself; None for any sum."""
        wanted = facts_of(with_index_at_start(fields) if self.user_block else fields, shard, value or 0)
        return wanted == (self.facts if value is not None else {**self.facts, SUM: wanted[SUM]})


def facts_of(fields: Mapping[str, Any], shard: Sequence[int], value: int) -> dict[str, Any]:
    """Returns the JSON of a description. ``fields``: of the array's zarr.json; ``value``: a ``shard_sum``."""
    return {**fields, SHARD: list(shard), SUM: f"{value:08x}"}


def encode_description(fields: Mapping[str, Any], shard: Sequence[int], value: int) -> bytes:
    """Returns the description of one shard, equally long for any ``value``."""
    text = json.dumps(facts_of(fields, shard, value), separators=(",", ":")).encode()
    return text + _FOOTER.pack(len(text), crc32c.crc32c(text), MAGIC)


def user_block_bytes(nbytes: int) -> int:
    """Returns the size of the least user block of HDF5 that holds so many bytes."""
    return max(_LEAST_USER_BLOCK, 1 << (nbytes - 1).bit_length())


def description_before(end: int, read: Callable[[int, int], Any]) -> ShardDescription | None:
    """Returns the description that ends at offset ``end`` of a file, None if none does. ``read`` returns so
    many bytes from an offset, and raises as ``ReadFile.read``."""
    if end < _FOOTER.size:
        return None
    nbytes, expected, magic = _FOOTER.unpack(bytes(read(end - _FOOTER.size, _FOOTER.size)))
    start = end - _FOOTER.size - nbytes
    if magic != MAGIC or nbytes > _MOST_BYTES or start < 0:
        return None
    text = bytes(read(start, nbytes))
    if crc32c.crc32c(text) != expected:
        return None
    try:
        facts = parse_json(text)
    except ValueError:
        return None
    return ShardDescription(start, facts) if isinstance(facts, dict) else None


def find_description(
    sealed: SealedShard[ReadFile], fields: Mapping[str, Any], shard: Sequence[int]
) -> ShardDescription | None:
    """Returns the description of a sealed shard, None if it has none. Raises as ``SealedShard.index``."""
    if sealed.form.location == "none":
        return None
    index, file = sealed.index, sealed.file
    in_hdf5 = encode_description(with_index_at_start(fields), shard, 0)
    block = user_block_bytes(sealed.form.nbytes + len(in_hdf5))
    is_hdf5 = block + len(HDF5_SIGNATURE) <= file.nbytes and file.read(block, 8) == HDF5_SIGNATURE
    if is_hdf5 and (found := description_before(block, file.read)) is not None:
        found = replace(found, user_block=block)
        return found if found.is_of(fields, shard) else None
    live = index.entries[index.sound]
    start, stop = index.data_range
    last = int((live["offset"] + live["nbytes"]).max(initial=start))
    # A shard that is packed without one has nothing behind its last chunk: nothing is read of it.
    found = description_before(stop, file.read) if stop > last else None
    return found if found is not None and found.start >= last else None
