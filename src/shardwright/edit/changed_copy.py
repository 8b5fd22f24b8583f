"""A copy of a shard with other chunks, which takes the shard's place. Chunks follow each other as they did in
the old file, without gaps; those that are new come last."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.codecs.parameters import CHECKSUM_BYTES
from shardwright.repack.jobs.pack_shard import check_copy, copy_behind, crcs_without_inner, finish_copy
from shardwright.repack.pack_plan import PackPlan
from shardwright.repack.runtime.throttle import Throttle
from shardwright.repack.source_shard import PackedBytes
from shardwright.shard.index import EMPTY
from shardwright.shard.shard_sums import shard_sum
from shardwright.storage.working_file import WorkingFile, WriteBehind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from os import stat_result
    from pathlib import Path

    from shardwright.read.store import StoredArray
    from shardwright.repack.source_shard import SourceShard

_NO_LIMIT = Throttle(idle=False)


def replace_shard(
    array: StoredArray,
    shard: tuple[int, ...],
    source: SourceShard | None,
    chunks: Mapping[int, bytes | None],
    copy: Path,
    like: stat_result,
    record: Callable[[int], None],
    may_replace: AbstractContextManager[None],
) -> PackPlan:
    """Writes the file ``copy``, reads it back and gives it the name of the shard within ``may_replace``.
    ``source``: the shard as it is, None if nothing of it is kept. ``like``: whose mode and owner it gets.
    ``record`` gets the sum of the new shard before.

    Returns its plan. Raises ``ShardFormatError`` for a bad chunk that would be kept, ``StorageError``.
    """
    plan = _plan(array, shard, source, chunks)
    with WorkingFile(copy, plan.file_bytes, like) as working:
        if source is not None:
            working.copy_attributes(source.fileno())
        crcs = _write(working, plan, source, chunks)
        finish_copy(working, plan)
        check_copy(working, plan, crcs, _NO_LIMIT)
        record(shard_sum(plan.chunks, plan.nbytes, _data_crcs(plan, source, chunks, crcs)))
        working.replace(array.path / array.shard_key(shard), may_replace)
    return plan


def _plan(
    array: StoredArray,
    shard: tuple[int, ...],
    source: SourceShard | None,
    chunks: Mapping[int, bytes | None],
) -> PackPlan:
    written = {number: data for number, data in chunks.items() if data is not None}
    offsets, sizes = {}, {number: len(data) for number, data in written.items()}
    if source is not None:
        for number in np.flatnonzero(source.entries["offset"] != EMPTY).tolist():
            offsets[number] = int(source.entries["offset"][number])
            if number not in chunks:
                sizes[number] = int(source.entries["nbytes"][number])
    order = sorted(sizes, key=lambda number: (offsets.get(number, EMPTY), number))
    places = [-1 if number in written else offsets[number] for number in order]
    nbytes = [sizes[number] for number in order]
    chunks_in_order, source_offset, sizes_in_order = (np.array(c, np.int64) for c in (order, places, nbytes))
    return PackPlan(array, shard, chunks_in_order, source_offset, sizes_in_order, 0)


def _write(
    working: WorkingFile, plan: PackPlan, source: SourceShard | None, chunks: Mapping[int, bytes | None]
) -> np.ndarray:
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
                crcs[part] = copy_behind(PackedBytes(source, kept), out, _NO_LIMIT)
    return crcs


def _data_crcs(
    plan: PackPlan, source: SourceShard | None, chunks: Mapping[int, bytes | None], crcs: np.ndarray
) -> np.ndarray:
    """The crc32c of each chunk of the plan without an inner one."""
    found = crcs.copy()
    kept = np.array([int(number) not in chunks for number in plan.chunks], np.bool_)
    if source is not None and kept.any():
        found[kept] = crcs_without_inner(source, plan.source_offset[kept], plan.nbytes[kept], crcs[kept])
    for i in np.flatnonzero(~kept).tolist():
        found[i] = data_crc(plan.array, chunks[int(plan.chunks[i])] or b"")
    return found


def data_crc(array: StoredArray, chunk: bytes) -> int:
    """Returns the crc32c of an encoded chunk without an inner one."""
    return int(crc32c.crc32c(chunk[:-CHECKSUM_BYTES] if array.codecs.checksum else chunk))
