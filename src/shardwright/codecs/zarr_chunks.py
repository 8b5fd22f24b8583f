"""Chunks of codec chains and data types that our kernels do not know, decoded and encoded by zarr-python with
its registry: each is the only chunk of an array in memory. Also the index of shards, which has a chain of its
own, and which such a chunk may hold in turn: so both stand here.

    index    bytes, little-endian -> [crc32c]: our own codec, else zarr-python's

It is asked through its public interface alone, so that a codec which is registered there, by numcodecs or
another package, is understood here too. Used by several threads, each with an array of its own.
"""

from __future__ import annotations

import json
import math
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.array.codec_chain import (
    ARRAY_ARRAY,
    BYTES_BYTES,
    INDEX_ITEM_BYTES,
    KINDS,
    SHARDING,
    check_order,
    not_fixed_size,
)
from shardwright.model.errors import CodecError, ShardFormatError, ShardwrightError, ValuesChangedError
from shardwright.model.extras import naming_missing_extra
from shardwright.model.forked_child import RenewedLock
from shardwright.model.json_text import parse_json
from shardwright.shard.index import INDEX_ENTRY, LITTLE_ENDIAN, LITTLE_ENDIAN_CRC32C

from .decode import ChunkCodecs
from .decode_bounds import check_bounded

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from shardwright.array.codec_chain import Codec, CodecChain, Kind, ShardingCodec
    from shardwright.shard.index import IndexCodec

    from .zarr_python import OneNode

    Bytes = bytes | bytearray | memoryview

_MOST_TEXT_BYTES = 2**26  # of a chunk whose length its shape does not tell
_SAME_SIZE = ("numcodecs.shuffle",)  # bytes in another order
# by which a changed index does not decode
_CHECKSUMS = {"crc32c", *(f"numcodecs.{name}" for name in ("crc32", "crc32c", "adler32", "fletcher32"))}
_filters = RenewedLock()  # of warnings: they are the process's


