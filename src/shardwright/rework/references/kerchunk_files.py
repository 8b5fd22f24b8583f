"""References as kerchunk describes them: one JSON file with zarr.json of each node, or a folder of Parquet.

The reader of Parquet (fsspec) knows arrays of Zarr v2 alone, so it gets these: the same chunks, and the same
codecs by their names in numcodecs. It takes the references of an array in files of ``_RECORD_SIZE`` rows in
the order of the grid; a file is written once all shards have come that can have a chunk of it.
"""

from __future__ import annotations

import json
import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.disk.files import append_file, make_directories, write_file
from shardwright.model.errors import ConfigError
from shardwright.model.names import DOCUMENT, key_in

from .file_record import RECORD, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from .chunk_ranges import ChunkRanges
    from .file_record import FileRecord
    from .virtual_tree import VirtualArray, VirtualTree

_RECORD_SIZE = 100_000
_FLUSHED_BYTES = 4 << 20
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


class KerchunkJson:
    """Writes a JSON file. All methods raise ``StorageError``."""

    def __init__(self, path: Path, tree: VirtualTree) -> None:
        self._path, self._waiting, self._separator = path, bytearray(b'{"version":1,"refs":{'), b""
        for node, document in tree.documents.items():
            self._member(json.dumps(key_in(node, DOCUMENT)), json.dumps(json.dumps(document)))

    def _member(self, key: str, value: str) -> None:
        """Both are JSON: of a million chunks nothing is encoded that is the same."""
        self._waiting += self._separator + f"{key}:{value}".encode()
        self._separator = b","

    def add(self, array: VirtualArray, ranges: ChunkRanges) -> None:
        start, location = json.dumps(key_in(array.path, "c"))[:-1], json.dumps(url_of(ranges.path))
        coordinates = product(*(range(o, o + n) for o, n in zip(ranges.origin, ranges.counts, strict=True)))
        columns = (coordinates, ranges.offset.tolist(), ranges.nbytes.tolist())
        for chunk, offset, nbytes in zip(*columns, strict=True):
            if nbytes:
                where = f"[{location}]" if ranges.is_file else f"[{location},{offset},{nbytes}]"
                self._member(f'{"/".join((start, *map(str, chunk)))}"', where)
        if len(self._waiting) >= _FLUSHED_BYTES:
            self._flush()

    def _flush(self) -> None:
        append_file(self._path, bytes(self._waiting), "references", synced=False)
        self._waiting.clear()

    def finish(self, record: FileRecord) -> None:
        self._waiting += f'}},"{RECORD}":'.encode() + record.encode() + b"}"
        self._flush()


