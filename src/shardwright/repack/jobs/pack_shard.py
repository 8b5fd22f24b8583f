"""One shard packed in place: its chunks are copied (or recoded) to a working file, which is read back from
the disk, compared, and takes the old file's place.

    source ──▶ working file ──▶ sync ──▶ read back ──▶ record held: source untouched? rename
    ──▶ directory sync

Until the rename the old shard stays, and any failure leaves it so, without a working file. Compared is the
crc32c of every chunk: of the bytes as they came from the source, and of those that the disk gives back.

The array's record of its shards (``shard.shard_sums``) gets the sum of a shard with other chunks before the
shard has them. Packing alone changes no chunk, and so no sum. An array without a record gets none: its shards
are older than records.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.codecs.parameters import CHECKSUM_BYTES
from shardwright.kernels.file_io import checksum_ranges
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read.shard_file import ShardFile
from shardwright.read.store import parse_array, workspace_of
from shardwright.repack.runtime.work_folder import working_path
from shardwright.repack.source_shard import PackedBytes, SourceShard, parts_between
from shardwright.repack.unknown_bytes import unknown_bytes
from shardwright.shard.edit_files import check_not_edited
from shardwright.shard.index import EMPTY
from shardwright.shard.shard_sums import ShardSums, shard_sum
from shardwright.storage import beneath
from shardwright.storage.failpoints import reach
from shardwright.storage.files import storage_errors, sync_directory
from shardwright.storage.working_file import PIECE_BYTES, WorkingFile, WriteBehind

from .recode import AS_CONFIGURED, denser_codec, recode_chunks
from .sealed_shards import is_spilled

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from shardwright.codecs.parameters import CodecParameters
    from shardwright.repack.pack_plan import PackPlan
    from shardwright.repack.runtime.throttle import Throttle

    UInt32s = npt.NDArray[np.uint32]
    from shardwright.repack.pack_plan import Int64s


def pack_shard(task: dict[str, Any], throttle: Throttle) -> dict[str, Any]:
    """Do the task {kind: "pack", array, shard, order, recompress, trim, threads}. ``array``: its folder;
    ``shard``: coordinates; ``recompress``: None, or see ``recode.denser_codec``; ``trim``: drop chunks
    outside the array's shape; ``threads``: that recode, default 1.

    The result has bytes_read and bytes_written (from the source and to the new file; reading back is not
    counted), gain_bytes (by which the file got shorter), chunks, chunks_recoded, skipped (the shard was
    packed in that order already) and dropped (trimmed to nothing, and deleted). Raises ``ShardFormatError``
    for a shard that cannot be packed, or has ``unknown_bytes``; ``ConfigError``; ``StorageError`` also when
    the new file does not read back.
    """
    begin_s = time.monotonic()
    array, shard = parse_array(Path(task["array"])), tuple(task["shard"])
    possible = len(shard) == len(array.shape) and min(shard, default=0) >= 0
    # the array may have been cropped
    path = array.path / array.shard_key(shard)
    if not possible or not (array.contains_shard(shard) or beneath.exists(path)):
        raise ShardFormatError(
            f"{array.path} has no shard {shard}", expected=f"a shard of the grid {array.grid_shape}"
        )
    if is_spilled(path):
        raise StorageError(
            f"{path} is a link to a spilled shard, which is not changed",
            hint="`shardwright compact --to` makes a store without links",
        )
    trim = bool(task.get("trim"))
    recompress = task.get("recompress")
    codec = None if recompress is None else denser_codec(array, recompress)
    degraded_only = recompress is not None and recompress["cname"] == AS_CONFIGURED
    check_not_edited(array.path, array.shard_key(shard))
    with SourceShard(array, shard) as source, _not_changing(source):
        before = after = source.pack_plan(task["order"], trim=trim)
        packed_already, recoded = before.matches(source.file_bytes), 0
        if (unknown := unknown_bytes(source, before, throttle.take)) is not None:
            try:
                raise unknown
            finally:
                del unknown  # in its traceback it would hold itself, and the open file
        if trim and source.is_cropped_whole():
            return _drop(source)
        if codec is not None or not packed_already:
            after, recoded = _pack(
                source, before, codec, throttle, int(task.get("threads") or 1), degraded_only=degraded_only
            )
        skipped = packed_already and not recoded
        return {
            "ok": True,
            "skipped": skipped,
            "bytes_read": source.index_bytes
            if skipped and codec is None
            else source.index_bytes + before.live_bytes,
            "bytes_written": 0 if skipped else after.file_bytes,
            "gain_bytes": source.file_bytes - after.file_bytes,
            "chunks": len(before.chunks),
            "chunks_recoded": recoded,
            "seconds": time.monotonic() - begin_s,
        }


def _drop(source: SourceShard) -> dict[str, Any]:
    """Delete a shard of which no chunk lies in the array's shape."""
    record_dropped(source)
    with storage_errors("delete", source.path):
        reach("compact.before_drop")
        with _held(source):
            beneath.unlink(source.path, missing_ok=True)
    sync_directory(source.path.parent)
    facts = {
        "bytes_read": source.index_bytes,
        "bytes_written": 0,
        "gain_bytes": source.file_bytes,
        "chunks": 0,
        "chunks_recoded": 0,
    }
    return {"ok": True, "skipped": False, "dropped": True, **facts}


