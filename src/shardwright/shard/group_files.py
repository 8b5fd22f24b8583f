"""Everything on disk of one open group: its shard files and their journal. Made, synced, sealed, discarded as
one.

Created in the order shard files, journal, so that a shard in progress without a journal holds nothing. Sealed
shard by shard; the journal is deleted by the keeper once the frames of the group stand in the frame log. One
owner thread (the keeper's) calls everything here; workers only write through the descriptors and addresses in
between.

A group that was spilled has its files in a folder of the same shape below the second root, and a symbolic
link under the shard's key in the store.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.storage.failpoints import reach
from shardwright.storage.files import make_directories, storage_errors, sync_directory

from .journal import GroupJournal, JournalLayout
from .open_shard import OpenShard, SealedShard
from .shard_sums import ShardSums, Sum, sum_of_journaled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.storage.slot_file import IoMode

    from .layout import ArrayLayout
    from .manifest import Manifest

T = TypeVar("T")
WORKSPACE = ".shardwright"
IMAGE_FOLDER = "0"
WORKING_SUFFIX, JOURNAL_SUFFIX = ".partial", ".journal"
LOG_NAME, STAGING_NAME = "frames.log", "staging"
TAKEN_PREFIX = "taken-"  # folders of a workspace, followed by the epoch of whoever took the store over
REWRITE_SUFFIX = ".rewrite"  # behind the names of files that are to replace failed ones


@dataclass(frozen=True)
class Placement:
    """Where the files of groups lie: the store itself, or (``spill``) the folder of the same name below the
    second root. ``epoch``: of the writer that took the store over last, 0 if none did. It has what is in
    progress in a folder of its own: whatever the other one was about to rename or delete, and does after its
    last look at the fence, it does not to these."""

    store: Path
    spill: Path | None = None
    epoch: int = 0

    @property
    def root(self) -> Path:
        return self.store if self.spill is None else self.spill

    @property
    def workspace(self) -> Path:
        return self.root / WORKSPACE

    @property
    def files(self) -> Path:
        """Where what is in progress is: groups and, of the store itself, frame log and staging area."""
        return self.workspace / f"{TAKEN_PREFIX}{self.epoch}" if self.epoch else self.workspace

    def working(self, key: str) -> Path:
        return self.files / f"{key.replace('/', '.')}{WORKING_SUFFIX}"

    def final(self, key: str) -> Path:
        return self.root / IMAGE_FOLDER / key

    def journal(self, group: int) -> Path:
        return self.files / f"{group}{JOURNAL_SUFFIX}"

    @property
    def record(self) -> ShardSums:
        """Of the image's shards, wherever they lie."""
        return ShardSums(self.store / IMAGE_FOLDER)

    def link(self, key: str) -> Path | None:
        """Where the store points to a spilled shard."""
        return None if self.spill is None else self.store / IMAGE_FOLDER / key


def is_in_progress(path: Path) -> bool:
    """Whether a file of a workspace is a shard in progress, a journal, the frame log or the staging area."""
    return path.name in (LOG_NAME, STAGING_NAME) or path.name.endswith((WORKING_SUFFIX, JOURNAL_SUFFIX))


def placements_of(store: Path, manifest: Manifest) -> list[Placement]:
    """All places where files of a store may lie: itself and, where it has one, its folder below the second
    root."""
    roots = [None] if manifest.spill_root is None else [None, type(store)(manifest.spill_root) / store.name]
    return [Placement(store, root, manifest.files_epoch) for root in roots]