class ZarrChunks:
    """Chunks of ``shape`` elements. ``data_type`` and ``fill_value`` as in zarr.json. Raises
    ``ShardFormatError`` for what zarr-python does not know, ``ConfigError`` without zarr-python."""

    def __init__(self, chain: CodecChain, shape: tuple[int, ...], data_type: Any, fill_value: Any) -> None:
        check_kinds(chain)
        self.chain = chain
        self.shape = shape
        self._document = json.dumps(
            {
                "zarr_format": 3,
                "node_type": "array",
                "shape": shape,
                "data_type": data_type,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
                "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},
                "fill_value": fill_value,
                "codecs": _as_zarr_reads(chain.as_json),
            }
        ).encode()
        self._key = ".".join("0" for _ in shape) or "0"
        self._of_thread = threading.local()
        self._index_codecs: dict[int, IndexCodec] = {}  # by any thread; the same from each
        array = self._array()[1]
        self.dtype: np.dtype[Any] = array.dtype
        self.fill_element: npt.NDArray[Any] = np.asarray(array.fill_value, array.dtype)

    @property
    def checksum(self) -> bool:
        """True if a crc32c ends each chunk."""
        return self.chain.names[-1] == "crc32c"

    @property
    def name(self) -> str:
        return " -> ".join(self.chain.names)

    def max_encoded_bytes(self, chunk_bytes: int) -> int:
        """Returns the most memory that one encoded chunk may use."""
        del chunk_bytes  # its shape tells
        return self.most_bytes(self.shape)

    def most_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the same for a chunk of ``shape`` within one."""
        if self.dtype.kind in "OT":  # text
            return _MOST_TEXT_BYTES
        # shards within shards have an index of 16 bytes for each chunk
        return 4096 + (2 * self.dtype.itemsize + 24) * math.prod(shape)

    def index_codec(self, sharding: ShardingCodec) -> IndexCodec:
        """Returns the codec of the index of shards within a chunk."""
        # the chain holds it, so no other object has its id
        if (found := self._index_codecs.get(id(sharding))) is None:
            found = self._index_codecs[id(sharding)] = index_codec(sharding)
        return found

    def decode(self, data: Bytes) -> npt.NDArray[Any]:
        """Returns the values of a chunk. Raises ``ShardFormatError``."""
        encoded = bytes(data)
        with _raising(ShardFormatError, "zarr-python cannot decode the chunk"):
            check_bounded(encoded, self.chain, self.shape, self)
            store, array = self._array()
            store.put(self._key, encoded)
            try:
                return np.asarray(array[...]).reshape(self.shape)
            finally:
                store.take(self._key)

    def encode(self, values: npt.NDArray[Any], *, lossy: bool) -> bytes | None:
        """Returns a chunk of these values, None if all of them are fill, bit by bit. Raises
        ``ValuesChangedError`` when readers would not get these values back, bit by bit, and ``CodecError``.
        ``lossy``: they may get others, if those are encoded without a further loss.

        Each chunk is decoded again: a codec may be wrong (numcodecs' delta before big-endian bytes gives 256
        for 1, and no error), or round, and nothing in its metadata says so."""
        data = self._encoded(values)
        found = self._found(data)
        if lossy and not _same(found, values):  # rounded values stay as they are, wrong ones do not
            data = self._encoded(found)
            values, found = found, self._found(data)
        if not _same(found, values, bits=not lossy):
            raise self._not_reversed(found, values, lossy=lossy)
        return data

    def _encoded(self, values: npt.NDArray[Any]) -> bytes | None:
        if _same(values, np.broadcast_to(self.fill_element, self.shape), bits=True):
            return None
        store, array = self._array()
        with _raising(CodecError, "zarr-python cannot encode a chunk"):
            array[...] = values
        return store.take(self._key)

    def _found(self, data: bytes | None) -> npt.NDArray[Any]:
        """Returns what readers find in a chunk."""
        if data is None:
            return np.broadcast_to(self.fill_element, self.shape)
        try:
            return self.decode(data)
        except ShardFormatError as error:
            raise ValuesChangedError(
                f"{self.name} makes a chunk that cannot be read: {error.message}"
            ) from None

    def _not_reversed(
        self, found: npt.NDArray[Any], values: npt.NDArray[Any], *, lossy: bool
    ) -> ValuesChangedError:
        index = tuple(int(i) for i in np.argwhere(~_equal(found, values, bits=not lossy))[0])
        return ValuesChangedError(
            f"codecs {self.name} do not give back the values of a chunk",
            expected=f"{values[index]!r} at {list(index)} of the chunk",
            got=repr(found[index]),
            hint="Choose other codecs: these change values whenever they encode them"
            if lossy
            else "Choose other codecs; if these round, `shardwright rechunk --lossy` takes them",
        )

    def _array(self) -> tuple[OneNode, Any]:
        """Returns this thread's array, and the store that it is in."""
        try:
            found: tuple[OneNode, Any] = self._of_thread.array
        except AttributeError:
            found = self._of_thread.array = self._opened()
        return found

    def _opened(self) -> tuple[OneNode, Any]:
        with naming_missing_extra("a codec chain or data type that shardwright does not write"):
            from .zarr_python import OneNode, __version__
        node = OneNode(self._document)
        hint = "A package that registers the codec or data type with zarr-python may be missing"
        facts = parse_json(self._document)
        what = (
            f"zarr-python {__version__} does not read data_type {facts['data_type']!r}, fill_value "
            f"{facts['fill_value']!r} with codecs {self.chain.names}"
        )
        with _without_warnings(), _raising(ShardFormatError, what, hint=hint):
            # zarr-python takes any NaN for a fill value of NaN, so ``_encoded`` decides which chunks are
            # empty. Within shards zarr-python must, else none is left out: a NaN that it loses is an error.
            return node, node.open(write_empty_chunks=self.chain.sharding is None)


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any], *, bits: bool = False) -> npt.NDArray[np.bool_]:
    """Returns where values are equal, or NaN in both; with ``bits``, where each bit of a number is. Part by
    part: a NaN in one part of a complex number or of a record says nothing of the others."""
    if one.dtype.kind == "c":
        return _equal(one.real, other.real, bits=bits) & _equal(one.imag, other.imag, bits=bits)
    if one.dtype.names is not None:
        fields = [_equal(one[name], other[name], bits=bits) for name in one.dtype.names]
        return np.asarray(np.all([field.reshape(*one.shape, -1).all(-1) for field in fields], axis=0))
    if bits and one.dtype.kind == "f":
        one, other = (values.view(values.dtype.str.replace("f", "u")) for values in (one, other))
    return np.asarray((one == other) | ((one != one) & (other != other)), np.bool_)


def _same(one: npt.NDArray[Any], other: npt.NDArray[Any], *, bits: bool = False) -> bool:
    return bool(_equal(one, other, bits=bits).all())


def check_kinds(chain: CodecChain) -> None:
    """Raises ``ShardFormatError`` for a codec that zarr-python does not know, or one that cannot stand where
    it does; ``ConfigError`` without zarr-python, if only it may know a codec."""
    check_order(chain.codecs, [_kind(codec) for codec in chain.codecs])
    if chain.sharding is not None:
        check_kinds(chain.sharding.codecs)
        check_kinds(chain.sharding.index_codecs)
        fixed_encoded_bytes(chain.sharding.index_codecs, INDEX_ITEM_BYTES)


