"""The keys of a live view as bytes: what a Zarr client that knows nothing of us reads, by whole keys or by
byte ranges.

A key is a file, or zarr.json as it is now. While an acquisition is unfinished, a shard, in progress or
sealed, is a complete shard that is made when it is read:

    index at the end     | slot 0 | slot 1 | ... | slot n-1 | index |
    index at the start   | index, to a page edge | slot 0 | slot 1 | ... | slot n-1 |
    without shards       | the chunk |

with a slot for each inner chunk of the index. Each chunk that has a frame is listed, in its codec's stored
form (``LEVEL_STORED``, not compressed), whose length is always the same. So a client that has an older index
finds each chunk where it was and as long as it was, while frames are staged, stored and sealed: Blosc and
checksums refuse a chunk of another length. With ``fixed_slots`` a finished store's shards are made likewise,
so that neither the end nor a compaction changes that. ``generation`` changes whenever the bytes may have.
"""

from __future__ import annotations

import stat
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.array.document import encode_document
from shardwright.codecs.decode import ChunkCodecs
from shardwright.codecs.parameters import LEVEL_STORED, CodecParameters
from shardwright.disk import beneath
from shardwright.disk.files import keys_on_disk
from shardwright.disk.read_file import ChangedError
from shardwright.disk.typed_errors import says_absent, storage_errors
from shardwright.model.errors import ShardChangedError, SpecError
from shardwright.model.forked_child import renew_in_child
from shardwright.model.names import DOCUMENT, is_visible_key, key_in
from shardwright.shard.index import empty_index
from shardwright.shard.layout import page_aligned

from .box_reader import NO_CRC
from .live_view import not_there

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.disk.read_file import ReadFile

    from .box_reader import Located
    from .live_view import LiveArray, LiveView
    from .store import StoredArray


MOST_KEPT_BYTES, MOST_MADE = 256 << 20, 2
_MOST_COORDINATE = 1 << 32  # of a shard, in the key of somebody who need not have the array's metadata


class WholeKey:
    """A key all of whose bytes are there."""

    def has(self, _start: int, _stop: int) -> bool:
        """As ``ComposedShard.has``."""
        return True


class KeyFile(WholeKey):
    """A key that is a file."""

    def __init__(self, file: ReadFile) -> None:
        self._file = file
        self.nbytes = file.status.st_size
        status = file.status
        self.generation = f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"

    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes [start, stop) of the file as it was when it was opened. Raises
        ``ShardChangedError``, ``ShardFormatError``, ``StorageError``."""
        try:
            with self._file.unchanged():
                return bytes(self._file.read(start, max(0, stop - start)))
        except ChangedError:
            raise ShardChangedError(
                f"{self._file.path} was changed while it was read", hint="Read it again"
            ) from None


class KeyBytes(WholeKey):
    """A key whose bytes are made when it is asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.nbytes = len(data)
        self.generation = f"{len(data):x}-{crc32c.crc32c(data):08x}"

    def read(self, start: int, stop: int) -> bytes:
        return self._data[start:stop]


