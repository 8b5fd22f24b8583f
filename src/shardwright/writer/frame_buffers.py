"""The in-process writer's frame buffers: one allocation, perhaps an earlier writer's, a slot for each frame;
and which frame is in which slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardwright.kernels.copy import copy_streaming
from shardwright.storage.spare_memory import spare_memory
from shardwright.wire.free_slots import FreeSlots

if TYPE_CHECKING:
    from shardwright.array.spec import ArraySpec

STREAM_FROM_BYTES = 1 << 20  # smaller frames are gathered while they are still in a cache
_NOBODY = -1
_NONE = np.zeros(0, np.int64)


class SlotTable:
    """Which slot each frame in flight is in, by sequence: arrays made once, since what grows with the frames
    in flight is no constant cost.

    A frame stands at its sequence modulo the number of slots. Another one may be there still, whose slab
    waits for frames that come late: then it stands in a dict beside.
    """

    def __init__(self, slots: int) -> None:
        self._sequence_at = np.full(slots, _NOBODY, np.int64)
        self._slot_at = np.zeros(slots, np.int64)
        self._elsewhere: dict[int, int] = {}
        self.used = 0

    def add(self, first: int, slots: npt.NDArray[np.int64]) -> None:
        """Frame ``first + i`` is in ``slots[i]``; at most as many as there are slots."""
        if not slots.size:
            return
        sequences = np.arange(first, first + slots.size)
        places = sequences % self._sequence_at.size
        home = self._sequence_at[places] == _NOBODY
        self._sequence_at[places[home]] = sequences[home]
        self._slot_at[places[home]] = slots[home]
        self._elsewhere.update(zip(sequences[~home].tolist(), slots[~home].tolist(), strict=True))
        self.used += slots.size

    def pop(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The slots of frames that are in flight, in any order."""
        if not sequences.size:
            return _NONE
        places = sequences % self._sequence_at.size
        home = self._sequence_at[places] == sequences
        self._sequence_at[places[home]] = _NOBODY
        rest = [self._elsewhere.pop(sequence) for sequence in sequences[~home].tolist()]
        self.used -= sequences.size
        return np.concatenate((self._slot_at[places[home]], np.array(rest, np.int64)))


class FrameBuffers:
    """Belongs to the writer's thread."""

    def __init__(self, spec: ArraySpec, slots: int) -> None:
        self._free = FreeSlots(slots)
        self._table = SlotTable(slots)
        self._memory = spare_memory.take(slots * spec.frame_bytes)  # last: whoever takes it gives it back
        pixels = self._memory[: slots * spec.frame_bytes].view(np.dtype(spec.dtype).newbyteorder("<"))
        self.frames = pixels.reshape(slots, *spec.frame_shape)
        self.address = int(self.frames.ctypes.data)

    def take(self, sequence: int, most: int = 1) -> npt.NDArray[np.int64]:
        """Free slots for frames ``sequence`` onwards: as many as there are, at most ``most``."""
        slots = self._free.take(most)
        self._table.add(sequence, slots)
        return slots

    def give_back(self, sequence: int, slots: npt.NDArray[np.int64]) -> None:
        """What ``take`` gave for these frames, which do not come."""
        self._free.give_back_first(self._table.pop(np.arange(sequence, sequence + slots.size)))

    def release(self, sequences: np.ndarray) -> None:
        """Nobody reads these frames any more."""
        self._free.give_back(self._table.pop(sequences.astype(np.int64)))

    def put(self, slot: int, pixels: np.ndarray) -> int:
        """Copy a frame to a slot of the caller's; returns the slot's address."""
        address = self.address + slot * pixels.nbytes
        if (
            pixels.nbytes >= STREAM_FROM_BYTES
            and pixels.flags.c_contiguous
            and pixels.dtype == self.frames.dtype
        ):
            copy_streaming(address, int(pixels.ctypes.data), pixels.nbytes)
        else:
            np.copyto(self.frames[slot], pixels)
        return address

    @property
    def used(self) -> int:
        return self._table.used

    def close(self) -> None:
        """Leave the memory to the next writer. Only when nobody reads pixels any more."""
        spare_memory.give_back(self._memory)
