"""Shards packed as HDF5 files that stay shards, and the one HDF5 file over all of them. h5py writes HDF5, and
nothing here reads it: a damaged file can end the process of the library.

    | index | zeros | description | HDF5: superblock, B-trees, chunks | the index, if it was at the end |
    0                             user block: 512 bytes or a power of two above

An index at the end would be lost: a library that opens the file to change it cuts the file where HDF5 ends.
No library writes to the user block. A whole array changes at once for every reader, at whatever moment the
job is killed:

    each shard      packed as HDF5, its index at the start, and the same index behind HDF5 as long as
                    zarr.json says that it is at the end. Old and new shards lie side by side: each is read
                    as before. An edit in between makes a shard without HDF5 again, since it describes itself
    acquisition.h5  the virtual dataset over the shards, with names relative to it
    zarr.json       of each array: its shards have an index at the start, and are HDF5 files. No shard is
                    edited from then on
"""

from __future__ import annotations

import ctypes
import io
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.array.document import encode_document
from shardwright.array.metadata import codec_of, contained_array
from shardwright.array.spec import Blosc, Zstd
from shardwright.codecs import native_library
from shardwright.codecs.decode import ChunkCodecs
from shardwright.disk import beneath
from shardwright.disk.files import AtomicFile, replace_file
from shardwright.disk.working_file import WorkingFile
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import LockedError, ShardFormatError, ShardwrightError, SpecError, StorageError
from shardwright.model.extras import naming_missing_extra
from shardwright.model.names import DOCUMENT
from shardwright.read.store import groups_above, parse_array, read_metadata
from shardwright.rework.change_checks import check_finished, check_not_between_versions
from shardwright.rework.consolidated_copies import without_copies
from shardwright.rework.pack_plan import PackPlan, chunk_error, runs_of
from shardwright.rework.runtime.work_folder import working_path
from shardwright.rework.shard_copy import check_copy
from shardwright.rework.source_shard import PackedBytes, SourceShard
from shardwright.shard.edit_files import check_not_edited
from shardwright.shard.index import empty_index
from shardwright.shard.shard_description import HDF5_NAME, user_block_bytes
from shardwright.shard.shard_sums import ShardSums, shard_sum

from .recode import BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.pack_plan import UInt32s
    from shardwright.rework.runtime.throttle import Throttle

    from .sealed_shards import Shard

HDF5 = "hdf5"  # ``container`` of an array
_DATASET = "data"  # of a shard; in acquisition.h5, of an array that lies in no group
_BLOSC, _ZSTD = 32001, 32015  # HDF5's registered filters
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_METADATA_BYTES = 8 << 10  # of HDF5, beside what each chunk takes


def _h5py() -> Any:
    with naming_missing_extra("a shard that is an HDF5 file"):
        import h5py
    return h5py


def check_store(store: Store) -> None:
    """Raises ``ShardFormatError``, ``ConfigError``, ``LockedError`` for a store that cannot be packed as
    HDF5. Nothing was changed then."""
    _h5py()
    check_finished(store.root)
    check_not_between_versions(store.root)
    if store.shard is not None:
        raise ShardFormatError(
            f"{store.root} is packed as HDF5 as a whole", got="one shard", hint="Give the whole store"
        )
    for array in store.arrays:
        _filter(array)


def _filter(array: StoredArray) -> tuple[int, tuple[int, ...]] | None:
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


def _contained(array: StoredArray) -> StoredArray:
    """Returns the array as it is once all of its shards are HDF5 files."""
    return parse_array(array.path, contained_array(read_metadata(array.path), HDF5))


def is_hdf5(source: SourceShard) -> bool:
    return source.description is not None and source.description.user_block > 0


def hdf5_plan(source: SourceShard, order: str) -> PackPlan:
    """The plan of a shard that is packed as HDF5: chunks, their order, and a description."""
    array = _contained(source.array)
    return PackPlan.of(array, source.shard, source.index.entries, order).with_description(0)


def most_bytes(plan: PackPlan) -> int:
    """The most that the HDF5 file of a shard may have."""
    nodes = (64 + len(plan.chunks)) * (80 + 16 * len(plan.array.shape))
    return _user_block(plan) + plan.live_bytes + nodes + _METADATA_BYTES + plan.index_bytes


def _user_block(plan: PackPlan) -> int:
    return user_block_bytes(plan.index_bytes + len(plan.description))