class GroupFiles:
    """``shards[f]`` is file f of the group; None where it has its final name already (after a crash in the
    middle of sealing)."""

    def __init__(
        self, group: int, placement: Placement, shards: list[OpenShard | None], journal: GroupJournal
    ) -> None:
        self.group = group
        self.placement = placement
        self.slots = [shard for shard in shards if shard is not None]
        self.shards = shards
        self.journal = journal
        # packed: where the next run of each goes; workers add
        self.cursors = np.array([shard.layout.data_start for shard in self.slots], np.int64)
        self._sealed: list[SealedShard] = []
        self._recorded: dict[str, Sum] = {}  # by key: what the array's record tells of these files already

    @classmethod
    def create(
        cls,
        placement: Placement,
        layout: ArrayLayout,
        group: int,
        io: IoMode,
        identity: bytes,
        writer_epoch: int,
        record_bytes: int,
        *,
        packed: bool | None = None,
        reopened: bool = False,
        suffix: str = "",
        step: Callable[[], None] = lambda: None,
        may_rename: Callable[[], None] = lambda: None,
    ) -> GroupFiles:
        """Preallocate all of it, ``suffix`` behind each name; ``step`` is called after each shard file, here
        as below, and ``may_rename`` before a name is taken from anybody: it raises ``FencedError`` when
        another writer has taken over, whose name it may be. ``packed``: like the files that these are to
        replace; else packed where shards are not mapped (encoding in place needs the place first).
        ``reopened``: the group was sealed once, and these files take its shards' final names when it is
        sealed again.

        Raises ``StorageFullError`` or ``StorageError``; nothing is left behind then."""
        if placement.spill is not None:
            # the store's own is there; if it is not, another writer has finished the store
            make_directories(placement.files)
        packed = io != "mmap" if packed is None else packed
        replaces = placement.record if reopened else None
        opened: list[OpenShard] = []
        try:
            for file in range(layout.files_per_group):
                key = layout.shard_key(group, file)
                final, link = placement.final(key), placement.link(key)
                make_shard = partial(
                    OpenShard,
                    layout.shard(group, file),
                    final_path=final,
                    io=io,
                    link=link,
                    replaces=replaces,
                )
                opened.append(_made_by_us(_suffixed(placement.working(key), suffix), make_shard, may_rename))
                step()
            tables = JournalLayout.of(layout, group, record_bytes)
            make = partial(
                GroupJournal.create, layout=tables, identity=identity, group=group, writer_epoch=writer_epoch
            )
            make = partial(make, packed=packed, reopened=reopened)
            journal = _made_by_us(_suffixed(placement.journal(group), suffix), make, may_rename)
        except BaseException:
            for shard in opened:
                # closed all the same; what stays holds nothing, and recovery deletes it
                with suppress(StorageError):
                    shard.discard()
            raise
        return cls(group, placement, list(opened), journal)

    def replace(self, old: GroupFiles, may_rename: Callable[[], None] = lambda: None) -> None:
        """Give these files (made with a suffix) the names of ``old``, shards first: its journal fits both,
        since slots and chunks are the same."""
        self.take_names(may_rename)
        old.abandon()

    def take_names(self, may_rename: Callable[[], None] = lambda: None) -> None:
        """Drop the suffix that these files were made with, the journal last: before it, shards in progress
        hold nothing."""
        for shard in self.slots:
            may_rename()
            shard.rename(without_suffix(shard.working_path))
        # after a power cut, this journal without a shard in progress would say that the row was sealed again
        if self.journal.reopened:
            sync_directory(self.placement.files)
        may_rename()
        self.journal.rename(without_suffix(self.journal.path))
        sync_directory(self.placement.files)

    @property
    def cached(self) -> bool:
        """Whether what is written passes the page cache, where it stays until somebody writes it back."""
        return any(shard.cached for shard in self.slots)

    def go_on_behind(self) -> None:
        """After chunks were taken over from before a crash, or from other files: where new runs go, and room
        for them. Raises ``StorageError``."""
        if not self.journal.packed:
            return
        for number, shard in enumerate(self.slots):
            self.cursors[number] = shard.first_free()
            shard.reserve_behind(int(self.cursors[number]))

    @property
    def sealed(self) -> int:
        """How many of the files carry their final name."""
        return len(self._sealed)

    @property
    def renamed(self) -> bool:
        """Whether a file has its final name already, though it may not be durable, or had it before a crash:
        the group can then not be rewritten any more."""
        return len(self.slots) < len(self.shards) or any(shard.renamed for shard in self.slots)

    def sync(self, step: Callable[[], None] = lambda: None) -> None:
        """Data, then journal: what was in both before this call is durable after it. Raises ``StorageError``;
        the group has then failed."""
        for shard in self.slots:
            shard.sync()
            step()
        self.journal.sync()

    def seal(
        self, may_rename: Callable[[], None], step: Callable[[], None] = lambda: None
    ) -> list[SealedShard]:
        """Complete every file, sync the journal, and only then give the first file its final name: from that
        moment on recovery seals the rest as it stands. ``may_rename`` raises ``FencedError`` when another
        writer has taken over.

        Raises ``StorageError``; after a ``StorageFullError``, once there is room, it may be called again and
        goes on where it was.
        """
        for shard in self.slots:
            shard.complete()
            step()
        self.journal.sync()
        self._record_sums(may_rename)
        for shard in self.slots[self.sealed :]:
            self._sealed.append(shard.seal(may_rename))
            step()
        return self._sealed

    def _record_sums(self, may_rename: Callable[[], None]) -> None:
        """Before the first file of the group has its name, so that no shard has one whose content is not on
        record."""
        sums = {}
        for file, shard in enumerate(self.shards):
            if shard is not None:
                key = shard.final_path.relative_to(self.placement.root / IMAGE_FOLDER).as_posix()
                with suppress(ShardFormatError):  # then it stays unrecorded; the shard itself is whole
                    sums[key] = sum_of_journaled(shard.entries, self.journal, file)
        fresh = {
            key: value
            for key, value in sums.items()
            if key not in self._recorded or self._recorded[key] != value
        }
        if fresh:
            may_rename()
            self.placement.record.append(fresh)
            self._recorded |= fresh

    def frame_records(self) -> np.ndarray:
        """The records of all frames that the journal holds, in order of their sequence."""
        records, valid = self.journal.read_frames()
        found: np.ndarray = records[valid]
        ordered: np.ndarray = found[np.argsort(found["sequence"], kind="stable")]
        return ordered

    def delete_journal(self) -> None:
        self.journal.delete()

    def discard(self) -> None:
        """Delete files that hold nothing that is still needed. Closes all of them; then raises the first
        ``StorageError``, if any. While the journal may be there the shards stay: a journal of a reopened row
        without them would tell of a row that took its names."""
        try:
            self._delete_journal_first()
        except StorageError:
            self.abandon()
            raise
        errors: list[StorageError] = []
        for shard in self.slots:
            try:
                shard.discard()
            except StorageError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _delete_journal_first(self) -> None:
        self.journal.delete()
        sync_directory(self.placement.files)

    def discard_rewrite(self) -> None:
        """After a rewrite that failed: what still has its suffix is deleted, and everything closed. What has
        taken an old one's name already stays: a shard is complete then, and either journal fits it. Raises
        ``StorageError``."""
        try:
            if self.journal.path.name.endswith(REWRITE_SUFFIX):
                self.journal.delete()
        finally:
            self.journal.close()
            for shard in self.slots:
                with suppress(StorageError):  # closed all the same; recovery deletes what has the suffix
                    if shard.working_path.name.endswith(REWRITE_SUFFIX):
                        shard.discard()
                shard.abandon()

    def abandon(self) -> None:
        """Close; the files stay for recovery."""
        self.journal.close()
        for shard in self.slots:
            shard.abandon()


def _made_by_us(path: Path, make: Callable[[Path], T], may_remove: Callable[[], None]) -> T:
    """Make a file that nobody else may have. One of that name is a stranger's: of a writer that was taken
    over while it prepared a group."""
    try:
        return make(path)
    except StorageError as error:
        if not isinstance(error.__cause__, FileExistsError):
            raise
    may_remove()
    with storage_errors("remove", path):
        reach("group.before_remove")
        path.unlink(missing_ok=True)
    return make(path)


def _suffixed(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def without_suffix(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(REWRITE_SUFFIX))
