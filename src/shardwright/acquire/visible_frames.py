"""The frames that a plain reader of the files sees: one that knows of no journal and reads zarr.json first.
It sees a frame once a file with a final name lists its chunk, and the shape in zarr.json covers its place.

    received ──▶ LISTED, by a sealed shard row or a slab that was shown ──▶ SEEN, by the shape
        └──────────────────────── settled: it will never be stored ───────────▲

Both come as reports of the sealer, in any order. Owned by the acquisition's thread; others read counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Extents, image_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardwright.array.grid import Grids

RECEIVED, LISTED, SEEN = range(3)
ROW = np.dtype([("sequence", "<i8"), ("position", "<i8"), ("state", "u1")])
# Rows of all images, at most 27 MB: where frames are not seen before the end, as of a shard row that is never
# full, memory must not grow with the acquisition. Frames beyond it count as unseen until the end.
MOST_UNSEEN = 1 << 20


class _Unseen:
    """The frames of one image from the first one on that is not seen, in the order of their sequences."""

    def __init__(self) -> None:
        # Written by the owner in one step each, so that any thread may read them: how many frames of the
        # image come before the first row, all of them seen; the first sequence that is not seen, -1 if all
        # are.
        self.before, self.head = 0, -1
        self._untracked = -1  # the first sequence for which there was no row
        self._rows = np.zeros(16, ROW)
        self._stop = 0

    @property
    def rows(self) -> np.ndarray:
        return self._rows[: self._stop]

    def pass_over(self, frames: int) -> None:
        """Counts frames before the first row, all of them seen."""
        self.before += frames

    def _find_head(self) -> None:
        heads = [self._untracked, int(self._rows["sequence"][0]) if self._stop else -1]
        self.head = min((head for head in heads if head >= 0), default=-1)

    @property
    def is_tracked(self) -> bool:
        return self._untracked < 0

    def add_untracked(self, sequences: np.ndarray) -> None:
        """Notes frames that count as unseen until the end, and so do all that come after them."""
        least = int(sequences.min())
        self._untracked = min(least, self._untracked) if self._untracked >= 0 else least
        self._find_head()

    def add(self, sequences: np.ndarray, positions: np.ndarray) -> None:
        start, self._stop = self._stop, self._stop + sequences.size
        if self._stop > self._rows.size:
            grown = np.zeros(self._stop + max(16, self._stop // 2), ROW)
            grown[:start] = self._rows[:start]
            self._rows = grown
        new = self._rows[start : self._stop]
        new["sequence"], new["position"], new["state"] = sequences, positions, RECEIVED
        is_behind = not start or sequences[0] > self._rows["sequence"][start - 1]
        if not is_behind or (sequences.size > 1 and (np.diff(sequences) < 0).any()):
            self.rows[:] = self.rows[np.argsort(self.rows["sequence"], kind="stable")]  # sent again
        self._find_head()

    def mark(self, sequences: np.ndarray, state: int) -> None:
        """Marks those of these frames that are not seen yet."""
        if not self._stop:
            return
        mine = self.rows["sequence"]
        at = np.minimum(np.searchsorted(mine, sequences), self._stop - 1)
        at = at[mine[at] == sequences]
        self.rows["state"][at] = np.maximum(self.rows["state"][at], state)

    def go_on(self) -> None:
        """Drops the rows before the first frame that is not seen."""
        unseen = self.rows["state"] != SEEN
        run = int(unseen.argmax()) if unseen.any() else self._stop
        if run:
            self._rows[: self._stop - run] = self._rows[run : self._stop].copy()
            self._stop -= run
            if self._rows.size > 1024 and self._stop < self._rows.size // 4:
                self._rows = self._rows[: self._rows.size // 2].copy()
            self._find_head()
            self.pass_over(run)


class VisibleFrames:
    """The visible frames of one acquisition. ``live``: readers see shards grow."""

    def __init__(self, grids: Grids, *, live: bool) -> None:
        self._live = live
        self._images = [_Unseen() for _ in grids.grids]
        # By shard row and slab, those that may be seen ahead of their shard row: the sequences of its frames,
        # until it is shown or its shard row is sealed.
        self._slabs: dict[int, dict[int, np.ndarray]] = {}
        self._tracked = 0  # rows of all images
        self.changes = 0  # grows whenever more frames are seen or settled; read from any thread
        self._use(grids)

    def _use(self, grids: Grids) -> None:
        self._grids = grids
        self._covered = Extents(grids)  # ``along``: how far zarr.json of each image reaches

    def take_images(self, grids: Grids) -> None:
        """Takes the grids with those of images that were added."""
        before = self._covered
        self._use(grids)
        self._covered.reach_as(before)
        self._images += [_Unseen() for _ in grids.grids[len(self._images) :]]

    def begin(self, covered: Mapping[int, tuple[int, ...]], received: np.ndarray, rows: np.ndarray) -> None:
        """Begins with the frames of earlier processes. ``covered``: as for ``cover``; ``received``:
        int64[images], frames that came to each; ``rows``: ``ROW``[n], those from the first one of each image
        on that is not seen."""
        self.cover(covered)
        images = image_of(rows["position"])
        counts = np.maximum(0, received - np.bincount(images, minlength=received.size))
        for unseen, count in zip(self._images, counts.tolist(), strict=True):
            unseen.pass_over(count)
        self.receive(rows["sequence"], rows["position"])
        for state in (LISTED, SEEN):
            for number in np.unique(images[rows["state"] == state]).tolist():
                mine = (rows["state"] == state) & (images == number)
                self._mark(number, rows["sequence"][mine], state)

    # ------------------------------------------------------------------ what readers see

    def watermark(self, stored: int) -> int:
        """Returns how many frames, from sequence 0 without a hole, are seen or settled, of ``stored`` ones.
        From any thread."""
        return min((head for unseen in self._images if 0 <= (head := unseen.head) < stored), default=stored)

    def by_image(self) -> list[int]:
        """The number of frames of each image, from its first on without a hole, that are seen or settled.
        From any thread."""
        return [unseen.before for unseen in self._images]

    # ------------------------------------------------------------------ what happens to frames

    def receive(self, sequences: np.ndarray, positions: np.ndarray) -> None:
        """Adds frames that came. ``positions``: negative where the place is not known; such a frame is of no
        image, will be settled, and holds up nothing: it counts as stored only then."""
        known = positions >= 0
        if not known.all():
            sequences, positions = sequences[known], positions[known]
        if not sequences.size:
            return
        if len(self._images) == 1:
            self._add(0, sequences, positions)
            return
        images = image_of(positions)
        if sequences.size == 1:
            self._add(images.item(), sequences, positions)
            return
        for image in np.unique(images).tolist():
            mine = images == image
            self._add(image, sequences[mine], positions[mine])

    def _add(self, image: int, sequences: np.ndarray, positions: np.ndarray) -> None:
        unseen, grid = self._images[image], self._grids.grids[image]
        # without ``live`` no shape covers a ragged image before the end
        room = MOST_UNSEEN - self._tracked if self._live or not grid.is_ragged else 0
        if not unseen.is_tracked or sequences.size > room:
            unseen.add_untracked(sequences)
            return
        self._tracked += sequences.size
        unseen.add(sequences, positions)

    def settle(self, records: np.ndarray) -> None:
        """Notes frames that will not be stored: no reader will see them."""
        images = image_of(np.maximum(records["position"].astype(np.int64), 0))
        for image in np.unique(images).tolist():
            self._mark(image, records["sequence"][images == image].astype(np.int64), SEEN)

    def _mark(self, image: int, sequences: np.ndarray, state: int) -> None:
        self._images[image].mark(sequences, state)
        if state == SEEN:
            self._go_on(image)
        else:
            self._see(image)

    def _go_on(self, image: int) -> None:
        before = self._images[image].before
        self._images[image].go_on()
        self._tracked -= self._images[image].before - before
        self.changes += 1

    # ------------------------------------------------------------------ what the sealer did

    def slab_stored(self, slab: int, sequences: np.ndarray) -> None:
        """Notes the frames of a slab that may be seen ahead of its shard row: ``show`` says when."""
        self._slabs.setdefault(self._grids.shard_row_of_slab(slab), {})[slab] = sequences

    def show(self, slabs: Iterable[int]) -> None:
        """Notes stored slabs whose chunks are listed in files with final names."""
        for slab in slabs:
            waiting = self._slabs.get(self._grids.shard_row_of_slab(slab), {})
            if (sequences := waiting.pop(slab, None)) is not None:
                self._mark(image_of(slab), sequences, LISTED)

    def seal(self, shard_row: int, records: np.ndarray) -> None:
        """Notes a sealed shard row: the records of all frames in it."""
        self._slabs.pop(shard_row, None)
        self._mark(image_of(shard_row), records["sequence"].astype(np.int64), LISTED)

    def cover(self, extents: Mapping[int, tuple[int, ...]]) -> None:
        """Notes how far zarr.json of images reaches along their growing axes."""
        for image, along in extents.items():
            self._covered.cover_image(image, along)
            self._see(image)

    def _see(self, image: int) -> None:
        if not self._covered.along[image, 0]:
            return  # asked for each shard row that is sealed
        rows = self._images[image].rows
        listed = np.flatnonzero(rows["state"] == LISTED)
        if listed.size:
            needed = self._covered.needed_for(rows["position"][listed])
            inside = listed[(needed <= self._covered.along[image]).all(axis=1)]
            rows["state"][inside] = SEEN
            self._go_on(image)

    def end(self, received: np.ndarray) -> None:
        """Notes the end of the store: readers see all that is stored. ``received``: int64[images],
        frames that came to each."""
        images = [_Unseen() for _ in self._images]
        for unseen, count in zip(images, received.tolist(), strict=True):
            unseen.pass_over(count)
        self._images, self._tracked = images, 0
        self._slabs.clear()
        self.changes += 1