class _Hdf5File(io.FileIO):
    """The file that h5py writes, by ``write``. An error does not pass through the library as it is, and may
    leave it undone: it is kept, nothing more is written, and ``check`` raises it."""

    def __init__(self, descriptor: int, write: Callable[[int, bytes], None]) -> None:
        super().__init__(descriptor, "r+", closefd=False)
        self.truncate(0)
        self._write_at = write
        self._error: ErrorText | None = None
        self._is_interrupted = False

    def write(self, data: Any) -> int:
        if self._error is None:
            try:
                self._write_at(self.tell(), data)
            except BaseException as error:  # noqa: BLE001  (also of Ctrl-C)
                self._error = ErrorText.of(error)
                self._is_interrupted = isinstance(error, KeyboardInterrupt)
        self.seek(len(data), io.SEEK_CUR)
        return len(data)

    def check(self) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        if self._error is not None:
            raise self._error.to_error()


@contextmanager
def _written_by_h5py(path: Path, file: _Hdf5File, **options: Any) -> Iterator[Any]:
    """A context with the file as h5py writes it. Raises ``ConfigError`` without h5py, ``StorageError``."""
    h5py = _h5py()
    try:
        with h5py.File(file, "w", **options) as made:
            yield made
    except ShardwrightError:
        raise
    except (OSError, RuntimeError) as error:
        file.check()
        raise StorageError(f"h5py cannot write {path}: {error}") from None
    file.check()


def pack_as_hdf5(
    source: SourceShard,
    plan: PackPlan,
    check_untouched: Callable[[UInt32s], None],
    may_replace: AbstractContextManager[None],
    throttle: Throttle,
) -> int:
    """Makes the HDF5 file of a shard and puts it in the shard's place, as ``shard_copy.replace_shard`` does.
    Returns its length. ``check_untouched`` gets the crc32c of each chunk.

    Raises ``ConfigError`` without h5py, ``ShardFormatError`` for a bad chunk, or one that HDF5's filters do
    not decode, ``StorageError``.
    """
    array, block, chunks = plan.array, _user_block(plan), PackedBytes(source, plan)
    with WorkingFile(working_path(array, source.key), 0, source.file.status) as working:
        working.copy_attributes(source.file.descriptor)
        with _Hdf5File(working.unaligned(), working.write) as file:
            entries = _write_chunks(file, plan, block, chunks, throttle)
            end = file.seek(0, io.SEEK_END)
            text = plan.with_description(shard_sum(plan.chunks, plan.nbytes, chunks.crcs)).description
            working.write(0, array.index.encode(entries).ljust(block - len(text), b"\0") + text)
            if source.array.index_location == "end":
                index = source.array.index.encode(entries)
                working.write(end, index)
                end += len(index)
            at, parts = 0, []  # sizes and crc32c of what lies between the chunks, and of them
            live = zip(entries[plan.chunks].tolist(), chunks.crcs.tolist(), strict=True)
            for (offset, nbytes), value in [*sorted(live), ((end, 0), 0)]:
                file.seek(at)
                parts += [(offset - at, crc32c.crc32c(file.read(offset - at))), (nbytes, value)]
                at = offset + nbytes
        working.finish(end)
        found = np.array([part for part in parts if part[0]], np.int64)
        sizes, crcs = found[:, 0].copy(), found[:, 1].astype(np.uint32)
        check_copy(working, sizes, crcs, lambda i: f"byte {sizes[:i].sum()} of {plan.path}", throttle)
        check_untouched(chunks.crcs)
        working.replace(plan.path, may_replace)
    return end


def _write_chunks(
    file: _Hdf5File, plan: PackPlan, block: int, chunks: PackedBytes, throttle: Throttle
) -> np.ndarray:
    """Writes HDF5 from ``block`` on. Returns INDEX_ENTRY[chunks]: where each chunk lies."""
    array = plan.array
    places = np.stack(np.unravel_index(plan.chunks, array.shard_chunks), 1) * np.array(array.chunk_shape)
    entries = empty_index(array.chunks_per_shard)
    found: list[Any] = []
    with _written_by_h5py(plan.path, file, userblock_size=block) as made:
        dataset = _new_dataset(made, array)
        for run in runs_of(plan.nbytes, BATCH_BYTES):
            read = np.empty(int(plan.nbytes[run].sum()), np.uint8)
            throttle.take(2 * read.size)
            chunks.read_into(read)
            for i, data in enumerate(np.split(read, np.cumsum(plan.nbytes[run])[:-1]), run.start):
                if array.codecs.name == "zstd" and _zstd_content_bytes(data) != array.chunk_bytes:
                    what = "the zstd frame does not tell its whole size, which HDF5's filter needs"
                    raise chunk_error(array, plan.shard, int(plan.chunks[i]), what)
                dataset.id.write_direct_chunk(tuple(places[i].tolist()), data)
                file.check()
        if len(plan.chunks):
            dataset.id.chunk_iter(found.append)
    if found:
        at = np.array([chunk.chunk_offset for chunk in found], np.int64) // array.chunk_shape
        numbers = np.ravel_multi_index(tuple(at.T), array.shard_chunks)
        entries["offset"][numbers] = [chunk.byte_offset for chunk in found]
        entries["nbytes"][numbers] = [chunk.size for chunk in found]
    if len(found) != len(plan.chunks) or not np.array_equal(entries["nbytes"][plan.chunks], plan.nbytes):
        raise StorageError(f"h5py has not written the chunks of {plan.path} as they were given to it")
    return entries


