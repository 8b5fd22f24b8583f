"""Reads boxes of a stored array as NumPy values. Only the chunks that touch a box are read, each once for
each box."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.model.errors import ShardChangedError, ShardFormatError, StorageError, StoreGoneError
from shardwright.read.shard_file import ShardFile, check_entries
from shardwright.read.store_state import ChangedError, tries
from shardwright.shard.index import EMPTY
from shardwright.storage import beneath
from shardwright.storage.failpoints import look
from shardwright.storage.files import FileIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.read.store import StoredArray
    from shardwright.repack.runtime.throttle import Throttle

MAX_OPEN_SHARDS = 16
_DOCUMENTS = ("zarr.json", ".zarray")

Coordinates = tuple[int, ...]


@dataclass(frozen=True)
class _ReadShard:
    """``faults``: what is wrong with a chunk's entry, by chunk number."""

    file: ShardFile
    identity: FileIdentity
    entries: npt.NDArray[np.void]
    faults: dict[int, str]

    def check_unchanged(self) -> None:
        """Raises ``ChangedError`` if the file was written since it was opened."""
        if FileIdentity.of(os.fstat(self.file.fileno())) != self.identity:
            raise ChangedError


class RegionReader:
    """Reads one array. Holds one encoded and one decoded chunk, and up to ``MAX_OPEN_SHARDS`` shard files
    with their indexes. One thread's."""

    def __init__(self, array: StoredArray, throttle: Throttle) -> None:
        self.array = array
        self._folder = _identity_of(array.path)
        # None: some older stores keep the documents of all arrays in one folder
        self._document = next(filter(beneath.exists, (array.path / name for name in _DOCUMENTS)), None)
        self.bytes_read = 0
        self._throttle = throttle
        self._fill = array.fill_element
        self._encoded = np.empty(0, np.uint8)
        self._decoded = np.empty(array.chunk_bytes, np.uint8)
        self._values: npt.NDArray[Any]  # of the chunk that was read last, perhaps in ``_decoded``
        self._open: OrderedDict[Coordinates, _ReadShard | None] = OrderedDict()

    @staticmethod
    def peak_bytes(array: StoredArray) -> int:
        """What it holds at most, beside the boxes: chunk buffers, and each open shard's index with the tables
        it is checked by."""
        index = 8 * array.index_bytes + 4096
        return (
            array.codecs.max_encoded_bytes(array.chunk_bytes)
            + 2 * array.chunk_bytes
            + min(MAX_OPEN_SHARDS, array.shards_in_shape) * index
        )

    def read(self, start: Coordinates, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` (array's dtype) with the box that begins at ``start`` and lies inside the array's
        shape.

        Raises ``ShardFormatError`` naming shard and chunk, or ``StorageError``.
        """
        stop = tuple(a + n for a, n in zip(start, out.shape, strict=True))
        for chunk in _boxes(start, stop, self.array.chunk_shape):
            low = tuple(max(a, i * c) for a, i, c in zip(start, chunk, self.array.chunk_shape, strict=True))
            high = tuple(
                min(b, (i + 1) * c) for b, i, c in zip(stop, chunk, self.array.chunk_shape, strict=True)
            )
            inside: tuple[Any, ...]
            inside = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))
            target = out[(*inside, ...)]  # a view, also of an array without axes
            if self._read_chunk(chunk):
                base = tuple(i * c for i, c in zip(chunk, self.array.chunk_shape, strict=True))
                target[...] = self._values[
                    tuple(slice(a - s, b - s) for a, b, s in zip(low, high, base, strict=True))
                ]
            else:
                target[...] = self._fill

    def _read_chunk(self, chunk: Coordinates) -> bool:
        """Into ``_values``; False when the chunk is absent."""
        counts = self.array.shard_chunks
        coordinates = tuple(i // n for i, n in zip(chunk, counts, strict=True))
        for _ in tries():
            try:
                return self._read_once(chunk, coordinates)
            except ChangedError:
                self._forget(coordinates)
        raise ShardChangedError(
            f"{self.array.path / self.array.shard_key(coordinates)} changes faster than it is read",
            hint="Run it again when nobody edits the store",
        )

    def _read_once(self, chunk: Coordinates, coordinates: Coordinates) -> bool:
        """As ``_read_chunk``. Raises ``ChangedError`` if the shard was written since it was opened: an edit
        gives bytes of chunks that its index has named to others."""
        counts, shard = self.array.shard_chunks, self._shard(coordinates)
        if shard is None:
            return False
        number = int(np.ravel_multi_index(tuple(i % n for i, n in zip(chunk, counts, strict=True)), counts))
        offset, nbytes = (int(shard.entries[name][number]) for name in ("offset", "nbytes"))
        where = f"chunk {'/'.join(map(str, chunk))} in {shard.file.path}"
        if number in shard.faults:
            raise ShardFormatError(f"{where}: {shard.faults[number]}")
        if nbytes == EMPTY:
            return False
        self._throttle.take(nbytes)
        look("look.bytes")
        try:
            shard.file.read_into(offset, self._room(nbytes).data)
            shard.check_unchanged()
            self._values = self.array.decode(self._room(nbytes).data, self._decoded)
        except ShardFormatError as error:
            shard.check_unchanged()
            raise ShardFormatError(
                f"{where}: {error.message}", expected=error.expected, got=error.got
            ) from error
        self.bytes_read += nbytes
        return True

    def _room(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """For one encoded chunk."""
        if self._encoded.size < nbytes:
            self._encoded = np.empty(0, np.uint8)  # let the old one go before the new one comes
            self._encoded = np.empty(nbytes, np.uint8)
        return self._encoded[:nbytes]

    def _shard(self, coordinates: Coordinates) -> _ReadShard | None:
        if coordinates in self._open:
            self._open.move_to_end(coordinates)
            return self._open[coordinates]
        while len(self._open) >= MAX_OPEN_SHARDS:
            _, oldest = self._open.popitem(last=False)
            if oldest is not None:
                oldest.file.close()
        self._open[coordinates] = shard = self._open_shard(coordinates)
        return shard

    def _forget(self, coordinates: Coordinates) -> None:
        if (shard := self._open.pop(coordinates, None)) is not None:
            shard.file.close()

    def _check_there(self) -> None:
        """Raises ``StoreGoneError`` for an array that was moved or deleted, whose document goes before its
        shards do, or that is another store's by now."""
        folder = self.array.path
        is_same = self._folder == _identity_of(folder)
        if not is_same or (self._document is not None and not beneath.exists(self._document)):
            raise StoreGoneError(f"{folder} was deleted, moved or replaced while it was read")

    def _open_shard(self, coordinates: Coordinates) -> _ReadShard | None:
        look("look.shard")
        path = self.array.path / self.array.shard_key(coordinates)
        try:
            file = ShardFile(self.array, path)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError) and not beneath.is_link(path):
                # an absent shard reads as fill value; a link that leads nowhere does not
                self._check_there()
                return None
            raise
        identity = FileIdentity.of(os.fstat(file.fileno()))
        try:
            self._check_there()
            entries = file.read_index()
            faults = dict(check_entries(self.array, coordinates, entries, file.data_range).faults)
        except ShardFormatError as error:
            changed = FileIdentity.of(os.fstat(file.fileno())) != identity
            file.close()
            if changed:
                raise ChangedError from None
            raise ShardFormatError(
                f"{path}: {error.message}", expected=error.expected, got=error.got
            ) from error
        except BaseException:
            file.close()
            raise
        return _ReadShard(file, identity, entries, faults)

    def close(self) -> None:
        for shard in self._open.values():
            if shard is not None:
                shard.file.close()
        self._open.clear()


def _identity_of(folder: Path) -> tuple[int, int] | None:
    try:
        status = beneath.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _boxes(start: Coordinates, stop: Coordinates, size: Coordinates) -> Iterator[Coordinates]:
    """Coordinates, row-major, of the grid cells of ``size`` that touch the box."""
    return itertools.product(*(range(a // c, -(-b // c)) for a, b, c in zip(start, stop, size, strict=True)))
