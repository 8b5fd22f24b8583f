"""The groups and arrays that references show: zarr.json of each as a reader without shards sees it
(``chunk_documents``), and the arrays of stores whose chunks it has.

Arrays are joined only where that is exact: chunk by chunk, without decoding. So all but the last end with a
whole chunk along the axis: one in part is stored whole, and no grid has a place for what is beyond its edge.
Shards may differ, and settings of compressors that decoding does not need. Chunks that differ along the axis
make a rectilinear grid, which zarr-python 3.4 reads. An axis that no array has becomes the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.array.consolidated_metadata import FIELD as CONSOLIDATED
from shardwright.disk import beneath
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import ConfigError
from shardwright.model.names import DOCUMENT, folders_to, key_in
from shardwright.read.store import open_store, parse_array, read_metadata, read_nodes
from shardwright.remote.zip_path import ZipPath
from shardwright.rework.change_checks import check_at_rest, check_not_between_versions
from shardwright.rework.chunks.chunk_documents import served_form
from shardwright.shard.edit_files import check_not_edited, journaled_edits

from .staleness import State, state_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardwright.read.store import Store, StoredArray

Shape = tuple[int, ...]
Document = dict[str, Any]
_KEYS = {"name": "default", "configuration": {"separator": "/"}}
_DECODED_BY_THEMSELVES = ("blosc", "gzip", "zstd")  # whatever settings encoded a chunk
_ADDRESSES = ("s3://", "http://", "https://")
_REWRITE = "`shardwright rechunk STORE DEST` writes a store with other chunks or another codec"


@dataclass(frozen=True)
class ReferredStore:
    """A store that is referred to. ``url``: by which readers find it. ``is_seen``: that is where it was read.
    ``states``: of its files when they were read, by their keys."""

    store: Store
    url: str
    is_seen: bool
    states: dict[str, State] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str, url: str) -> ReferredStore:
        """Opens the store at ``url``, if it is given and can be read: a copy may have its chunks elsewhere.
        Raises ``LockedError`` for a store that is being written, moved or edited, ``ShardFormatError`` for an
        array that is not understood, ``ConfigError``, ``StorageError``."""
        is_copy = url != "" and not url.startswith(_ADDRESSES)
        store = open_store(url if url and not is_copy else path)
        store.check_references()
        store.check_spelling()
        root = store.root
        if store.group is None or isinstance(root, ZipPath):
            raise ConfigError(
                f"{root} cannot be referred to",
                expected="a group with an image or several, in a folder or a bucket",
                hint="Give the store, or the folder of an image in it; unpack one that is a zip file",
            )
        if not isinstance(root, RemotePath):
            check_at_rest(root)
            check_not_between_versions(root)
            for array in store.arrays:
                for name in journaled_edits(array.path):
                    check_not_edited(array.path, name)
        own = str(root) if isinstance(root, RemotePath) else f"file://{root}"
        return cls(store, (url if is_copy else own).rstrip("/"), not is_copy)

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yields the path in the store, and zarr.json, of each group and array; behind a server without lists
        of the images alone."""
        root = self.store.root
        if isinstance(root, RemotePath) and not root.has_lists:
            paths = {
                each for a in self.store.arrays for each in folders_to(a.path.relative_to(root).as_posix())
            }
            found = sorted(path for path in paths if beneath.exists(root / path / DOCUMENT))
        else:
            found = list(read_nodes(root))
        for path in ("", *found):
            self.states[key_in(path, DOCUMENT)] = state_at(root / path / DOCUMENT)
            document = served_form(read_metadata(root / path, foreign=True), root / path)
            yield path, {name: value for name, value in document.items() if name != CONSOLIDATED}


