"""What the user's threads and the I/O thread share of one stream: the ring and its free slots, the batch
being filled, sealed batches, how far the frames are safe, and how it ended.

Rules: ``_lock`` guards everything. The user's threads call ``take_slot`` and ``take_slots``, ``give_back``,
``add`` and ``add_many``, ``drop`` and ``drop_many``, ``flush``, ``finish`` and ``wait_for_end``; the ring's
thread calls ``swap_ring``; the I/O thread calls the rest. Nobody does I/O under the lock except the wake-up
byte, which never blocks.

Memory is bounded: by the ring, and as batch_queue.py says.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ClosedError, OverloadError, TimedOutError
from shardwright.model.watermark import Watermark
from shardwright.wire.free_slots import FreeSlots
from shardwright.wire.in_flight import NO_SLOT
from shardwright.wire.messages import MAX_PIXELLESS_FRAMES

from .batch_queue import BatchQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from shardwright.model.receipt import Receipt
    from shardwright.wire.controls import Overload

    from .batch import SealedBatch
    from .frame_ring import FrameRing

WAIT_S = 1.0  # of one wait; the state is looked at again after it
_NO_SLOTS = np.zeros(0, np.int64)


class Outbox:
    """``check_position`` guards a frame that is placed by its own count; ``wake`` wakes the I/O thread.
    ``first_sequence`` is the stream's first. ``keep_ring`` gets the ring at a good end, from whichever thread
    drops it, once nobody reads or writes it any more."""

    def __init__(
        self,
        *,
        slot_count: int,
        batch_frames: int,
        check_position: Callable[[int], int],
        wake: Callable[[], None],
        further_fields: int = 0,
        first_sequence: int = 0,
        overload: Overload = "block",
        keep_ring: Callable[[FrameRing], None] = lambda _: None,
    ) -> None:
        self._free = FreeSlots(slot_count)
        self._copying = 0  # slots that threads of the user have taken and not added yet
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ring: FrameRing | None = None
        self._slot_added = bytearray(slot_count)  # which slots hold a frame that was added and not released
        self.batch_frames = batch_frames
        self._wake = wake
        self._overload = overload
        self._keep_ring = keep_ring
        self._queue = BatchQueue(
            batch_frames, further_fields, first_sequence, check_position=check_position, wake=wake
        )
        self._first_sequence = first_sequence
        self._dropped = 0
        self._stored = self._durable = 0
        self._flush_to = 0
        self._finishing = False
        self._error: ErrorText | None = None  # why it ended without a receipt, or beside one
        self._receipt: Receipt | None = None

    # The user's threads
    # ----------------------------------------------------------------------------------------------------

    @property
    def frames(self) -> int:
        """Frames added so far, with their pixels."""
        return self._queue.next_sequence - self._first_sequence - self._dropped

    @property
    def next_sequence(self) -> int:
        """Of the frame that is added next."""
        return self._queue.next_sequence

    @property
    def frames_dropped(self) -> int:
        return self._dropped

    @property
    def ring(self) -> FrameRing | None:
        """Where slots are filled now; another one after the acquisition was resumed. None after the end."""
        return self._ring

    @property
    def watermark(self) -> Watermark:
        return Watermark(self._stored, self._durable)

    @property
    def error(self) -> ErrorText | None:
        """Why it ended without a receipt, or beside one."""
        with self._lock:
            return self._error

    @property
    def receipt(self) -> Receipt | None:
        return self._receipt

    def take_slot(self) -> int | None:
        """A free slot. Where there is none the policy decides: it is waited for (the back-pressure), the
        frame is to be dropped (None), or ``OverloadError``, now and from now on."""
        with self._changed:
            if not self._wait_for_slots():
                return None
            self._copying += 1
            return self._free.take_one()

    def take_slots(self, most: int) -> npt.NDArray[np.int64]:
        """Free slots for up to ``most`` frames, never more than a batch's, so that one is on its way while
        the next is copied; as ``take_slot``, none where frames are to be dropped."""
        with self._changed:
            if not self._wait_for_slots():
                return _NO_SLOTS
            slots = self._free.take(min(most, self.batch_frames))
            self._copying += len(slots)
            return slots

    def _wait_for_slots(self) -> bool:
        """Until at least one is free; False when the frame is to be dropped. Under the lock."""
        while True:
            self._check_open()
            if self._free:
                return True
            if self._queue.ends_with_pixels:
                # what nobody has sent would never come back; dropped frames may wait for more of their kind
                self._queue.seal()
            if self._overload == "drop":
                return False
            if self._overload == "fail":
                hint = "Close the stream: what it has sent is sealed"
                self._error = ErrorText(
                    OverloadError,
                    "the daemon could not keep up, and this stream's policy is to fail",
                    hint=hint,
                )
                self._raise_over()
            self._changed.wait(WAIT_S)

    def give_back(self, slots: int | npt.NDArray[np.int64]) -> None:
        """Slots that were taken and not used."""
        with self._changed:
            self._copying -= np.size(slots)
            self._free.give_back_first(np.atleast_1d(slots))
            self._changed.notify_all()

    def add(
        self,
        ring: FrameRing | None,
        slot: int,
        position: int | None,
        frame_id: int,
        metadata: tuple[float, ...],
    ) -> FrameRing | None:
        """The frame in ``slot`` of ``ring`` is complete. ``position`` None: its own count. ``metadata``: the
        known fields, then the array's own.

        Returns None, or the ring that has taken the place of ``ring``: the frame is to be copied there and
        added again.
        """
        with self._lock:
            self._check_open()
            if ring is not self._ring:
                return self._ring
            self._queue.add(slot, position, frame_id, metadata)
            self._slot_added[slot] = 1
            self._copying -= 1
        return None

    def add_many(
        self,
        ring: FrameRing | None,
        slots: npt.NDArray[np.int64],
        records: npt.NDArray[np.void],
        *,
        counted: bool,
    ) -> FrameRing | None:
        """As ``add``, of frames in ``slots`` with a descriptor for each in ``records``: complete but for
        sequence, flags and times; if ``counted``, each goes to its own count. All of them, or an error and
        none."""
        with self._lock:
            self._check_open()
            if ring is not self._ring:
                return self._ring
            self._queue.add_many(slots, records, counted=counted)
            np.frombuffer(self._slot_added, np.uint8)[slots] = 1
            self._copying -= len(slots)
        return None

    def drop(self, position: int | None, frame_id: int, metadata: tuple[float, ...]) -> None:
        """A frame for which there was no slot: it is counted, and the daemon gets its descriptor."""
        with self._lock:
            self._check_open()
            self._queue.add_dropped(position, frame_id, metadata)
            self._dropped += 1

    def drop_many(self, records: npt.NDArray[np.void], *, counted: bool) -> None:
        """As ``drop``, of as many frames as there are ``records``, which are those of ``add_many``."""
        with self._lock:
            self._check_open()
            self._queue.add_many_dropped(records, counted=counted)
            self._dropped += len(records)

    def flush(self, timeout_s: float | None) -> None:
        """Waits until everything added before is durable. Raises ``TimedOutError``, or what ended the
        session."""
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._check_open()
            self._queue.seal()
            target = self._queue.next_sequence
            self._flush_to = max(self._flush_to, target)
            self._wake()
            while self._durable < target:
                if self._receipt is not None and self._error is None:
                    return  # closed meanwhile: everything is sealed
                if self._error is not None:
                    self._raise_over()
                left_s = WAIT_S if give_up_s is None else give_up_s - time.monotonic()
                if left_s <= 0:
                    expected, got = f"{target} durable frames within {timeout_s} s", f"{self._durable}"
                    raise TimedOutError(
                        "the flush is not complete",
                        expected=expected,
                        got=got,
                        hint="It goes on; see .watermark",
                    )
                self._changed.wait(min(left_s, WAIT_S))

    def finish(self) -> None:
        """No more frames; what was added is sent."""
        with self._lock:
            self._finishing = True
            self._queue.seal()
            self._wake()

    def wait_for_end(self) -> Receipt:
        """The receipt. Raises what ended the session instead."""
        with self._changed:
            while self._receipt is None and (self._error is None or self._error.is_a(OverloadError)):
                self._changed.wait(WAIT_S)
            if self._error is not None and not self._error.is_a(OverloadError):
                self._raise_over()
            assert self._receipt is not None
            # another thread is at a frame that comes too late; the ring may be the next stream's from here on
            while self._copying:
                self._changed.wait(WAIT_S)
            return self._receipt

    def _check_open(self) -> None:
        if self._error is not None or self._finishing:
            self._raise_over()

    def _raise_over(self) -> NoReturn:
        if self._error is not None:
            raise self._error.to_error()
        raise ClosedError("this stream has ended", hint="Acquire a new one for more frames")

    # The ring's thread
    # ----------------------------------------------------------------------------------------------------

    def swap_ring(self, ring: FrameRing) -> None:
        """From now on slots are filled in ``ring``; what was added before is copied there. A frame that is
        just being copied by its user is copied again by ``add``'s answer. Not while slots are released."""
        with self._lock:
            old, self._ring = self._ring, ring
            added = np.flatnonzero(np.frombuffer(self._slot_added, np.uint8)).tolist()
        if old is not None and old is not ring:
            for slot in added:
                ring.frames[slot] = old.frames[slot]

    # The I/O thread
    # ----------------------------------------------------------------------------------------------------

    def seal_if_older(self, age_s: float, now_s: float) -> float | None:
        """As ``BatchQueue``."""
        with self._lock:
            return self._queue.seal_if_older(age_s, now_s)

    def next_batch(self, pixelless_room: int = MAX_PIXELLESS_FRAMES) -> SealedBatch | None:
        """As ``BatchQueue``."""
        with self._lock:
            return self._queue.next_batch(pixelless_room)

    def total_when_finished(self) -> int | None:
        """The sequence after the last frame, once the user has finished and every batch was taken; None
        before."""
        with self._lock:
            return self._queue.next_sequence if self._finishing and self._queue.all_taken else None

    def flush_wanted(self) -> int:
        """Frames before this sequence are to be made durable; 0 when nobody waits for that."""
        return self._flush_to if self._flush_to > self._durable else 0

    def hold_pixelless(self, count: int) -> None:
        """As ``BatchQueue``."""
        with self._lock:
            self._queue.hold_pixelless(count)

    def release(self, slots: npt.NDArray[np.uint32]) -> None:
        with_pixels = slots[slots != NO_SLOT]
        with self._changed:
            self._queue.release_pixelless(len(slots) - len(with_pixels))
            np.frombuffer(self._slot_added, np.uint8)[with_pixels] = 0
            self._free.give_back(with_pixels)
            self._changed.notify_all()

    def advance_watermark(self, stored: int | None = None, durable: int | None = None) -> None:
        with self._changed:
            self._stored = self._stored if stored is None else stored
            self._durable = self._durable if durable is None else durable
            self._changed.notify_all()

    def fail(self, why: ErrorText, receipt: Receipt | None = None) -> None:
        """``receipt``: of what is kept of it. Both at once: whoever waits must not take it for a good end."""
        with self._changed:
            self._receipt = receipt or self._receipt
            if self._error is None or self._error.is_a(OverloadError):
                self._error = why
            self._changed.notify_all()

    def settle(self, receipt: Receipt) -> None:
        with self._changed:
            self._receipt = receipt
            self._changed.notify_all()

    def drop_ring(self) -> None:
        """The end: a user may keep the stream for its receipt, but not the ring's memory."""
        with self._lock:
            ring, self._ring = self._ring, None
            unused = self._receipt is not None and self._error is None and not self._copying
        if ring is not None and unused:
            self._keep_ring(ring)
