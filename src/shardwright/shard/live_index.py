"""The index at the start of an unfinished shard that has its final name already (``live: index``), for
readers that know nothing of journals. FORMAT.md, "Seen by any reader".

It lists chunks of stored slabs, and no others, and is written again, all pages in one write, when there are
more. A reader that meets it half written gets a checksum error. It must be at the start: who reads a whole
shard at once reads the index before the chunks, so that these are there. An index at the end would be read
after them, and might list chunks that were not there when their offset was read (``growing_copy`` has an
index at the end).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    add_name,
    is_name_of,
    replace_by_rename,
    storage_errors,
)
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.names import REWRITE_SUFFIX

from .index import EMPTY, empty_index
from .layout import page_aligned
from .parity_set import forget_parity
from .sealed_shard import SealedShard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from shardwright.disk.files import DurableFolders
    from shardwright.disk.slot_file import SlotFile

    from .layout import ShardLayout
    from .shard_sums import ShardSums


def beside(working: Path, word: str) -> Path:
    """Returns the name of a file that is to get a shard's final name, beside the one in progress. Recovery
    and a take-over delete it: an older writer then has nothing to rename."""
    return working.with_name(f"{working.stem}.{word}{working.suffix}{REWRITE_SUFFIX}")


class LiveIndex:
    """The index that readers find in the file in progress, and its final name beside the working one. Owner's
    thread only."""

    def __init__(
        self, layout: ShardLayout, file: SlotFile, final_path: Path, folders: DurableFolders
    ) -> None:
        self._folders = folders
        self._layout = layout
        self._file = file
        self._final_path = final_path
        self._entries = empty_index(layout.chunks)

    def put(self, chunks: np.ndarray, entries: np.ndarray) -> None:
        """Lists the chunks with these numbers, int64[n], as ``entries`` of the whole shard have them."""
        self._entries[chunks] = entries[chunks]

    def show(
        self,
        may_rename: Callable[[], None],
        replaces: ShardSums | None,
        step: Callable[[], None],
        *,
        even_fewer: bool,
    ) -> bool:
        """Writes the index, and gives the file its final name if another one has it that lists no chunk that
        this one lacks (or ``even_fewer``), or if none has it. ``replaces``: held while it takes the name of
        another one, which it must not without. ``step`` is called now and then. Returns whether readers see
        all chunks that were put. Raises ``StorageError``, ``OutputExistsError`` or what ``may_rename``
        raises; it may be called again."""
        exists = replaces is not None and beneath.exists(self._final_path)
        if not exists and bool((self._entries["offset"] == EMPTY).all()):
            return True
        index = self._layout.index.encode(self._entries)
        self._file.write_pages(0, index + bytes(page_aligned(len(index)) - len(index)))
        if not self.has_final_name and (even_fewer or not self._lacks_of(self._final_path)):
            self._take_final_name(may_rename, replaces)
        step()
        return self.has_final_name

    @property
    def has_final_name(self) -> bool:
        """True if the file has its final name, too. Raises ``StorageError``."""
        return is_name_of(self._final_path, self._file.descriptor)

    def _lacks_of(self, path: Path) -> bool:
        """Returns whether the file with the name ``path`` lists a chunk that this one does not: readers would
        miss it. A file without a sound index lists none. Raises ``StorageError``."""
        if not beneath.exists(path):
            return False
        try:
            with SealedShard.open(path, self._layout.index, spilled=False) as found:
                theirs = found.entries
        except ShardFormatError as error:
            if not beneath.is_file(path):
                raise StorageError(f"{path} is no file, and keeps its name") from error
            return False
        return bool(((theirs["offset"] != EMPTY) & (self._entries["offset"] == EMPTY)).any())

    def _take_final_name(self, may_rename: Callable[[], None], replaces: ShardSums | None) -> None:
        may_rename()
        self._folders.make(self._final_path.parent)
        working = self._file.path
        if replaces is None:
            with storage_errors("link", self._final_path):
                reach("shard.before_live_name")
            may_rename()
            add_name(working, self._final_path)
            return
        another = beside(working, "link")
        with storage_errors("link", another):
            reach("shard.before_live_name")
            beneath.unlink(another, missing_ok=True)
        add_name(working, another)
        with replaces.held():  # a compaction may be about to replace it too
            with storage_errors("rename to", self._final_path):
                reach("shard.before_live_replace")
            forget_parity(replaces.path.parent, self._final_path)
            may_rename()
            replace_by_rename(another, self._final_path)

    def complete(self, entries: np.ndarray, step: Callable[[], None], *, is_visible: bool) -> int:
        """Returns 0: the file in progress is the one that readers see."""
        del entries, step, is_visible
        return 0

    def seal(self, may_rename: Callable[[], None], replaces: ShardSums | None) -> bool:
        """Returns whether the file has its final name already. Raises ``StorageError``."""
        del may_rename, replaces
        return self.has_final_name

    def close(self) -> None: ...

    def discard(self) -> None: ...
