"""An edit of one shard: some of its chunks get new bytes, or are erased, at once for every reader that opens
it later. EDIT.md has the strategies, and what each crash leaves.

    lock of the shard ──▶ what an earlier edit left ──▶ plan ──▶ record of the new sum ──▶
        within the file:  room ──▶ journal durable ──▶ chunks, index, zeros ──▶ sync ──▶ journal deleted
        another file:     copy ──▶ sync ──▶ read back ──▶ rename
        nothing is left:  the shard is deleted
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.codecs.decode import HEAD_BYTES
from shardwright.disk import beneath
from shardwright.disk.changed_file import ChangedFile
from shardwright.disk.files import (
    NO_FILE,
    DurableFolders,
    FileIdentity,
    data_ranges,
    storage_errors,
    sync_directory,
)
from shardwright.model.errors import (
    PartialWriteWarning,
    ShardChangedError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StrategyError,
)
from shardwright.model.names import DOCUMENT
from shardwright.rework.change_checks import check_at_rest, check_not_spilled, check_same_shards
from shardwright.rework.shard_copy import delete_shard
from shardwright.rework.shard_record import check_recorded, data_crcs, sum_of, sum_of_copy
from shardwright.rework.source_shard import CRC_OF_BYTES_AND_CRC, SourceShard
from shardwright.rework.unknown_bytes import gaps_between, unknown_bytes
from shardwright.shard.edit_files import COPY_SUFFIX, JOURNAL_SUFFIX, NEW_SUFFIX, edit_file
from shardwright.shard.index import EMPTY
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.parity_set import forget_parity
from shardwright.shard.shard_sums import ShardSums, data_crc, shard_sum

from .changed_copy import plan_changed, replace_changed
from .edit_plan import (
    STRATEGIES,
    EditPlan,
    Ranges,
    ShardFacts,
    Strategy,
    common,
    meets,
    minus,
    plan_edit,
    union,
    unused_bytes,
)
from .edit_recovery import delete_durably, recover_locked
from .redo_journal import MOST_BYTES, RedoJournal
from .shard_lock import TIMEOUT_S, shard_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from shardwright.read.store import StoredArray
    from shardwright.rework.pack_plan import PackPlan, UInt32s
    from shardwright.rework.unknown_bytes import UnknownBytes

    Change = Callable[[], "EditReport"]

_TRIES = 20  # a shard that is replaced (packed) meanwhile is looked at again
_PIECE_BYTES = 4 << 20
_LARGE_BYTES, _MANY_TIMES = 32 << 20, 4  # written, and for each byte asked for: then a rewrite is told


@dataclass(frozen=True)
class EditReport:
    """The report of one edit of a shard. ``strategy``: the one that was used. ``bytes_written``: into the
    shard or its copy, and the journal. ``unused_bytes``: of ``file_bytes`` now. ``removed``: the last chunk
    was erased, and with it the file. ``identity``: of the file now, ``NO_FILE`` without one."""

    strategy: Strategy
    bytes_written: int
    unused_bytes: int
    file_bytes: int
    removed: bool
    identity: FileIdentity

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def edit_shard(
    array: StoredArray,
    shard: tuple[int, ...],
    chunks: Mapping[int, bytes | None],
    *,
    strategy: Strategy = "auto",
    max_unused: float = 0.25,
    expected: FileIdentity | None = None,
    timeout_s: float = TIMEOUT_S,
) -> EditReport:
    """Gives chunks of one shard new bytes. ``shard``: its coordinates. ``chunks``: encoded bytes by number
    within the shard (row-major), None to erase one. All of them are changed, durably, or none.

    ``strategy``: see ``edit_plan``; ``auto`` keeps at most ``max_unused`` of the file unused, and writes a
    new shard, or one of which every chunk is given, as a new file. ``expected``: of the file that the caller
    has read (``FileIdentity.at``), ``NO_FILE`` if there was none; None: of any. ``timeout_s``: for another
    edit of this shard to end.

    Raises ``LockedError`` while the store is being written or moved, or for another edit that takes too long;
    ``ShardChangedError`` when the shard is not the expected one; ``StrategyError``; ``ShardFormatError`` for
    a shard, a chunk's bytes or a number that is none; ``StorageFullError``: nothing was changed, unless its
    hint says otherwise; ``StorageError``.
    """
    chunks = _checked(array, shard, chunks, strategy, max_unused)
    key = array.shard_key(shard)
    check_at_rest(array.path)
    with shard_locked(array.path, key, timeout_s):
        recover_locked(array, key)
        for left in reversed(range(_TRIES)):
            try:
                return _Edit(array, shard, chunks, expected).run(strategy, max_unused)
            except ShardChangedError:
                if expected is not None or not left:
                    raise
    raise AssertionError("the last try returns or raises")


def check_edit(
    array: StoredArray,
    shard: tuple[int, ...],
    chunks: Mapping[int, bytes | None],
    *,
    strategy: Strategy = "auto",
    max_unused: float = 0.25,
) -> None:
    """Checks that ``edit_shard`` can make this edit of the shard as it is now. Changes nothing, and takes no
    lock. Raises as ``edit_shard`` does for the shard, its chunks and the strategy."""
    chunks = _checked(array, shard, chunks, strategy, max_unused)
    _Edit(array, shard, chunks, None).check(strategy, max_unused)


def can_be_rewritten(array: StoredArray, shard: tuple[int, ...]) -> bool:
    """Returns whether a shard can be written as a new file, whichever of its chunks are changed; there need
    be none. Raises ``StorageError``."""
    if FileIdentity.at(array.path / array.shard_key(shard)) == NO_FILE:
        return True
    try:
        with SourceShard(array, shard) as source:
            return _unknown(source) is None
    except ShardFormatError:
        return False


def _unknown(source: SourceShard) -> UnknownBytes | None:
    return unknown_bytes(source, source.pack_plan("row_major"))


def _checked(
    array: StoredArray,
    shard: tuple[int, ...],
    chunks: Mapping[int, bytes | None],
    strategy: Strategy,
    max_unused: float,
) -> dict[int, bytes | None]:
    """The chunks in order. Raises ``ShardFormatError``, ``StrategyError``."""
    check_same_shards(array)
    if strategy not in STRATEGIES:
        raise StrategyError("unknown strategy", expected=" or ".join(STRATEGIES), got=repr(strategy))
    if not 0 <= max_unused <= 1:
        raise StrategyError("max_unused is no share", expected="a number from 0 to 1", got=max_unused)
    if len(shard) != len(array.shape) or min(shard, default=0) < 0:
        raise ShardFormatError(f"{array.path} has no shard {shard}", expected=f"{len(array.shape)} numbers")
    if not array.contains_shard(shard) and any(data is not None for data in chunks.values()):
        raise ShardFormatError(
            f"{array.path} has no shard {shard}", expected=f"a shard of the grid {array.grid_shape}"
        )
    limit = array.codecs.max_encoded_bytes(array.chunk_bytes)
    for number, data in chunks.items():
        if not 0 <= number < array.chunks_per_shard:
            raise ShardFormatError(
                f"shard {shard} of {array.path} has no chunk {number}",
                expected=f"0 to {array.chunks_per_shard - 1}",
            )
        if data is not None:
            _check_chunk(array, number, data, limit)
    return {number: chunks[number] for number in sorted(chunks)}


def _check_chunk(array: StoredArray, number: int, data: bytes, limit: int) -> None:
    least = limit if array.codecs.name == "none" else 1
    if not least <= len(data) <= limit:
        raise ShardFormatError(
            f"chunk {number} is not encoded as {array.path} is",
            expected=f"{least} to {limit} bytes",
            got=len(data),
        )
    try:
        array.describe(data[:HEAD_BYTES], len(data))
    except ShardFormatError as error:
        raise ShardFormatError(f"chunk {number} is not encoded as {array.path} is: {error}") from None
    if array.is_ours and array.codecs.checksum and crc32c.crc32c(data) != CRC_OF_BYTES_AND_CRC:
        raise ShardFormatError(f"chunk {number} for {array.path} fails its crc32c")


class _Edit:
    """One try. The caller holds the shard's lock."""

    def __init__(
        self,
        array: StoredArray,
        shard: tuple[int, ...],
        chunks: Mapping[int, bytes | None],
        expected: FileIdentity | None,
    ) -> None:
        self._array, self._shard, self._chunks = array, shard, chunks
        self._key = array.shard_key(shard)
        self._path = array.path / self._key
        self._record = ShardSums(array.path)
        self._is_whole = len(chunks) == array.chunks_per_shard
        check_not_spilled(self._path)
        self._identity = FileIdentity.at(self._path)
        if expected is not None and self._identity != expected:
            raise self._changed()

    def run(self, strategy: Strategy, max_unused: float) -> EditReport:
        with self._decided(strategy, max_unused) as change:
            return change()

    def check(self, strategy: Strategy, max_unused: float) -> None:
        """Raises what ``run`` would before it changes anything."""
        with self._decided(strategy, max_unused):
            pass

    @contextmanager
    def _decided(self, strategy: Strategy, max_unused: float) -> Iterator[Change]:
        """A context with what is to be done, in which the shard is open."""
        erases_all = all(data is None for data in self._chunks.values())
        if self._identity == NO_FILE:
            if not self._is_whole and not erases_all:
                self._check_not_lost()
            yield partial(self._unchanged, "rewrite", 0) if erases_all else self._new(strategy)
            return
        try:
            source = SourceShard(self._array, self._shard)
        except ShardFormatError:
            if not self._is_whole:
                raise
            yield partial(self._remove, None) if erases_all else self._new(strategy)
            return
        with source:
            if source.file.identity != self._identity:
                raise self._changed()
            yield self._change(source, _unknown(source), strategy, max_unused)

    def _change(
        self, source: SourceShard, unknown: UnknownBytes | None, strategy: Strategy, max_unused: float
    ) -> Change:
        live = set(source.index.live.tolist())
        chunks = {n: data for n, data in self._chunks.items() if data is not None or n in live}
        if not chunks:  # what is to be erased is absent
            facts = ShardFacts(self._array.index, source.index.entries, source.file.nbytes)
            used: Strategy = strategy if strategy != "auto" else "in_place"
            return partial(self._unchanged, used, unused_bytes(facts))
        if not live - chunks.keys() and all(data is None for data in chunks.values()):
            if unknown is not None:
                raise unknown.error()
            return partial(self._remove, source)
        facts = ShardFacts(
            self._array.index,
            source.index.entries,
            source.file.nbytes,
            _why_unchangeable(source),
            unknown is None,
            _holes(source),
        )
        if strategy == "auto" and self._is_whole:
            strategy = "rewrite"
        sizes = {number: None if data is None else len(data) for number, data in chunks.items()}
        plan = plan_edit(facts, sizes, strategy, max_unused)
        if plan.after is None:
            if unknown is not None:
                raise unknown.error()
            return partial(self._replace, source)
        journal = self._journal(source, facts, plan, plan.after)
        if not journal.is_too_long:
            return partial(self._write_within, source, plan, plan.after, journal)
        if strategy == "auto" and unknown is None:
            return partial(self._replace, source)
        raise StrategyError(
            f"strategy {plan.strategy!r} cannot do this: its journal would be too long to be recovered",
            expected=f"at most {MOST_BYTES} bytes of chunks before and after",
            hint="Give fewer chunks at once, or strategy rewrite",
        )

    # ------------------------------------------------------------------ another file, or none

    def _new(self, strategy: Strategy) -> Change:
        if strategy not in ("auto", "rewrite"):
            raise StrategyError(
                f"strategy {strategy!r} cannot do this: there is no sound shard {self._path}",
                expected="strategy rewrite",
                hint="`auto` takes the cheapest one that can",
            )
        return partial(self._replace, None)

    def _replace(self, source: SourceShard | None) -> EditReport:
        like = self._path if self._identity != NO_FILE else self._array.path / DOCUMENT
        with storage_errors("look at", like):
            status = beneath.stat(like)
        plan = plan_changed(self._array, self._shard, source, self._chunks)
        self._warn_of_rewrite(plan.file_bytes)
        # of a shard that is there the names are durable; others may have made the folders of a new one
        folders = DurableFolders(self._array.path)
        folders.make(self._path.parent, synced=self._identity == NO_FILE)
        if source is not None and not self._is_whole:
            self._check_recorded(source)
        copy = edit_file(self._array.path, self._key, COPY_SUFFIX)
        replace_changed(
            plan,
            source,
            self._chunks,
            copy,
            status,
            partial(self._record_copy, copy),
            self._held(),
        )
        return self._report("rewrite", plan.file_bytes)

    def _warn_of_rewrite(self, nbytes: int) -> None:
        """Every partial write of ours passes here: updates, and a store of chunks on a disk or in a bucket.
        Before anything changes: where warnings are errors the shard must stay as it is."""
        asked = sum(len(data) for data in self._chunks.values() if data is not None)
        if nbytes >= max(_LARGE_BYTES, _MANY_TIMES * asked):
            warnings.warn(
                f"{asked} bytes of chunks are to be written into shard {self._key}, for which {nbytes} bytes "
                "are written: all of it anew. Write whole shards (`shardwright.shard_regions`), or give "
                "larger parts at once",
                PartialWriteWarning,
                stacklevel=5,  # of who called edit_shard
            )

    def _unchanged(self, used: Strategy, unused: int) -> EditReport:
        """Nothing is to be done, if it stays so."""
        self._keep_name()
        return self._report(used, 0, unused)

    def _keep_name(self) -> None:
        """Makes durable which file has the name of the shard: whoever gave it, or deleted it, may have been
        killed before, or have failed at that."""
        if beneath.is_dir(self._path.parent):
            sync_directory(self._path.parent)

    def _remove(self, source: SourceShard | None) -> EditReport:
        """Deletes the shard."""
        if source is not None and not self._is_whole:
            self._check_recorded(source)
        self._record_sum(None)
        delete_shard(self._path, self._held(), "edit.before_delete_shard")
        return self._report("rewrite", 0, removed=True)

    # ------------------------------------------------------------------ within the file

    def _write_within(
        self, source: SourceShard, plan: EditPlan, after: ShardFacts, journal: RedoJournal
    ) -> EditReport:
        self._keep_name()
        with ChangedFile(self._path) as file:
            self._record_after(source, after)
            path, new = (
                edit_file(self._array.path, self._key, suffix) for suffix in (JOURNAL_SUFFIX, NEW_SUFFIX)
            )
            self._save(file, journal, path, new)
            try:
                journal.begin(file)
            except StorageError:
                with self._completed_later():
                    journal.undo(file)
                delete_durably(path)
                raise
            with self._completed_later():
                journal.complete(file)
                identity = file.finish()
        delete_durably(path)
        written = sum(len(data) for _, data in journal.writes) + journal.nbytes
        return EditReport(
            plan.strategy, written, unused_bytes(after), after.file_bytes, removed=False, identity=identity
        )

    def _save(self, file: ChangedFile, journal: RedoJournal, path: Path, new: Path) -> None:
        """Makes the journal durable, with room in the shard for all that it writes."""
        if not file.is_as(self._identity):
            raise self._changed()
        try:
            for start, stop in journal.written:
                file.reserve(start, stop - start)
            self._identity = FileIdentity.of(file.status())  # a reservation may give a file another time
            journal.save(path, new, self._held(file))
        except ShardwrightError:
            delete_durably(path)  # if it got its name, and a later step failed
            if file.status().st_size == journal.old_bytes:
                file.cut(journal.old_bytes)  # gives the room back
            raise

    @contextmanager
    def _completed_later(self) -> Iterator[None]:
        """From here on the shard is neither the old one nor the new one, until its journal is done."""
        try:
            yield
        except StorageError as error:
            raise type(error)(
                f"the update of {self._path} was interrupted: {error.message}",
                hint="Its journal has all of it: `shardwright recover`, or the next update, completes it. "
                "Until then readers may find chunks that fail their checksum",
            ) from error

    def _journal(
        self, source: SourceShard, before: ShardFacts, plan: EditPlan, after: ShardFacts
    ) -> RedoJournal:
        index = self._array.index
        chunks = sorted((offset, self._chunks[number] or b"") for number, offset in plan.offsets.items())
        old_start, old_stop = before.index_range
        with_index = b"" if np.array_equal(after.entries, before.entries) else index.encode(after.entries)
        needed = union([*before.live, (old_start, old_stop)])
        if with_index:
            chunks.append((after.index_range[0], with_index))
        others = [write for write in chunks if meets(_range(write), needed)]
        harmless = _joined(write for write in chunks if not meets(_range(write), needed))
        old_index = bytes(source.file.read(old_start, old_stop - old_start))
        clears = tuple(_cleared(source, before, plan, after))
        changed = union([*map(_range, (*harmless, *others)), *clears])
        kept = ((start, min(stop, before.file_bytes)) for start, stop in changed if start < before.file_bytes)
        return RedoJournal(
            self._key,
            source.file.status.st_ino,
            before.file_bytes,
            after.file_bytes,
            crc32c.crc32c(old_index),
            crc32c.crc32c(with_index or old_index),
            (*harmless, *others),
            len(harmless),
            clears,
            tuple((start, bytes(source.file.read(start, stop - start))) for start, stop in kept),
        )

    # ------------------------------------------------------------------ the record of the array's shards

    def _record_after(self, source: SourceShard, after: ShardFacts) -> None:
        """Records the sum of the shard with its new chunks, all others read."""
        if not self._record.exists():
            return
        numbers, crcs = self._check_recorded(source)
        sums = dict(zip(numbers.tolist(), crcs.tolist(), strict=True))
        has_inner = self._array.codecs.checksum
        sums |= {
            number: data_crc(data, has_inner=has_inner)
            for number, data in self._chunks.items()
            if data is not None
        }
        live = np.flatnonzero(after.entries["offset"] != EMPTY)
        self._record_sum(
            shard_sum(live, after.entries["nbytes"][live], np.array([sums[n] for n in live.tolist()]))
        )

    def _record_copy(self, copy: Path, plan: PackPlan, crcs: UInt32s) -> None:
        if self._record.exists():
            self._record_sum(sum_of_copy(copy, plan, crcs))

    def _check_recorded(self, source: SourceShard) -> Any:
        """Raises ``ShardFormatError`` for a shard that is not the recorded one. Returns its ``data_crcs``.
        Inner checksums are believed: whoever decodes a chunk compares them."""
        if not self._record.exists():
            return None
        numbers, crcs = data_crcs(source, inner_is_believed=True)
        check_recorded(source, self._record, lambda: sum_of(source, numbers, crcs))
        return numbers, crcs

    def _check_not_lost(self) -> None:
        """Raises ``ShardFormatError`` for a shard that is on record and gone: the sum of a new one would hide
        that its other chunks are lost."""
        sums = self._record.of(self._key)
        if sums and None not in sums:
            raise ShardFormatError(
                f"{self._path} is missing, although {self._record.path} records it",
                hint="Put it back from a copy, or give all of its chunks: then it is a new shard. If another "
                f"program has deleted all shards on purpose, delete {self._record.path}",
            )

    def _record_sum(self, value: int | None) -> None:
        if self._record.exists():
            self._record.append_changed(self._key, value, is_new=self._identity == NO_FILE)

    # ------------------------------------------------------------------ others

    @contextmanager
    def _held(self, file: ChangedFile | None = None) -> Iterator[None]:
        """The right to change or replace the shard. Raises ``ShardChangedError`` when it is not the one that
        the plan was made for: a compaction may have replaced it."""
        with self._record.held(create=False):
            check_at_rest(self._array.path)
            check_same_shards(self._array)
            as_it_was = file is None or file.is_as(self._identity)
            if not as_it_was or FileIdentity.at(self._path) != self._identity:
                raise self._changed()
            forget_parity(self._array.path, self._path)
            yield

    def _changed(self) -> ShardChangedError:
        return ShardChangedError(
            f"{self._path} was changed or replaced after it was read",
            hint="It is left as it is. Read it again, and repeat the update",
        )

    def _report(
        self, strategy: Strategy, written: int, unused: int = 0, *, removed: bool = False
    ) -> EditReport:
        identity = FileIdentity.at(self._path)
        return EditReport(strategy, written, unused, identity.nbytes, removed, identity)


