"""Judges what a reader sees of a store while it is written: every pixel is the frame's or fill, no frame goes
back, and none is missing that was stored before it was asked for."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.read.live_view import LiveView

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHAPE = (24, 32)


def frame(number: int, shape: tuple[int, int] = SHAPE) -> np.ndarray[Any, Any]:
    """No two are alike at any pixel, and none has fill."""
    pixels = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(shape)
    return np.asarray(1 + (pixels * 7 + number * 1013) % 65521, np.uint16)


def append_until_logged(writer: sw.Writer, frames: int, *, rows: int) -> None:
    """Appends the first frames, and waits until the frame log has so many shard rows."""
    for i in range(frames):
        writer.append(frame(i))
    writer.flush()
    acquiring, _ = LiveView(writer.path).look()
    assert acquiring is not None
    while not all(map(acquiring.is_logged, range(rows))):
        pass


class Judge:
    """One reader. ``stored``: frames below it are stored, as the writer said before it was asked. Frames are
    those of one image, in order, numbered along its first axis."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored = 0
        self.looks = 0
        self._seen = 0
        self._holes: set[int] = set()  # frames that died with their writer
        self._store: Any = None
        self._shape = SHAPE

    def look(self, *, again: bool = False) -> int:
        """Opens the array again, in a new view if ``again``, and judges every frame. Returns how many there
        are. A frame that is stored while the array is read, shard by shard, may be there in part."""
        stored = self.stored
        if self._store is None or again:
            self._store = sw.open(self.path)
        array = zarr.open_array(self._store, path="0", mode="r")
        pixels = array[...]
        there = []
        for i, seen in enumerate(pixels):
            expected, part = frame(i, seen.shape), seen != 0
            np.testing.assert_array_equal(seen[part], expected[part], err_msg=f"frame {i}")
            there.append(bool(part.all()) or i in self._holes)
        complete = there.index(False) if False in there else len(there)
        assert complete >= stored, f"{stored} frames are stored, {complete} are there of {len(there)}"
        assert len(pixels) >= self._seen, f"{self._seen} frames were there, now {len(pixels)}"
        assert all(there[: self._seen]), "a frame has gone back"
        self._seen = complete
        self.looks += 1
        return len(pixels)

    def note_holes(self) -> None:
        """Judges what a writer that was killed has left, and takes note of the frames before the newest that
        were not stored: they will not come any more."""
        self.look()
        array = zarr.open_array(self._store, path="0", mode="r")[...]
        holes = {i for i in range(len(array)) if not array[i].any()}
        assert not any(i < self.stored for i in holes - self._holes), "a stored frame is lost"
        self._holes = holes


@contextmanager
def looking_at_every_step(judge: Judge, *, new_views: bool, later: int = 4) -> Iterator[None]:
    """Looks before the calls by which the writer changes the filesystem, in the thread that makes them:
    before the first three of each kind, and of the ``later`` ones that follow before one."""
    inside = threading.local()
    calls: Counter[str] = Counter()
    lock = threading.Lock()
    wrong: list[BaseException] = []

    def step(name: str) -> None:
        if getattr(inside, "yes", False) or name.endswith("before_read"):
            return
        calls[name] += 1
        if calls[name] > 3 and calls[name] % later:
            return
        inside.yes = True
        try:
            with lock:
                judge.look(again=new_views)
        except BaseException as error:
            wrong.append(error)
        finally:
            inside.yes = False

    failpoints.watch_all(step)
    try:
        yield
    finally:
        failpoints.watch_all(None)
    if wrong:
        raise wrong[0]
