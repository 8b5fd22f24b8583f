"""The frames in the staging area of an unfinished store, read while its writer fills it.

A record that fits its checksum says that its frame was stored: here, or by now in its slab. The pixels are
those of the record if they fit its ``pixels_crc``; otherwise the slot is being used again, and the slab of
the earlier frame is stored.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.shard.staging import StagingArea, slots_in
from shardwright.storage.files import storage_errors

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec

MOST_KEPT_BYTES = 256 << 20  # of pixels whose checksum was found to fit


class StagedFrame(NamedTuple):
    """A frame in the staging area. ``place``: among those of its slab, in storage order."""

    slot: int
    slab: int
    place: int
    record: np.void


class LiveStaging:
    """The staging area of one acquisition. Used under the lock of its view."""

    def __init__(self, area: StagingArea, spec: AcquisitionSpec) -> None:
        self._area = area
        self._spec = spec
        self._records = np.zeros(area.slots, area.record)  # as they were read last
        self._valid = np.zeros(area.slots, np.bool_)
        self._by_slab: dict[int, list[StagedFrame]] = {}
        self._pixels: OrderedDict[tuple[int, int], np.ndarray[Any, Any]] = OrderedDict()

    @classmethod
    def open(
        cls, path: Path, spec: AcquisitionSpec, record: np.dtype[np.void], identity: bytes
    ) -> LiveStaging | None:
        """Opens a staging area; returns None if there is none. Raises ``ShardFormatError``,
        ``StorageError``."""
        if not path.exists():
            return None
        with storage_errors("look at", path):
            nbytes = path.stat().st_size
        frame_bytes = spec.grids.slot_bytes
        slots = slots_in(nbytes, frame_bytes, record.itemsize)
        return cls(StagingArea.open(path, slots, frame_bytes, record, identity, read_only=True), spec)

    def look(self) -> dict[int, list[StagedFrame]]:
        """Returns the frames by their slabs. Raises ``StorageError``."""
        records = self._area.read_records()
        now, before = _words_of(records), _words_of(self._records)
        if not np.array_equal(now, before):
            changed = np.flatnonzero((now != before).any(axis=1))
            self._valid[changed] = self._area.undamaged(records[changed])
            self._records = records
            self._by_slab = {}
            for slot in np.flatnonzero(self._valid).tolist():
                position = int(records["position"][slot])
                grid = self._spec.grids.of(position)
                slab = grid.slab_of_position(position)
                frame = StagedFrame(slot, slab, grid.place_in_slab(position), records[slot])
                self._by_slab.setdefault(slab, []).append(frame)
        return self._by_slab

    def pixels(self, frame: StagedFrame) -> np.ndarray[Any, Any] | None:
        """Returns the pixels of a frame, [rows, columns]; None if its slot is used again. Raises
        ``StorageError``."""
        position = int(frame.record["position"])
        grid = self._spec.grids.of(position)
        spec = self._spec.arrays[grid.image]
        key = frame.slot, int(frame.record["record_crc"])
        if (kept := self._pixels.get(key)) is not None:
            self._pixels.move_to_end(key)
            return kept
        data = self._area.read_pixels(frame.slot, grid.frame_bytes, int(frame.record["pixels_crc"]))
        if data is None:
            return None
        values = data.view(np.dtype(spec.dtype).newbyteorder("<")).reshape(grid.frame_shape)
        self._pixels[key] = values
        while sum(kept.nbytes for kept in self._pixels.values()) > MOST_KEPT_BYTES and len(self._pixels) > 1:
            self._pixels.popitem(last=False)
        return values

    def __del__(self) -> None:
        self._area.close()


def _words_of(records: np.ndarray) -> np.ndarray:
    return records.view(np.uint64).reshape(records.size, -1)


def open_staging(
    path: Path, spec: AcquisitionSpec, record: np.dtype[np.void], identity: bytes
) -> LiveStaging | None:
    """As ``LiveStaging.open``; None as well for one that is damaged, which recovery reports, or just going.
    Raises ``StorageError``: stored frames may be there."""
    try:
        return LiveStaging.open(path, spec, record, identity)
    except (ShardFormatError, StorageError) as error:
        if isinstance(error, ShardFormatError) or isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
