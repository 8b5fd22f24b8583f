"""Reads boxes of a stored array as NumPy values. Only the chunks that touch a box are read, each once for
each box."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardwright.array.document import NamingFile
from shardwright.disk import beneath
from shardwright.disk.failpoints import look
from shardwright.disk.read_file import ChangedError
from shardwright.model.errors import ShardChangedError, StoreGoneError
from shardwright.model.names import DOCUMENT
from shardwright.read.box_reader import JOB_BATCH_BYTES, read_sealed
from shardwright.read.store_state import NeverStored, StoreState, folder_identity, tries
from shardwright.rework.boxes import box_at, cells
from shardwright.rework.runtime.throttle import UNHURRIED

if TYPE_CHECKING:
    import numpy.typing as npt

    from shardwright.disk.read_file import ReadFile
    from shardwright.read.store import StoredArray
    from shardwright.rework.runtime.throttle import Throttle
    from shardwright.shard.sealed_shard import SealedShard

MAX_OPEN_SHARDS = 16
_DOCUMENTS = (DOCUMENT, ".zarray")

Coordinates = tuple[int, ...]


class RegionReader:
    """Reads one array. Holds the memory of ``read_sealed``, and up to ``MAX_OPEN_SHARDS`` shard files with
    their indexes. One thread's."""

    def __init__(self, array: StoredArray, throttle: Throttle = UNHURRIED) -> None:
        self.array = array
        self._folder = folder_identity(array.path)
        # None: some older stores keep the documents of all arrays in one folder
        self._document = next(filter(beneath.exists, (array.path / name for name in _DOCUMENTS)), None)
        self.bytes_read = 0
        self._throttle = throttle
        self._open: OrderedDict[Coordinates, SealedShard[ReadFile] | None] = OrderedDict()

    @staticmethod
    def peak_bytes(array: StoredArray) -> int:
        """Returns the most bytes that it holds, beside the boxes: chunk buffers, each open shard's index with
        the tables it is checked by, and tables of the chunks that are read of one shard."""
        index = 8 * array.index_bytes + 4096
        return (
            array.codecs.max_encoded_bytes(array.chunk_bytes)
            + JOB_BATCH_BYTES
            + 2 * array.chunk_bytes
            + 64 * (len(array.shape) + 4) * array.chunks_per_shard
            + min(MAX_OPEN_SHARDS, array.shards_in_shape) * index
        )

    def read(self, start: Coordinates, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` (array's dtype, C order) with the box that begins at ``start``, and lies inside the
        array's grid of chunks.

        Raises ``ShardFormatError`` naming shard and chunk, or ``StorageError``.
        """
        wanted, shape = box_at(start, out.shape), self.array.shard_shape
        for shard in cells(wanted, shape):
            first = tuple(i * s for i, s in zip(shard, shape, strict=True))
            low = tuple(max(a - f, 0) for a, f in zip(start, first, strict=True))
            high = tuple(min(b - f, s) for (_, b), f, s in zip(wanted, first, shape, strict=True))
            at = tuple(f + n - a for f, n, a in zip(first, low, start, strict=True))
            self._read_shard(shard, (low, high), out, at)

    def _read_shard(
        self, shard: Coordinates, box: tuple[Coordinates, Coordinates], out: npt.NDArray[Any], at: Coordinates
    ) -> None:
        """As ``read_sealed``."""
        take, never = self._throttle.take, NeverStored(StoreState(None, self._folder))
        for _ in tries():
            with suppress(ChangedError):
                sealed = self._shard(shard)
                self.bytes_read += read_sealed(
                    self.array, shard, sealed, box, out, at, take=take, never=never
                )
                return
            self._forget(shard)
        raise ShardChangedError(
            f"{self.array.path / self.array.shard_key(shard)} changes faster than it is read",
            hint="Run it again when nobody edits the store",
        )

    def _shard(self, coordinates: Coordinates) -> SealedShard[ReadFile] | None:
        if coordinates in self._open:
            self._open.move_to_end(coordinates)
            return self._open[coordinates]
        while len(self._open) >= MAX_OPEN_SHARDS:
            _, oldest = self._open.popitem(last=False)
            if oldest is not None:
                oldest.close()
        self._open[coordinates] = shard = self._open_shard(coordinates)
        return shard

    def _forget(self, coordinates: Coordinates) -> None:
        if (shard := self._open.pop(coordinates, None)) is not None:
            shard.close()

    def _check_there(self) -> None:
        """Raises ``StoreGoneError`` for an array that was moved or deleted, whose document goes before its
        shards do, or that is another store's by now."""
        folder = self.array.path
        is_same = self._folder == folder_identity(folder)
        if not is_same or (self._document is not None and not beneath.exists(self._document)):
            raise StoreGoneError(f"{folder} was deleted, moved or replaced while it was read")

    def _open_shard(self, coordinates: Coordinates) -> SealedShard[ReadFile] | None:
        look("look.shard")
        shard = self.array.find_shard(coordinates)
        try:
            self._check_there()
            if shard is not None:
                with NamingFile(shard.path):
                    shard.look()
        except BaseException:
            if shard is not None:
                shard.close()
            raise
        return shard

    def close(self) -> None:
        for shard in self._open.values():
            if shard is not None:
                shard.close()
        self._open.clear()
