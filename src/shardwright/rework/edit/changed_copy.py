"""A copy of a shard with other chunks, which takes the shard's place. Chunks follow each other as they did in
the old file, without gaps; those that are new come last."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.disk.working_file import WorkingFile, WriteBehind
from shardwright.rework.pack_plan import PackPlan
from shardwright.rework.shard_copy import copy_behind, replace_shard
from shardwright.rework.source_shard import PackedBytes
from shardwright.shard.index import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from os import stat_result
    from pathlib import Path

    from shardwright.read.store import StoredArray
    from shardwright.rework.pack_plan import UInt32s
    from shardwright.rework.source_shard import SourceShard


def replace_changed(
    plan: PackPlan,
    source: SourceShard | None,
    chunks: Mapping[int, bytes | None],
    copy: Path,
    like: stat_result,
    record: Callable[[PackPlan, UInt32s], None],
    may_replace: AbstractContextManager[None],
) -> None:
    """Writes the file ``copy`` and gives it the name of the shard, as ``shard_copy.replace_shard`` does.
    ``plan``: the ``plan_changed`` of this ``source`` and these ``chunks``. ``like``: whose mode and owner it
    gets. ``record`` gets the plan, and the crc32c of each chunk.

    Raises ``ShardFormatError`` for a bad chunk that would be kept, ``StorageError``.
    """
    with WorkingFile(copy, plan.file_bytes, like) as working:
        if source is not None:
            working.copy_attributes(source.file.descriptor)
        crcs = _write(working, plan, source, chunks)
        replace_shard(working, plan, crcs, partial(record, plan, crcs), may_replace)


def plan_changed(
    array: StoredArray,
    shard: tuple[int, ...],
    source: SourceShard | None,
    chunks: Mapping[int, bytes | None],
) -> PackPlan:
    """Returns the plan of the new file. ``source``: the shard as it is, None if nothing of it is kept."""
    written = {number: data for number, data in chunks.items() if data is not None}
    offsets, sizes = {}, {number: len(data) for number, data in written.items()}
    if source is not None:
        for number in source.index.live.tolist():
            offsets[number] = int(source.index.entries["offset"][number])
            if number not in chunks:
                sizes[number] = int(source.index.entries["nbytes"][number])
    order = sorted(sizes, key=lambda number: (offsets.get(number, EMPTY), number))
    old_offsets = [-1 if number in written else offsets[number] for number in order]
    nbytes = [sizes[number] for number in order]
    chunks_in_order, source_offset, sizes_in_order = (
        np.array(c, np.int64) for c in (order, old_offsets, nbytes)
    )
    plan = PackPlan(array, shard, chunks_in_order, source_offset, sizes_in_order, 0)
    return plan if source is None or source.description is None else plan.with_description(0)


def _write(
    working: WorkingFile, plan: PackPlan, source: SourceShard | None, chunks: Mapping[int, bytes | None]
) -> UInt32s:
    """Returns the crc32c of each chunk of the plan."""
    crcs = np.zeros(len(plan.chunks), np.uint32)
    with WriteBehind(working, plan.data_start) as out:
        for is_new, run in groupby(range(len(plan.chunks)), lambda i: int(plan.chunks[i]) in chunks):
            numbers = list(run)
            if is_new:
                for i in numbers:
                    data = chunks[int(plan.chunks[i])]
                    assert data is not None, "an erased chunk is in no plan"
                    out.append(np.frombuffer(data, np.uint8))
                    crcs[i] = crc32c.crc32c(data)
            else:
                assert source is not None, "what is kept comes from the old shard"
                part = slice(numbers[0], numbers[-1] + 1)
                kept = replace(
                    plan,
                    chunks=plan.chunks[part],
                    source_offset=plan.source_offset[part],
                    nbytes=plan.nbytes[part],
                )
                crcs[part] = copy_behind(PackedBytes(source, kept), out)
    return crcs
