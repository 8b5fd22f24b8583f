"""The array's record of its shards (``shard.shard_sums``) kept true by whoever gives a shard other bytes,
before the shard has them.

PackPlan and moving change no chunk, and so no sum. An array without a record gets none: its shards were made
before there were any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.codecs.parameters import CHECKSUM_BYTES
from shardwright.model.errors import ShardFormatError
from shardwright.read.shard_file import ShardFile
from shardwright.shard.index import EMPTY
from shardwright.shard.shard_sums import ShardSums, shard_sum

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from shardwright.repack.pack_plan import Int64s, PackPlan
    from shardwright.repack.source_shard import SourceShard

    UInt32s = npt.NDArray[np.uint32]


def record_recoded(
    source: SourceShard,
    before: PackPlan,
    crcs_before: UInt32s,
    copy: Path,
    after: PackPlan,
    crcs_after: UInt32s,
) -> None:
    """``copy`` is to take the place of ``source``. ``crcs``: of each chunk of the plan as it lies in its
    file.

    Raises ``ShardFormatError`` for a source that is not the recorded shard, and would be so ever after, and
    ``StorageError``.
    """
    record = ShardSums(source.array.path)
    known = record.of(source.key)
    if not known:
        return
    if len(before.chunks) == source.live_chunks:
        found = shard_sum(
            before.chunks, before.nbytes, _data_crcs(source, before.source_offset, before.nbytes, crcs_before)
        )
    else:
        found = _sum_of(source)
    _check_known(source, record, found, known)
    with ShardFile(source.array, copy) as file:
        record.append(
            {
                source.key: shard_sum(
                    after.chunks,
                    after.nbytes,
                    _data_crcs(file, after.target_offset, after.nbytes, crcs_after),
                )
            }
        )


def record_dropped(source: SourceShard) -> None:
    """``source`` is to be deleted. Raises as ``record_recoded`` does."""
    record = ShardSums(source.array.path)
    known = record.of(source.key)
    if known:
        _check_known(source, record, _sum_of(source), known)
        record.append({source.key: None})


def _check_known(source: SourceShard, record: ShardSums, found: int, known: set[int | None]) -> None:
    if found not in known:
        raise ShardFormatError(
            f"{source.path} is not the shard that {record.path} has on record: it was altered, or is "
            f"another one",
            hint="It is left as it is. If you have changed the store yourself, delete that record, and run "
            "this again",
        )


def _data_crcs(file: ShardFile, offsets: Int64s, nbytes: Int64s, crcs: UInt32s) -> UInt32s:
    """The crc32c of each chunk without an inner crc32c at its end, which it then equals."""
    if not file.array.codecs.checksum:
        return crcs
    found = np.zeros(len(offsets), "<u4")
    for i, end in enumerate((offsets + nbytes).tolist()):
        file.read_into(end - CHECKSUM_BYTES, found[i : i + 1].view(np.uint8).data)
    return found


def _sum_of(source: SourceShard) -> int:
    """Read anew."""
    inner = CHECKSUM_BYTES if source.array.codecs.checksum else 0
    numbers = np.flatnonzero(source.entries["offset"] != EMPTY)
    crcs = np.zeros(len(numbers), np.uint32)
    for i, entry in enumerate(source.entries[numbers]):
        chunk = bytearray(max(0, int(entry["nbytes"]) - inner))
        source.read_into(int(entry["offset"]), memoryview(chunk))
        crcs[i] = crc32c.crc32c(chunk)
    return shard_sum(numbers, source.entries["nbytes"][numbers], crcs)
