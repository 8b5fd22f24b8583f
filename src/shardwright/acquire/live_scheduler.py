"""Decides when readers of files are told what is stored, in an acquisition whose shards they see grow
(``live``), or whose split shard rows have whole shards before they are sealed: at once after a pause, else
twice a second. A part of the core: no clock, thread or file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Extents, image_of

from .commands import Grow, Show
from .states import FilesState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shardwright.array.grid import Grids

    from .commands import Command
    from .shard_rows import ShardRow

SHOW_INTERVAL_S = 0.5  # together with a commit that the sealer is at: a second
END_INTERVAL_S = 5.0  # while the store is being ended, which writes all shapes once more
# For each shape that was written the last time: of a plate of thousands of images they would be most of all
# that is written, and each replaced file makes the next new one dearer (ext4 looks at all inodes that were
# freed in the last minute before it takes one).
SHAPE_INTERVAL_S = 0.01
_LISTED_BY_SEAL = (FilesState.SEALING, FilesState.NO_ROOM_TO_SEAL, FilesState.GONE)


class LiveScheduler:
    """Decides when readers of files are told about stored slabs. ``live`` False: readers see only whole
    shards, and of shard rows that are not split nothing before they are sealed. ``ask`` takes the
    commands."""

    def __init__(self, grids: Grids, ask: Callable[[Command], None], *, live: bool) -> None:
        self._live = live
        self._grids = grids
        self._ask = ask
        # By shard row: stored slabs that the shards do not list yet. Forgotten when the files are replaced:
        # the new ones may lack them.
        self._waiting: dict[int, list[int]] = {}
        # By image: stored slabs that its shape does not cover yet, perhaps. They wait while one before them
        # is being encoded: a shape that covers it would show fill value where a frame is about to be.
        self._beyond: dict[int, list[int]] = {}
        self._covered = Extents(grids)  # how far the shapes reach; they never shrink
        # By image: its shape as asked for last. A slab that waits long for an earlier one would have the same
        # shape written twice a second.
        self._asked: dict[int, tuple[int, ...]] = {}
        self._next_s = 0.0  # at most so often: each time costs a sync of a shard index and of zarr.json
        # By image, a shard row that is sealed: its shape does not cover that yet, perhaps.
        self._sealed: dict[int, int] = {}
        self._shapes_s = -math.inf  # when shapes grew last over what is sealed
        self._shapes = 0  # how many did then
        self.under_way = 0  # commands without an answer: after it readers may see more

    def take_images(self, grids: Grids) -> None:
        """Takes the grids with those of images that were added."""
        covered, self._covered, self._grids = self._covered, Extents(grids), grids
        self._covered.reach_as(covered)

    # ------------------------------------------------------------------ what is stored

    def stored(self, shard_row: ShardRow, slabs: Iterable[int]) -> bool:
        """Notes stored slabs of a shard row. One that is opened again is seen when it is sealed again.
        Returns whether they are seen before that."""
        found, number = list(slabs), shard_row.number
        is_seen = self._is_seen_early(number) and not shard_row.reopened
        if found and is_seen:
            self._waiting.setdefault(number, []).extend(found)
            self._beyond.setdefault(image_of(number), []).extend(found)
        return is_seen

    def _is_seen_early(self, shard_row: int) -> bool:
        return self._live or self._grids.of(shard_row).is_split

    def forget(self, shard_row: int) -> None:
        """Drops the slabs of a shard row whose files are replaced: those in the new ones are noted again."""
        image, dropped = image_of(shard_row), set(self._waiting.pop(shard_row, ()))
        if image in self._beyond:
            self._beyond[image] = [slab for slab in self._beyond[image] if slab not in dropped]

    def sealed(self, shard_row: ShardRow, sealed: np.ndarray) -> None:
        """Notes a sealed shard row: its shards list all that it has. ``sealed``: as for ``begin``."""
        self._waiting.pop(shard_row.number, None)
        if self._is_seen_early(shard_row.number) and shard_row.reopened:
            self.begin(sealed)
            self._beyond.setdefault(image_of(shard_row.number), [])

    def begin(self, sealed: np.ndarray) -> None:
        """Lets the shapes cover what is sealed: int64[images, axes], how far that reaches."""
        np.maximum(self._covered.along, sealed, out=self._covered.along)

    def grows_over(self, shard_row: int) -> None:
        """Notes a sealed shard row over which the shape of its image may grow."""
        self._sealed[image_of(shard_row)] = shard_row

    # ------------------------------------------------------------------ what readers are told

    @property
    def has_sealed(self) -> bool:
        """True if the shape of an image may grow over what is sealed."""
        return bool(self._sealed)

    def take_sealed(self, now_s: float, interval_s: float) -> list[int]:
        """Returns a sealed shard row of each image whose shape is to grow now, so that the images of a plate
        grow together; none within ``interval_s`` of the last time, or longer if many grew then. With 0 all
        that are to grow do so now."""
        pause_s = interval_s and max(interval_s, SHAPE_INTERVAL_S * self._shapes)
        if not self._sealed or now_s < self._shapes_s + pause_s:
            return []
        rows, self._sealed = [row for _, row in sorted(self._sealed.items())], {}
        self._shapes_s, self._shapes = now_s, len(rows)
        return rows

    def is_due(self, now_s: float, *, at_once: bool = False) -> bool:
        return bool(self._beyond) and (at_once or now_s >= self._next_s)

    def show(
        self, now_s: float, shard_rows: Mapping[int, ShardRow], encoding: Iterable[int], received: np.ndarray
    ) -> None:
        """Lets readers see what is new: chunks first, then the shapes that cover them, but no
        slab behind one of those in ``encoding``, which may be stored a moment later. ``received``:
        int64[images, axes], how far frames reach."""
        self._next_s = now_s + SHOW_INTERVAL_S
        self._list(shard_rows)
        held = {image_of(number) for number, shard_row in shard_rows.items() if _hides_slabs(shard_row)}
        first: dict[int, int] = {}
        for slab in encoding:
            first[image_of(slab)] = min(slab, first.get(image_of(slab), slab))
        for image in sorted(self._beyond.keys() - held):
            self._cover(image, first.get(image), received)

    def _list(self, shard_rows: Mapping[int, ShardRow]) -> None:
        slabs: dict[int, tuple[int, ...]] = {}
        later: dict[int, list[int]] = {}
        for number, waiting in self._waiting.items():
            shard_row = shard_rows.get(number)
            if shard_row is None or shard_row.files_state in _LISTED_BY_SEAL:
                continue
            if shard_row.ready:
                slabs[number] = tuple(waiting)
            else:
                later[number] = waiting
        self._waiting = later
        if slabs:
            self.under_way += 1
            self._ask(Show(slabs))

    def grow(self, image: int, extents: tuple[int, ...]) -> None:
        """Lets the shape of an image grow."""
        self.under_way += 1
        self._ask(Grow(image, extents))

    def answered(self, commands: int) -> None:
        """Notes answers to commands of this scheduler."""
        self.under_way -= commands

    def _cover(self, image: int, stop: int | None, received: np.ndarray) -> None:
        slabs = self._beyond.pop(image)
        reached = [slab for slab in slabs if stop is None or slab < stop]
        if len(reached) < len(slabs):
            self._beyond[image] = [slab for slab in slabs if stop is not None and slab >= stop]
        ends = [
            self._grids.of(slab).last_position_in_slab(slab)
            for slab in reached
            # else a shape would cover the rest of the step, which is still to come
            if self._live or self._grids.of(slab).ends_a_step(slab)
        ]
        self._covered.reach(np.array(ends, np.int64))
        grid = self._grids.grids[image]
        reach = np.minimum(self._covered.along[image], received[image])[: len(grid.growing)]
        if stop is not None and not self._live and reach.size and reach[0] > grid.first_step_of(stop):
            # Sealed shard rows reach beyond a slab that waits, in a row that was opened again.
            reach[0] = grid.first_step_of(stop)
            self._beyond.setdefault(image, [])
        extents = tuple(reach.tolist())
        if self._asked.get(image) != extents:  # a slab may wait long for an earlier one
            self._asked[image] = extents
            self.grow(image, extents)


def _hides_slabs(shard_row: ShardRow) -> bool:
    """Returns whether stored slabs of a shard row may not be seen yet."""
    return shard_row.rewriting or shard_row.replaces_sealed
