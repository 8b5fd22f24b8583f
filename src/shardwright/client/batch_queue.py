"""The batches of a stream: each frame gets its number and a packed record in the batch that is being filled
(reused memory), beside the slot that holds its pixels; sealed batches wait to be sent.

Memory is bounded by ``MAX_PIXELLESS_FRAMES`` descriptors of dropped frames, and by one run of numbers for all
that are dropped beyond.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.wire.descriptor import FRAME_DROPPED, JSON_FIELD, METADATA_FIELDS
from shardwright.wire.in_flight import NO_SLOT
from shardwright.wire.messages import MAX_PIXELLESS_FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from shardwright.array.frame_check import Columns

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

    def __init__(self, batch_frames: int, dtype: np.dtype[np.void]) -> None:
        names = dtype.names or ()
        further = f"{dtype['further'].shape[0]}d" if "further" in names else ""
        json = f"{dtype[JSON_FIELD].itemsize}s" if JSON_FIELD in names else ""
        self._record = struct.Struct(f"<QqqIIqq{_KNOWN}dQ{further}{json}")
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

    def add(self, slot: int, sequence: int, position: int, frame_id: int, metadata: Columns) -> None:
        """Adds one frame. ``slot`` ``NO_SLOT``: it was dropped. ``metadata``: the known fields, then the
        array's own, then JSON if it has that."""
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


class BatchQueue:
    """The queue of a stream's batches. Not synchronized: the outbox's lock guards it. ``check_position`` and
    ``wake`` are the outbox's."""

    def __init__(
        self,
        batch_frames: int,
        descriptor: np.dtype[np.void],
        first_sequence: int,
        *,
        check_position: Callable[[int], int],
        wake: Callable[[], None],
    ) -> None:
        self._batch_frames = batch_frames
        self._check_position = check_position
        self._wake = wake
        self._filling = FillingBatch(batch_frames, descriptor)
        self._sealed: deque[SealedBatch] = deque()
        self._pixelless_held = 0  # frames without pixels whose descriptors are kept, here or in flight
        self.next_sequence = first_sequence  # of the frame that is added next

    @property
    def ends_with_pixels(self) -> bool:
        """True if the last frame added holds a slot and its batch is not sealed yet."""
        return self._filling.ends_with_pixels

    @property
    def all_taken(self) -> bool:
        """True if no sealed batch waits to be sent."""
        return not self._sealed

    def add(self, slot: int, position: int | None, frame_id: int, metadata: Columns) -> None:
        """Adds the frame in ``slot``, or a dropped one (``NO_SLOT``), as ``FillingBatch.add``. ``position``
        None: its own count."""
        sequence = self.next_sequence
        if position is None:
            position = self._check_position(sequence)
        begins = self._filling.count == 0
        self._filling.add(slot, sequence, position, frame_id, metadata)
        self.next_sequence = sequence + 1
        self._seal_if_full(begins=begins)

    def add_many(
        self, slots: npt.NDArray[np.int64] | None, records: npt.NDArray[np.void], *, counted: bool
    ) -> None:
        """Adds one frame for each of ``records``, as ``FillingBatch.add_many``. Raises before any is
        added."""
        self._check_position(self.next_sequence + len(records) - 1 if counted else 0)
        done = 0
        while done < len(records):
            begins = self._filling.count == 0
            part = slice(done, done + min(len(records) - done, self._filling.room))
            self._filling.add_many(
                None if slots is None else slots[part], self.next_sequence, records[part], counted=counted
            )
            self.next_sequence += part.stop - done
            done = part.stop
            self._seal_if_full(begins=begins)

    def add_dropped(self, position: int | None, frame_id: int, metadata: Columns) -> None:
        """A frame for which there was no slot: with a descriptor, or counted only."""
        if self._pixelless_held < MAX_PIXELLESS_FRAMES:
            self.add(NO_SLOT, position, frame_id, metadata)
            self._pixelless_held += 1
        else:
            self._count_only(1, counted=position is None)

    def add_many_dropped(self, records: npt.NDArray[np.void], *, counted: bool) -> None:
        """Adds dropped frames, one for each of ``records``, as ``add_dropped``."""
        self._check_position(self.next_sequence + len(records) - 1 if counted else 0)
        # more are held when counted ones have been sent since
        described = max(0, min(len(records), MAX_PIXELLESS_FRAMES - self._pixelless_held))
        if described:
            self.add_many(None, records[:described], counted=counted)
            self._pixelless_held += described
        if described < len(records):
            self._count_only(len(records) - described, counted=counted)

    def hold_pixelless(self, count: int) -> None:
        """The I/O thread has made descriptors of so many frames without pixels."""
        self._pixelless_held += count

    def release_pixelless(self, count: int) -> None:
        """The daemon needs the descriptors of so many frames without pixels no more."""
        self._pixelless_held -= count

    def _seal_if_full(self, *, begins: bool) -> None:
        if not self._filling.room:
            self.seal()
        elif begins:
            self._wake()  # the I/O thread sets its flush timer

    def _count_only(self, count: int, *, counted: bool) -> None:
        self._check_position(self.next_sequence + count - 1 if counted else 0)
        self.seal()
        if self._sealed and self._sealed[-1].descriptors is None:
            self._sealed[-1].count += count
        else:
            self._sealed.append(SealedBatch(self.next_sequence, count))
        self.next_sequence += count

    def seal(self) -> None:
        """Turns the frames added so far into a batch."""
        batch = self._filling.seal(self.next_sequence)
        if batch is not None:
            self._sealed.append(batch)
            self._wake()

    def seal_if_older(self, age_s: float, now_s: float) -> float | None:
        """Seals the filling batch if it has waited for ``age_s``. Returns when it will be due, None when it
        is empty."""
        if not self._filling.count:
            return None
        due_s = self._filling.started_s + age_s
        if due_s > now_s:
            return due_s
        self.seal()
        return None

    def next_batch(self, pixelless_room: int = MAX_PIXELLESS_FRAMES) -> SealedBatch | None:
        """The next one to send, with at most ``pixelless_room`` frames without pixels."""
        if not self._sealed:
            return None
        batch = self._sealed[0]
        if batch.descriptors is not None:
            return self._sealed.popleft() if batch.pixelless <= pixelless_room else None
        count = min(batch.count, self._batch_frames, pixelless_room)
        if count == 0:
            return None
        self._pixelless_held += count  # from now on they have descriptors too
        piece = SealedBatch(batch.first, count, pixelless=count)
        batch.first, batch.count = batch.first + count, batch.count - count
        if batch.count == 0:
            self._sealed.popleft()
        return piece
