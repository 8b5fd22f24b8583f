"""Opens a store for reading: finds its zarr.json files and parses them, strictly.

Accepted: Zarr v3, a regular grid, and any codec chain and data type that we or zarr-python can decode
(``codecs.chain``). Anything else raises a ``ShardFormatError`` that names it. A shard is a file whose chain
is ``sharding_indexed`` alone; what its inner chunks hold, perhaps shards, is for their own chain. A file of
any other chain, also with codecs around the shards, is taken for a shard of one chunk (``shard.index``).
Every command reads zarr.json by ``read_metadata``, so that none bypasses ``array.document``.
"""

from __future__ import annotations

import functools
import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardwright.array.chunk_keys import OLDER_KEYS, ChunkKeys
from shardwright.array.document import MAX_METADATA_BYTES, NamingFile, array_chain, decode_document
from shardwright.array.fields import sizes
from shardwright.array.metadata import CONTAINER, codec_of, creator_facts, unwritable
from shardwright.array.ome_references import image_names, is_collection
from shardwright.array.ome_version import Scene, is_placed_above, ome_in
from shardwright.array.spec import MAX_CHUNK_BYTES, MAX_CHUNKS_PER_SHARD
from shardwright.codecs.chain import chunk_codecs
from shardwright.codecs.decode import ChunkCodecs, ChunkForm, decode_chunk_into, describe_chunk
from shardwright.codecs.parameters import CodecParameters
from shardwright.codecs.zarr_chunks import ZarrChunks, index_codec
from shardwright.disk import beneath
from shardwright.disk.files import read_regular
from shardwright.disk.remote_path import RemotePath
from shardwright.disk.typed_errors import says_absent, storage_errors
from shardwright.foreign.older_nodes import is_older_node, locate, older_document
from shardwright.model.errors import ConfigError, LinkError, ShardFormatError, StorageError
from shardwright.model.local_path import can_be_path
from shardwright.model.names import DOCUMENT, UPGRADE_RECORD, WORK_FOLDER, WORKSPACE, folders_to, key_in
from shardwright.remote.source_path import source_path
from shardwright.shard.index import LITTLE_ENDIAN_CRC32C, ShardIndex
from shardwright.shard.sealed_shard import SealedShard
from shardwright.shard.shard_description import FIELDS as DESCRIBED
from shardwright.shard.shard_sums import SUMS_NAME, ShardSums
from shardwright.wire.messages import MAX_IMAGES

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardwright.array.codec_chain import CodecChain
    from shardwright.array.spec import Blosc, Gzip, IndexLocation, Zstd
    from shardwright.codecs.decode import Bytes
    from shardwright.disk.read_file import ReadFile
    from shardwright.shard.index import IndexCodec

P = TypeVar("P", bound=PurePath)
MOST_ASKED = 20_000  # shards of which a server without lists is asked one by one
MAX_DATASETS = 256  # of a group: levels of its images; each is inspected as a whole


