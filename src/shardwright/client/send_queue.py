"""The send queue of a stream: the one owner of the slots of its ring, and of its frames from their number to
their release by the daemon.

    slot    FREE -> COPYING -> HELD -> FREE              ``append``: the frame is copied, sent, released
            FREE -> CLAIMED -> COPYING -> HELD -> FREE   ``claim``: a camera's driver writes first

    frame   0 ............... sent_to ........... _sealed_to ............ next_sequence
            sent: some are    sealed: their       in the batch that is
            released, some    batches wait        being filled
            sent again        to be sent

A batch lies in ``_in_flight`` from its seal to the release of its last frame. To send it only moves
``sent_to``, and to resume only names frames below that to send again: nothing is handed from one queue to
another, so no frame can be in two of them, or in none.

Memory is bounded by the ring, and by descriptors of frames without pixels. Frames that are dropped while
there are ``MAX_PIXELLESS_FRAMES`` descriptors only take a number, which no batch has. The daemon hears of
them as of frames that it lost in a power cut after they were released: as frames that are not held any more.
To be sent, these get descriptors, too, at most ``MAX_PIXELLESS_FRAMES`` at a time. So there are at most twice
as many, and three times while frames are sent again that a power cut took.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import ProtocolError
from shardwright.wire.descriptor import FRAME_DROPPED, FRAME_NOT_HELD, JSON_FIELD, METADATA_FIELDS, not_held
from shardwright.wire.free_slots import free_slots
from shardwright.wire.in_flight import NO_SLOT, InFlight
from shardwright.wire.messages import MAX_PIXELLESS_FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from shardwright.array.frame_check import Columns
    from shardwright.wire.in_flight import SentBatch

# of a slot; plain numbers, since an Enum would cost a conversion for each frame
FREE, COPYING, CLAIMED, HELD = range(4)
_KNOWN = len(METADATA_FIELDS)


class SendQueue:
    """Not synchronized: the outbox's lock guards all of it. ``check_position`` checks a frame that is placed
    by its own count; ``wake`` wakes the I/O thread.

    A signal's handler may raise between any two lines of a user's thread. The outbox is then broken, but the
    I/O thread still sends what came before. So frames are written first, and counted by one assignment. Where
    two are needed, the next ``seal`` makes up for the second.
    """

    def __init__(
        self,
        slot_count: int,
        batch_frames: int,
        descriptor: np.dtype[np.void],
        first_sequence: int,
        *,
        check_position: Callable[[int], int],
        wake: Callable[[], None],
        frame_places: int = 1,
        message_frames: int | None = None,
    ) -> None:
        # At most a quarter of the ring, and never changed: one batch is filled while others are sent, stored
        # and released. It bounds what is sent again at once, too.
        self.batch_frames = batch_frames
        # less where a daemon takes no message with a whole frame of colours
        self._most_in_message = batch_frames if message_frames is None else min(batch_frames, message_frames)
        # Asked before anything is written: a frame past the array's end must take no number, since the daemon
        # expects a frame for each.
        self.check_position = check_position
        # Called for a sealed batch, and for the first row of one, which sets the flush timer. It is a system
        # call, so it is spared for the other rows: of small frames thousands come in a second.
        self._wake = wake
        # the free slots in the order in which they are taken; ``_states`` says what the others are
        self.free = free_slots(slot_count, frame_places)
        # A frame of colours takes so many slots and sequences, one behind the other. A slot that stands alone
        # below is then the first of them.
        self._places = frame_places
        # Kept for each slot, not as counts: a new ring gets a copy of exactly the HELD ones. Every other one
        # may be written by a user's thread at that moment, and gets its frame again from there.
        self._states = np.full(slot_count, FREE, np.uint8)
        # The batch that is being filled: packed records and their slots, in memory that every batch reuses.
        # Its first frame is ``_sealed_to``, so a row needs no count of its own.
        self._pack = _packer(descriptor)
        self._memory = bytearray(batch_frames * descriptor.itemsize)
        self._records = np.frombuffer(self._memory, descriptor)
        self._slots = np.zeros(batch_frames, np.uint32)
        # When its first frame came, and not its last: a slow camera's frame must not wait for a full batch.
        self._filling_since_s = 0.0
        self._in_flight = InFlight()  # sealed batches; each keeps its records, to be sent again
        # The edges of the drawing above. ``next_sequence`` is written when the rows of a call's frames are
        # whole, and ``_sealed_to`` once their batch is in flight: an interruption in between loses neither.
        # Only the I/O thread writes ``sent_to``. A release at or beyond it is a fault of the daemon.
        self.next_sequence = self._sealed_to = self.sent_to = first_sequence
        # Frames below this were sent over an earlier connection. Their release may have been lost with it
        # and then comes twice; for all others that is a fault of the daemon.
        self._sent_before = 0
        self._again: deque[tuple[int, int]] = deque()  # ranges below ``sent_to`` that the daemon lacks
        # Frames without pixels that have descriptors, each in one of two counts. No further one gets its
        # descriptor as it is dropped while both together are ``MAX_PIXELLESS_FRAMES``. The daemon allows so
        # many of the second one alone: with one count for both, frames that are only numbered could wait for
        # room that frames behind them have taken. So both together may be more.
        self._pixelless_waiting = 0  # to be sent, for the first time or again
        self._pixelless_sent = 0  # sent, not released: at the daemon

    # Slots
    # ----------------------------------------------------------------------------------------------------

    @property
    def slot_count(self) -> int:
        return len(self._states)

    def count(self, state: int) -> int:
        """Returns how many slots are in this state."""
        return int(np.count_nonzero(self._states == state))

    def held(self) -> list[int]:
        """Returns the slots whose frames are complete and not released."""
        slots: list[int] = np.flatnonzero(self._states == HELD).tolist()
        return slots

    def take_one(self, state: int) -> int:
        """Takes a free slot, of which there must be one."""
        slot = self.free.take_one()
        self.mark(slot, state)
        return slot

    def take(self, most: int) -> npt.NDArray[np.int64]:
        """Takes free slots, to be copied into, as many as there are but at most ``most``."""
        slots = self.free.take(most)
        self._states[slots] = COPYING
        return slots

    def mark(self, slots: int | npt.NDArray[np.int64], state: int) -> None:
        """Changes the state of slots that are taken, a frame's or those of several."""
        self._states[self._all_of(slots)] = state

    def give_back(self, slots: int | npt.NDArray[np.int64]) -> None:
        """Frees slots that were taken and not used; they are taken next, so that neighbours stay together."""
        self._states[self._all_of(slots)] = FREE
        self.free.give_back_first(np.atleast_1d(self._all_of(slots)))

    def _all_of(self, slots: int | npt.NDArray[np.int64]) -> int | npt.NDArray[np.int64]:
        """Returns all slots of one frame, by the first of them; several as they are."""
        if self._places == 1 or not isinstance(slots, int):
            return slots
        return np.arange(slots, slots + self._places)

    # Frames come
    # ----------------------------------------------------------------------------------------------------

    def add(self, slot: int, position: int | None, frame_id: int, metadata: Columns) -> None:
        """Adds the frame in ``slot``, or a dropped one (``NO_SLOT``). ``position`` None: its own count.
        ``metadata``: the known fields, then the array's own, then JSON if it has that."""
        sequence, places = self.next_sequence, self._places
        if position is None:
            position = self.check_position(sequence + places - 1) - places + 1
        known, further = (metadata[:_KNOWN], metadata[_KNOWN:]) if len(metadata) > _KNOWN else (metadata, ())
        row = sequence - self._sealed_to
        dropped = slot == NO_SLOT
        flags, times = FRAME_DROPPED if dropped else 0, (time.time_ns(), time.monotonic_ns())
        for i in range(places):
            place = (sequence + i, frame_id, position + i, 0, flags)
            self._pack.pack_into(
                self._memory, (row + i) * self._pack.size, *place, *times, *known, 0, *further
            )
            self._slots[row + i] = slot if dropped else slot + i
        self._pixelless_waiting += places if dropped else 0
        self._append_rows(row, places)

    def add_many(
        self,
        slots: npt.NDArray[np.int64] | None,
        records: npt.NDArray[np.void],
        *,
        counted: bool,
        flags: int = FRAME_DROPPED,
    ) -> None:
        """Adds one frame for each of ``records``, which lack only sequence, flags and times, and if
        ``counted`` the position, which is then the sequence. ``slots`` None: they have no pixels, for the
        reason that ``flags`` says. Raises before any is added."""
        self.check_position(self.next_sequence + len(records) - 1 if counted else 0)
        done = 0
        while done < len(records):
            row = self.next_sequence - self._sealed_to
            part = slice(done, min(len(records), done + self.batch_frames - row))
            count = part.stop - done
            rows = slice(row, row + count)
            into = self._records[rows]
            into[:] = records[part]
            into["sequence"] = np.arange(self.next_sequence, self.next_sequence + count)
            if counted:
                into["position"] = into["sequence"]
            into["flags"] = flags if slots is None else 0
            into["camera_ns"], into["monotonic_ns"] = time.time_ns(), time.monotonic_ns()
            self._slots[rows] = NO_SLOT if slots is None else slots[part]
            self._pixelless_waiting += count if slots is None else 0
            self._append_rows(row, count)
            done = part.stop

    def add_dropped(self, position: int | None, frame_id: int, metadata: Columns) -> None:
        """Adds a frame for which there was no slot: with its descriptor, or beyond the bound its number."""
        if self.room_without_pixels > 0:
            self.add(NO_SLOT, position, frame_id, metadata)
        else:
            self._number_only(self._places, counted=position is None)

    def add_many_dropped(self, records: npt.NDArray[np.void], *, counted: bool) -> None:
        """Adds dropped frames, one for each of ``records``, as ``add_dropped``."""
        self.check_position(self.next_sequence + len(records) - 1 if counted else 0)
        described = max(0, min(len(records), self.room_without_pixels))
        described -= described % self._places  # of a frame of colours all places are told alike
        if described:
            self.add_many(None, records[:described], counted=counted)
        if described < len(records):
            self._number_only(len(records) - described, counted=counted)

    @property
    def room_without_pixels(self) -> int:
        """For how many more frames without pixels there are descriptors. Below 0 when frames that were only
        numbered have been sent since, with descriptors then."""
        return MAX_PIXELLESS_FRAMES - self._pixelless_waiting - self._pixelless_sent

    def _number_only(self, count: int, *, counted: bool) -> None:
        self.check_position(self.next_sequence + count - 1 if counted else 0)
        self.seal()
        self._sealed_to += count
        # Last: an interruption before it leaves fewer frames than are sealed, and ``seal`` makes up for them.
        # The other way round there would be more, and old records of the filled memory would be sent.
        self.next_sequence = self._sealed_to

    def _append_rows(self, row: int, count: int) -> None:
        """Counts rows of the filling batch that are written, the first of them ``row``."""
        if row == 0:
            self._filling_since_s = time.monotonic()
        self.next_sequence += count  # from here on they are frames
        if row + count == self.batch_frames:
            self.seal()
        elif row == 0:
            self._wake()  # the I/O thread sets its flush timer

    @property
    def ends_with_pixels(self) -> bool:
        """True if the last frame added holds a slot and its batch is not sealed yet."""
        row = self.next_sequence - self._sealed_to
        return row > 0 and int(self._slots[row - 1]) != NO_SLOT

    def seal(self) -> None:
        """Turns the frames added so far into a batch to be sent. After an interruption it comes before any
        further frame, and makes whole what that has left."""
        first, count = self._sealed_to, self.next_sequence - self._sealed_to
        if count > 0:
            # Unless an earlier call was interrupted here. The batch comes first: were its frames sealed and
            # in no batch, they would be sent as ones that are not held.
            if self._in_flight.at(first, first)[0] is None:
                slots = self._slots[:count].copy()
                # as bytes: NumPy copies records field by field
                records = np.frombuffer(self._memory[: count * self._pack.size], self._records.dtype)
                self._in_flight.add(first, slots, records)
            self._sealed_to = first + count
            self._wake()
        elif count < 0:
            self.next_sequence = first

    def seal_if_older(self, age_s: float, now_s: float) -> float | None:
        """Seals the filling batch if it has waited for ``age_s``. Returns when it will be due, None when it
        is empty."""
        if self.next_sequence == self._sealed_to:
            return None
        due_s = self._filling_since_s + age_s
        if due_s > now_s:
            return due_s
        self.seal()
        return None

    # Frames go
    # ----------------------------------------------------------------------------------------------------

    @property
    def sends_again(self) -> bool:
        """True if frames that the daemon lacks since a resume are still to be sent."""
        return bool(self._again)

    @property
    def all_sent(self) -> bool:
        """True if every frame was sent once. The filling batch counts: seal it first."""
        return self.sent_to == self.next_sequence

    def next_frames(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.void]] | None:
        """Takes the next frames to send, of one batch: returns their slots (``NO_SLOT``: without pixels) and
        descriptors. Returns None when there are none, or while the daemon takes no more without pixels."""
        first, last = self._again[0] if self._again else (self.sent_to, self._sealed_to - 1)
        if first > last:
            return None
        batch, last = self._in_flight.at(first, min(last, first + self._most_in_message - 1))
        gone = dropped = 0
        if batch is None:
            gone = last + 1 - first
        elif self._again or self._pixelless_waiting:
            gone = last + 1 - first - int(np.count_nonzero(batch.live[batch.window(first, last)]))
            dropped = self._in_flight.without_pixels(first, last)
        if self._pixelless_sent + gone + dropped > MAX_PIXELLESS_FRAMES:
            return None
        if batch is None or gone:
            batch = self._put_back(batch, first, last)
        self._pixelless_waiting -= dropped
        self._pixelless_sent += gone + dropped
        if not self._again:
            self.sent_to = last + 1
        elif last == self._again[0][1]:
            self._again.popleft()
        else:
            self._again[0] = last + 1, self._again[0][1]
        rows = batch.window(first, last)
        return batch.slots[rows], batch.keep[rows]

    def _put_back(self, batch: SentBatch | None, first: int, last: int) -> SentBatch:
        """Puts those of these frames that are not in flight there, without pixels. A batch of which other
        frames are in flight still has their descriptors."""
        if batch is None:
            count = last + 1 - first
            records = not_held(first, count, self._records.dtype)
            return self._in_flight.add(first, np.full(count, NO_SLOT, np.uint32), records)
        rows = batch.window(first, last)
        batch.keep["flags"][rows][~batch.live[rows]] = FRAME_NOT_HELD
        self._in_flight.put_back(batch, rows)
        return batch

    def resume(self, missing: Iterable[tuple[int, int]]) -> None:
        """Goes on over a new connection to a daemon that lacks these of the frames that were sent."""
        self._sent_before, self._again = self.sent_to, deque(missing)
        # What is missing waits anew. Were it counted as sent, frames that are gone, before it, could wait for
        # room that only its release would make.
        lacking = sum(self._in_flight.without_pixels(first, last) for first, last in self._again)
        at_daemon = self._in_flight.without_pixels(0, self.sent_to - 1) - lacking
        self._pixelless_waiting += self._pixelless_sent - at_daemon
        self._pixelless_sent = at_daemon

    def release(self, released: npt.NDArray[np.uint64]) -> None:
        """Releases all frames of a message, uint64[n, 2] of (first, last): their slots are free. Raises
        ``ProtocolError``."""
        if (released[:, 1] >= self.sent_to).any():  # as they came: from 2**63 on they would be negative
            raise ProtocolError(
                "a release of frames that were not sent",
                expected=f"below {self.sent_to}",
                got=int(released[:, 1].max()),
            )
        ranges = released.astype(np.int64)
        before = ranges[:, 1] < self._sent_before
        slots = [self._in_flight.release_known(first, last) for first, last in ranges[before].tolist()]
        slots.append(self._in_flight.release_ranges(ranges[~before]))
        free = np.concatenate(slots)
        with_pixels = free[free != NO_SLOT]
        self._pixelless_sent -= len(free) - len(with_pixels)
        assert (self._states[with_pixels] == HELD).all(), "a frame in flight keeps its slot"
        self._states[with_pixels] = FREE
        self.free.give_back(with_pixels)


def _packer(descriptor: np.dtype[np.void]) -> struct.Struct:
    """Returns the record of wire/descriptor.py as a ``Struct``, which packs it without a NumPy scalar."""
    names = descriptor.names or ()
    further = f"{descriptor['further'].shape[0]}d" if "further" in names else ""
    json = f"{descriptor[JSON_FIELD].itemsize}s" if JSON_FIELD in names else ""
    packer = struct.Struct(f"<QqqIIqq{_KNOWN}dQ{further}{json}")
    assert packer.size == descriptor.itemsize, "the same record"
    return packer
