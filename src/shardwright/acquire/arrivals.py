"""The frames that came and have no place yet, in the order in which they came: none overtakes another. Owned
by the acquisition's thread."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.frame_status import FrameStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .call_time import CallTime


class Wait(enum.Enum):
    """The reason why the next frame cannot be placed yet."""

    ROW = "a row of the slab table"
    FILES = "the files of its shard row"
    ROOM = "slots or rows for a sealed shard row that takes frames again"
    NOTHING = "nothing: the acquisition fails"


@dataclass
class ArrivedFrames:
    """Frames that came together; ``first`` is the index of the next one to place."""

    records: np.ndarray
    positions: np.ndarray
    sequences: np.ndarray
    addresses: np.ndarray
    statuses: np.ndarray
    first: int = 0

    @classmethod
    def of(cls, records: np.ndarray, addresses: np.ndarray) -> ArrivedFrames:
        """``records``: with places and sequences; int64[n] ``addresses`` of the pixels."""
        sequences, positions = (records[name].astype(np.int64) for name in ("sequence", "position"))
        return cls(records, positions, sequences, addresses, np.zeros(records.size, np.uint8))

    @property
    def left(self) -> slice:
        """The frames that are left to place."""
        return slice(self.first, None)

    def place_up_to(self, done: int) -> None:
        self.first = done

    def keep(self, chosen: np.ndarray) -> None:
        """Keeps only the ``chosen`` (bool[n]) of the frames that are left to place."""
        for name in ("records", "positions", "sequences", "addresses", "statuses"):
            setattr(self, name, getattr(self, name)[self.left][chosen])
        self.first = 0


class Arrivals:
    """The queue of the frames that have no place yet. ``record_dtype``: of a frame's record."""

    def __init__(self, record_dtype: np.dtype[np.void]) -> None:
        self.client_epoch = 1  # of the client that sends now; ``set_client``
        # What the first frame waits for: a commit that would free it is due at once.
        self.waits_for: Wait | None = None
        self._record_dtype = record_dtype
        self._batches: deque[ArrivedFrames] = deque()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def set_client(self, epoch: int) -> None:
        """Sets the number of the client that sends from now on."""
        self.client_epoch = epoch

    def records_of(self, descriptors: np.ndarray, came: CallTime) -> np.ndarray:
        """Returns the records of frames that come now, as if they were stored."""
        records = np.zeros(descriptors.size, self._record_dtype)
        assert descriptors.dtype.names is not None
        for name in descriptors.dtype.names:
            records[name] = descriptors[name]
        records["slot"] = records["flags"] = 0
        records["arrival_ns"], records["arrival_monotonic_ns"] = came.utc_ns, came.ns
        records["client_epoch"] = self.client_epoch
        records["status"] = FrameStatus.STORED
        return records

    def add(self, records: np.ndarray, addresses: np.ndarray) -> None:
        """Takes frames; int64[n] ``addresses`` of their pixels."""
        if records.size:
            self._batches.append(ArrivedFrames.of(records, addresses.astype(np.int64)))

    def place(self, place: Callable[[ArrivedFrames], Wait | None]) -> None:
        """Lets frames be placed, until one has to wait."""
        self.waits_for = None
        while self._batches:
            self.waits_for = place(self._batches[0])
            if self.waits_for is not None:
                return
            self._batches.popleft()

    def positions(self) -> Iterator[np.ndarray]:
        """Yields int64[n]: the places of the frames that are here."""
        return (batch.positions[batch.left] for batch in self._batches)

    def give_up(self) -> Iterator[np.ndarray]:
        """Removes all frames, and yields their records."""
        while self._batches:
            batch = self._batches.popleft()
            yield batch.records[batch.left]
