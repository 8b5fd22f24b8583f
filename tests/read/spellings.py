"""The matrix of spellings: arrays that Zarr v3 and ZEP 2 allow, written by three peers, and changes of
zarr.json that they forbid."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorstore
import zarr

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Json = dict[str, Any]
SHAPE, SHARD, CHUNK = (5, 7, 6), (4, 4, 8), (2, 4, 4)

LITTLE: Json = {"name": "bytes", "configuration": {"endian": "little"}}
BIG: Json = {"name": "bytes", "configuration": {"endian": "big"}}
# zarr-python 3.1 takes what delta makes for values of the array's byte order: behind BIG, 256 for 1
GIVES_DELTA_BACK = tuple(map(int, zarr.__version__.split(".")[:2])) >= (3, 4)
CRC: Json = {"name": "crc32c"}
GZIP: Json = {"name": "gzip", "configuration": {"level": 1}}
ZSTD: Json = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}


def blosc(cname: str = "lz4", shuffle: str = "shuffle", clevel: int = 1) -> Json:
    facts = {"cname": cname, "clevel": clevel, "shuffle": shuffle, "typesize": 2, "blocksize": 0}
    return {"name": "blosc", "configuration": facts}


def numcodec(name: str, **configuration: Any) -> Json:
    return {"name": f"numcodecs.{name}", "configuration": configuration}


def transpose(*order: int) -> Json:
    return {"name": "transpose", "configuration": {"order": list(order)}}


def sharded(
    codecs: list[Any], *, index: list[Any] | None = None, place: str | None = "end", chunk: Any = CHUNK
) -> Json:
    facts = {"chunk_shape": list(chunk), "codecs": codecs, "index_codecs": index or [LITTLE, CRC]}
    if place is not None:
        facts["index_location"] = place
    return {"name": "sharding_indexed", "configuration": facts}


@dataclass(frozen=True)
class Spelling:
    """A legal array. ``respelled``: a change of zarr.json after it was written, for spellings that the writer
    reads but does not write. ``writer``: zarr, zarrs or tensorstore."""

    codecs: list[Any]
    data_type: Any = "uint16"
    fill_value: Any = 0
    shape: tuple[int, ...] = SHAPE
    grid: tuple[int, ...] = SHARD
    encoding: Json = field(default_factory=lambda: {"name": "default", "configuration": {"separator": "/"}})
    respelled: Callable[[Json], Any] | None = None
    writer: str = "zarr"

    def document(self) -> Json:
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.grid)}},
            "chunk_key_encoding": self.encoding,
            "fill_value": self.fill_value,
            "codecs": deepcopy(self.codecs),
            "attributes": {},
        }

    def write(self, path: Path) -> np.ndarray:
        """Writes the array; returns its values as its writer reads them."""
        path.mkdir(parents=True)
        document = self.document()
        (path / "zarr.json").write_text(json.dumps(document))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of codecs without a specification, and of shards within others
            if self.writer == "tensorstore":
                store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
                array = tensorstore.open(store).result()
                array.write(pixels(self.shape, array.dtype.numpy_dtype)).result()
                values = array.read().result()
            else:
                pipeline = {"zarrs": "zarrs.ZarrsCodecPipeline"}.get(self.writer)
                with zarr.config.set({"codec_pipeline.path": pipeline} if pipeline else {}):
                    made = zarr.open_array(path, mode="r+")
                    made[...] = pixels(self.shape, made.dtype)
                    values = zarr.open_array(path, mode="r")[...]
        if self.respelled is not None:
            self.respelled(document)
            (path / "zarr.json").write_text(json.dumps(document))
        return np.asarray(values)


def pixels(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Returns values of which the last chunks are fill: they are absent."""
    values = np.asarray(np.random.default_rng(4).poisson(30, shape))
    if len(shape) > 1 and shape[0]:
        values[-1] = 0
    if dtype.kind in "OTU":
        return np.where(values, values.astype("U21"), "").astype(dtype)
    if dtype.kind == "S":
        return values.astype("S21").astype(dtype)
    if dtype.kind == "V":
        return values.astype(f"<u{dtype.itemsize}").view(dtype)
    return values.astype(dtype)


