"""One shard file between its preallocation and its final name.

Workers write chunks, into slots or packed, and their (offset, nbytes) into ``entries``; no two workers ever
touch the same element or byte, so nothing is locked. The keeper thread creates and seals it: index -> end
filling (unmap) -> gaps back -> cut -> sync -> rename without replacing -> folder sync. Only a complete shard
carries a final name; a shard whose seal failed keeps its working name and is never retried in place.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import StorageFullError
from shardwright.storage.failpoints import reach
from shardwright.storage.files import (
    make_directories,
    rename_without_replacing,
    replace_by_rename,
    storage_errors,
    sync_directory,
)
from shardwright.storage.slot_file import IoMode, SlotFile

from .index import EMPTY, empty_index, encode_index
from .layout import ShardLayout, page_aligned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .shard_sums import ShardSums


@dataclass(frozen=True)
class SealedShard:
    """What a seal made: ``stored_bytes`` counts live chunk bytes and the index; ``path`` is None when every
    chunk was all fill."""

    path: Path | None
    stored_bytes: int
    gap_bytes: int


class OpenShard:
    """``working_path`` is a name no reader takes for a chunk, ``final_path`` the chunk's own; both on one
    filesystem. ``replaces``: an older shard, all of whose frames this one has, keeps the final name until
    this one takes it, while that array's record is held."""

    def __init__(
        self,
        layout: ShardLayout,
        working_path: Path,
        final_path: Path,
        io: IoMode,
        *,
        link: Path | None = None,
        existing: bool = False,
        replaces: ShardSums | None = None,
    ) -> None:
        self.layout = layout
        self._replaces = replaces
        self.final_path = final_path
        self.link = link
        self._ready: SealedShard | None = None  # complete and synced, under its working name
        self.renamed = False
        self.entries = empty_index(layout.chunks)
        self._file = SlotFile(working_path, layout.file_bytes, io, existing=existing)

    @property
    def slots_address(self) -> int | None:
        """Where slot 0 is mapped; None when slots are written through ``descriptor``."""
        return None if self._file.address is None else self._file.address + self.layout.data_start

    @property
    def cached(self) -> bool:
        """Whether what is written passes the page cache."""
        return not self._file.direct

    @property
    def descriptor(self) -> int:
        return self._file.descriptor

    @property
    def working_path(self) -> Path:
        return self._file.path

    def rename(self, path: Path) -> None:
        """Give the shard in progress another working name, whatever has it now. Raises ``StorageError``."""
        self._file.rename(path)

    def record(self, entries: np.ndarray, offsets: np.ndarray, nbytes: np.ndarray) -> None:
        """Note what was encoded: int64 arrays of equal length; chunks of 0 bytes stay absent. Called by
        workers for chunks of their own."""
        here = nbytes > 0
        self.entries["offset"][entries[here]] = offsets[here]
        self.entries["nbytes"][entries[here]] = nbytes[here]

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the file as they are now. Raises ``StorageError``."""
        return self._file.read(offset, nbytes)

    def copy_in(self, offset: int, data: bytes) -> None:
        """Put a chunk that was encoded before where it was in another file; only the owner, while no worker
        writes."""
        self._file.write(offset, data)

    def first_free(self) -> int:
        """Where the next run of a packed shard goes: the first page behind all chunks. Only the owner, while
        no worker writes."""
        return page_aligned(self._data_end())

    def _data_end(self) -> int:
        live = self.entries[self.entries["offset"] != EMPTY]
        return int((live["offset"] + live["nbytes"]).max(initial=self.layout.data_start))

    def reserve_behind(self, start: int) -> None:
        """Hold room back for every chunk of a packed shard that is still to come, from ``start`` on: what a
        crash left of dropped chunks lies before. Where the disk has no room, the writes that come will say
        so. What is left of that page becomes zeros: an index that was written before the crash may have begun
        there, and compaction keeps what it does not know.
        """
        live = int((self.entries["offset"] != EMPTY).sum())
        end = self._data_end()
        if end < start and not self._file.punch(end, start - end):
            self._file.write(end, bytes(start - end))
        with suppress(StorageFullError):
            self._file.reserve(
                start
                + (self.layout.slots - live) * self.layout.slot_bytes
                + page_aligned(self.layout.index_bytes)
            )

    def sync(self) -> None:
        """What was written before this call is durable after it. Raises ``StorageError``: the shard has then
        failed, whatever a later sync says."""
        self._file.sync()

    def seal(self, may_rename: Callable[[], None] = lambda: None) -> SealedShard:
        """Finish the file under its final name. Raises ``StorageError`` (it has then failed),
        ``OutputExistsError`` or what ``may_rename`` does.

        After a ``StorageFullError``, once there is room, it may be called again and goes on where it was.
        """
        sealed = self.complete()
        if sealed.path is None:
            # only now: a missing file says that sealing has begun, which the journal must know all of the
            # frames by then
            if not self.renamed:
                may_rename()
                self._file.discard()
                self.renamed = True
            return sealed
        if not self.renamed:
            may_rename()  # of a store that was deleted meanwhile no folder is made again
            make_directories(self.final_path.parent)
            self._reach("shard.before_rename")
            if self._replaces is None:
                may_rename()
                rename_without_replacing(self._file.path, self.final_path)
            else:
                with self._replaces.held():  # a compaction may be about to replace the old one as well
                    may_rename()
                    replace_by_rename(self._file.path, self.final_path)
            self.renamed = True
        sync_directory(self.final_path.parent)
        if self.link is not None:
            make_link(self.link, self.final_path)
        self._file.close()
        return sealed

    def complete(self) -> SealedShard:
        """Everything but the final name: index, gaps, length, sync. Once; raises ``StorageError``."""
        if self._ready is None:
            self._ready = self._finish_file()
        return self._ready

    def _finish_file(self) -> SealedShard:
        """Everything before the rename."""
        live = np.sort(self.entries[self.entries["offset"] != EMPTY], order="offset")
        if live.size == 0:
            return SealedShard(None, 0, 0)
        ends = live["offset"] + live["nbytes"]
        data_end = int(ends[-1])
        index = encode_index(self.entries)
        index_offset = 0 if self.layout.index_at_start else data_end
        self._reach("shard.before_index")
        self._file.write(index_offset, index)
        self._file.end_filling()
        gap_bytes = self._give_gaps_back(live["offset"], ends)
        self._file.truncate(data_end if self.layout.index_at_start else data_end + len(index))
        self._file.sync()
        self._file.drop_cache()
        return SealedShard(self.final_path, int(live["nbytes"].sum()) + len(index), gap_bytes)

    def _reach(self, point: str) -> None:
        with storage_errors("seal", self._file.path):
            reach(point)

    def _give_gaps_back(self, starts: np.ndarray, ends: np.ndarray) -> int:
        """Punch the whole pages between one chunk's end and the next one's start; returns the bytes of all
        gaps."""
        previous_end = self.layout.index_bytes if self.layout.index_at_start else 0
        gap_bytes = 0
        supported = True
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            gap_bytes += start - previous_end
            hole = page_aligned(previous_end)
            if supported and start > hole:
                supported = self._file.punch(hole, start - hole)
            previous_end = end
        return gap_bytes

    def discard(self) -> None:
        """Delete a shard that holds nothing."""
        self._file.discard()

    def abandon(self) -> None:
        """Close without sealing; the working file stays for whoever wants to recover it."""
        self._file.close()


def make_link(link: Path, target: Path) -> None:
    """Let the store name a shard that lies below the second root. Raises ``StorageError``."""
    make_directories(link.parent)
    with storage_errors("link", link):
        reach("shard.before_link")
        with suppress(FileExistsError):
            link.symlink_to(target)
    sync_directory(link.parent)
