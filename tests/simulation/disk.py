"""The simulated disk: files with their contents, names, and for both what was synced. A kill leaves it as it
is; a power cut keeps what was synced and any part of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import FencedError, StorageError, StorageFullError

from .story import FOREVER

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from .story import Fault

Name = tuple[str, int, int, int]  # kind, shard row, file, epoch of the folder
TORN = "torn"
ABSENT = "absent"  # in a journal: a chunk that is all fill value
WORKING, FINAL, JOURNAL, REWRITE = "working", "final", "journal", ".rewrite"
NOTHING = object()


def final(shard_row: int, file: int) -> Name:
    return (FINAL, shard_row, file, 0)


@dataclass(frozen=True)
class Place:
    """Where shard rows in progress lie: in the workspace or (``epoch``) in the folder that a take-over has
    made."""

    epoch: int = 0

    def working(self, shard_row: int, file: int, suffix: str = "") -> Name:
        return (WORKING + suffix, shard_row, file, self.epoch)

    def journal(self, shard_row: int, suffix: str = "") -> Name:
        return (JOURNAL + suffix, shard_row, -1, self.epoch)

    @property
    def folder(self) -> str:
        return f"taken-{self.epoch}"

    def has(self, name: Name) -> bool:
        return name[0] != FINAL and name[3] == self.epoch


def folder_of(name: Name) -> str:
    return FINAL if name[0] == FINAL else Place(name[3]).folder


@dataclass(eq=False)
class File:
    """``data``: what a reader finds; ``durable``: what is on the medium for sure. ``unsynced`` since the last
    sync, in order; ``doubtful``: what a sync that failed has left in the page cache, so that no later one
    writes it. ``bad``: keys that cannot be read any more. ``heard``: how many syncs of any file had failed
    when it was opened."""

    data: dict[Any, Any] = field(default_factory=dict)
    durable: dict[Any, Any] = field(default_factory=dict)
    unsynced: list[tuple[Any, Any]] = field(default_factory=list)
    doubtful: list[tuple[Any, Any]] = field(default_factory=list)
    bad: set[Any] = field(default_factory=set)
    sync_failed: bool = False
    heard: int = 0

    def write(self, key: Any, value: Any) -> None:
        self.bad.discard(key)
        _put(self.data, key, value)
        self.unsynced.append((key, value))

    def clear(self, key: Any) -> None:
        if key in self.data:
            self.write(key, NOTHING)

    def sync(self) -> None:
        for key, value in self.unsynced:
            _put(self.durable, key, value)
        self.unsynced.clear()

    def sync_fails(self) -> None:
        self.sync_failed = True
        self.doubtful += self.unsynced
        self.unsynced.clear()

    def lose_power(self, rng: random.Random) -> None:
        left = dict(self.durable)
        for key, value in self.doubtful + self.unsynced:
            chance = rng.random()
            if chance < 0.5:
                _put(left, key, value)
            elif chance < 0.6 and value is not NOTHING:
                _put(left, key, _torn(value, rng))
        self.data, self.durable = left, dict(left)
        self.unsynced.clear()
        self.doubtful.clear()

    def copy(self) -> File:
        """As a take-over makes it: synced."""
        return File(dict(self.data), dict(self.data), bad=set(self.bad))


def _put(data: dict[Any, Any], key: Any, value: Any) -> None:
    if value is NOTHING:
        data.pop(key, None)
    else:
        data[key] = value


def _torn(value: Any, rng: random.Random) -> Any:
    """Of a table of frame records some may be there; anything else shows that it is torn."""
    if isinstance(value, np.ndarray):
        return value[[i for i in range(value.size) if rng.random() < 0.5]]
    return TORN


@dataclass
class Block:
    shard_row: int | None  # None: frames that are not stored
    records: np.ndarray


@dataclass(eq=False)
class Log:
    """The frame log; of what was not synced a power cut keeps the first blocks."""

    blocks: list[Block] = field(default_factory=list)
    synced: int = 0

    def shard_rows(self) -> dict[int, np.ndarray]:
        """Of each shard row its last block."""
        return {block.shard_row: block.records for block in self.blocks if block.shard_row is not None}

    def counted(self) -> list[Block]:
        """All blocks but those that a later one of their shard row supersedes."""
        last = {block.shard_row: i for i, block in enumerate(self.blocks) if block.shard_row is not None}
        return [
            block
            for i, block in enumerate(self.blocks)
            if block.shard_row is None or last[block.shard_row] == i
        ]


@dataclass(frozen=True)
class Manifest:
    writer_epoch: int = 1
    client_epoch: int = 1
    files_epoch: int = 0
    seen_stop: int = 0
    seen_extents: tuple[int, ...] = ()


class Disk:
    """``manifest`` None: the acquisition is finished, or was removed (``removed``). ``spoiled``: slabs that
    rot may have taken. ``looked``: writers that were stopped after a look at the fence and before the act
    that follows it. ``cleared``: documents that writers before this one were about to put in place are
    gone. ``synced_alone``: the most files of a shard row that are not synced by one call for all of the
    filesystem; ``sync_failures``: how many syncs of any file have failed."""

    def __init__(self, rng: random.Random, staging: File | None, synced_alone: int) -> None:
        self.rng = rng
        self.synced_alone = synced_alone
        self.sync_failures = 0
        self.names: dict[Name, File] = {}
        self._durable_names: dict[Name, File] = {}
        # a file moved from one name to another; None: made, deleted
        self._unsynced: list[tuple[Name | None, Name | None, File]] = []
        self.staging = staging
        self.log = Log()
        self.manifest: Manifest | None = Manifest()
        self.lock = 1
        self.looked: set[int] = set()
        self.cleared = 0
        self.taking_over = False
        self.boot = self.booted = 1  # kernel that the store was intact under, and that runs
        self.table: list[np.ndarray] | None = None
        self.removed = False
        self.set_aside = False  # files of a damaged journal
        self.extents: dict[int, tuple[int, ...]] = {}  # by image
        self.faulty = False  # it has failed, or may have
        self.ballast = True
        self.spoiled: set[int] = set()
        self.sums: dict[tuple[int, int], list[Any]] = {}  # the record of the shards: what each may hold
        self.at_step: Callable[[], None] = lambda: None
        self._faults: tuple[Fault, ...] = ()
        self._calls: dict[str, int] = {}
        self._spare = 0  # small things that the ballast's room still takes

    # ------------------------------------------------------------------ faults

    def begin_life(self, faults: tuple[Fault, ...]) -> None:
        self._faults, self._calls = faults, {}
        self.faulty = self.faulty or bool(faults)

    def call(self, kind: str, file: File | None = None) -> None:
        """Anything that may fail. Raises ``StorageError``."""
        self.at_step()
        if not self._faults:
            return
        number = self._calls.get(kind, 0)
        self._calls[kind] = number + 1
        self._calls["full"] = self._calls.get("full", 0) + 1
        for fault in self._faults:
            if fault.kind == kind and fault.after <= number < fault.after + fault.times:
                if fault.rot and file is not None:
                    self._rot(file)
                raise StorageError(f"input/output error: {kind} {number}")

    def _rot(self, file: File) -> None:
        for key, value in file.data.items():
            if isinstance(key, int) and isinstance(value, tuple) and self.rng.random() < 0.5:
                file.bad.add(key)
                self.spoiled.add(key)

    @property
    def full(self) -> bool:
        number = self._calls.get("full", 0)
        return any(
            fault.kind == "full" and fault.after <= number < fault.after + fault.times
            for fault in self._faults
        )

    def make_room(self) -> None:
        """Somebody frees some space, on a disk that is not full for ever."""
        self._faults = tuple(
            fault for fault in self._faults if fault.kind != "full" or fault.times == FOREVER
        )

    def take_room(self, kind: str) -> None:
        """For whole files. Raises ``StorageFullError``."""
        self.call(kind)
        if self.full:
            raise StorageFullError(f"no room: {kind}")

    def take_little(self, kind: str) -> None:
        """For what a full disk often has room for still."""
        self.call(kind)
        if self.full and self.rng.random() < 0.4:
            if self._spare > 0:
                self._spare -= 1
                return
            raise StorageFullError(f"no room: {kind}")

    def release_ballast(self) -> bool:
        had, self.ballast = self.ballast, False
        self._spare = 6 if had else self._spare
        return had

    def fill_ballast(self) -> bool:
        if not self.full:
            self.ballast, self._spare = True, 0
        return self.ballast

    # ------------------------------------------------------------------ names

    def make(self, name: Name) -> File:
        """A new file; whoever had the name is a stranger's, and deleted."""
        if name in self.names:
            self.delete(name)
        return self.put(name, File(heard=self.sync_failures))

    def put(self, name: Name, file: File) -> File:
        self._move(None, name, file)
        return file

    def delete(self, name: Name) -> None:
        if name in self.names:
            self._move(name, None, self.names[name])

    def rename(self, source: Name, target: Name) -> File:
        """Raises ``StorageError`` when there is no such file."""
        if source not in self.names:
            raise StorageError(f"there is no {source}")
        file = self.names[source]
        self._move(source, target, file)
        return file

    def _move(self, source: Name | None, target: Name | None, file: File) -> None:
        self._unsynced.append((source, target, file))
        _carry_out(self.names, source, target, file)

    def sync_folder(self, folder: str) -> None:
        left: list[tuple[Name | None, Name | None, File]] = []
        for move in self._unsynced:
            if any(name is not None and folder_of(name) == folder for name in move[:2]):
                _carry_out(self._durable_names, *move)
                # of this very file: done with
                left = [earlier for earlier in left if earlier[2] is not move[2]]
            else:
                left.append(move)
        self._unsynced = left

    def sync_shard_rows_file(self, file: File, kind: str) -> None:
        """Raises ``StorageError``: what is not durable yet never will be, and this one will not be synced
        again by whoever has it open."""
        try:
            self.call(kind, file)
            if file.sync_failed:
                raise StorageError(f"a sync failed before: {kind}")
        except StorageError:
            self.sync_failures += not file.sync_failed
            file.sync_fails()
            raise
        file.sync()

    def sync_everything(self, journal: File, kind: str) -> None:
        """All files and names, by one call through a journal. Raises ``StorageError``: bytes of any of them
        may be lost, of which each hears when it is synced itself."""
        if journal.sync_failed:
            raise StorageError(f"a sync failed before: {kind}")
        written = {id(file): file for file in self.names.values() if file.unsynced}.values()
        try:
            self.call(kind, journal)
        except StorageError:
            self.sync_failures += 1
            journal.sync_failed = True
            for file in written:
                if self.rng.random() < 0.5:
                    file.sync_fails()
            raise
        for file in written:
            file.sync()
        for move in self._unsynced:
            _carry_out(self._durable_names, *move)
        self._unsynced = []
        if journal.heard < self.sync_failures:
            journal.sync_failed = True
            raise StorageError(f"a sync of another file failed before: {kind}")

    # ------------------------------------------------------------------ writers

    def check_writer(self, epoch: int) -> None:
        """Raises ``FencedError``: another writer has taken over."""
        if epoch in self.looked:
            self.looked.discard(epoch)
        elif self.lock != epoch or self.manifest is None or self.manifest.writer_epoch != epoch:
            raise FencedError(
                "another writer has taken over", expected=f"writer epoch {epoch}", got=self.manifest
            )

    def check_document(self, epoch: int) -> None:
        """Before a document is put in place. Raises ``StorageError``: it is not there any more."""
        if epoch < self.cleared:
            raise StorageError(f"there is no document of writer {epoch}")

    def drop_manifest(self, epoch: int) -> None:
        """A writer deletes its own, and only that one. Raises ``FencedError``: there is another's."""
        if self.lock != epoch or self.manifest is None or self.manifest.writer_epoch != epoch:
            raise FencedError(
                "another writer has taken over", expected=f"writer epoch {epoch}", got=self.manifest
            )
        self.manifest = None

    def end_intact(self) -> None:
        self.boot = 0

    @property
    def intact(self) -> bool:
        return self.boot == self.booted

    def lose_power(self) -> None:
        rng = self.rng
        self.booted += 1
        left = dict(self._durable_names)
        for move in self._unsynced:
            if rng.random() < 0.5:
                _carry_out(left, *move)
        self.names, self._durable_names, self._unsynced = left, dict(left), []
        for file in {id(file): file for file in left.values()}.values():
            file.lose_power(rng)
        if self.staging is not None:
            self.staging.lose_power(rng)
        log = self.log
        del log.blocks[rng.randint(log.synced, len(log.blocks)) :]
        log.synced = len(log.blocks)


def _carry_out(names: dict[Name, File], source: Name | None, target: Name | None, file: File) -> None:
    if source is not None and names.get(source) is file:
        del names[source]
    if target is not None:
        names[target] = file
