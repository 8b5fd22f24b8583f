"""Shards that are HDF5 files at the same time: ``compact --container hdf5`` makes them. The index is at the
start, in HDF5's user block, which no HDF5 library writes to. The one dataset of the file has the chunks of
the shard, each as it is encoded.

    | index | zeros | description, if any | HDF5: superblock, B-trees, chunks | an earlier index, if any |
    0                                     user block: 512 bytes or a power of two above

An index at the end would be lost: a library that opens the file to change it cuts the file where HDF5 ends.
Everything of HDF5 is read and written by h5py, through a file that it is given (``FileOfHdf5``).
"""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.metadata import codec_of
from shardwright.array.spec import Blosc, Zstd
from shardwright.codecs.decode import ChunkCodecs
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ShardFormatError, SpecError
from shardwright.model.extras import naming_missing_extra
from shardwright.shard.index import EMPTY, empty_index
from shardwright.shard.shard_description import description_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.disk.read_file import ReadFile
    from shardwright.shard.sealed_shard import SealedShard
    from shardwright.shard.shard_description import ShardDescription

    from .store import StoredArray

HDF5 = "hdf5"  # ``container`` of an array
DATASET = "data"  # of a shard
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_LEAST_USER_BLOCK = 512
_BLOSC, _ZSTD = 32001, 32015  # HDF5's registered filters
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def import_h5py() -> Any:
    """Returns the module. Raises ``ConfigError`` where the extra is not installed."""
    with naming_missing_extra("a shard that is an HDF5 file"):
        import h5py
    return h5py


def user_block_bytes(nbytes: int) -> int:
    """Returns the size of the least user block that holds so many bytes."""
    return max(_LEAST_USER_BLOCK, 1 << (nbytes - 1).bit_length())


def find_user_block(least: int, file_bytes: int, read: Callable[[int, int], Any]) -> int | None:
    """Returns where HDF5 begins in a file whose first ``least`` bytes are others'; None if nowhere."""
    at = user_block_bytes(least)
    while at + len(_SIGNATURE) <= file_bytes:
        if bytes(read(at, len(_SIGNATURE))) == _SIGNATURE:
            return at
        at *= 2
    return None


def user_block_of(
    array: StoredArray, entries: np.ndarray, file_bytes: int, read: Callable[[int, int], Any]
) -> int | None:
    """Returns the user block of a shard that is an HDF5 file with its index at the start; None for any other.
    ``entries``: of the index by which it is read, which may still be another one at the end."""
    index = array.with_index_at_start().index
    block = find_user_block(index.nbytes, file_bytes, read)
    if block is None or array.index_location == "start":
        return block
    try:
        found = index.decode(bytes(read(0, index.nbytes)))
    except ShardFormatError:
        return None
    return block if np.array_equal(found, entries) else None


def described_in(array: StoredArray, sealed: SealedShard[ReadFile]) -> ShardDescription | None:
    """Returns the description of a sealed shard, None if it has none. Raises as ``SealedShard.index``."""
    if not array.is_sharded:
        return None
    read, block = sealed.file.read, None
    if array.container is not None:
        block = user_block_of(array, sealed.entries, sealed.file.nbytes, read)
    return description_in(sealed.index, read, block)


def hdf5_filter(array: StoredArray) -> tuple[int, tuple[int, ...]] | None:
    """Returns HDF5's filter for the chunks of an array, and its values; None for uncompressed ones. Raises
    ``ShardFormatError`` for an array whose chunks HDF5 cannot hold as they are."""
    codecs = array.codecs
    is_plain = isinstance(codecs, ChunkCodecs) and not (codecs.checksum or codecs.order)
    if is_plain and array.is_sharded and array.shape:
        with suppress(SpecError):  # a compressor of Blosc that HDF5's filter may lack
            match codec_of(array.chain):
                case Blosc(cname=cname, clevel=level, shuffle=shuffle):
                    of_chunk = (array.dtype.itemsize, array.chunk_bytes, level)
                    how = (_BLOSC_SHUFFLES.index(shuffle), _BLOSC_COMPRESSORS.index(cname))
                    return _BLOSC, (2, 2, *of_chunk, *how)
                case Zstd(level=level):
                    return _ZSTD, (level & 0xFFFFFFFF,)
                case None:
                    return None
    shards = "" if array.is_sharded else ", without shards"
    raise ShardFormatError(
        f"{array.path} cannot be packed as HDF5",
        expected="shards whose chunks are bytes (little-endian), and blosc, zstd or nothing behind them",
        got=" -> ".join(array.chain.names) + shards,
        hint="`shardwright rechunk --codec zstd` writes the same values to a new store",
    )