class KeptChunks:
    """The chunks that were made last, since each is asked for in pieces: at most ``MOST_KEPT_BYTES``, and one
    however large it is. Used by several threads, ``MOST_MADE`` of which make one at a time."""

    def __init__(self) -> None:
        self._begin()
        renew_in_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a shard may be let go while this thread has it
        self._making = threading.BoundedSemaphore(MOST_MADE)
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def get(self, key: tuple[int, int], make: Callable[[], bytes]) -> bytes:
        """Returns the chunk of this key, made now if it is not kept."""
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept
        with self._making:
            made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MOST_KEPT_BYTES:
                self._kept.popitem(last=False)
        return made

    def forget(self, shard: int) -> None:
        """Forgets the chunks of a shard that nobody reads any more."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == shard]:
                del self._kept[key]


@dataclass(frozen=True)
class ComposedShard:
    """A shard as it was when it was found. ``located``: all chunks, as the index counts them."""

    view: LiveView
    path: str
    array: StoredArray
    coordinates: tuple[int, ...]
    located: Located
    kept: KeptChunks

    @property
    def nbytes(self) -> int:
        """The length of the shard; the same at all times."""
        return self._data_start + self._slots_bytes + self.array.index.behind_bytes

    @cached_property
    def _slot_bytes(self) -> int:
        nbytes = self._stored_form.max_encoded_bytes
        return page_aligned(nbytes) if self.array.is_sharded else nbytes

    @property
    def _slots_bytes(self) -> int:
        return self.array.chunks_per_shard * self._slot_bytes

    @cached_property
    def _data_start(self) -> int:
        return page_aligned(self.array.index.before_bytes)

    @cached_property
    def generation(self) -> str:
        """Changes whenever bytes of the shard may have."""
        located, value = self.located, 0
        for facts in (located.file, located.offset, located.nbytes, located.crc):
            value = crc32c.crc32c(np.ascontiguousarray(facts).tobytes(), value)
        for i, frames in sorted(located.staged.items()):
            value = crc32c.crc32c(np.array([i, *(index for index, _ in frames)], np.int64).tobytes(), value)
        for number, file in enumerate(located.files):
            # a shard in progress gets new bytes all the time; what of it is listed has its checksum above
            sealed = (located.crc[located.file == number] == NO_CRC).all()
            version = file.identity if sealed else (file.status.st_ino,)
            value = crc32c.crc32c(np.array(version, np.uint64).tobytes(), value)
        return f"{value:08x}-{int(self._there.sum()):x}"

    def __del__(self) -> None:
        self.kept.forget(id(self))

    def has(self, start: int, stop: int) -> bool:
        """Returns whether it has the bytes [start, stop). A shard of which nothing is stored has none: to a
        Zarr reader the key is not there. But who asks for bytes of chunks alone has an index that names them,
        and would take the absence of the key for fill value: then its bytes are there, as those of any chunk
        that an index of this store may have named, and for any other chunk ``ShardChangedError`` is
        raised."""
        end = self._data_start + self._slots_bytes
        if not (self.array.is_sharded and self._data_start <= start < stop <= end):
            return bool(self._there.any())
        first, last = ((at - self._data_start) // self._slot_bytes for at in (start, stop - 1))
        if not self.located.may_be_named[first : last + 1].any():
            raise not_there(key_in(self.path, self.array.shard_key(self.coordinates)))
        return True

    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes [start, stop). Raises ``ShardChangedError``, ``ShardFormatError``,
        ``StorageError``, ``StoreGoneError``."""
        out = np.zeros(max(0, min(stop, self.nbytes) - start), np.uint8)
        index_at = self.array.index.offset(self._data_start + self._slots_bytes)
        if start < index_at + self.array.index_bytes and stop > index_at:
            _copy_overlap(out, start, index_at, self._index)
        first = max(0, start - self._data_start) // self._slot_bytes
        last = max(0, stop - self._data_start - 1) // self._slot_bytes
        for i in range(first, min(last + 1, self.array.chunks_per_shard)):
            at = self._data_start + i * self._slot_bytes
            if at < stop and at + self._stored_form.max_encoded_bytes > start:
                # a chunk that is not listed was perhaps once, with frames that are fill as a whole
                there = self._there[i]
                chunk = self.kept.get((id(self), i), partial(self._chunk, i)) if there else self._fill_chunk
                _copy_overlap(out, start, at, chunk)
        return out.tobytes()

    @cached_property
    def _there(self) -> np.ndarray:
        """bool[entries]: the chunks that have a frame."""
        return self.located.is_there

    @cached_property
    def _index(self) -> bytes:
        entries = empty_index(self.array.chunks_per_shard)
        entries["offset"][self._there] = self._data_start + np.flatnonzero(self._there) * self._slot_bytes
        entries["nbytes"][self._there] = self._stored_form.max_encoded_bytes
        return self.array.index.encode(entries)

    def _chunk(self, number: int) -> bytes:
        """Returns a chunk that is listed, with all frames that it has by now. Raises as ``read``."""
        chunk = np.unravel_index(number, self.array.shard_chunks)
        low = tuple(int(i) * n for i, n in zip(chunk, self.array.chunk_shape, strict=True))
        high = tuple(a + n for a, n in zip(low, self.array.chunk_shape, strict=True))
        return self._encoded(self.view.read_box(self.path, self.coordinates, low, high, listed=True))

    @cached_property
    def _fill_chunk(self) -> bytes:
        return self._encoded(np.full(self.array.chunk_shape, self.array.fill_element))

    def _encoded(self, values: np.ndarray[Any, Any]) -> bytes:
        order = self.array.codecs.order if isinstance(self.array.codecs, ChunkCodecs) else ()
        return _in_stored_form(values.transpose(order) if order else values, self._stored_form)

    @cached_property
    def _stored_form(self) -> CodecParameters:
        return replace(self.array.configured_codec(), level=LEVEL_STORED)