def _pack(
    source: SourceShard,
    plan: PackPlan,
    codec: CodecParameters | None,
    throttle: Throttle,
    threads: int,
    *,
    degraded_only: bool,
) -> tuple[PackPlan, int]:
    """Make the new file and put it in the old one's place. Returns its plan and how many chunks were recoded.

    A shard that was packed already and of which no chunk got smaller stays.
    """
    chunks = PackedBytes(source, plan)
    with WorkingFile(working_path(source.array, source.key), plan.file_bytes, source.status) as working:
        working.copy_attributes(source.fileno())
        if codec is None:
            after, recoded, crcs = plan, 0, copy_chunks(chunks, working, plan, throttle)
        else:
            with WriteBehind(working, plan.data_start) as out:
                after, recoded, crcs = recode_chunks(
                    chunks, plan, codec, out.append, throttle.take, threads, degraded_only=degraded_only
                )
        if codec is not None and not recoded and plan.matches(source.file_bytes):
            return plan, 0
        finish_copy(working, after)
        check_copy(working, after, crcs, throttle)
        _check_untouched(source, plan, chunks.crcs)
        if recoded or len(plan.chunks) < source.live_chunks:
            record_recoded(source, plan, chunks.crcs, working.path, after, crcs)
        working.replace(source.path, _held(source))
    return after, recoded


def copy_chunks(chunks: PackedBytes, working: WorkingFile, plan: PackPlan, throttle: Throttle) -> UInt32s:
    """Copy chunks without decoding. Returns the crc32c of each as it came from the source. Raises
    ``ShardFormatError`` for a bad one, ``StorageError``."""
    with WriteBehind(working, plan.data_start) as out:
        return copy_behind(chunks, out, throttle)


def copy_behind(chunks: PackedBytes, out: WriteBehind, throttle: Throttle) -> UInt32s:
    """As ``copy_chunks``, behind what was written before."""
    while chunks.left_bytes:
        room = out.room
        throttle.take(2 * min(room.size, chunks.left_bytes))  # read here, written behind
        out.advance(chunks.read_into(room))
    return chunks.crcs


def finish_copy(working: WorkingFile, plan: PackPlan) -> None:
    """Write the index behind or before the chunks, and make all of it durable. Raises ``StorageError``."""
    working.write(plan.index_offset, plan.array.index.encode(plan.entries()))
    working.finish(plan.file_bytes)


def check_copy(working: WorkingFile, plan: PackPlan, crcs: UInt32s, throttle: Throttle) -> None:
    """Compare what the disk gives back with what was written. Raises ``StorageError`` naming the first chunk
    that differs, or the index."""
    starts = plan.target_offset
    ends = starts + plan.nbytes
    found = np.zeros(len(crcs), np.uint32)
    index = bytearray(plan.array.index.encode(plan.entries()))
    expected_index = bytes(index)
    for offset, piece in working.read_pieces():
        throttle.take(piece.size)
        stop = offset + piece.size
        part = parts_between(starts, ends, offset, stop)
        begin, end = np.maximum(starts[part], offset), np.minimum(ends[part], stop)
        checksum_ranges(piece.ctypes.data + begin - offset, end - begin, found[part])
        first, last = max(plan.index_offset, offset), min(plan.index_offset + plan.index_bytes, stop)
        if first < last:
            index[first - plan.index_offset : last - plan.index_offset] = piece[
                first - offset : last - offset
            ].tobytes()
    for i in np.flatnonzero(found != crcs).tolist():
        raise _not_read_back(plan, f"chunk {plan.name(i)}", f"crc32c {crcs[i]:08x}", f"{found[i]:08x}")
    if index != expected_index:
        raise _not_read_back(plan, "the index", "the bytes that were written", "other bytes")


def _not_read_back(plan: PackPlan, what: str, expected: str, got: str) -> StorageError:
    return StorageError(
        f"{what} of the packed {plan.path} does not read back as it was written",
        expected=expected,
        got=got,
        hint="The shard is left as it is. Check the disk before anything else is written to it",
    )