class FileOfHdf5(io.RawIOBase):
    """The file that h5py reads and writes. An error of ``read`` or ``write`` is kept as text, since it cannot
    pass through the library: ``check`` raises it. Nothing more is read or written after it."""

    def __init__(
        self,
        read: Callable[[int, int], Any],
        nbytes: int = 0,
        write: Callable[[int, bytes | memoryview], None] | None = None,
    ) -> None:
        self._read, self._write = read, write
        self._nbytes = nbytes
        self._position = 0
        self._error: ErrorText | None = None
        self._is_interrupted = False  # Ctrl-C came while the library called

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def check(self) -> None:
        """Raises the error that was kept."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        if self._error is not None:
            raise self._error.to_error()

    def _keep(self, error: BaseException) -> None:
        self._is_interrupted = isinstance(error, KeyboardInterrupt)
        self._error = ErrorText.of(error)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._nbytes)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        count = max(0, min(len(room), self._nbytes - self._position))
        room[:] = bytes(len(room))  # what lies behind the end
        if self._error is None:
            try:
                room[:count] = self._read(self._position, count)
            except BaseException as error:  # noqa: BLE001
                self._keep(error)
        self._position += len(room)
        return len(room)

    def write(self, data: Any) -> int:
        piece = memoryview(data).cast("B")
        if self._error is None:
            try:
                assert self._write is not None, "opened to be read"
                self._write(self._position, piece)
            except BaseException as error:  # noqa: BLE001
                self._keep(error)
        self._position += len(piece)
        self._nbytes = max(self._nbytes, self._position)
        return len(piece)

    def truncate(self, size: int | None = None) -> int:
        self._nbytes = self._position if size is None else size
        return self._nbytes


def entries_of(dataset: Any, array: StoredArray) -> np.ndarray:
    """Returns INDEX_ENTRY[chunks]: where the chunks of a shard lie, as its HDF5 dataset says."""
    entries = empty_index(array.chunks_per_shard)
    found: list[Any] = []
    if dataset.id.get_num_chunks():
        dataset.id.chunk_iter(found.append)
        places = np.array([chunk.chunk_offset for chunk in found], np.int64) // array.chunk_shape
        numbers = np.ravel_multi_index(tuple(places.T), array.shard_chunks)
        # one that passed a filter by is none of ours
        offsets = [EMPTY if chunk.filter_mask else chunk.byte_offset for chunk in found]
        entries["offset"][numbers] = np.array(offsets, np.uint64)
        entries["nbytes"][numbers] = [chunk.size for chunk in found]
    return entries


def hdf5_fault(
    array: StoredArray, entries: np.ndarray, file_bytes: int, read: Callable[[int, int], Any]
) -> str | None:
    """Returns what is wrong with the HDF5 file that a shard is as well: other readers would find other pixels
    by it. None if nothing is. The fill value is not looked at: where its bytes are damaged, HDF5 ends the
    process. ``entries``: of its index. Raises ``ConfigError`` without h5py, and as ``read``."""
    h5py = import_h5py()
    if find_user_block(array.index_bytes, file_bytes, read) is None:
        return "it is no HDF5 file, as its array says: another program has replaced it"
    file, wanted = FileOfHdf5(read, file_bytes), hdf5_filter(array)
    try:
        with h5py.File(file, "r") as found:
            if not isinstance(found.get(DATASET, getlink=True), h5py.HardLink):
                return f"its HDF5 has no dataset {DATASET!r} of its own"  # a link would lead to another file
            dataset = found[DATASET]
            form = (dataset.shape, dataset.chunks, dataset.dtype, _filters_of(dataset))
            if form != (
                array.shard_shape,
                array.chunk_shape,
                array.dtype,
                [] if wanted is None else [wanted],
            ):
                return f"its HDF5 dataset {DATASET!r} has another shape, data type or filter than the array"
            if not np.array_equal(entries_of(dataset, array), entries):
                return "its HDF5 has chunks elsewhere than its index: another program changed it"
            return None
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        return f"its HDF5 cannot be read: {error}"
    finally:
        file.check()


def _filters_of(dataset: Any) -> list[tuple[int, tuple[int, ...]]]:
    properties = dataset.id.get_create_plist()
    found = (properties.get_filter(i) for i in range(properties.get_nfilters()))
    return [(number, tuple(values)) for number, _flags, values, _name in found]
