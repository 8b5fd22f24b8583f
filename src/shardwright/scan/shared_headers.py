"""The headers of the journals that rows share, of one unfinished store: whoever looks at the store again and
again has each of them from here.

A header and the states of its rows are two pages. They are read at every look, since a row may have ended;
what they say is worked out again only if they differ from those before. So nothing that is remembered can be
out of date: not by a file that replaces another, whatever its inode, nor by a time stamp that is too coarse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.disk.failpoints import look
from shardwright.shard.shared_journal import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from shardwright.shard.shared_journal import SharedHeader


class SharedHeaders:
    """Used by one thread at a time."""

    def __init__(self, identity: bytes, record_bytes: int) -> None:
        self._identity, self._record_bytes = identity, record_bytes
        self._known: dict[Path, SharedHeader] = {}  # all in one folder

    def read(self, path: Path, may_share: Callable[[int], bool]) -> SharedHeader:
        """As ``shared_journal.read_header``."""
        look("look.journal.shared")
        known = self._known.get(path)
        found = read_header(path, self._identity, self._record_bytes, may_share, known)
        self._known[path] = found
        return found

    def may_have(self, path: Path, inode: int, row: int) -> bool:
        """Returns whether a row may be in progress in a file. Readers ask for each chunk, and for most rows
        there is no journal any more: a file of rows that are prepared together never gets others, nor one
        back that has ended, so that it is not read again for those. ``inode``: of the name, as it is now."""
        known = self._known.get(path)
        return known is None or known.inode != inode or row in known.bases

    def keep(self, there: Collection[str]) -> None:
        """Forgets files that are gone once they are more than those that are ``there``."""
        if len(self._known) > len(there):
            self._known = {path: header for path, header in self._known.items() if path.name in there}
