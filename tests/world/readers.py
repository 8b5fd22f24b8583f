"""Readers in the world: the real live view, and the plain reading of the files, each an actor that is held
before any of its looks while everybody else goes on.

    frames   ``LiveView.read_frames``, as followers and the page read
    boxes    ``LiveView.read_box``, as the codec of ``sw.open`` does
    ranges   byte ranges of keys, an index and then its chunks, as a client reads that knows nothing of us
    files    zarr.json and the shards as they lie in the folder; with ``live`` each range by its name

A reader keeps its view through kills, recoveries and take-overs; a power cut ends it. It locks nothing and
writes nothing: the lives of a story are the same with readers and without. Each reading is judged:

- A place has the pixels of a frame that was sent to it, or fill value.
- The live view shows every frame that was acknowledged before the reading began, if the store has it in the
  end (only then is it known that it was not late, lost or a duplicate). The shapes cover them.
- What a reader was shown is shown to all later ones, and is in the store in the end. Files do not show all
  that the view does.
- Of the last index that a zarr.json covers, files show at least one frame.
- No errors, but of a store that has gone, and of bytes that rot has taken; and an error that says so may be
  raised while the store changes: then the reader asks again while nobody else acts, and must succeed.

After a power cut only what is durable is expected until recovery is done, and of files nothing.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import shardwright as sw
from shardwright.array.grid import image_of
from shardwright.codecs.zarr_python import RangeByteRequest, SuffixByteRequest, requested_range
from shardwright.disk import beneath, failpoints
from shardwright.model.errors import (
    ShardChangedError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StoreChangingError,
    StoreGoneError,
)
from shardwright.model.frame_status import FrameStatus
from shardwright.read import box_reader, store_state
from shardwright.read.box_reader import BoxPart
from shardwright.read.live_shard import LiveKeys
from shardwright.read.store import parse_array
from shardwright.read.zarr_store import FoundKey
from shardwright.shard.index import EMPTY
from shardwright.shard.sealed_shard import regular_file

from .disk import Descriptors as Calls
from .oracle import ViolationError
from .pixels import tokens
from .process import POISON, Actor, give_way
from .story import FILL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.grid import Grid
    from shardwright.codecs.zarr_python import ByteRequest
    from shardwright.disk.read_file import ReadFile
    from shardwright.read.live_view import LiveView
    from shardwright.read.store import StoredArray
    from shardwright.shard.layout import StoreLayout

    from .disk import SimulatedDisk
    from .finished_store import Left
    from .oracle import Oracle
    from .story import ReaderKind, Reading, Story

PIECES = (512, 4096, 1 << 16)  # bytes in which a whole shard is read
MOST_LOOKS = 20_000  # of one reading while nobody else acts

Coordinates = tuple[int, ...]


class _Found(Protocol):
    def read(self, request: ByteRequest) -> bytes | None:
        """Returns the bytes of a key; None if they are not there."""
        ...


@dataclass
class Seen:
    """One reading. ``promised``: bool[frames], acknowledged before it began; ``shown``: what was shown before
    it; ``recoveries``: how many were over; ``width``: of files, in columns. ``shapes``: by image, None where
    there is no array. ``pixels``: the token of each (position, file)."""

    promised: np.ndarray
    shown: dict[tuple[int, int], int]
    in_doubt: bool
    recoveries: int
    width: int
    shapes: dict[int, Coordinates | None] = field(default_factory=dict)
    pixels: dict[tuple[int, int], int] = field(default_factory=dict)

    def put(self, grid: Grid, first: Coordinates, values: np.ndarray[Any, Any]) -> None:
        """Notes the pixels from the element ``first`` on: [frame axes ..., 1, columns]."""
        *before, _, left = first
        found = tokens(values, self.width, first=left) if values.size else values
        for index in np.ndindex(*found.shape[:-2]):
            position = grid.position_of(tuple(a + i for a, i in zip(before, index, strict=True)))
            for file, value in enumerate(found[index][0].tolist(), left // self.width):
                self.pixels[position, file] = value

    def at(self, position: int, columns: int) -> set[int]:
        return {self.pixels[key] for x in range(columns) if (key := (position, x)) in self.pixels}


class Judge:
    """Judges readings. What was missed counts once it is known that the frame was kept."""

    def __init__(self, story: Story, spec: AcquisitionSpec, oracle: Oracle, path: Path) -> None:
        self._frames, self._columns = story.frames, story.shape.files
        self._width = story.shape.width
        self._spec, self._oracle, self._path = spec, oracle, path
        self._sent_to: dict[int, list[int]] = {}
        for n, frame in enumerate(story.frames):
            self._sent_to.setdefault(frame.position, []).append(n)
        self._shown_by_views: dict[tuple[int, int], int] = {}
        self._shown_by_files: dict[tuple[int, int], int] = {}
        self._missed: dict[int, str] = {}
        self._none_of: list[tuple[list[int], str]] = []
        self._without_array: list[tuple[list[int], str]] = []
        self._hidden: dict[int, str] = {}
        self._live = story.settings.live != "none"
        self._deleted: set[int] = set()  # positions
        self._forgotten_up_to = 0  # recoveries
        self.in_doubt = False  # between a power cut and the end of the recovery that follows
        self.taken_over = False  # once, by another writer
        self.readings = 0
        self.frames: Counter[str] = Counter()  # that readers of each kind were shown

    def begin(self, *, files: bool) -> Seen:
        """Before the first look of a reading."""
        promised = (self._oracle.durable if self.in_doubt else self._oracle.stored).copy()
        # settled, as lost; it may still come again
        promised[list(self._oracle.told | (self._oracle.written_off - self._oracle.sent_now))] = False
        # what the disk has taken since may come again, and files then show it later than it is acknowledged
        gone = self._oracle.excused_since(self._forgotten_up_to)
        self._forgotten_up_to = len(self._oracle.excusals)
        for before in (self._shown_by_files, self._shown_by_views):
            for key in [key for key, n in before.items() if n in gone]:
                del before[key]
        shown = self._shown_by_files if files else {**self._shown_by_files, **self._shown_by_views}
        return Seen(promised, dict(shown), self.in_doubt, len(self._oracle.excusals), self._width)

    def lose_power(self) -> None:
        self.in_doubt = True
        self._shown_by_views.clear()
        self._shown_by_files.clear()

    def forget_row(self, layout: StoreLayout, deleted: str) -> None:
        """A user has deleted a shard: what was seen of its row may be seen no more."""
        grids = self._spec.grids
        rows = {p: grids.shard_row_of_slab(grids.slab_of_position(p)) for p in self._sent_to}
        self._deleted.update(p for p, row in rows.items() if deleted in layout.of(row).shard_paths(row))

    def identity(self) -> tuple[int, int] | None:
        """Returns that of the store that has the name now; None: there is none."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def is_gone(self, identity: tuple[int, int] | None) -> bool:
        """Returns whether the name is not that store's (None: no store's)."""
        now = self.identity()
        return now is None or (identity is not None and identity != now)

    def end(self, seen: Seen, who: str, kind: ReaderKind) -> None:
        """Raises ``ViolationError``."""
        files = kind == "files"
        self.readings += 1
        self.frames[kind] += len({position for (position, _), value in seen.pixels.items() if value != FILL})
        if files and seen.in_doubt:
            return
        gone = self._oracle.excused_since(seen.recoveries)  # in mid-reading: no later one need find it
        for (position, column), value in seen.pixels.items():
            if value == FILL or self._rots(position):
                continue
            n = value - 1
            if n not in self._sent_to.get(position, ()) or n not in self._oracle.sent:
                raise ViolationError(f"{who} finds {value} at {position}, which nobody sent there")
            if not seen.in_doubt and n not in gone:  # in doubt: recovery may find that it is not whole
                (self._shown_by_files if files else self._shown_by_views)[position, column] = n
        self._judge_shown(seen, who, files=files)
        if files:
            self._judge_last(seen, who)
            self._judge_covered(seen, who)
        else:
            self._judge_promised(seen, who)

    def may_fail(self, seen: Seen, error: ShardwrightError) -> bool:
        """Whether a power cut or rot has taken something, and no recovery was over since: no reader need go
        on then. What is in a shard no recovery heals: it does not fit its checksum; a staged frame whose
        pixels do not fit is looked for until a recovery clears its record. An index that was read before
        names chunks that a recovery, or new files of a row, have dropped since."""
        is_rotten = bool(self._oracle.spoiled) and isinstance(error, (ShardFormatError, StoreChangingError))
        has_taken = bool(self._oracle.spoiled or self._oracle.excused_since(seen.recoveries))
        is_dropped = has_taken and isinstance(error, ShardChangedError)
        return seen.in_doubt or is_rotten or is_dropped or self._oracle.had_a_flip(seen.recoveries)

    def is_of_no_frame(self, seen: Seen, error: ShardwrightError) -> bool:
        """Whether an error says that an image has no array. It must have no frame in the end: what was
        acknowledged may be a duplicate, or lost, as well."""
        path = str(error).partition(" is no array that is read here")[0]
        for image in range(len(self._spec.paths)):
            if path in self._spec.level_paths(image):
                mine = [n for n in self._promised(seen) if image_of(self._frames[n].position) == image]
                self._without_array.append((mine, f"an error says that {path} is no array"))
                return True
        return False

    def _rots(self, position: int) -> bool:
        """Whether rot may have changed what is there: without a checksum no reader can tell."""
        return self._grid(position).slab_of_position(position) in self._oracle.spoiled

    def _judge_shown(self, seen: Seen, who: str, *, files: bool) -> None:
        gone = self._oracle.excused_since(seen.recoveries)  # they may have come again by its end
        for (position, column), n in seen.shown.items():
            if self._may_go(n, seen.promised) or position in self._deleted or n in gone:
                continue
            columns = [column] if files else range(self._columns)
            found = {seen.pixels[key] for x in columns if (key := (position, x)) in seen.pixels}
            if found and found != {n + 1}:
                raise ViolationError(
                    f"{who} finds {found} at {position}, where sequence {n} was shown before"
                )

    def _may_go(self, n: int, acknowledged: np.ndarray) -> bool:
        """Whether a frame may be gone that was shown: rot has taken it. Or it was never acknowledged, and a
        writer stored it behind the copy of the one that has taken over, or the disk failed; it may have come
        again, and be acknowledged since."""
        if n in self._oracle.excused or self._rots(self._frames[n].position):
            return True
        never = n in self._oracle.written_off or not acknowledged[n]
        return (self.taken_over or self._oracle.faulty) and never

    def _judge_promised(self, seen: Seen, who: str) -> None:
        for n in self._promised(seen):
            position = self._frames[n].position
            image = next(i for i, grid in enumerate(self._spec.grids.grids) if grid is self._grid(position))
            if image not in seen.shapes or n in self._missed or self._rots(position):
                continue
            shape, index = seen.shapes[image], self._grid(position).index_of(position)
            if shape is None or any(i >= n_of for i, n_of in zip(index, shape, strict=False)):
                self._missed[n] = f"{who} finds a shape of {shape} without {index}"
            elif FILL in seen.at(position, self._columns):
                self._missed[n] = f"{who} finds fill value at {position}"

    def _promised(self, seen: Seen) -> list[int]:
        """Returns what was acknowledged before a reading, and not excused since it began."""
        excused = self._oracle.excused_since(seen.recoveries)
        return [n for n in np.flatnonzero(seen.promised).tolist() if n not in excused]

    def _judge_last(self, seen: Seen, who: str) -> None:
        """A shape grows once what it covers can be found. Where a step has several slabs, it may be that of
        one which has no frame there."""
        for image, shape in seen.shapes.items():
            grid = self._spec.grids.grids[image]
            if math.prod(grid.slab_counts[1:]) > 1 or grid.is_ragged:
                continue
            for axis in range(len(self._spec.arrays[image].growing_axes)) if shape else ():
                assert shape is not None
                there = {
                    position: seen.at(position, self._columns)
                    for position in {p for p, _ in seen.pixels}
                    if self._grid(position) is grid and grid.index_of(position)[axis] == shape[axis] - 1
                }
                sent = [n for p in there for n in self._sent_to.get(p, ())]
                if any(self._frames[n].fill for n in sent):
                    continue
                if any(found != {FILL} for found in there.values()):
                    continue
                acknowledged = [n for n in sent if seen.promised[n] and n not in self._oracle.shut_out]
                what = f"{who} finds no frame at {shape[axis] - 1}, which the shape {shape} covers"
                self._none_of.append((acknowledged, what))

    def _judge_covered(self, seen: Seen, who: str) -> None:
        """Where readers see whole shards alone, a shape covers no frame in order before they see it. A power
        cut may take frames that a shape covers already, and they come again. A writer that fails leaves a
        shape that reaches as far as its sealed shards, with rows before them that were open again; one that
        was taken over writes its last shape behind the copy of the other. The last shapes of a store cover
        what comes if it goes on all the same."""
        if self._live or self._oracle.power_cuts or self._oracle.failures or self._oracle.has_begun_to_fail:
            return
        for n in self._promised(seen):
            position = self._frames[n].position
            image = next(i for i, grid in enumerate(self._spec.grids.grids) if grid is self._grid(position))
            shape, index = seen.shapes.get(image), self._grid(position).index_of(position)
            if shape is None or any(i >= n_of for i, n_of in zip(index, shape, strict=False)):
                continue
            if n in self._hidden or n in self._oracle.shut_out:
                continue
            if FILL in seen.at(position, self._columns):
                self._hidden[n] = f"{who} finds fill value at {position}, which the shape {shape} covers"

    def _grid(self, position: int) -> Grid:
        return self._spec.grids.of(position)

    def _judge_arrays(self, kept: set[int]) -> None:
        for sequences, what in self._without_array:
            if found := sorted(kept.intersection(sequences) - self._oracle.excused):
                raise ViolationError(f"{what}, though sequences {found} of it were acknowledged before")

    def finish(self, left: Left | None) -> None:
        """Judges what was missed by the store that is left. Raises ``ViolationError``."""
        if left is None:
            if self._shown_by_views or self._shown_by_files:
                raise ViolationError("frames were shown, but the store was removed")
            return
        statuses = dict(zip(left.records["sequence"].tolist(), left.records["status"].tolist(), strict=True))
        kept = {n for n, status in statuses.items() if status == FrameStatus.STORED}
        self._judge_arrays(kept)
        kept = {n for n in kept if not self._frames[n].fill}
        if self._oracle.faulty:
            kept -= self._oracle.excused
        hidden = {n: what for n, what in self._hidden.items() if self._oracle.is_in_order(n)}
        for n, what in (*self._missed.items(), *hidden.items()):
            if n in kept:
                raise ViolationError(f"{what}, though sequence {n} was acknowledged before")
        for sequences, what in self._none_of:
            found = [n for n in sorted(kept.intersection(sequences)) if self._oracle.is_in_order(n)]
            if found and not self._oracle.faulty:
                raise ViolationError(f"{what}, though sequences {found} were acknowledged before")
        for (position, _), n in {**self._shown_by_views, **self._shown_by_files}.items():
            if n not in kept and not self._may_go(n, self._oracle.stored):
                raise ViolationError(f"sequence {n} was shown at {position}, but it is not in the store")


