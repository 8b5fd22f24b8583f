"""The index at the start of an unfinished shard that has its final name already (``live: index``), for
readers that know nothing of journals. FORMAT.md, "Seen by any reader".

It lists chunks of stored slabs, and no others, and is written again, all pages in one write, when there are
more. A reader that meets it half written gets a checksum error. It must be at the start: who reads a whole
shard at once reads the index before the chunks, so that these are there. An index at the end would be read
after them, and might list chunks that were not there when their place was read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardwright.model.errors import ShardFormatError
from shardwright.storage.files import read_range

from .index import EMPTY, decode_index, empty_index, encode_index
from .layout import page_aligned

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from .layout import ShardLayout


class LiveIndex:
    """What readers of one file are told. Owner's thread only."""

    def __init__(self, layout: ShardLayout) -> None:
        self._layout = layout
        self._entries = empty_index(layout.chunks)

    @property
    def is_empty(self) -> bool:
        return bool((self._entries["offset"] == EMPTY).all())

    def lacks(self, path: Path) -> bool:
        """Returns whether the file that has the name ``path`` lists a chunk that this one does not: readers
        would miss it. A file without a sound index lists none. Raises ``StorageError``."""
        if not os.path.lexists(path):
            return False
        try:
            encoded = read_range(path, 0, self._layout.index_bytes)
            theirs = decode_index(encoded, self._layout.chunks)
        except ShardFormatError:
            return False
        return bool(((theirs["offset"] != EMPTY) & (self._entries["offset"] == EMPTY)).any())

    def put(self, chunks: np.ndarray, entries: np.ndarray) -> None:
        """Lists the chunks with these numbers, int64[n], as ``entries`` of the whole shard have them."""
        self._entries[chunks] = entries[chunks]

    def pages(self) -> bytes:
        """Returns the encoded index, and zeros to a page's edge."""
        index = encode_index(self._entries)
        return index + bytes(page_aligned(len(index)) - len(index))
