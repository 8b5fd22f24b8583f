"""The keys of a live view as bytes: what a Zarr client that knows nothing of us reads, by whole keys or by
byte ranges.

In a finished store a key is a file. While an acquisition is unfinished, a shard, in progress or sealed, is a
complete shard that is made when it is read:

    index at the end     | slot 0 | slot 1 | ... | slot n-1 | index |
    index at the start   | index, to a page edge | slot 0 | slot 1 | ... | slot n-1 |

each chunk in the slot of its number, whatever its place in the file. So the length and the places of chunks
are known from the first frame on and stay the same, while slabs are stored and shards sealed or compacted: a
client that has an older index finds each chunk where it was. A chunk of frames that are only staged is in its
codec's stored form, the longest there is. ``generation`` changes whenever the bytes may have.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.codecs.parameters import LEVEL_STORED, CodecParameters
from shardwright.model.errors import StorageError
from shardwright.shard.index import empty_index, encode_index

from .box_reader import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.shard.layout import ShardLayout

    from .box_reader import Located, ReadFile
    from .live_view import LiveArray, LiveView


class KeyFile:
    """A key that is a file."""

    def __init__(self, file: ReadFile) -> None:
        self._file = file
        self.nbytes = file.status.st_size
        status = file.status
        self.generation = f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"

    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes [start, stop). Raises ``ShardFormatError``, ``StorageError``."""
        return bytes(self._file.read(start, max(0, stop - start)))