class _Reader:
    """``rests``: for how many moments it does nothing. ``is_alone``: it is not held."""

    def __init__(self, reading: Reading, readers: Readers) -> None:
        self.reading = reading
        self.who = f"reader {reading.at} ({reading.kind})"
        self.rests = 0
        self.is_alone = False
        self.looks = self.readings = 0
        self.rng = random.Random(reading.seed)
        self._readers, self._judge = readers, readers.judge
        self._spec, self._path = readers.spec, readers.path
        self._view: LiveView | None = None
        self._of: tuple[int, int] | None = None  # the store that had the name as it began to open it
        self.actor = Actor(readers.disk, Calls(self.rng), self._run)

    def _run(self) -> None:
        for _ in range(self.reading.times):
            if not self._read():
                return
            self.readings += 1
            self.rests = self.reading.pause
            give_way()

    def _read(self) -> bool:
        """Reads once, and again with nobody else at work after an error that may pass. Returns whether the
        store is there still."""
        files = self.reading.kind == "files"
        try:
            for self.is_alone in (False, True):
                seen = self._judge.begin(files=files)
                try:
                    self._read_into(seen)
                except ShardwrightError as error:
                    if isinstance(error, (StorageError, StoreGoneError)) and self._judge.is_gone(self._of):
                        return False
                    if self._may_fail(seen, error):
                        return True
                else:
                    self._judge.end(seen, self.who, self.reading.kind)
                    self._readers.note(f"{self.who} has read {len(seen.pixels)} pixels")
                    return True
        finally:
            self.is_alone = False
        raise AssertionError("an error while nobody else acts is a violation")

    def _may_fail(self, seen: Seen, error: ShardwrightError) -> bool:
        """Returns whether a reader may leave it at that; else it may ask again. Raises ``ViolationError``."""
        self._readers.note(f"{self.who} is told: {error}")
        passes = isinstance(error, StoreChangingError) or self._judge.is_of_no_frame(seen, error)
        if self.reading.kind == "files" and self._readers.live != "none":
            passes = isinstance(error, ShardFormatError)
        if self._judge.taken_over:  # an index may name a chunk that the copy of the new writer lacks
            passes = passes or isinstance(error, ShardChangedError)
        may_fail = self._judge.may_fail(seen, error)
        if not may_fail and (self.is_alone or not passes):
            alone = ", though nobody else acts" if self.is_alone else ""
            raise ViolationError(f"{self.who} gets an error{alone}: {error!r}"[:400])
        return may_fail

    def _read_into(self, seen: Seen) -> None:
        self.looks = 0
        images = list(range(len(self._spec.paths)))
        self.rng.shuffle(images)
        for image in images[: self.rng.randint(1, len(images))]:
            {"frames": self._frames, "boxes": self._boxes, "ranges": self._ranges, "files": self._files}[
                self.reading.kind
            ](image, seen)

    def _some(self, items: list[Any]) -> list[Any]:
        """Returns all of them or some, in the order of time or not; the last one most often."""
        if self.rng.random() < 0.4:
            return items
        chosen = items[-1:] if self.rng.random() < 0.8 else []
        chosen += [item for item in items if self.rng.random() < 0.5]
        chosen = list(dict.fromkeys(chosen))
        if self.rng.random() < 0.5:
            self.rng.shuffle(chosen)
        return chosen

    # ------------------------------------------------------------------ the live view

    def _opened(self) -> LiveView:
        if self._view is None:
            self._readers.look("open")
            self._of = self._judge.identity()
            self._view = sw.open(self._path).view
        return self._view

    def _shape(self, image: int, seen: Seen) -> Coordinates | None:
        view = self._opened()
        if self.rng.random() < 0.2:
            view.look()
        document = view.document(self._spec.paths[image])
        shape = seen.shapes[image] = None if document is None else tuple(document["shape"])
        return shape

    def _frames(self, image: int, seen: Seen) -> None:
        view, shape, grid = self._opened(), self._shape(image, seen), self._spec.grids.grids[image]
        slabs: dict[int, list[Coordinates]] = {}
        for index in np.ndindex(*(shape or (0, 0, 0))[:-2]):
            slabs.setdefault(grid.slab_of_position(grid.position_of(index)), []).append(index)
        for slab in self._some(list(slabs)):
            places = self._some(slabs[slab])
            found = view.read_frames(self._spec.paths[image], places) if places else []
            for index, pixels in zip(places, found, strict=True):
                seen.put(grid, (*index, 0, 0), pixels[(None,) * len(index)])

    def _boxes(self, image: int, seen: Seen) -> None:
        shape = self._shape(image, seen)
        path = self._spec.paths[image]
        if shape is None or (array := self._opened().array(path)) is None:
            return
        boxes = []
        for shard in self._some(_shards(array.stored, shape)):
            _, stop = _within(array.stored, shape, shard)
            choose, low = self.rng.choice, tuple(self.rng.choice((0, 0, self.rng.randrange(n))) for n in stop)
            high = tuple(choose((n, n, self.rng.randint(a + 1, n))) for a, n in zip(low, stop, strict=True))
            boxes.append((shard, low, high))
        if boxes and self.rng.random() < 0.5:
            found = self._boxes_at_once(path, array.stored, boxes)
        else:
            found = (self._opened().read_box(path, *box) for box in boxes)
        for (shard, low, _), values in zip(boxes, found, strict=True):
            first, _ = _within(array.stored, shape, shard)
            corner = tuple(a + b for a, b in zip(first, low, strict=True))
            seen.put(self._spec.grids.grids[image], corner, values)

    def _boxes_at_once(
        self, path: str, stored: StoredArray, boxes: list[tuple[Coordinates, Coordinates, Coordinates]]
    ) -> Iterator[np.ndarray[Any, Any]]:
        """As ``ArrayView`` reads those of several shards: into parts of one array, here one behind the other
        along its first axis."""
        sizes = [tuple(b - a for a, b in zip(low, high, strict=True)) for _, low, high in boxes]
        starts = list(accumulate((size[0] for size in sizes), initial=0))
        out = np.full((starts[-1], *np.max([size[1:] for size in sizes], axis=0)), POISON, stored.dtype)
        rest = (0,) * (out.ndim - 1)
        parts = [BoxPart(*box, at=(start, *rest)) for box, start in zip(boxes, starts, strict=False)]
        self._opened().read_into(path, stored, parts, out)
        return (out[part.region] for part in parts)

    def _ranges(self, image: int, seen: Seen) -> None:
        path, shape = self._spec.paths[image], self._shape(image, seen)
        if shape is None:
            return
        fixed = self.rng.random() < 0.6  # as over HTTP; else the codec of ``sw.open`` holds what it has found
        keys = LiveKeys(self._opened(), fixed_slots=fixed)
        document = self._opened().document(path)
        if document is None:
            raise ViolationError(f"{self.who} finds an array, and then none")
        stored = parse_array(self._path / path, document)

        def find(key: str) -> FoundKey | None:
            found = keys.find(key)
            return None if found is None else FoundKey(found)

        for shard in self._some(_shards(stored, shape)):
            key = f"{path}/{stored.shard_key(shard)}"
            values = self._decoded(stored, partial(find, key), by_name=fixed)
            _put_shard(seen, self._spec.grids.grids[image], stored, shape, shard, values)

    # ------------------------------------------------------------------ files

    def _files(self, image: int, seen: Seen) -> None:
        folder = self._path / self._spec.paths[image]
        self._readers.look("zarr.json")
        if not beneath.exists(folder / "zarr.json"):
            seen.shapes[image] = None
            return
        stored = parse_array(folder)
        seen.shapes[image] = stored.shape
        for shard in self._some(_shards(stored, stored.shape)):
            path = folder / stored.shard_key(shard)
            if self.rng.random() < 0.3:
                values = self._decoded(stored, partial(self._whole, stored, path), by_name=False)
            else:
                by_name = self._readers.live != "none" and self.rng.random() < 0.7
                values = self._decoded(stored, partial(_opened, stored, path), by_name=by_name)
            _put_shard(seen, self._spec.grids.grids[image], stored, stored.shape, shard, values)

    def _whole(self, stored: StoredArray, path: Path) -> _Bytes | None:
        """Reads a whole shard from its start."""
        file = _opened(stored, path)
        if file is None:
            return None
        data, piece = bytearray(), self.rng.choice(PIECES)
        while True:
            self._readers.look("shard from its start")
            read = os.pread(file.file.descriptor, piece, len(data))
            if not read:
                return _Bytes(bytes(data))
            data += read

    def _decoded(
        self, stored: StoredArray, find: Callable[[], _Found | None], *, by_name: bool
    ) -> np.ndarray[Any, Any]:
        """Returns the elements of a shard: its index, and then the chunks that it lists. ``find`` looks for
        it, ``by_name`` for each range anew; what is not there is fill value, as for zarr-python."""
        values = np.full(stored.shard_shape, stored.fill_element, stored.dtype)
        self._readers.look("index")
        found = find()
        index = None if found is None else found.read(_end_or_start(stored))
        if index is None:
            return values
        entries = stored.index.decode(index)
        room = np.empty(stored.chunk_bytes, np.uint8)
        for chunk in np.flatnonzero(entries["nbytes"] != np.uint64(EMPTY)).tolist():
            start, count = int(entries["offset"][chunk]), int(entries["nbytes"][chunk])
            self._readers.look("chunk")
            found = find() if by_name else found
            data = None if found is None else found.read(RangeByteRequest(start, start + count))
            if data is None:
                continue
            place = np.multiply(np.unravel_index(chunk, stored.shard_chunks), stored.chunk_shape)
            where = tuple(slice(a, a + n) for a, n in zip(place.tolist(), stored.chunk_shape, strict=True))
            values[where] = stored.decode(data, room)
        return values


