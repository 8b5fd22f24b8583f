"""The orders in which the chunks of a shard may follow each other. Chunks are numbered row-major, as in the
shard's index. Shared by the configuration, acquisitions, compaction and moves; imports nothing heavy.

row_major       last axis fastest: whole planes, then the next plane
column_major    first axis fastest: a time series or a z column at one point of the frame
morton          Z order: chunks that are near each other along every axis are near each other in the file, as
                boxes are read
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import ConfigError

if TYPE_CHECKING:
    from shardwright.model.write_options import WriteOrder

Order = Literal["row_major", "column_major", "morton"]
ORDERS: tuple[Order, ...] = get_args(Order)


def fixed_order(order: WriteOrder) -> Order | None:
    """Returns the order in which an acquisition writes the chunks of a shard, None if it is none that is
    known before."""
    return None if order == "arrival" else "morton" if order == "fixed" else order


@lru_cache(maxsize=4)
def chunk_ranks(order: Order, shard_chunks: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """int64[chunks]: the rank of each chunk among those of its shard; the inverse of ``chunk_order``.
    Read-only."""
    ranks = np.argsort(chunk_order(order, shard_chunks))
    ranks.flags.writeable = False
    return ranks


def chunk_order(order: str, shard_chunks: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """int64[chunks]: the chunk numbers of a shard of ``shard_chunks`` chunks along each axis, in storage
    order. Raises ``ConfigError``."""
    if order not in ORDERS:
        raise ConfigError("unknown order of chunks", expected=" or ".join(ORDERS), got=repr(order))
    numbers = np.arange(math.prod(shard_chunks), dtype=np.int64)
    if order == "row_major":
        return numbers
    if order == "column_major":
        return numbers.reshape(shard_chunks).ravel(order="F")
    return np.argsort(_morton_codes(shard_chunks), kind="stable").astype(np.int64)


def _morton_codes(shard_chunks: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """The bits of each chunk's coordinates, interleaved, the first axis' above the others'. Bits that an axis
    does not need are left out: they would be 0 everywhere, and with them a code might not fit 64 bits."""
    coordinates = np.indices(shard_chunks, np.int64).reshape(len(shard_chunks), -1)
    code = np.zeros(coordinates.shape[1], np.int64)
    shift = 0
    for bit in range(max((n - 1).bit_length() for n in shard_chunks)):
        for axis in reversed(range(len(shard_chunks))):
            if bit < (shard_chunks[axis] - 1).bit_length():
                code |= (coordinates[axis] >> bit & 1) << shift
                shift += 1
    return code
