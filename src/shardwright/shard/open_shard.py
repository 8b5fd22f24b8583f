"""One shard file between its preallocation and its final name.

Workers write chunks, into slots or packed, and their (offset, nbytes) into ``entries``; no two workers ever
touch the same element or byte, so nothing is locked. The sealer's thread creates the shard, and seals it in
the order of FORMAT.md, "Sealing" (``acquire.seal``). Only a complete shard has a final name, unless readers
may see it grow (``live``): then it has the final name beside the working one, or a copy that grows has it,
and it is sealed by deleting the working name. A shard whose seal failed keeps its working name and is never
retried in place.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    DurableFolders,
    is_name_of,
    remove_own,
    rename_without_replacing,
    replace_by_rename,
    storage_errors,
    sync_directory,
)
from shardwright.disk.slot_file import SlotFile
from shardwright.model.errors import OutputExistsError, StorageFullError

from .growing_copy import GrowingCopy
from .index import EMPTY, empty_index
from .layout import ShardLayout, page_aligned
from .live_index import LiveIndex
from .parity_set import forget_parity

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.model.write_options import IoMode, LiveMode

    from .shard_sums import ShardSums

_LIVE: dict[LiveMode, type[LiveIndex | GrowingCopy] | None] = {
    "none": None,
    "index": LiveIndex,
    "append": GrowingCopy,
}


@dataclass(frozen=True)
class SealResult:
    """The result of a seal: ``stored_bytes`` counts live chunk bytes and the index. It is 0 when there was no
    chunk; ``path`` is then that of an older shard that stays, or None."""

    path: Path | None
    stored_bytes: int
    gap_bytes: int


class OpenShard:
    """A shard file in progress. ``working_path`` is a name that no reader takes for a chunk, ``final_path``
    the chunk's own; both on one filesystem. ``replaces``: the record of the array, held while this shard
    takes the final name from an older one, all of whose frames it has. ``reopened``: that one was sealed.
    ``live``: its readers; then ``record`` is that record in any case. ``folders``: those of the store."""

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
        reopened: bool = False,
        live: LiveMode = "none",
        record: ShardSums | None = None,
        folders: DurableFolders | None = None,
    ) -> None:
        self.layout = layout
        self._folders = folders or DurableFolders()
        self._replaces = replaces
        self._record = record
        self._reopened = reopened
        self.final_path = final_path
        self.link = link
        self._ready: SealResult | None = None  # complete, under its working name
        self.renamed = False
        self.entries = empty_index(layout.chunks)
        self._file = SlotFile(working_path, layout.file_bytes, io, existing=existing)
        live_form = _LIVE[live]
        self.live = None if live_form is None else live_form(layout, self._file, final_path, self._folders)

    @property
    def slots_address(self) -> int | None:
        """The address of slot 0 in the mapping; None when slots are written through ``descriptor``."""
        return None if self._file.address is None else self._file.address + self.layout.data_start

    @property
    def cached(self) -> bool:
        """True if writes pass the page cache."""
        return not self._file.direct

    @property
    def descriptor(self) -> int:
        return self._file.descriptor

    @property
    def working_path(self) -> Path:
        return self._file.path

    def rename(self, path: Path) -> None:
        """Gives the shard another working name; a file that has it is replaced. Raises ``StorageError``."""
        self._file.rename(path)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Returns bytes of the file as they are now. Raises ``StorageError``."""
        return self._file.read(offset, nbytes)

    def copy_in(self, offset: int, data: bytes | memoryview) -> None:
        """Writes a chunk copied from another file. Only the owner, while no worker writes."""
        self._file.write(offset, data)

    def first_free(self) -> int:
        """Returns the start of the next run of a packed shard: the first page behind all chunks. Only the
        owner, while no worker writes."""
        return page_aligned(self._data_end())

    def _data_end(self) -> int:
        live = self.entries[self.entries["offset"] != EMPTY]
        return int((live["offset"] + live["nbytes"]).max(initial=self.layout.data_start))

    def reserve_behind(self, start: int) -> None:
        """Reserves room, from ``start`` on, for all chunks of a packed shard that are still to come; remains
        of dropped chunks lie before it. Without room on the disk, later writes will fail. The rest of the
        last page in use becomes zeros: an index written before the crash may have begun there, and compaction
        keeps bytes that it does not know.
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

    # ------------------------------------------------------------------ seen by readers while it grows

    def show(
        self, may_rename: Callable[[], None], step: Callable[[], None], *, even_fewer: bool = False
    ) -> bool:
        """Lets readers find the chunks that were put into ``live`` under the final name, in place of another
        file only if that lists no chunk that this one lacks, or with ``even_fewer``. Does nothing unless it
        is live, nor in place of a sealed shard, on which frames may rely until this one is sealed, too.
        Returns whether they see all. Raises ``StorageError``, ``OutputExistsError`` or what ``may_rename``
        raises; it may be called again."""
        if self.live is None or self._reopened:
            return True
        try:
            return self.live.show(may_rename, self._replaces, step, even_fewer=even_fewer)
        finally:
            if self.live.has_final_name:
                self._replaces = self._record

    @property
    def _is_visible(self) -> bool:
        """True if a file of this shard, or of one that it is to replace, has the final name. Raises
        ``StorageError``."""
        return self._replaces is not None and beneath.exists(self.final_path)

    @property
    def is_name_taken(self) -> bool:
        """True if another file than its own, or than one that it is to replace, has the final name. Raises
        ``StorageError``."""
        is_taken = self._replaces is None and beneath.exists(self.final_path)
        return is_taken and not is_name_of(self.final_path, self._file.descriptor)

    # ------------------------------------------------------------------ the end

    def check_names(self) -> None:
        """Raises ``OutputExistsError`` if another file than its own, or than one that it is to replace, has
        the final name, or anything but its link the name of that; ``StorageError``."""
        if self.renamed:
            return
        if self.is_name_taken:
            raise _taken(self.final_path)
        link = self.link
        if link is not None and beneath.exists(link) and not is_link_to(link, self.final_path):
            raise _taken(link)

    def sync(self) -> None:
        """Makes durable what was written before this call. Raises ``StorageError``: the shard has then
        failed, even if a later sync succeeds. One without a chunk that is gone has nothing to be synced: a
        seal that found no room for another's name comes here once more."""
        if not self.renamed or self.is_named:
            self._file.sync()

    @property
    def has_failed(self) -> bool:
        """True once a sync of it has failed: no later one, of whatever else, makes it durable."""
        return self._file.has_failed

    def take_name(self, may_rename: Callable[[], None], *, synced: bool = True) -> None:
        """Gives a complete and durable file its final name, or deletes one without a chunk. Call it after
        ``may_rename`` has looked; ``sync_name`` makes the name durable. ``synced``: folders that are made
        are durable, too. Raises ``StorageError`` (it has then failed), ``OutputExistsError`` or what
        ``may_rename`` raises. After a ``StorageFullError``, once there is room, it may be called again."""
        if self.renamed:
            # A try that found no room for another's name may have made the folders of this one, unsynced.
            if synced and self.is_named:
                self._folders.make(self.final_path.parent)
            return
        if not self.complete().stored_bytes:
            # Not with the other steps of ``complete``: to recovery a missing file means that sealing has
            # begun, and by then the journal must have all frames.
            self.check_names()  # a file of this name would be read in place of fill value
            self.remove(may_rename)
            self.renamed = True
            return
        self._folders.make(self.final_path.parent, synced=synced)
        if self.live is not None and self.live.seal(may_rename, self._replaces):
            # The file has the final name beside this one. A power cut must not take both.
            sync_directory(self.final_path.parent)
            may_rename()
            with storage_errors("delete", self._file.path):
                remove_own(self._file.path, self._file.descriptor, "shard")
        else:
            self._take_final_name(may_rename)
            if self.live is not None:
                self.live.discard()
        self.renamed = True

    def sync_name(self) -> None:
        """Makes the final name durable. A deletion needs no sync: the file that a power cut brings back holds
        nothing. Raises ``StorageError``."""
        if self.is_named:
            sync_directory(self.final_path.parent)

    def end(self, may_rename: Callable[[], None]) -> None:
        """Makes the store's link to a shard below the second root, and closes the file. Once its final name
        is durable. Raises ``StorageError`` or what ``may_rename`` raises."""
        if self.link is not None and self.complete().stored_bytes:
            make_link(self.link, self.final_path, self._folders, may_rename)
        self._file.drop_cache()
        self.abandon()

    def _take_final_name(self, may_rename: Callable[[], None]) -> None:
        self._reach("shard.before_rename")
        if self._replaces is None:
            may_rename()
            rename_without_replacing(self._file.path, self.final_path)
        else:
            with self._replaces.held():  # a compaction may be about to replace the old shard too
                forget_parity(self._replaces.path.parent, self.final_path)
                may_rename()
                replace_by_rename(self._file.path, self.final_path)

    @property
    def is_named(self) -> bool:
        """True if a file of it has the final name."""
        return self.renamed and self.complete().stored_bytes > 0

    @property
    def keeps_older(self) -> bool:
        """True if there is no chunk, and the shard that this one was to replace stays. Once complete."""
        assert self._ready is not None
        return self._ready.path is not None and not self._ready.stored_bytes

    def complete(self, step: Callable[[], None] = lambda: None) -> SealResult:
        """Does everything but the final name: index, gaps, length. Then it must be synced. Repeated calls do
        nothing more. Raises ``StorageError``."""
        if self._ready is None:
            self._ready = self._finish_file(step)
        return self._ready

    def _finish_file(self, step: Callable[[], None]) -> SealResult:
        """Does everything before the rename."""
        live = self.entries[self.entries["offset"] != EMPTY]
        live = live[np.argsort(live["offset"])]
        if live.size == 0:
            # chunks of the older shard are missing here only if their copies were lost: it stays as it is
            return SealResult(self.final_path if self._reopened and self._is_visible else None, 0, 0)
        live_file = None if self._reopened else self.live
        if live_file is not None and (
            length := live_file.complete(self.entries, step, is_visible=self._is_visible)
        ):
            stored_bytes = int(live["nbytes"].sum()) + self.layout.index_bytes
            return SealResult(self.final_path, stored_bytes, length - stored_bytes)
        ends = live["offset"] + live["nbytes"]
        data_end = int(ends[-1])
        index = self.layout.index
        self._reach("shard.before_index")
        self._file.write(index.offset(data_end), index.encode(self.entries))
        self._file.end_filling()
        gap_bytes = self._give_gaps_back(live["offset"], ends)
        self._file.truncate(data_end + index.behind_bytes)
        return SealResult(self.final_path, int(live["nbytes"].sum()) + index.nbytes, gap_bytes)

    def _reach(self, point: str) -> None:
        with storage_errors("seal", self._file.path):
            reach(point)

    def _give_gaps_back(self, starts: np.ndarray, ends: np.ndarray) -> int:
        """Frees the whole pages between one chunk's end and the next one's start. Returns the bytes of all
        gaps."""
        previous_end = self.layout.index.before_bytes
        gap_bytes = 0
        supported = True
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            gap_bytes += start - previous_end
            hole = page_aligned(previous_end)
            if supported and start > hole:
                supported = self._file.punch(hole, start - hole)
            previous_end = end
        return gap_bytes

    def remove(self, may_rename: Callable[[], None]) -> None:
        """Deletes a shard that holds nothing. Raises as ``hide``."""
        self.hide(may_rename)
        self.discard()

    def hide(self, may_rename: Callable[[], None]) -> None:
        """Takes the final name, durably, from a shard that holds nothing: readers saw chunks by it that a
        power cut took. A sealed one that this one was to replace stays. Raises ``StorageError`` or what
        ``may_rename`` raises."""
        if self._is_visible and not self._reopened:
            may_rename()
            with storage_errors("delete", self.final_path):
                reach("shard.before_hide")
                beneath.unlink(self.final_path, missing_ok=True)
            sync_directory(self.final_path.parent)

    def discard(self) -> None:
        """Deletes a working file that holds nothing."""
        if self.live is not None:
            self.live.discard()
        self._file.discard()

    def abandon(self) -> None:
        """Closes the shard; if it is not sealed the working file stays for recovery."""
        if self.live is not None:
            self.live.close()
        self._file.close()


def is_link_to(link: Path, target: Path) -> bool:
    """Returns whether a name is that of the link to a shard below the second root. Raises
    ``StorageError``."""
    with storage_errors("look at", link):
        return beneath.is_link(link) and beneath.read_link(link) == target


def make_link(link: Path, target: Path, folders: DurableFolders, may_rename: Callable[[], None]) -> None:
    """Makes the store's link to a shard that lies below the second root, unless it is there. Raises
    ``OutputExistsError`` if anything else has its name, ``StorageError`` or what ``may_rename`` raises."""
    may_rename()  # before the folders: those of a store that was deleted would come back without it
    folders.make(link.parent)
    with storage_errors("link", link):
        reach("shard.before_link")
        try:
            beneath.make_link(link, target)
        except FileExistsError as error:
            raise _taken(link) from error
    sync_directory(link.parent)


def _taken(path: Path) -> OutputExistsError:
    return OutputExistsError("a file of this name is already there", got=path)