def _check_untouched(source: SourceShard, plan: PackPlan, crcs: UInt32s) -> None:
    """Raises ``StorageError`` when another process wrote to the shard, or replaced it, while it was copied;
    names the first changed chunk."""
    if source.is_as_it_was():
        return
    again = PackedBytes(source, plan)
    room = np.empty(PIECE_BYTES, np.uint8)
    with suppress(ShardFormatError):  # a chunk that is none any more is a changed one
        while again.left_bytes:
            again.read_into(room)
    changed = [plan.name(i) for i in np.flatnonzero(again.crcs != crcs).tolist()]
    raise _changed(source, f"another chunk {changed[0]}" if changed else None)


@contextmanager
def _not_changing(source: SourceShard) -> Iterator[None]:
    """What looks damaged in a shard that another process changes meanwhile need not be."""
    try:
        yield
    except ShardFormatError:
        if not source.is_as_it_was():
            raise _changed(source) from None
        raise


@contextmanager
def _held(source: SourceShard) -> Iterator[None]:
    """Hold the array's record while the shard is replaced or deleted. Raises ``StorageError`` when it is not
    the one that was read: its acquisition may have continued and sealed it again.
    """
    array = source.array.path
    with ShardSums(array).held(create=workspace_of(array) is not None):
        check_not_edited(array, source.key)
        if not source.is_as_it_was():
            raise _changed(source)
        yield


def _changed(source: SourceShard, what: str | None = None) -> StorageError:
    hint = "The shard is left as it is. Compact a store only when nothing else writes to it"
    return StorageError(f"{source.path} was changed while it was packed", got=what, hint=hint)


def record_recoded(
    source: SourceShard,
    before: PackPlan,
    crcs_before: UInt32s,
    copy: Path,
    after: PackPlan,
    crcs_after: UInt32s,
) -> None:
    """Record that ``copy`` is to take the place of ``source``. ``crcs``: of each chunk of the plan as it lies
    in its file.

    Raises ``ShardFormatError`` for a source that is not the recorded shard, ``StorageError``.
    """
    record = ShardSums(source.array.path)
    known = record.of(source.key)
    if not known:
        return
    if len(before.chunks) == source.live_chunks:
        found = shard_sum(
            before.chunks,
            before.nbytes,
            crcs_without_inner(source, before.source_offset, before.nbytes, crcs_before),
        )
    else:
        found = sum_of(source, *data_crcs(source))
    check_known(source, record, found, known)
    with ShardFile(source.array, copy) as file:
        record.append(
            {
                source.key: shard_sum(
                    after.chunks,
                    after.nbytes,
                    crcs_without_inner(file, after.target_offset, after.nbytes, crcs_after),
                )
            }
        )


def record_dropped(source: SourceShard) -> None:
    """Record that ``source`` is to be deleted. Raises as ``record_recoded`` does."""
    record = ShardSums(source.array.path)
    known = record.of(source.key)
    if known:
        check_known(source, record, sum_of(source, *data_crcs(source)), known)
        record.append({source.key: None})


def check_known(source: SourceShard, record: ShardSums, found: int, known: set[int | None]) -> None:
    """Raises ``ShardFormatError`` when the sum ``found`` of a shard is none of those that are recorded."""
    if found not in known:
        raise ShardFormatError(
            f"{source.path} is not the shard that {record.path} records: it was altered or replaced",
            hint="It is left as it is. If you changed the store yourself, delete that record and run this "
            "again",
        )


def crcs_without_inner(file: ShardFile, offsets: Int64s, nbytes: Int64s, crcs: UInt32s) -> UInt32s:
    """The crc32c of each chunk without its inner crc32c. If there is one, it is that number."""
    if not file.array.codecs.checksum:
        return crcs
    found = np.zeros(len(offsets), "<u4")
    for i, end in enumerate((offsets + nbytes).tolist()):
        file.read_into(end - CHECKSUM_BYTES, found[i : i + 1].view(np.uint8).data)
    return found


def data_crcs(source: SourceShard) -> tuple[Int64s, UInt32s]:
    """The numbers of the chunks that a shard has, and the crc32c of each without an inner one, all chunks
    read."""
    inner = CHECKSUM_BYTES if source.array.codecs.checksum else 0
    numbers = np.flatnonzero(source.entries["offset"] != EMPTY)
    crcs = np.zeros(len(numbers), np.uint32)
    for i, entry in enumerate(source.entries[numbers]):
        chunk = bytearray(max(0, int(entry["nbytes"]) - inner))
        source.read_into(int(entry["offset"]), memoryview(chunk))
        crcs[i] = crc32c.crc32c(chunk)
    return numbers, crcs


def sum_of(source: SourceShard, numbers: Int64s, crcs: UInt32s) -> int:
    """The sum of the shard as it is, from ``data_crcs``."""
    return shard_sum(numbers, source.entries["nbytes"][numbers], crcs)