def fixed_encoded_bytes(chain: CodecChain, nbytes: int, same_size: Container[str] = ()) -> int:
    """Returns the size of an index of ``nbytes`` that a chain encodes. ``same_size``: codecs that do not
    change the size of bytes, although zarr-python does not say so. Raises ``ShardFormatError`` for a codec
    whose size its input does not tell."""
    for codec in chain.codecs:
        if codec.kind == BYTES_BYTES or (codec.kind is None and codec.name not in same_size):
            nbytes = _encoded_bytes(codec, nbytes)
    return nbytes


def _kind(codec: Codec) -> Kind:
    if codec.kind is not None:
        return codec.kind
    with naming_missing_extra(f"the codec {codec.name!r}"):
        from .zarr_python import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec
    bases = zip(KINDS, (ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec), strict=True)
    return next(kind for kind, base in bases if issubclass(_class_of(codec), base))


def _class_of(codec: Codec) -> Any:
    from .zarr_python import get_codec_class

    try:
        with _without_warnings():
            return get_codec_class(codec.name)
    except Exception:  # noqa: BLE001 (each version of zarr-python raises another; a codec's package any)
        raise ShardFormatError(
            f"{codec.json_path}: codec not supported",
            expected="codecs of Zarr v3, or those that are registered with zarr-python",
            got=repr(codec.name)[:80],
            hint="A package that registers it with zarr-python may be missing, or may not load",
        ) from None


def _encoded_bytes(codec: Codec, nbytes: int) -> int:
    kind = _class_of(codec)
    try:
        with _without_warnings(), _raising(ShardFormatError, f"codec {codec.name!r}"):
            made = kind.from_dict(_as_zarr_reads([codec.as_json])[0])
        return int(made.compute_encoded_size(nbytes, None))
    except NotImplementedError:  # of a compressor
        raise not_fixed_size(codec) from None


def _as_zarr_reads(codecs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns codecs as every version of zarr-python reads them: it wants a configuration of some, within
    shards too."""
    found = []
    for codec in codecs:
        settings = dict(codec.get("configuration", {}))
        if codec["name"] == SHARDING:
            settings |= {key: _as_zarr_reads(settings[key]) for key in ("codecs", "index_codecs")}
        found.append({"name": codec["name"], "configuration": settings})
    return found


@contextmanager
def _without_warnings() -> Iterator[None]:
    """A context for what warns of codecs without a specification: that is for who writes them."""
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _raising(kind: type[ShardwrightError], what: str, *, hint: str | None = None) -> Iterator[None]:
    """A context that raises an error of ours for any that zarr-python, or whoever made a codec, raises: they
    have no common class."""
    try:
        yield
    except ShardwrightError:
        raise
    except Exception as error:  # noqa: BLE001
        text = (str(error) or type(error).__name__)[:300]
        raise kind(f"{what}: {text}", hint=hint) from None


def index_codec(sharding: ShardingCodec) -> IndexCodec:
    """Returns the codec of the index of such shards. Raises as ``chunk_codecs``."""
    chain = sharding.index_codecs
    ours = ChunkCodecs.of(chain)
    if ours is not None and ours.compressor is None and not _is_transposed(chain):
        return LITTLE_ENDIAN_CRC32C if ours.checksum else LITTLE_ENDIAN
    return ZarrIndex(ZarrChunks(chain, (*sharding.shard_chunks, 2), "uint64", 0))


def _is_transposed(chain: CodecChain) -> bool:
    return any(codec.kind == ARRAY_ARRAY for codec in chain.codecs)


class ZarrIndex:
    """The codec of an index that zarr-python decodes and encodes. ``has_checksum``: a changed one does not
    decode."""

    def __init__(self, chunks: ZarrChunks) -> None:
        self._chunks = chunks
        self.has_checksum = chunks.chain.names[-1] in _CHECKSUMS
        index_bytes = math.prod(chunks.shape[:-1]) * INDEX_ENTRY.itemsize
        self._encoded_bytes = fixed_encoded_bytes(chunks.chain, index_bytes, _SAME_SIZE)

    def encoded_bytes(self, chunks: int) -> int:
        return self._encoded_bytes

    def encode(self, entries: np.ndarray) -> bytes:
        pairs = np.ascontiguousarray(entries, INDEX_ENTRY).view("<u8").reshape(self._chunks.shape)
        encoded = self._chunks.encode(pairs, lossy=False)
        assert encoded is not None, "no chunk begins at 0 and is empty, which would be its fill value"
        return encoded

    def decode(self, data: bytes, chunks: int) -> np.ndarray:
        try:
            pairs = self._chunks.decode(data)
        except ShardFormatError as error:
            raise ShardFormatError(f"shard index: {error.message}") from None
        return np.ascontiguousarray(pairs, "<u8").reshape(-1).view(INDEX_ENTRY)
