"""The sums of a shard that is about to get other chunks, or to go, for the array's record of its shards
(``shard.shard_sums``): the old shard must be the recorded one, and the record gets the sum of the new one
before the shard has it. An array without a record gets none: its shards are older than records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.shard.index import CHECKSUM_BYTES
from shardwright.shard.sealed_shard import SealedShard
from shardwright.shard.shard_sums import data_crc, shard_sum

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.disk.read_file import ReadFile
    from shardwright.read.store import StoredArray
    from shardwright.shard.shard_sums import ShardSums

    from .pack_plan import Int64s, PackPlan, UInt32s
    from .source_shard import SourceShard


def check_recorded(source: SourceShard, record: ShardSums, found: Callable[[], int]) -> bool:
    """Returns whether a shard is on record. Raises ``ShardFormatError`` when its sum, ``found``, is none of
    those that are recorded."""
    known = record.of(source.key)
    if known and found() not in known:
        raise ShardFormatError(
            f"{source.path} is not the shard that {record.path} records: it was altered or replaced",
            hint="It is left as it is. If you changed the store yourself, delete that record and run this "
            "again",
        )
    return bool(known)


def crcs_without_inner(
    array: StoredArray, file: ReadFile, offsets: Int64s, nbytes: Int64s, crcs: UInt32s
) -> UInt32s:
    """The crc32c of each chunk without its inner crc32c. If there is one, it is that number."""
    if not array.codecs.checksum:
        return crcs
    ends = (file.read(end - CHECKSUM_BYTES, CHECKSUM_BYTES) for end in (offsets + nbytes).tolist())
    return np.array([data_crc(end, has_inner=True, inner_is_believed=True) for end in ends], np.uint32)


def data_crcs(source: SourceShard, *, inner_is_believed: bool = False) -> tuple[Int64s, UInt32s]:
    """The numbers of the chunks that a shard has, and the crc32c of each without an inner one. All chunks are
    read, unless they have an inner one and that is believed."""
    numbers, crcs = source.index.live, np.zeros(source.live_chunks, np.uint32)
    has_inner, entries = source.array.codecs.checksum, source.index.entries
    offsets, nbytes = (entries[name][numbers].astype(np.int64) for name in ("offset", "nbytes"))
    if has_inner and inner_is_believed:
        return numbers, crcs_without_inner(source.array, source.file, offsets, nbytes, crcs)
    for i, (offset, size) in enumerate(zip(offsets.tolist(), nbytes.tolist(), strict=True)):
        crcs[i] = data_crc(source.file.read(offset, size), has_inner=has_inner)
    return numbers, crcs


def sum_of(source: SourceShard, numbers: Int64s, crcs: UInt32s) -> int:
    """The sum of the shard as it is, from ``data_crcs``."""
    return shard_sum(numbers, source.index.entries["nbytes"][numbers], crcs)


def sum_in_place(plan: PackPlan, file: ReadFile, offsets: Int64s, crcs: UInt32s) -> int:
    """The sum of a shard of the chunks of ``plan``, which lie at ``offsets``. ``crcs``: of each chunk."""
    return shard_sum(
        plan.chunks, plan.nbytes, crcs_without_inner(plan.array, file, offsets, plan.nbytes, crcs)
    )


def sum_of_copy(copy: Path, plan: PackPlan, crcs: UInt32s) -> int:
    """The sum of a shard that ``replace_shard`` makes."""
    with SealedShard.open(copy, plan.array.index) as packed:
        return sum_in_place(plan, packed.file, plan.target_offset, crcs)
