"""Moves a shard row whose files met an I/O error to new files: valid chunks are copied one by one to the same
offsets.

A shard row is never retried in place: after a failed sync the next one succeeds all the same. The copy is
synced before it takes the old files' names, so that what was durable stays durable. Slabs that were at the
workers are not copied: their frames are still held and are encoded again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import StorageError

from .index import EMPTY as ABSENT
from .read_back import ReadBack, read_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from .layout import ArrayLayout, SlabChunks
    from .shard_row_files import ShardRowFiles


def rewrite_shard_row(
    layout: ArrayLayout,
    old: ShardRowFiles,
    stored_slabs: frozenset[int],
    held_slabs: frozenset[int],
    create: Callable[[], ShardRowFiles],
    may_rename: Callable[[], None] = lambda: None,
) -> tuple[ShardRowFiles, set[int], np.ndarray]:
    """Returns (the new files, slabs saved in them and durable there, records of the frames that could not be
    saved). ``stored_slabs`` were acknowledged; of these, frames of ``held_slabs`` are still in memory and not
    lost, even if they cannot be read back.

    ``create`` makes new files with ``REWRITE_SUFFIX``. Raises ``StorageError``; the content of the old files
    can then still be recovered.
    """
    sealed = set(old.sealed)
    shards = [None if file in sealed else shard for file, shard in enumerate(old.shards)]
    found = read_back(layout, old.shard_row, old.journal, shards)
    new = create()
    try:
        saved = [slab_chunks for slab_chunks in found.whole if slab_chunks.slab in stored_slabs]
        for slab_chunks in saved:
            _copy_slab(old, new, found, slab_chunks, sealed)
        new.continue_behind(old.cursors if new.live else None)
        new.sync()
        new.replace(old, may_rename)
    except BaseException:
        with suppress(StorageError):
            new.discard_rewrite()
        raise
    saved_slabs = {slab_chunks.slab for slab_chunks in saved}
    lost = sorted(stored_slabs - held_slabs - saved_slabs)
    lost_layers = [layout.layer_of_slab(slab)[1] for slab in lost]
    records = [found.records[layer][found.record_valid[layer]] for layer in lost_layers]
    return new, saved_slabs, np.concatenate([np.zeros(0, found.records.dtype), *records])


def _copy_slab(
    old: ShardRowFiles, new: ShardRowFiles, found: ReadBack, slab_chunks: SlabChunks, sealed: set[int]
) -> None:
    """Copies one slab; of ``sealed`` files, which stay, only what the journal says."""
    tables = []
    for file, _, _ in new.journal.layout.slots_of_slab(slab_chunks.slot_layer):
        source, target, mine = old.shards[file], new.shards[file], slab_chunks.file == file
        entries = found.entries[file][slab_chunks.slot[mine]]
        if source is not None and target is not None and file not in sealed:
            for entry in entries[entries["offset"] != ABSENT]:
                offset = int(entry["offset"])
                target.copy_in(offset, source.read(offset, int(entry["nbytes"])))
            target.entries["offset"][slab_chunks.entry[mine]] = entries["offset"]
            target.entries["nbytes"][slab_chunks.entry[mine]] = entries["nbytes"]
        tables.append(entries[np.argsort(slab_chunks.slot[mine])])
    records = np.where(
        found.record_valid[slab_chunks.slot_layer],
        found.records[slab_chunks.slot_layer],
        np.zeros(1, found.records.dtype),
    )
    new.journal.copy_slab(slab_chunks.slot_layer, records, tables)
