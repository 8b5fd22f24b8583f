"""One shard packed in place: its chunks are copied (or recoded) to a working file, which takes the old file's
place (``shard_copy``). Packing alone changes no chunk, and so no sum of the array's record."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.codecs.recompress import AS_CONFIGURED
from shardwright.disk import beneath
from shardwright.disk.files import sync_directory
from shardwright.disk.working_file import PIECE_BYTES, WorkingFile, WriteBehind
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.names import EDIT_FOLDER
from shardwright.read.store import parse_array, workspace_of
from shardwright.rework.change_checks import check_not_spilled
from shardwright.rework.runtime.work_folder import working_path
from shardwright.rework.shard_copy import copy_behind, delete_shard, replace_shard
from shardwright.rework.shard_record import check_recorded, data_crcs, sum_in_place, sum_of, sum_of_copy
from shardwright.rework.source_shard import PackedBytes, SourceShard
from shardwright.rework.unknown_bytes import unknown_bytes
from shardwright.shard.edit_files import check_not_edited
from shardwright.shard.parity_set import forget_parity
from shardwright.shard.shard_sums import ShardSums

from .hdf5_container import hdf5_plan, is_hdf5, pack_as_hdf5
from .recode import denser_codec, recode_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.codecs.parameters import CodecParameters
    from shardwright.rework.pack_plan import PackPlan, UInt32s
    from shardwright.rework.runtime.throttle import Throttle


def pack_shard(task: dict[str, Any], throttle: Throttle) -> dict[str, Any]:
    """Do the task {kind: "pack", array, shard, order, recompress, trim, describe, container, threads}.
    ``array``: its folder; ``shard``: coordinates; ``recompress``: None, or see ``recode.denser_codec``;
    ``trim``: drop chunks outside the array's shape; ``describe``: it gets a description; ``container``: what
    the shard is to be as well, None for the array's own; ``threads``: that recode, default 1.

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
    check_not_spilled(path)
    trim = bool(task.get("trim"))
    recompress = task.get("recompress")
    codec = None if recompress is None else denser_codec(array, recompress)
    degraded_only = recompress is not None and recompress["cname"] == AS_CONFIGURED
    check_not_edited(array.path, array.shard_key(shard))
    with SourceShard(array, shard) as source, _not_changing(source):
        is_contained = bool(task.get("container") or array.container)
        if is_contained:
            before = after = hdf5_plan(source, task["order"])
            packed_already, nbytes, recoded = is_hdf5(source), source.file.nbytes, 0
        else:
            before = after = source.pack_plan(task["order"], trim=trim, describe=bool(task.get("describe")))
            packed_already, nbytes, recoded = source.is_packed(before), after.file_bytes, 0
        if (unknown := unknown_bytes(source, before, throttle.take)) is not None:
            raise unknown.error()
        if trim and source.is_cropped_whole():
            return _drop(source)
        if is_contained and not packed_already:
            nbytes = pack_as_hdf5(
                source, before, lambda crcs: _check_untouched(source, before, crcs), _held(source), throttle
            )
        elif codec is not None or not packed_already:
            after, recoded = _pack(
                source, before, codec, throttle, int(task.get("threads") or 1), degraded_only=degraded_only
            )
            nbytes = after.file_bytes
        skipped = packed_already and not recoded
        return {
            "ok": True,
            "skipped": skipped,
            "bytes_read": source.array.index_bytes
            if skipped and codec is None
            else source.array.index_bytes + before.live_bytes,
            "bytes_written": 0 if skipped else nbytes,
            "gain_bytes": source.file.nbytes - nbytes,
            "chunks": len(before.chunks),
            "chunks_recoded": recoded,
            "seconds": time.monotonic() - begin_s,
        }


def _drop(source: SourceShard) -> dict[str, Any]:
    """Delete a shard of which no chunk lies in the array's shape."""
    _record_dropped(source)
    delete_shard(source.path, _held(source), "compact.before_drop")
    facts = {
        "bytes_read": source.array.index_bytes,
        "bytes_written": 0,
        "gain_bytes": source.file.nbytes,
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
    with WorkingFile(working_path(source.array, source.key), plan.file_bytes, source.file.status) as working:
        working.copy_attributes(source.file.descriptor)
        with WriteBehind(working, plan.data_start) as out:
            if codec is None:
                after, recoded, crcs = plan, 0, copy_behind(chunks, out, throttle)
            else:
                after, recoded, crcs = recode_chunks(
                    chunks, plan, codec, out.append, throttle.take, threads, degraded_only=degraded_only
                )
        if codec is not None and not recoded and source.is_packed(plan):
            return plan, 0

        def record() -> None:
            _check_untouched(source, plan, chunks.crcs)
            if recoded or len(plan.chunks) < source.live_chunks:
                _record_recoded(source, plan, chunks.crcs, working.path, after, crcs)

        replace_shard(working, after, crcs, record, _held(source), throttle)
    return after, recoded


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
    """Raises ``StorageError`` in place of ``ShardFormatError`` if another process has changed the shard
    meanwhile: what looks damaged then need not be."""
    try:
        yield
    except ShardFormatError:
        if not source.is_as_it_was():
            raise _changed(source) from None
        raise


@contextmanager
def may_replace(array: Path, key: str) -> Iterator[None]:
    """The right to replace or delete a shard, after a last look inside whether it is the one that was read:
    its acquisition may have continued and sealed it again. Raises ``StorageError``."""
    with ShardSums(array).held(create=workspace_of(array) is not None):
        check_not_edited(array, key)
        # an edit that died may have deleted its journal unsynced: it would come back to another file
        edits = array / EDIT_FOLDER
        sync_directory(edits if beneath.is_dir(edits) else array)
        yield


@contextmanager
def _held(source: SourceShard) -> Iterator[None]:
    """Hold the array's record while the shard is replaced or deleted. Raises ``StorageError``."""
    with may_replace(source.array.path, source.key):
        if not source.is_as_it_was():
            raise _changed(source)
        forget_parity(source.array.path, source.path)
        yield


def _changed(source: SourceShard, what: str | None = None) -> StorageError:
    hint = "The shard is left as it is. Compact a store only when nothing else writes to it"
    return StorageError(f"{source.path} was changed while it was packed", got=what, hint=hint)


def _record_recoded(
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

    def found() -> int:
        if len(before.chunks) == source.live_chunks:
            return sum_in_place(before, source.file, before.source_offset, crcs_before)
        return sum_of(source, *data_crcs(source))

    record = ShardSums(source.array.path)
    if check_recorded(source, record, found):
        record.append({source.key: sum_of_copy(copy, after, crcs_after)})


def _record_dropped(source: SourceShard) -> None:
    """Record that ``source`` is to be deleted. Raises as ``_record_recoded`` does."""
    record = ShardSums(source.array.path)
    if check_recorded(source, record, lambda: sum_of(source, *data_crcs(source))):
        record.append({source.key: None})
