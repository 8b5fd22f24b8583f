"""Readers that are held before any of their looks at a store while something happens to it, to its end.

A case is a scene (a store, and what happens to it), a reader, and the number of the look before which the
reader is held. The reader then continues, and gives the pixels that were stored before it began, or a typed
error: never fill for a frame that was stored.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import zarr
from tests.compaction.jobs import Here
from tests.crash.kills.live_reader import ByRanges
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.model.errors import ShardwrightError
from shardwright.read import zarr_store
from shardwright.read.follow import open_follower
from shardwright.read.store import open_store
from shardwright.rework.jobs.compact_store import Options, plan, run
from shardwright.rework.runtime.throttle import Throttle
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store

from .live_judge import SHAPE, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

QUICK: dict[str, Any] = {"store_within_ms": 20, "sync_interval_ms": 20, "threads": 1}
CHUNK, SHARD = 2, 2  # frames of a slab, slabs of a shard row
ROW = CHUNK * SHARD
WIDTH = 20  # of a chunk
OTHERS = 1000  # frames of another store with the same name are numbered from here on
WAIT_S = 60.0


def spec(**fields: Any) -> sw.ArraySpec:
    """Two shards in a shard row, and two chunks in each along x."""
    (height, width), shard = SHAPE, fields.pop("shard", SHARD)
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=CHUNK, shard_size_chunks=shard),
            sw.Dimension(name="y", count=height, chunk_size=height // 2, shard_size_chunks=shard and 1),
            sw.Dimension(name="x", count=width, chunk_size=WIDTH, shard_size_chunks=shard and 2),
        ],
        **fields,
    )


# ---------------------------------------------------------------------- what happens


class Scene:
    """A store in whose newest shard rows some frames are sealed, some in a journal, and some staged.
    ``stored``: frames that are, and have been said to be; ``first``: the oldest that readers look at."""

    def __init__(self, path: Path, *, finished: bool, array: dict[str, Any], writer: dict[str, Any]) -> None:
        self.path = path
        self._settings = {**QUICK, **writer}
        self._array = array
        self._writers: list[sw.Writer] = []
        self._writer = self._create(path)
        self.stored = 0
        self.append(ROW + CHUNK + 1)
        if finished:
            self._writer.close()

    def _create(self, path: Path, **more: Any) -> sw.Writer:
        writer = sw.create(path, spec(**self._array), **how(**self._settings, **more))
        self._writers.append(writer)
        return writer

    @property
    def first(self) -> int:
        return max(0, (self.stored // ROW - 1) * ROW)

    def append(self, count: int) -> None:
        """Appends frames until all are stored, and all shard rows that are full are sealed."""
        for i in range(self.stored, self.stored + count):
            self._writer.append(frame(i))
        self._writer.flush()
        self.stored += count
        if self._array.get("shard", SHARD) is not None:  # else shard rows have other numbers of frames
            self._wait_for_seals()

    def _wait_for_seals(self) -> None:
        give_up_s, workspace = time.monotonic() + WAIT_S, self.path / ".shardwright"
        while any(int(journal.stem) < self.stored // ROW for journal in workspace.rglob("*.journal")):
            assert time.monotonic() < give_up_s, "the writer does not seal"
            time.sleep(0.001)

    def seal(self) -> None:
        self.append(ROW)

    def store_slab(self) -> None:
        self.append(CHUNK)

    def end(self) -> None:
        self._writer.close()

    def _leave(self, point: str) -> None:
        """Ends the writer as a kill at ``point`` does."""

        def die() -> None:
            raise SystemExit  # ends the sealer's thread without a word

        failpoints.set_hook(point, die)
        try:
            with suppress(ShardwrightError):
                self._writer.close()
        finally:
            failpoints.set_hook(point, None)

    def _resume(self, *, take_over: bool = False) -> None:
        settings = {name: value for name, value in self._settings.items() if name in QUICK}
        before, self._writer = self._writer, sw.resume(self.path, take_over=take_over, **how(**settings))
        self._writers.append(self._writer)
        with suppress(ShardwrightError):
            before.close()  # and it is fenced off

    def resume(self) -> None:
        """After a kill that leaves everything in progress."""
        self._leave("sealer.before_command")
        self._resume()
        self.append(1)

    def close_early_and_resume(self) -> None:
        """All is sealed, and then the writer is killed before the store is finished: its newest shard row is
        opened again."""
        self._leave("workspace.before_manifest")
        self._resume()
        self.append(1)

    def take_over(self) -> None:
        self._resume(take_over=True)
        self.append(1)

    def take_over_twice(self) -> None:
        self._resume(take_over=True)
        self.take_over()

    def rewrite(self) -> None:
        """An I/O error: the files of a shard row are made anew."""

        def fail_once() -> None:
            failpoints.set_hook("journal.before_sync", None)
            raise OSError(5, "Input/output error")

        failpoints.set_hook("journal.before_sync", fail_once)
        self.append(1)
        failpoints.set_hook("journal.before_sync", None)
        self.append(ROW - 1)  # each time another shard row

    def overwrite(self) -> None:
        self._writer.close()
        self._writer = self._create(self.path, overwrite=True)
        for i in range(self.stored):
            self._writer.append(frame(OTHERS + i))
        self._writer.close()

    def compact(self) -> None:
        if self._array.get("codec", True) is None:
            self.pack()
        else:
            run(plan(open_store(self.path), Options(recompress={"cname": "zstd", "clevel": 1})), Here())

    def pack(self) -> None:
        run(plan(open_store(self.path), Options("morton")), Here())

    def move(self) -> None:
        away = MoveOptions(
            str(self.path.with_name("away.ome.zarr")), delete_source=True, throttle=Throttle(idle=False)
        )
        move_store(self.path, away, Here().run)

    def update(self) -> None:
        """Writes the pixels that are there: only their places in the files change."""
        values = np.stack([frame(i) for i in range(self.stored)])
        strategy = "rewrite" if self._array.get("shard", SHARD) is None else "append"
        sw.update(self.path, {"t": slice(0, self.stored)}, values, strategy=strategy)

    def close(self) -> None:
        for writer in self._writers:
            with suppress(ShardwrightError):
                writer.close()


AGAIN_AND_AGAIN = {  # to a store that is written, which still is afterwards
    "sealed": Scene.seal,
    "a slab is stored": Scene.store_slab,
    "taken over": Scene.take_over,
    "taken over twice": Scene.take_over_twice,
    "resumed": Scene.resume,
    "closed early and resumed": Scene.close_early_and_resume,
    "rewritten": Scene.rewrite,
}
ONCE = {"ended": Scene.end, "ended and overwritten": Scene.overwrite}
FINISHED_AGAIN_AND_AGAIN = {"recompressed": Scene.compact, "packed": Scene.pack, "updated": Scene.update}
FINISHED_ONCE = {"overwritten": Scene.overwrite, "moved": Scene.move}


# ---------------------------------------------------------------------- readers


class BoxReader:
    """By ``shardwright.open``: its codec asks the view for boxes."""

    open: Callable[[Path], Any] = staticmethod(sw.open)

    def __init__(self, path: Path) -> None:
        self._store = type(self).open(path)

    def read(self, first: int) -> np.ndarray[Any, Any]:
        """Returns the frames from ``first`` on that the array covers now."""
        array = zarr.open_array(self._store, path="0", mode="r")
        return np.asarray(array[first:])


class SparseReader(BoxReader):
    """Likewise; each chunk is read by itself, as those of a sparse selection are: an index, then its
    chunks."""

    def read(self, first: int) -> np.ndarray[Any, Any]:
        array = zarr.open_array(self._store, path="0", mode="r")
        frames = list(range(first, array.shape[0]))
        with patch.object(zarr_store, "_MOST_BOXED", 0):
            # not all chunks of a shard, which would be read at once
            halves = [array.oindex[frames, :, :WIDTH], array.oindex[frames, :, WIDTH:]]
        return np.concatenate(halves, axis=2)


class RangeReader(BoxReader):
    """A client that knows nothing of us: an index, then chunks by byte ranges."""

    open = ByRanges


class FrameReader:
    """By ``LiveView.read_frames``, as ``follow`` and the page do."""

    def __init__(self, path: Path) -> None:
        self._view = sw.open(path).view

    def read(self, first: int) -> np.ndarray[Any, Any]:
        document = self._view.document("0")
        places = [(i,) for i in range(first, document["shape"][0])]
        return np.stack([self._view.read_frames("0", [place])[0] for place in places])


class FollowReader:
    """Looks as ``shardwright.follow`` does, until there is nothing new: its frames come in any order."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, first: int) -> np.ndarray[Any, Any]:
        found: dict[int, np.ndarray[Any, Any]] = {}
        follower, is_over, new = open_follower(self._path, only_new=False), False, True
        while new and not is_over:
            is_over, new = follower.is_over, False
            for each in follower.look():
                found[each.index[0]], new = each.pixels, True
        return np.stack([found[i] for i in range(first, max(found) + 1)])


