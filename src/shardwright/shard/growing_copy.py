"""The file that readers find under the final name of an unfinished shard, with an index at its end (``live:
append``; ZEP 2's append-only strategy). FORMAT.md, "Seen by any reader".

    | chunks | index | chunks | index | ... | chunks | index |      each index has pages of its own

Chunks of stored slabs are copied from the file in progress, and appended with a new index in one write. No
byte of a chunk that an index lists ever changes, so that whoever has an index, or reads the file from its
start, finds each chunk that it lists; who meets a write half done gets a checksum error. The file in progress
and the journal stay what recovery relies on, until the copy has all chunks and is synced, and is the sealed
shard. A copy that is made again, by recovery or after an I/O error, has all chunks of the earlier one at
their offsets.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    open_regular,
    read_all,
    rename_without_replacing,
    replace_by_rename,
    storage_errors,
)
from shardwright.disk.growing_file import GrowingFile
from shardwright.disk.typed_errors import says_nothing
from shardwright.model.errors import ShardFormatError, ShardwrightError, StorageError

from .index import CHECKSUM_BYTES, EMPTY, INDEX_ENTRY, empty_index
from .layout import PAGE_BYTES, page_aligned
from .live_index import beside
from .parity_set import forget_parity
from .sealed_shard import ReadIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardwright.disk.files import DurableFolders
    from shardwright.disk.slot_file import SlotFile

    from .layout import ShardLayout
    from .shard_sums import ShardSums

PIECE_BYTES = 4 << 20  # appended in one write, unless one chunk is longer: a kill hardly ever meets it
# indexes may take as much as chunks, and this: else many shows of small slabs would fill the disk with them
FREE_INDEX_BYTES = 16 << 20
MOST_PARTS = 512  # of one write; the system takes 1024
_PLAUSIBLE = 64  # entries that are looked at before a checksum is computed
_MOST_SOUGHT_BYTES = 1 << 30


class GrowingCopy:
    """The copy of one file in progress. Owner's thread only."""

    def __init__(
        self, layout: ShardLayout, file: SlotFile, final_path: Path, folders: DurableFolders
    ) -> None:
        self._folders = folders
        self._layout = layout
        self._source = file
        self._final_path = final_path
        self._stored = empty_index(layout.chunks)  # chunks to be shown, as the file in progress has them
        self._entries = empty_index(layout.chunks)  # as the copy has them
        self._copy: GrowingFile | None = None
        self._has_index = False  # of its own, whatever the earlier file ends with
        self._is_complete = False
        # as the file listed them whose name this one is to take
        self._earlier: np.ndarray | None = None

    def put(self, chunks: np.ndarray, entries: np.ndarray) -> None:
        """Notes chunks with these numbers, int64[n], for the next ``show``; ``entries``: of the whole file in
        progress."""
        self._stored[chunks] = entries[chunks]

    def show(
        self,
        may_rename: Callable[[], None],
        replaces: ShardSums | None,
        step: Callable[[], None],
        *,
        even_fewer: bool,
    ) -> bool:
        """Appends the chunks that were noted, unless they are few for another index. Else as
        ``LiveIndex.show``."""
        exists = replaces is not None and beneath.exists(self._final_path)
        if not exists and not self._waiting.size and self._copy is None:
            return True
        if self._is_worth_an_index:
            self._append_waiting(step, is_earlier_kept=exists)
        if not self.has_final_name and (even_fewer or not self._lacks_earlier):
            self._take_final_name(may_rename, replaces)
        return self.has_final_name and not self._waiting.size

    @property
    def has_final_name(self) -> bool:
        """True if the copy has the shard's final name. Raises ``StorageError``."""
        return self._copy is not None and self._copy.has_name(self._final_path)

    def complete(self, entries: np.ndarray, step: Callable[[], None], *, is_visible: bool) -> int:
        """Appends all other chunks of the shard and makes the copy durable, with zeros between chunks.
        ``is_visible``: readers know a file with the final name. Returns its length; 0 if there is none, so
        that the file in progress is as good. Raises ``StorageError``; after a ``StorageFullError`` it may be
        called again."""
        was_taken = self._copy is not None and self._copy.path == self._final_path and not self.has_final_name
        if not is_visible or was_taken:
            return 0
        self.put(np.flatnonzero(entries["offset"] != EMPTY), entries)
        copy = self._append_waiting(step, is_earlier_kept=True)
        live = np.sort(self._entries[self._entries["offset"] != EMPTY], order="offset")
        starts, nbytes = live["offset"].astype(np.int64), live["nbytes"].astype(np.int64)
        begin = np.append(0, starts + nbytes)
        stop = np.append(starts, copy.nbytes - self._layout.index_bytes)
        for gap in np.flatnonzero(begin < stop).tolist():  # with the earlier indexes
            copy.clear(int(begin[gap]), int(stop[gap]))
        copy.finish()
        self._is_complete = True
        return copy.nbytes

    def seal(self, may_rename: Callable[[], None], replaces: ShardSums | None) -> bool:
        """Returns whether the copy is the sealed shard, and gives it the final name if so. Raises as
        ``show``."""
        if self._is_complete and not self.has_final_name:
            self._take_final_name(may_rename, replaces)
        return self._is_complete

    def close(self) -> None:
        if self._copy is not None:
            self._copy.close()

    def discard(self) -> None:
        """Deletes a copy that never got the final name, if it can."""
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close() if copy.path == self._final_path else copy.discard()

    # ------------------------------------------------------------------ pieces

    @property
    def _waiting(self) -> np.ndarray:
        """int64[n]: the numbers of chunks that the copy lacks."""
        lacks = (self._stored["offset"] != EMPTY) & (self._entries["offset"] == EMPTY)
        found: np.ndarray = np.flatnonzero(lacks)
        return found

    @property
    def _lacks_earlier(self) -> bool:
        earlier = self._earlier
        return earlier is not None and bool(
            ((earlier["offset"] != EMPTY) & (self._entries["offset"] == EMPTY)).any()
        )

    @property
    def _is_worth_an_index(self) -> bool:
        if self._copy is None:
            return True
        listed, waiting = self._entries["offset"] != EMPTY, self._waiting
        chunk_bytes = int(self._entries["nbytes"][listed].sum()) + int(self._stored["nbytes"][waiting].sum())
        grown = self._copy.nbytes + page_aligned(self._layout.index_bytes)
        return grown <= 2 * chunk_bytes + FREE_INDEX_BYTES

    def _append_waiting(self, step: Callable[[], None], *, is_earlier_kept: bool) -> GrowingFile:
        """Creates the copy if needed, copies the chunks of the file that it replaces (``is_earlier_kept``),
        then appends the waiting chunks."""
        if self._copy is None:
            self._copy = self._made()
            try:
                if is_earlier_kept:
                    self._keep_earlier(self._copy, step)
            except BaseException:
                self.discard()
                raise
        pieces = list(self._pieces(self._waiting))
        for piece in pieces if pieces or self._has_index else [[]]:
            self._append(self._copy, piece)
            step()
        return self._copy

    def _made(self) -> GrowingFile:
        path = beside(self._source.path, "copy")
        with storage_errors("remove", path):
            reach("growing.before_delete")
            beneath.unlink(path, missing_ok=True)
        return GrowingFile(path, self._layout.file_bytes)

    def _pieces(self, chunks: np.ndarray) -> Iterator[list[np.ndarray]]:
        """Yields runs of chunks, which lie together in the file in progress, as many as one write takes."""
        chunks = chunks[np.argsort(self._stored["offset"][chunks], kind="stable")]
        start, nbytes = self._stored["offset"][chunks], self._stored["nbytes"][chunks]
        runs = np.split(chunks, np.flatnonzero(start[1:] != start[:-1] + nbytes[:-1]) + 1)
        piece: list[np.ndarray] = []
        taken = 0
        for run in runs if chunks.size else ():
            ends = np.cumsum(self._stored["nbytes"][run].astype(np.int64))
            for part in np.split(run, np.flatnonzero(np.diff(ends // PIECE_BYTES)) + 1):
                count = int(self._stored["nbytes"][part].sum())
                if piece and (taken + count > PIECE_BYTES or len(piece) == MOST_PARTS):
                    yield piece
                    piece, taken = [], 0
                piece.append(part)
                taken += count
        if piece:
            yield piece

    def _append(self, copy: GrowingFile, runs: list[np.ndarray]) -> None:
        """Appends runs of chunks, and the index that lists them."""
        entries, offset, parts = self._entries.copy(), copy.nbytes, []
        for run in runs:
            start = int(self._stored["offset"][run[0]])
            count = int(self._stored["nbytes"][run].sum())
            data = self._source.read(start, count)
            if len(data) < count:
                raise StorageError(f"{self._source.path} ends before a chunk that was stored")
            entries["offset"][run] = self._stored["offset"][run] + np.uint64(offset) - np.uint64(start)
            entries["nbytes"][run] = self._stored["nbytes"][run]
            parts.append(data)
            offset += count
        index = self._layout.index.encode(entries)
        zeros = page_aligned(offset) - offset + page_aligned(len(index)) - len(index)
        copy.append([*parts, bytes(zeros) + index])
        self._entries, self._has_index = entries, True

    # ------------------------------------------------------------------ the file with the final name

    def _keep_earlier(self, copy: GrowingFile, step: Callable[[], None]) -> None:
        """Copies the file that has the final name, up to its last sound index; none of it if it cannot be
        read. Its chunks are listed if they are those of the file in progress; after a power cut they may not
        be. Raises ``StorageError`` for the copy and the file in progress."""
        try:
            with open_regular(self._final_path, buffering=0) as file:
                self._earlier, end = last_sound_index(file.fileno(), self._layout)
                for offset in range(0, end, PIECE_BYTES):
                    copy.append([read_all(file.fileno(), offset, min(PIECE_BYTES, end - offset))])
                    step()
                self._list_kept(file.fileno(), self._earlier, step)
        except ShardwrightError:
            raise
        except OSError as error:  # of no more use to readers
            if says_nothing(error):
                with storage_errors("read", self._final_path):
                    raise
            self._earlier, self._entries = None, empty_index(self._layout.chunks)

    def _list_kept(self, descriptor: int, theirs: np.ndarray, step: Callable[[], None]) -> None:
        mine = self._stored
        both = (theirs["offset"] != EMPTY) & (mine["offset"] != EMPTY)
        for i in np.flatnonzero(both & (theirs["nbytes"] == mine["nbytes"])).tolist():
            count = int(mine["nbytes"][i])
            kept = read_all(descriptor, int(theirs["offset"][i]), count)
            if kept == self._source.read(int(mine["offset"][i]), count):
                self._entries[i] = theirs[i]
            step()

    def _take_final_name(self, may_rename: Callable[[], None], replaces: ShardSums | None) -> None:
        assert self._copy is not None
        may_rename()
        self._folders.make(self._final_path.parent)
        with storage_errors("rename to", self._final_path):
            reach("shard.before_live_name")
        if replaces is None:
            may_rename()
            rename_without_replacing(self._copy.path, self._final_path)
        else:
            with replaces.held():  # a compaction may be about to replace it too
                with storage_errors("rename to", self._final_path):
                    reach("shard.before_live_replace")
                forget_parity(replaces.path.parent, self._final_path)
                may_rename()
                replace_by_rename(self._copy.path, self._final_path)
        self._copy.path = self._final_path
        self._earlier = None


def last_sound_index(descriptor: int, layout: ShardLayout) -> tuple[np.ndarray, int]:
    """Returns the last sound index of a growing file, and where it ends: at the file's end, unless a kill has
    cut a write in two. An empty index and 0 if there is none. Raises ``OSError``.

    Not by ``SealedShard``: that reads the one index at the end, while here any page may be the last one, and
    most candidates are refused before their checksum is computed."""
    size, count = os.fstat(descriptor).st_size, layout.index_bytes
    some, sought = min(count - CHECKSUM_BYTES, INDEX_ENTRY.itemsize * _PLAUSIBLE), 0
    for end in range(size // PAGE_BYTES * PAGE_BYTES, count - 1, -PAGE_BYTES):
        first = read_all(descriptor, end - count, some)
        last = read_all(descriptor, end - CHECKSUM_BYTES - some, some)
        values = np.frombuffer(first + last, "<u8")
        if ((values > end) & (values != EMPTY)).any():
            continue  # no offset, no length
        with suppress(ShardFormatError):
            entries = layout.index.decode(read_all(descriptor, end - count, count)).copy()
            if ReadIndex.of(layout.index, end, end, entries).is_sound:
                return entries, end
        sought += count
        if sought > _MOST_SOUGHT_BYTES:
            break
    return empty_index(layout.chunks), 0
