"""The account of one acquisition: counts for the receipt, the three sets of sequences behind every
acknowledgement, and the frames that readers see. Owned by the acquisition's thread."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Extents, image_of, number_in_image
from shardwright.model.errors import ShardFormatError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.model.receipt import MOST_IMAGES, Receipt
from shardwright.wire.descriptor import JSON_FIELD, JSON_LEFT_OUT

from .visible_frames import VisibleFrames

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from shardwright.array.grid import Grids


_LEAST = 1024  # elements
# Of the first one that is missing. A damaged or forged record may name any sequence, and the array below has
# a byte for each before it: without a bound one record would take all memory of the machine.
_MOST_AHEAD = 1 << 28


_FRAMES_BY_IMAGE = (
    "images_received",
    "images_stored",
    "images_settled",
    "images_unstored",
    "images_skipped",
)
_BY_IMAGE = (
    "_grids",
    "_frame_bytes",
    "_frames_per_step",
    "_ragged",
    "_reached",
    "newest",
    "extents",
    *_FRAMES_BY_IMAGE,
)  # of the accounts


class SequenceSet:
    """A set of sequences. ``value`` counts those held without a hole from 0. Memory, and the cost of ``add``:
    one byte for each sequence between the value and the newest."""

    def __init__(self) -> None:
        self.value = 0
        self.stop = 0  # one more than the newest
        self._held = np.zeros(_LEAST, np.bool_)  # element i: sequence value + i

    def add(self, sequences: np.ndarray) -> None:
        """Adds sequences, in any order; those held already are ignored. Raises ``ShardFormatError`` for one
        as far ahead as no camera is: a file may say anything."""
        if sequences.size == 0:
            return
        if sequences.size == 1 and self.value == self.stop == sequences[0]:  # in order: nothing is held
            self.value = self.stop = self.value + 1
            return
        offsets = sequences.astype(np.int64) - self.value
        newest = int(offsets.max())
        if newest >= _MOST_AHEAD:
            raise self._too_far(self.value + newest)
        self.stop = max(self.stop, self.value + newest + 1)
        if newest >= self._held.size:
            grown = np.zeros(max(newest + 1, 2 * self._held.size), np.bool_)
            grown[: self._held.size] = self._held
            self._held = grown
        self._held[offsets[offsets >= 0]] = True
        # none is held beyond ``stop``, however large an earlier hole has made the array
        held = self._held[: self.stop - self.value]
        run = held.size if held.all() else int(held.argmin())
        if run:
            # Moved to the front, so that memory is that of what is out of order and not of the acquisition.
            self.value += run
            held[: held.size - run] = held[run:].copy()
            held[held.size - run :] = False
            # At a quarter and not at half: a set that stays around one size would copy itself each time.
            if self._held.size > _LEAST and self.stop - self.value < self._held.size // 4:
                self._held = self._held[: max(_LEAST, self._held.size // 2)].copy()

    def expect_up_to(self, stop: int) -> None:
        """Notes that sequences below ``stop`` exist, whether they are held or not. A file may say anything
        here, too: ``check_stop`` judges it, once all that holds frames has been added."""
        self.stop = max(self.stop, stop)

    def check_stop(self) -> None:
        """Raises ``ShardFormatError`` if a sequence is expected that ``add`` would refuse: a hole as long as
        a file says may be settled frame by frame."""
        if self.stop - self.value > _MOST_AHEAD:
            raise self._too_far(self.stop - 1)

    def _too_far(self, sequence: int) -> ShardFormatError:
        return ShardFormatError(
            "a frame has a sequence that cannot be",
            expected=f"below {self.value + _MOST_AHEAD}",
            got=sequence,
            hint="The records of the store in .shardwright are damaged or forged; what is sealed can be read",
        )

    def holds(self, sequences: np.ndarray) -> np.ndarray:
        """Returns bool[n]: which of these are in the set."""
        offsets = sequences.astype(np.int64) - self.value
        beyond = (offsets >= 0) & (offsets < self._held.size)
        held = offsets < 0
        held[beyond] = self._held[offsets[beyond]]
        return held

    def missing(self, stop: int) -> list[tuple[int, int]]:
        """Returns (first, last) of each hole in [0, stop), both included."""
        if stop <= self.value:
            return []
        width = min(stop - self.value, self._held.size)
        edges = np.flatnonzero(np.diff(np.concatenate(([True], self._held[:width], [True])).astype(np.int8)))
        holes = [
            (self.value + int(a), self.value + int(b) - 1)
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ]
        if self.value + width < stop:
            if holes and holes[-1][1] == self.value + width - 1:
                holes[-1] = (holes[-1][0], stop - 1)
            else:
                holes.append((self.value + width, stop - 1))
        return holes


class Accounts:
    """The counts and watermarks of one acquisition.

    ``seen``: sequences that came; ``stored``: those that a kill cannot lose; ``durable``: those that a power
    cut cannot lose. Settled ones are included. By image, int64[images]: ``images_received`` and
    ``images_stored``, frames; ``newest`` and ``extents`` are those of the frames that came (``Extents``,
    ``along``). ``images_settled``: frames that will not be stored; ``images_unstored``: those of them that
    have a place of their own and were to come, all but duplicates and skipped places (``images_skipped``)."""

    def __init__(self, grids: Grids) -> None:
        count = len(grids.grids)
        self._grids = grids
        self._frame_bytes = np.array([grid.frame_bytes for grid in grids.grids], np.int64)
        self._frames_per_step = np.array([math.prod(grid.counts[1:]) for grid in grids.grids], np.int64)
        self._ragged = np.array([grid.is_ragged for grid in grids.grids])
        self.images_received, self.images_stored = np.zeros((2, count), np.int64)
        self.images_settled, self.images_unstored, self.images_skipped = np.zeros((3, count), np.int64)
        reached = self._reached = Extents(grids)
        self.newest, self.extents = reached.newest, reached.along
        self.frames_durable = 0  # stored ones; settled ones are only in ``durable``
        self.frames_by_status = dict.fromkeys(FrameStatus, 0)
        # the first record of each status other than stored, as far as it is known
        self.first_by_status: dict[FrameStatus, np.void] = {}
        self.stored_bytes = 0
        self.shards = 0
        self.seen, self.stored, self.durable = SequenceSet(), SequenceSet(), SequenceSet()
        # after a crash: not on disk, and perhaps acknowledged; int64, sorted. No SequenceSet: that would take
        # a byte for each frame of the acquisition, and refuse a loss behind its first 2^28 frames
        self._unplaced = 0  # frames of which nobody knows the image, counted for image 0
        self._lost = np.zeros(0, np.int64)
        self.lost_stop = 0  # likewise all sequences missing below this
        self.frames_unacknowledged = 0  # of the lost ones
        # Hears of frames that come and are settled. None during recovery, which finds those of all processes.
        self._visible: VisibleFrames | None = None
        self.frame_json_dropped = 0
        self.first_json_dropped: np.void | None = None  # the record of the first of those

    def follow_readers(self, *, live: bool) -> None:
        """Counts from now on what readers of the files see. ``live``: they see shards grow."""
        self._visible = VisibleFrames(self._grids, live=live)

    @property
    def visible_frames(self) -> VisibleFrames:
        assert self._visible is not None, "they are followed"
        return self._visible

    def take_images(self, grids: Grids) -> None:
        """Takes the grids with those of images that were added."""
        more = Accounts(grids)
        images = self.newest.size
        more._reached.reach_as(self._reached)
        for name in _FRAMES_BY_IMAGE:
            getattr(more, name)[:images] = getattr(self, name)
        for name in _BY_IMAGE:
            setattr(self, name, getattr(more, name))
        if self._visible is not None:
            self._visible.take_images(grids)

    def receive(
        self, sequences: np.ndarray, positions: np.ndarray, *, without_place: np.ndarray | None = None
    ) -> None:
        """Counts frames that came. ``without_place``: bool[n], which of them are not where they say."""
        self.seen.add(sequences)
        self._count(self.images_received, positions)
        self._unplaced += int((positions < 0).sum())
        self._reached.reach(positions if without_place is None else positions[~without_place])
        if self._visible is not None:
            self._visible.receive(sequences, positions)

    def count_json(self, records: np.ndarray) -> None:
        """Counts the frames whose JSON was left out. ``records``: as they came, or descriptors."""
        if JSON_FIELD in (records.dtype.names or ()):
            without = np.flatnonzero(records[JSON_FIELD] == JSON_LEFT_OUT)
            self.frame_json_dropped += without.size
            if without.size and self.first_json_dropped is None:
                self.first_json_dropped = records[without[0]].copy()

    @staticmethod
    def _count(counts: np.ndarray, positions: np.ndarray, each: int = 1) -> None:
        """Adds to int64[images] ``counts``, for the image of each position; a place that is not known counts
        for image 0. The cost does not grow with the images: this is called for each frame."""
        np.add.at(counts, image_of(np.maximum(positions, 0)), each)

    def find(self, records: np.ndarray) -> None:
        """Counts stored frames that recovery found and synced: in the frame log, in a journal or in the
        staging area, perhaps in two of them."""
        sequences, positions = records["sequence"].astype(np.int64), records["position"].astype(np.int64)
        fresh = ~self.seen.holds(sequences)
        self.receive(sequences[fresh], positions[fresh])
        self.count_json(records[fresh])
        self.store(sequences, positions)
        self.make_durable(sequences, frames=True)

    def expect(self, records: np.ndarray) -> None:
        """Notes frames that are known to have come, though they are not stored: their sequences are missing,
        not unknown."""
        self._reached.reach(records["position"].astype(np.int64))
        self.expect_up_to(int(records["sequence"].astype(np.int64).max(initial=-1)) + 1)

    def expect_up_to(self, stop: int, extents: Sequence[int] = ()) -> None:
        """Notes that sequences below ``stop`` have come. ``extents``: rows of ``extents``, one after the
        other, if they are known. Raises ``ShardFormatError`` for extents that cannot be."""
        self.seen.expect_up_to(stop)
        if extents:
            self._reached.cover(extents)

    def reach_declared(self) -> None:
        """Lets the images to which a frame came reach as far along the first axis as was declared."""
        for image in np.flatnonzero(self.newest >= 0).tolist():
            first = self._grids.grids[image].counts[:1]  # none of an image that is one frame
            self.extents[image, 0] = max((self.extents[image, 0], *first))

    @property
    def images_known(self) -> np.ndarray:
        """int64[images]: the frames of each that came, without those of which nobody knows the image."""
        known = self.images_received.copy()
        known[0] -= self._unplaced
        return known

    def newest_position(self, image: int) -> int:
        """Returns the largest position of a frame of this image that came, as far as its position is known;
        less than the image's first one if there is none."""
        return self._grids.grids[image].first + int(self.newest[image])

    def passed(self, waiting: Iterable[np.ndarray]) -> np.ndarray:
        """Returns int64[images]: up to which place, as counted within each image, no frame in order is still
        to come or to be placed. That is ``newest``, or the place before the first of the frames that are
        ``waiting`` (int64[n] positions) for theirs."""
        passed = self.newest.copy()
        for positions in waiting:
            np.minimum.at(passed, image_of(positions), number_in_image(positions) - 1)
        return passed

    @property
    def misses_some(self) -> bool:
        """True while sequences before the newest have not come: only after a crash, until a client sends them
        again or they are settled."""
        return self.seen.value < self.seen.stop

    def whole_steps(self, waiting: Iterable[np.ndarray]) -> np.ndarray:
        """Returns ``extents``, along the first axis no further than steps whose last frame came, and before
        those of frames that are ``waiting`` (int64[n] positions); nothing while a sequence is missing, which
        the camera of a writer that died is about to send again, to a place that nobody knows here."""
        if self.misses_some:
            return np.zeros_like(self.extents)
        steps = (self.passed(waiting) + 1) // self._frames_per_step
        whole = self.extents.copy()
        whole[:, 0] = np.minimum(whole[:, 0], steps)
        return whole

    @property
    def frames_received(self) -> int:
        return int(self.images_received.sum())

    @property
    def frames_stored(self) -> int:
        return int(self.images_stored.sum())

    def lose(self, records: np.ndarray) -> None:
        """Notes frames that a crash or rot destroyed and that may have been acknowledged."""
        self.expect(records)
        self._lost = np.union1d(self._lost, records["sequence"].astype(np.int64))

    def may_be_acknowledged(self, missing: np.ndarray) -> np.ndarray:
        """Returns bool[n] for sequences that are missing after a crash: True if it may have been
        acknowledged."""
        lost = self._lost_before(missing + 1) > self._lost_before(missing)
        acknowledged: np.ndarray = (missing < self.lost_stop) | lost
        return acknowledged

    @property
    def whole_stop(self) -> int:
        """The end of the newest frame: ``seen.stop``, unless only some places of a frame of colours came. The
        rest is missing as well, since the next frame begins with its own first place."""
        places = self._grids.frame_places
        return -(-self.seen.stop // places) * places

    def missing_acknowledged(self) -> int:
        """Returns how many of the missing sequences may have been acknowledged."""
        count = 0
        for first, last in self.seen.missing(self.whole_stop):
            rest = min(max(first, self.lost_stop), last + 1)  # from here on only those known to be lost
            before, within = self._lost_before(np.array([rest, last + 1])).tolist()
            count += rest - first + within - before
        return count

    def _lost_before(self, sequences: np.ndarray) -> np.ndarray:
        """Returns int64[n]: how many lost sequences are below each."""
        return np.searchsorted(self._lost, sequences)

    def store(self, sequences: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Counts frames as stored. Returns bool[n]: which were not stored before, in the staging area or in
        files that failed since."""
        new: np.ndarray = ~self.stored.holds(sequences)
        self._count(self.images_stored, positions[new])
        self.stored.add(sequences)
        return new

    def make_durable(self, sequences: np.ndarray, *, frames: bool) -> None:
        """Counts sequences as durable. ``frames``: these are stored frames, not settled ones; some may be
        durable already, in the staging area."""
        if frames:
            self.frames_durable += int((~self.durable.holds(sequences)).sum())
        self.durable.add(sequences)

    def settle(self, records: np.ndarray) -> None:
        """Counts frames that will not be stored, by their status. Their sequences count as stored once they
        are in the frame log."""
        for number, first, count in zip(
            *np.unique(records["status"], return_index=True, return_counts=True), strict=True
        ):
            status = FrameStatus(int(number))
            self.frames_by_status[status] += int(count)
            # A copy: a record taken out of its array would keep that alive, all frames of a batch for one.
            self.first_by_status.setdefault(status, records[first].copy())
        positions = records["position"].astype(np.int64)
        self._count(self.images_settled, positions)
        own = ~np.isin(records["status"], (FrameStatus.DUPLICATE, FrameStatus.SKIPPED))
        self._count(self.images_unstored, positions[own])
        self._count(self.images_skipped, positions[records["status"] == FrameStatus.SKIPPED])
        self.frames_unacknowledged += int((records["reason"] == Reason.NOT_ACKNOWLEDGED).sum())
        if self._visible is not None:
            self._visible.settle(records)

    def count_lost(self, frames: int) -> None:
        """Counts frames that are lost, without a record of each."""
        self.frames_by_status[FrameStatus.LOST] += frames

    def count_files(self, stored_bytes: int, shards: int = 0) -> None:
        """Counts bytes and shards that the store has more, or, if negative, less."""
        self.stored_bytes += stored_bytes
        self.shards += shards

    def lose_stored(self, records: np.ndarray) -> None:
        """Counts stored frames that a disk error destroyed as settled; no later commit counts them."""
        sequences = records["sequence"].astype(np.int64)
        self._count(self.images_stored, records["position"].astype(np.int64), -1)
        self.frames_durable -= int(self.durable.holds(sequences).sum())
        # The count goes back and the watermark never: the client that was told has given its pixels away. It
        # hears of the loss by the frame's status.
        self.durable.add(sequences)

    def lose_all(self) -> None:
        """Counts every stored frame as lost, since the store is gone."""
        self.frames_by_status[FrameStatus.LOST] += self.frames_stored
        self.images_settled += self.images_stored
        self.images_unstored += self.images_stored
        self.images_stored[:] = 0
        self.frames_durable = self.stored_bytes = self.shards = 0

    @property
    def images_waiting(self) -> np.ndarray:
        """int64[images]: the frames that came and whose status is not decided yet."""
        return self.images_received - self.images_stored - self.images_settled

    def _missing(self, *, over: bool, images: int) -> np.ndarray:
        """Returns int64[images], the places without a frame. Until the acquisition is ``over``, only places
        up to the newest frame's count, since the camera still has to send the rest of its step. Where several
        axes grow nobody knows which frames were to come: there only frames that came count."""
        if over:
            places = self.extents[:, 0] * self._frames_per_step
            places[(self.newest < 0) & (images > 1)] = 0
        else:
            places = self.newest + 1
        missing = np.maximum(0, places - self.images_stored - self.images_waiting - self.images_skipped)
        return np.where(self._ragged, self.images_unstored, missing)

    def receipt(self, path: Path, names: Sequence[str], *, over: bool, failed: bool) -> Receipt:
        """Returns the receipt. ``names`` of the images. Of an acquisition that ``failed`` only durable frames
        are there."""
        missing = self._missing(over=over, images=len(names))
        held = self.frames_stored + int(self.images_waiting.sum())
        statuses = self.frames_by_status
        return Receipt(
            path=str(path),
            frames_received=self.frames_received,
            frames_stored=self.frames_stored,
            frames_durable=self.frames_durable,
            frames_missing=int(missing.sum()) + (held - self.frames_durable if failed else 0),
            frames_duplicate=statuses[FrameStatus.DUPLICATE],
            frames_late=statuses[FrameStatus.LATE],
            frames_dropped=statuses[FrameStatus.DROPPED],
            frames_lost=statuses[FrameStatus.LOST],
            places_skipped=statuses[FrameStatus.SKIPPED],
            bytes_raw=int((self.images_stored * self._frame_bytes).sum()),
            bytes_stored=self.stored_bytes,
            shards=self.shards,
            frame_json_dropped=self.frame_json_dropped,
            images=self._by_name(names, missing),
        )

    def _by_name(self, names: Sequence[str], missing: np.ndarray) -> dict[str, dict[str, int]]:
        """Returns the counts of each image to which frames came; none of a single image."""
        if not 1 < len(names) <= MOST_IMAGES:
            return {}
        return {
            names[image]: {
                "frames_received": int(self.images_received[image]),
                "frames_stored": int(self.images_stored[image]),
                "frames_missing": int(missing[image]),
            }
            for image in np.flatnonzero(self.newest >= 0).tolist()
        }
