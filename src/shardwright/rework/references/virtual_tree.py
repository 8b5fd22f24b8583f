"""The groups and arrays that references show: zarr.json of each as a reader without shards sees it, and the
arrays of stores whose chunks it has.

Arrays are joined only where that is exact: chunk by chunk, without decoding. So all but the last end with a
whole chunk along the axis: one in part is stored whole, and no grid has a place for what is beyond its edge.
Shards may differ, and settings of compressors that decoding does not need. Chunks that differ along the axis
make a rectilinear grid, which zarr-python 3.4 reads. An axis that no array has becomes the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.array.consolidated_metadata import FIELD as CONSOLIDATED
from shardwright.disk import beneath
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import ConfigError
from shardwright.model.names import DOCUMENT, folders_to
from shardwright.read.store import open_store, parse_array, read_metadata, read_nodes
from shardwright.remote.zip_path import ZipPath
from shardwright.rework.change_checks import check_at_rest, check_not_between_versions
from shardwright.shard.edit_files import check_not_edited, journaled_edits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardwright.read.store import Store, StoredArray

    from .file_record import FileRecord

Shape = tuple[int, ...]
Document = dict[str, Any]
_KEYS = {"name": "default", "configuration": {"separator": "/"}}
_DECODED_BY_THEMSELVES = ("blosc", "gzip", "zstd")  # whatever settings encoded a chunk


def open_source(path: str) -> Store:
    """Opens a store that is to be referred to. Raises ``LockedError`` for one that is being written, moved or
    edited, ``ShardFormatError`` for an array that is not understood, ``ConfigError``, ``StorageError``."""
    store = open_store(path)
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
    return store


@dataclass(frozen=True)
class ArrayPart:
    """An array of a store in a virtual one. ``first``: its first chunk in the virtual grid, which has an axis
    more, in front, if arrays are stacked."""

    stored: StoredArray
    first: Shape


@dataclass(frozen=True)
class VirtualArray:
    path: str
    document: Document
    parts: tuple[ArrayPart, ...]

    @property
    def chunk_shape(self) -> list[int]:
        """Of a regular grid."""
        shape: list[int] = self.document["chunk_grid"]["configuration"]["chunk_shape"]
        return shape


@dataclass(frozen=True)
class VirtualTree:
    groups: dict[str, Document]
    arrays: tuple[VirtualArray, ...]

    @property
    def documents(self) -> dict[str, Document]:
        """By paths."""
        return self.groups | {array.path: array.document for array in self.arrays}

    @classmethod
    def of_store(cls, store: Store, record: FileRecord) -> VirtualTree:
        """Puts each zarr.json on ``record``. Raises as ``open_source``."""
        groups, arrays = {}, []
        for path in ("", *_nodes(store)):
            folder = store.root / path
            record.add(folder / DOCUMENT)  # before it is read
            document = read_metadata(folder, foreign=True)
            if document["node_type"] == "group":
                groups[path] = {name: value for name, value in document.items() if name != CONSOLIDATED}
                continue
            stored = parse_array(folder)
            as_chunks = {
                "chunk_grid": _regular(stored.chunk_shape),
                "chunk_key_encoding": _KEYS,
                "codecs": stored.chain.as_json,
            }
            part = ArrayPart(stored, (0,) * len(stored.shape))
            arrays.append(VirtualArray(path, {**document, **as_chunks}, (part,)))
        return cls(groups, tuple(arrays))

    @classmethod
    def joined(cls, stores: Sequence[Store], axis: str, record: FileRecord) -> VirtualTree:
        """Returns the image that several make along an axis, with the metadata of the first, and without its
        table of frames and labels. Raises ``ConfigError`` where they do not join."""
        trees, levels = [], []
        for store in stores:
            if store.collection is not None:
                raise ConfigError(
                    f"{store.root} has several images",
                    hint="Give the folders of the images that are to be joined, as STORE/NAME",
                )
            trees.append(cls.of_store(store, record))
            paths = [array.path for array in store.arrays]
            levels.append([a for a in trees[-1].arrays if a.parts[0].stored.path in paths])
            first, here = ([array.path for array in each] for each in (levels[0], levels[-1]))
            if here != first:
                raise ConfigError("the images have different levels", expected=first, got=here)
        root = trees[0].groups[""]
        if any(axis not in (array.document.get("dimension_names") or ()) for array in levels[0]):
            # OME-Zarr has no images with axes of any number and order
            attributes = {name: value for name, value in root["attributes"].items() if name != "ome"}
            root = {**root, "attributes": attributes}
        return cls({"": root}, tuple(_joined(each, axis) for each in zip(*levels, strict=True)))


def _nodes(store: Store) -> list[str]:
    """Returns the paths of the groups and arrays of a store, behind a server without lists of its images
    alone."""
    root = store.root
    if not isinstance(root, RemotePath) or root.has_lists:
        return list(read_nodes(root))
    paths = {each for a in store.arrays for each in folders_to(a.path.relative_to(root).as_posix())}
    return sorted(path for path in paths if beneath.exists(root / path / DOCUMENT))


def _regular(chunk_shape: Sequence[int]) -> Document:
    return {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}}


def _joined(several: Sequence[VirtualArray], axis: str) -> VirtualArray:
    arrays = [_with_axis(array, axis) for array in several]
    number = arrays[0].document["dimension_names"].index(axis)
    expected = _compared(arrays[0], number)
    parts: list[ArrayPart] = []
    edges: list[tuple[int, int]] = []  # elements of a chunk along the axis, and how many such chunks
    length = before = 0
    for array in arrays:
        stored = array.parts[0].stored
        for name, value in _compared(array, number).items():
            if value != expected[name]:
                raise ConfigError(
                    f"{name} of {stored.path} differ from those of {arrays[0].parts[0].stored.path}: chunks "
                    "are joined as they are stored",
                    expected=expected[name],
                    got=value,
                    hint="`shardwright rechunk STORE DEST` writes a store with other chunks or another codec",
                )
        here, chunk = array.document["shape"][number], array.chunk_shape[number]
        if here % chunk and array is not arrays[-1]:
            raise ConfigError(
                f"{stored.path} ends within a chunk along {axis!r}: the next one would begin behind a gap",
                expected=f"a multiple of {chunk}",
                got=here,
                hint="Give it last, or change its chunks by `shardwright rechunk STORE DEST`",
            )
        parts.append(ArrayPart(stored, _with([0] * len(array.chunk_shape), number, before)))
        if here:
            edges.append((chunk, -(-here // chunk)))
            length, before = length + here, before + edges[-1][1]
    shape = _with(arrays[0].document["shape"], number, length)
    chunks = _with(arrays[0].chunk_shape, number, edges[0][0] if edges else 1)
    grid = _regular(chunks)
    if len({chunk for chunk, _ in edges}) > 1:
        shapes = [[(c, -(-n // c))] for n, c in zip(shape, chunks, strict=True)]
        inline = {"kind": "inline", "chunk_shapes": _with(shapes, number, edges)}
        grid = {"name": "rectilinear", "configuration": inline}
    document = {**arrays[0].document, "shape": shape, "chunk_grid": grid}
    return VirtualArray(arrays[0].path, document, tuple(parts))


def _with(values: Sequence[Any], number: int, value: Any) -> Any:
    return (*values[:number], value, *values[number + 1 :])


def _with_axis(array: VirtualArray, axis: str) -> VirtualArray:
    """Returns the array, with ``axis`` as its first one if it has none of this name."""
    document = array.document
    names = document.get("dimension_names") or [None] * len(document["shape"])
    if axis in names:
        return array
    codecs = [
        {**codec, "configuration": {"order": [0, *(i + 1 for i in codec["configuration"]["order"])]}}
        if codec["name"] == "transpose"
        else codec
        for codec in document["codecs"]
    ]
    changed = {
        "shape": [1, *document["shape"]],
        "chunk_grid": _regular([1, *array.chunk_shape]),
        "dimension_names": [axis, *names],
        "codecs": codecs,
    }
    return VirtualArray(array.path, {**document, **changed}, array.parts)


def _compared(array: VirtualArray, axis: int) -> Document:
    """Returns by names all that must be the same in arrays that are joined along axis number ``axis``."""
    document = array.document
    return {
        "the data types": document["data_type"],
        "the fill values": document["fill_value"],
        "the axes": document["dimension_names"],
        "the shapes": [n for i, n in enumerate(document["shape"]) if i != axis],
        "the chunks": [n for i, n in enumerate(array.chunk_shape) if i != axis],
        "the codecs": [
            {"name": codec["name"]} if codec["name"] in _DECODED_BY_THEMSELVES else codec
            for codec in document["codecs"]
        ],
    }
