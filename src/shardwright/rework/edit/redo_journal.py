"""The redo journal of one edit: all bytes that it writes into a shard, durable before the first of them is
written. EDIT.md has the format.

Written once or several times, wholly or in part, the bytes of a journal make the same file.

A journal that is read is not believed: its ranges lie within the file, share no byte, and it has the old
bytes of all that it changes. So it makes a shard at most as much longer, and clears at most as much of it, as
it is long itself.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.disk.files import AtomicFile
from shardwright.model.errors import FormatVersionError, ShardFormatError

from .edit_plan import minus, union

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from shardwright.disk.changed_file import ChangedFile

    from .edit_plan import Ranges

MAGIC = b"SWEDITJN"
VERSION = 1
MOST_BYTES = 1 << 30  # whoever recovers a journal holds it in memory
MOST_RANGES = 1 << 21
_MOST_FILE_BYTES = 1 << 62
_PIECE_BYTES = 4 << 20
_HEAD = struct.Struct("<8sIIQQQIIIIII")
_RANGE = struct.Struct("<QQ")
_CRC = struct.Struct("<I")


@dataclass(frozen=True)
class RedoJournal:
    """The redo journal of one edit, in memory. ``key``: of the shard. ``inode``, ``old_bytes``: of its file
    before; ``new_bytes``: its length afterwards. ``old_index``, ``new_index``: the crc32c of the encoded
    index, 0 without one.

    ``writes``: (offset, bytes). The first ``harmless`` of them touch no byte that a reader may need before
    the others are written. ``clears``: [start, stop) that become zeros afterwards. ``before``: (offset,
    bytes) of all that the edit changes below ``old_bytes``, as it was.
    """

    key: str
    inode: int
    old_bytes: int
    new_bytes: int
    old_index: int
    new_index: int
    writes: tuple[tuple[int, bytes], ...]
    harmless: int
    clears: tuple[tuple[int, int], ...]
    before: tuple[tuple[int, bytes], ...]

    @property
    def nbytes(self) -> int:
        """The length of its file."""
        return sum(map(len, self._parts())) + _CRC.size

    @property
    def written(self) -> Ranges:
        """The bytes of the shard that it writes, but for those that it clears."""
        return union((offset, offset + len(data)) for offset, data in self.writes)

    def save(self, path: Path, new: Path, may_begin: AbstractContextManager[None]) -> None:
        """Writes the file ``new`` durably, and gives it the name ``path`` within the context ``may_begin``.
        From then on the edit is done, now or by recovery. Raises ``StorageError`` (``StorageFullError``), or
        what ``may_begin`` raises; then there is no journal."""
        with AtomicFile(new, "edit_journal") as file:
            offset = crc = 0
            for part in self._parts():
                file.write(offset, part)
                crc = crc32c.crc32c(part, crc)
                offset += len(part)
            file.write(offset, _CRC.pack(crc))
            # Before the name: with the name and without the bytes recovery could only refuse it, although
            # nothing of the edit had begun.
            file.sync()
            file.replace(path, may_begin)

    def begin(self, file: ChangedFile) -> None:
        """Does the harmless writes, for the first time. Raises ``StorageError``."""
        for offset, data in self.writes[: self.harmless]:
            file.write(offset, data)

    def undo(self, file: ChangedFile) -> None:
        """Undoes what ``begin`` has done, durably: only then may the journal go. Raises ``StorageError``."""
        file.cut(self.old_bytes)
        for offset, data in self.writes[: self.harmless]:
            if offset < self.old_bytes:
                file.clear(offset, offset + len(data))
        file.sync()

    def complete(self, file: ChangedFile) -> None:
        """Does the rest. All is durable when the file is finished. Raises ``StorageError``.

        New bytes beside the old ones are durable before the index that names them, and that before the old
        ones are cleared, so that a power cut leaves a sound chunk under every entry of either index. Where
        chunks are overwritten that would be in vain.
        """
        others = self.writes[self.harmless :]
        overwrites_chunks = len(others) > 1  # else it is the index at most
        if self.harmless and others:
            file.sync()
        for offset, data in others:
            file.write(offset, data)
        if self.clears and not overwrites_chunks:
            file.sync()
        for start, stop in self.clears:
            file.clear(start, stop)

    def redo(self, file: ChangedFile) -> None:
        """Does all of it again, wherever it was cut short. Raises ``StorageError``."""
        self.begin(file)
        self.complete(file)

    @property
    def is_too_long(self) -> bool:
        """True for a journal that recovery would refuse."""
        ranges = len(self.writes) + len(self.clears) + len(self.before)
        return self.nbytes > MOST_BYTES or ranges > MOST_RANGES

    def explains(self, file: ChangedFile) -> bool:
        """Returns whether each byte that the edit changes is as it was, or as the edit makes it; else another
        program has written there since. Raises ``StorageError``."""
        for offset, *states in self._changes():
            was, after = (np.frombuffer(data, np.uint8) for data in states)
            now = np.frombuffer(file.read(offset, was.size), np.uint8)
            # Byte by byte: a kill cuts a write anywhere, and a power cut keeps any of its pages.
            if now.size < was.size or not ((now == was) | (now == after)).all():
                return False
        return True

    def _changes(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yields (offset, bytes before, bytes afterwards) of all that the edit changes below ``old_bytes``,
        in pieces."""
        for offset, data in self.writes:
            # Behind the old end there is nothing to compare with: what lies there the edit has appended.
            for start, stop in _pieces(offset, min(offset + len(data), self.old_bytes)):
                yield start, self._before(start, stop), data[start - offset : stop - offset]
        for first, last in self.clears:
            for start, stop in _pieces(first, last):
                yield start, self._before(start, stop), bytes(stop - start)

    def _before(self, start: int, stop: int) -> bytes:
        offset, data = self.before[bisect_right(self.before, start, key=lambda kept: kept[0]) - 1]
        return data[start - offset : stop - offset]

    def _parts(self) -> Iterator[bytes]:
        key = self.key.encode()
        counts = len(self.writes), len(self.clears), self.harmless, len(self.before)
        numbers = self.inode, self.old_bytes, self.new_bytes, self.old_index, self.new_index
        yield _HEAD.pack(MAGIC, VERSION, len(key), *numbers, *counts) + key
        pieces = [(offset, len(data)) for offset, data in (*self.writes, *self.before)]
        lengths = [(start, stop - start) for start, stop in self.clears]
        yield b"".join(_RANGE.pack(*at) for at in (*pieces, *lengths))
        for _, data in (*self.writes, *self.before):
            yield data

    @classmethod
    def parse(cls, data: bytes, path: Path) -> RedoJournal:
        """Raises ``ShardFormatError`` for a damaged one, ``FormatVersionError``."""
        if len(data) < _HEAD.size + _CRC.size or data[:8] != MAGIC:
            raise damaged_journal(path)
        head = _HEAD.unpack_from(data)
        if head[1] != VERSION:
            raise FormatVersionError(
                f"{path} was made by another release", expected=f"version {VERSION}", got=head[1]
            )
        if crc32c.crc32c(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
            raise damaged_journal(path)
        try:
            return cls._checked(data, head[2:])
        except ValueError as error:
            raise damaged_journal(path, str(error)) from None

    @classmethod
    def _checked(cls, data: bytes, numbers: tuple[int, ...]) -> RedoJournal:
        """``numbers``: of the head, behind the version. Raises ``ValueError`` for what no edit writes."""
        key_bytes, inode, old_bytes, new_bytes, old_index, new_index, *counts = numbers
        writes, clears, harmless, kept = counts
        table, stop = _HEAD.size + key_bytes, len(data) - _CRC.size
        ranges = writes + kept + clears
        at = table + ranges * _RANGE.size
        _require(ranges <= MOST_RANGES and at <= stop, "it has not as many ranges as it says")
        pieces = np.frombuffer(data, "<u8", 2 * ranges, table).reshape(-1, 2).tolist()
        with_bytes = writes + kept
        _require(at + sum(n for _, n in pieces[:with_bytes]) == stop, "it is not as long as its ranges")
        found = []
        for offset, nbytes in pieces[:with_bytes]:
            found.append((offset, data[at : at + nbytes]))
            at += nbytes
        cleared = tuple((start, start + nbytes) for start, nbytes in pieces[with_bytes:])
        key = data[_HEAD.size : table].decode()
        facts = inode, old_bytes, new_bytes, old_index, new_index
        journal = cls(key, *facts, tuple(found[:writes]), harmless, cleared, tuple(found[writes:]))
        journal._check()
        return journal

    def _check(self) -> None:
        """Raises ``ValueError`` for what no edit writes."""
        old, new = self.old_bytes, self.new_bytes
        _require(old <= new <= _MOST_FILE_BYTES, "lengths of the shard")
        _require(self.harmless <= len(self.writes), "count of harmless writes")
        changed = [(offset, offset + len(data)) for offset, data in self.writes]
        _require(all(stop <= old for _, stop in self.clears), "it clears past the shard")
        changed = sorted((*changed, *self.clears))
        _require(all(start < stop <= new for start, stop in changed), "it writes past the shard")
        # Of ranges that overlap the last one counts: an edit that is cut short would leave bytes that
        # ``explains`` does not know. With no byte twice to redo it is the same as to do it.
        _require(all(one[1] <= other[0] for one, other in pairwise(changed)), "its ranges overlap")
        changed = union(changed)
        below = [(start, min(stop, old)) for start, stop in changed if start < old]
        kept = [(offset, offset + len(data)) for offset, data in self.before]
        # Else ``explains`` would let a journal that somebody made overwrite bytes that it has never seen.
        _require(kept == below, "it has not the old bytes of what it changes")
        behind = [(old, new)] if old < new else []
        _require(not minus(behind, changed), "it makes the shard longer than it writes")


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for at in range(start, stop, _PIECE_BYTES):
        yield at, min(at + _PIECE_BYTES, stop)


def damaged_journal(path: Path, why: str = "its crc32c does not hold") -> ShardFormatError:
    """Returns the error of a journal that is not redone."""
    return ShardFormatError(
        f"{path}, the journal of an interrupted update, is damaged: {why}",
        hint="The shard is left as it is. Check it with `shardwright verify`, then delete the journal",
    )
