"""The frames in the staging area of an unfinished store, read while its writer fills it.

A record that fits its checksum says that its frame was stored: here, or by now in its slab. The pixels are
those of the record if they fit its ``pixels_crc``; otherwise the slot is being used again, and the slab of
the earlier frame is stored. They may be in the chunks of the slab instead (``shard.frames_in_place``).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardwright.disk.failpoints import look
from shardwright.model.forked_child import renew_in_child
from shardwright.scan.unfinished_store import if_begun

if TYPE_CHECKING:
    from shardwright.scan.unfinished_store import UnfinishedStore
    from shardwright.shard.staging import StagingArea

MOST_KEPT_BYTES = 256 << 20  # of pixels whose checksum was found to fit


class StagedFrame(NamedTuple):
    """A frame in the staging area. ``index_in_slab``: of the frame, in storage order."""

    slot: int
    slab: int
    index_in_slab: int
    record: np.void


class KeptPixels:
    """The pixels of staged frames that were read last: at most ``MOST_KEPT_BYTES``, and a frame however large
    it is. May be shared by views, of several threads. A key: the identity of the acquisition, the slot, and
    the checksum of the record."""

    def __init__(self) -> None:
        self._begin()
        renew_in_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[bytes, int, int], np.ndarray[Any, Any]] = OrderedDict()
        self._nbytes = 0

    def get(self, key: tuple[bytes, int, int]) -> np.ndarray[Any, Any] | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: tuple[bytes, int, int], values: np.ndarray[Any, Any]) -> None:
        with self._lock:
            if key not in self._kept:  # another thread may have read it, too
                self._kept[key] = values
                self._nbytes += values.nbytes
            while len(self._kept) > 1 and self._nbytes > MOST_KEPT_BYTES:
                self._nbytes -= self._kept.popitem(last=False)[1].nbytes


class LiveStaging:
    """The staging area of one acquisition. Used under the lock of its view."""

    def __init__(self, area: StagingArea, store: UnfinishedStore, kept: KeptPixels) -> None:
        self._area = area
        self._in_place = store.frames_in_place
        self._spec = store.spec
        self._identity = store.manifest.identity_bytes
        self._kept = kept
        # As they were read last: only records that have changed since are checked again, and a record that
        # is read while it is written fails its checksum until the next look.
        self._records = np.zeros(area.slots, area.record)
        self._valid = np.zeros(area.slots, np.bool_)
        # Made anew when a record has changed, never changed in place: who has it may go on reading it.
        self._by_slab: dict[int, list[StagedFrame]] = {}

    @classmethod
    def open(cls, store: UnfinishedStore, kept: KeptPixels) -> LiveStaging | None:
        """Opens the staging area of a store; returns None if it is not there or says nothing (``if_begun``).
        Raises ``ShardFormatError`` for one that is damaged, ``StorageError``: stored frames may be there."""
        area = if_begun(store.staging_path, partial(store.open_staging, read_only=True))
        return None if area is None else cls(area, store, kept)

    def look(self) -> dict[int, list[StagedFrame]]:
        """Returns the frames by their slabs. Raises ``StorageError``."""
        look("look.staging")
        records = self._area.read_records()
        now, before = _words_of(records), _words_of(self._records)
        if not np.array_equal(now, before):
            changed = np.flatnonzero((now != before).any(axis=1))
            self._valid[changed] = self._area.undamaged(records[changed])
            by_slab: dict[int, list[StagedFrame]] = {}
            for slot in np.flatnonzero(self._valid).tolist():
                position = int(records["position"][slot])
                grid = self._spec.grids.of(position)
                slab = grid.slab_of_position(position)
                frame = StagedFrame(slot, slab, grid.index_in_slab(position), records[slot])
                by_slab.setdefault(slab, []).append(frame)
            # The records last: a look that is interrupted before, or left behind by a fork, is made again.
            self._by_slab = by_slab
            self._records = records
        return self._by_slab

    def pixels(self, frame: StagedFrame) -> np.ndarray[Any, Any] | None:
        """Returns the pixels of a frame, [rows, columns]; None if its slot is used again, or its shard has
        its name by now. Raises ``StorageError``."""
        position = int(frame.record["position"])
        grid = self._spec.grids.of(position)
        spec = self._spec.arrays[grid.image]
        key = self._identity, frame.slot, int(frame.record["record_crc"])
        if (kept := self._kept.get(key)) is not None:
            return kept
        crc = int(frame.record["pixels_crc"])
        if self._in_place is None:
            data = self._area.read_pixels(frame.slot, grid.frame_bytes, crc)
        else:
            data = self._in_place.read_checked(position, crc)
        if data is None:
            return None
        values = data.view(np.dtype(spec.dtype).newbyteorder("<")).reshape(grid.frame_shape)
        self._kept.keep(key, values)
        return values

    def __del__(self) -> None:
        self._area.close()


def _words_of(records: np.ndarray) -> np.ndarray:
    return records.view(np.uint64).reshape(records.size, -1)
