"""The groups and arrays that references show: zarr.json of each as a reader without shards sees it
(``chunk_documents``), and the arrays of stores whose chunks it has.

Arrays are joined along an axis only where that is exact: chunk by chunk, without decoding. So inner chunks
have one shape, and all arrays but the last end with a whole chunk along the axis. A rectilinear grid would
not help: a chunk at an edge is stored whole, with elements beyond the edge that such a grid has no place for.
Shards may differ, and settings of compressors that decoding does not need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.array.consolidated_metadata import FIELD as CONSOLIDATED
from shardwright.disk import beneath
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import ConfigError
from shardwright.model.names import DOCUMENT, key_in
from shardwright.read.store import open_store, parse_array, read_metadata, read_nodes
from shardwright.remote.source_path import source_path
from shardwright.rework.change_checks import check_at_rest, check_not_between_versions
from shardwright.rework.chunks.chunk_documents import nodes_named, served_form
from shardwright.shard.edit_files import check_not_edited, journaled_edits

from .staleness import FileStates, state_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shardwright.read.store import Store, StoredArray

_KEYS = {"name": "default", "configuration": {"separator": "/"}}
_DECODED_BY_THEMSELVES = ("blosc", "gzip", "zstd")  # whatever settings encoded a chunk
_REWRITE = "`shardwright rechunk STORE DEST` writes a store with other chunks or another codec"


@dataclass(frozen=True)
class ReferredStore:
    """A store that is referred to. ``url``: by which readers find it. ``seen``: that place if it is looked at,
    a copy of the store perhaps; None if it cannot be. ``states``: of its files, as they were read."""

    store: Store
    url: str
    seen: Path | None
    states: FileStates

    @classmethod
    def open(cls, path: str, url: str | None) -> ReferredStore:
        """Raises ``LockedError`` for a store that is being written, moved or edited, ``ShardFormatError`` for
        an array that is not understood, ``ConfigError``, ``StorageError``."""
        store = open_store(path)
        store.check_references()
        store.check_spelling()
        if store.group is None or ".ozx" in str(store.root):
            raise ConfigError(
                f"{store.root} cannot be referred to",
                expected="a group with an image or several, in a folder or a bucket",
                hint="Give the store or a folder of an image in it; unpack one that is a zip file",
            )
        if not isinstance(store.root, RemotePath):
            check_at_rest(store.root)
            check_not_between_versions(store.root)
        for array in store.arrays:
            for name in journaled_edits(array.path) if not isinstance(array.path, RemotePath) else ():
                check_not_edited(array.path, name)
        own = str(store.root) if isinstance(store.root, RemotePath) else f"file://{store.root}"
        url = (url or own).rstrip("/")
        seen: Path | None = store.root
        if url != own:
            seen = source_path(url) if url.startswith(("s3://", "http://", "https://")) else None
        return cls(store, url, seen, FileStates(seen or store.root))

    def documents(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the path in the store, and zarr.json, of each group and array."""
        for path in ["", *_paths_below(self.store.root)]:
            state = state_at((self.seen or self.store.root) / path / DOCUMENT)
            document = served_form(read_metadata(self.store.root / path, foreign=True), self.store.root / path)
            document.pop(CONSOLIDATED, None)
            if self.seen not in (None, self.store.root):
                there = read_metadata(self.seen / path, foreign=True)
                _check_copy(served_form(there, self.seen / path), document, self.seen / path)
            self.states.files[key_in(path, DOCUMENT)] = state
            yield path, document


def _check_copy(there: dict[str, Any], document: dict[str, Any], path: Path) -> None:
    there.pop(CONSOLIDATED, None)
    if there != document:
        raise ConfigError(
            f"{path / DOCUMENT} is not that of the store here",
            hint="Give the address itself as STORE: a copy may be packed in another way",
        )


@dataclass(frozen=True)
class ArrayPart:
    """An array of a store as a part of a virtual one. ``first``: its first chunk in the virtual grid."""

    source: ReferredStore
    stored: StoredArray
    first: tuple[int, ...]


@dataclass(frozen=True)
class VirtualArray:
    path: str
    document: dict[str, Any]
    parts: tuple[ArrayPart, ...]

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        return self.parts[0].stored.chunk_shape

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.document["shape"], self.chunk_shape, strict=True))


