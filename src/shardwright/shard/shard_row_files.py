"""The files of one open shard row: its shard files and their journal, made, synced, sealed and discarded as
one.

The journal is created after the shard files, so that a shard in progress without a journal holds nothing (row
``unclaimed`` of ``scan.table``). Its header is written when all their names are durable: a power cut never
leaves it without a shard in progress, which would mean that the shard row was sealed (rows ``named``,
``all-fill``). The shard row is sealed shard by shard; the sealer deletes the journal once the frames of the
shard row are in the frame log. One owner thread (the sealer's) calls
everything here; workers only write through the descriptors and addresses.

A spilled shard row has its files in a folder of the same structure below the second root, and a symbolic link
under each shard's key in the store.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    DurableFolders,
    storage_errors,
    sync_directory,
)
from shardwright.disk.filesystems import shares_sync
from shardwright.disk.side_by_side import side_by_side
from shardwright.model.errors import OutputExistsError, ShardFormatError, ShardwrightError, StorageError
from shardwright.model.names import DAMAGED, REWRITE_SUFFIX, WORKSPACE

from .chunk_order import fixed_order
from .index import EMPTY as ABSENT
from .index import empty_index
from .journal import JournalLayout, ShardRowJournal
from .metadata_updates import is_of_updates
from .open_shard import OpenShard, SealResult
from .shard_sums import ShardSums, Sum, sum_of_journaled
from .spill_folder import is_there_for

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence
    from pathlib import Path

    from shardwright.model.write_options import IoMode, LiveMode, WriteOrder

    from .layout import ArrayLayout, SlabChunks
    from .manifest import Manifest
    from .read_back import ReadBack
    from .shared_journal import SharedJournal

T = TypeVar("T")
_AGES = itertools.count()
ALONE = "0/"  # the array of a store with one image: not in the names of its shards in progress
WORKING_SUFFIX, JOURNAL_SUFFIX = ".partial", ".journal"
# A shard's path as one name. No path has a "+", so that the name stands for one shard. Dots are in the paths
# that users give to images, and in no other.
_AS_ONE_NAME, _AS_PATH = str.maketrans("/.", ".+"), str.maketrans(".+", "/.")
LOG_NAME, STAGING_NAME = "frames.log", "staging"
TAKEN_PREFIX = "taken-"  # folders of a workspace, followed by the epoch of the writer that took over


@dataclass(frozen=True)
class Placement:
    """Where shard rows' files lie: the store itself, or (``spill``) the folder of the same name below the
    second root. ``epoch``: of the writer that took the store over last, 0 if none did. That writer has its
    files in progress in a separate folder: the earlier writer may still rename or delete a file after its
    last check of the fence, but not these. ``identity``: the store's, which tells its folder below the second
    root from another store's. ``folders``: of all placements of the store."""

    store: Path
    spill: Path | None = None
    epoch: int = 0
    identity: str = ""
    folders: DurableFolders = field(default_factory=DurableFolders, compare=False, repr=False)

    @property
    def root(self) -> Path:
        return self.store if self.spill is None else self.spill

    @cached_property  # each file of each shard row asks for them
    def workspace(self) -> Path:
        return self.root / WORKSPACE

    @cached_property
    def files(self) -> Path:
        """The folder of files in progress: shard rows and, in the store itself, frame log and staging
        area."""
        return self.workspace / f"{TAKEN_PREFIX}{self.epoch}" if self.epoch else self.workspace

    def working(self, shard_path: str) -> Path:
        """Returns the path of a shard in progress, of a shard's path in the store."""
        alone = shard_path.startswith(f"{ALONE}c/") and "/c/" not in shard_path.removeprefix(f"{ALONE}c")
        path = shard_path.removeprefix(ALONE) if alone else shard_path
        return self.files / f"{path.translate(_AS_ONE_NAME)}{WORKING_SUFFIX}"

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

    @property
    def is_there(self) -> bool:
        """False if a second root is not mounted, whose workspace is made with the store, or that is another
        store's by now: what is not found there may all the same be stored. Raises ``StorageError``."""
        return self.spill is None or is_there_for(self.workspace, self.identity)

    def check_there(self) -> None:
        """Raises ``StorageError`` unless it ``is_there``."""
        if not self.is_there:
            raise StorageError(
                f"shards of {self.store} may lie in {self.workspace}, which is not there or another store's",
                hint="Mount the second root, then try again",
            )

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
    path = name.removesuffix(WORKING_SUFFIX).translate(_AS_PATH)
    return ALONE + path if path.startswith("c/") and "/c/" not in path else path


