"""The sealed shards of a shard row that is reopened: their chunks are read, or copied unchanged into files in
progress.

The shards keep their final names, so that readers miss nothing, until the new ones have all of their chunks
and take these names.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import storage_errors
from shardwright.model.errors import ShardFormatError, StorageError

from .index import EMPTY as ABSENT
from .journal import CHUNK_ENTRY
from .layout import chunks_of_slab, page_aligned
from .row_checksum import seal_rows
from .sealed_shard import SealedShard
from .shard_sums import SUMS_NAME, data_crc, shard_sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import Self

    from .layout import ArrayLayout, ShardLayout, SlabChunks
    from .shard_row_files import Placement, ShardRowFiles
    from .shard_sums import Sum


@contextmanager
def _old(path: Path) -> Iterator[None]:
    """Turns a ``StorageError`` of an old file into a ``ShardFormatError``: that costs only its shard row,
    while a ``StorageError`` would end the acquisition."""
    try:
        with storage_errors("read", path):
            yield
    except StorageError as error:
        raise ShardFormatError(error.message) from error


class _SummedShard:
    """A shard under its final name, with the checksums of its chunks. ``data_crcs``: of those read so far, as
    a worker would journal them. For a chunk whose inner crc32c does not fit it is that of all its bytes, so
    that it is kept unchanged. Raises ``ShardFormatError`` for all that cannot be read."""

    def __init__(self, layout: ShardLayout, path: Path, *, inner_checksum: bool) -> None:
        self._path = path
        self._inner_checksum = inner_checksum
        with _old(path):
            reach("sealed.before_read")
            self._sealed = SealedShard.open(path, layout.index, spilled=False)
            try:
                self._index = self._sealed.index
            except BaseException:
                self.close()
                raise
        self.allocated_bytes = self._sealed.file.allocated_bytes
        here = self._index.entries[self._index.live]
        self.data_end = int((here["offset"] + here["nbytes"]).max(initial=0))
        # packed otherwise by a compaction, its chunks may lie where a shard in progress has its index
        self.keeps_offsets = int(here["offset"].min(initial=layout.data_start)) >= layout.data_start
        self._was_read = np.zeros(layout.chunks, np.bool_)
        self.data_crcs = np.zeros(layout.chunks, np.uint32)
        # the inner crc32c of each chunk, if chunks have one
        self._own_crcs = np.zeros(layout.chunks, np.uint32)

    def offset(self, entry: int) -> int:
        return int(self._index.entries["offset"][entry])

    def chunk(self, entry: int) -> memoryview | None:
        """Returns the encoded bytes of one chunk, None when it is absent. Raises ``ShardFormatError``."""
        if not self._index.present[entry]:
            return None
        self._index.check(entry, f"{entry} of {self._path}")
        with _old(self._path):
            data = self._sealed.file.read(self.offset(entry), int(self._index.entries["nbytes"][entry]))
        if not self._was_read[entry]:
            self._note_crcs(entry, data)
        return data

    def _note_crcs(self, entry: int, data: memoryview) -> None:
        crc = own = data_crc(data, has_inner=self._inner_checksum)
        if self._inner_checksum:
            own = data_crc(data, has_inner=True, inner_is_believed=True)
            if own != crc:
                crc = data_crc(data, has_inner=False)
        self._was_read[entry], self.data_crcs[entry], self._own_crcs[entry] = True, crc, own

    def sums(self) -> set[Sum]:
        """Returns the sums that the array's record may have for this shard: by its chunks' bytes, and by
        their inner checksums. The latter identify the shard also if chunks were damaged since. Raises
        ``ShardFormatError``."""
        there = np.flatnonzero(self._index.present)
        for entry in there[~self._was_read[there]].tolist():
            self.chunk(entry)
        if not there.size:
            return {None}
        return {
            shard_sum(there, self._index.entries["nbytes"][there], crcs[there])
            for crcs in (self.data_crcs, self._own_crcs)
        }

    def close(self) -> None:
        self._sealed.close()


class SealedShardRow:
    """The shards of one sealed shard row, open for reading; a context manager. ``shards[f]`` is None if all
    of file f is fill value.

    Raises ``ShardFormatError`` when a shard cannot be read, or is missing although the array's record has
    it."""

    def __init__(
        self, layout: ArrayLayout, shard_row: int, placements: Iterable[Placement], *, inner_checksum: bool
    ) -> None:
        self.shard_row = shard_row
        self._layout = layout
        self._files = ExitStack()
        self.placement = placement_of(layout, shard_row, placements)
        self._paths = list(map(self.placement.final, layout.shard_paths(shard_row)))
        self._known = _sums_on_record(layout, shard_row, self.placement)
        self._shards: list[_SummedShard | None] = []
        with ExitStack() as opened:
            for file, path in enumerate(self._paths):
                there = beneath.exists(path)
                shard = (
                    _SummedShard(layout.shard(shard_row, file), path, inner_checksum=inner_checksum)
                    if there
                    else None
                )
                if shard is not None:
                    opened.callback(shard.close)
                elif self._known[file] and None not in self._known[file]:
                    raise ShardFormatError(f"{path} is not there, though it was sealed")
                self._shards.append(shard)
            self._files = opened.pop_all()

    def check(self) -> None:
        """Checks that these are the shards that were sealed: a foreign file in their place must not get a
        valid sum. Reads all chunks that were not read yet. Raises ``ShardFormatError``."""
        for path, known, shard in zip(self._paths, self._known, self._shards, strict=True):
            if shard is not None and known and known.isdisjoint(shard.sums()):
                raise ShardFormatError(f"{path} is not what was sealed (record: {SUMS_NAME})")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @property
    def shards(self) -> int:
        return sum(shard is not None for shard in self._shards)

    @property
    def allocated_bytes(self) -> int:
        return sum(shard.allocated_bytes for shard in self._shards if shard is not None)

    def used(self) -> np.ndarray:
        """Returns int64[files]: the end of the last page that the chunks of each file are in."""
        return np.array([0 if s is None else page_aligned(s.data_end) for s in self._shards], np.int64)

    def chunks(self, slab_chunks: SlabChunks) -> list[memoryview | None]:
        """Returns the encoded chunks of one slab, in the order of ``slab_chunks``; None for one that is all
        fill."""
        shards = [self._shards[file] for file in slab_chunks.file.tolist()]
        return [
            None if shard is None else shard.chunk(entry)
            for shard, entry in zip(shards, slab_chunks.entry.tolist(), strict=True)
        ]

    def copy_slab(self, slab: int, records: np.ndarray, new: ShardRowFiles) -> int:
        """Copies one slab unchanged, damage included, into files in progress. ``records`` [frames_per_slab]:
        of its frames, zeros where none came. Returns the bytes copied. Raises ``ShardFormatError``,
        ``StorageError``."""
        slab_chunks = chunks_of_slab(self._layout, slab)
        entries = np.zeros(slab_chunks.slot.size, CHUNK_ENTRY)
        entries["offset"] = entries["nbytes"] = ABSENT
        entries["writer_epoch"] = new.journal.writer_epoch
        for i, chunk in enumerate(self.chunks(slab_chunks)):
            if chunk is None:
                continue
            file, entry = int(slab_chunks.file[i]), int(slab_chunks.entry[i])
            old, target = self._shards[file], new.slots[file]
            assert old is not None, "it has this chunk"
            if not new.in_runs:
                offset = int(new.offsets(slab_chunks.file[i], slab_chunks.slot[i]))
            elif new.live and old.keeps_offsets:  # a reader may have the old index, and meet the new file
                offset = old.offset(entry)
            else:
                offset = int(new.cursors[file])
                new.cursors[file] += len(chunk)
            target.copy_in(offset, chunk)
            entries["offset"][i], entries["nbytes"][i] = offset, len(chunk)
            entries["data_crc"][i] = old.data_crcs[entry]
            target.entries["offset"][entry], target.entries["nbytes"][entry] = offset, len(chunk)
        seal_rows(entries, new.journal.seed)
        tables = []
        for file, _, _ in new.journal.layout.slots_of_slab(slab_chunks.slot_layer):
            mine = np.flatnonzero(slab_chunks.file == file)
            tables.append(entries[mine[np.argsort(slab_chunks.slot[mine])]])
        new.journal.copy_slab(slab_chunks.slot_layer, _sealed(records, new.journal.seed), tables)
        return int(entries["nbytes"][entries["offset"] != ABSENT].sum())


def _sums_on_record(layout: ArrayLayout, shard_row: int, placement: Placement) -> list[set[Sum]]:
    """Returns the sums of each file of a shard row, as the record of its array has them."""
    keys: dict[str, dict[str, int]] = {}
    for file, path in enumerate(layout.paths_of_files(shard_row)):
        keys.setdefault(path, {})[layout.shard_key(shard_row, file)] = file
    known: list[set[Sum]] = [set() for _ in range(layout.files_of(shard_row))]
    for path, files in keys.items():
        sums = placement.record(path)
        with _old(sums.path):
            for key, found in sums.of_each(files).items():
                known[files[key]] = found
    return known


def placement_of(layout: ArrayLayout, shard_row: int, placements: Iterable[Placement]) -> Placement:
    """Returns the placement of the sealed shards of a shard row, the first one when it has none."""
    folders = list(placements)
    for placement in folders:
        if any(map(beneath.is_file, map(placement.final, layout.shard_paths(shard_row)))):
            return placement
    return folders[0]


def _sealed(records: np.ndarray, seed: int) -> np.ndarray:
    """Returns frame records as a journal has them; records of zeros stay zeros."""
    sealed, came = records.copy(), records["status"] != 0
    sealed["slab_frames"] = int(came.sum()) % (1 << 16)
    sealed["pixels_crc"] = 0
    seal_rows(sealed, seed)
    sealed[~came] = np.zeros(1, records.dtype)
    return sealed