def _new_dataset(made: Any, array: StoredArray) -> Any:
    h5py = _h5py()
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(array.chunk_shape)
    properties.set_obj_track_times(False)  # the same chunks make the same file
    properties.set_fill_value(array.fill_element)
    if (used := _filter(array)) is not None:
        # optional: the library that writes need not have the filter, since it encodes nothing
        properties.set_filter(used[0], h5py.h5z.FLAG_OPTIONAL, used[1])
    kind = h5py.h5t.py_create(array.dtype, logical=True)
    space = h5py.h5s.create_simple(array.shard_shape)
    return h5py.Dataset(h5py.h5d.create(made.id, _DATASET.encode(), kind, space, properties))


def _zstd_content_bytes(frame: np.ndarray) -> int:
    """Returns the decoded size that the header of a zstd frame tells; more than any chunk has for none."""
    tells = native_library.library().ZSTD_getFrameContentSize
    tells.restype = ctypes.c_ulonglong
    return int(tells(ctypes.c_void_p(frame.ctypes.data), ctypes.c_size_t(frame.size)))


def publish(store: Store, arrays: Sequence[StoredArray], shards: Sequence[Shard]) -> None:
    """Makes the virtual dataset over the ``shards`` of ``arrays``, all packed as HDF5, and has zarr.json of
    each array say so. The caller holds the lock of each array. Raises ``LockedError`` for a shard that was
    changed meanwhile, ``ShardFormatError``, ``StorageError``."""
    check_finished(store.root)
    check_not_between_versions(store.root)
    there = [shard for shard in shards if beneath.exists(shard.path)]
    _write_virtual(store.root, arrays, there)
    highest = [store.root, *groups_above(store.root)][-1]
    with without_copies(highest, [array.path for array in arrays]):
        for array in arrays:
            before = read_metadata(array.path, foreign=True)
            if (after := contained_array(before, HDF5)) != before:
                with ShardSums(array.path).held(create=False):  # no edit changes a shard meanwhile
                    _check_unchanged([shard for shard in there if shard.array.path == array.path])
                    replace_file(array.path / DOCUMENT, encode_document(after, foreign=True))


def _check_unchanged(shards: Sequence[Shard]) -> None:
    """Raises ``LockedError`` if a shard is not as it was packed."""
    for shard in shards:
        check_not_edited(shard.array.path, shard.key)
        with SourceShard(shard.array, shard.coordinates) as source:
            if not is_hdf5(source):
                raise LockedError(
                    f"{shard.path} was changed while the store was packed as HDF5",
                    hint="Run the same command again when nothing else writes to the store",
                )


def _write_virtual(root: Path, arrays: Sequence[StoredArray], shards: Sequence[Shard]) -> None:
    """Writes a dataset for each array. Shards that are not there are fill value, those over its edge are
    cut; what lies outside its shape is left out."""
    h5py, target = _h5py(), root / HDF5_NAME
    with AtomicFile(working_path(arrays[0], HDF5_NAME), "compact", called=target) as working:
        file = _Hdf5File(working.descriptor, working.write)
        with file, _written_by_h5py(target, file) as whole:
            for array in arrays:
                layout = h5py.VirtualLayout(shape=array.shape, dtype=array.dtype)
                for shard in shards:
                    if shard.array.path == array.path and array.contains_shard(shard.coordinates):
                        at = np.array(shard.coordinates) * array.shard_shape
                        sizes = np.minimum(array.shard_shape, array.shape - at)
                        name = shard.path.relative_to(root).as_posix()
                        part = h5py.VirtualSource(name, _DATASET, array.shard_shape, array.dtype)
                        layout[tuple(map(slice, at, at + sizes))] = part[tuple(map(slice, sizes))]
                name = array.path.relative_to(root).as_posix()
                name = _DATASET if name == "." else name
                whole.create_virtual_dataset(name, layout, fillvalue=array.fill_element[()])
                file.check()
        working.sync()
        working.replace(target)