def is_in_progress(path: Path) -> bool:
    """Returns whether a file of a workspace is a shard in progress, a journal, the frame log or the staging
    area."""
    return path.name in (LOG_NAME, STAGING_NAME) or path.name.endswith((WORKING_SUFFIX, JOURNAL_SUFFIX))


def placements_of(store: Path, manifest: Manifest, folders: DurableFolders | None = None) -> list[Placement]:
    """Returns all placements of a store's files: the store itself and, if it has one, its folder
    below the second root. ``folders``: of whoever writes there."""
    folders = folders or DurableFolders()
    root = manifest.spill_root
    spills = [] if root is None else [beneath.user_path(root) / store.name]
    epoch, identity = manifest.files_epoch, manifest.identity
    return [Placement(store, spill, epoch, identity, folders) for spill in (None, *spills)]


def damaged_folders(placements: Iterable[Placement]) -> list[Path]:
    """Returns the folders of damaged files that recoveries have set aside in a store. Raises
    ``StorageError``."""
    folders = [placement.root / DAMAGED for placement in placements]
    with storage_errors("look at", folders[0]):
        return [folder for folder in folders if beneath.exists(folder)]


def frames_set_aside(placements: Iterable[Placement]) -> bool:
    """Returns whether frames may be in damaged files that were set aside. Raises ``StorageError``."""
    return any(map(_may_have_frames, damaged_folders(placements)))