READERS = {
    "boxes": BoxReader,
    "ranges": RangeReader,
    "frames": FrameReader,
    "sparse": SparseReader,
    "follow": FollowReader,
}


# ---------------------------------------------------------------------- holding


@contextmanager
def held_before(number: int, event: Callable[[], None]) -> Iterator[list[str]]:
    """Runs ``event`` to its end before the look with this number (from 0) of the readers of this process.
    Gives the names of all looks, which has fewer than ``number`` if the event never ran."""
    names: list[str] = []
    wrong: list[BaseException] = []
    lock = threading.Lock()

    def happen() -> None:
        try:
            event()
        except BaseException as error:
            wrong.append(error)

    def hold(name: str) -> None:
        with lock:
            names.append(name)
            mine = len(names) == number + 1
        if mine:
            thread = threading.Thread(target=happen)  # what the reader's thread holds is the reader's
            thread.start()
            thread.join()

    failpoints.hold_looks(hold)
    try:
        yield names
    finally:
        failpoints.hold_looks(None)
    if wrong:
        raise wrong[0]


def judge(pixels: np.ndarray[Any, Any], first: int, stored: int) -> None:
    """``pixels``: frames from ``first`` on. Those below ``stored`` are there, and each that is there is right
    or, beyond these, still to come."""
    assert first + len(pixels) >= stored, f"{stored} frames are stored, {first + len(pixels)} covered"
    for i, seen in enumerate(pixels, first):
        there = seen != 0
        np.testing.assert_array_equal(seen[there], frame(i)[there], err_msg=f"frame {i}")
        assert there.all() or i >= stored, f"frame {i} of {stored} is fill in part: {_part(there)}"


def _part(there: np.ndarray[Any, Any]) -> str:
    return f"{int(there.sum())} of {there.size} pixels are there"
