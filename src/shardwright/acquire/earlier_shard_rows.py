"""The shard rows that were sealed before they were full, by an earlier process or to make room, and what
those have to keep that are open again.

A shard row that is opened again replaces its sealed shards when it is sealed once more. So what these have
must be in the new files by then: all chunks are copied there at once, except those of the slabs that are
reloaded, whose frames collect as if they had just come. Until such a slab is stored, the shard row may not be
sealed. Owned by the acquisition's thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .closed_shard_rows import EarlierMemory
from .commands import Reopen, SlabReload

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from shardwright.array.grid import Grids

    from .closed_shard_rows import EarlierShardRow


class EarlierShardRows:
    """The shard rows that a frame may open again, and what open ones owe to their sealed shards."""

    def __init__(self, grids: Grids) -> None:
        # A shard row stays here while the sealer makes new files for it: if it cannot, the sealed shards are
        # all there is.
        self._sealed = EarlierMemory(grids)
        # while the sealer makes new files: the reloaded slabs, with their slots in the staging area. The
        # command is sent again when the disk has room.
        self._asked: dict[int, SlabReload] = {}
        # of open ones: stored slabs whose empty places can be filled, but only after the shard row is sealed
        # and opened again, since chunks are written once
        self._fillable: dict[int, dict[int, np.ndarray]] = {}
        # Of open ones: slabs that stay closed for good, since there is no room for their frames or a chunk is
        # damaged. The flags of their frames do not say so: forgotten at the next seal, each frame for them
        # would have the whole shard row copied again, in vain.
        self._closed: dict[int, frozenset[int]] = {}
        # of open ones: slabs whose frames are in the sealed shards and not in the new files yet. Sealed now,
        # the new shards would replace the old ones, and these frames would be lost.
        self._reloaded_slabs: dict[int, set[int]] = {}

    def take_images(self, grids: Grids) -> None:
        """Takes the grids with those of images that were added."""
        self._sealed.take_images(grids)

    def __contains__(self, number: int) -> bool:
        return number in self._sealed

    def __getitem__(self, number: int) -> EarlierShardRow:
        return self._sealed[number]

    def remember(self, number: int, earlier: EarlierShardRow, passed: Callable[[], np.ndarray]) -> None:
        """Adds a shard row that was sealed and is not full. ``earlier``: as its records have it; what was
        decided when it was opened again is added here. ``passed``: as ``EarlierMemory.remember`` has it."""
        closed = self._closed.get(number, frozenset())
        passed_over = (earlier.passed_over - self.fillable(number).keys()) | closed
        # not dropped is one for which the sealer makes new files: its report needs what was sealed
        self._sealed.remember(number, replace(earlier, passed_over=passed_over), passed, self._asked)

    def restore(self, earlier: EarlierMemory) -> None:
        """Takes the shard rows that recovery found."""
        self._sealed = earlier

    def restore_open(self, number: int, fillable: dict[int, np.ndarray]) -> None:
        """Adds an open shard row that was found on disk, with its stored slabs whose empty places can be
        filled: bool[frames_per_slab], which of them have a frame."""
        if fillable:
            self._fillable[number] = fillable

    def close_slab(self, number: int, slab: int) -> None:
        """Keeps the empty places of one slab empty for good."""
        earlier = self._sealed[number]
        self._sealed.change(number, replace(earlier, passed_over=earlier.passed_over | {slab}))

    def ask(self, number: int, reload: SlabReload) -> Reopen:
        """Returns the command to make new files. ``reopened`` or ``unreadable`` must follow."""
        self._asked[number] = reload
        return self.ask_again(number)

    def ask_again(self, number: int) -> Reopen:
        return Reopen(number, self._asked[number])

    def reopened(self, number: int, reloaded: frozenset[int]) -> EarlierShardRow:
        """Notes that new files have all that was sealed but the reloaded slabs. Returns what was sealed."""
        earlier, asked = self._sealed.pop(number), self._asked.pop(number)
        self._reloaded_slabs[number] = set(reloaded)
        # what was asked for and cannot be reloaded has a damaged chunk; the rest had no room
        self._closed[number] = earlier.passed_over | (set(asked.slabs) - reloaded)
        self._fillable[number] = {
            slab: filled for slab, filled in earlier.fillable_slabs().items() if slab not in asked.slabs
        }
        return earlier

    def unreadable(self, number: int) -> np.ndarray:
        """Forgets a shard row whose sealed shards cannot be read. Returns int64[n]: the slots that were taken
        for it."""
        self._sealed.pop(number)
        return self._asked.pop(number).slots

    def fillable(self, number: int) -> dict[int, np.ndarray]:
        """Returns the stored slabs of an open shard row whose empty places can be filled."""
        return self._fillable.get(number, {})

    def stored(self, number: int, slab: int) -> None:
        """Notes that the files of a shard row have a slab."""
        if number in self._reloaded_slabs:
            self._reloaded_slabs[number].discard(slab)

    def has_reloaded_slabs(self, number: int) -> bool:
        """Returns whether frames of this shard row would be lost if it were sealed now."""
        return bool(self._reloaded_slabs.get(number))

    def closed(self, number: int) -> None:
        """Forgets what an open shard row had to keep: it is sealed, or left to recovery."""
        self._fillable.pop(number, None)
        self._closed.pop(number, None)
        self._reloaded_slabs.pop(number, None)
        self._asked.pop(number, None)
