"""The codec chain of a Zarr v3 array, parsed and checked: array-to-array codecs, one array-to-bytes codec,
then bytes-to-bytes codecs (Zarr v3 core, "Codecs"). ``sharding_indexed`` is an array-to-bytes codec with two
chains of its own, for inner chunks and for the index, so shards within shards follow from it (ZEP 2).

Checked here is what the specifications say of the codecs that have a row in ``_CODECS``. A codec without one
may belong to another library: ``codecs.chain`` asks zarr-python for it. Standard library only, so that the
web process may use it too.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from shardwright.model.errors import ShardFormatError

from .fields import check_item_bytes, check_members, extension, sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Kind = Literal["array -> array", "array -> bytes", "bytes -> bytes"]
KINDS: tuple[Kind, ...] = ("array -> array", "array -> bytes", "bytes -> bytes")
ARRAY_ARRAY, ARRAY_BYTES, BYTES_BYTES = KINDS
SHARDING = "sharding_indexed"
INDEX_ITEM_BYTES = 8
MAX_CODECS = 32
MAX_NESTED = 8  # levels of shards within shards
_BYTES_NAMES = ("bytes", "endian")  # the second in ZEP 2's own example
_COMPRESSORS = ("blosc", "gzip", "zstd")
# the setting of a codec of numcodecs that names the data type which it makes, or the setting in its place
_MADE_TYPES = {
    "numcodecs.delta": ("astype", "dtype"),
    "numcodecs.fixedscaleoffset": ("astype", "dtype"),
    "numcodecs.astype": ("encode_dtype",),
}
_NUMPY_TYPE = re.compile(r"[<>|=]?[biufcmM]([0-9]{1,2})")


@dataclass(frozen=True)
class Codec:
    """One codec of a chain. ``kind``: None for a codec that has no row here; ``json_path``: where in
    zarr.json it stands."""

    name: str
    configuration: dict[str, Any]
    kind: Kind | None
    json_path: str

    @property
    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, **({"configuration": self.configuration} if self.configuration else {})}


@dataclass(frozen=True)
class ShardingCodec:
    """The configuration of ``sharding_indexed``. ``chunk_shape``: of inner chunks; ``shard_chunks``: inner
    chunks of a shard along each axis."""

    chunk_shape: tuple[int, ...]
    shard_chunks: tuple[int, ...]
    codecs: CodecChain
    index_codecs: CodecChain
    index_location: Literal["start", "end"]


@dataclass(frozen=True)
class CodecChain:
    """A chain. ``sharding``: what its array-to-bytes codec is, if that is ``sharding_indexed``."""

    codecs: tuple[Codec, ...]
    sharding: ShardingCodec | None

    @property
    def as_json(self) -> list[dict[str, Any]]:
        """The chain as in zarr.json, each codec as an object, ``endian`` by its name of today."""
        return [codec.as_json for codec in self.codecs]

    @property
    def names(self) -> list[str]:
        return [codec.name for codec in self.codecs]


def parse_chain(field: str, codecs: Any, shape: Sequence[int], itemsize: int | None) -> CodecChain:
    """Returns the chain of chunks of ``shape``. ``itemsize``: bytes of one element, None for a data type that
    is not known here. Raises ``ShardFormatError`` naming the codec by ``field`` and its JSON path."""
    return _parse_chain(field, codecs, tuple(shape), itemsize, depth=0)


def _parse_chain(
    field: str, codecs: Any, shape: tuple[int, ...], itemsize: int | None, depth: int
) -> CodecChain:
    if not isinstance(codecs, list) or not codecs:
        raise ShardFormatError(
            f"{field} lacks a field or has one of the wrong type",
            expected="a list of codecs",
            got=repr(codecs)[:80],
        )
    if len(codecs) > MAX_CODECS:
        raise ShardFormatError(f"{field} has too many", expected=f"at most {MAX_CODECS}", got=len(codecs))
    parsed, sharding = [], None
    for number, value in enumerate(codecs):
        json_path = f"{field}[{number}]"
        codec = _codec(json_path, value)
        if codec.name == "transpose":
            order = _order(json_path, codec.configuration.get("order"), len(shape))
            shape = tuple(shape[axis] for axis in order)
        elif codec.name == SHARDING:
            sharding = _sharding(f"{json_path}.configuration", codec.configuration, shape, itemsize, depth)
            codec = replace(codec, configuration=_sharding_json(sharding))
        elif codec.name in _CHECKS:
            _CHECKS[codec.name](json_path, codec.configuration, itemsize)
        elif codec.kind is None:
            check_item_bytes(f"{json_path}.configuration", codec.configuration)
            itemsize = _made_itemsize(codec, itemsize)
        if codec.name in _BYTES_NAMES:
            codec = replace(codec, name="bytes")
        parsed.append(codec)
    check_order(parsed, [codec.kind for codec in parsed])
    return CodecChain(tuple(parsed), sharding)


def _made_itemsize(codec: Codec, itemsize: int | None) -> int | None:
    """Returns the bytes of one element behind a codec of another library: whether ``bytes`` needs an
    ``endian`` follows from what it is given, not from the data type of the array. None where it is not known
    here: zarr-python then judges."""
    if codec.name in ("numcodecs.bitround", "numcodecs.quantize"):
        return itemsize
    if codec.name == "numcodecs.packbits":
        return 1
    names = (codec.configuration.get(key) for key in _MADE_TYPES.get(codec.name, ()))
    named = next((name for name in names if name is not None), None)
    match = _NUMPY_TYPE.fullmatch(named) if isinstance(named, str) else None
    return int(match[1]) if match else None


def check_order(codecs: Sequence[Codec], kinds: Sequence[Kind | None]) -> None:
    """Raises ``ShardFormatError`` unless codecs of these ``kinds`` make a chain, as far as they are known."""
    field = codecs[0].json_path.removesuffix("[0]")
    known = [(codec.name, kind) for codec, kind in zip(codecs, kinds, strict=True) if kind is not None]
    for (before, first), (name, kind) in itertools.pairwise(known):
        if KINDS.index(kind) < KINDS.index(first):
            raise ShardFormatError(
                f"{field}: codecs are in the wrong order",
                expected=", then ".join(KINDS),
                got=f"{before!r} ({first}) before {name!r} ({kind})",
            )
    middle = [name for name, kind in known if kind == ARRAY_BYTES]
    if len(middle) > 1 or (not middle and len(known) == len(codecs)):
        raise ShardFormatError(
            f"{field} must have exactly one array -> bytes codec",
            expected="one, such as 'bytes'",
            got=repr(middle or [codec.name for codec in codecs])[:160],
        )


def _codec(json_path: str, value: Any) -> Codec:
    named = {"name": value} if isinstance(value, str) else value
    name, configuration = extension(json_path, named)
    kind, settings = _CODECS.get(name, (None, None))
    check_members(json_path, named, settings)
    return Codec(name, configuration, kind, json_path)


def _sharding(
    json_path: str, configuration: dict[str, Any], shape: tuple[int, ...], itemsize: int | None, depth: int
) -> ShardingCodec:
    if depth == MAX_NESTED:
        raise ShardFormatError(
            f"{json_path}: shards are nested too deep", expected=f"at most {MAX_NESTED} levels"
        )
    chunk = sizes(f"{json_path}.chunk_shape", configuration.get("chunk_shape"), rank=len(shape))
    if any(s % c for s, c in zip(shape, chunk, strict=True)):
        raise ShardFormatError(
            f"{json_path}.chunk_shape: inner chunks do not divide the shard",
            expected=f"divisors of {shape}",
            got=tuple(chunk),
        )
    counts = tuple(s // c for s, c in zip(shape, chunk, strict=True))
    location = configuration.get("index_location", "end")
    if location not in ("start", "end"):
        raise ShardFormatError(
            f"{json_path}.index_location not supported", expected="'start' or 'end'", got=repr(location)[:80]
        )
    inner = _parse_chain(
        f"{json_path}.codecs", configuration.get("codecs"), tuple(chunk), itemsize, depth + 1
    )
    field = f"{json_path}.index_codecs"
    index = _parse_chain(field, configuration.get("index_codecs"), (*counts, 2), INDEX_ITEM_BYTES, depth + 1)
    for codec in index.codecs:
        if codec.name in _COMPRESSORS or codec.name == SHARDING:
            raise not_fixed_size(codec)
    return ShardingCodec(tuple(chunk), counts, inner, index, location)


def not_fixed_size(codec: Codec) -> ShardFormatError:
    """Returns the error for a codec that may not encode an index (ZEP 2, "index_codecs")."""
    return ShardFormatError(
        f"{codec.json_path}: {codec.name!r} does not make an index of a fixed size",
        expected="codecs of a fixed size, such as 'bytes' and 'crc32c'",
    )


def _sharding_json(sharding: ShardingCodec) -> dict[str, Any]:
    return {
        "chunk_shape": list(sharding.chunk_shape),
        "codecs": sharding.codecs.as_json,
        "index_codecs": sharding.index_codecs.as_json,
        "index_location": sharding.index_location,
    }


def _order(json_path: str, order: Any, rank: int) -> list[int]:
    if (
        not isinstance(order, list)
        or not all(type(axis) is int for axis in order)
        or sorted(order) != list(range(rank))
    ):
        raise ShardFormatError(
            f"{json_path}.configuration.order of 'transpose' is no order of the axes",
            expected=f"the numbers 0 to {rank - 1}, each once",
            got=repr(order)[:160],
        )
    return order


def _check_bytes(json_path: str, configuration: dict[str, Any], itemsize: int | None) -> None:
    endian = configuration.get("endian")
    if endian not in ("little", "big") and not (endian is None and itemsize in (1, None)):
        raise ShardFormatError(
            f"{json_path}.configuration.endian: byte order not supported",
            expected="'little' or 'big'",
            got=repr(endian)[:80],
        )


def _check_values(
    name: str, wanted: dict[str, tuple[str, Callable[[Any], bool]]], needed: Iterable[str]
) -> Any:
    """Returns the check of a codec whose settings need each other not."""

    def check(json_path: str, configuration: dict[str, Any], itemsize: int | None) -> None:
        for key in needed:
            if key not in configuration:
                raise ShardFormatError(f"{json_path}.configuration.{key} of {name!r} is missing")
        for key, value in configuration.items():
            expected, is_right = wanted[key]
            if not is_right(value):
                raise ShardFormatError(
                    f"{json_path}.configuration.{key} of {name!r} is not understood",
                    expected=expected,
                    got=repr(value)[:80],
                )

    return check


def _whole(low: int, high: int) -> tuple[str, Callable[[Any], bool]]:
    return f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high


def _one_of(*values: str) -> tuple[str, Callable[[Any], bool]]:
    return " or ".join(map(repr, values)), lambda value: isinstance(value, str) and value in values


_BLOSC = {
    "cname": _one_of("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"),
    "clevel": _whole(0, 9),
    "shuffle": _one_of("noshuffle", "shuffle", "bitshuffle"),
    "typesize": _whole(1, 255),
    "blocksize": _whole(0, 2**31 - 1),
}
_ZSTD = {
    "level": _whole(-(2**17), 22),
    "checksum": ("true or false", lambda value: isinstance(value, bool)),
}
_GZIP = {"level": _whole(0, 9)}


def _check_blosc(json_path: str, configuration: dict[str, Any], itemsize: int | None) -> None:
    shuffles = configuration.get("shuffle", "noshuffle") != "noshuffle"
    needed = ("cname", "clevel", *(("typesize",) if shuffles else ()))
    _check_values("blosc", _BLOSC, needed)(json_path, configuration, itemsize)


_CODECS: dict[str, tuple[Kind, set[str]]] = {
    "transpose": (ARRAY_ARRAY, {"order"}),
    "bytes": (ARRAY_BYTES, {"endian"}),
    "endian": (ARRAY_BYTES, {"endian"}),
    "vlen-utf8": (ARRAY_BYTES, set()),
    SHARDING: (ARRAY_BYTES, {"chunk_shape", "codecs", "index_codecs", "index_location"}),
    "blosc": (BYTES_BYTES, set(_BLOSC)),
    "zstd": (BYTES_BYTES, set(_ZSTD)),
    "gzip": (BYTES_BYTES, set(_GZIP)),
    "crc32c": (BYTES_BYTES, set()),
}
_CHECKS: dict[str, Callable[[str, dict[str, Any], int | None], None]] = {
    "bytes": _check_bytes,
    "endian": _check_bytes,
    "blosc": _check_blosc,
    "zstd": _check_values("zstd", _ZSTD, ()),
    "gzip": _check_values("gzip", _GZIP, ("level",)),
}
