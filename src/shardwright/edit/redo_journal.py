"""The redo journal of one edit: all bytes that it writes into a shard, durable before the first of them is
written. EDIT.md has the format.

Written once or several times, wholly or in part, the bytes of a journal make the same file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import crc32c
import numpy as np

from shardwright.model.errors import FormatVersionError, ShardFormatError
from shardwright.storage.files import AtomicFile

from .edit_plan import union

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy.typing as npt

    from shardwright.storage.changed_file import ChangedFile

    from .edit_plan import Ranges

MAGIC = b"SWEDITJN"
VERSION = 1
_HEAD = struct.Struct("<8sIIQQQIIIIII")
_OPERATION = struct.Struct("<QQ")
_CRC = struct.Struct("<I")


@dataclass(frozen=True)
class RedoJournal:
    """``key``: of the shard. ``inode``, ``old_bytes``: of its file before; ``new_bytes``: its length
    afterwards. ``old_index``, ``new_index``: the crc32c of the encoded index, 0 without one.

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
            file.sync()
            file.replace(path, may_begin)

    def begin(self, file: ChangedFile) -> None:
        """Does the harmless writes, for the first time. Raises ``StorageError``."""
        for offset, data in self.writes[: self.harmless]:
            file.write(offset, data)

    def take_back(self, file: ChangedFile) -> None:
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
        if self.harmless and others:
            file.sync()
        for offset, data in others:
            file.write(offset, data)
        if self.harmless and self.clears:
            file.sync()
        for start, stop in self.clears:
            file.clear(start, stop)

    def redo(self, file: ChangedFile) -> None:
        """Does all of it again, wherever it was cut short. Raises ``StorageError``."""
        self.begin(file)
        self.complete(file)

    def explains(self, file: ChangedFile) -> bool:
        """Returns whether each byte that the edit changes is as it was, or as the edit makes it; else another
        program has written there since. Raises ``StorageError``."""
        for offset, old in self.before:
            now, was = (np.frombuffer(data, np.uint8) for data in (file.read(offset, len(old)), old))
            if now.size < was.size or not ((now == was) | (now == self._after(offset, was))).all():
                return False
        return True

    def _after(self, offset: int, was: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Returns what the edit makes of the bytes ``was`` at an offset."""
        after = was.copy()
        for start, data in self.writes:
            low, high = max(start, offset), min(start + len(data), offset + was.size)
            if low < high:
                part = np.frombuffer(data, np.uint8)[low - start : high - start]
                after[low - offset : high - offset] = part
        for start, stop in self.clears:
            after[max(0, start - offset) : max(0, stop - offset)] = 0
        return after

    def _parts(self) -> Iterator[bytes]:
        key = self.key.encode()
        counts = len(self.writes), len(self.clears), self.harmless, len(self.before)
        numbers = self.inode, self.old_bytes, self.new_bytes, self.old_index, self.new_index
        yield _HEAD.pack(MAGIC, VERSION, len(key), *numbers, *counts) + key
        places = [(offset, len(data)) for offset, data in (*self.writes, *self.before)]
        lengths = [(start, stop - start) for start, stop in self.clears]
        yield b"".join(_OPERATION.pack(*place) for place in (*places, *lengths))
        for _, data in (*self.writes, *self.before):
            yield data

    @classmethod
    def parse(cls, data: bytes, path: Path) -> RedoJournal:
        """Raises ``ShardFormatError`` for a damaged one, ``FormatVersionError``."""
        if len(data) < _HEAD.size + _CRC.size or data[:8] != MAGIC:
            raise _damaged(path)
        head = _HEAD.unpack_from(data)
        if head[1] != VERSION:
            raise FormatVersionError(
                f"{path} was made by another release", expected=f"version {VERSION}", got=head[1]
            )
        if crc32c.crc32c(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
            raise _damaged(path)
        key_bytes, (inode, old_bytes, new_bytes, old_index, new_index) = head[2], head[3:8]
        writes, clears, harmless, before = head[8:]
        place = _HEAD.size + key_bytes
        key = data[_HEAD.size : place].decode()
        operations = [
            _OPERATION.unpack_from(data, place + i * _OPERATION.size) for i in range(writes + before + clears)
        ]
        place += len(operations) * _OPERATION.size
        found = []
        for offset, nbytes in operations[: writes + before]:
            found.append((offset, data[place : place + nbytes]))
            place += nbytes
        ranges = tuple((start, start + nbytes) for start, nbytes in operations[writes + before :])
        facts = inode, old_bytes, new_bytes, old_index, new_index
        return cls(key, *facts, tuple(found[:writes]), harmless, ranges, tuple(found[writes:]))


def _damaged(path: Path) -> ShardFormatError:
    return ShardFormatError(
        f"{path}, the journal of an interrupted update, is damaged",
        hint="The shard is left as it is. Check it with `shardwright verify`, then delete the journal",
    )