def shards(codecs: list[Any], **facts: Any) -> Spelling:
    return Spelling([sharded(codecs, **facts)])


def _name_endian(document: Json) -> None:
    facts = document["codecs"][0]["configuration"]
    facts["codecs"][0]["name"] = facts["index_codecs"][0]["name"] = "endian"


def _bare_names(document: Json) -> None:
    document["codecs"][0]["configuration"]["index_codecs"][1] = "crc32c"


def _typed(data_type: Any, fill_value: Any, codec: Json = LITTLE) -> Spelling:
    return replace(shards([codec]), data_type=data_type, fill_value=fill_value)


LEGAL: dict[str, Spelling] = {
    "plain": shards([LITTLE]),
    "crc": shards([LITTLE, CRC]),
    "default place": shards([LITTLE], place=None),
    **{
        f"blosc {cname} {shuffle}": shards([LITTLE, blosc(cname, shuffle)])
        for cname in ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    },
    "zstd": shards([LITTLE, ZSTD]),
    "zstd checksum": shards([LITTLE, {"name": "zstd", "configuration": {"level": 3, "checksum": True}}]),
    "gzip crc": shards([LITTLE, GZIP, CRC]),
    "crc before gzip": shards([LITTLE, CRC, GZIP]),
    "two crcs": shards([LITTLE, CRC, CRC]),
    "two compressors": shards([LITTLE, GZIP, ZSTD]),
    "big": shards([BIG]),
    "big blosc": shards([BIG, blosc()]),
    "transpose": shards([transpose(2, 0, 1), LITTLE]),
    "transpose blosc crc": shards([transpose(0, 2, 1), LITTLE, blosc(), CRC]),
    "transpose big": shards([transpose(2, 1, 0), BIG, ZSTD]),
    "two transposes": shards([transpose(2, 0, 1), transpose(0, 2, 1), LITTLE]),
    "transpose outside": Spelling([transpose(0, 2, 1), sharded([LITTLE], chunk=(2, 4, 4))]),
    "gzip outside": Spelling([sharded([LITTLE]), GZIP]),
    "crc outside": Spelling([sharded([LITTLE, ZSTD]), CRC]),
    "nested": shards([sharded([LITTLE, GZIP], chunk=(1, 2, 2))]),
    "nested start end": shards([sharded([LITTLE], chunk=(2, 2, 4), place="end")], place="start"),
    "nested thrice": shards([sharded([sharded([BIG], chunk=(1, 1, 2))], chunk=(1, 2, 4), place="start")]),
    "nested transposed": shards([transpose(1, 0, 2), sharded([LITTLE, CRC], chunk=(2, 2, 4))]),
    "unsharded": Spelling([LITTLE, ZSTD]),
    "unsharded big": Spelling([BIG]),
    "unsharded transpose": Spelling([transpose(1, 2, 0), LITTLE, blosc()]),
    "unsharded crc first": Spelling([LITTLE, CRC, GZIP]),
    "numcodecs zlib": shards([LITTLE, numcodec("zlib", level=1)]),
    "numcodecs bz2": shards([LITTLE, numcodec("bz2", level=1)]),
    "numcodecs lzma": shards([LITTLE, numcodec("lzma")]),
    "numcodecs lz4": shards([LITTLE, numcodec("lz4", acceleration=1)]),
    "numcodecs shuffle": shards([LITTLE, numcodec("shuffle", elementsize=2), GZIP]),
    "numcodecs delta": shards([numcodec("delta", dtype="<u2", astype="<u2"), LITTLE, ZSTD]),
    **{
        f"single bytes behind {codec['name'].removeprefix('numcodecs.')} of {data_type}{where}": replace(
            shards([codec, {"name": "bytes"}, *rest])
            if where
            else Spelling([codec, {"name": "bytes"}, *rest]),
            data_type=data_type,
            fill_value=False if data_type == "bool" else 0,
        )
        for codec, data_type in (
            (numcodec("fixedscaleoffset", offset=-2, scale=2, dtype="<f4", astype="|u1"), "float32"),
            (numcodec("fixedscaleoffset", offset=0, scale=1, dtype="<u2", astype="|u1"), "uint16"),
            (numcodec("astype", encode_dtype="|u1", decode_dtype="<i8"), "int64"),
            (numcodec("packbits"), "bool"),
        )
        for where, rest in (("", [ZSTD]), (" in shards", [CRC]))
    },
    "numcodecs fletcher32": shards([LITTLE, numcodec("fletcher32")]),
    "numcodecs unsharded": Spelling([numcodec("delta", dtype="<u2"), LITTLE, numcodec("zlib", level=1)]),
    "index start": shards([LITTLE, blosc()], place="start"),
    "index plain": shards([LITTLE], index=[LITTLE]),
    "index plain start": shards([LITTLE, ZSTD], index=[LITTLE], place="start"),
    "index big": shards([LITTLE], index=[BIG]),
    "index big crc": shards([LITTLE, GZIP], index=[BIG, CRC], place="start"),
    "index transposed": shards([LITTLE], index=[transpose(3, 0, 1, 2), LITTLE, CRC]),
    "index two crcs": shards([LITTLE], index=[LITTLE, CRC, CRC]),
    "index adler32": shards([LITTLE], index=[LITTLE, numcodec("adler32")]),
    "index crc32": shards([LITTLE, CRC], index=[LITTLE, numcodec("crc32")], place="start"),
    "index fletcher32": shards([LITTLE], index=[BIG, numcodec("fletcher32")]),
    "endian": replace(shards([LITTLE, GZIP]), respelled=_name_endian),
    "bare names": replace(shards([LITTLE]), respelled=_bare_names),
    "no dimension names": replace(shards([LITTLE]), respelled=lambda d: d.update(dimension_names=None)),
    "may be ignored": replace(
        shards([LITTLE]), respelled=lambda d: d.update(lab={"must_understand": False, "x": 1})
    ),
    **{
        f"keys {name} {separator}": replace(
            made, encoding={"name": name, "configuration": {"separator": separator}}
        )
        for name, separator, made in (
            ("default", ".", shards([LITTLE])),
            ("v2", ".", shards([LITTLE, blosc()])),
            ("v2", "/", shards([LITTLE])),
        )
    },
    "keys by name": replace(shards([LITTLE]), respelled=lambda d: d.update(chunk_key_encoding="default")),
    "type as object": replace(shards([LITTLE]), respelled=lambda d: d.update(data_type={"name": "uint16"})),
    "keys default": replace(shards([LITTLE]), encoding={"name": "default"}),
    "keys v2": replace(shards([LITTLE]), encoding={"name": "v2"}),
    "keys v2 unsharded": replace(Spelling([LITTLE]), encoding={"name": "v2"}),
    **{
        f"type {name}": _typed(name, fill, {"name": "bytes"} if name in ("bool", "uint8") else LITTLE)
        for name, fill in (
            ("bool", False),
            ("uint8", 7),
            ("int64", -1),
            ("float16", "NaN"),
            ("float32", "0x7fc00001"),
            ("float64", "-Infinity"),
            ("complex64", [0.5, -1.0]),
            ("complex128", ["NaN", 0.0]),
        )
    },
    "type complex blosc": replace(
        shards([BIG, blosc()], index=[BIG, CRC]), data_type="complex64", fill_value=[0.0, 0.0]
    ),
    "type datetime64": _typed(
        {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}, 0
    ),
    "type timedelta64": _typed(
        {"name": "numpy.timedelta64", "configuration": {"unit": "ms", "scale_factor": 10}}, 0
    ),
    "type raw": Spelling(  # zarr-python 3.1 does not shard it
        [{"name": "bytes"}],
        data_type={"name": "raw_bytes", "configuration": {"length_bytes": 2}},
        fill_value="AAA=",
    ),
    "type bytes": _typed(
        {"name": "null_terminated_bytes", "configuration": {"length_bytes": 4}}, "", {"name": "bytes"}
    ),
    "type utf32": _typed({"name": "fixed_length_utf32", "configuration": {"length_bytes": 16}}, ""),
    "type string": replace(
        Spelling([{"name": "vlen-utf8"}, ZSTD]), data_type="string", fill_value="", shape=(7,), grid=(3,)
    ),
    "type string sharded": replace(
        shards([{"name": "vlen-utf8"}], chunk=(2,)), data_type="string", fill_value="", shape=(7,), grid=(4,)
    ),
    "no axes": Spelling([LITTLE, GZIP], shape=(), grid=()),
    "no axes v2": Spelling([LITTLE], shape=(), grid=(), encoding={"name": "v2"}),
    "one axis": replace(shards([LITTLE], chunk=(2,)), shape=(9,), grid=(4,)),
    "five axes": replace(
        shards([transpose(4, 3, 2, 1, 0), LITTLE, ZSTD], chunk=(1, 1, 2, 2, 2)),
        shape=(2, 1, 3, 4, 5),
        grid=(2, 1, 2, 4, 4),
    ),
    "no elements": replace(shards([LITTLE]), shape=(0, 7, 6)),
    **{
        f"zarrs {name}": replace(made, writer="zarrs")
        for name, made in (
            ("big", shards([BIG, GZIP])),
            ("transpose", shards([transpose(2, 0, 1), LITTLE, blosc()])),
            ("nested", shards([sharded([LITTLE, ZSTD], chunk=(1, 2, 2))])),
            ("index plain", shards([LITTLE], index=[LITTLE], place="start")),
            ("outside", Spelling([sharded([LITTLE]), CRC])),
            ("unsharded", Spelling([transpose(1, 0, 2), BIG, CRC])),
        )
    },
    **{
        f"tensorstore {name}": replace(made, writer="tensorstore")
        for name, made in (
            ("big", shards([BIG, GZIP])),
            ("transpose", shards([transpose(2, 0, 1), LITTLE, blosc()])),
            ("index big", shards([LITTLE], index=[BIG, CRC], place="start")),
            ("index plain", shards([LITTLE], index=[LITTLE])),
            ("transpose outside", Spelling([transpose(0, 2, 1), sharded([LITTLE])])),
            ("unsharded", Spelling([transpose(1, 0, 2), BIG, CRC])),
            ("keys v2", replace(shards([LITTLE]), encoding={"name": "v2"})),
        )
    },
}