def _end_or_start(stored: StoredArray) -> ByteRequest:
    """Where the index of a shard is."""
    nbytes = stored.index_bytes
    return RangeByteRequest(0, nbytes) if stored.index_location == "start" else SuffixByteRequest(nbytes)


class _Bytes:
    """A shard that was read as a whole."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, request: ByteRequest) -> bytes | None:
        return self._data[slice(*requested_range(request, len(self._data)))]


class _Open:
    """A shard that is open; its length is asked for now, as by a client that reads the end of a file."""

    def __init__(self, file: ReadFile) -> None:
        self.file = file

    def read(self, request: ByteRequest) -> bytes | None:
        start, stop = requested_range(request, os.fstat(self.file.descriptor).st_size)
        return os.pread(self.file.descriptor, max(0, stop - start), start)

    def __del__(self) -> None:
        self.file.close()


def _opened(stored: StoredArray, path: Path) -> _Open | None:
    try:
        return _Open(regular_file(path))
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _shards(stored: StoredArray, shape: Coordinates) -> list[Coordinates]:
    return list(np.ndindex(*(-(-n // s) for n, s in zip(shape, stored.shard_shape, strict=True))))


def _within(stored: StoredArray, shape: Coordinates, shard: Coordinates) -> tuple[Coordinates, Coordinates]:
    """Returns the first element of a shard, and how many of it along each axis are within the shape."""
    first = tuple(i * s for i, s in zip(shard, stored.shard_shape, strict=True))
    return first, tuple(min(s, n - a) for a, s, n in zip(first, stored.shard_shape, shape, strict=True))


def _put_shard(
    seen: Seen,
    grid: Grid,
    stored: StoredArray,
    shape: Coordinates,
    shard: Coordinates,
    values: np.ndarray[Any, Any],
) -> None:
    first, stop = _within(stored, shape, shard)
    seen.put(grid, first, values[tuple(slice(0, n) for n in stop)])


class Readers:
    """Those of one story. A moment is a turn of the world, in which each may make some of its looks."""

    def __init__(
        self,
        story: Story,
        disk: SimulatedDisk,
        path: Path,
        spec: AcquisitionSpec,
        oracle: Oracle,
        note: Callable[[str], None],
        now_s: Callable[[], float],
    ) -> None:
        self.disk, self.path, self.spec, self._note, self._now_s = disk, path, spec, note, now_s
        self.live = story.settings.live
        self.judge = Judge(story, spec, oracle, path)
        self._waiting = sorted(story.readers, key=lambda each: each.at)
        self._reading: list[_Reader] = []
        self._now: _Reader | None = None  # that goes on
        self._moment = 0

    # ------------------------------------------------------------------ what the world calls

    def moment(self) -> None:
        self._moment += 1
        while self._waiting and self._waiting[0].at <= self._moment:
            self._reading.append(_Reader(self._waiting.pop(0), self))
        is_stamped = False
        for reader in self._reading:
            if reader.rests:
                reader.rests -= 1
                continue
            turns = reader.reading.pace
            for _ in range(int(turns) + (reader.rng.random() < turns % 1)):
                if not reader.actor.is_over and not reader.rests:
                    if not is_stamped:
                        self.disk.stamp()
                        is_stamped = True
                    self._step(reader)
        self._reading = [reader for reader in self._reading if not reader.actor.is_over]

    def lose_power(self) -> None:
        """No reader lives over it."""
        self.kill()
        self.judge.lose_power()

    def recovered(self) -> None:
        self.judge.in_doubt = False

    def end(self) -> None:
        """Lets them end what they read; nothing changes any more."""
        self.disk.stamp()
        for reader in self._reading:
            readings = reader.readings
            while not reader.actor.is_over and reader.readings == readings:
                self._step(reader)
        self.kill()

    def kill(self) -> None:
        for reader in self._reading:
            reader.actor.kill()
        self._reading = []

    def _step(self, reader: _Reader) -> None:
        before, self._now = self._now, reader
        try:
            reader.actor.step()
        finally:
            self._now = before

    # ------------------------------------------------------------------ what readers call

    def note(self, what: str) -> None:
        self._note(what)

    def look(self, name: str) -> None:
        """Called before each look. One of the writer's own is not held."""
        reader = self._now
        if reader is None:
            return
        reader.looks += 1
        if reader.looks > MOST_LOOKS:
            raise ViolationError(f"{reader.who} looks without end: {name}")
        if not reader.is_alone:
            self._note(f"    {reader.who} {name}")
            likely, moments = reader.reading.held
            if reader.rng.random() < likely:
                reader.rests = reader.rng.randint(1, moments)
            give_way()

    def instead(self) -> Iterator[tuple[Any, str, Any]]:
        """As for ``simulated``: looks are held, time is the world's, and nothing is left to threads."""

        def sleep(_: float) -> None:
            if self._now is None or not self._now.is_alone:
                give_way()

        def all_of(work: Callable[[Any], None], items: Any) -> None:
            for item in items:
                work(item)

        yield failpoints, "_holders", [self.look]
        yield store_state, "time", SimpleNamespace(sleep=sleep, monotonic=self._now_s)
        yield box_reader, "_all_of", all_of
