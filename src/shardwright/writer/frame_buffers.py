"""The frame buffers of the in-process writer: one allocation, possibly an earlier writer's, with a slot for
each frame, and the table of which frame is in which slot. A frame that is not copied takes a slot as well,
whose memory is not used: its own memory is kept until the slot is free again."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from shardwright.disk.shared_mapping import lies_in_file
from shardwright.disk.spare_memory import spare_memory
from shardwright.kernels.copy import copy_streaming
from shardwright.wire.free_slots import free_slots

STREAM_FROM_BYTES = 1 << 20  # smaller frames are gathered while they are still in a cache
_NO_FRAME = -1
_NONE = np.zeros(0, np.int64)


class SlotTable:
    """The slot of each frame in flight, by sequence. The arrays are made once, so the cost of a frame does
    not grow with the frames in flight.

    The entry of a frame is at its sequence modulo the number of slots. If a frame whose slab waits for late
    frames still has that entry, the new frame goes into a dict.
    """

    def __init__(self, slots: int) -> None:
        self._sequence_at = np.full(slots, _NO_FRAME, np.int64)
        self._slot_at = np.zeros(slots, np.int64)
        self._elsewhere: dict[int, int] = {}
        self.used = 0

    def add(self, first: int, slots: npt.NDArray[np.int64]) -> None:
        """Enters frame ``first + i`` as the one in ``slots[i]``; at most as many as there are slots."""
        if slots.size == 1:  # without arrays, which would take as long as all else that an append does here
            self._add_one(first, slots.item())
        elif slots.size:
            self._add_many(first, slots)
        self.used += slots.size

    def _add_one(self, sequence: int, slot: int) -> None:
        at = sequence % self._sequence_at.size
        if self._sequence_at[at] == _NO_FRAME:
            self._sequence_at[at], self._slot_at[at] = sequence, slot
        else:
            self._elsewhere[sequence] = slot

    def _add_many(self, first: int, slots: npt.NDArray[np.int64]) -> None:
        sequences = np.arange(first, first + slots.size)
        at = sequences % self._sequence_at.size
        home = self._sequence_at[at] == _NO_FRAME
        self._sequence_at[at[home]] = sequences[home]
        self._slot_at[at[home]] = slots[home]
        self._elsewhere.update(zip(sequences[~home].tolist(), slots[~home].tolist(), strict=True))

    def pop(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Removes frames that are in flight, in any order, and returns their slots."""
        if not sequences.size:
            return _NONE
        at = sequences % self._sequence_at.size
        home = self._sequence_at[at] == sequences
        self._sequence_at[at[home]] = _NO_FRAME
        rest = [self._elsewhere.pop(sequence) for sequence in sequences[~home].tolist()]
        self.used -= sequences.size
        return np.concatenate((self._slot_at[at[home]], np.array(rest, np.int64)))


class Lent:
    """Memory of the caller that is read in place of a slot's: one object for all frames of a stack."""

    __slots__ = ("pixels",)

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels


def can_be_lent(pixels: np.ndarray) -> bool:
    """Returns whether the kernels can read a frame, or a stack of them, where it lies: in order, aligned,
    little-endian, and not in a mapped file, which another process may truncate (SIGBUS)."""
    if not (pixels.flags.c_contiguous and pixels.flags.aligned) or pixels.dtype != pixels.dtype.newbyteorder(
        "<"
    ):
        return False
    return not lies_in_file(pixels)


