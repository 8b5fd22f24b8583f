"""The slab table: the frames that each open slab has and waits for. Owned by the acquisition's thread;
workers read a row while its slab is at them.

States of a row: free -> collecting -> (complete, or closed with holes) waiting or at the workers -> free. Any
of its frames may be staged meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import image_of
from shardwright.kernels.place import place_frames
from shardwright.shard.frame_record import PASSED_OVER
from shardwright.shard.frames_in_place import IN_PLACE

from .limits import joined_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardwright.array.grid import Grids

    from .commands import Joined

FREE = -1
# in ``staging_slot``; 0 and more: the slot that holds the frame; WITH_ITS_SLAB: in place, and stored with the
# slab, which is closed
UNSTAGED, ON_ITS_WAY, WITH_ITS_SLAB = -1, -2, -3


def first_of_fullest_image(weights: Mapping[int, int], allowed: Callable[[int], int]) -> int | None:
    """Chooses what to close first: the oldest slab (or shard row) of the image that exceeds its allowance the
    most. ``allowed(number)``: how many its image may keep open. ``weights``: by number, in the order in
    which they were opened. None if there are none."""
    lowest: dict[int, int] = {}
    more: dict[int, int] = {}
    for number, weight in weights.items():
        image = image_of(number)
        lowest[image] = min(number, lowest.get(image, number))
        more[image] = more.get(image, -allowed(number)) + weight
    return lowest[max(more, key=more.__getitem__)] if more else None


class SlabTable:
    """The frames of the slabs that are not durable yet, ``rows`` slabs at once, each with room for
    ``grids.frames_per_slab`` frames in storage order.

    addresses     int64[R,P]  of each frame's pixels, 0 where none has come, or ``IN_PLACE``
    sequences     int64[R,P]
    records       record_dtype[R,P]
    staging_slot  int64[R,P]
    joined        uint32[R,M], bool[R,M]  of what is in place of each of a slab's chunks
    """

    def __init__(self, grids: Grids, rows: int, record_dtype: np.dtype[np.void]) -> None:
        self._grids = grids
        deepest = grids.frames_per_slab
        # int64[R]: the slab in each row. A row keeps its slab until its frames are nobody's any more, so that
        # every report about it finds its shard row.
        self.slab = np.full(rows, FREE, np.int64)
        # ``slab`` for the kernel: FREE for one closed with holes, which takes no more frames
        self._taking = np.full(rows, FREE, np.int64)
        self.addresses = np.zeros((rows, deepest), np.int64)
        self.sequences = np.zeros((rows, deepest), np.int64)
        self.records = np.zeros((rows, deepest), record_dtype)
        self.staging_slot = np.full((rows, deepest), UNSTAGED, np.int64)
        joined = rows, joined_chunks(grids)
        self.joined = np.zeros(joined, np.uint32), np.zeros(joined, np.bool_)
        self.frames = np.zeros(rows, np.int64)  # that each row has
        self._in_place = np.zeros(rows, np.int64)  # of these, whose pixels are in the chunks
        self.expected = np.zeros(rows, np.int64)  # frames of the whole slab
        self._free = list(range(rows - 1, -1, -1))
        self._collecting: dict[int, int] = {}  # slab -> row
        self.image = 0  # of the newest frame: others may keep fewer slabs open than it
        self._completed = np.zeros(rows, np.int64)
        self._words = self.records.view(np.int64).reshape(rows, deepest, -1)

    def take_images(self, grids: Grids) -> None:
        """Takes the grids with those of images that were added."""
        self._grids = grids

    @property
    def held_frames(self) -> int:
        """The number of frames in memory that wait in incomplete slabs."""
        if not self._collecting:
            return 0  # asked at each step
        rows = list(self._collecting.values())
        return int((self.frames[rows] - self._in_place[rows]).sum())

    @property
    def held_slots(self) -> int:
        """As ``held_frames``, with all slots of a frame of colours as long as any of them waits: they are
        free together."""
        places = self._grids.frame_places
        if places == 1:
            return self.held_frames
        rows = list(self._collecting.values())
        addresses = self.addresses[rows]
        waiting = self.sequences[rows][(addresses != 0) & (addresses != IN_PLACE)]
        return places * np.unique(waiting // places).size

    @property
    def free_rows(self) -> int:
        return len(self._free)

    @property
    def rows_used(self) -> int:
        """From any thread."""
        return self.slab.size - len(self._free)

    def place(
        self,
        first: int,
        positions: np.ndarray,
        sequences: np.ndarray,
        addresses: np.ndarray,
        records: np.ndarray,
        statuses: np.ndarray,
    ) -> tuple[int, list[int], int]:
        """``kernels.place.place_frames`` on this table. Returns (frames done, rows completed, slab without a
        row or -1)."""
        batch = (positions, sequences, addresses, records.view(np.int64).reshape(records.size, -1))
        table = (self._taking, self.addresses, self.sequences, self._words, self.frames, self.expected)
        done, count, missing = place_frames(
            first, batch, self._grids.tables, table, statuses, self._completed
        )
        if done:
            self.image = image_of(int(positions[done - 1]))
        rows = self._completed[:count].tolist()
        for row in rows:
            del self._collecting[int(self.slab[row])]
        return int(done), rows, int(missing)

    def open(self, slab: int) -> bool:
        """Gives ``slab`` a free row; returns False when there is none."""
        if not self._free:
            return False
        row = self._free.pop()
        self.addresses[row] = 0
        self.staging_slot[row] = UNSTAGED
        self.frames[row] = self._in_place[row] = 0
        for joined in self.joined:
            joined[row] = 0
        self.expected[row] = self._grids.of(slab).frames_in_slab(slab)
        self.slab[row] = self._taking[row] = slab
        self._collecting[slab] = row
        return True

    def oldest(self) -> int | None:
        """Returns the incomplete slab to close when there is no row for another one."""
        return first_of_fullest_image(
            dict.fromkeys(self._collecting, 1), lambda slab: self._grids.slabs_of(slab, self.image)
        )

    def oldest_held(self) -> int | None:
        """Returns the incomplete slab to close when too many frames are held."""
        return first_of_fullest_image(
            {slab: int(self.frames[row]) for slab, row in self._collecting.items()},
            lambda slab: self._grids.held_of(slab, self.image),
        )

    def incomplete_of_shard_row(self, shard_row: int) -> list[int]:
        return [slab for slab in self._collecting if self._grids.shard_row_of_slab(slab) == shard_row]

    def incomplete(self) -> list[int]:
        return sorted(self._collecting)

    def collecting_rows(self) -> list[int]:
        return list(self._collecting.values())

    def close(self, slab: int, *, passed_over: bool = False) -> int:
        """Stops collecting an incomplete slab; returns its row, which now belongs to the workers.
        ``passed_over``: by newer frames, which its records then say."""
        row = self._collecting.pop(slab)
        self._taking[row] = FREE
        self.records["flags"][row] = PASSED_OVER if passed_over else 0
        return row

    def count_in_records(self, row: int) -> None:
        """Writes into the records of a slab that takes no more frames how many it has."""
        self.records["slab_frames"][row] = int(self.frames[row]) % (1 << 16)

    def is_collecting(self, row: int) -> bool:
        """Returns whether a row takes frames."""
        return int(self.slab[row]) in self._collecting

    def filled(self, row: int) -> np.ndarray:
        """Returns bool[frames_per_slab]: the places that have a frame."""
        filled: np.ndarray = self.addresses[row] != 0
        return filled

    def slab_in(self, row: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns the slab of a row with the addresses and records of its frames, for each of its places."""
        slab = int(self.slab[row])
        frames = self._grids.of(slab).frames_per_slab
        return slab, self.addresses[row, :frames], self.records[row, :frames]

    def set_slots(self, row: int, in_slab: np.ndarray, slots: np.ndarray | int) -> None:
        """Notes where frames are staged: ``staging_slot`` has the values."""
        self.staging_slot[row, in_slab] = slots

    def put_in_place(self, row: int, in_slab: np.ndarray, joined: Joined) -> None:
        """Notes that the pixels of frames are in the chunks of their slab, of which ``joined`` is what they
        add."""
        self.addresses[row, in_slab] = IN_PLACE
        self._in_place[row] += in_slab.size
        crcs, not_fill = joined
        self.joined[0][row, : crcs.size] ^= crcs
        self.joined[1][row, : crcs.size] |= not_fill

    def is_in_place(self, row: int) -> bool:
        """Returns whether the pixels of all frames of a row are in the chunks of its slab."""
        return bool(self._in_place[row] == self.frames[row])

    def joined_in(self, row: int) -> Joined | None:
        """Returns views of ``joined`` for one row; None where no frame is put in place."""
        crcs, not_fill = self.joined
        return (crcs[row], not_fill[row]) if self._grids.in_place else None

    def unstaged_since(self, row: int, before_ns: int) -> np.ndarray:
        """Returns int64[n] indices in the slab whose frame came by ``before_ns`` (monotonic) and is not
        staged."""
        waiting = (
            self.filled(row)
            & (self.staging_slot[row] == UNSTAGED)
            & (self.records["arrival_monotonic_ns"][row] <= before_ns)
        )
        return np.flatnonzero(waiting)

    def free(self, row: int) -> None:
        self.slab[row] = self._taking[row] = FREE
        self._free.append(row)
