"""Random operations on a store of chunks and on zarr's MemoryStore, which must agree after each; at the end
three peers read the shards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import zarr
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numcodecs.zstd import Zstd
from tests.harness.event_loop import sync
from tests.properties.readers import READERS
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import MemoryStore

from .chunked_stores import (
    CHUNK,
    CHUNK_BYTES,
    SHAPE,
    buffer,
    documents,
    get,
    get_many,
    listed,
    names_in,
)

if TYPE_CHECKING:
    from pathlib import Path

    import shardwright as sw

CHUNKED = ("raw", "a/zstd", "a/dotted", "plain")
GRID = tuple(math.ceil(n / c) for n, c in zip(SHAPE, CHUNK, strict=True))


def chunk_key(name: str, coordinates: tuple[int, ...]) -> str:
    text = ".".join(map(str, coordinates)) if name == "a/dotted" else f"c/{coordinates[0]}/{coordinates[1]}"
    return f"{name}/{text}"


KEYS = [chunk_key(name, (i, j)) for name in CHUNKED for i in range(GRID[0]) for j in range(GRID[1])]
PREFIXES = [
    "",
    "raw/",
    "raw/c/",
    "raw/c/1/",
    "raw/c/1",
    "raw/c/0/1",
    "a/",
    "a",
    "a/dotted/",
    "a/dotted/1",
    "plain/",
]
FOLDERS = ["", "raw", "raw/c", "raw/c/2", "a", "a/zstd", "a/zstd/c", "a/dotted", "plain", "none"]
keys = st.sampled_from(KEYS)
values = st.binary(min_size=CHUNK_BYTES, max_size=CHUNK_BYTES)
ranges = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 5), st.integers(1, 3)).map(lambda r: RangeByteRequest(r[0], r[0] + r[1])),
    st.integers(0, 8).map(OffsetByteRequest),
    st.integers(1, CHUNK_BYTES).map(SuffixByteRequest),
)


def encoded(key: str, value: bytes) -> bytes:
    return bytes(Zstd(level=1).encode(value)) if key.startswith("a/zstd/") else value


class ChunkMachine(RuleBasedStateMachine):
    """``make_store`` returns an empty store with the documents of ``chunked_stores``; ``folder`` where its
    files lie once it is not used any more."""

    def make_store(self) -> sw.ChunkStore:
        raise NotImplementedError

    def folder(self) -> Path:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.store: Any = self.make_store()
        self.memory: Any = MemoryStore()
        for key in documents():
            if (data := get(self.store, key)) is not None:
                sync(self.memory.set(key, buffer(data)))

    @rule(key=keys, value=values)
    def set_one(self, key: str, value: bytes) -> None:
        for store in (self.store, self.memory):
            sync(store.set(key, buffer(encoded(key, value))))

    @rule(many=st.dictionaries(keys, values, max_size=12))
    def set_many(self, many: dict[str, bytes]) -> None:
        items = [(key, buffer(encoded(key, value))) for key, value in many.items()]
        sync(self.store.set_many(items))
        for key, value in items:
            sync(self.memory.set(key, value))

    @rule(
        pieces=st.dictionaries(
            keys.filter(lambda key: not key.startswith("a/zstd/")),
            st.tuples(st.integers(0, CHUNK_BYTES - 1), st.binary(min_size=1, max_size=CHUNK_BYTES)),
            min_size=1,
            max_size=4,
        )
    )
    def set_partial(self, pieces: dict[str, tuple[int, bytes]]) -> None:
        changes = []
        for key, (start, piece) in pieces.items():
            old = get(self.memory, key)
            start = start if old is not None else 0
            piece = piece[: CHUNK_BYTES - start] if old is not None else piece.ljust(CHUNK_BYTES, b"x")
            changes.append((key, start, piece))
            new = bytearray(old or b"")
            new[start : start + len(piece)] = piece
            sync(self.memory.set(key, buffer(bytes(new))))
        sync(self.store.set_partial_values(changes))

    @rule(key=keys)
    def erase(self, key: str) -> None:
        sync(self.store.erase(key))
        sync(self.memory.delete(key))

    @rule(some=st.lists(keys, max_size=16))
    def erase_values(self, some: list[str]) -> None:
        sync(self.store.erase_values(some))
        for key in some:
            sync(self.memory.delete(key))

    @rule(prefix=st.sampled_from([prefix for prefix in PREFIXES if "/c/" in prefix or "dotted/1" in prefix]))
    def erase_prefix(self, prefix: str) -> None:
        sync(self.store.erase_prefix(prefix))
        for key in listed(self.memory, prefix):
            sync(self.memory.delete(key))

    @rule(name=st.sampled_from(CHUNKED), shape=st.tuples(st.integers(5, 9), st.integers(1, 14)))
    def write_by_zarr_python(self, name: str, shape: tuple[int, int]) -> None:
        """Writes a box, which takes reading, changing and erasing chunks."""
        for store in (self.store, self.memory):
            array = zarr.open_array(store, path=name)
            box = array[: shape[0] - 3, shape[1] // 2 : shape[1]]
            array[: shape[0] - 3, shape[1] // 2 : shape[1]] = np.where(box == 9, shape[1], 9)

    @rule(asked=st.lists(st.tuples(keys, ranges), max_size=20))
    def get_partial(self, asked: list[Any]) -> None:
        mine, theirs = get_many(self.store, asked), get_many(self.memory, asked)
        assert mine == theirs

    @rule(key=keys)
    def look(self, key: str) -> None:
        data = get(self.memory, key)
        assert get(self.store, key) == data
        assert sync(self.store.exists(key)) == (data is not None)
        if data is not None:
            assert sync(self.store.getsize(key)) == len(data)

    @rule(prefix=st.sampled_from(PREFIXES), folder=st.sampled_from(FOLDERS))
    def list_some(self, prefix: str, folder: str) -> None:
        assert listed(self.store, prefix) == [key for key in listed(self.memory) if key.startswith(prefix)]
        assert names_in(self.store, folder) == names_in(self.memory, folder)

    @invariant()
    def the_number_of_keys_is_the_same(self) -> None:
        if hasattr(self, "memory"):
            assert listed(self.store) == listed(self.memory)

    def teardown(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.store.close()
        folder = self.folder()
        for name in CHUNKED:
            expected = zarr.open_array(self.memory, path=name, mode="r")[...]
            for peer, read in READERS.items():
                np.testing.assert_array_equal(read(folder / name), expected, err_msg=f"{name} by {peer}")