@dataclass(frozen=True)
class ArrayPart:
    """An array of a store as a part of a virtual one. ``first``: its first chunk in the virtual grid, with
    one axis more, in front, if arrays are stacked."""

    source: ReferredStore
    stored: StoredArray
    first: Shape

    def in_grid(self, chunk: Sequence[int]) -> Shape:
        """Returns the coordinates of a chunk in the virtual grid."""
        more = len(self.first) - len(chunk)
        return tuple(f + c for f, c in zip(self.first, (*(0,) * more, *chunk), strict=True))

    @property
    def counts(self) -> Shape:
        """Its chunks along each of its axes."""
        return tuple(-(-n // c) for n, c in zip(self.stored.shape, self.stored.chunk_shape, strict=True))


@dataclass(frozen=True)
class VirtualArray:
    path: str
    document: Document
    parts: tuple[ArrayPart, ...]

    @property
    def grid_shape(self) -> Shape:
        """Chunks along each axis."""
        last = [part.in_grid([n - 1 for n in part.counts]) for part in self.parts]
        return tuple(max(axis) + 1 for axis in zip(*last, strict=True))


@dataclass(frozen=True)
class VirtualTree:
    groups: dict[str, Document]
    arrays: tuple[VirtualArray, ...]

    @property
    def documents(self) -> dict[str, Document]:
        """By paths."""
        return self.groups | {array.path: array.document for array in self.arrays}

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
        """Returns the image that several make along an axis, with the metadata of the first, and without its
        table of frames and labels. Raises ``ConfigError`` where they do not join."""
        trees, levels = [], []
        for source in sources:
            if source.store.collection is not None:
                raise ConfigError(
                    f"{source.store.root} has several images",
                    hint="Give the folders of the images that are to be joined, as STORE/NAME",
                )
            trees.append(cls.of_store(source))
            paths = [array.path for array in source.store.arrays]
            levels.append({a.path: a for a in trees[-1].arrays if a.parts[0].stored.path in paths})
            if [*levels[-1]] != [*levels[0]]:
                raise ConfigError(
                    "the images have different levels", expected=[*levels[0]], got=[*levels[-1]]
                )
        root = trees[0].groups[""]
        if any(axis not in (each.document.get("dimension_names") or ()) for each in levels[0].values()):
            # OME-Zarr has no images with axes of any number and order
            attributes = {name: value for name, value in root["attributes"].items() if name != "ome"}
            root = {**root, "attributes": attributes}
        return cls({"": root}, tuple(_joined([each[path] for each in levels], axis) for path in levels[0]))


def _joined(arrays: Sequence[VirtualArray], axis: str) -> VirtualArray:
    document = arrays[0].document
    names = list(document.get("dimension_names") or ())
    number = names.index(axis) if axis in names else None
    expected = _compared(arrays[0], number)
    parts: list[ArrayPart] = []
    edges: list[tuple[int, int]] = []  # elements of a chunk along the axis, and how many such chunks
    length = 0
    for array in arrays:
        stored = array.parts[0].stored
        for name, value in _compared(array, number).items():
            if value != expected[name]:
                raise ConfigError(
                    f"{name} of {stored.path} differ from those of {arrays[0].parts[0].stored.path}: chunks "
                    "are joined as they are stored",
                    expected=expected[name],
                    got=value,
                    hint=_REWRITE,
                )
        here, chunk = (1, 1) if number is None else (stored.shape[number], stored.chunk_shape[number])
        if here % chunk and array is not arrays[-1]:
            raise ConfigError(
                f"{stored.path} ends within a chunk along {axis!r}: the next one would begin behind a gap",
                expected=f"a multiple of {chunk}",
                got=here,
                hint=f"Give it last, or change its chunks: {_REWRITE}",
            )
        before = sum(count for _, count in edges)
        zeros = (0,) * len(stored.shape)
        first = (before, *zeros) if number is None else _with(zeros, number, before)
        parts.append(ArrayPart(array.parts[0].source, stored, first))
        edges.append((chunk, -(-here // chunk)))
        length += here
    if number is None:
        document = _with_first_axis(document, axis)
    shape = _with(document["shape"], number or 0, length)
    chunks = _with(document["chunk_grid"]["configuration"]["chunk_shape"], number or 0, edges[0][0])
    grid: Document = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    if len({chunk for chunk, count in edges if count}) > 1:
        counts = ((c, -(-n // c)) for n, c in zip(shape, chunks, strict=True))
        shapes = _with([[each] for each in counts], number or 0, [each for each in edges if each[1]])
        grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}}
    return VirtualArray(arrays[0].path, {**document, "shape": shape, "chunk_grid": grid}, tuple(parts))


def _with(values: Sequence[Any], number: int, value: Any) -> Any:
    return (*values[:number], value, *values[number + 1 :])


def _with_first_axis(document: Document, axis: str) -> Document:
    codecs = [
        {
            "name": "transpose",
            "configuration": {"order": [0, *(i + 1 for i in codec["configuration"]["order"])]},
        }
        if codec["name"] == "transpose"
        else codec
        for codec in document["codecs"]
    ]
    grid = {"chunk_shape": [1, *document["chunk_grid"]["configuration"]["chunk_shape"]]}
    return {
        **document,
        "shape": [1, *document["shape"]],
        "chunk_grid": {"name": "regular", "configuration": grid},
        "dimension_names": [axis, *(document.get("dimension_names") or [None] * len(document["shape"]))],
        "codecs": codecs,
    }


def _compared(array: VirtualArray, axis: int | None) -> Document:
    """Returns by names all that must be the same in arrays that are joined along axis number ``axis``, or
    along a new one (None)."""
    document, stored = array.document, array.parts[0].stored
    codecs = document["codecs"]
    return {
        "the data types": document["data_type"],
        "the fill values": document["fill_value"],
        "the axes": document.get("dimension_names"),
        "the shapes": [n for i, n in enumerate(stored.shape) if i != axis],
        "the chunks": [n for i, n in enumerate(stored.chunk_shape) if i != axis],
        "the codecs": [{"name": c["name"]} if c["name"] in _DECODED_BY_THEMSELVES else c for c in codecs],
    }