@dataclass(frozen=True)
class ComposedShard:
    """A shard of an unfinished store, as it was when it was found. ``slots``: int64[entries], the slot of
    each chunk, -1 for one past the array; ``located``: the chunks in the order of their slots."""

    view: LiveView
    path: str
    array: LiveArray
    coordinates: tuple[int, ...]
    layout: ShardLayout
    slots: np.ndarray
    located: Located

    @property
    def nbytes(self) -> int:
        """The length of the shard; the same at all times."""
        return self._index_start + self.layout.index_bytes if not self._at_start else self._index_start

    @property
    def _at_start(self) -> bool:
        return self.layout.index_at_start

    @property
    def _index_start(self) -> int:
        """The end of the slots, where an index at the end begins."""
        return self.layout.data_start + self.layout.slots * self.layout.slot_bytes

    @cached_property
    def generation(self) -> str:
        """Changes whenever bytes of the shard may have."""
        located, value = self.located, 0
        for facts in (located.file, located.offset, located.nbytes, located.crc):
            value = crc32c.crc32c(np.ascontiguousarray(facts).tobytes(), value)
        for i, frames in sorted(located.staged.items()):
            value = crc32c.crc32c(np.array([i, *(place for place, _ in frames)], np.int64).tobytes(), value)
        files = "-".join(f"{file.status.st_ino:x}" for file in located.files)
        return f"{value:08x}-{files}"

    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes [start, stop). Raises ``ShardFormatError``, ``StorageError``,
        ``StoreGoneError``."""
        out = np.zeros(max(0, min(stop, self.nbytes) - start), np.uint8)
        index_at = 0 if self._at_start else self._index_start
        if start < index_at + self.layout.index_bytes and stop > index_at:
            _place(out, start, index_at, self._index())
        first = max(0, start - self.layout.data_start) // self.layout.slot_bytes
        last = max(0, stop - self.layout.data_start - 1) // self.layout.slot_bytes
        for slot in range(first, min(last + 1, self.layout.slots)):
            at = self.layout.data_start + slot * self.layout.slot_bytes
            nbytes = self._chunk_bytes(slot)
            if nbytes and at < stop and at + nbytes > start:
                _place(out, start, at, self._chunk(slot))
        return out.tobytes()

    def _chunk_bytes(self, slot: int) -> int:
        if slot in self.located.staged:
            return self._stored_form.max_encoded_bytes
        return 0 if self.located.file[slot] == ABSENT else int(self.located.nbytes[slot])

    def _index(self) -> bytes:
        entries = empty_index(self.slots.size)
        for number in np.flatnonzero(self.slots >= 0).tolist():
            slot = int(self.slots[number])
            if nbytes := self._chunk_bytes(slot):
                entries["offset"][number] = self.layout.data_start + slot * self.layout.slot_bytes
                entries["nbytes"][number] = nbytes
        return encode_index(entries)

    def _chunk(self, slot: int) -> bytes:
        if slot not in self.located.staged:
            return bytes(self.located.fetch(slot))
        stored = self.array.stored
        number = int(np.flatnonzero(self.slots == slot)[0])
        chunk = np.unravel_index(number, stored.shard_chunks)
        low = tuple(int(i) * n for i, n in zip(chunk, stored.chunk_shape, strict=True))
        high = tuple(a + n for a, n in zip(low, stored.chunk_shape, strict=True))
        values = self.view.read_box(self.path, self.coordinates, low, high)
        if values is None:
            values = np.full(stored.chunk_shape, stored.fill_element)
        return _in_stored_form(values, self._stored_form)

    @cached_property
    def _stored_form(self) -> CodecParameters:
        return replace(self.array.stored.configured_codec(), level=LEVEL_STORED)


def _place(out: np.ndarray, start: int, at: int, data: bytes) -> None:
    """Copies ``data``, which begins at byte ``at``, into ``out``, which begins at ``start``."""
    first, stop = max(at, start), min(at + len(data), start + out.size)
    if first < stop:
        out[first - start : stop - start] = np.frombuffer(data, np.uint8)[first - at : stop - at]


def _in_stored_form(values: np.ndarray[Any, Any], codec: CodecParameters) -> bytes:
    """Returns a chunk uncompressed, in the framing of its codec."""
    from shardwright.kernels.encode import NOT_PACKED, encode_chunks, room_for

    data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    out = np.zeros(codec.max_encoded_bytes, np.uint8)
    encoded = room_for(1)
    tools = np.zeros(4, np.int64), np.zeros(codec.scratch_bytes, np.uint8)
    frame, whole = np.array([data.ctypes.data], np.int64), np.array([[0, 0, 1, data.size]], np.int64)
    cut = data.size, 1, data.size, np.zeros(data.size, np.uint8), True
    slots = np.array([out.ctypes.data], np.int64)
    encode_chunks(frame, whole, cut, codec.as_array(), slots, out.size, NOT_PACKED, tools, encoded)
    return out[: int(encoded[0][0])].tobytes()


class LiveKeys:
    """The keys of a view. Those of hidden files and folders, as ours are, are not there."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    @staticmethod
    def is_visible(key: str) -> bool:
        return all(part and not part.startswith(".") and "\0" not in part for part in key.split("/"))

    def find(self, key: str) -> KeyFile | ComposedShard | None:
        """Returns what a key is now, None if it is not there; zarr.json is the view's to give. Raises
        ``ShardFormatError``, ``StorageError``, ``StoreGoneError``."""
        if not self.is_visible(key):
            return None
        self._view.check_there()
        shard = self._view.shard_of_key(key)
        if shard is not None:
            return self._composed(*shard)
        try:
            file = self._view.open_file(key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot open {key}: {error.strerror}") from error
        return KeyFile(file) if stat.S_ISREG(file.status.st_mode) else None

    def _composed(self, path: str, array: LiveArray, shard: tuple[int, ...]) -> ComposedShard | None:
        place = self._view.layout_of_shard(array, shard)
        if place is None:
            return None
        layout, slots = place
        numbers = np.flatnonzero(slots >= 0)
        located = self._view.locate(path, array, shard, numbers[np.argsort(slots[numbers])])
        if located.is_empty:
            return None
        return ComposedShard(self._view, path, array, shard, layout, slots, located)

    def below(self, prefix: str) -> set[str]:
        """Returns all keys that begin with ``prefix``."""
        keys = {key for key in self._view.live_keys() if key.startswith(prefix)}
        folder = prefix.rpartition("/")[0]
        return keys | {key for key in self._files(folder) if key.startswith(prefix)}

    def names_in(self, folder: str) -> set[str]:
        """Returns the names of the keys and folders in a folder (empty: the store's own)."""
        start = f"{folder}/" if folder else ""
        names = {
            key.removeprefix(start).split("/")[0] for key in self._view.live_keys() if key.startswith(start)
        }
        try:
            with os.scandir(self._view.path / folder) as entries:
                names |= {entry.name for entry in entries if self.is_visible(entry.name)}
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise StorageError(f"cannot look into {folder}: {error.strerror}") from error
        return names

    def _files(self, folder: str) -> Iterator[str]:
        root = self._view.path
        for place, folders, files in os.walk(root / folder):
            folders[:] = [name for name in folders if self.is_visible(name)]
            relative = os.path.relpath(place, root)
            start = "" if relative == "." else f"{relative}/"
            yield from (f"{start}{name}" for name in files if self.is_visible(name))
