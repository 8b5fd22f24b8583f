"""The sealed shards of a group that takes frames again: their chunks are read, and copied as they are into files in progress.

The shards keep their final names, so that readers miss nothing, until the new ones, which then have all of their chunks, take these names.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.storage.files import storage_errors

from .index import EMPTY as ABSENT
from .index import decode_index
from .journal import CHUNK_ENTRY, seal_rows
from .read_back import INNER_CHECKSUM_BYTES
from .slab_map import slab_places

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Self

    from .group_files import GroupFiles, Placement
    from .layout import ArrayLayout, ShardLayout
    from .slab_map import SlabPlaces


class _FinalShard:
    """One shard under its final name. Raises ``ShardFormatError`` when it has no index, ``StorageError``."""

    def __init__(self, layout: ShardLayout, path: Path) -> None:
        self._path = path
        with storage_errors("open", path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not wait for a writer
        try:
            status = os.fstat(self._descriptor)
            self.allocated_bytes = status.st_blocks * 512
            place = 0 if layout.index_at_start else max(0, status.st_size - layout.index_bytes)
            self._entries = decode_index(self._read(place, layout.index_bytes), layout.chunks)
        except BaseException:
            self.close()
            raise

    def chunk(self, entry: int) -> bytes | None:
        """The encoded bytes of one chunk; None when it is absent. Raises ``ShardFormatError``, ``StorageError``."""
        offset, nbytes = int(self._entries["offset"][entry]), int(self._entries["nbytes"][entry])
        return None if offset == ABSENT else self._read(offset, nbytes)

    def _read(self, offset: int, nbytes: int) -> bytes:
        pieces, done = [], 0
        with storage_errors("read", self._path), suppress(OverflowError):  # no file has such an offset
            while done < nbytes and (piece := os.pread(self._descriptor, min(nbytes - done, 1 << 30), offset + done)):
                pieces.append(piece)
                done += len(piece)
        if done < nbytes:
            raise ShardFormatError(f"{self._path} ends too early", expected=f"{nbytes} bytes at {offset}", got=done)
        return b"".join(pieces)

    def close(self) -> None:
        os.close(self._descriptor)


class SealedRow:
    """The shards of one sealed group, open for reading; a context manager. ``shards[f]`` is None where all of file f is fill value."""

    def __init__(self, layout: ArrayLayout, group: int, placements: Iterable[Placement]) -> None:
        self.group = group
        self._layout = layout
        self._files = ExitStack()
        self.placement = placement_of(layout, group, placements)
        self._shards: list[_FinalShard | None] = []
        with ExitStack() as opened:
            for file in range(layout.files_per_group):
                path = self.placement.final(layout.shard_key(group, file))
                shard = _FinalShard(layout.shard(group, file), path) if path.exists() else None
                if shard is not None:
                    opened.callback(shard.close)
                self._shards.append(shard)
            self._files = opened.pop_all()

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

    def chunks(self, places: SlabPlaces) -> list[bytes | None]:
        """Of one slab, in the order of ``places``; None for a chunk that is all fill."""
        shards = [self._shards[file] for file in places.file.tolist()]
        return [None if shard is None else shard.chunk(entry) for shard, entry in zip(shards, places.entry.tolist(), strict=True)]

    def copy_slab(self, slab: int, records: np.ndarray, new: GroupFiles, *, inner_checksum: bool) -> int:
        """One slab as it is, damage included, into files in progress; ``records`` [frames_per_slab] are its frames', zeros where none came.
        Returns the bytes copied. Raises ``ShardFormatError``, ``StorageError``."""
        layout, places = self._layout, slab_places(self._layout, slab)
        entries = np.zeros(places.slot.size, CHUNK_ENTRY)
        entries["offset"] = entries["nbytes"] = ABSENT
        entries["writer_epoch"] = new.journal.writer_epoch
        for i, chunk in enumerate(self.chunks(places)):
            if chunk is None:
                continue
            if len(chunk) > layout.slot_bytes:
                raise ShardFormatError("a chunk is longer than its slot", expected=f"at most {layout.slot_bytes} bytes", got=len(chunk))
            file = int(places.file[i])
            target = new.slots[file]
            offset = int(new.cursors[file]) if new.journal.packed else target.layout.data_start + int(places.slot[i]) * layout.slot_bytes
            new.cursors[file] += len(chunk)
            target.copy_in(offset, chunk)
            entries["offset"][i], entries["nbytes"][i] = offset, len(chunk)
            entries["data_crc"][i] = _data_crc(chunk, inner_checksum=inner_checksum)
            target.entries["offset"][places.entry[i]], target.entries["nbytes"][places.entry[i]] = offset, len(chunk)
        seal_rows(entries, new.journal.seed)
        tables = []
        for file in range(layout.files_per_group):
            mine = np.flatnonzero(places.file == file)
            tables.append(entries[mine[np.argsort(places.slot[mine])]])
        new.journal.copy_slab(places.slot_layer, _sealed(records, new.journal.seed), tables)
        return int(entries["nbytes"][entries["offset"] != ABSENT].sum())


def placement_of(layout: ArrayLayout, group: int, placements: Iterable[Placement]) -> Placement:
    """Where the sealed shards of a group lie; the first place when it has none."""
    places = list(placements)
    for placement in places:
        finals = [placement.final(layout.shard_key(group, file)) for file in range(layout.files_per_group)]
        if any(final.is_file() and not final.is_symlink() for final in finals):
            return placement
    return places[0]


def _data_crc(chunk: bytes, *, inner_checksum: bool) -> int:
    """As a worker would journal it; of a chunk whose own crc32c does not hold, that of all its bytes, so that it stays what it is."""
    body, inner = memoryview(chunk)[:-INNER_CHECKSUM_BYTES], chunk[-INNER_CHECKSUM_BYTES:]
    crc = int(crc32c.crc32c(body))
    return crc if inner_checksum and int.from_bytes(inner, "little") == crc else int(crc32c.crc32c(inner, crc))


def _sealed(records: np.ndarray, seed: int) -> np.ndarray:
    """Frame records as a journal keeps them; a record of zeros stays one."""
    sealed, came = records.copy(), records["fate"] != 0
    sealed["slab_frames"] = int(came.sum()) % (1 << 16)
    sealed["pixels_crc"] = 0
    seal_rows(sealed, seed)
    sealed[~came] = np.zeros(1, records.dtype)
    return sealed
