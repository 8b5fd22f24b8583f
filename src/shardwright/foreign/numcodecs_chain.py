"""The codec chain of chunks that were encoded by filters and a compressor of numcodecs.

    values in order C or F -> filters -> compressor            Zarr v2 and its like
    transpose -> array codecs -> bytes -> bytes codecs         Zarr v3

The bytes are the same. Codecs that Zarr v3 has itself get its names, all others those under which zarr-python
has numcodecs' own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError

from .numpy_types import numpy_type
from .older_array import not_supported

if TYPE_CHECKING:
    from .numpy_types import NumpyType

Json = dict[str, Any]
_CHECKSUM = {"location"}
# the fields of each codec; of those of values, all but ``astype`` are needed
_ARRAY_CODECS = {
    "delta": {"dtype", "astype"},
    "fixedscaleoffset": {"offset", "scale", "dtype", "astype"},
    "quantize": {"digits", "dtype", "astype"},
    "bitround": {"keepbits"},
    "packbits": set[str](),
    "astype": {"encode_dtype", "decode_dtype"},
}
_TEXT = "vlen-utf8"
_BYTES_CODECS = {
    "blosc": {"cname", "clevel", "shuffle", "blocksize", "typesize"},
    "gzip": {"level"},
    "zstd": {"level", "checksum"},
    "zlib": {"level"},
    "bz2": {"level"},
    "lz4": {"acceleration"},
    "lzma": {"format", "check", "preset", "filters"},
    "shuffle": {"elementsize"},
    "crc32": _CHECKSUM,
    "crc32c": _CHECKSUM,
    "adler32": _CHECKSUM,
    "fletcher32": set[str](),
    "jenkins_lookup3": {"initval", "prefix"},
}
_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
_AUTOMATIC = -1  # bits of single bytes, else bytes


def numcodecs_chain(dtype: NumpyType, *, order: Any, rank: int, filters: Any, compressor: Any) -> list[Json]:
    """Returns the chain. ``order``, ``filters``, ``compressor``: as in .zarray. Raises ``ShardFormatError``
    naming the field that is not understood."""
    if order not in ("C", "F"):
        raise not_supported("order", "'C' or 'F'", order)
    if not isinstance(filters, list | None):
        raise not_supported("filters", "a list or null", filters, 160)
    steps = [(f"filters[{number}]", config) for number, config in enumerate(filters or [])]
    if compressor is not None:
        steps.append(("compressor", compressor))
    arrays: list[Json] = []
    if order == "F" and rank > 1:
        arrays.append({"name": "transpose", "configuration": {"order": list(reversed(range(rank)))}})
    if dtype.kind == "O":
        if not steps or _id(*steps.pop(0)) != _TEXT:
            raise ShardFormatError("dtype '|O' not supported", expected=f"the first filter {_TEXT!r}")
        middle: Json = {"name": _TEXT}
    else:
        while steps and _id(*steps[0]) in _ARRAY_CODECS:
            codec, dtype = _array_codec(*steps.pop(0), dtype)
            arrays.append(codec)
        middle = {"name": "bytes", **({"configuration": {"endian": dtype.endian}} if dtype.endian else {})}
    return [
        *arrays,
        middle,
        *(_bytes_codec(json_path, config, dtype.itemsize) for json_path, config in steps),
    ]


def _id(json_path: str, config: Any) -> str:
    if not isinstance(config, dict) or not isinstance(config.get("id"), str):
        raise ShardFormatError(
            f"{json_path} lacks a field or has one of the wrong type",
            expected='{"id": ..., ...}',
            got=repr(config)[:160],
        )
    name: str = config["id"]
    if name not in _ARRAY_CODECS and name not in _BYTES_CODECS and name != _TEXT:
        raise ShardFormatError(
            f"{json_path}: codec not supported",
            expected=", ".join(sorted({*_ARRAY_CODECS, *_BYTES_CODECS})),
            got=repr(name)[:80],
        )
    return name


def _settings(json_path: str, config: Json, known: set[str]) -> Json:
    unknown = config.keys() - known - {"id"}
    if unknown:
        raise ShardFormatError(
            f"{json_path}.{min(unknown)} of {config['id']!r} is not understood",
            expected=", ".join(sorted(known)) or "none",
        )
    return {key: value for key, value in config.items() if key != "id"}


def _array_codec(json_path: str, config: Json, dtype: NumpyType) -> tuple[Json, NumpyType]:
    """Returns the codec, and the type of what it makes of values of ``dtype``."""
    name = config["id"]
    settings = _settings(json_path, config, _ARRAY_CODECS[name])
    if missing := _ARRAY_CODECS[name] - settings.keys() - {"astype"}:
        raise ShardFormatError(f"{json_path}.{min(missing)} of {name!r} is missing")
    _check_types(json_path, settings, dtype)
    made = dtype
    if name == "packbits":
        made = numpy_type(json_path, "|u1")
    elif name == "quantize":  # zarr-python takes the encoded values for those of the array's type
        if settings.get("astype", settings.get("dtype")) != settings.get("dtype"):
            expected = repr(settings.get("dtype"))
            raise not_supported(f"{json_path}.astype of 'quantize'", expected, settings["astype"])
    else:
        field = "encode_dtype" if name == "astype" else "astype"
        if settings.get(field) is not None:
            made = numpy_type(f"{json_path}.{field}", settings[field])
    return {"name": f"numcodecs.{name}", "configuration": settings}, made


def _check_types(json_path: str, settings: Json, dtype: NumpyType) -> None:
    """Raises ``ShardFormatError`` unless the types of a codec have the byte order of ``dtype``. With another
    one the bytes were encoded as if they were other values, and zarr-python would take them so."""
    for field in ("dtype", "astype", "encode_dtype", "decode_dtype"):
        if settings.get(field) is None:
            continue
        endian = numpy_type(f"{json_path}.{field}", settings[field]).endian
        if None not in (endian, dtype.endian) and endian != dtype.endian:
            expected = f"{dtype.endian}-endian, as the array"
            raise not_supported(f"{json_path}.{field}", expected, settings[field])


def _bytes_codec(json_path: str, config: Any, itemsize: int) -> Json:
    name = _id(json_path, config)
    if name not in _BYTES_CODECS:
        raise ShardFormatError(
            f"{json_path}: codec {name!r} is in the wrong place",
            expected="codecs of values before those of bytes",
        )
    settings = _settings(json_path, config, _BYTES_CODECS[name])
    if name == "blosc":
        return {"name": "blosc", "configuration": _blosc(json_path, settings, itemsize)}
    if name == "zstd":
        return {"name": "zstd", "configuration": {"checksum": False, **settings}}
    if name == "gzip":
        return {"name": "gzip", "configuration": settings}
    return {"name": f"numcodecs.{name}", "configuration": settings}


def _blosc(json_path: str, settings: Json, itemsize: int) -> Json:
    shuffle = settings.get("shuffle", 1)
    if shuffle == _AUTOMATIC:
        shuffle = 2 if itemsize == 1 else 1
    if type(shuffle) is not int or shuffle not in _SHUFFLES:
        raise ShardFormatError(
            f"{json_path}.shuffle of 'blosc' is not understood",
            expected="-1, 0, 1 or 2",
            got=repr(shuffle)[:80],
        )
    typesize = itemsize if itemsize <= 255 else 1  # it stands in each chunk: this one is for writers
    return {"blocksize": 0, "typesize": typesize, **settings, "shuffle": _SHUFFLES[shuffle]}