def _joined(writes: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Writes that follow each other as one: what is appended, with its index, reaches the file at once."""
    found: list[tuple[int, list[bytes]]] = []
    end = None
    for offset, data in sorted(writes):
        if offset == end:
            found[-1][1].append(data)
        else:
            found.append((offset, [data]))
        end = offset + len(data)
    return [(offset, b"".join(parts)) for offset, parts in found]


def _range(write: tuple[int, bytes]) -> tuple[int, int]:
    return write[0], write[0] + len(write[1])


def _why_unchangeable(source: SourceShard) -> str | None:
    """Returns why the file of a shard cannot be changed where it lies, None if it can."""
    status = source.file.status
    if source.description is not None:
        return "the shard describes itself: its description has the sum of its chunks"
    if not source.array.is_sharded:
        return "the array has no shards: a file is one chunk"
    if status.st_nlink > 1:
        return "the file has another name (a hard link), under which it would change too"
    if os.geteuid() not in (0, status.st_uid):
        return "the file belongs to another user"
    return None


def _cleared(source: SourceShard, before: ShardFacts, plan: EditPlan, after: ShardFacts) -> Ranges:
    """The bytes that must become zeros: compaction would not know what they mean. Bytes of chunks and indexes
    that were, and what an encoder or an older edit left in gaps; not the index that has just been retired."""
    gaps: Ranges = [
        (int(start), int(stop))
        for start, stop in gaps_between(source.array, after.entries, after.data_range).tolist()
    ]
    retired = [] if plan.retired is None or not _is_seen(plan.retired, gaps) else [plan.retired]
    meant = union([*before.live, before.index_range])
    known = minus(common(gaps, meant), retired)
    if not before.are_gaps_free:
        return minus(known, before.unused)
    doubtful = minus(minus(gaps, meant), [(before.file_bytes, after.file_bytes)])
    return union([*known, *_remains(source, doubtful)])


def _holes(source: SourceShard) -> tuple[tuple[int, int], ...]:
    """Returns the holes of a shard between its chunks: those of slots that their chunks do not fill."""
    unused = ShardFacts(source.array.index, source.index.entries, source.file.nbytes).unused
    gaps = [(start, stop) for start, stop in unused if stop - start >= PAGE_BYTES]
    with storage_errors("read", source.path):
        data = [piece for gap in gaps for piece in data_ranges(source.file.descriptor, *gap)]
    return tuple(minus(gaps, data))


def _is_seen(index: tuple[int, int], gaps: Ranges) -> bool:
    """Returns whether ``unknown_bytes`` takes these bytes for an old index: it looks at the ends of a gap."""
    return any(
        start <= index[0] and index[1] <= stop and (start == index[0] or index[1] == stop)
        for start, stop in gaps
    )


def _remains(source: SourceShard, ranges: Ranges) -> Iterator[tuple[int, int]]:
    """The parts of these ranges in which a byte is not zero."""
    for start, stop in ranges:
        with storage_errors("read", source.path):
            for first, last in data_ranges(source.file.descriptor, start, stop):
                for at in range(first, last, _PIECE_BYTES):
                    piece = bytes(source.file.read(at, min(_PIECE_BYTES, last - at)))
                    if piece.strip(b"\0"):
                        yield at, at + len(piece)
