"""The files of one open shard row: its shard files and their journal, made, synced, sealed and discarded as
one.

The journal is created after the shard files, so that a shard in progress without a journal holds nothing. Its
header is written when all their names are durable: a power cut never leaves it without a shard in progress,
which would mean that the shard row was sealed. The shard row is sealed shard by shard; the sealer deletes the
journal once the frames of the shard row are in the frame log. One owner thread (the sealer's) calls
everything here; workers only write through the descriptors and addresses.

A spilled shard row has its files in a folder of the same structure below the second root, and a symbolic link
under each shard's key in the store.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardwright.model.errors import ShardFormatError, ShardwrightError, StorageError
from shardwright.model.names import REWRITE_SUFFIX, WORKSPACE
from shardwright.storage import beneath
from shardwright.storage.failpoints import reach
from shardwright.storage.files import (
    DurableFolders,
    storage_errors,
    sync_directory,
)
from shardwright.storage.filesystems import syncs_as_one
from shardwright.storage.side_by_side import side_by_side

from .chunk_order import fixed_order
from .index import EMPTY as ABSENT
from .index import empty_index
from .journal import JournalLayout, ShardRowJournal
from .open_shard import OpenShard, SealedShard
from .shard_sums import ShardSums, Sum, sum_of_journaled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from shardwright.model.write_options import IoMode, LiveMode, WriteOrder

    from .layout import ArrayLayout, SlabPlaces
    from .manifest import Manifest
    from .read_back import ReadBack

T = TypeVar("T")
MOST_SYNCED_ALONE = 4  # files of a shard row; more are synced by one call for the whole filesystem
ALONE = "0/"  # the array of a store with one image: not in the names of its shards in progress
WORKING_SUFFIX, JOURNAL_SUFFIX = ".partial", ".journal"
LOG_NAME, STAGING_NAME = "frames.log", "staging"
TAKEN_PREFIX = "taken-"  # folders of a workspace, followed by the epoch of the writer that took over


@dataclass(frozen=True)
class Placement:
    """The place of shard rows' files: the store itself, or (``spill``) the folder of the same name below the
    second root. ``epoch``: of the writer that took the store over last, 0 if none did. That writer has its
    files in progress in a separate folder: the earlier writer may still rename or delete a file after its
    last check of the fence, but not these. ``folders``: of all places of the store."""

    store: Path
    spill: Path | None = None
    epoch: int = 0
    folders: DurableFolders = field(default_factory=DurableFolders, compare=False, repr=False)

    @property
    def root(self) -> Path:
        return self.store if self.spill is None else self.spill

    @property
    def workspace(self) -> Path:
        return self.root / WORKSPACE

    @property
    def files(self) -> Path:
        """The folder of files in progress: shard rows and, in the store itself, frame log and staging
        area."""
        return self.workspace / f"{TAKEN_PREFIX}{self.epoch}" if self.epoch else self.workspace

    def working(self, shard_path: str) -> Path:
        """Returns the path of a shard in progress, of a shard's path in the store."""
        alone = shard_path.startswith(f"{ALONE}c/") and "/c/" not in shard_path.removeprefix(f"{ALONE}c")
        path = shard_path.removeprefix(ALONE) if alone else shard_path
        return self.files / f"{path.replace('/', '.')}{WORKING_SUFFIX}"

    def final(self, shard_path: str) -> Path:
        return self.root / shard_path

    def sync_names(self, finals: Iterable[Path]) -> None:
        """Makes the final names of shards durable, and those of the folders above them: where many were made
        at once, or their writer was killed, these may not be. Each folder that is there is synced once.
        Raises ``StorageError``."""
        folders = (folder for final in finals for folder in final.parents if folder.is_relative_to(self.root))
        for folder in dict.fromkeys(folders):
            if beneath.is_dir(folder):
                sync_directory(folder)

    def journal(self, shard_row: int) -> Path:
        return self.files / f"{shard_row}{JOURNAL_SUFFIX}"

    def record(self, array_path: str) -> ShardSums:
        """The record of sums of an array's shards, in both roots."""
        return ShardSums(self.store / array_path)

    def link(self, shard_path: str) -> Path | None:
        """Returns the path of the store's link to a spilled shard, None if the shard is in the store."""
        return None if self.spill is None else self.store / shard_path


