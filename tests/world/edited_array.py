"""The array whose shards are edited: how it is made, and what readers find in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.shard.index import EMPTY, empty_index
from shardwright.shard.shard_sums import data_crc

from .edit_story import ROWS

if TYPE_CHECKING:
    from shardwright.disk.read_file import ReadFile
    from shardwright.read.store import StoredArray

    from .edit_story import Layout


def document_of(layout: Layout) -> dict[str, Any]:
    """The metadata of the array."""
    little, check = {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}
    inner = [little, *_COMPRESSORS[layout.codec], *[check] * layout.chunk_checksum]
    sharding = {
        "chunk_shape": [ROWS, layout.width],
        "codecs": inner,
        "index_codecs": [little, *[check] * layout.index_checksum],
        "index_location": layout.index,
    }
    shard_shape = [layout.shard_rows, layout.width]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [layout.shards * layout.shard_rows, layout.width],
        "dimension_names": ["y", "x"],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
    }


_BLOSC = {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}
_COMPRESSORS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "blosc": [{"name": "blosc", "configuration": _BLOSC}],
    "zstd": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
    "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
}


def laid_out(
    array: StoredArray, chunks: dict[int, bytes | None], layout: Layout
) -> tuple[bytes, list[int], list[int], list[int]]:
    """The bytes of a shard with gaps, and of each chunk that it has: number, bytes, crc32c without an
    inner one."""
    at_start = layout.index == "start"
    data = bytearray(array.index_bytes * at_start)
    entries = empty_index(layout.chunks)
    numbers, sizes, crcs = [], [], []
    for number, chunk in chunks.items():
        if chunk is None:
            continue
        data += bytes(layout.gaps[number])
        entries[number] = (len(data), len(chunk))
        data += chunk
        numbers.append(number)
        sizes.append(len(chunk))
        crcs.append(data_crc(chunk, has_inner=array.codecs.checksum))
    index = array.index.encode(entries)
    if at_start:
        data[: len(index)] = index
    else:
        data += index
    return bytes(data), numbers, sizes, crcs


class Held:
    """A reader that has a shard open, and its index. ``rows``: as it found them; ``named``: by edits since,
    of which it may find anything."""

    def __init__(
        self, array: StoredArray, file: ReadFile, entries: np.ndarray, rows: list[int | None], named: set[int]
    ) -> None:
        self.array, self.file, self.entries, self.rows, self.named = array, file, entries, rows, named

    def look(self, value_of: dict[bytes, int]) -> str | None:
        """Returns what is wrong."""
        found = [v for entry in self.entries for v in read(self.array, self.file, entry, value_of)]
        for row, (now, then) in enumerate(zip(found, self.rows, strict=True)):
            if row not in self.named and now != then:
                return f"a reader that holds a shard finds {now} in row {row}, that had {then} and no edit"
        return None


def read(array: StoredArray, file: ReadFile, entry: np.void, value_of: dict[bytes, int]) -> list[int | None]:
    """The values of the rows of a chunk; None if it cannot be read, -1: pixels that nobody wrote."""
    if int(entry["offset"]) == EMPTY:
        return [0] * ROWS
    try:
        data = file.read(int(entry["offset"]), int(entry["nbytes"]))
        values = array.decode(data, np.empty(array.chunk_bytes, np.uint8))
    except (ShardFormatError, OverflowError):
        return [None] * ROWS
    return [value_of.get(row.tobytes(), -1) for row in values]