def _may_have_frames(damaged: Path) -> bool:
    """Returns whether a folder has more than updates of metadata; one that somebody has emptied had."""
    with storage_errors("look into", damaged):
        return set(map(is_of_updates, beneath.names_in(damaged))) != {True}


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
        # Set here and never again, so that any thread may read them. Files that replace these after an I/O
        # error are another object: nothing here changes under a worker.
        self.shard_row = shard_row
        self.placement = placement
        self.array_paths = array_paths
        self.slots = [shard for shard in shards if shard is not None]
        self.shards = shards
        self.journal = journal
        self.ranks = ranks
        # The start of each file's next run, if packed. Workers add to it, atomically, and need no lock. It is
        # not on disk: a crash costs the rest of a run, and recovery goes on behind the last valid chunk.
        self.cursors = np.full(len(shards), journal.layout.data_start, np.int64)
        # int64[files], for kernels: -1 for a file that had its final name. Valid until its shard is sealed:
        # the owner asks for that when no worker has a task for it.
        self.descriptors = np.array([-1 if s is None else s.descriptor for s in shards], np.int64)
        mapped = [0 if s is None else s.slots_address or 0 for s in shards]
        # int64[files], of slot 0 of each file if they are mapped
        self.addresses = np.array(mapped, np.int64) if any(mapped) else None
        # The entries of all indexes, [files, chunks]: each worker writes those of its own chunks, in one call
        # for all files, and nothing is locked. The shards have views of it, of which a seal makes the index.
        chunks = max((shard.layout.chunks for shard in self.slots), default=0)
        self._entries = empty_index(len(shards) * chunks).reshape(len(shards), chunks)
        for shard, entries in zip(shards, self._entries, strict=True):
            if shard is not None:
                entries[:] = shard.entries
                shard.entries = entries
        # By file: those that have their final names, durably. In a split row these come one by one, and a
        # rewrite leaves them as they are.
        self.sealed: dict[int, SealResult] = {}
        # By file: sums that are on record, so that a seal which goes on after a full disk adds no line twice.
        # ``record_sums`` alone writes it.
        self.recorded: dict[int, Sum] = {}
        self.has_failed_whole = False  # see synced_whole; set by whoever syncs, one thread at a time
        # grows from row to row in the order in which their journals are opened and begin to be written
        self.age = next(_AGES)

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
        shared: SharedJournal | None = None,
        leftovers: Container[str] | None = None,
    ) -> ShardRowFiles:
        """Makes and preallocates all files, with ``suffix`` behind each name. The row takes frames once it
        has begun (``begin_alone``, or with others: ``acquire.prepare``). ``step`` is called after each
        shard file, here as below. ``may_rename`` is called before an existing file of that name is deleted:
        it raises ``FencedError`` when another writer, who may own it, has taken over. ``packed``: as the
        files that these replace; by default packed unless a chunk needs a known offset, as where shards are
        mapped, or in a file that is nothing but its chunk. ``reopened``: the shard row was sealed once, and
        these files replace its shards when it is sealed again, or as soon as readers may see that (``live``).
        ``keep``: the files that these replace; those of them that have their final names stay. ``order``: of
        the chunks, but for files that replace others, and shards that readers may have open. Other than with
        ``arrival`` each has a slot; the journal says *packed* unless the slots are in the order of their
        numbers, so that recovery takes each chunk where it lies. ``shared``: the journal of this row and
        others, which is made when their shards are there. ``leftovers``: names of what was in the folder of
        files in progress just now, if the caller has looked.

        Raises ``StorageFullError`` or ``StorageError``; nothing is left behind then, except shards whose
        journal a power cut might bring back."""
        if placement.spill is not None:
            # Only here: without its own workspace the store was finished by another writer. Below a second
            # root that is not mounted the files would be hidden by its next mount.
            placement.check_there()
            placement.folders.make(placement.files)
        ranks = None if keep is None else keep.ranks
        if packed is None:
            seen = reopened and live != "none"  # old chunks stay where readers may have found them
            packed, ranks = _new_ranks(layout, shard_row, io, "arrival" if seen else order)
        if packed and ranks is None:
            io = unmapped(io)
        journal_path = _suffixed(placement.journal(shard_row), suffix)
        # An attempt that failed has left it. It goes first, and for good: a power cut while its shards are
        # replaced would leave a journal alone, which means a sealed row. Recovery then drops frames that are
        # staged for it.
        is_left = leftovers is None or journal_path.name in leftovers
        if is_left and _remove(journal_path, may_rename):
            sync_directory(placement.files)
        opened: list[OpenShard | None] = [None] * layout.files_of(shard_row)
        sealed = {} if keep is None else dict(keep.sealed)

        def open_shard(file: int) -> None:
            old = None if keep is None else keep.shards[file]
            if file in sealed or (keep is not None and old is None):
                opened[file] = old
                return
            replaces = reopened or bool(live != "none" and old and not old.is_name_taken)
            make = partial(
                shard_at,
                placement,
                layout,
                shard_row,
                file,
                io=io,
                replaces=replaces,
                reopened=reopened,
                live=live,
            )
            working = placement.working(layout.shard_path(shard_row, file))
            opened[file] = _made_by_us(_suffixed(working, suffix), make, may_rename)
            step()

        try:
            side_by_side(open_shard, len(opened))
            if shared is not None:
                journal = shared.journal(shard_row, packed=packed)
            else:
                tables = JournalLayout.of(layout, shard_row, record)
                journal = ShardRowJournal.make(
                    journal_path, tables, identity, shard_row, writer_epoch, packed=packed, reopened=reopened
                )
        except BaseException:
            _give_back(journal_path, (s for f, s in enumerate(opened) if f not in sealed), may_rename)
            raise
        files = cls(shard_row, placement, opened, journal, layout.paths_of_files(shard_row), ranks)
        files.sealed = sealed
        return files

    def begin_alone(self, may_rename: Callable[[], None]) -> None:
        """Begins the row: all names are durable, then its journal. Raises ``StorageError`` or what
        ``may_rename`` raises; the files are then given back."""
        try:
            sync_directory(self.placement.files)
            self.journal.begin()
            self.journal.sync()
        except BaseException:
            self.give_back(may_rename)
            raise

    def give_back(self, may_rename: Callable[[], None]) -> None:
        """Deletes files that were made, of a row that could not be begun. Shards stay if a power cut might
        bring the journal back. Never raises ``StorageError``: what stays holds nothing."""
        with suppress(StorageError):
            self.journal.abandon()
        _give_back(self.journal.path, self.unsealed().values(), may_rename)

    def replace(self, old: ShardRowFiles, may_rename: Callable[[], None] = lambda: None) -> None:
        """Gives these files (made with a suffix) the names of ``old``, shards first: the old journal fits
        both, since slots and chunks are the same."""
        self.take_names(may_rename)
        if old.journal.is_shared:  # this one counts before it, and may be deleted while others keep that file
            # A take-over has perhaps listed the journals before this one got its name: it has the row from
            # the shared one alone, which it copies later.
            may_rename()
            with suppress(StorageError):
                old.journal.delete(durably=True)
        old.abandon()

    def take_names(self, may_rename: Callable[[], None] = lambda: None) -> None:
        """Removes the suffix from the names of these files, the journal's last: without it shards in progress
        count as empty."""
        for shard in self.unsealed().values():
            may_rename()
            shard.rename(without_suffix(shard.working_path))
        # Before the journal: this one without a shard in progress would mean, after a power cut, that the
        # shard row was sealed again.
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
        rows = files[here], entries[here]
        self._entries["offset"][rows] = offsets[here]
        self._entries["nbytes"][rows] = nbytes[here]

    @property
    def live(self) -> bool:
        """True if readers may see the files before they are sealed."""
        return any(shard.live is not None for shard in self.slots)

    @property
    def is_seen_early(self) -> bool:
        """True if readers may see stored slabs before the shard row is sealed."""
        return self.live or self.journal.layout.is_split

    def list_stored(self, slabs: Iterable[SlabChunks]) -> None:
        """Notes the chunks of stored slabs, which ``show`` lists."""
        for slab_chunks in slabs:
            for file, shard in enumerate(self.shards):
                if shard is not None and shard.live is not None:
                    shard.live.put(slab_chunks.entry[slab_chunks.file == file], shard.entries)

    def show(
        self,
        may_rename: Callable[[], None],
        step: Callable[[], None] = lambda: None,
        *,
        even_fewer: bool = False,
    ) -> bool:
        """Lets readers see the listed chunks of all files (``OpenShard.show``). Returns whether they see all.
        Raises ``StorageError`` or what ``may_rename`` raises."""

        def show(shard: OpenShard) -> bool:
            # Another file that has the final name: the seal tells of it if it is still there by then.
            with suppress(OutputExistsError):
                return shard.show(may_rename, step, even_fewer=even_fewer)
            return False

        done = [show(shard) for shard in self.slots]
        return all(done)

    def unsealed(self, files: Iterable[int] | None = None) -> dict[int, OpenShard]:
        """Returns those of some files (of all) that are not sealed, by their numbers."""
        chosen = range(len(self.shards)) if files is None else files
        return {
            file: shard
            for file in chosen
            if (shard := self.shards[file]) is not None and file not in self.sealed
        }

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
        shards = self.unsealed().values()
        if self not in synced_whole(sharing([self], len(shards))):
            self.sync_shards(shards, step)

    def sync_shards(self, shards: Iterable[OpenShard], step: Callable[[], None]) -> None:
        """Makes some shards durable, each by itself, then the journal. Raises as ``sync``."""
        for shard in shards:
            shard.sync()
            step()
        self.journal.sync()

    @property
    def may_share(self) -> bool:
        """True if the kernel has told of no failed write since the row was opened: neither to a sync of the
        whole filesystem, whose next one would succeed without the bytes, nor to one of a file's own, as of a
        shard that was shown ahead of its row. Such files fail by themselves."""
        failed = self.has_failed_whole or self.journal.has_failed
        return not failed and not any(shard.has_failed for shard in self.slots)

    def sync_names(self, shards: Iterable[OpenShard]) -> None:
        """Makes the final names of shards durable that were made without a sync. Raises ``StorageError``."""
        self.placement.sync_names(shard.final_path for shard in shards if shard.is_named)

    def end_sealed(self, file: int, may_rename: Callable[[], None]) -> None:
        """Closes a shard whose final name is durable; makes its link if it is spilled. Raises
        ``StorageError`` or what ``may_rename`` raises."""
        shard = self.shards[file]
        assert shard is not None, "it has just got its name"
        shard.end(may_rename)
        self.sealed[file] = shard.complete()

    def key(self, file: int) -> str:
        """The key of a file's shard in its array."""
        shard = self.shards[file]
        assert shard is not None, "it has no final name yet"
        return os.fspath(shard.final_path).removeprefix(f"{self.placement.root}/{self.array_paths[file]}/")

    def frame_records(self) -> np.ndarray:
        """Returns the records of all frames in the journal, in order of their sequence."""
        found = self.journal.written_frames()
        if found.size < 2:
            return found
        ordered: np.ndarray = found[np.argsort(found["sequence"], kind="stable")]
        return ordered

    def discard(self, may_rename: Callable[[], None] = lambda: None) -> None:
        """Deletes files that are not needed any more. Closes all of them, then raises the first
        ``StorageError``, if any, or what ``may_rename`` raises. Unless the journal is gone for good the
        shards stay: a journal without them would mean that the shard row was sealed. ``may_rename`` is called
        on both sides of it: a take-over in between has copied the journal and will look for them."""
        try:
            may_rename()
            # Before the journal: once that is gone, after a kill nobody knows of a final name that it was for
            # readers, of chunks that are lost.
            for shard in self.slots:
                shard.hide(may_rename)
            self.journal.delete(durably=True)
            may_rename()
        except BaseException:
            self.abandon()
            raise
        errors: list[ShardwrightError] = []
        for shard in self.slots:
            try:
                shard.discard()
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


