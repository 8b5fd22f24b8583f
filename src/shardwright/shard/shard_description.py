"""The description of a shard in its own file: what zarr.json says of the form of every shard of the array,
the place of this one in the grid, and the sum of its chunks. A lone file can be decoded by it.

    index at the end       | chunks | description | index |
    index at the start     | index | chunks | description |
    HDF5 at the same time  | index | zeros | description | HDF5, from the end of the user block on |

    description            | JSON | its bytes u32 | its crc32c u32 | "SWSHARD1" |        little-endian

It is found by its end alone. Nothing that it says counts before the index has been compared with it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import crc32c

from shardwright.model.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .sealed_shard import ReadIndex

# the fields of an array's zarr.json that say how its shards are read
FIELDS = ("data_type", "chunk_grid", "fill_value", "codecs", "dimension_names")
SHARD, SUM = "shard", "crc32c"
_MAGIC = b"SWSHARD1"
_FOOTER = struct.Struct("<II8s")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class ShardDescription:
    """A description that was found. ``start``: of its first byte; ``facts``: its JSON."""

    start: int
    facts: dict[str, Any]

    @property
    def fields(self) -> dict[str, Any]:
        """Those of a zarr.json."""
        return {name: self.facts[name] for name in FIELDS if name in self.facts}

    @property
    def shard(self) -> tuple[int, ...]:
        """The coordinates of the shard; empty if they are none."""
        found = self.facts.get(SHARD)
        is_place = isinstance(found, list) and all(type(n) is int and n >= 0 for n in found)
        return tuple(found) if is_place and found else ()

    @property
    def sum(self) -> int | None:
        """As ``shard_sum``; None if it says none."""
        found = self.facts.get(SUM)
        try:
            return int(found, 16) if isinstance(found, str) and len(found) == 8 else None
        except ValueError:
            return None


def encode_description(fields: Mapping[str, Any], shard: Sequence[int], value: int) -> bytes:
    """Returns the description of one shard, equally long for any ``value``: its ``shard_sum``. ``fields``:
    of the array's zarr.json."""
    facts = {**fields, SHARD: list(shard), SUM: f"{value:08x}"}
    text = json.dumps(facts, separators=(",", ":")).encode()
    return text + _FOOTER.pack(len(text), crc32c.crc32c(text), _MAGIC)


def description_before(end: int, read: Callable[[int, int], Any]) -> ShardDescription | None:
    """Returns the description that ends at offset ``end`` of a file, None if none does. ``read`` returns so
    many bytes from an offset, and raises as ``ReadFile.read``."""
    if end < _FOOTER.size:
        return None
    nbytes, expected, magic = _FOOTER.unpack(bytes(read(end - _FOOTER.size, _FOOTER.size)))
    start = end - _FOOTER.size - nbytes
    if magic != _MAGIC or nbytes > _MOST_BYTES or start < 0:
        return None
    text = bytes(read(start, nbytes))
    if crc32c.crc32c(text) != expected:
        return None
    try:
        facts = parse_json(text)
    except ValueError:
        return None
    return ShardDescription(start, facts) if isinstance(facts, dict) else None


def description_in(
    index: ReadIndex, read: Callable[[int, int], Any], user_block: int | None = None
) -> ShardDescription | None:
    """Returns the description of a shard, None if it has none. ``user_block``: where HDF5 begins in it, if
    it does. Raises as ``read``."""
    live = index.entries[index.sound]
    start, stop = index.data_range
    last = int((live["offset"] + live["nbytes"]).max(initial=start))
    # A shard that is packed without one has nothing behind its last chunk: nothing is read of it.
    for end in (stop, user_block or 0):
        if end > last or end == user_block:
            found = description_before(end, read)
            if found is not None and (end == user_block or found.start >= last):
                return found
    return None


def last_end(data: bytes) -> int:
    """Returns where the last description that may be in ``data`` ends, -1 if there is none."""
    at = data.rfind(_MAGIC)
    return at if at < 0 else at + len(_MAGIC)