def _copy_overlap(out: np.ndarray, start: int, at: int, data: bytes) -> None:
    """Copies ``data``, which begins at byte ``at``, into ``out``, which begins at ``start``."""
    first, stop = max(at, start), min(at + len(data), start + out.size)
    if first < stop:
        out[first - start : stop - start] = np.frombuffer(data, np.uint8)[first - at : stop - at]


def _in_stored_form(values: np.ndarray[Any, Any], codec: CodecParameters) -> bytes:
    """Returns a chunk uncompressed, in the framing of its codec."""
    from shardwright.kernels.compressed_forms import CONTEXTS
    from shardwright.kernels.encode_planes import encode_whole

    data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    tools = np.zeros(CONTEXTS, np.int64), np.zeros(codec.scratch_bytes, np.uint8)
    return encode_whole(data, codec, np.zeros(codec.max_encoded_bytes, np.uint8), tools).tobytes()


class LiveKeys:
    """The keys of a view. Those of hidden files and folders, as ours are, are not there. ``fixed_slots``:
    also shards of a finished store are composed."""

    def __init__(self, view: LiveView, *, fixed_slots: bool = False, kept: KeptChunks | None = None) -> None:
        self._view = view
        self._fixed_slots = fixed_slots
        self._kept = kept or KeptChunks()

    def find(self, key: str) -> KeyFile | KeyBytes | ComposedShard | None:
        """Returns what a key is now, None if it is not there; of a shard of which nothing is stored, one that
        ``has`` nothing. Raises ``ShardFormatError``, ``StorageError``, ``StoreGoneError``."""
        if not is_visible_key(key):
            return None
        return self._view.until_it_stays(partial(self._find, key))

    def _find(self, key: str) -> KeyFile | KeyBytes | ComposedShard | None:
        """Raises ``ChangedError`` as well."""
        folder, _, name = key.rpartition("/")
        if name == DOCUMENT:
            document = self._view.document(folder)
            return None if document is None else KeyBytes(encode_document(document, foreign=True))
        shard = self._view.shard_of_key(key)
        if shard is not None and max(shard[2], default=0) > _MOST_COORDINATE:
            shard = None
        if shard is not None and (shard[1].version is None or self._is_fixed(shard[1])):
            path, array, coordinates = shard
            compose = partial(self._compose, path, coordinates, array.stored.shard_shape)
            return self._view.of_shard(path, coordinates, compose, found=array)
        file = self._view.open_file(key, shard)
        return KeyFile(file) if file is not None and stat.S_ISREG(file.status.st_mode) else None

    def _compose(
        self, path: str, coordinates: tuple[int, ...], shard_shape: tuple[int, ...], array: LiveArray
    ) -> ComposedShard:
        """``shard_shape``: of the array as it was when ``coordinates`` were found. Raises ``ChangedError`` as
        well."""
        if array.stored.shard_shape != shard_shape:
            raise ChangedError
        numbers = np.arange(array.stored.chunks_per_shard)
        located = self._view.locate_now(path, array, [(coordinates, numbers)])
        return ComposedShard(self._view, path, array.stored, coordinates, located, self._kept)

    def _is_fixed(self, array: LiveArray) -> bool:
        with suppress(SpecError):  # another program's codec: a finished store
            return self._fixed_slots and array.stored.configured_codec() is not None
        return False

    def below(self, prefix: str) -> set[str]:
        """Returns all keys that begin with ``prefix``. Raises ``StorageError``, ``StoreGoneError``."""
        keys = {key for key in self._view.live_keys() if key.startswith(prefix)}
        folder = prefix.rpartition("/")[0]
        return keys | {key for key in keys_on_disk(self._view.path, folder) if key.startswith(prefix)}

    def names_in(self, folder: str) -> set[str]:
        """Returns the names of the keys and folders in a folder (empty: the store's own)."""
        start = f"{folder}/" if folder else ""
        names = {
            key.removeprefix(start).split("/")[0] for key in self._view.live_keys() if key.startswith(start)
        }
        try:
            names |= set(filter(is_visible_key, beneath.names_in(self._view.path / folder)))
        except OSError as error:
            if not says_absent(error):
                with storage_errors("look into", folder):
                    raise
        return names