def record_sums(
    rows: Iterable[ShardRowFiles],
    shards: Mapping[int, Mapping[int, OpenShard]],
    *,
    synced: bool = True,
    again: bool = False,
) -> None:
    """Appends the sums of ``shards``, by shard row and file, to the records of their arrays: of an array by
    one write, durably unless the caller syncs many at once (``synced``). A sum that is on record already is
    not appended again, but for one of which that sync has failed (``again``). Raises ``StorageError``."""
    found: dict[str, list[tuple[ShardRowFiles, int, Sum]]] = {}
    for files in rows:
        for file, shard in shards[files.shard_row].items():
            if again:
                files.recorded.pop(file, None)
            if shard.keeps_older:
                continue
            with suppress(ShardFormatError):  # then it has no sum on record; the shard itself is whole
                value = sum_of_journaled(shard.entries, files.journal, file)
                if file not in files.recorded or files.recorded[file] != value:
                    found.setdefault(files.array_paths[file], []).append((files, file, value))
    paths = list(found)

    def append(number: int) -> None:
        of_array = found[paths[number]]
        record = of_array[0][0].placement.record(paths[number])
        record.append({files.key(file): value for files, file, value in of_array}, synced=synced)
        if again:  # the first line may have made it, and no later one would sync its name
            sync_directory(record.path.parent)
        for files, file, value in of_array:
            files.recorded[file] = value

    side_by_side(append, len(paths))


