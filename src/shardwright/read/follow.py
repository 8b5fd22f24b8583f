"""Follows an acquisition: gives each frame once it is stored.

A look every ``POLL_S`` finds what is new: staged frames, slabs that are stored, shard rows that were sealed
in between. When the acquisition has ended the frame table of the finished store says what is left.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.acquisition_spec import ARRAY_NAME
from shardwright.array.frame_table_format import table_columns
from shardwright.disk.lock import is_locked
from shardwright.model.errors import ShardFormatError, StorageError, TimedOutError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.local_path import local_path
from shardwright.model.names import WORKSPACE

from .followed_frame import FollowedFrame, MetSequences
from .frame_table import open_frame_table
from .live_view import LiveView
from .store import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from .frame_table import FrameTable
    from .store import Store, StoredArray

POLL_S = 0.01
_INDEX = "index_"
_MOST_READ_TOGETHER_BYTES = 64 << 20  # of frames of one slab

Columns = dict[str, np.ndarray]
# columns of the frame table, the frames' statuses, the paths of the images' arrays and the images' names
_Found = tuple[Columns, np.ndarray, tuple[str, ...], tuple[str, ...]]


class Follower:
    """One follower of a store; one thread at a time. Frames of sequences before ``first`` are left out."""

    def __init__(self, view: LiveView, first: int = 0) -> None:
        self._view = view
        self.met = MetSequences(first)

    def leave_out(self) -> None:
        """Leaves out the frames that are stored now."""
        for columns, statuses, _, _ in self._look():
            self._new_of(columns, statuses)

    def frames(self, timeout_ms: float | None) -> Iterator[FollowedFrame]:
        """Yields frames until the acquisition has ended. Raises as ``shardwright.follow``."""
        waited_from_s = time.monotonic()
        while True:
            is_over = self.is_over
            for frame in self.look():
                yield frame
                waited_from_s = time.monotonic()
            if is_over:
                return
            if timeout_ms is not None and time.monotonic() - waited_from_s > timeout_ms / 1000:
                raise self._timed_out(timeout_ms)
            time.sleep(POLL_S)

    @property
    def is_over(self) -> bool:
        """True if no frame comes any more but those that the next ``look`` yields."""
        return self._view.is_finished

    def look(self) -> Iterator[FollowedFrame]:
        """Yields the frames that are new. Raises as ``shardwright.follow``."""
        for columns, statuses, paths, names in self._look():
            yield from self._frames(columns, self._new_of(columns, statuses), paths, names)

    def _new_of(self, columns: Columns, statuses: np.ndarray) -> np.ndarray:
        """Returns the rows of stored frames that were not met before, in the order of their sequences."""
        stored = np.flatnonzero(statuses == FrameStatus.STORED)
        new: np.ndarray = stored[self.met.new_ones(columns["sequence"][stored])]
        return new

    def _look(self) -> Iterator[_Found]:
        """Yields what the acquisition, or the finished store, has now."""
        acquiring, records = self._view.look()
        if acquiring is None:
            yield from self._finished()
            return
        paths, names = acquiring.spec.paths, acquiring.spec.names
        joined = np.concatenate([np.zeros(0, acquiring.record), *records])
        for some in itertools.chain(acquiring.take_sealed(), [joined]):
            yield dict(table_columns(some, acquiring.spec)), some["status"], paths, names

    def _finished(self) -> Iterator[_Found]:
        store = open_store(self._view.path)
        table = open_frame_table(store)
        self._view.check_there()
        if table is None:
            raise StorageError(
                f"{self._view.path} has no frame table", hint="It is not a store that shardwright wrote"
            )
        table.column("sequence")
        paths, names = table.images or (ARRAY_NAME,), table.image_names or ("",)
        for chunk in range(table.chunks):
            columns = table.with_status({name: table.read(name, chunk) for name in table.columns})
            yield (
                columns,
                np.where(self._are_inside(store, table, chunk, paths), FrameStatus.STORED, 0),
                paths,
                names,
            )

    def _are_inside(self, store: Store, table: FrameTable, chunk: int, paths: tuple[str, ...]) -> np.ndarray:
        """Returns bool[rows]: the stored frames in a chunk of the table that lie inside their arrays, which
        have these ``paths``; a crop leaves others. Raises ``ShardFormatError`` for a frame that never had a
        place, ``StorageError``."""
        stored = table.read_statuses(chunk) == FrameStatus.STORED
        images = table.read("image", chunk) if table.images else np.zeros(stored.size, np.int64)
        found = np.zeros(stored.size, np.bool_)
        for image in np.unique(images[stored]).tolist():
            if not 0 <= image < len(paths):
                raise ShardFormatError(
                    f"a stored frame of {table.path} has no image", expected=f"below {len(paths)}", got=image
                )
            array, mine = self._array(paths[image]), images == image
            part = table.of(store, array)
            indices, counts = part.read_indices(chunk), part.frame_counts(array)
            if (indices[stored[mine]] < 0).any():
                raise ShardFormatError(f"a stored frame of {table.path} has no place in {paths[image]}")
            found[mine] = stored[mine] & (indices < counts).all(axis=1)
        return found

    def _frames(
        self, columns: Columns, new: np.ndarray, paths: tuple[str, ...], names: tuple[str, ...]
    ) -> Iterator[FollowedFrame]:
        """Yields the frames of some rows of the table. Those of one slab are read together, at the first."""
        images = columns.get("image", np.zeros(len(columns["sequence"]), np.int64))
        axes = {image: self._axes(paths[image]) for image in np.unique(images[new]).tolist()}
        indices, slabs = {}, {}
        for i in new.tolist():
            names_of, chunk = axes[int(images[i])]
            indices[i] = tuple(int(columns[_INDEX + axis][i]) for axis in names_of)
            slabs[i] = (int(images[i]), *(a // n for a, n in zip(indices[i], chunk, strict=True)))
        members: dict[tuple[int, ...], list[int]] = {}
        for i, slab in slabs.items():
            members.setdefault(slab, []).append(i)
        pixels: dict[int, np.ndarray[Any, Any]] = {}
        for i, slab in slabs.items():
            if i not in pixels:
                mine = members[slab][: max(1, _MOST_READ_TOGETHER_BYTES // self._frame_bytes(paths[slab[0]]))]
                del members[slab][: len(mine)]
                where = [indices[k] for k in mine]
                frames = self._view.read_frames(paths[slab[0]], where, recorded=True)
                pixels.update(zip(mine, frames, strict=True))
            row = {name: _plain(values[i]) for name, values in columns.items()}
            wanted = {_INDEX + axis for axis in axes[slab[0]][0]}
            index = tuple(value for name, value in row.items() if name in wanted)
            yield FollowedFrame(index, names[slab[0]], pixels.pop(i), row)

    def _frame_bytes(self, path: str) -> int:
        array = self._array(path)
        return math.prod(array.shape[-2:]) * array.dtype.itemsize

    def _axes(self, path: str) -> tuple[list[str], tuple[int, ...]]:
        """Returns the names of an array's frame axes (storage order), and the shape of its slabs along
        them."""
        array = self._array(path)
        return [str(name) for name in (array.dimension_names or ())[:-2]], array.chunk_shape[:-2]

    def _array(self, path: str) -> StoredArray:
        array = self._view.array(path)
        if array is None:
            raise StorageError(f"{self._view.path / path} is not there", hint="Was the store changed?")
        return array.stored

    def _timed_out(self, timeout_ms: float) -> TimedOutError:
        alive = is_locked(self._view.path / WORKSPACE / "lock")
        return TimedOutError(
            f"no new frame of {self._view.path} was stored in time",
            expected=f"one within {timeout_ms:g} ms",
            hint="Its writer is alive: follow it again, or wait longer"
            if alive
            else "Its writer is gone: `shardwright recover` or resume() ends or continues it",
        )


def open_follower(path: str | os.PathLike[str], *, only_new: bool) -> Follower:
    """Opens the store at ``path`` for one follower. Raises as ``shardwright.follow``."""
    follower = Follower(LiveView(local_path(path)))  # an address has nothing that grows
    if only_new:
        follower.leave_out()
    return follower


def _plain(value: Any) -> Any:
    """Returns a value of a column as Python has it."""
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value
