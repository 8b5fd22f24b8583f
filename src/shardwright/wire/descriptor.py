"""The frame descriptor: one fixed-size record per frame, 96 bytes or more, in packed arrays, so that no frame
costs a Python object in the daemon.

    offset  size  field          meaning
         0     8  sequence       u64, counts the frames of a session from 0 without holes; names the frame in
               acks
         8     8  frame_id       i64, the camera's own number, -1 when it gave none
        16     8  position       i64, place in acquisition order: the n-d index raveled over the axes before
               the frame's own
        24     4  slot           u32, ring slot (shared memory) or ordinal of the frame in the message's pixel
               parts
        28     4  flags          u32, 0, or FRAME_DROPPED, FRAME_NOT_HELD or FRAME_SKIPPED: a descriptor
               without pixels
        32     8  camera_ns      i64, UTC nanoseconds on the camera's machine when the frame was given to the
               client
        40     8  monotonic_ns   i64, the same moment on that machine's monotonic clock
        48     8  delta_t        f64 seconds since the acquisition's start, NaN when not given
        56     8  exposure_time  f64 seconds, NaN when not given
        64    24  position_x/y/z f64 micrometres each, NaN when not given
        88     8  reserved       u64, 0
    96     8k further fields f64 each, NaN when not given: those that the array's ``frame_fields`` names, in
           that order
         J  json           a JSON object as UTF-8, zeros behind it, all zeros for none, ``JSON_LEFT_OUT`` for
               one that did not fit; J is the array's ``frame_json_bytes``, made a multiple of 8

All little-endian. Defined here; the client fills it, ingest checks it, the acquisition reads it, the frame
table keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

METADATA_FIELDS = ("delta_t", "exposure_time", "position_x", "position_y", "position_z")
MAX_FURTHER_FIELDS = 32
MAX_FRAME_JSON_BYTES = 4096
# ``flags``: dropped by the client for want of credit; no longer held when the session was resumed; no frame,
# but a place that stays empty
FRAME_DROPPED, FRAME_NOT_HELD, FRAME_SKIPPED = 1, 2, 3
JSON_FIELD = "json"
# The object without a name stands for metadata that were too long and are left out as a whole, so that they
# are counted wherever the record goes: over a wire to any release, and through a crash. A frame without such
# metadata has zeros there, never this.
JSON_LEFT_OUT = b"{}"
NO_POSITION = -1  # of a frame that is no longer held, if its place is not known either

_BASE: list[tuple[str, str]] = [
    ("sequence", "<u8"),
    ("frame_id", "<i8"),
    ("position", "<i8"),
    ("slot", "<u4"),
    ("flags", "<u4"),
    ("camera_ns", "<i8"),
    ("monotonic_ns", "<i8"),
    *((name, "<f8") for name in METADATA_FIELDS),
    ("reserved", "<u8"),
]


def descriptor_dtype(further_fields: int, json_bytes: int = 0) -> np.dtype[np.void]:
    """Returns the record of an array with that many ``frame_fields``, which form the sub-array ``further``,
    and with ``frame_json_bytes`` for ``json``; each is absent when it is 0."""
    further = [("further", "<f8", (further_fields,))] if further_fields else []
    json = [(JSON_FIELD, f"S{-(-json_bytes // 8) * 8}")] if json_bytes else []
    return np.dtype([*_BASE, *further, *json])


DESCRIPTOR = descriptor_dtype(0)
assert DESCRIPTOR.itemsize == 96, "PROTOCOL.md draws 96 bytes"
assert descriptor_dtype(MAX_FURTHER_FIELDS).itemsize == 96 + 8 * MAX_FURTHER_FIELDS, (
    "and 8 for each further field"
)


def not_held(first: int, count: int, record: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Returns descriptors of frames of which only the sequence is known."""
    records = np.zeros(count, record)
    records["sequence"] = np.arange(first, first + count)
    records["frame_id"], records["position"], records["flags"] = -1, NO_POSITION, FRAME_NOT_HELD
    for name in (*METADATA_FIELDS, *(("further",) if "further" in (record.names or ()) else ())):
        records[name] = np.nan
    return records