@dataclass(frozen=True)
class VirtualTree:
    groups: dict[str, dict[str, Any]]
    arrays: tuple[VirtualArray, ...]

    @classmethod
    def of_store(cls, source: ReferredStore) -> VirtualTree:
        """Raises as ``ReferredStore.open``."""
        groups, arrays = {}, []
        for path, document in source.documents():
            if document["node_type"] == "group":
                groups[path] = document
                continue
            stored = parse_array(source.store.root / path)
            part = ArrayPart(source, stored, (0,) * len(stored.shape))
            arrays.append(VirtualArray(path, {**document, "chunk_key_encoding": _KEYS}, (part,)))
        return cls(groups, tuple(arrays))

    @classmethod
    def joined(cls, sources: Sequence[ReferredStore], axis: str) -> VirtualTree:
        """Returns the image that several make along an axis, with the metadata of the first; tables of frames
        and labels are left out. Raises ``ConfigError`` where the arrays do not join."""
        for source in sources:
            if source.store.collection is not None:
                raise ConfigError(
                    f"{source.store.root} has several images",
                    hint="Give the folders of the images that are to be joined, as STORE/NAME",
                )
        trees = [cls.of_store(source) for source in sources]
        levels = [
            {array.path: array for array in tree.arrays if array.parts[0].stored.path in paths}
            for tree, paths in zip(trees, ([a.path for a in s.store.arrays] for s in sources), strict=True)
        ]
        names = [sorted(each) for each in levels]
        if any(each != names[0] for each in names):
            raise ConfigError("the images have different levels", expected=names[0], got=names[1:])
        arrays = tuple(_joined([each[name] for each in levels], axis) for name in names[0])
        return cls({"": trees[0].groups[""]}, arrays)


def _joined(arrays: Sequence[VirtualArray], axis: str) -> VirtualArray:
    names = arrays[0].document.get("dimension_names") or ()
    if axis not in names:
        raise ConfigError(f"there is no axis {axis!r} to join along", expected=f"one of {list(names)}")
    number, parts, done = names.index(axis), [], 0
    expected = _compared(arrays[0], number)
    for array in arrays:
        stored, where = array.parts[0].stored, array.parts[0].stored.path
        for field, value in _compared(array, number).items():
            if value != expected[field]:
                raise ConfigError(
                    f"{field} of {where} is not that of {arrays[0].parts[0].stored.path}: chunks are joined as "
                    "they are stored",
                    expected=expected[field],
                    got=value,
                    hint=_REWRITE,
                )
        length, chunk = stored.shape[number], stored.chunk_shape[number]
        if length % chunk and array is not arrays[-1]:
            raise ConfigError(
                f"{where} ends within a chunk along {axis!r}: the next array would begin behind a gap",
                expected=f"a multiple of {chunk}",
                got=length,
                hint=f"Give it last, or write it with other chunks: {_REWRITE}",
            )
        first = tuple(done // chunk if i == number else 0 for i in range(len(stored.shape)))
        parts.append(ArrayPart(array.parts[0].source, stored, first))
        done += length
    shape = [done if i == number else n for i, n in enumerate(arrays[0].document["shape"])]
    return VirtualArray(arrays[0].path, {**arrays[0].document, "shape": shape}, tuple(parts))


def _compared(array: VirtualArray, axis: int) -> dict[str, Any]:
    """What must be the same in arrays that are joined along axis number ``axis``."""
    document = array.document
    return {
        "data_type": document["data_type"],
        "fill_value": document["fill_value"],
        "dimension_names": document["dimension_names"],
        "the shape of inner chunks": list(array.chunk_shape),
        "the shape across the axis": [n for i, n in enumerate(document["shape"]) if i != axis],
        "codecs": [
            {"name": codec["name"]} if codec["name"] in _DECODED_BY_THEMSELVES else codec
            for codec in document["codecs"]
        ],
    }


def _paths_below(root: Path) -> list[str]:
    """Returns the paths of the groups and arrays below a group: behind a server without lists, of those that
    metadata name."""
    if not isinstance(root, RemotePath) or root.has_lists:
        return list(read_nodes(root))
    found: list[str] = []
    todo = nodes_named(read_metadata(root, foreign=True), "")
    while todo:
        path = todo.pop()
        if path not in found and beneath.exists(root / path / DOCUMENT):
            found.append(path)
            todo += nodes_named(read_metadata(root / path, foreign=True), path)
    return found
