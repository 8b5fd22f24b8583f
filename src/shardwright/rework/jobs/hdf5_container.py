"""Shards packed as HDF5 files that stay shards (``read.hdf5_shard``), and the one HDF5 file over all of them.

A whole array changes at once for every reader, at whatever moment the job is killed:

    each shard      packed as HDF5, its index at the start, and the same index behind HDF5 as long as
                    zarr.json says that it is at the end. Old and new shards lie side by side: each is read
                    as before
    acquisition.h5  the virtual dataset over the shards, with names relative to it
    zarr.json       of each array, once all of its shards have an index at the start that is the one at the
                    end: it says ``start``, and that the shards are HDF5 files. No shard is edited from then
                    on

What stays behind HDF5 in each file is for readers that have read zarr.json before, until a library that
changes the file by HDF5 cuts it off.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.array.document import encode_document
from shardwright.array.metadata import contained_array
from shardwright.disk import beneath
from shardwright.disk.files import AtomicFile, replace_file
from shardwright.disk.read_file import ReadFile
from shardwright.disk.working_file import WorkingFile
from shardwright.model.errors import LockedError, ShardFormatError, StorageError
from shardwright.model.names import DOCUMENT
from shardwright.read.hdf5_shard import (
    DATASET,
    HDF5,
    FileOfHdf5,
    entries_of,
    find_user_block,
    hdf5_fault,
    hdf5_filter,
    import_h5py,
    user_block_bytes,
)
from shardwright.read.store import read_metadata
from shardwright.rework.change_checks import check_finished, check_not_between_versions
from shardwright.rework.consolidated_copies import without_copies
from shardwright.rework.pack_plan import chunk_error
from shardwright.rework.runtime.work_folder import working_path
from shardwright.rework.shard_copy import read_back, read_back_error
from shardwright.rework.source_shard import PackedBytes, SourceShard
from shardwright.shard.edit_files import check_not_edited
from shardwright.shard.index import empty_index
from shardwright.shard.shard_description import description_in, encode_description
from shardwright.shard.shard_sums import ShardSums, shard_sum

from .recode import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.pack_plan import PackPlan, UInt32s
    from shardwright.rework.runtime.throttle import Throttle

    from .sealed_shards import Shard

VIRTUAL_NAME = "acquisition.h5"
_BARE_NAME = "data"  # of the dataset over an array that lies in no group
_METADATA_BYTES = 8 << 10  # of HDF5, beside what each chunk takes


def is_hdf5(source: SourceShard, *, describe: bool, compare: bool) -> bool:
    """Returns whether nothing is to be done for a shard: it is an HDF5 file as well, and has a description if
    it is to (``describe``). ``compare``: its HDF5 says the same of each chunk, by h5py. Raises
    ``ConfigError``."""
    block = source.user_block
    if block is None or (compare and _fault(source) is not None):
        return False
    return not describe or description_in(source.index, source.file.read, block) is not None


def _fault(source: SourceShard) -> str | None:
    file, entries = source.file, source.index.entries
    return hdf5_fault(source.array.with_index_at_start(), entries, file.nbytes, file.read)


def was_hdf5(source: SourceShard) -> bool:
    """Returns whether a shard is an HDF5 file that a run of this job has made, and that was edited since: its
    index at the start is an older one. Without a checksum no bytes are known to be one."""
    index, file = source.array.with_index_at_start().index, source.file
    if source.array.index_location != "end" or not index.codec.has_checksum:
        return False
    if find_user_block(index.nbytes, file.nbytes, file.read) is None:
        return False
    with suppress(ShardFormatError):
        index.decode(bytes(file.read(0, index.nbytes)))
        return True
    return False


def most_bytes(plan: PackPlan) -> int:
    """The most that the HDF5 file of a shard may have."""
    nodes = (64 + len(plan.chunks)) * (80 + 16 * len(plan.array.shape))
    return _user_block(plan) + plan.live_bytes + nodes + _METADATA_BYTES + plan.index_bytes


def _user_block(plan: PackPlan) -> int:
    return user_block_bytes(plan.array.with_index_at_start().index_bytes + len(plan.description))


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
    array = source.array
    with WorkingFile(working_path(array, source.key), most_bytes(plan), source.file.status) as working:
        working.copy_attributes(source.file.descriptor)
        chunks, block = PackedBytes(source, plan), _user_block(plan)
        entries, end = _write_hdf5(working, plan, block, chunks, throttle)
        parts = [(int(entries["offset"][n]), int(entries["nbytes"][n])) for n in plan.chunks.tolist()]
        known = dict(zip(parts, chunks.crcs.tolist(), strict=True))
        written = [(0, array.with_index_at_start().index.encode(entries))]
        if plan.description:
            value = shard_sum(plan.chunks, plan.nbytes, chunks.crcs)
            described = array.with_index_at_start().described
            text = encode_description(described, plan.shard, value)
            written.append((block - len(text), text))
        if array.index_location == "end":
            index = array.index.encode(entries)
            written.append((end, index))
            end += len(index)
        for offset, data in written:
            working.write(offset, data)
            known[offset, len(data)] = crc32c.crc32c(data)
        working.finish(end)
        _check(working, array, entries, end, known, throttle)
        check_untouched(chunks.crcs)
        working.replace(plan.path, may_replace)
    return end


def _write_hdf5(
    working: WorkingFile, plan: PackPlan, block: int, chunks: PackedBytes, throttle: Throttle
) -> tuple[np.ndarray, int]:
    """Writes HDF5 from ``block`` on. Returns the index entries of the chunks, and where HDF5 ends."""
    h5py, array = import_h5py(), plan.array
    file = FileOfHdf5(working.read_anywhere, 0, working.write_anywhere)
    places = np.stack(np.unravel_index(plan.chunks, array.shard_chunks), 1) * np.array(array.chunk_shape)
    with h5py.File(file, "w", userblock_size=block) as made:
        dataset = _new_dataset(h5py, made, array)
        for first, stop in batches(plan):
            read = np.empty(int(plan.nbytes[first:stop].sum()), np.uint8)
            throttle.take(2 * read.size)
            chunks.read_into(read)
            for i, data in enumerate(np.split(read, np.cumsum(plan.nbytes[first:stop])[:-1]), first):
                if array.codecs.name == "zstd" and _zstd_content_bytes(data) != array.chunk_bytes:
                    what = "the zstd frame does not tell its whole size, which HDF5's filter needs"
                    raise chunk_error(array, plan.shard, int(plan.chunks[i]), what)
                dataset.id.write_direct_chunk(tuple(places[i].tolist()), data)
                file.check()
        entries = entries_of(dataset, array)
    file.check()
    wanted = empty_index(array.chunks_per_shard)
    wanted["nbytes"][plan.chunks] = plan.nbytes
    if not np.array_equal(entries["nbytes"], wanted["nbytes"]):
        raise StorageError(f"h5py has not written the chunks of {plan.path} as they were given to it")
    return entries, file.nbytes


def _new_dataset(h5py: Any, made: Any, array: StoredArray) -> Any:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(array.chunk_shape)
    properties.set_obj_track_times(False)  # the same chunks make the same file
    properties.set_fill_value(array.fill_element)
    if (used := hdf5_filter(array)) is not None:
        # optional: the library that writes need not have the filter, since it encodes nothing
        properties.set_filter(used[0], h5py.h5z.FLAG_OPTIONAL, used[1])
    kind = h5py.h5t.py_create(array.dtype, logical=True)
    space = h5py.h5s.create_simple(array.shard_shape)
    return h5py.Dataset(h5py.h5d.create(made.id, DATASET.encode(), kind, space, properties))


def _zstd_content_bytes(frame: np.ndarray) -> int | None:
    """Returns the decoded size that the header of a zstd frame tells (RFC 8878), None if it tells none."""
    descriptor = int(frame[4]) if frame.size > 4 else 0
    size_flag, is_single = descriptor >> 6, descriptor >> 5 & 1
    nbytes = (is_single, 2, 4, 8)[size_flag]
    start = 5 + (1 - is_single) + (0, 1, 2, 4)[descriptor & 3]
    if not nbytes or frame.size < start + nbytes:
        return None
    return int.from_bytes(frame[start : start + nbytes].tobytes(), "little") + (256 if nbytes == 2 else 0)


def _check(
    working: WorkingFile,
    array: StoredArray,
    entries: np.ndarray,
    nbytes: int,
    known: dict[tuple[int, int], int],
    throttle: Throttle,
) -> None:
    """Compares what the disk gives back with what was written: each chunk, both indexes, the description; and
    what HDF5 says of the chunks with the index. Raises ``StorageError``."""
    segments: list[tuple[int, int, int | None]] = []  # offset, size, crc32c; None of HDF5's own bytes
    at = 0
    for (offset, size), value in [*sorted(known.items()), ((nbytes, 0), 0)]:
        if offset > at:
            segments.append((at, offset - at, None))
        if size:
            segments.append((offset, size, value))
        at = offset + size
    sizes = np.array([size for _, size, _ in segments], np.int64)
    found = read_back(working, sizes, throttle).values.tolist()
    for (offset, _, wanted), got in zip(segments, found, strict=True):
        if wanted is not None and wanted != got:
            raise read_back_error(f"what lies at {offset} of {working.path}", wanted, got)
    file = ReadFile.open(working.path)
    try:
        fault = hdf5_fault(array.with_index_at_start(), entries, nbytes, file.read)
    finally:
        file.close()
    if fault is not None:
        raise StorageError(f"{working.path} does not read back as HDF5: {fault}")


def check_store(store: Store) -> None:
    """Raises ``ShardFormatError``, ``ConfigError``, ``LockedError`` for a store that cannot be packed as
    HDF5. Nothing was changed then."""
    import_h5py()
    check_finished(store.root)
    check_not_between_versions(store.root)
    if store.shard is not None:
        raise ShardFormatError(
            f"{store.root} is packed as HDF5 as a whole", got="one shard", hint="Give the whole store"
        )
    for array in store.arrays:
        hdf5_filter(array)


def publish(store: Store, arrays: Sequence[StoredArray], shards: Sequence[Shard]) -> None:
    """Makes the virtual dataset over the ``shards`` of ``arrays``, all packed as HDF5, and has zarr.json of
    each array say so. The caller holds the lock of each array. Raises ``LockedError`` for a shard that was
    changed meanwhile, ``ShardFormatError``, ``StorageError``."""
    check_finished(store.root)
    check_not_between_versions(store.root)
    of_array: dict[Path, list[Shard]] = {array.path: [] for array in arrays}
    for shard in shards:
        if shard.array.path in of_array:
            of_array[shard.array.path].append(shard)
    _write_virtual(store.root, arrays, of_array)
    todo = [array for array in arrays if array.container is None]
    above = takewhile(lambda folder: beneath.is_file(folder / DOCUMENT), store.root.parents)
    with without_copies([store.root, *above][-1], [array.path for array in todo]):
        for array in todo:
            with _unedited(array, of_array[array.path]):
                document = contained_array(read_metadata(array.path, foreign=True), HDF5)
                replace_file(array.path / DOCUMENT, encode_document(document, foreign=True))


@contextmanager
def _unedited(array: StoredArray, shards: Sequence[Shard]) -> Iterator[None]:
    """A context in which no edit changes a shard, and each is what both of its indexes say."""
    with ShardSums(array.path).held(create=False):
        for shard in shards:
            check_not_edited(array.path, shard.key)
            if not beneath.exists(shard.path):
                continue
            with SourceShard(array, shard.coordinates) as source:
                if source.user_block is None or _fault(source) is not None:
                    raise LockedError(
                        f"{shard.path} was changed while the store was packed as HDF5",
                        hint="Run the same command again when nothing else writes to the store",
                    )
        yield


def _write_virtual(root: Path, arrays: Sequence[StoredArray], shards: Mapping[Path, Sequence[Shard]]) -> None:
    h5py = import_h5py()
    target, made = root / VIRTUAL_NAME, working_path(arrays[0], VIRTUAL_NAME)
    with AtomicFile(made, "compact", called=target) as working:
        file = FileOfHdf5(lambda at, n: os.pread(working.descriptor, n, at), 0, working.write)
        with h5py.File(file, "w") as whole:
            for array in arrays:
                name = array.path.relative_to(root).as_posix()
                name = _BARE_NAME if name == "." else name
                _add_virtual(h5py, whole, root, name, array, shards[array.path])
                file.check()
        file.check()
        working.sync()
        working.replace(target)


def _add_virtual(
    h5py: Any, whole: Any, root: Path, name: str, array: StoredArray, shards: Sequence[Shard]
) -> None:
    """Adds the dataset of one array. Shards that are not there are fill value, those over its edge are cut;
    what lies outside its shape is left out."""
    layout = h5py.VirtualLayout(shape=array.shape, dtype=array.dtype)
    for shard in shards:
        if array.contains_shard(shard.coordinates) and beneath.exists(shard.path):
            starts = [at * length for at, length in zip(shard.coordinates, array.shard_shape, strict=True)]
            there = zip(starts, array.shard_shape, array.shape, strict=True)
            sizes = [min(length, extent - start) for start, length, extent in there]
            file = shard.path.relative_to(root).as_posix()
            source = h5py.VirtualSource(file, DATASET, shape=array.shard_shape, dtype=array.dtype)
            place = tuple(slice(at, at + size) for at, size in zip(starts, sizes, strict=True))
            layout[place] = source[tuple(slice(0, size) for size in sizes)]
    whole.create_virtual_dataset(name, layout, fillvalue=array.fill_element[()])
