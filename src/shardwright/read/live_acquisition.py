"""An unfinished store as its writer has it: shard rows in progress, staged frames, sealed shard rows, and how
far each image reaches."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.acquisition_spec import ARRAY_NAME
from shardwright.array.grid import Extents, image_of
from shardwright.disk import beneath
from shardwright.disk.failpoints import look
from shardwright.disk.files import storage_errors
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.names import DOCUMENT, folders_to, key_in
from shardwright.scan.unfinished_store import if_begun
from shardwright.shard.file_header import is_begun
from shardwright.shard.layout import slabs_of_shard_row

from .live_row import LiveRow, OpenJournals, identity_of
from .live_staging import LiveStaging

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.scan.unfinished_store import JournalName, UnfinishedStore
    from shardwright.shard.frame_log import FrameLog
    from shardwright.shard.layout import PlaneChunks
    from shardwright.shard.shard_row_files import Placement

    from .live_staging import KeptPixels, StagedFrame
    from .store_state import Identity


def slots_of_layer(plane: PlaneChunks, file: int) -> np.ndarray:
    """Returns int64[layer_entries]: the slot within a layer of each index entry of a layer in a shard file,
    -1 for chunks past the array. ``file``: within those of a slab."""
    mine = np.flatnonzero(plane.file == file)
    slots = np.full(plane.layer_entries, -1, np.int64)
    slots[plane.entry[mine]] = plane.slot[mine]
    return slots


_MOST_FAILED_READS = 4  # of shard rows, in one look


class LiveAcquisition:
    """Used under the lock of its view. ``version`` changes with the manifest. ``extents``: of frames
    that are stored. ``arrays``: (image, level) by the path of each array."""

    def __init__(self, store: UnfinishedStore, version: tuple[Any, ...], kept_pixels: KeptPixels) -> None:
        # The view writes both, when the same writer has renewed its manifest.
        self.store = store
        self.version = version
        self.spec = store.spec
        self.layout = store.layout
        self.record = store.record_dtype
        # Shard rows by number, each of one journal: it goes when that has gone, or another file has its name.
        self.rows: dict[int, LiveRow] = {}
        self._open_journals = OpenJournals(store)
        # It only grows, whatever is deleted or lost: a shape that a reader has seen never shrinks.
        self.extents = Extents(self.spec.grids)
        self.arrays = {
            path: (image, level)
            for image in range(len(self.spec.paths))
            for level, path in enumerate(self.spec.level_paths(image))
        }
        # Open from the first look on. Blocks are appended and never changed, so that only new ones are read;
        # but see ``read_again``.
        self._log: FrameLog | None = None
        # Shard rows that were found in the log, for ``take_sealed``: a follower reads their records once.
        self._sealed: list[int] = []
        # Likewise those that the extents do not cover yet. The newest come first: they reach the furthest.
        self._uncovered: list[int] = []
        self._slabs: dict[int, frozenset[int]] = {}
        # None if a slab is one frame, or if the area is damaged. Then ``_damage`` says why, as text: the
        # error itself would keep the frames of its traceback as long as this view.
        self.staging: LiveStaging | None = None
        self._damage: ErrorText | None = None
        try:
            self.staging = LiveStaging.open(store, kept_pixels)
        except ShardFormatError as error:
            self._damage = ErrorText.of(error)

    def check_staging(self) -> None:
        """Raises ``ShardFormatError`` if the staging area is damaged: a frame that is nowhere else may be
        there."""
        if self._damage is not None:
            raise self._damage.to_error()

    # ------------------------------------------------------------------ shard rows

    def keys(self) -> set[str]:
        """Returns the keys of zarr.json of images with frames and of the groups above, and those of the
        shards in which something is stored or staged."""
        paths = {
            path for path, (image, _) in self.arrays.items() if self.has_frames(image) or self.spec.is_single
        }
        folders = {"", *(folder for path in paths for folder in folders_to(path))}
        rows = {number for number, row in self.rows.items() if row.stored.any()}
        if self.staging is not None:
            rows |= {self.spec.grids.shard_row_of_slab(slab) for slab in self.staging.look()}
        shards = {path for row in rows for path in self.layout.of(row).shard_paths(row)}
        return shards | {key_in(folder, DOCUMENT) for folder in folders}

    def slabs_of(self, shard_row: int) -> frozenset[int]:
        """Returns the slabs of a shard row."""
        if shard_row not in self._slabs:
            self._slabs[shard_row] = frozenset(slabs_of_shard_row(self.layout.of(shard_row), shard_row))
        return self._slabs[shard_row]

    def row(self, number: int) -> LiveRow | None:
        """Returns a shard row in progress, as its journal is now; None if it has none, or one of which
        nothing is written yet. Raises ``ShardFormatError`` for one that is damaged, ``StorageError``."""
        row = self.rows.get(number)
        if row is not None and row.is_current():
            return row
        self.rows.pop(number, None)
        for placement in self.store.placements:
            look("look.journal")
            path = self.store.journal_path(placement, number)
            if (row := self._open_row(number, placement, path)) is not None:
                self.rows[number] = row
                return row
            placement.check_there()
        return None

    def journal_of(self, number: int) -> Identity | None:
        """Returns the identity of a shard row's journal, None if it has none of which anything is written.
        Raises ``StorageError``."""
        for placement in self.store.placements:
            look("look.journal.name")
            path = self.store.journal_path(placement, number)
            with storage_errors("look at", path), suppress(FileNotFoundError):
                identity, row = identity_of(beneath.stat(path)), self.rows.get(number)
                if (row is not None and row.identity == identity) or is_begun(path):
                    return identity
            placement.check_there()
        return None

    def _open_row(self, number: int, placement: Placement, path: Path) -> LiveRow | None:
        """As ``row``, in one placement, with the file of its journal."""
        if not beneath.exists(path):  # of a sealed shard row: the usual case
            return None
        return if_begun(path, partial(LiveRow, self.store, number, placement, path, self._open_journals))

    def _find_rows(self) -> None:
        """Opens journals that are new, and drops those that are gone or replaced."""
        there: dict[int, tuple[JournalName, Placement]] = {}
        for placement in self.store.placements:
            for number, name in self.store.look_into(placement).journals.items():
                there[number] = name, placement
        for number, row in list(self.rows.items()):
            # The path as well: an inode that a deleted file had may be another's by now.
            if number not in there or there[number][0] != (row.path, row.identity[1]):
                del self.rows[number]
        for number, (name, placement) in sorted(there.items()):
            if number not in self.rows:
                look("look.journal")
                with suppress(ShardFormatError):  # who reads its chunks is told; recovery reports it
                    if (opened := self._open_row(number, placement, name.path)) is not None:
                        self.rows[number] = opened

    # ------------------------------------------------------------------ frames

    def has_frames(self, image: int) -> bool:
        return bool(self.extents.newest[image] >= 0)

    def extents_of(self, image: int) -> tuple[int, ...]:
        """Returns how far an image reaches along its growing axes; 0 before its first frame."""
        along = self.extents.along[image, : len(self.spec.grids.grids[image].growing)]
        return tuple(along.tolist())

    def image_at(self, path: str) -> int | None:
        """Returns the image whose array, level or group has this path, None if it is of none or of all."""
        found = self.arrays.get(path) or self.arrays.get(key_in(path, ARRAY_NAME))
        return None if found is None else found[0]

    def look(self, only: int | None = None) -> list[np.ndarray]:
        """Looks at all that may have changed; returns the records of frames that are staged, and of those
        whose slab was found stored since the last look. ``only``: the image whose shard rows are looked at.
        Raises ``StorageError``."""
        found: list[np.ndarray] = []
        if self.staging is not None:
            staged = [frame.record for frames in self.staging.look().values() for frame in frames]
            found += [np.array(staged, self.record)] if staged else []
        self._find_rows()
        for row in self.rows.values():
            if only not in (None, image_of(row.number)):
                continue
            with suppress(StorageError):  # its disk fails: what was found before stays
                found += [records for _, records in row.look()]
        for records in found:
            self._extend(records)
        self._find_sealed()
        return found

    def newest_record(self) -> np.void | None:
        """Returns the record of the stored frame that came last, None without one; only for a view that has
        not looked before. Of the sealed shard rows it reads those with the furthest frame of an image. Raises
        ``ShardFormatError``, ``StorageError``."""
        found = self.look()
        log, grids = self._log, self.spec.grids
        ends = zip(grids.grids, self.extents.newest.tolist(), strict=True)
        slabs = [grid.slab_of_position(grid.first + newest) for grid, newest in ends if newest >= 0]
        rows = {grids.shard_row_of_slab(slab) for slab in slabs}
        found += [log.shard_row_records(row) for row in rows & log.shard_rows] if log is not None else []
        stored = [some[some["status"] == FrameStatus.STORED] for some in found]
        last = [some[np.argmax(some["sequence"])] for some in stored if some.size]
        return max(last, key=lambda record: int(record["sequence"]), default=None)

    def take_sealed(self) -> Iterator[np.ndarray]:
        """Yields the records of each shard row that was found sealed since the last call. Ends early when the
        manifest is renewed between two of them: a later call yields all shard rows again. Raises
        ``StorageError``."""
        log, sealed, self._sealed = self._log, self._sealed, []
        for row in sealed:
            # The user of the last records has read frames, and so looked for the state of the store.
            if log is None or self._log is not log:
                return
            look("look.log.rows")
            with suppress(ShardFormatError):  # damaged: recovery reports it
                yield log.shard_row_records(row)

    def is_logged(self, shard_row: int) -> bool:
        """Returns whether the frame log says that a shard row was sealed."""
        self._find_sealed()
        return self._log is not None and shard_row in self._log.shard_rows

    def _find_sealed(self) -> None:
        with suppress(ShardFormatError, StorageError):
            self._read_log()

    def _read_log(self) -> None:
        """Raises ``ShardFormatError``, ``StorageError``."""
        look("look.log")
        if self._log is None:
            self._log = self.store.open_log(read_only=True)
            new = sorted(self._log.shard_rows)
        else:
            new = [row for row, _ in self._log.find_more()]
        self._sealed += new
        self._uncovered += new
        self._uncovered = self._not_covered(self._log)

    @property
    def folders(self) -> list[Path]:
        """The folders with work in progress."""
        return [placement.files for placement in self.store.placements]

    def not_sealed(
        self, shard_row: int, staged: dict[int, list[StagedFrame]]
    ) -> dict[int, list[StagedFrame]]:
        """Returns those of the staged frames of a shard row, by slab, that it lacks if it was sealed: they
        came since, and it is opened again for them. The slots of others may be used again. Raises
        ``ShardFormatError``, ``StorageError`` when the frame log cannot be read: it decides where they
        are."""
        self._read_log()
        assert self._log is not None
        if shard_row not in self._log.shard_rows:
            return staged
        look("look.log.rows")
        sealed = self._log.shard_row_records(shard_row)["sequence"]
        new = {
            slab: [frame for frame in frames if frame.record["sequence"] not in sealed]
            for slab, frames in staged.items()
        }
        return {slab: frames for slab, frames in new.items() if frames}

    def read_again(self) -> None:
        """Forgets what was read of journals and of the frame log. Recovery clears slabs that are not whole,
        which may be stored again, and cuts off what follows a damaged block of the log, where others are
        appended."""
        self.rows.clear()
        self._sealed, self._uncovered = [], []
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def _not_covered(self, log: FrameLog) -> list[int]:
        """Lets the extents cover the shard rows that they do not cover yet, the newest first. Returns those
        that cannot be read now: the next look tries them again. Where many cannot, the disk is the reason,
        and the others wait as well."""
        failed: list[int] = []
        left = self._uncovered.copy()  # which stays as it is if Ctrl-C comes
        while left and len(failed) < _MOST_FAILED_READS:
            row = left.pop()
            if not self._is_covered(row, log):
                failed.append(row)
        return left + failed[::-1]

    def _is_covered(self, shard_row: int, log: FrameLog) -> bool:
        """Lets the extents cover a sealed shard row; returns False if its records cannot be read now. They
        are read only if they may reach further."""
        grid, extents = self.layout.of(shard_row).grid, self.extents
        covered = extents.along[grid.image].tolist()
        if extents.newest[grid.image] < 0 or any(
            end > n for end, n in zip(grid.ends_of(shard_row), covered, strict=False)
        ):
            try:
                self._extend(log.shard_row_records(shard_row))
            except ShardFormatError:
                return True  # damage, which stays
            except StorageError:
                return False
        return True

    def _extend(self, records: np.ndarray) -> None:
        self.extents.reach(records["position"].astype(np.int64))

    def __del__(self) -> None:
        if (log := getattr(self, "_log", None)) is not None:
            log.close()
