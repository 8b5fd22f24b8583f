"""The keys of a store of chunks: which of them are chunks of which shard, and what there is below a prefix.

A key belongs to the first array on its way down from the root. In an array with shards, the keys of its grid
of inner chunks are chunks; there are no keys of shard files, and every other key is the file of that name.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import ShardFormatError, StoreGoneError
from shardwright.model.names import DOCUMENT, is_visible_key, key_in
from shardwright.read.store import parse_array

from .chunk_backend import GONE
from .chunk_documents import nodes_named, parse_node, understood_array
from .shard_scheduler import Look, ShardRef

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.read.store import StoredArray
    from shardwright.shard.sealed_shard import ReadIndex

    from .chunk_backend import ChunkBackend
    from .shard_scheduler import ShardScheduler

_MOST_NODES = 10_000  # whose documents are kept parsed
_MOST_AHEAD = 64  # shards whose indexes are read while others are handed on


@dataclass(frozen=True)
class ChunkRef:
    """A chunk: its number in a shard."""

    ref: ShardRef
    number: int


@dataclass(frozen=True)
class Node:
    """A group or an array as it is stored. ``array``: set if its inner chunks are keys. ``plain``: set if its
    chunks are files, and so keys without us."""

    document: dict[str, Any]
    array: StoredArray | None
    plain: StoredArray | None
    stamp: Any

    @property
    def is_array(self) -> bool:
        return bool(self.document["node_type"] == "array")


@dataclass(frozen=True)
class ListedShard:
    """A shard that is there. ``numbers``: of its chunks that are listed."""

    folder: str
    ref: ShardRef
    index: ReadIndex
    numbers: list[int]

    def key(self, number: int) -> str:
        array = self.ref.array
        return key_in(self.folder, array.shard_key(array.chunk_coordinates(self.ref.shard, number)))

    @property
    def keys(self) -> list[str]:
        return [self.key(number) for number in self.numbers]

    @property
    def nbytes(self) -> int:
        return int(self.index.entries["nbytes"][self.numbers].sum())


class ChunkTree:
    """Thread-safe."""

    def __init__(self, backend: ChunkBackend, scheduler: ShardScheduler, root: Path) -> None:
        self._backend = backend
        self._scheduler = scheduler
        self._root = root
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}  # under _lock

    # ------------------------------------------------------------------ one key

    def find(self, key: str) -> ChunkRef | str | None:
        """Returns the chunk that a key is, or the key of a file; None for a key that can be neither. Raises
        ``StoreGoneError`` for a key of an array that somebody else has deleted or moved."""
        if not is_visible_key(key):
            return None
        if key.rpartition("/")[2] == DOCUMENT:
            return key
        found = self._array_above(key)
        if found is None:
            self._check_not_gone(key)
        if found is None or found[1].array is None:
            return key
        folder, array = found[0], found[1].array
        coordinates = array.coordinates_of(key.removeprefix(folder).removeprefix("/"))
        if coordinates is None:
            return key
        counts = array.shard_chunks
        shard = tuple(i // n for i, n in zip(coordinates, counts, strict=True))
        within = tuple(i % n for i, n in zip(coordinates, counts, strict=True))
        number = int(np.ravel_multi_index(within, counts)) if counts else 0
        return ChunkRef(_shard_ref(folder, array, shard), number)

    def _check_not_gone(self, key: str) -> None:
        """Whoever moves or deletes a store deletes its documents first. Who has read them would take a shard
        for a chunk, and no shard for fill value."""
        with self._lock:
            for folder, node in self._nodes.items():
                if node.is_array and key.startswith(f"{folder}/" if folder else ""):
                    raise StoreGoneError(f"{key_in(folder, DOCUMENT)} was deleted or moved", hint=GONE)

    def find_to_write(self, key: str) -> ChunkRef | str | None:
        """As ``find``, but a chunk that is a file is a chunk as well: like a shard it has a lock, and a line
        in the record of its array."""
        found = self.find(key)
        chunk = self._plain_chunk(found) if isinstance(found, str) else None
        return found if chunk is None else ChunkRef(chunk[1], 0)

    def _plain_chunk(self, key: str) -> tuple[str, ShardRef] | None:
        """Returns the chunk that a file is, with the folder of its array, which has no shards."""
        found = self._array_above(key)
        if found is None or (array := found[1].plain) is None:
            return None
        chunk = array.coordinates_of(key.removeprefix(found[0]).removeprefix("/"))
        return None if chunk is None else (found[0], _shard_ref(found[0], array, chunk))

    def _array_above(self, key: str) -> tuple[str, Node] | None:
        """Returns the folder and the document of the array that a key belongs to."""
        parts = key.split("/")[:-1]
        folders = ["/".join(parts[:count]) for count in range(len(parts) + 1)]
        with self._lock:  # of an array that is known nothing has to be asked
            known = next((f for f in folders if f in self._nodes and self._nodes[f].is_array), None)
        for folder in folders if known is None else (known, *folders):
            node = self.node(folder)
            if node is not None and node.is_array:
                return folder, node
        return None

    def node(self, folder: str) -> Node | None:
        """Returns the group or array in a folder: where looking takes a request, as it was when it was read
        first. Raises ``StorageError``."""
        key = key_in(folder, DOCUMENT)
        stamp = self._backend.stamp(key)
        with self._lock:
            known = self._nodes.get(folder)
        if known is not None and known.stamp == stamp:
            return known
        return self._read(folder, stamp)[1]

    def read_document(self, folder: str) -> tuple[bytes | None, Node | None]:
        """Returns the bytes of a zarr.json as they are now, and the node that they describe."""
        return self._read(folder, self._backend.stamp(key_in(folder, DOCUMENT)))

    def _read(self, folder: str, stamp: Any) -> tuple[bytes | None, Node | None]:
        data = self._backend.read(key_in(folder, DOCUMENT))
        document = None if data is None else parse_node(data)
        node = None
        if document is not None:
            array = understood_array(self._root / folder, document)
            is_sharded = array is not None and array.is_sharded
            node = Node(document, array if is_sharded else None, None if is_sharded else array, stamp)
        with self._lock:
            if node is None and folder in self._nodes and self._nodes[folder].is_array:
                return data, None  # it is gone, and stays known: see ``_check_not_gone``
            self._nodes.pop(folder, None)
            if node is not None:
                self._nodes[folder] = node
            while len(self._nodes) > _MOST_NODES:
                del self._nodes[next(iter(self._nodes))]
        return data, node

    def forget(self, folder: str) -> None:
        """Reads the document of a folder again when it is needed."""
        with self._lock:
            self._nodes.pop(folder, None)

    # ------------------------------------------------------------------ many keys

    def keys_below(self, prefix: str) -> Iterator[str]:
        """Yields all keys that begin with ``prefix``. Raises ``ShardFormatError``, ``StorageError``."""
        for found in self.below(prefix):
            if isinstance(found, ListedShard):
                yield from found.keys
            else:
                yield found

    def below(self, prefix: str) -> Iterator[str | ListedShard]:
        """Yields what there is below a prefix: keys of files, and shards that have a chunk there."""
        waiting: deque[tuple[str, ShardRef, Look]] = deque()
        ahead = 1  # more and more: often only the first key is wanted
        for item in self._stored_below(prefix):
            if isinstance(item, str):
                yield item
                continue
            look = Look()
            self._scheduler.submit(item[1], look)
            waiting.append((*item, look))
            if len(waiting) >= ahead:
                yield from self._listed(prefix, *waiting.popleft())
                ahead = min(_MOST_AHEAD, 2 * ahead)
        for looked in waiting:
            yield from self._listed(prefix, *looked)

    def to_erase(self, prefix: str) -> Iterator[str | ShardRef | ListedShard]:
        """Yields what has to be erased with a prefix: keys of files, also of the shards of arrays that go as
        a whole; shards of which all chunks go; and shards of which some do."""
        for item in self._stored_below(prefix):
            if isinstance(item, str):
                chunk = self._plain_chunk(item)
                goes_alone = chunk is not None and not f"{chunk[0]}/".startswith(prefix)
                yield chunk[1] if chunk is not None and goes_alone else item
                continue
            folder, ref = item
            if f"{folder}/".startswith(prefix):
                yield ref.key
            elif key_in(folder, ref.array.keys.head).startswith(prefix):
                yield ref
            else:
                look = Look()
                self._scheduler.submit(ref, look)
                yield from self._listed(prefix, folder, ref, look)

    def _stored_below(self, prefix: str) -> Iterator[str | tuple[str, ShardRef]]:
        """Yields the files below a prefix, and shards that may have chunks there, with the folder of their
        array."""
        folder = prefix.rpartition("/")[0]
        within = self._array_above(f"{folder}/" if folder else prefix)
        shards = self._shards_of(within, prefix)
        for item in shards if shards is not None else self._files_below(within[0] if within else folder):
            if not isinstance(item, str) or item.startswith(prefix):
                yield item

    def _listed(self, prefix: str, folder: str, ref: ShardRef, look: Look) -> Iterator[ListedShard]:
        index = look.answer.result()
        if index is not None:
            listed = ListedShard(folder, ref, index, np.flatnonzero(index.present).tolist())
            if not key_in(folder, ref.array.keys.head).startswith(prefix):
                numbers = [number for number in listed.numbers if listed.key(number).startswith(prefix)]
                listed = ListedShard(folder, ref, index, numbers)
            if listed.numbers:
                yield listed

    def _shards_of(
        self, within: tuple[str, Node] | None, prefix: str
    ) -> Iterator[str | tuple[str, ShardRef]] | None:
        """Returns the shards that may have chunks below a prefix among an array's chunk keys; None for a
        prefix of other keys too."""
        if within is None or within[1].array is None:
            return None
        node_path, array = within[0], within[1].array
        start = key_in(node_path, array.keys.head)
        rest = prefix.removeprefix(start)
        if not prefix.startswith(start) or not rest:
            return None
        parts = rest.split(array.keys.separator)[:-1]
        if not all(part.isdecimal() for part in parts) or len(parts) >= len(array.shape):
            return None
        first = [int(part) // count for part, count in zip(parts, array.shard_chunks, strict=False)]
        return (
            item
            for item in self._files_below(node_path)
            if isinstance(item, tuple) and list(item[1].shard[: len(first)]) == first
        )

    def _files_below(self, folder: str) -> Iterator[str | tuple[str, ShardRef]]:
        """Yields what is stored below a folder: files, and shards with the folder of their array."""
        if not self._backend.has_lists:
            yield from self._files_named(folder)
            return
        arrays: dict[str, tuple[str, Node] | None] = {}
        for key in self._backend.files(folder):
            above = key.rpartition("/")[0]
            if above not in arrays:
                arrays[above] = self._array_above(key)
            found = arrays[above]
            shard = None
            if found is not None and found[1].array is not None and key != key_in(found[0], DOCUMENT):
                shard = found[1].array.coordinates_of(key.removeprefix(found[0]).removeprefix("/"))
            if found is None or shard is None:
                yield key
            else:
                assert found[1].array is not None, "a shard is of an array with shards"
                yield found[0], _shard_ref(found[0], found[1].array, shard)

    def _files_named(self, folder: str) -> Iterator[str | tuple[str, ShardRef]]:
        """As ``_files_below``, of a server without lists: documents that others name, and the grid of each
        array, of which every shard has to be asked for."""
        for node_path, node in self._nodes_named(folder):
            yield key_in(node_path, DOCUMENT)
            if node is None:
                continue
            if node.array is not None:
                for shard in np.ndindex(*node.array.grid_shape):
                    yield node_path, _shard_ref(node_path, node.array, shard)
            elif node.is_array:
                yield from (
                    key
                    for key in _chunk_keys(node_path, node.document)
                    if self._backend.size(key) is not None
                )

    def _nodes_named(self, folder: str) -> Iterator[tuple[str, Node | None]]:
        """Yields the folders at and below ``folder`` that have a document, as far as documents name them."""
        folders, seen = [folder], {folder}
        while folders:
            node_path = folders.pop()
            data, node = self.read_document(node_path)
            if data is not None:
                yield node_path, node
            if node is not None:
                named = [name for name in nodes_named(node.document, node_path) if name not in seen]
                seen.update(named)
                folders += named

    def names_in(self, folder: str) -> set[str]:
        """Returns the names of keys in a folder, and of folders that have any."""
        within = self._array_above(f"{folder}/" if folder else "/")
        start = f"{folder}/" if folder else ""
        if within is not None and not (folder == within[0] and self._has_chunk_folder(within[1])):
            return {key.removeprefix(start).partition("/")[0] for key in self.keys_below(start)}
        if self._backend.has_lists:
            files, folders = self._backend.names(folder)
        else:
            below = {
                key_in(node_path, DOCUMENT).removeprefix(start) for node_path, _ in self._nodes_named(folder)
            }
            files, folders = {name.partition("/")[0] for name in below}, {"c"} if within else set()
        return files | {name for name in folders if self._has_keys(f"{start}{name}")}

    def _has_chunk_folder(self, node: Node) -> bool:
        """Returns whether all names in an array's folder are of files, but for one folder of its chunks."""
        if node.array is None:
            return self._backend.has_lists
        return node.array.keys.head == "c/"

    def _has_keys(self, folder: str) -> bool:
        if self._backend.stamp(key_in(folder, DOCUMENT)) is None or self.node(folder) is None:
            return next(self.keys_below(f"{folder}/"), None) is not None
        return True


def _shard_ref(folder: str, array: StoredArray, shard: tuple[int, ...]) -> ShardRef:
    return ShardRef(array, shard, key_in(folder, array.shard_key(shard)))


def _chunk_keys(folder: str, document: dict[str, Any]) -> Iterator[str]:
    """Yields the keys of the chunks of an array without shards, or with codecs around them."""
    try:
        array = parse_array(Path(folder), document)
    except ShardFormatError:
        return
    for chunk in np.ndindex(*array.grid_shape):
        yield key_in(folder, array.shard_key(chunk))
