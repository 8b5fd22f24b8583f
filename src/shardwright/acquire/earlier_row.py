"""What an earlier process stored in a shard row that it closed before it was full: such a row takes frames
again when its acquisition goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardwright.kernels.place import DUPLICATE, LATE, PLACED, slabs_and_places
from shardwright.shard.frame_record import PASSED_OVER

if TYPE_CHECKING:
    from shardwright.array.grid import Grid


@dataclass(frozen=True)
class EarlierRow:
    """``begun`` int64[n]: its slabs that have a frame, ascending. ``holes``: of those with empty places,
    bool[frames_per_slab]: which places have a frame. ``passed_over``: of these, the ones that stay closed,
    since newer frames had passed them by. ``stored_bytes``: what the account has for its shards; None: what
    they take on disk."""

    begun: np.ndarray
    holes: dict[int, np.ndarray]
    passed_over: frozenset[int]
    frames: int
    stored_bytes: int | None = None

    @classmethod
    def of(cls, grid: Grid, tables: tuple[np.ndarray, ...], records: np.ndarray) -> EarlierRow:
        """From the records of all frames that are stored in a row; ``tables``: ``assembly.grid_tables``."""
        holes, passed_over, begun = {}, set(), split_by_slab(tables, records)
        for slab, (mine, places) in begun.items():
            if mine.size == grid.frames_in_slab(slab):
                continue
            holes[slab] = np.zeros(grid.frames_per_slab, np.bool_)
            holes[slab][places] = True
            if records["flags"][mine[0]] & PASSED_OVER:
                passed_over.add(slab)
        return cls(np.array(list(begun), np.int64), holes, frozenset(passed_over), int(records.size))

    def begins(self, slab: int) -> bool:
        """Whether a frame of this slab is stored."""
        place = int(np.searchsorted(self.begun, slab))
        return place < self.begun.size and int(self.begun[place]) == slab

    def takes_back(self) -> dict[int, np.ndarray]:
        """The slabs whose empty places can still be filled, with their places that have a frame."""
        return {slab: filled for slab, filled in self.holes.items() if slab not in self.passed_over}

    def fates(self, slab: int, places: np.ndarray) -> np.ndarray:
        """For each frame at int64[n] places of a slab: PLACED when the row can be opened again for it, else
        DUPLICATE or LATE."""
        if not self.begins(slab):
            return np.full(places.size, PLACED)
        if slab not in self.holes:
            return np.full(places.size, DUPLICATE)
        return np.where(self.holes[slab][places], DUPLICATE, LATE if slab in self.passed_over else PLACED)


def split_by_slab(
    tables: tuple[np.ndarray, ...], records: np.ndarray
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """slab -> (which of the frame records are its frames', their places within the slab), slabs ascending."""
    slabs, places = slabs_and_places(records["position"].astype(np.int64), *tables)
    order = np.argsort(slabs, kind="stable")
    begun, first = np.unique(slabs[order], return_index=True)
    return (
        {
            slab: (mine, places[mine])
            for slab, mine in zip(begun.tolist(), np.split(order, first[1:]), strict=True)
        }
        if records.size
        else {}
    )
