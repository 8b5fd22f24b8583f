"""The batch that is being filled: a packed record for each frame, in reused memory, and the slot that holds
its pixels."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.wire.descriptor import FRAME_DROPPED, METADATA_FIELDS, descriptor_dtype
from shardwright.wire.in_flight import NO_SLOT

if TYPE_CHECKING:
    import numpy.typing as npt

_KNOWN = len(METADATA_FIELDS)


@dataclass
class SealedBatch:
    """Frames ``first`` onwards, ready to be sent: ``slots`` (``NO_SLOT``: dropped) and descriptors; neither
    where there were too many to keep."""

    first: int
    count: int
    slots: npt.NDArray[np.uint32] | None = None
    descriptors: bytes | None = None
    pixelless: int = 0


class FillingBatch:
    """A batch of up to ``batch_frames`` frames. Not synchronized: the outbox's lock guards it."""

    def __init__(self, batch_frames: int, further_fields: int) -> None:
        self._record = struct.Struct(f"<QqqIIqq{_KNOWN}dQ{further_fields}d")
        dtype = descriptor_dtype(further_fields)
        assert self._record.size == dtype.itemsize, (
            "the same record as wire/descriptor.py, packed without a NumPy scalar"
        )
        self._memory = bytearray(batch_frames * self._record.size)
        self._records = np.frombuffer(self._memory, dtype)
        self._slots = np.zeros(batch_frames, np.uint32)
        self.count = 0
        self.pixelless = 0
        self.started_s = 0.0  # when its first frame came

    @property
    def room(self) -> int:
        return len(self._slots) - self.count

    @property
    def ends_with_pixels(self) -> bool:
        """True if the last frame holds a slot, which is released only after the batch is sent."""
        return self.count > 0 and int(self._slots[self.count - 1]) != NO_SLOT

    def add(
        self, slot: int, sequence: int, position: int, frame_id: int, metadata: tuple[float, ...]
    ) -> None:
        """Adds one frame. ``slot`` ``NO_SLOT``: it was dropped. ``metadata``: the known fields, then the
        array's own."""
        self._begin()
        known, further = (metadata[:_KNOWN], metadata[_KNOWN:]) if len(metadata) > _KNOWN else (metadata, ())
        dropped = slot == NO_SLOT
        moment = (
            sequence,
            frame_id,
            position,
            0,
            FRAME_DROPPED if dropped else 0,
            time.time_ns(),
            time.monotonic_ns(),
        )
        self._record.pack_into(self._memory, self.count * self._record.size, *moment, *known, 0, *further)
        self._slots[self.count] = slot
        self.count += 1
        self.pixelless += dropped

    def add_many(
        self, slots: npt.NDArray[Any] | None, sequence: int, records: npt.NDArray[np.void], *, counted: bool
    ) -> None:
        """Adds frames ``sequence`` onwards, one for each of ``records``. These lack only sequence, flags and
        times, and if ``counted`` the position, which is then the sequence. ``slots`` None: they were
        dropped."""
        self._begin()
        rows = slice(self.count, self.count + len(records))
        into = self._records[rows]
        into[:] = records
        into["sequence"] = np.arange(sequence, sequence + len(records))
        if counted:
            into["position"] = into["sequence"]
        into["flags"] = FRAME_DROPPED if slots is None else 0
        into["camera_ns"], into["monotonic_ns"] = time.time_ns(), time.monotonic_ns()
        self._slots[rows] = NO_SLOT if slots is None else slots
        self.count = rows.stop
        self.pixelless += len(records) if slots is None else 0

    def _begin(self) -> None:
        if self.count == 0:
            self.started_s = time.monotonic()

    def seal(self, next_sequence: int) -> SealedBatch | None:
        """Returns the frames added so far, those right before ``next_sequence``, and empties the batch.
        Returns None when there are none."""
        count = self.count
        if not count:
            return None
        descriptors = bytes(memoryview(self._memory)[: count * self._record.size])
        sealed = SealedBatch(
            next_sequence - count, count, self._slots[:count].copy(), descriptors, self.pixelless
        )
        self.count = self.pixelless = 0
        return sealed
