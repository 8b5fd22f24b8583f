"""Samples of the pixels of a sealed array, from a few of its inner chunks: for contrast windows, where none
were kept while it was written."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.disk.read_file import ChangedError
from shardwright.model.errors import ShardFormatError, StorageError

from .box_reader import read_sealed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .store import StoredArray

MOST_PIXELS = 4096  # of a chunk
_MOST_SHARDS = 1 << 16  # that are listed
_MOST_INDEX_BYTES = 16 << 20
_MOST_CHUNK_BYTES = 256 << 20
_GOLDEN, _OTHER = 0.6180339887498949, 0.7548776662466927  # steps that lie evenly and meet no other period


@dataclass
class SampleBudget:
    """The inner chunks, and the bytes of them once they are decoded, that may still be read for samples of
    many arrays."""

    chunks: int = 2048
    nbytes: int = 1 << 30

    def times(self, chunks: int, nbytes: int) -> int:
        """Returns how often chunks of so many bytes may be read."""
        return min(self.chunks // max(1, chunks), self.nbytes // max(1, nbytes))


def channel_samples(
    array: StoredArray,
    axis: int | None,
    channels: Iterable[int],
    chunks: int,
    budget: SampleBudget | None = None,
) -> dict[int, npt.NDArray[Any]]:
    """Returns pixels of ``channels`` (indices along the ``axis``; None: of all together) by channel, from up
    to ``chunks`` inner chunks of each, which lie anywhere in the array; each is read once, and taken from the
    ``budget``, which the caller compares. A channel of which nothing can be read is left out, and so is every
    part of a frame that is all fill value; never raises for a damaged store."""
    if array.index_bytes > _MOST_INDEX_BYTES or array.chunk_bytes > _MOST_CHUNK_BYTES:
        return {}
    shards: list[tuple[int, ...]] = []
    with suppress(OSError):
        for _, shard in islice(array.shard_files(), _MOST_SHARDS):
            if shard is not None and array.contains_shard(shard):
                shards.append(shard)
    found = {}
    for channel in channels:
        here = [s for s in shards if axis is None or s[axis] == channel // array.shard_shape[axis]]
        parts: list[npt.NDArray[Any]] = []
        seen: set[tuple[tuple[int, ...], int]] = set()
        for number in range(1, chunks + 1 if here else 1):
            with suppress(ShardFormatError, StorageError, ChangedError):
                shard = here[_index_of_share(number * _GOLDEN, len(here))]
                parts.append(_pixels(array, shard, axis, channel, number * _OTHER, seen))
        if budget is not None:
            budget.chunks -= len(seen)
            budget.nbytes -= len(seen) * array.chunk_bytes
        pixels = np.concatenate(parts) if parts else np.empty(0, array.dtype)
        if pixels.size:
            found[channel] = pixels
    return found


def _index_of_share(number: float, count: int) -> int:
    """Returns an index below ``count``, as far along as the fraction of ``number`` says."""
    return int(number % 1 * count)


def _pixels(
    array: StoredArray,
    shard: tuple[int, ...],
    axis: int | None,
    channel: int,
    number: float,
    seen: set[tuple[tuple[int, ...], int]],
) -> npt.NDArray[Any]:
    """Returns pixels of one chunk of a shard that holds the channel, one without any if there is none, or if
    it is among the (shard, chunk) that were ``seen``. Raises ``ShardFormatError``, ``StorageError`` or
    ``ChangedError``."""
    with array.open_shard(shard) as sealed:
        usable = sealed.index.sound & array.chunks_in_shape(shard)
        if axis is not None:
            within = np.arange(array.chunks_per_shard)
            along = (
                np.unravel_index(within, array.shard_chunks)[axis] + shard[axis] * array.shard_chunks[axis]
            )
            usable &= along == channel // array.chunk_shape[axis]
        chunks = np.flatnonzero(usable)
        if not chunks.size:
            return np.empty(0, array.dtype)
        chunk = int(chunks[_index_of_share(number, chunks.size)])
        if (shard, chunk) in seen:
            return np.empty(0, array.dtype)
        seen.add((shard, chunk))
        low = np.multiply(np.unravel_index(chunk, array.shard_chunks), array.chunk_shape)
        left = np.subtract(array.shape, np.multiply(shard, array.shard_shape))
        high = np.minimum(low + array.chunk_shape, left)
        if axis is not None:
            low[axis] += channel % array.chunk_shape[axis]
            high[axis] = low[axis] + 1
        frames = np.empty(high - low, array.dtype)
        box = tuple(low.tolist()), tuple(high.tolist())
        read_sealed(array, shard, sealed, box, frames, (0,) * low.size, take=lambda _: None, never=None)
    frames = frames.reshape(-1, *frames.shape[-2:])
    fill = array.fill_element
    empty = (frames == fill) | ((frames != frames) & (fill != fill))
    pixels: npt.NDArray[Any] = frames[~empty.all(axis=(1, 2))].ravel()
    count = min(MOST_PIXELS, pixels.size)
    sample: npt.NDArray[Any] = pixels[(np.arange(1, count + 1) * _GOLDEN % 1 * pixels.size).astype(np.int64)]
    return sample
