"""The frame descriptor: one fixed-size record per frame, 96 bytes or more, in packed arrays, so that no frame
costs a Python object in the daemon. PROTOCOL.md draws every byte and says what each field means.

Defined here; the client fills it, ingest checks it, the acquisition reads it, the frame table keeps it.
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
