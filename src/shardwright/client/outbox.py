"""What the user's threads and the I/O thread share of one stream: free slots, the batch being filled, sealed batches, and how it ended.

Rules: ``_lock`` guards everything but ``_free``, whose single operations are atomic. The user's threads call ``take_slot``, ``give_back``, ``add``,
``finish`` and ``wait_for_end``; the I/O thread calls the rest. Nobody does I/O under the lock except the wake-up byte, which never blocks.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.model.errors import ClosedError, ShardwrightError, error_from_dict
from shardwright.wire.descriptor import DESCRIPTOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.model.receipt import Receipt

_RECORD = struct.Struct("<QqqIIqqdddddQ")
assert _RECORD.size == DESCRIPTOR.itemsize, "the same record as wire/descriptor.py, packed without a NumPy scalar a frame"
WAIT_S = 1.0  # of one wait; the state is looked at again after it


@dataclass(frozen=True)
class SealedBatch:
    """Descriptors ready to send: frames ``first`` onwards, sitting in ``slots``."""

    first: int
    slots: list[int]
    descriptors: bytes


class Outbox:
    """``check_position`` guards a frame that is placed by its own count; ``wake`` wakes the I/O thread."""

    def __init__(
        self, *, slot_count: int, batch_frames: int, slots_are_shared: bool, check_position: Callable[[int], int], wake: Callable[[], None]
    ) -> None:
        self._free: deque[int] = deque(range(slot_count))
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._batch_frames = batch_frames
        self._slots_are_shared = slots_are_shared
        self._check_position = check_position
        self._wake = wake
        self._records = bytearray(batch_frames * _RECORD.size)
        self._slots: list[int] = []  # of the batch being filled
        self._batch_started_s = 0.0
        self._sealed: deque[SealedBatch] = deque()
        self._sequence = 0  # of the next frame
        self._finishing = False
        self._error: ShardwrightError | None = None
        self._receipt: Receipt | None = None

    # The user's threads ---------------------------------------------------------------------------------------------------------------------

    @property
    def frames(self) -> int:
        """Frames added so far."""
        return self._sequence

    @property
    def receipt(self) -> Receipt | None:
        return self._receipt

    def take_slot(self) -> int:
        """A free slot, waited for as long as the daemon is alive: this is the back-pressure."""
        if self._error is not None or self._finishing:
            self._raise_over()
        try:
            return self._free.popleft()
        except IndexError:
            pass
        with self._changed:
            self._seal()  # what nobody has sent would never come back
            while True:
                if self._error is not None or self._finishing:
                    self._raise_over()
                if self._free:
                    return self._free.popleft()
                self._changed.wait(WAIT_S)

    def give_back(self, slot: int) -> None:
        """A slot that was taken and not used."""
        self._free.appendleft(slot)

    def add(self, slot: int, position: int | None, frame_id: int, metadata: tuple[float, ...]) -> None:
        """The frame in ``slot`` is complete. ``position`` None: its own count."""
        camera_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        with self._lock:
            if self._error is not None or self._finishing:
                self._raise_over()
            sequence = self._sequence
            if position is None:
                position = self._check_position(sequence)
            row = len(self._slots)
            place = row if not self._slots_are_shared else slot
            _RECORD.pack_into(self._records, row * _RECORD.size, sequence, frame_id, position, place, 0, camera_ns, monotonic_ns, *metadata, 0)
            self._slots.append(slot)
            self._sequence = sequence + 1
            if row + 1 == self._batch_frames:
                self._seal()
            elif row == 0:
                self._batch_started_s = time.monotonic()
                self._wake()  # the I/O thread sets its flush timer

    def finish(self) -> None:
        """No more frames; what was added is sent."""
        with self._lock:
            self._finishing = True
            self._seal()
            self._wake()

    def wait_for_end(self) -> Receipt:
        """The receipt. Raises what ended the session instead."""
        with self._changed:
            while self._receipt is None and self._error is None:
                self._changed.wait(WAIT_S)
            if self._error is not None:
                self._raise_over()
            assert self._receipt is not None
            return self._receipt

    def _raise_over(self) -> None:
        if self._error is not None:
            raise error_from_dict(self._error.to_dict())  # a fresh one for each caller: exceptions collect tracebacks
        raise ClosedError("this stream has ended", hint="Acquire a new one for more frames")

    # Both -----------------------------------------------------------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Turns the frames added so far into a batch. Under the lock."""
        count = len(self._slots)
        if count:
            records = bytes(memoryview(self._records)[: count * _RECORD.size])
            self._sealed.append(SealedBatch(self._sequence - count, self._slots, records))
            self._slots = []
            self._wake()

    # The I/O thread -------------------------------------------------------------------------------------------------------------------------

    def seal_if_older(self, age_s: float, now_s: float) -> float | None:
        """Seals a batch that has waited for ``age_s``; returns when the one being filled will be due, None when it is empty."""
        with self._lock:
            if not self._slots:
                return None
            due_s = self._batch_started_s + age_s
            if due_s > now_s:
                return due_s
            self._seal()
            return None

    def next_batch(self) -> SealedBatch | None:
        with self._lock:
            return self._sealed.popleft() if self._sealed else None

    def total_when_finished(self) -> int | None:
        """Frames in all, once the user has finished and every batch was taken; None before."""
        with self._lock:
            return self._sequence if self._finishing and not self._sealed else None

    def release(self, slots: list[int]) -> None:
        with self._changed:
            self._free.extend(slots)
            self._changed.notify_all()

    def fail(self, error: ShardwrightError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def settle(self, receipt: Receipt) -> None:
        with self._changed:
            self._receipt = receipt
            self._changed.notify_all()
