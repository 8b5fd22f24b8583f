"""The free slots of a ring or of the staging area, as numbers in one array: taken and returned in batches,
without a Python object for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator


def free_slots(slot_count: int, frame_places: int) -> FreeSlots | FreeRuns:
    """Returns the free slots of a ring for frames that take so many slots each."""
    return FreeSlots(slot_count) if frame_places == 1 else FreeRuns(slot_count, frame_places)


class FreeSlots:
    """A queue of at most ``slot_count`` different slots: the slot that was given back first is taken first,
    so that neighbours stay together. Not synchronized."""

    def __init__(self, slot_count: int, slots: npt.ArrayLike | None = None) -> None:
        """``slots``: the free ones; None for all of them."""
        self._queue = np.arange(slot_count, dtype=np.int64)
        self._first = 0
        self._free = slot_count
        if slots is not None:
            self._free = 0
            self.give_back(np.asarray(slots, np.int64))

    def __len__(self) -> int:
        return self._free

    def __iter__(self) -> Iterator[int]:
        """Yields the free slots in the order in which they will be taken."""
        order = (self._first + np.arange(self._free)) % max(1, self._queue.size)
        yield from self._queue[order].tolist()

    def take_one(self) -> int:
        """Takes the next slot; there must be one."""
        assert self._free, "asked for only where there is one"
        slot: int = self._queue.item(self._first)
        self._first += 1
        if self._first == self._queue.size:
            self._first = 0
        self._free -= 1
        return slot

    def take(self, most: int) -> npt.NDArray[np.int64]:
        """Takes the next slots, all that are free but at most ``most``; returns a new array."""
        count = min(most, self._free)
        end = self._first + count
        if end <= self._queue.size:
            slots = self._queue[self._first : end].copy()
        else:
            slots = np.concatenate((self._queue[self._first :], self._queue[: end - self._queue.size]))
        self._first = end % max(1, self._queue.size)
        self._free -= count
        return slots

    def give_back(self, slots: npt.NDArray[np.integer]) -> None:
        """Puts slots back, to be taken after all free ones."""
        self._put((self._first + self._free) % max(1, self._queue.size), slots)

    def give_back_first(self, slots: npt.NDArray[np.integer]) -> None:
        """Puts slots back that were taken and not used, to be taken before all free ones."""
        self._first = (self._first - slots.size) % max(1, self._queue.size)
        self._put(self._first, slots)

    def _put(self, at: int, slots: npt.NDArray[np.integer]) -> None:
        assert self._free + slots.size <= self._queue.size, "a slot is free once"
        until_end = min(slots.size, self._queue.size - at)
        self._queue[at : at + until_end] = slots[:until_end]
        self._queue[: slots.size - until_end] = slots[until_end:]
        self._free += slots.size


class FreeRuns:
    """The free slots of a ring whose frames take several slots one behind the other, a run: all of them or
    none. A run is free again once each of its slots was given back. A rest that is no whole run is not used.
    Not synchronized."""

    def __init__(self, slot_count: int, length: int) -> None:
        self._length = length
        self._runs = FreeSlots(slot_count // length)
        self._taken = np.zeros(slot_count // length, np.int64)  # slots of each run

    def __len__(self) -> int:
        return len(self._runs) * self._length

    def take_one(self) -> int:
        """Takes the next run; returns its first slot. There must be one."""
        run = self._runs.take_one()
        self._taken[run] = self._length
        return run * self._length

    def take(self, most: int) -> npt.NDArray[np.int64]:
        """Takes the slots of the next runs, all that are free but at most ``most`` slots."""
        runs = self._runs.take(most // self._length)
        self._taken[runs] = self._length
        slots: npt.NDArray[np.int64] = (runs[:, None] * self._length + np.arange(self._length)).ravel()
        return slots

    def give_back(self, slots: npt.NDArray[np.integer]) -> None:
        """Puts slots back; runs that are whole again are taken after all free ones."""
        self._runs.give_back(self._ended(slots))

    def give_back_first(self, slots: npt.NDArray[np.integer]) -> None:
        """Puts whole runs back that were taken and not used, to be taken before all free ones."""
        self._runs.give_back_first(self._ended(slots))

    def _ended(self, slots: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """Notes slots that were given back; returns the runs that became free."""
        runs, counts = np.unique(slots // self._length, return_counts=True)
        self._taken[runs] -= counts
        assert (self._taken[runs] >= 0).all(), "a slot is free once"
        free: npt.NDArray[np.integer] = runs[self._taken[runs] == 0]
        return free