def sharing(rows: Iterable[ShardRowFiles], files: int) -> list[ShardRowFiles]:
    """Returns the rows for which one sync of their filesystem may stand for those of all their ``files``, or
    names. Raises ``StorageError``."""
    rows = list(rows)
    roots = {root for root in {row.placement.root for row in rows} if shares_sync(root, files)}
    return [row for row in rows if row.may_share and row.placement.root in roots]


def synced_whole(rows: Sequence[ShardRowFiles]) -> list[ShardRowFiles]:
    """Makes everything durable that was written for these rows, by one sync of each filesystem. Returns those
    that are durable; files of the others must be synced by themselves from now on."""
    done: list[ShardRowFiles] = []
    rows = [row for row in rows if row.may_share]
    for root in dict.fromkeys(row.placement.root for row in rows):
        here = [row for row in rows if row.placement.root == root]
        # The kernel tells a descriptor, once, of every write that has failed since it was opened. So the row
        # that was opened first hears for all of them, and all of them have heard of it: what has failed may
        # be of a file that is not to be synced yet, as shards of a split row get their names one by one, and
        # the next such sync would give it its name without its bytes. Rows that are not here hear of it by
        # descriptors of their own.
        first = min(here, key=lambda row: row.age)
        try:
            first.journal.sync(whole=True)
            done += here
        except StorageError:
            for row in here:
                row.has_failed_whole = True
    return done


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


def _give_back(journal: Path, shards: Iterable[OpenShard | None], may_rename: Callable[[], None]) -> None:
    """Closes new shards, and deletes them if their journal is gone."""
    gone = _is_gone(journal, may_rename)
    for shard in shards:
        if shard is not None:
            with suppress(StorageError):  # one that stays holds nothing, and recovery deletes it
                if gone:
                    shard.discard()
            shard.abandon()


def _suffixed(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix) if suffix else path


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
        offsets = tables.data_start + rank[here] * tables.slot_bytes
        if (entries["offset"][here] != offsets.astype(np.uint64)).any():
            return None
    return ranks


def unmapped(io: IoMode) -> IoMode:
    """Returns the way to fill files in runs: through a mapping only chunks with slots can be written."""
    return "pwrite" if io == "mmap" else io


def shard_at(
    placement: Placement,
    layout: ArrayLayout,
    shard_row: int,
    file: int,
    working: Path,
    *,
    io: IoMode,
    replaces: bool,
    reopened: bool,
    live: LiveMode,
    existing: bool = False,
) -> OpenShard:
    """Makes, or opens, a shard of a row at the path ``working``. Raises as ``OpenShard``."""
    path, sums = layout.shard_path(shard_row, file), placement.record(layout.array_path(file))
    return OpenShard(
        layout.shard(shard_row, file),
        working,
        placement.final(path),
        io,
        link=placement.link(path),
        existing=existing,
        replaces=sums if replaces else None,
        reopened=reopened,
        live=live,
        record=sums,
        folders=placement.folders,
    )


def _new_ranks(
    layout: ArrayLayout, shard_row: int, io: IoMode, order: WriteOrder
) -> tuple[bool, np.ndarray | None]:
    """Returns whether the journal of new files says *packed*, and the ranks of their slots
    (``ArrayLayout.slot_ranks``), None where these are in the order of their numbers or there are none."""
    fixed = fixed_order(order)
    ranks = None if fixed is None else layout.slot_ranks(shard_row, fixed)
    in_slots = io == "mmap" or layout.index_location == "none" or fixed is not None
    return ranks is not None or not in_slots, ranks