@dataclass(frozen=True)
class StoredArray:
    """One array on disk, as its zarr.json describes it. Shapes are in storage order. ``chain``: the codecs of
    a chunk. ``index_location``: "none" without shards; shards are then the chunks. ``spelling``: of its
    metadata, if not Zarr v3. ``container``: what its shards are as well, "hdf5". ``described``: the
    fields of its zarr.json that describe a shard."""

    path: Path
    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill_value: Any
    codecs: ChunkCodecs | ZarrChunks
    chain: CodecChain
    index_location: IndexLocation
    index_codec: IndexCodec
    keys: ChunkKeys
    dimension_names: tuple[str | None, ...] | None
    spelling: str | None = None
    container: str | None = None
    described: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def fill_element(self) -> npt.NDArray[Any]:
        """The fill value as one element of the dtype."""
        if isinstance(self.codecs, ZarrChunks):
            return self.codecs.fill_element
        return fill_element(self.fill_value, self.dtype)

    @property
    def is_ours(self) -> bool:
        """True if our kernels decode and encode its chunks; else zarr-python does."""
        return isinstance(self.codecs, ChunkCodecs)

    def decode(self, data: Bytes, room: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Returns the values of one encoded chunk, of ``chunk_shape``; perhaps in ``room``,
        uint8[chunk_bytes]. Raises ``ShardFormatError``."""
        if isinstance(self.codecs, ZarrChunks):
            return self.codecs.decode(data)
        decode_chunk_into(data, self.codecs, room)
        values = room.view(self.dtype)
        if not self.codecs.order:
            return values.reshape(self.chunk_shape)
        order = self.codecs.order
        return values.reshape([self.chunk_shape[i] for i in order]).transpose(np.argsort(order))

    def describe(self, head: Bytes, encoded_bytes: int) -> ChunkForm:
        """Returns how a chunk of ``encoded_bytes`` was encoded, from its first ``HEAD_BYTES`` bytes; of one
        that zarr-python decodes the names of its codecs, whatever its bytes. Raises ``ShardFormatError``."""
        if isinstance(self.codecs, ZarrChunks):
            return ChunkForm(self.codecs.name, None, stored=False)
        return describe_chunk(head, encoded_bytes, self.codecs, self.chunk_bytes)

    @property
    def is_transposed(self) -> bool:
        """True if its last axis is that of the rows of frames, as our writers store columns before rows."""
        rank = len(self.shape)
        order = self.codecs.order if isinstance(self.codecs, ChunkCodecs) else ()
        return order == (*range(rank - 2), rank - 1, rank - 2)

    def zarr_chunks(self) -> ZarrChunks:
        """Returns its chunks as zarr-python decodes and encodes them. Raises as ``parse_array``."""
        if isinstance(self.codecs, ZarrChunks):
            return self.codecs
        return ZarrChunks(self.chain, self.chunk_shape, self.dtype.name, self.fill_value)

    def codec_parameters(self, codec: Blosc | Zstd | Gzip | None) -> CodecParameters:
        """Returns ``codec`` as the kernels take it, for chunks of this array."""
        return CodecParameters.of_codec(
            codec, itemsize=self.dtype.itemsize, checksum=self.codecs.checksum, chunk_bytes=self.chunk_bytes
        )

    def configured_codec(self) -> CodecParameters:
        """Returns the codec that the metadata name. Raises ``SpecError`` for one that our kernels do not
        write."""
        if not self.is_ours:
            raise unwritable(self.chain)
        return self.codec_parameters(codec_of(self.chain))

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

    @cached_property
    def index(self) -> ShardIndex:
        """The index of each of its shards."""
        longest = self.codecs.max_encoded_bytes(self.chunk_bytes)
        return ShardIndex(self.chunks_per_shard, self.index_location, self.index_codec, longest)

    def open_shard(self, shard: tuple[int, ...]) -> SealedShard[ReadFile]:
        """Opens the shard with these coordinates. Raises as ``SealedShard.open``."""
        return SealedShard.open(self.path / self.shard_key(shard), self.index)

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

    def chunk_name(self, shard: tuple[int, ...], chunk: int) -> str:
        """Returns the ``chunk_coordinates`` of a chunk and the path of its shard, for messages."""
        coordinates = "/".join(map(str, self.chunk_coordinates(shard, chunk)))
        return f"{coordinates} of {self.path / self.shard_key(shard)}"

    def extent_inside(self, shard: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the number of chunks of this shard along each axis that hold an element of the array: its
        first ones."""
        sizes = zip(shard, self.shard_shape, self.chunk_shape, self.shape, strict=True)
        return tuple(max(0, -(-(min((i + 1) * s, n) - i * s) // c)) for i, s, c, n in sizes)

    def chunks_inside(self, shard: tuple[int, ...]) -> int:
        """Returns the number of chunks of this shard that hold at least one element of the array."""
        return math.prod(self.extent_inside(shard))

    def find_shard(self, shard: tuple[int, ...]) -> SealedShard[ReadFile] | None:
        """As ``open_shard``; None if there is none. The caller makes sure that the array is still there."""
        try:
            return self.open_shard(shard)
        except StorageError as error:
            if says_absent(error):
                return None
            raise

    def chunks_in_shape(self, shard: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """Returns bool[chunks]: true for each chunk of this shard that holds an element of the array. Others
        may be present, as ``resize`` of zarr-python leaves them."""
        inside = np.ones((), np.bool_)
        for chunks, live in zip(self.shard_chunks, self.extent_inside(shard), strict=True):
            inside = np.logical_and.outer(inside, np.arange(chunks) < live)
        return inside.ravel()

    def shard_key(self, coordinates: tuple[int, ...]) -> str:
        return self.keys.key(coordinates)

    def coordinates_of(self, key: str) -> tuple[int, ...] | None:
        """Returns the coordinates in a file's path below the array, None when it is no chunk key of this
        array."""
        return self.keys.coordinates_of(key)

    def shard_files(self) -> Iterator[tuple[str, tuple[int, ...] | None]]:
        """Yields every file below the array that may be a chunk, in a stable order: its key, and its
        coordinates or None when it is no chunk key."""
        if isinstance(self.path, RemotePath):
            found: Iterable[str] = self._remote_files(self.path)
        else:
            found = self.keys.files(self.path, beneath)
        for key in found:
            yield key, self.coordinates_of(key)

    def _remote_files(self, folder: RemotePath) -> list[str]:
        """Returns what ``shard_files`` yields of an array at an address. Where nothing can be listed, these
        are the files on record, and of a grid of up to ``MOST_ASKED`` shards those that are there."""
        if folder.has_lists:
            top = folder / self.keys.head if self.keys.head.endswith("/") else folder
            start = "" if top == folder else self.keys.head
            found = [key for key in (start + below for below in top.keys_below()) if self.keys.may_be(key)]
        else:
            known = ShardSums(folder).read().items()
            if not known and self.shards_in_shape > MOST_ASKED:
                raise StorageError(
                    f"the shards of {folder} cannot be listed",
                    expected=f"their record {SUMS_NAME}, or at most {MOST_ASKED} shards to ask for",
                    got=f"{self.shards_in_shape} shards",
                    hint="Give it an address at s3://, or copy the store here",
                )
            recorded = (key for key, sums in known if sums != {None} and self.coordinates_of(key) is not None)
            in_grid = np.ndindex(self.grid_shape) if self.shards_in_shape <= MOST_ASKED else ()
            found = list(folder.present(dict.fromkeys((*recorded, *map(self.shard_key, in_grid)))))
        return sorted(found, key=lambda key: (self.coordinates_of(key) or (), key))


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
            raise ShardFormatError(f"dataset {repr(name)[:160]} leads to no readable array: {reason}")

    def check_spelling(self) -> None:
        """Raises ``ShardFormatError`` for an array that is not of Zarr v3. Call it before anything is
        changed."""
        for array in self.arrays:
            if array.spelling is not None:
                raise ShardFormatError(
                    f"{array.path} is an array of {array.spelling}, which is read but not changed",
                    hint="Make a store of today of it first: `shardwright rechunk SOURCE DEST`",
                )

    def check_outside(self, destination: Path) -> None:
        """Raises ``ConfigError`` for a folder in this store: no copy of a store is a part of it."""
        if destination.is_relative_to(self.root):
            raise ConfigError(
                f"the destination {destination} lies in the store itself",
                hint="Choose a folder outside of it",
            )

    @property
    def work_in_progress(self) -> bool:
        return workspace_of(self.root) is not None


def workspace_of(path: Path) -> Path | None:
    """Returns the workspace of the acquisition that writes a store, an image of it or an array; None if it is
    finished, as all are that have an address: ``opened_path`` refuses the others."""
    return None if isinstance(path, RemotePath) else _workspace_of(path)


def _workspace_of(path: Path, file: str = "") -> Path | None:
    """``file``: in the workspace, which is looked for instead."""
    above = (folder for folder in path.parents if beneath.exists(folder / DOCUMENT))
    found = (folder / WORKSPACE for folder in (path, *above))
    return next((workspace for workspace in found if beneath.exists(workspace / file)), None)


def opened_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a store that is about to be read, here or at an address (``source_path``). Raises
    ``ConfigError``, and ``StorageError`` for an address with nothing to read."""
    found = source_path(path)
    if not isinstance(found, RemotePath):
        return found
    if not beneath.exists(found):
        raise StorageError(
            f"there is no store at {found}",
            expected="zarr.json below this path",
            hint=_hint_without_document(found),
        )
    try:
        workspace = _workspace_of(found, "lock")  # no server has to answer for a folder
    except StorageError:
        # A server that shows no hidden files, but those that readers need; a bucket that may be read and not
        # listed, which denies what is absent, or of which only this prefix may be read.
        workspace = None
    if workspace is not None:
        raise StorageError(
            f"the store at {found} is still being written, or was left unfinished",
            expected="a finished store: no other is read at an address",
            got=f"{workspace.name} in it",
            hint="Open it where it is written, or by `sw.follow` at the rig's page",
        )
    return found


def open_store(path: str | os.PathLike[str]) -> Store:
    """Opens an OME-Zarr group, a bare array, or the array that one shard file belongs to; by its path, or by
    its address at s3:// or http(s)://, or in a zip file. Raises ``ShardFormatError`` or ``StorageError``,
    ``ConfigError``."""
    found = opened_path(path)
    path = found if isinstance(found, RemotePath) else locate(found)
    if beneath.is_dir(path) or is_older_node(path):
        return _open_folder(path)
    if not beneath.exists(path):
        raise StorageError(f"no such file or folder: {path}")
    if path.name == DOCUMENT:
        return _open_folder(path.parent)
    check_no_tiff(path)
    return _open_shard(path)


def check_no_tiff(path: Path) -> None:
    """Raises ``ShardFormatError`` for a name as of a TIFF file, which microscopists have many of."""
    if path.suffix.lower() in (".tif", ".tiff"):
        raise ShardFormatError(
            f"{path} is no store",
            expected="a folder with zarr.json, such as a.ome.zarr",
            got="the name of a TIFF file",
            hint='Make a store of its pixels: stack = tifffile.imread(FILE); with sw.create("a.ome.zarr", '
            'shape=stack.shape, dtype=stack.dtype, axes="tyx") as writer: writer.append_many(stack)',
        )


def _open_folder(folder: Path, *, is_image: bool = False) -> Store:
    """``is_image``: of a collection. It is none itself: one that names itself would have no end, and a few
    folders in each other, each named twice, nearly none."""
    document = read_metadata(folder)
    if document["node_type"] == "array":
        return Store(folder, None, (parse_array(folder, document),))
    attributes = document.get("attributes", {})
    if (images := _image_folders(folder, attributes)) is not None:
        if is_image:
            raise ShardFormatError(f"{folder} is a collection, named as an image of one", expected="an image")
        return _open_collection(folder, attributes, images)
    arrays, broken = [], {}
    names = list(dict.fromkeys(dataset_paths(attributes)))
    if len(names) > MAX_DATASETS:
        raise ShardFormatError(
            f"the group {folder} names too many datasets", expected=f"at most {MAX_DATASETS}", got=len(names)
        )
    seen: set[Path] = set()  # one folder may have two names, "0" and "./0": it is one array
    for name in names:
        try:
            array = parse_array(inside(folder, name))
            if array.path not in seen:
                arrays.append(array)
            seen.add(array.path)
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
            store = _open_folder(image, is_image=True)
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
    if not isinstance(ome, dict) or not is_collection(ome):
        return None

    def ome_of(path: str) -> Any:
        return read_metadata(inside(folder, path))["attributes"]["ome"]

    try:
        # one more than is allowed, of however many: a well that is named often has its fields each time
        named = islice(image_names(ome, ome_of), MAX_IMAGES + 1)
        fields = [functools.reduce(inside, names, folder) for names in named]
    except (KeyError, TypeError):
        raise ShardFormatError(f"the collection {folder} does not name its images") from None
    if len(fields) > MAX_IMAGES:
        raise ShardFormatError(
            f"the group {folder} names too many images", expected=f"at most {MAX_IMAGES}", got="more"
        )
    return fields


def groups_above(folder: Path) -> Iterator[Path]:
    """Yields the folders of the groups in which a node lies, the nearest first. Raises ``StorageError``."""
    return takewhile(lambda above: beneath.is_file(above / DOCUMENT), folder.parents)


def _open_shard(path: Path) -> Store:
    for folder in path.parents:
        if beneath.is_file(folder / DOCUMENT) or is_older_node(folder):
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


def dataset_paths(attributes: Any) -> list[str]:
    """Returns the paths of the arrays of an image, the largest first; none of other metadata."""
    try:
        return [
            str(dataset["path"])
            for scale in attributes["ome"]["multiscales"]
            for dataset in scale["datasets"]
        ]
    except (KeyError, TypeError):
        return []


def position_below(
    root: Path, folder: str, scene_of: Callable[[str], Scene], multiscale: Mapping[str, Any]
) -> dict[str, float]:
    """Returns the position of the image in a folder below ``root``, as ``position_above``.
    ``scene_of(path)``: that of a group in ``root``, "" of its own."""
    for group in reversed(["", *folders_to(folder)[:-1]]) if folder else ():

        def in_group(name: str, group: str = group) -> Scene:
            return scene_of(key_in(group, name) if name else group)

        below = folder.removeprefix(group).removeprefix("/")
        if (place := _position(in_group, below, multiscale)) is not None:
            return place
    return position_above(root, multiscale, folder)


def position_above(root: Path, multiscale: Mapping[str, Any], folder: str = "") -> dict[str, float]:
    """Returns the position, by axis, of the image in a folder of ``root`` by the scene of the nearest
    collection above that, if it names the image, or the image in whose folder it lies, as labels do; empty
    where none does. ``multiscale``: of the image. Raises ``ShardFormatError``, ``StorageError``."""
    # An address may be all that a server shows; and what is before 0.6 may lie below anything.
    is_remote, has_place = isinstance(root, RemotePath), is_placed_above(multiscale)
    if is_remote and not has_place:
        return {}
    hidden = (StorageError,) if is_remote else () if has_place else (StorageError, ShardFormatError)
    with suppress(*hidden):
        for group in groups_above(root):
            below = "/".join(filter(None, (root.relative_to(group).as_posix(), folder)))

            def in_group(name: str, group: Path = group) -> Scene:
                return Scene(ome_in(read_metadata(inside(group, name), foreign=True)))

            if (place := _position(in_group, below, multiscale)) is not None:
                return place
    return {}


def _position(
    scene_of: Callable[[str], Scene], folder: str, multiscale: Mapping[str, Any]
) -> dict[str, float] | None:
    """Returns the position of a folder by the scene of one group, None where that is no collection and does
    not name it. ``scene_of``: a folder below the group, "" for its own."""
    above = scene_of("")
    for image in reversed(folders_to(folder)):
        if (place := above.position_of(image)) is None:
            continue
        if is_placed_above(multiscale):
            return place
        # Labels of an older version are placed as their image is; an image that an upgrade has yet to change
        # has its position itself.
        scales = scene_of(image).ome.get("multiscales") if image != folder else None
        return place if isinstance(scales, list) and scales and is_placed_above(scales[0]) else {}
    return {} if is_collection(above.ome) else None


def is_between_versions(store: Path) -> bool:
    """Returns whether an upgrade of a store to another version of OME-Zarr is at work or was interrupted.
    Raises ``StorageError``."""
    with suppress(LinkError):  # no upgrade begins where a part of a store lies elsewhere
        return beneath.exists(store / WORK_FOLDER / UPGRADE_RECORD)
    return False


def inside(folder: P, name: str) -> P:
    """Returns the folder of a dataset named by metadata. Raises ``ShardFormatError`` for a name that leads
    out of the group, or that no folder can have."""
    if not can_be_path(name):
        raise ShardFormatError("dataset path that no file system takes", got=repr(name)[:160])
    if name.startswith("/") or ".." in Path(name).parts:
        raise ShardFormatError("dataset path leads out of the group", got=repr(name))
    return folder / name


def read_metadata(folder: Path, *, foreign: bool = False) -> dict[str, Any]:
    """Reads zarr.json of an array or a group, or makes one of older metadata. ``foreign``: only to be copied
    or compared, so it need not be a layout that we know.

    Raises ``ShardFormatError`` naming the file and the field, or ``StorageError``.
    """
    path = folder / DOCUMENT
    with storage_errors("read", path):
        try:
            text = read_regular(path, MAX_METADATA_BYTES)
        except FileNotFoundError:
            if (document := older_document(folder)) is not None:
                return document
            hint = _hint_without_document(folder)
            raise ShardFormatError(f"no zarr.json in {folder}", hint=hint) from None
    return decode_document(text, path, foreign=foreign)


def _hint_without_document(folder: Path) -> str:
    if isinstance(folder, RemotePath):
        return folder.hint_without_document
    if beneath.is_dir(folder / WORK_FOLDER):
        return (
            "A move has deleted it: the same `shardwright compact STORE --to DEST --move` ends one that was "
            "interrupted, `shardwright recover` removes files of jobs that are left alone"
        )
    return "Give the path of a Zarr store, array or shard"


def read_nodes(root: Path) -> dict[str, dict[str, Any]]:
    """Reads zarr.json of every group and array below a group, by path, of known layout or not. Raises
    ``ShardFormatError``, ``StorageError``."""
    found: dict[str, dict[str, Any]] = {}
    folders = [root]
    while folders:
        folder = folders.pop()
        with storage_errors("look into", folder):
            folders_in = filter(beneath.is_dir, beneath.paths_in(folder))
            below = sorted(path for path in folders_in if beneath.exists(path / DOCUMENT))
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
    file = _older_facts(document).get("file", folder / DOCUMENT)
    try:
        with NamingFile(file):
            return _parse(folder, document)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ShardFormatError(f"{file} lacks a field or has one of the wrong type: {error!r}") from None


def _older_facts(document: dict[str, Any]) -> dict[str, Any]:
    """Returns what ``foreign`` tells of an array of an older spelling, nothing for one of Zarr v3."""
    encoding = document.get("chunk_key_encoding")
    if isinstance(encoding, dict) and encoding.get("name") == OLDER_KEYS:
        facts: dict[str, Any] = encoding["configuration"]
        return facts
    return {}


def _parse(folder: Path, document: dict[str, Any]) -> StoredArray:
    shape = tuple(sizes("shape", document["shape"], least=0))
    chain = array_chain(document)
    shard_shape = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
    names = document.get("dimension_names")
    if names is not None and (not isinstance(names, list) or len(names) != len(shape)):
        raise ShardFormatError(
            "dimension_names do not match the shape", expected=f"{len(shape)} names", got=repr(names)[:160]
        )
    if not all(name is None or isinstance(name, str) for name in names or ()):
        raise ShardFormatError(
            "dimension_names are not names", expected="text or null for each", got=repr(names)[:160]
        )
    keys = ChunkKeys.of(document["chunk_key_encoding"], len(shape))
    sharding = chain.sharding if len(chain.codecs) == 1 else None
    inner = chain if sharding is None else sharding.codecs
    chunk_shape = shard_shape if sharding is None else sharding.chunk_shape
    _check_counts(shard_shape, chunk_shape)  # before zarr-python makes an array of them
    codecs = chunk_codecs(inner, chunk_shape, document["data_type"], document["fill_value"])
    if isinstance(codecs, ZarrChunks):
        dtype = codecs.dtype
    else:
        dtype = np.dtype(document["data_type"]).newbyteorder("<")
        fill_element(document["fill_value"], dtype)
    array = StoredArray(
        path=folder,
        shape=shape,
        shard_shape=shard_shape,
        chunk_shape=chunk_shape,
        dtype=dtype,
        fill_value=document["fill_value"],
        codecs=codecs,
        chain=inner,
        index_location="none" if sharding is None else sharding.index_location,
        index_codec=LITTLE_ENDIAN_CRC32C if sharding is None else index_codec(sharding),
        keys=keys,
        dimension_names=None if names is None else tuple(names),
        spelling=_older_facts(document).get("spelling"),
        container=str(creator_facts(document)[CONTAINER])[:80]
        if sharding is not None and CONTAINER in creator_facts(document)
        else None,
        described={name: document[name] for name in DESCRIBED if name in document},
    )
    if array.chunk_bytes > MAX_CHUNK_BYTES:
        raise ShardFormatError(
            "inner chunk too large", expected=f"at most {MAX_CHUNK_BYTES} bytes", got=array.chunk_bytes
        )
    return array


def _check_counts(shard_shape: Sequence[int], chunk_shape: Sequence[int]) -> None:
    """Raises ``ShardFormatError`` for a chunk or an index that is too long whatever the data type."""
    for what, most, count in (
        ("inner chunk too large: elements", MAX_CHUNK_BYTES, math.prod(chunk_shape)),
        (
            "too many inner chunks in a shard",
            MAX_CHUNKS_PER_SHARD,
            math.prod(s // c for s, c in zip(shard_shape, chunk_shape, strict=True)),
        ),
    ):
        if count > most:
            raise ShardFormatError(what, expected=f"at most {most}", got=count)


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
