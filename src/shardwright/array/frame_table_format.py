"""The frame table: one row for each frame that was reported to the writer, as 1-D Zarr arrays in the group
``frames`` beside the image.

zarr-python and pandas (or pyarrow) make a table of it in one line:

    pandas.DataFrame({name: column[:] for name, column in zarr.open_group(PATH, mode="r").arrays()})

    image                   i32, of several images: the number of the frame's own, -1 if it is not known; the
                            group's attributes have the path of its array, and its name, in ``images``
    index_<axis>            i64, one for each frame axis, in the order of acquisition; -1 for a frame that
                            names no place
    frame_id, sequence      the camera's own number (-1: none), and the writer's count of what was sent
    camera_ns, monotonic_ns  when the frame was given to the client: UTC, and that machine's monotonic clock
    arrival_ns, arrival_monotonic_ns  when the writer took it in, likewise
    delta_t ... position_z, further fields    f64, NaN where not given
    json                    strings, where the array has ``frame_json_bytes``: a JSON object of all other
                            metadata, empty where not given
    client_epoch            u32, which client of the acquisition sent it, counted from 1
    status, reason          u8, ``model.frame_status``; the group's attributes spell the numbers out
    fate                    the older name of ``status``: the same values, written until the next release. It
                            stands alone where the array has a frame field named ``status``, also in
                            the next release

Rows are ordered shard by shard as these were sealed, with frames that were not stored in between; sort by
``sequence`` for the order of sending.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.frame_status import OLDER_STATUS, STATUS, FrameStatus, Reason
from shardwright.wire.descriptor import JSON_FIELD, JSON_LEFT_OUT, METADATA_FIELDS

from .document import array_node, encode_document, group_node
from .grid import image_of, number_in_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .acquisition_spec import AcquisitionSpec

TABLE_PATH = "frames"
PARQUET_PATH = "frames.parquet"  # the same as one file, where that was asked for (``frame_parquet``)
VERSION = 3  # 2: without the column json; 1: of one image
ROWS_PER_CHUNK = 1 << 16
JSON_CHUNK_BYTES = 8 << 20  # of a chunk of strings; where these are long a chunk has fewer rows
RECORD_COLUMNS = ("frame_id", "sequence", "camera_ns", "monotonic_ns", "arrival_ns", "arrival_monotonic_ns")


def _index_columns(records: np.ndarray, spec: AcquisitionSpec) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the columns of each record's index along the frame axes of its image; -1 along axes that the
    image does not have, and for a negative position."""
    positions = records["position"].astype(np.int64)
    axes = dict.fromkeys(d.name for array in spec.arrays for d in array.dimensions[:-2])
    columns = {name: np.full(positions.size, -1, np.int64) for name in axes}
    images = np.where(positions < 0, -1, image_of(positions))
    for image in np.unique(images[images >= 0]).tolist():
        mine = images == image
        rest, counts = number_in_image(positions[mine]), spec.grids.grids[image].counts
        for number in range(len(counts) - 1, -1, -1):
            rest, index = np.divmod(rest, counts[number]) if number else (rest, rest)
            columns[spec.arrays[image].dimensions[number].name][mine] = index
    if not spec.is_single:
        yield "image", images.astype(np.int32)
    for name, values in columns.items():
        yield f"index_{name}", values


def table_columns(records: np.ndarray, spec: AcquisitionSpec) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (name, values) of every column, in the order of the table, for some records
    (``shard.frame_record.record_dtype``[n])."""
    yield from _index_columns(records, spec)
    for name in RECORD_COLUMNS:
        yield name, records[name]
    for name in METADATA_FIELDS:
        yield name, records[name]
    for i, name in enumerate(spec.frame_fields):
        yield name, records["further"][:, i]
    if spec.frame_json_bytes:
        text = records[JSON_FIELD]
        yield JSON_FIELD, np.where(text == JSON_LEFT_OUT, b"", text)
    yield "client_epoch", records["client_epoch"]
    for name in _status_columns(spec):
        yield name, records["status"]
    yield "reason", records["reason"]


def _status_columns(spec: AcquisitionSpec) -> tuple[str, ...]:
    """Returns the names under which the statuses are written. ``status`` is no reserved name of a frame
    field: a specification that 0.2.0 took would be refused, and its unfinished stores with it."""
    return (OLDER_STATUS,) if STATUS in spec.frame_fields else (STATUS, OLDER_STATUS)


def rows_per_chunk(spec: AcquisitionSpec) -> int:
    """Returns the number of rows in the chunks of all columns."""
    return min(ROWS_PER_CHUNK, JSON_CHUNK_BYTES // max(1, spec.frame_json_bytes))


def column_document(rows: int, chunk_rows: int, dtype: np.dtype) -> bytes:
    """Returns zarr.json of one column. Every chunk has a crc32c."""
    packed: list[dict[str, Any]] = [{"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}]
    is_text = dtype.kind == "S"
    numbers: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
    fill_value: str | int = "" if is_text else "NaN" if dtype.kind == "f" else 0
    return encode_document(
        array_node(
            shape=[rows],
            data_type="string" if is_text else dtype.name,
            grid=[chunk_rows],
            fill_value=fill_value,
            codecs=[{"name": "vlen-utf8"} if is_text else numbers, *packed],
            attributes={},
            names=["frame"],
        )
    )


def table_document(
    rows: int,
    names: list[str],
    spec: AcquisitionSpec,
    parquet: dict[str, int] | None = None,
    record: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Returns zarr.json of the group. ``parquet``: what is recorded of the file that was made of it;
    ``record``: of the acquisition, so that it can go on (``store.finish_record``)."""
    statuses, reasons = ({str(int(n)): n.name.lower() for n in numbers} for numbers in (FrameStatus, Reason))
    images = [{"path": path, "name": name} for path, name in zip(spec.paths, spec.names, strict=True)]
    table = {
        "table": "frames",
        "version": VERSION if spec.frame_json_bytes else 1 if spec.is_single else 2,
        "rows": rows,
        "columns": names,
        **dict.fromkeys(_status_columns(spec), statuses),
        "reason": reasons,
        **({} if spec.is_single else {"images": images}),
        **({} if parquet is None else {"parquet": parquet}),
        **record,
    }
    return encode_document(group_node({"shardwright": table}))
