"""Tells a shard's own file from another that has its final name: another program's, or a sealed shard whose
record the frame log has lost. Ours is
- the file in progress itself, which got its name in two steps, or as its second name (``live: index``);
- a file with just the chunks that the journal has of this shard, as a copy of the store has it;
- in a live store one with some of them, which readers saw grow. Where only kills have happened, the journal
  has every chunk that readers were ever shown.
"""

from __future__ import annotations

from functools import partial
from os.path import samestat
from typing import TYPE_CHECKING

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.files import open_regular, read_range, storage_errors
from shardwright.disk.typed_errors import says_nothing
from shardwright.model.errors import ShardFormatError

from .growing_copy import last_sound_index
from .index import EMPTY
from .journal import CHUNK_ENTRY, TORN
from .journal import EMPTY as UNWRITTEN
from .layout import chunks_of_slab, slabs_of_shard_row
from .read_back import fits
from .sealed_shard import SealedShard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.model.write_options import LiveMode

    from .journal import ShardRowJournal
    from .layout import ArrayLayout, ShardLayout


def is_one_file(working: Path, final: Path) -> bool:
    """Returns whether two names are of one file; False if one of them is not there. Raises
    ``StorageError``."""
    with storage_errors("look at", final):
        if not (beneath.exists(working) and beneath.exists(final)):
            return False
        return samestat(beneath.stat(working), beneath.stat(final))


def chunks_on_record(layout: ArrayLayout, shard_row: int, file: int, journal: ShardRowJournal) -> np.ndarray:
    """Returns CHUNK_ENTRY[chunks], by their numbers in the index: what the journal has of one shard. Chunks
    that it does not have are at the offset ``EMPTY``; those whose entries are torn have 0 bytes. Raises
    ``StorageError``."""
    journaled, states = journal.read_chunks(file)
    journaled = np.where(states == TORN, np.zeros(1, CHUNK_ENTRY), journaled)
    found = np.zeros(layout.shard(shard_row, file).chunks, CHUNK_ENTRY)
    found["offset"] = EMPTY
    for slab in slabs_of_shard_row(layout, shard_row):
        slab_chunks = chunks_of_slab(layout, slab)
        here = np.flatnonzero(slab_chunks.file == file)
        here = here[states[slab_chunks.slot[here]] != UNWRITTEN]
        found[slab_chunks.entry[here]] = journaled[slab_chunks.slot[here]]
    return found


def is_of_journal(
    final: Path, layout: ShardLayout, on_record: np.ndarray, live: LiveMode, checked: Callable[[int], None]
) -> bool:
    """Returns whether each chunk that a file lists is ``on_record`` (as ``chunks_on_record``), and has the
    bytes that its checksum tells of; unless ``live``, whether it lists all of these. False for a file that is
    no shard; raises ``OSError`` where that says nothing of the file. It reads no more than the index and the
    chunks that are on record; ``checked`` is called with numbers of bytes."""
    try:
        if not beneath.is_file(final):
            return False
        listed = _listed(final, layout, live)
        there, known = listed["offset"] != EMPTY, on_record["offset"] != EMPTY
        if (there & ~known).any() or (live == "none" and (known & ~there).any()):
            return False
        if live != "none":  # an entry that rot has taken says nothing of its chunk
            there &= on_record["nbytes"] > 0
        chunks = on_record[there]
        if (chunks["nbytes"] != listed["nbytes"][there]).any():
            return False
        chunks["offset"] = listed["offset"][there]
        for chunk in chunks:
            if not fits(partial(read_range, final), chunk):
                return False
            checked(int(chunk["nbytes"]))
    except (ShardFormatError, OSError) as error:
        if isinstance(error, OSError) and says_nothing(error):
            raise
        # Nothing tells a copy that was damaged while it grew from a stranger's file. It is of no use to
        # readers, and is made again.
        return live == "append"
    return True


def _listed(final: Path, layout: ShardLayout, live: LiveMode) -> np.ndarray:
    """Returns INDEX_ENTRY[chunks]. Raises ``ShardFormatError`` if the index cannot be right, ``OSError``."""
    try:
        with SealedShard.open(final, layout.index, spilled=False) as shard:
            shard.check_sound()
            return shard.entries
    except ShardFormatError:
        if live != "append":
            raise
    with open_regular(final, buffering=0) as file:  # a kill may have cut the last write in two
        return last_sound_index(file.fileno(), layout)[0]