class KerchunkParquet:
    """Writes a folder of Parquet. All methods raise ``StorageError``, ``__init__`` also ``ConfigError`` for
    an array that has no metadata of Zarr v2."""

    def __init__(self, path: Path, tree: VirtualTree) -> None:
        import pyarrow.parquet  # noqa: F401  (before any work)

        make_directories(path, synced=False)
        self._path, self._array = path, ""
        self._locations: list[str] = []
        self._records: dict[int, np.ndarray[Any, Any]] = {}  # location, offset, nbytes of each chunk
        documents: dict[str, Any] = {}
        for node, group in tree.groups.items():
            documents[key_in(node, ".zgroup")] = {"zarr_format": 2}
            documents[key_in(node, ".zattrs")] = group.get("attributes", {})
        for array in tree.arrays:
            documents[key_in(array.path, ".zarray")] = _older_document(array)
            names = array.document.get("dimension_names")
            named = {"_ARRAY_DIMENSIONS": names} if names and None not in names else {}
            documents[key_in(array.path, ".zattrs")] = {**array.document.get("attributes", {}), **named}
        text = json.dumps({"metadata": documents, "record_size": _RECORD_SIZE}).encode()
        write_file(path / ".zmetadata", text, synced=False)

    def add(self, array: VirtualArray, ranges: ChunkRanges) -> None:
        sizes = zip(array.document["shape"], array.chunk_shape, strict=True)
        grid = tuple(-(-n // c) for n, c in sizes) or (1,)
        if array.path != self._array:
            self._write(math.inf)
            self._array, self._locations = array.path, []
            make_directories(self._path / array.path, synced=False)
        origin, counts = ranges.origin or (0,), ranges.counts or (1,)
        # Shards come in the order of the grid: no chunk before this one comes any more.
        self._write(origin[0] * math.prod(grid[1:]))
        self._locations.append(url_of(ranges.path))
        inside = np.indices(counts).reshape(len(counts), -1) + np.array(origin)[:, None]
        numbers = np.ravel_multi_index(tuple(inside), grid)
        for record in np.unique(numbers // _RECORD_SIZE).tolist():
            if record not in self._records:
                size = min(_RECORD_SIZE, math.prod(grid) - record * _RECORD_SIZE)
                self._records[record] = np.zeros((3, size), np.int64)
            chosen = (numbers // _RECORD_SIZE == record) & (ranges.nbytes > 0)
            where = numbers[chosen] - record * _RECORD_SIZE
            self._records[record][0, where] = len(self._locations)
            if not ranges.is_file:
                self._records[record][1:, where] = ranges.offset[chosen], ranges.nbytes[chosen]

    def _write(self, before: float) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for record in sorted(self._records):
            if (record + 1) * _RECORD_SIZE > before:
                break
            locations, offset, nbytes = self._records.pop(record)
            names = pa.array([None, *self._locations], pa.string()).take(pa.array(locations))
            raw = pa.nulls(len(locations), pa.binary())
            table = pa.table({"path": names, "offset": offset, "size": nbytes, "raw": raw})
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd")
            file = self._path / self._array / f"refs.{record}.parq"
            write_file(file, sink.getvalue().to_pybytes(), synced=False)

    def finish(self, record: FileRecord) -> None:
        self._write(math.inf)
        write_file(self._path / f"{RECORD}.json", record.encode(), synced=False)


def _older_document(array: VirtualArray) -> dict[str, Any]:
    """Returns .zarray of an array. Raises ``ConfigError`` for one whose chunks Zarr v2 cannot describe."""
    document, dtype = array.document, array.parts[0].stored.dtype
    lacked, order, codecs = "", "C", []
    backwards = list(reversed(range(len(document["shape"]))))
    for codec in document["codecs"]:
        settings = codec.get("configuration", {})
        match codec["name"]:
            case "bytes":
                dtype = dtype.newbyteorder(">" if settings.get("endian") == "big" else "<")
            case "transpose" if list(settings["order"]) == backwards and order == "C":
                order = "F"
            case "blosc":
                names = {key: settings[key] for key in ("cname", "clevel", "blocksize") if key in settings}
                shuffle = _SHUFFLES[settings.get("shuffle", "shuffle")]
                codecs.append({"id": "blosc", **names, "shuffle": shuffle})
            case "zstd" | "gzip" as name:
                codecs.append({"id": name, "level": settings.get("level", 1)})
            case "crc32c":
                codecs.append({"id": "crc32c", "location": "end"})
            case name:
                lacked = f"the codec {name}"
    if document["chunk_grid"]["name"] != "regular":
        lacked = "chunks of several shapes"
    if dtype.kind not in "biuf" or str(document["fill_value"]).startswith("0x"):
        lacked = f"{document['data_type']} with the fill value {document['fill_value']}"
    if lacked:
        raise ConfigError(
            f"references in Parquet describe arrays of Zarr v2, which do not have all of {array.path!r}",
            got=lacked,
            hint="Write kerchunk.json or icechunk:PATH instead",
        )
    return {
        "zarr_format": 2,
        "shape": document["shape"],
        "chunks": array.chunk_shape,
        "dtype": dtype.str,
        "fill_value": document["fill_value"],
        "order": order,
        "filters": codecs[:-1] or None,
        "compressor": codecs[-1] if codecs else None,
        "dimension_separator": ".",
    }