class FrameBuffers:
    """The slots of the in-process writer, and the frames in them. ``pixels``, ``put``, ``put_many`` and
    ``lend`` are for the thread that took the slots, ``let_go`` is for any. The writer's lock guards the
    rest."""

    def __init__(self, slot_bytes: int, slots: int, frame_places: int = 1) -> None:
        """``frame_places``: the slots of each frame, which lie one behind the other."""
        self._free = free_slots(slots, frame_places)
        self._places = frame_places
        self._table = SlotTable(slots)
        self._slot_bytes = slot_bytes
        self._lent = np.full(slots, None, object)  # by slot
        self._to_let_go: deque[Lent] = deque()  # has no reader any more
        self.copying = 0  # slots that are taken, whose frames are not submitted yet
        self.claimed = 0  # slots into which a camera writes as long as it likes
        self._scratch: np.ndarray | None = None  # for claims whose frames are to be dropped
        self._memory = spare_memory.take(slots * slot_bytes)  # last: once taken, it must be given back
        self._slots = self._memory[: slots * slot_bytes].reshape(slots, slot_bytes)
        self.address = int(self._slots.ctypes.data)

    def take(self, most: int = 1) -> npt.NDArray[np.int64]:
        """Takes and returns free slots: as many as are free, at most ``most``. ``begin`` or ``claim``
        follows."""
        return self._free.take(most)

    def begin(self, slots: npt.NDArray[np.int64]) -> None:
        """Frames are copied to these slots; ``enter``, ``give_back`` or ``abandon`` follows."""
        self.copying += slots.size

    def enter(self, sequence: int, slots: npt.NDArray[np.int64]) -> None:
        """Makes slots of ``begin`` those of frames ``sequence`` onwards."""
        self.copying -= slots.size
        self._table.add(sequence, slots)

    def give_back(self, slots: npt.NDArray[np.int64]) -> None:
        """Frees slots of ``begin`` whose frames are not submitted."""
        self.copying -= slots.size
        self._end_loans(slots)
        self._free.give_back_first(slots)

    def abandon(self, slots: npt.NDArray[np.int64]) -> None:
        """Leaves slots of ``begin`` to a copy that may still go on."""
        self.copying -= slots.size
        self.claimed += slots.size

    def claim(self, slots: npt.NDArray[np.int64]) -> None:
        """A camera writes into these slots; ``begin_claimed`` or ``give_back_claimed`` follows."""
        self.claimed += slots.size

    def begin_claimed(self, slots: npt.NDArray[np.int64]) -> None:
        self.claimed -= slots.size
        self.copying += slots.size

    def give_back_claimed(self, slots: npt.NDArray[np.int64]) -> None:
        self.begin_claimed(slots)
        self.give_back(slots)

    def release(self, sequences: np.ndarray) -> None:
        """Frees the slots of these frames, which have no reader any more."""
        slots = self._table.pop(sequences.astype(np.int64))
        self._end_loans(slots)
        self._free.give_back(slots)

    def _end_loans(self, slots: npt.NDArray[np.int64]) -> None:
        self._to_let_go.extend(lent for lent in self._lent[slots] if lent is not None)
        self._lent[slots] = None

    def let_go(self) -> None:
        """Drops the references to memory that was lent and has no reader any more. From any thread, without
        its locks: the last reference may go, which frees gigabytes or calls back into the caller's code."""
        while self._to_let_go:
            with suppress(IndexError):  # another thread was faster
                self._to_let_go.popleft()

    def lend(self, slots: npt.NDArray[np.int64], pixels: np.ndarray) -> npt.NDArray[np.int64]:
        """Keeps the memory of frames, one behind the other, until their slots, which the caller took, are
        free again; returns the frames' addresses. ``can_be_lent`` must have said so."""
        self._lent[slots] = Lent(pixels)
        plane_bytes = pixels.nbytes // slots.size
        addresses: npt.NDArray[np.int64] = int(pixels.ctypes.data) + plane_bytes * np.arange(slots.size)
        return addresses

    def pixels(self, slots: npt.NDArray[np.int64], form: np.ndarray) -> np.ndarray:
        """Returns the pixels, of the shape and dtype of ``form``, that lie in the slots of a claim. Without
        any they are in memory that all frames which are to be dropped share."""
        if slots.size:
            memory = self._slots[slots[0] : slots[0] + self._places]
        else:
            if self._scratch is None:
                self._scratch = np.empty((self._places, self._slot_bytes), np.uint8)
            memory = self._scratch
        plane_bytes = form.nbytes // self._places
        pixels: np.ndarray = memory[:, :plane_bytes].view(form.dtype).reshape(form.shape)
        return pixels

    def addresses_of(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        addresses: npt.NDArray[np.int64] = self.address + slots * self._slot_bytes
        return addresses

    def put(self, slot: int, pixels: np.ndarray) -> int:
        """Copies a frame to a slot that the caller took; returns the slot's address."""
        assert pixels.nbytes <= self._slot_bytes, "``FrameAdmission`` has checked it"
        address = self.address + slot * self._slot_bytes
        dtype = pixels.dtype.newbyteorder("<")
        if pixels.nbytes >= STREAM_FROM_BYTES and pixels.flags.c_contiguous and pixels.dtype == dtype:
            copy_streaming(address, int(pixels.ctypes.data), pixels.nbytes)
        else:
            np.copyto(self._slots[slot, : pixels.nbytes].view(dtype).reshape(pixels.shape), pixels)
        return address

    def put_many(self, slots: npt.NDArray[np.int64], pixels: np.ndarray) -> npt.NDArray[np.int64]:
        """Copies frames (count, rows, columns), or (count, channels, rows, columns), to slots that the caller
        took; returns the addresses."""
        dtype, plane_bytes = pixels.dtype.newbyteorder("<"), pixels[0].nbytes // self._places
        whole = len(self._slots) // self._places * self._places
        views = self._slots[:whole, :plane_bytes].view(dtype).reshape(-1, *pixels.shape[1:])
        views[slots[:: self._places] // self._places] = pixels
        return self.addresses_of(slots)

    @property
    def submitted(self) -> int:
        """The slots whose frames are submitted and have readers."""
        return self._table.used

    @property
    def used(self) -> int:
        return self._table.used + self.copying + self.claimed

    def close(self) -> None:
        """Leaves the memory to the next writer, unless a camera may still write into claimed slots, or a
        thread copies a frame after a defect has ended the writer. Only when no thread reads pixels any
        more."""
        self._lent[:] = None
        if self.claimed or self.copying:
            spare_memory.leave(self._memory)
        else:
            spare_memory.give_back(self._memory)
