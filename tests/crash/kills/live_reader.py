"""Readers beside the cameras. One looks at a store all the time while its writers write, die and are
replaced, and the store is compacted. It is told what was promised, and judges every pixel that it sees. The
other follows the acquisition to its end.

Every other look is that of a client that knows nothing of us: byte ranges of composed shards, decoded by
zarr-python.
"""

from __future__ import annotations

import select
import shutil
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import crc32c
import zarr
from tests.harness.fork_server import GIVE_UP_S

import shardwright as sw
from shardwright.array.grid import image_of
from shardwright.model.errors import StorageError, StoreGoneError
from shardwright.read.live_shard import LiveKeys
from shardwright.read.zarr_store import LiveStore

from .oracle import Oracle

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from tests.harness.fork_server import Channel

    from .scenes import Scene

NEW_VIEW_EVERY = 5
MOST_PROBLEMS = 10


@dataclass(frozen=True)
class Stop:
    """To the reader: look once more, and end."""


@dataclass(frozen=True)
class Seen:
    """From the reader, at its end."""

    looks: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Followed:
    """From the follower, at its end: (image, index, crc32c of its pixels) of each frame, by sequence."""

    frames: tuple[tuple[int, str, tuple[int, ...], int], ...]

    def problems(self, oracle: Oracle) -> list[str]:
        """Each place that was promised a frame got one, once, and none with other pixels or of another
        place."""
        scene, problems, seen = oracle.scene, [], set()
        for sequence, *came in self.frames:
            n = oracle.sent.get(sequence)
            if n is None or (position := scene.frames[n].position) in seen:
                problems.append(f"sequence {sequence} was never sent, or its place has come before")
                continue
            seen.add(position)
            name, crc = scene.images.names[image_of(position)], crc32c.crc32c(scene.pixels(n).tobytes())
            if came != [name, scene.index(position), crc]:
                problems.append(f"sequence {sequence} came as {came[:2]}, or with other pixels")
        promised = {scene.frames[oracle.sent[sequence]].position for sequence in oracle.promised}
        return [*problems, *(f"place {position} never came" for position in sorted(promised - seen))]


class ByRanges(LiveStore):
    """Read by zarr-python's own codec, as over HTTP."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._keys = LiveKeys(self.view, fixed_slots=True)

    def _with_our_codec(self, folder: str, document: dict[str, Any]) -> dict[str, Any]:
        return document


class Reader:
    """``promised`` of its oracle also has what it saw itself: no frame goes back."""

    def __init__(self, store: Path, scene: Scene) -> None:
        self._path = store
        self._scene = scene
        self.oracle = Oracle(scene)
        self.looks = 0
        self.problems: list[str] = []
        self._views: list[LiveStore] = []

    def look(self) -> None:
        """Looks at every image there is."""
        try:
            if not self._views or self.looks % NEW_VIEW_EVERY == 0:
                self._views = [sw.open(self._path), ByRanges(self._path)]
            view = self._views[self.looks % 2]
            arrays = self._arrays(view)
        except (StorageError, StoreGoneError) as error:
            self._views = []
            if self.oracle.promised:
                self.problems.append(f"look {self.looks}: cannot be read: {error}")
            return
        self.looks += 1
        problems = self.oracle.judge_pixels(arrays, may_come=True)
        if problems and not self.problems:
            problems.append(f"the store, moments later: {self._copied()}")
        self.problems += [f"look {self.looks} by {type(view).__name__}: {each}" for each in problems]
        self.oracle.promised |= self.oracle.sequences_in(arrays)

    def _copied(self) -> Path:
        """A copy of the store beside the folder in which it is: at the verdict it has moved on."""
        copy = self._path.parent.with_name("seen-by-a-reader")
        with suppress(shutil.Error):  # of files that went meanwhile, once all others are copied
            shutil.copytree(self._path, copy, symlinks=True)
        return copy

    def _arrays(self, view: LiveStore) -> dict[int, np.ndarray]:
        arrays = {}
        for image, path in enumerate(self._scene.images.paths):
            if view.view.document(path) is not None:
                arrays[image] = zarr.open_array(view, path=path, mode="r")[...]
        return arrays


def watch(channel: Channel, store: Path, scene: Scene) -> None:
    """Looks until it is told to stop."""
    reader = Reader(store, scene)
    stopped = False
    while not stopped:
        enough = len(reader.problems) >= MOST_PROBLEMS
        while select.select([channel.socket], [], [], 1 if enough else 0)[0]:
            message = channel.receive()
            stopped |= message is None or isinstance(message, Stop)
            if stopped:
                break
            reader.oracle.listen([message])
        if store.exists() and not enough:
            reader.look()
    channel.send(Seen(reader.looks, tuple(reader.problems)))


def follow_to_the_end(channel: Channel, store: Path) -> None:
    """Follows from the first frame on. A store that is gone had no frame: another one gets its name."""
    give_up = monotonic() + GIVE_UP_S
    while monotonic() < give_up:
        came = []
        try:
            for frame in sw.follow(store, timeout_ms=1000 * GIVE_UP_S):
                crc = crc32c.crc32c(frame.pixels.tobytes())
                came.append((int(frame.row["sequence"]), frame.image, frame.index, crc))
        except (StorageError, StoreGoneError):
            sleep(0.01)
        else:
            channel.send(Followed(tuple(came)))
            return
