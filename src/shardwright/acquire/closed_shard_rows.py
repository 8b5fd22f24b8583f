"""Records of closed slabs and shard rows: their places without a frame, how far sealed shards reach, and what
is stored in a shard row that can be reopened."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Extents, image_of, number_in_image
from shardwright.kernels.place import slabs_and_indices
from shardwright.shard.frame_record import PASSED_OVER

from .verdicts import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from shardwright.array.grid import Grid, Grids

REMEMBERED_HOLES = 4096  # slabs; every further frame of an older one counts as duplicate
REMEMBERED_ROWS = 4096  # that may be opened again, about a KB each; more with many images
_FULL = np.ones(0, np.bool_)


class HoleMemory:
    """The places with a frame, for slabs that were closed with empty places. Bounded; the oldest slabs are
    dropped first."""

    def __init__(self, images: int = 1) -> None:
        self._most = max(REMEMBERED_HOLES, 16 * images)
        # By slab, the oldest first; None: no frame came. Only who calls ``remember`` knows that a slab is
        # closed.
        self._filled: OrderedDict[int, np.ndarray | None] = OrderedDict()

    def take_images(self, images: int) -> None:
        """Has room for more images than it was made for."""
        self._most = max(REMEMBERED_HOLES, 16 * images)

    def remember(self, slab: int, filled: np.ndarray | None) -> None:
        """Adds a slab. ``filled`` bool[frames_per_slab]: places with a frame, None when no frame came."""
        self._filled[slab] = None if filled is None else filled.copy()
        if len(self._filled) > self._most:
            self._filled.popitem(last=False)

    def forget(self, slabs: Iterable[int]) -> None:
        """Removes slabs that take frames again."""
        for slab in slabs:
            self._filled.pop(slab, None)

    def stored(self, slab: int, in_slab: np.ndarray) -> np.ndarray:
        """Returns ``Stored`` for each of int64[n] indices in a closed slab. One that is not remembered counts
        as full."""
        filled = self._filled.get(slab, _FULL)
        if filled is None or filled is _FULL:
            return np.full(in_slab.size, Stored.NO_SLAB if filled is None else Stored.FRAME)
        return np.where(filled[in_slab], Stored.FRAME, Stored.CLOSED)


class VisibleExtent:
    """The part of the first frame axis of an image that sealed shards cover without a hole: zarr.json may
    cover no more while frames still come. Where several axes grow, nothing says before the end which shards
    are holes: it then covers nothing."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._shard_rows_per_step = math.prod(grid.shard_row_counts[1:]) if grid.counts else 1
        self._sealed: dict[int, set[int]] = {}  # step along the first axis -> shard rows sealed there
        self._steps = 0

    def seal(self, shard_row: int) -> None:
        """Notes a sealed shard row. A repeated call changes nothing: a reopened shard row stays visible."""
        step = (shard_row - self._grid.first) // self._shard_rows_per_step
        if step < self._steps:
            return
        self._sealed.setdefault(step, set()).add(shard_row)
        while len(self._sealed.get(self._steps, ())) == self._shard_rows_per_step:
            del self._sealed[self._steps]
            self._steps += 1

    def extents(self, received: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the covered elements along the growing axes, never more than ``received``: the newest index
        along each plus one."""
        if self._grid.is_ragged or not self._grid.counts:
            return (0,) * len(self._grid.growing)
        return (min(self._steps * self._grid.shard_row_frames[0], received[0]),)


class SealedShardRows:
    """The closed shard rows of all images, and how far each image is visible. Memory: what is closed out of
    order."""

    def __init__(self, grids: Grids) -> None:
        # int64[images, axes]: how far the sealed shards of each image reach. A failed acquisition shows
        # readers no more than that.
        self.extents = np.zeros_like(Extents(grids).along)
        self._grids = grids
        # By image: all below this are closed. So memory does not grow with a long acquisition.
        self._below: dict[int, int] = {}
        self._closed: set[int] = set()  # the other closed ones
        self._visible: dict[int, VisibleExtent] = {}  # by image

    def take_images(self, grids: Grids) -> None:
        """Takes the grids with those of images that were added."""
        reached = Extents(grids)
        images, axes = self.extents.shape
        self._grids, more = grids, np.zeros_like(reached.along)
        more[:images, :axes] = self.extents
        self.extents = more

    def add(self, number: int) -> None:
        image = image_of(number)
        self.visible(number).seal(number)
        reached, ends = self.extents[image], self._grids.of(number).ends_of(number)
        np.maximum(reached, (*ends, *[1] * (reached.size - len(ends))), out=reached)
        below = self._below.get(image, self._grids.of(number).first)
        if number < below:
            return  # closed before
        self._closed.add(number)
        while below in self._closed:
            self._closed.remove(below)
            below += 1
        self._below[image] = below

    def __contains__(self, number: int) -> bool:
        return number < self._below.get(image_of(number), 0) or number in self._closed

    def visible(self, number: int) -> VisibleExtent:
        """Returns the visible extent of the image of a shard row."""
        image = image_of(number)
        if image not in self._visible:
            self._visible[image] = VisibleExtent(self._grids.of(number))
        return self._visible[image]


@dataclass(frozen=True)
class EarlierShardRow:
    """A sealed shard row that can be reopened. ``begun`` int64[n]: its slabs that have a frame, ascending.
    ``holes``: for those with empty places, bool[frames_per_slab]: which places have a frame.
    ``passed_over``: those of them that stay closed, since newer frames that are kept had passed them by, or
    since they cannot be reloaded: there is no room, or a chunk is damaged.
    ``stored_bytes``: as counted for its shards in the account; None: what they take on disk."""

    begun: np.ndarray
    holes: dict[int, np.ndarray]
    passed_over: frozenset[int]
    frames: int
    stored_bytes: int | None = None

    @classmethod
    def of(cls, grids: Grids, records: np.ndarray) -> EarlierShardRow:
        """Makes it from the records of all frames stored in a shard row."""
        holes, passed_over, begun = {}, set(), split_by_slab(grids, records)
        for slab, (mine, in_slab) in begun.items():
            grid = grids.of(slab)
            if mine.size == grid.frames_in_slab(slab):
                continue
            holes[slab] = np.zeros(grid.frames_per_slab, np.bool_)
            holes[slab][in_slab] = True
            if records["flags"][mine[0]] & PASSED_OVER:
                passed_over.add(slab)
        return cls(np.array(list(begun), np.int64), holes, frozenset(passed_over), int(records.size))

    def begins(self, slab: int) -> bool:
        """Returns whether a frame of this slab is stored."""
        at = int(np.searchsorted(self.begun, slab))
        return at < self.begun.size and int(self.begun[at]) == slab

    def fillable_slabs(self) -> dict[int, np.ndarray]:
        """Returns the slabs whose empty places can still be filled, with their places that have a frame."""
        return {slab: filled for slab, filled in self.holes.items() if slab not in self.passed_over}

    def stored(self, slab: int, in_slab: np.ndarray) -> np.ndarray:
        """Returns ``Stored`` for each of int64[n] indices in a slab."""
        if not self.begins(slab):
            return np.full(in_slab.size, Stored.NO_SLAB)
        if slab not in self.holes:
            return np.full(in_slab.size, Stored.FRAME)
        empty = Stored.CLOSED if slab in self.passed_over else Stored.NOTHING
        return np.where(self.holes[slab][in_slab], Stored.FRAME, empty)


class EarlierMemory:
    """The sealed shard rows that a frame may open again, by number, in the order in which they were sealed.
    Every further frame of one that is dropped is refused.

    Bounded: the oldest are dropped first. But one is kept, however old, as long as frames in order may come
    for it: an image may rest while thousands of shard rows of another are sealed, or of other channels, and
    its next frame is not late. Those are few: an image has no more of them than ``Grid.open_shard_rows``.
    Recovery fills the same memory by the same rule as the writer. When it kept only as many as may be open
    at once, of all images together, a restart closed the places of an image that rested."""

    def __init__(self, grids: Grids) -> None:
        self._grids = grids
        self._most = max(REMEMBERED_ROWS, 16 * len(grids.grids))
        self._rows: dict[int, EarlierShardRow] = {}
        self._lasts: dict[int, int] = {}  # the last place of each, as counted within its image

    def take_images(self, grids: Grids) -> None:
        """Takes the grids with those of images that were added."""
        self._grids, self._most = grids, max(REMEMBERED_ROWS, 16 * len(grids.grids))

    def __contains__(self, number: int) -> bool:
        return number in self._rows

    def __getitem__(self, number: int) -> EarlierShardRow:
        return self._rows[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def remember(
        self,
        number: int,
        earlier: EarlierShardRow,
        passed: Callable[[], np.ndarray],
        kept: Container[int] = (),
    ) -> None:
        """Adds a shard row that was sealed just now. ``passed``: returns ``Accounts.passed``. ``kept``:
        numbers that are not dropped either."""
        self._rows.pop(number, None)
        self._rows[number] = earlier
        self._lasts[number] = number_in_image(self._grids.of(number).last_position_in_shard_row(number))
        if len(self._rows) > self._most:
            self._drop_oldest(passed().tolist(), kept)

    def _drop_oldest(self, passed: list[int], kept: Container[int]) -> None:
        for number in self._rows:
            if self._lasts[number] <= passed[image_of(number)] and number not in kept:
                self.pop(number)
                return

    def change(self, number: int, earlier: EarlierShardRow) -> None:
        """Replaces what is known of a shard row: it is as old as before."""
        assert number in self._rows, "it was remembered"
        self._rows[number] = earlier

    def pop(self, number: int) -> EarlierShardRow:
        """Removes a shard row, and returns it."""
        del self._lasts[number]
        return self._rows.pop(number)


def split_by_slab(grids: Grids, records: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Returns slab -> (indices of its frames' records, their indices within the slab), slabs ascending."""
    slabs, in_slab = slabs_and_indices(records["position"].astype(np.int64), *grids.tables)
    order = np.argsort(slabs, kind="stable")
    begun, first = np.unique(slabs[order], return_index=True)
    return (
        {
            slab: (mine, in_slab[mine])
            for slab, mine in zip(begun.tolist(), np.split(order, first[1:]), strict=True)
        }
        if records.size
        else {}
    )