def shard_of_working(name: str) -> str:
    """Returns the path in the store of the shard whose name in progress this is."""
    path = name.removesuffix(WORKING_SUFFIX).replace(".", "/")
    return ALONE + path if path.startswith("c/") and "/c/" not in path else path


def is_in_progress(path: Path) -> bool:
    """Returns whether a file of a workspace is a shard in progress, a journal, the frame log or the staging
    area."""
    return path.name in (LOG_NAME, STAGING_NAME) or path.name.endswith((WORKING_SUFFIX, JOURNAL_SUFFIX))


def placements_of(store: Path, manifest: Manifest, folders: DurableFolders | None = None) -> list[Placement]:
    """Returns all places where files of a store may lie: the store itself and, if it has one, its folder
    below the second root. ``folders``: of whoever writes there."""
    folders = folders or DurableFolders()
    root = manifest.spill_root
    spills = [] if root is None else [beneath.user_path(root) / store.name]
    return [Placement(store, spill, manifest.files_epoch, folders) for spill in (None, *spills)]


class ShardRowFiles:
    """The open files of a shard row. ``shards[f]`` is file f; None if it has its final name already (after a
    crash in the middle of sealing)."""

    def __init__(
        self,
        shard_row: int,
        placement: Placement,
        shards: list[OpenShard | None],
        journal: ShardRowJournal,
        array_paths: list[str],
        ranks: np.ndarray | None = None,
    ) -> None:
        """``array_paths``: of each file, the path in the store of its array. ``ranks``: see ``offsets``."""
        self.shard_row = shard_row
        self.placement = placement
        self._array_paths = array_paths
        self.slots = [shard for shard in shards if shard is not None]
        self.shards = shards
        self.journal = journal
        self.ranks = ranks
        # packed: the start of each file's next run; workers add to it
        self.cursors = np.full(len(shards), journal.layout.data_start, np.int64)
        self.descriptors = np.array([-1 if s is None else s.descriptor for s in shards], np.int64)
        mapped = [0 if s is None else s.slots_address or 0 for s in shards]
        # int64[files], of slot 0 of each file if they are mapped
        self.addresses = np.array(mapped, np.int64) if any(mapped) else None
        chunks = max((shard.layout.chunks for shard in self.slots), default=0)
        self._entries = empty_index(len(shards) * chunks).reshape(len(shards), chunks)
        for shard, entries in zip(shards, self._entries, strict=True):
            if shard is not None:
                entries[:] = shard.entries
                shard.entries = entries
        self.sealed: dict[int, SealedShard] = {}  # by file: those that have their final names, durably
        self._recorded: dict[int, Sum] = {}  # by file: sums that are on record already

    @classmethod
    def create(
        cls,
        placement: Placement,
        layout: ArrayLayout,
        shard_row: int,
        io: IoMode,
        identity: bytes,
        writer_epoch: int,
        record: np.dtype[np.void],
        *,
        packed: bool | None = None,
        reopened: bool = False,
        suffix: str = "",
        live: LiveMode = "none",
        keep: ShardRowFiles | None = None,
        order: WriteOrder = "arrival",
        step: Callable[[], None] = lambda: None,
        may_rename: Callable[[], None] = lambda: None,
    ) -> ShardRowFiles:
        """Creates and preallocates all files, with ``suffix`` behind each name. ``step`` is called after each
        shard file, here as below. ``may_rename`` is called before an existing file of that name is deleted:
        it raises ``FencedError`` when another writer, who may own it, has taken over. ``packed``: as the
        files that these replace; by default packed unless a chunk needs a known place, as where shards are
        mapped, or in a file that is nothing but its chunk. ``reopened``: the shard row was sealed once, and
        these files replace its shards when it is sealed again, or as soon as readers may see that (``live``).
        ``keep``: the files that these replace; those of them that have their final names stay. ``order``: of
        the chunks, but for files that replace others, and shards that readers may have open. Other than with
        ``arrival`` each has a slot; the journal says *packed* unless the slots are in the order of their
        numbers, so that recovery takes each chunk where it lies.

        Raises ``StorageFullError`` or ``StorageError``; nothing is left behind then, except shards whose
        journal a power cut might bring back."""
        if placement.spill is not None:
            # only here: without its own workspace the store was finished by another writer
            placement.folders.make(placement.files)
        ranks = None if keep is None else keep.ranks
        if packed is None:
            seen = reopened and live != "none"  # old chunks stay where readers may have found them
            packed, ranks = _new_places(layout, shard_row, io, "arrival" if seen else order)
        if packed and ranks is None:
            io = unmapped(io)
        journal_path = _suffixed(placement.journal(shard_row), suffix)
        if _remove(journal_path, may_rename):  # before the shards that it may speak of
            sync_directory(placement.files)
        opened: list[OpenShard | None] = [None] * layout.files_of(shard_row)
        sealed = {} if keep is None else dict(keep.sealed)

        def open_shard(file: int) -> None:
            if keep is not None and (file in sealed or keep.shards[file] is None):
                opened[file] = keep.shards[file]
                return
            path = layout.shard_path(shard_row, file)
            sums = placement.record(layout.array_path(file))
            make_shard = partial(
                OpenShard,
                layout.shard(shard_row, file),
                final_path=placement.final(path),
                io=io,
                link=placement.link(path),
                replaces=sums if reopened or (suffix and live != "none") else None,
                reopened=reopened,
                live=live,
                record=sums,
                folders=placement.folders,
            )
            opened[file] = _made_by_us(_suffixed(placement.working(path), suffix), make_shard, may_rename)
            step()

        try:
            side_by_side(open_shard, len(opened))
            journal = ShardRowJournal.create(
                journal_path,
                JournalLayout.of(layout, shard_row, record),
                identity,
                shard_row,
                writer_epoch,
                packed=packed,
                reopened=reopened,
            )
        except BaseException:
            gone = _is_gone(journal_path, may_rename)
            for file, shard in enumerate(opened):
                # closed in any case; a file that stays holds nothing, and recovery deletes it
                with suppress(StorageError):
                    if shard is not None and file not in sealed:
                        shard.discard() if gone else shard.abandon()
            raise
        files = cls(shard_row, placement, opened, journal, layout.paths_of_files(shard_row), ranks)
        files.sealed = sealed
        return files

    def replace(self, old: ShardRowFiles, may_rename: Callable[[], None] = lambda: None) -> None:
        """Gives these files (made with a suffix) the names of ``old``, shards first: the old journal fits
        both, since slots and chunks are the same."""
        self.take_names(may_rename)
        old.abandon()

    def take_names(self, may_rename: Callable[[], None] = lambda: None) -> None:
        """Removes the suffix from the names of these files, the journal's last: without it shards in progress
        count as empty."""
        for shard in self._unsealed:
            may_rename()
            shard.rename(without_suffix(shard.working_path))
        # after a power cut, this journal without a shard in progress would mean that the shard row was sealed
        # again
        if self.journal.reopened:
            sync_directory(self.placement.files)
        may_rename()
        self.journal.rename(without_suffix(self.journal.path))
        sync_directory(self.placement.files)

    @property
    def in_runs(self) -> bool:
        """True if a task's chunks are written one behind the other, behind those that are there."""
        return self.journal.packed and self.ranks is None

    def offsets(self, file: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Returns the offset in its file of each slot, int64 arrays of equal length. Slots lie in the order
        of their numbers, or by ``ranks``, as ``ArrayLayout.slot_ranks``. Unless ``in_runs``."""
        rank = slot if self.ranks is None else self.ranks[file, slot]
        layout = self.journal.layout
        return layout.data_start + rank * layout.slot_bytes

    @property
    def cached(self) -> bool:
        """True if writes pass the page cache, where they stay until they are written back."""
        return any(shard.cached for shard in self.slots)

    def continue_behind(self, used: np.ndarray | None = None) -> None:
        """Sets the start of new runs behind existing chunks (from before a crash, or copied) and reserves
        room for them. ``used``: int64[files], how far the files that these replace were in use: a reader may
        still have their index, and find nothing else there. Raises ``StorageError``."""
        if not self.in_runs:
            return
        for number, shard in enumerate(self.shards):
            if shard is None or shard.renamed:
                continue
            first = shard.first_free()
            self.cursors[number] = first if used is None else max(first, int(used[number]))
            shard.reserve_behind(int(self.cursors[number]))

    def note_stored(
        self, files: np.ndarray, entries: np.ndarray, offsets: np.ndarray, nbytes: np.ndarray
    ) -> None:
        """Sets the index entries of encoded chunks: int64 arrays of equal length; chunks of 0 bytes stay
        absent. Called by each worker for its own chunks."""
        here = nbytes > 0
        places = files[here], entries[here]
        self._entries["offset"][places] = offsets[here]
        self._entries["nbytes"][places] = nbytes[here]

    @property
    def live(self) -> bool:
        """True if readers may see the files before they are sealed."""
        return any(shard.live is not None for shard in self.slots)

    @property
    def is_seen_early(self) -> bool:
        """True if readers may see stored slabs before the shard row is sealed."""
        return self.live or self.journal.layout.is_split

    def list_stored(self, slabs: Iterable[SlabPlaces]) -> None:
        """Notes the chunks of stored slabs, which ``show`` lists."""
        for places in slabs:
            for file, shard in enumerate(self.shards):
                if shard is not None and shard.live is not None:
                    shard.live.put(places.entry[places.file == file], shard.entries)

    def show(
        self,
        may_rename: Callable[[], None],
        step: Callable[[], None] = lambda: None,
        *,
        even_fewer: bool = False,
    ) -> bool:
        """Lets readers see the listed chunks of all files (``OpenShard.show``). Returns whether they see all.
        Raises ``StorageError``, ``OutputExistsError`` or what ``may_rename`` raises."""
        shown = [shard.show(may_rename, step, even_fewer=even_fewer) for shard in self.slots]
        return all(shown)

    @property
    def _unsealed(self) -> list[OpenShard]:
        return [
            shard for file, shard in enumerate(self.shards) if shard is not None and file not in self.sealed
        ]

    @property
    def renamed(self) -> bool:
        """True if the shard row can no longer be rewritten: a file has its final name, perhaps not durably,
        or had it before a crash. In a split shard row whole slabs have theirs ahead of the others."""
        ahead = self.journal.layout.is_split
        return any(
            not ahead if shard is None else shard.renamed and not (ahead and file in self.sealed)
            for file, shard in enumerate(self.shards)
        )

    def sync(self, step: Callable[[], None] = lambda: None) -> None:
        """Makes durable what was written before this call: data, then journal. Raises ``StorageError``; the
        shard row has then failed."""
        self._sync(self._unsealed, step)

    def _sync(self, shards: list[OpenShard], step: Callable[[], None]) -> None:
        """Makes some shards durable, then the journal."""
        if self._synced_together(shards) and self._synced_whole():
            return
        for shard in shards:
            shard.sync()
            step()
        self.journal.sync()

    def _synced_together(self, shards: Collection[OpenShard]) -> bool:
        return len(shards) > MOST_SYNCED_ALONE and syncs_as_one(self.placement.root)

    def seal_slabs(
        self,
        slabs: Iterable[SlabPlaces],
        may_rename: Callable[[], None],
        step: Callable[[], None] = lambda: None,
    ) -> None:
        """Gives the shards of stored slabs of a split shard row their final names, before all of it is
        stored. Raises as ``seal`` does."""
        assert self.journal.layout.is_split, "else every shard has other slabs as well"
        self._seal(sorted({file for places in slabs for file in places.file.tolist()}), may_rename, step)

    def seal(
        self, may_rename: Callable[[], None], step: Callable[[], None] = lambda: None
    ) -> list[SealedShard]:
        """Completes every file, makes all of them and the journal durable, and only then gives the first file
        its final name: from then on recovery seals the rest as it is. ``may_rename`` raises ``FencedError``
        when another writer has taken over.

        Raises ``StorageError``. After a ``StorageFullError``, once there is room, it may be called again and
        continues where it stopped.
        """
        self._seal(range(len(self.shards)), may_rename, step)
        return list(self.sealed.values())

    def _seal(self, files: Iterable[int], may_rename: Callable[[], None], step: Callable[[], None]) -> None:
        todo = {
            file: shard
            for file in files
            if (shard := self.shards[file]) is not None and file not in self.sealed
        }
        shards = list(todo.values())

        def complete(number: int) -> None:
            shards[number].complete(step)
            step()

        def take_name(number: int) -> None:
            shards[number].take_name(may_rename, synced=not together)
            step()

        side_by_side(complete, len(shards))
        together = self._synced_together(shards)
        self._sync(shards, step)
        self._record_sums(todo, may_rename)
        side_by_side(take_name, len(shards))
        if together and not self._synced_whole():
            self.placement.sync_names(shard.final_path for shard in shards if shard.is_named)
        for file, shard in todo.items():
            shard.end()
            self.sealed[file] = shard.complete()

    def _synced_whole(self) -> bool:
        """Syncs the whole filesystem. Returns False if a write of any file there has failed: the files' own
        syncs say of which. Raises ``StorageError`` if the journal has failed before."""
        try:
            self.journal.sync(whole=True)
        except StorageError:
            if self.journal.has_failed:
                raise
            return False
        return True

    def _record_sums(self, shards: dict[int, OpenShard], may_rename: Callable[[], None]) -> None:
        """Appends the sums of some files to the records of their arrays, before the first one gets its final
        name: no shard may have one without a sum on record."""
        by_array: dict[str, dict[str, Sum]] = {}
        recorded = {}
        for file, shard in shards.items():
            if shard.keeps_older:
                continue
            with suppress(ShardFormatError):  # then it has no sum on record; the shard itself is whole
                found = sum_of_journaled(shard.entries, self.journal, file)
                if file not in self._recorded or self._recorded[file] != found:
                    path = self._array_paths[file]
                    key = shard.final_path.relative_to(self.placement.final(path)).as_posix()
                    by_array.setdefault(path, {})[key] = recorded[file] = found
        for path, sums in by_array.items():
            may_rename()
            self.placement.record(path).append(sums)
        self._recorded |= recorded

    def frame_records(self) -> np.ndarray:
        """Returns the records of all frames in the journal, in order of their sequence."""
        found = self.journal.written_frames()
        ordered: np.ndarray = found[np.argsort(found["sequence"], kind="stable")]
        return ordered

    def delete_journal(self) -> None:
        self.journal.delete()

    def discard(self, may_rename: Callable[[], None] = lambda: None) -> None:
        """Deletes files that are not needed any more. Closes all of them, then raises the first
        ``StorageError``, if any, or what ``may_rename`` raises. Unless the journal is gone for good the
        shards stay: a journal without them would mean that the shard row was sealed. ``may_rename`` is called
        on both sides of it: a take-over in between has copied the journal and will look for them."""
        try:
            may_rename()
            self.journal.delete()
            sync_directory(self.placement.files)
            may_rename()
        except BaseException:
            self.abandon()
            raise
        errors: list[ShardwrightError] = []
        for shard in self.slots:
            try:
                shard.remove(may_rename)
            except ShardwrightError as error:
                shard.abandon()
                errors.append(error)
        if errors:
            try:
                raise errors[0]
            finally:
                del errors  # in its traceback it would hold itself, and these files

    def discard_rewrite(self) -> None:
        """After a failed rewrite, deletes files that still have the suffix, and closes all. Files that have
        replaced an old one stay: such a shard is complete, and either journal fits it. Raises
        ``StorageError``."""
        try:
            if self.journal.path.name.endswith(REWRITE_SUFFIX):
                self.journal.delete()
        finally:
            self.journal.close()
            for shard in self.slots:
                with suppress(StorageError):  # closed in any case; recovery deletes files with the suffix
                    if shard.working_path.name.endswith(REWRITE_SUFFIX):
                        shard.discard()
                shard.abandon()

    def abandon(self) -> None:
        """Closes the files, which stay for recovery."""
        self.journal.close()
        for shard in self.slots:
            shard.abandon()


def _made_by_us(path: Path, make: Callable[[Path], T], may_remove: Callable[[], None]) -> T:
    """Makes a file that must be new. An existing one of that name is deleted: it is of a writer that was
    taken over while it prepared a shard row, or of an attempt that failed."""
    try:
        return make(path)
    except StorageError as error:
        if not isinstance(error.__cause__, FileExistsError):
            raise
    sync_directory(path.parent)  # the journal that speaks of it may be deleted, but not for good
    _remove(path, may_remove)
    return make(path)


def _remove(path: Path, may_remove: Callable[[], None]) -> bool:
    """Deletes a file if it exists; returns whether it did. Raises ``StorageError`` or what ``may_remove``
    raises."""
    if not beneath.exists(path):
        return False
    may_remove()
    with storage_errors("remove", path):
        reach("shard_row.before_remove")
        beneath.unlink(path, missing_ok=True)
    return True


def _is_gone(journal: Path, may_rename: Callable[[], None]) -> bool:
    """Returns whether there is no such journal, no power cut can bring it back, and no take-over has copied
    it: only then may its shards go."""
    try:
        sync_directory(journal.parent)
        may_rename()
    except ShardwrightError:
        return False
    return not beneath.exists(journal)


def _suffixed(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def without_suffix(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(REWRITE_SUFFIX))


def ranks_to_continue(
    layout: ArrayLayout, shard_row: int, journal: ShardRowJournal, order: WriteOrder, found: ReadBack
) -> np.ndarray | None:
    """Returns the ranks of slots (``ArrayLayout.slot_ranks``) by which packed files that were left go on:
    those of ``order`` if every chunk found lies where it says, None if chunks go on in runs."""
    fixed, tables = fixed_order(order), journal.layout
    ranks = layout.slot_ranks(shard_row, fixed) if journal.packed and fixed is not None else None
    if ranks is None:
        return None
    for rank, entries, good in zip(ranks, found.entries, found.good, strict=True):
        here = np.flatnonzero(good & (entries["nbytes"] != ABSENT))
        places = tables.data_start + rank[here] * tables.slot_bytes
        if (entries["offset"][here] != places.astype(np.uint64)).any():
            return None
    return ranks


def unmapped(io: IoMode) -> IoMode:
    """Returns the way to fill files in runs: through a mapping only chunks with slots can be written."""
    return "pwrite" if io == "mmap" else io


def _new_places(
    layout: ArrayLayout, shard_row: int, io: IoMode, order: WriteOrder
) -> tuple[bool, np.ndarray | None]:
    """Returns whether the journal of new files says *packed*, and the ranks of their slots
    (``ArrayLayout.slot_ranks``), None where these are in the order of their numbers or there are none."""
    fixed = fixed_order(order)
    ranks = None if fixed is None else layout.slot_ranks(shard_row, fixed)
    in_slots = io == "mmap" or layout.index_place == "none" or fixed is not None
    return ranks is not None or not in_slots, ranks
