"""Opens a store for reading: finds its zarr.json files and parses them, strictly, for the layouts that
shardwright writes.

Accepted: Zarr v3, a regular grid with one level of ``sharding_indexed`` or none, chunk keys of the "default"
encoding, inner codecs as ``codecs.decode`` knows them, index codecs bytes (little) + crc32c. Anything else
raises a ``ShardFormatError`` that names it. A chunk of an array without shards is taken for a shard of one
chunk (``shard.index``). Every command reads zarr.json by ``read_metadata``, so that none
bypasses ``array.document``.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.array.document import check_document, check_node
from shardwright.array.spec import DTYPES, MAX_CHUNK_BYTES, MAX_CHUNKS_PER_SHARD
from shardwright.codecs.decode import ChunkCodecs
from shardwright.codecs.parameters import CodecParameters, codec_of
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.names import WORKSPACE
from shardwright.shard.index import ShardIndex
from shardwright.storage.files import open_regular
from shardwright.wire.messages import MAX_IMAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardwright.array.spec import Blosc, Gzip, IndexPlace, Zstd

MAX_METADATA_BYTES = 16 * 1024 * 1024
MAX_DATASETS = 256  # of a group: levels of its images; each is inspected as a whole

_INDEX_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
_KEY_PART = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class StoredArray:
    """One array on disk, as its zarr.json describes it. Shapes are in storage order. ``index_location``:
    "none" without shards; shards are then the chunks."""

    path: Path
    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill_value: Any
    codecs: ChunkCodecs
    codec_metadata: list[Any]
    index_location: IndexPlace
    separator: str
    dimension_names: tuple[str | None, ...] | None

    @property
    def fill_element(self) -> npt.NDArray[Any]:
        """The fill value as one element of the dtype."""
        return fill_element(self.fill_value, self.dtype)

    def codec_parameters(self, codec: Blosc | Zstd | Gzip | None) -> CodecParameters:
        """Returns ``codec`` as the kernels take it, for chunks of this array."""
        return CodecParameters.of_codec(
            codec, itemsize=self.dtype.itemsize, checksum=self.codecs.checksum, chunk_bytes=self.chunk_bytes
        )

    def configured_codec(self) -> CodecParameters:
        """Returns the codec that the metadata name. Raises ``SpecError`` for one that cannot be written."""
        return self.codec_parameters(codec_of(self.codec_metadata))

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    @property
    def shard_chunks(self) -> tuple[int, ...]:
        """Inner chunks of one shard along each axis."""
        return tuple(s // c for s, c in zip(self.shard_shape, self.chunk_shape, strict=True))

    @property
    def chunks_per_shard(self) -> int:
        return math.prod(self.shard_chunks)

    @property
    def index(self) -> ShardIndex:
        """The index of each of its shards."""
        return ShardIndex(self.chunks_per_shard, self.index_location)

    @property
    def index_bytes(self) -> int:
        return self.index.nbytes

    @property
    def is_sharded(self) -> bool:
        return self.index_location != "none"

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Shards that cover the shape along each axis."""
        return tuple(-(-n // s) for n, s in zip(self.shape, self.shard_shape, strict=True))

    @property
    def shards_in_shape(self) -> int:
        return math.prod(self.grid_shape)

    def contains_shard(self, coordinates: tuple[int, ...]) -> bool:
        return all(i < n for i, n in zip(coordinates, self.grid_shape, strict=True))

    def chunk_coordinates(self, shard: tuple[int, ...], chunk: int) -> tuple[int, ...]:
        """Returns the coordinates, in the array's grid of inner chunks, of chunk number ``chunk`` (row-major)
        of a shard."""
        within = np.unravel_index(chunk, self.shard_chunks)
        return tuple(i * n + int(w) for i, n, w in zip(shard, self.shard_chunks, within, strict=True))

    def extent_inside(self, shard: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the number of chunks of this shard along each axis that hold an element of the array: its
        first ones."""
        sizes = zip(shard, self.shard_shape, self.chunk_shape, self.shape, strict=True)
        return tuple(max(0, -(-(min((i + 1) * s, n) - i * s) // c)) for i, s, c, n in sizes)

    def chunks_inside(self, shard: tuple[int, ...]) -> int:
        """Returns the number of chunks of this shard that hold at least one element of the array."""
        return math.prod(self.extent_inside(shard))

    def shard_key(self, coordinates: tuple[int, ...]) -> str:
        return self.separator.join(["c", *map(str, coordinates)])

    def coordinates_of(self, key: str) -> tuple[int, ...] | None:
        """Returns the coordinates in a file's path below the array, None when it is no chunk key of this
        array."""
        head, *parts = key.split(self.separator)
        if head != "c" or len(parts) != len(self.shape) or not all(map(_KEY_PART.fullmatch, parts)):
            return None
        return tuple(map(int, parts))

    def shard_files(self) -> Iterator[tuple[str, tuple[int, ...] | None]]:
        """Yields every file below the array that may be a chunk, in a stable order: its key, and its
        coordinates or None when it is no chunk key."""
        below = [self.path / "c"] if self.separator == "/" else [self.path]
        for path in itertools.chain.from_iterable(_files(folder, self._is_key) for folder in below):
            key = path.relative_to(self.path).as_posix()
            if self.separator == "/" or key.startswith("c"):
                yield key, self.coordinates_of(key)

    def _is_key(self, path: Path) -> bool:
        return self.coordinates_of(path.relative_to(self.path).as_posix()) is not None


def _files(folder: Path, is_key: Callable[[Path], bool]) -> Iterator[Path]:
    """Yields everything that is not a folder, and folders in the place of a shard; numbers in the order of
    their value."""
    if not folder.is_dir():
        return
    for entry in sorted(
        folder.iterdir(),
        key=lambda p: (not p.name.isdecimal(), len(p.name) if p.name.isdecimal() else 0, p.name),
    ):
        if entry.is_dir() and not entry.is_symlink() and not is_key(entry):
            yield from _files(entry, is_key)
        else:
            yield entry


@dataclass(frozen=True)
class Store:
    """The store found at a path. ``group``: the OME-Zarr group's attributes (None for a bare array).
    ``shard``: set when the path was one shard's.

    ``broken_references`` are the dataset paths of the group's metadata that lead to no readable array, with
    the reason. ``collection``: the stores of its images, for a plate or ``bioformats2raw.layout``, None for
    any other; ``arrays`` then has those of all.
    """

    root: Path
    group: dict[str, Any] | None
    arrays: tuple[StoredArray, ...]
    shard: tuple[int, ...] | None = None
    broken_references: dict[str, str] = field(default_factory=dict)
    collection: tuple[Store, ...] | None = None

    @property
    def images(self) -> tuple[Store, ...]:
        """The stores of its images: itself if it is no collection."""
        return (self,) if self.collection is None else self.collection

    @property
    def image_name(self) -> str | None:
        """The name in the metadata of an image; None for an array alone, a collection, or an image without
        one."""
        try:
            name = (self.group or {})["ome"]["multiscales"][0].get("name")
        except (LookupError, TypeError, AttributeError):
            return None
        return name if isinstance(name, str) else None

    def check_references(self) -> None:
        """Raises ``ShardFormatError`` for a dataset of the group that leads to no readable array. Call it
        before anything is changed."""
        for name, reason in self.broken_references.items():
            raise ShardFormatError(f"dataset {name!r} leads to no readable array: {reason}")

    @property
    def work_in_progress(self) -> bool:
        return workspace_of(self.root) is not None


def workspace_of(path: Path) -> Path | None:
    """Returns the workspace of the acquisition that writes a store, an image of it or an array; None if it is
    finished."""
    above = (folder for folder in path.parents if (folder / "zarr.json").exists())
    found = (folder / WORKSPACE for folder in (path, *above))
    return next((workspace for workspace in found if workspace.exists()), None)


def open_store(path: Path) -> Store:
    """Opens an OME-Zarr group, a bare array, or the array that one shard file belongs to. Raises
    ``ShardFormatError`` or ``StorageError``."""
    path = path.absolute()
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise StorageError(f"no such file or folder: {path}")
    if path.name == "zarr.json":
        return _open_folder(path.parent)
    return _open_shard(path)


def _open_folder(folder: Path) -> Store:
    document = read_metadata(folder)
    if document["node_type"] == "array":
        return Store(folder, None, (parse_array(folder, document),))
    attributes = document.get("attributes", {})
    if (images := _image_folders(folder, attributes)) is not None:
        return _open_collection(folder, attributes, images)
    arrays, broken = [], {}
    names = list(dict.fromkeys(_dataset_paths(attributes)))
    if len(names) > MAX_DATASETS:
        raise ShardFormatError(
            f"the group {folder} names too many datasets", expected=f"at most {MAX_DATASETS}", got=len(names)
        )
    seen: set[Path] = set()  # one folder may have two names, "0" and "./0": it is one array
    for name in names:
        try:
            array = parse_array(_inside(folder, name))
            if (real := array.path.resolve()) not in seen:
                arrays.append(array)
            seen.add(real)
        except (ShardFormatError, StorageError) as error:
            broken[name] = str(error)
    if not arrays and not broken:
        raise ShardFormatError(
            f"the group {folder} names no image",
            expected="attributes.ome.multiscales with datasets",
            got=sorted(attributes),
        )
    return Store(folder, attributes, tuple(arrays), broken_references=broken)


def _open_collection(folder: Path, attributes: dict[str, Any], images: list[Path]) -> Store:
    stores, broken = [], {}
    for image in images:
        try:
            store = _open_folder(image)
        except (ShardFormatError, StorageError) as error:
            broken[image.relative_to(folder).as_posix()] = str(error)
            continue
        stores.append(store)
        broken |= {
            (store.root / name).relative_to(folder).as_posix(): reason
            for name, reason in store.broken_references.items()
        }
    return Store(
        folder,
        attributes,
        tuple(array for store in stores for array in store.arrays),
        broken_references=broken,
        collection=tuple(stores),
    )


def _image_folders(folder: Path, attributes: dict[str, Any]) -> list[Path] | None:
    """Returns the folders of the images of a collection: of a plate, or of ``bioformats2raw.layout``; None
    for any other group. Raises ``ShardFormatError``, ``StorageError``."""
    ome = attributes.get("ome")
    try:
        if isinstance(ome, dict) and "plate" in ome:
            wells = [_inside(folder, str(well["path"])) for well in ome["plate"]["wells"]]
            fields = [
                _inside(well, str(image["path"]))
                for well in wells
                for image in read_metadata(well)["attributes"]["ome"]["well"]["images"]
            ]
        elif isinstance(ome, dict) and "bioformats2raw.layout" in ome:
            series = read_metadata(folder / "OME")["attributes"]["ome"]["series"]
            fields = [_inside(folder, str(name)) for name in series]
        else:
            return None
    except (KeyError, TypeError):
        raise ShardFormatError(f"the collection {folder} does not name its images") from None
    if len(fields) > MAX_IMAGES:
        raise ShardFormatError(
            f"the group {folder} names too many images", expected=f"at most {MAX_IMAGES}", got=len(fields)
        )
    return fields


def _open_shard(path: Path) -> Store:
    for folder in path.parents:
        if (folder / "zarr.json").is_file():
            array = parse_array(folder)
            coordinates = array.coordinates_of(path.relative_to(folder).as_posix())
            if coordinates is None:
                raise ShardFormatError(
                    f"{path} is not a shard of {folder}",
                    expected=array.shard_key((0,) * len(array.shape)) + " and the like",
                )
            return Store(folder, None, (array,), shard=coordinates)
    raise ShardFormatError(
        f"no zarr.json in any folder above {path}",
        hint="Give the path of a store, or of a shard inside its array",
    )


def _dataset_paths(attributes: Any) -> list[str]:
    try:
        return [
            str(dataset["path"])
            for scale in attributes["ome"]["multiscales"]
            for dataset in scale["datasets"]
        ]
    except (KeyError, TypeError):
        return []


def _inside(folder: Path, name: str) -> Path:
    """Returns the folder of a dataset named by metadata. Raises ``ShardFormatError`` for a name that leads
    out of the group."""
    if "\0" in name:
        raise ShardFormatError("dataset path with a NUL", got=repr(name)[:160])
    if name.startswith("/") or ".." in Path(name).parts:
        raise ShardFormatError("dataset path leads out of the group", got=repr(name))
    return folder / name


def read_metadata(folder: Path, *, foreign: bool = False) -> dict[str, Any]:
    """Reads zarr.json of an array or a group. ``foreign``: only to be copied or compared, so it need not be a
    layout that we know.

    Raises ``ShardFormatError`` naming the file and the field, or ``StorageError``.
    """
    path = folder / "zarr.json"
    try:
        with open_regular(path) as file:
            # a read allocates as much memory as it requests
            text = file.read(min(os.fstat(file.fileno()).st_size, MAX_METADATA_BYTES) + 1)
    except FileNotFoundError:
        raise ShardFormatError(
            f"no zarr.json in {folder}", hint="Give the path of a Zarr v3 store, array or shard"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    return decode_metadata(path, text, foreign=foreign)


def decode_metadata(path: Path, text: bytes, *, foreign: bool = False) -> dict[str, Any]:
    """As ``read_metadata``, for the bytes of the zarr.json at ``path``. Raises ``ShardFormatError``."""
    if len(text) > MAX_METADATA_BYTES:
        raise ShardFormatError(f"{path} is too long", expected=f"at most {MAX_METADATA_BYTES} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShardFormatError(f"{path} is not JSON: {error}") from error
    try:
        return check_node(document) if foreign else check_document(document)
    except ShardFormatError as error:
        raise ShardFormatError(f"{path}: {error.message}", expected=error.expected, got=error.got) from None


def read_nodes(root: Path) -> dict[str, dict[str, Any]]:
    """Reads zarr.json of every group and array below a group, by path, of known layout or not. Raises
    ``ShardFormatError``, ``StorageError``."""
    found: dict[str, dict[str, Any]] = {}
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            below = sorted(
                path for path in folder.iterdir() if path.is_dir() and (path / "zarr.json").exists()
            )
        except OSError as error:
            raise StorageError(f"cannot look into {folder}: {error.strerror}") from error
        for path in below:
            document = found[path.relative_to(root).as_posix()] = read_metadata(path, foreign=True)
            if document["node_type"] == "group":
                folders.append(path)
    return found


def parse_array(folder: Path, document: dict[str, Any] | None = None) -> StoredArray:
    """Returns the array in ``folder``. Raises ``ShardFormatError`` naming the field that is wrong or not
    supported."""
    document = read_metadata(folder) if document is None else document
    if document["node_type"] != "array":
        raise ShardFormatError(f"{folder} is a group", expected="an array")
    try:
        return _parse(folder, document)
    except ShardFormatError as error:
        raise ShardFormatError(
            f"{folder / 'zarr.json'}: {error.message}",
            expected=error.expected,
            got=error.got,
            hint=error.hint,
        ) from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ShardFormatError(
            f"{folder / 'zarr.json'} lacks a field or has one of the wrong type: {error!r}"
        ) from None


def _parse(folder: Path, document: dict[str, Any]) -> StoredArray:
    if document["data_type"] not in DTYPES:
        raise ShardFormatError(
            "data_type not supported", expected=", ".join(DTYPES), got=repr(document["data_type"])
        )
    dtype = np.dtype(document["data_type"]).newbyteorder("<")
    shape = _sizes("shape", document["shape"], least=0)
    grid = document["chunk_grid"]["configuration"]["chunk_shape"]
    shard_shape = _sizes("chunk_grid", grid, rank=len(shape))
    sharding = _sharding(document["codecs"], grid)
    chunk_shape = _sizes("chunk_shape", sharding["chunk_shape"], rank=len(shape))
    if any(s % c for s, c in zip(shard_shape, chunk_shape, strict=True)):
        raise ShardFormatError(
            "inner chunks do not divide the shard", expected=f"divisors of {shard_shape}", got=chunk_shape
        )
    names = document.get("dimension_names")
    if names is not None and (not isinstance(names, list) or len(names) != len(shape)):
        raise ShardFormatError(
            "dimension_names do not match the shape", expected=f"{len(shape)} names", got=names
        )
    if not all(name is None or isinstance(name, str) for name in names or ()):
        raise ShardFormatError("dimension_names are not names", expected="text or null for each", got=names)
    fill_element(document["fill_value"], dtype)
    array = StoredArray(
        path=folder,
        shape=shape,
        shard_shape=shard_shape,
        chunk_shape=chunk_shape,
        dtype=dtype,
        fill_value=document["fill_value"],
        codecs=ChunkCodecs.of(sharding["codecs"], dtype.itemsize),
        codec_metadata=sharding["codecs"],
        index_location=sharding["index_location"],
        separator=_separator(document["chunk_key_encoding"]),
        dimension_names=None if names is None else tuple(names),
    )
    if array.chunk_bytes > MAX_CHUNK_BYTES:
        raise ShardFormatError(
            "inner chunk too large", expected=f"at most {MAX_CHUNK_BYTES} bytes", got=array.chunk_bytes
        )
    if array.chunks_per_shard > MAX_CHUNKS_PER_SHARD:
        raise ShardFormatError(
            "too many inner chunks in a shard",
            expected=f"at most {MAX_CHUNKS_PER_SHARD}",
            got=array.chunks_per_shard,
        )
    return array


def _sizes(name: str, value: Any, *, least: int = 1, rank: int | None = None) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or not all(type(n) is int and least <= n < 2**63 for n in value)
        or (rank is not None and len(value) != rank)
    ):
        count = "" if rank is None else f"{rank} "
        raise ShardFormatError(
            f"{name} not supported", expected=f"a list of {count}whole numbers from {least}", got=value
        )
    return tuple(value)


def _sharding(codecs: Any, chunk_shape: Any) -> dict[str, Any]:
    """Returns the configuration of the sharding codec, or what stands for it in an array without shards, of
    chunks of ``chunk_shape``."""
    names = [codec["name"] if isinstance(codec, dict) else codec for codec in codecs]
    if "sharding_indexed" not in names:
        return {"chunk_shape": chunk_shape, "codecs": codecs, "index_location": "none"}
    if len(names) != 1:
        raise ShardFormatError("codecs not supported", expected="['sharding_indexed']", got=names)
    configuration: dict[str, Any] = codecs[0]["configuration"]
    index_codecs = [
        {"name": codec} if isinstance(codec, str) else codec for codec in configuration["index_codecs"]
    ]
    plain = [
        {key: value for key, value in codec.items() if key != "configuration" or value}
        for codec in index_codecs
    ]
    if plain != _INDEX_CODECS:
        raise ShardFormatError(
            "index_codecs not supported", expected="bytes (little) and crc32c", got=index_codecs
        )
    location = configuration.get("index_location", "end")
    if location not in ("start", "end"):
        raise ShardFormatError(
            "index_location not supported", expected="'start' or 'end'", got=repr(location)
        )
    return {**configuration, "index_location": location}


def _separator(encoding: Any) -> str:
    separator = encoding.get("configuration", {}).get("separator", "/")
    if separator not in ("/", "."):
        raise ShardFormatError(
            "chunk_key_encoding not supported", expected="separator '/' or '.'", got=encoding
        )
    return str(separator)


def fill_element(value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns a ``fill_value`` of zarr.json as one element of ``dtype``. Raises ``ShardFormatError`` when it
    is not one."""
    try:
        # bits in hexadecimal (Zarr v3 core, for NaN payloads)
        if dtype.kind == "f" and isinstance(value, str) and value.startswith("0x"):
            return np.array(int(value, 16), f"<u{dtype.itemsize}").view(dtype)
        if dtype.kind == "f" and value in ("NaN", "Infinity", "-Infinity"):
            return np.array(float(value.replace("Infinity", "inf")), dtype)
        if dtype.kind == "f" and isinstance(value, int | float) and not isinstance(value, bool):
            with np.errstate(over="raise"):
                return np.array(value, dtype)
        if isinstance(value, int) and isinstance(value, bool) == (dtype.kind == "b"):
            return np.array(value, dtype)
    except (ValueError, ArithmeticError, TypeError):
        pass
    raise ShardFormatError("fill_value not supported", expected=f"a {dtype.name}", got=repr(value)[:80])
