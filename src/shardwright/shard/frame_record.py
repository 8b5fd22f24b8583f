"""The frame record: one fixed-size record with a checksum for every frame, in the journal, in the staging
area and in the frame log.

    offset  size  field
         0     d  the descriptor as it came (``wire.descriptor``), ``slot`` set to 0; ``flags``: see below.
                  d = 96 + 8 * further fields + bytes of JSON
         d     8  arrival_ns            i64, UTC nanoseconds when the writer took the frame in
     d + 8     8  arrival_monotonic_ns  i64, the same moment on the writer's monotonic clock
    d + 16     4  client_epoch          u32, which client of the acquisition sent it, counted from 1
    d + 20     1  status                u8, ``model.frame_status.FrameStatus``
    d + 21     1  reason                u8, ``model.frame_status.Reason``
    d + 22     2  slab_frames           u16, frames of the slab that this one was written with, modulo 2^16; 0
                                        outside a journal
    d + 24     4  pixels_crc            u32, crc32c of the raw pixels; 0 except in the staging area
    d + 28     4  record_crc            u32, crc32c of everything before it, started from the file's seed

All little-endian, always a multiple of 8 bytes. A record of zeros counts as absent.

``flags`` is 0 or, in a journal and later in the frame log, ``PASSED_OVER``: the frame's slab was closed with
empty places because newer frames had passed it by. A slab with empty places and without that flag was closed
by an early end; it takes frames again when the acquisition is resumed. So does one with the flag whose last
place lies beyond all frames that are known then: what had passed it by is gone, and the camera goes on there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from shardwright.wire.descriptor import descriptor_dtype

if TYPE_CHECKING:
    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec

PASSED_OVER = 1


@lru_cache  # every journal needs it, always with the same argument
def record_dtype(further_fields: int, json_bytes: int = 0) -> np.dtype[np.void]:
    """Returns the dtype of a record, of 128 + 8 * further_fields + json_bytes bytes, the latter made a
    multiple of 8."""
    tail = [
        ("arrival_ns", "<i8"),
        ("arrival_monotonic_ns", "<i8"),
        ("client_epoch", "<u4"),
        ("status", "u1"),
        ("reason", "u1"),
        ("slab_frames", "<u2"),
        ("pixels_crc", "<u4"),
        ("record_crc", "<u4"),
    ]
    return np.dtype([*descriptor_dtype(further_fields, json_bytes).descr, *tail])


def record_of(spec: ArraySpec | AcquisitionSpec) -> np.dtype[np.void]:
    """Returns the dtype of the records of an array, or of an acquisition."""
    return record_dtype(len(spec.frame_fields), spec.frame_json_bytes)


assert record_dtype(0).itemsize == 128, "FORMAT.md draws 128 bytes"