def _inner(document: Json) -> Json:
    facts: Json = document["codecs"][0]["configuration"]
    return facts


# what is changed in zarr.json of a sharded array of blosc, and the part that a message must name
ILLEGAL: dict[str, tuple[Callable[[Json], Any], str]] = {
    "unknown codec": (lambda d: _inner(d)["codecs"].append({"name": "rot13"}), "rot13"),
    "unknown codec outside": (lambda d: d["codecs"].append({"name": "rot13"}), "rot13"),
    "unknown codec of the index": (lambda d: _inner(d)["index_codecs"].append("rot13"), "rot13"),
    "unknown numcodecs": (lambda d: _inner(d)["codecs"].append(numcodec("rot13")), "numcodecs.rot13"),
    "no codecs": (lambda d: d.update(codecs=[]), "codecs"),
    "no inner codecs": (lambda d: _inner(d).pop("codecs"), "codecs"),
    "no index codecs": (lambda d: _inner(d).pop("index_codecs"), "index_codecs"),
    "empty index codecs": (lambda d: _inner(d).update(index_codecs=[]), "index_codecs"),
    "index delta": (
        lambda d: _inner(d)["index_codecs"].insert(0, numcodec("delta", dtype="<u8")),
        "index_codecs",
    ),
    "no array to bytes": (lambda d: _inner(d).update(codecs=[GZIP]), "array -> bytes"),
    "two array to bytes": (lambda d: _inner(d)["codecs"].insert(0, LITTLE), "array -> bytes"),
    "sharding and bytes": (lambda d: d["codecs"].append(LITTLE), "array -> bytes"),
    "compressor first": (lambda d: _inner(d)["codecs"].insert(0, GZIP), "wrong order"),
    "transpose last": (lambda d: _inner(d)["codecs"].append(transpose(0, 1, 2)), "wrong order"),
    "numcodecs filter last": (lambda d: _inner(d)["codecs"].append(numcodec("delta", dtype="<u2")), "order"),
    "index gzip": (lambda d: _inner(d)["index_codecs"].append(GZIP), "index_codecs"),
    "index zstd": (lambda d: _inner(d)["index_codecs"].insert(1, ZSTD), "index_codecs"),
    "index blosc": (lambda d: _inner(d)["index_codecs"].append(blosc()), "index_codecs"),
    "index zlib": (lambda d: _inner(d)["index_codecs"].append(numcodec("zlib", level=1)), "index_codecs"),
    "index sharded": (
        lambda d: _inner(d).update(index_codecs=[sharded([LITTLE], chunk=(1, 1, 1, 2))]),
        "index_codecs",
    ),
    "index without bytes": (lambda d: _inner(d).update(index_codecs=[CRC]), "index_codecs"),
    "index without endian": (lambda d: _inner(d).update(index_codecs=["bytes", CRC]), "endian"),
    "index location": (lambda d: _inner(d).update(index_location="middle"), "index_location"),
    "no endian": (lambda d: _inner(d)["codecs"][0].pop("configuration"), "endian"),
    "no endian behind a filter": (
        lambda d: _inner(d).update(codecs=[numcodec("delta", dtype="<u2"), {"name": "bytes"}]),
        "endian",
    ),
    "no endian behind a filter to two bytes": (
        lambda d: _inner(d).update(
            codecs=[numcodec("astype", encode_dtype="<i2", decode_dtype="<u2"), {"name": "bytes"}]
        ),
        "endian",
    ),
    "no endian behind two filters": (
        lambda d: _inner(d).update(
            codecs=[
                numcodec("delta", dtype="<u2"),
                numcodec("bitround", keepbits=4),
                {"name": "bytes"},
            ]
        ),
        "endian",
    ),
    "endian value": (lambda d: _inner(d)["codecs"][0]["configuration"].update(endian="native"), "endian"),
    "no chunk shape": (lambda d: _inner(d).pop("chunk_shape"), "chunk_shape"),
    "chunk shape of other rank": (lambda d: _inner(d).update(chunk_shape=[2, 4]), "chunk_shape"),
    "chunk shape of 0": (lambda d: _inner(d).update(chunk_shape=[2, 0, 4]), "chunk_shape"),
    "chunks that do not divide": (lambda d: _inner(d).update(chunk_shape=[3, 4, 4]), "divide"),
    "nested chunks that do not divide": (
        lambda d: _inner(d).update(codecs=[sharded([LITTLE], chunk=(2, 3, 4))]),
        "divide",
    ),
    "transpose of other rank": (lambda d: _inner(d)["codecs"].insert(0, transpose(1, 0)), "order"),
    "transpose twice the same": (lambda d: _inner(d)["codecs"].insert(0, transpose(1, 1, 0)), "order"),
    "transpose without order": (lambda d: _inner(d)["codecs"].insert(0, {"name": "transpose"}), "order"),
    "gzip level": (
        lambda d: _inner(d)["codecs"].append({"name": "gzip", "configuration": {"level": 10}}),
        "level",
    ),
    "zstd level": (
        lambda d: _inner(d)["codecs"].append({"name": "zstd", "configuration": {"level": 23}}),
        "level",
    ),
    "zstd checksum": (
        lambda d: _inner(d)["codecs"].append({"name": "zstd", "configuration": {"level": 1, "checksum": 1}}),
        "checksum",
    ),
    "blosc cname": (lambda d: _inner(d)["codecs"][1]["configuration"].update(cname="lz5"), "cname"),
    "blosc clevel": (lambda d: _inner(d)["codecs"][1]["configuration"].update(clevel=11), "clevel"),
    "blosc shuffle": (lambda d: _inner(d)["codecs"][1]["configuration"].update(shuffle="yes"), "shuffle"),
    "blosc typesize": (lambda d: _inner(d)["codecs"][1]["configuration"].update(typesize=0), "typesize"),
    "blosc blocksize": (
        lambda d: _inner(d)["codecs"][1]["configuration"].update(blocksize=2**31),
        "blocksize",
    ),
    "blosc without typesize": (lambda d: _inner(d)["codecs"][1]["configuration"].pop("typesize"), "typesize"),
    "gzip without level": (lambda d: _inner(d)["codecs"].append({"name": "gzip"}), "level"),
    "blosc dictionary": (lambda d: _inner(d)["codecs"][1]["configuration"].update(dict=1), "dict"),
    "crc32c setting": (
        lambda d: _inner(d)["codecs"].append({"name": "crc32c", "configuration": {"seed": 1}}),
        "seed",
    ),
    "sharding setting": (lambda d: _inner(d).update(order="morton"), "order"),
    "codec member": (lambda d: d["codecs"][0].update(version=2), "version"),
    "codec that is a number": (lambda d: _inner(d)["codecs"].append(4), "codecs"),
    "storage transformers": (
        lambda d: d.update(storage_transformers=[{"name": "x"}]),
        "storage_transformers",
    ),
    "unknown field": (lambda d: d.update(flipped=True), "flipped"),
    "unknown field as object": (lambda d: d.update(flipped={"x": 1}), "flipped"),
    "must_understand": (lambda d: d.update(flipped={"must_understand": True}), "flipped"),
    "unknown grid": (lambda d: d["chunk_grid"].update(name="rectilinear"), "chunk_grid"),
    "grid of other rank": (
        lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[4, 4]),
        "chunk_grid",
    ),
    "grid of 0": (lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[4, 0, 8]), "chunk_grid"),
    "unknown keys": (lambda d: d.update(chunk_key_encoding={"name": "v1"}), "chunk_key_encoding"),
    "separator": (
        lambda d: d.update(chunk_key_encoding={"name": "default", "configuration": {"separator": "-"}}),
        "chunk_key_encoding",
    ),
    "keys setting": (
        lambda d: d.update(chunk_key_encoding={"name": "v2", "configuration": {"prefix": "x"}}),
        "prefix",
    ),
    "unknown type": (lambda d: d.update(data_type="uint17"), "uint17"),
    "fill value of another type": (lambda d: d.update(fill_value="none"), "fill_value"),
    "fill value out of range": (lambda d: d.update(fill_value=70000), "fill_value"),
    "fill value with a fraction": (lambda d: d.update(fill_value=1.0), "fill_value"),
    "fill value as text": (lambda d: d.update(fill_value="1"), "fill_value"),
    "fill value with a fraction, decoded by zarr-python": (
        lambda d: (d.update(fill_value=1.0), _inner(d).update(codecs=[BIG])),
        "fill_value",
    ),
    "no fill value": (lambda d: d.pop("fill_value"), "fill_value"),
    "no shape": (lambda d: d.pop("shape"), "shape"),
    "negative shape": (lambda d: d.update(shape=[5, -7, 6]), "shape"),
    "dimension names": (lambda d: d.update(dimension_names=["y", "x"]), "dimension_names"),
    "nested too deep": (lambda d: _inner(d).update(codecs=_nested(9)), "nested"),
}


def _nested(depth: int) -> list[Any]:
    codecs: list[Any] = [LITTLE]
    for _ in range(depth):
        codecs = [sharded(codecs, chunk=CHUNK)]
    return codecs
