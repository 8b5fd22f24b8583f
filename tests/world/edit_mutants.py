"""The world of edits proves itself: each of these takes a sync, an order or a look out of the code, and must
be found."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import shardwright.rework.edit.edit_recovery as recovery_module
import shardwright.rework.edit.region_changes as region_changes_module
import shardwright.rework.edit.shard_edit as shard_edit_module
import shardwright.rework.jobs.pack_shard as pack_module
import shardwright.rework.runtime.work_folder as work_folder_module
import shardwright.rework.shard_copy as shard_copy_module
from shardwright.disk.changed_file import ChangedFile
from shardwright.disk.files import AtomicFile, FileIdentity
from shardwright.rework.edit.edit_recovery import EditAction
from shardwright.rework.edit.redo_journal import RedoJournal
from shardwright.rework.source_shard import SourceShard

from .edit_story import draw
from .edits import play
from .surroundings import patched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .surroundings import Patch


@dataclass(frozen=True)
class Mutant:
    """``within``: seeds from 0 on, one of which finds it."""

    name: str
    within: int
    patches: Callable[[], list[Patch]]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with patched(self.patches()):
            yield


def find(mutant: Mutant, seeds: int, first: int = 0) -> tuple[int, str] | None:
    """The first seed that finds it, and the violation."""
    with mutant.at_work():
        for seed in range(first, first + seeds):
            if (violation := play(draw(seed))) is not None:
                return seed, violation
    return None


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _no_sync_of(kind: str) -> list[Patch]:
    sync = AtomicFile.sync

    def but(self: AtomicFile, *, forget: bool = False) -> None:
        if self._kind != kind:
            sync(self, forget=forget)

    return [(AtomicFile, "sync", but)]


def _no_durable_name_of(kind: str) -> list[Patch]:
    named = AtomicFile._named

    def but(self: AtomicFile, target: Any) -> None:
        if self._kind == kind:
            self._close(target)
        else:
            named(self, target)

    return [(AtomicFile, "_named", but)]


def _no_sync_within() -> list[Patch]:
    """Neither before the index, nor before the old bytes are cleared."""

    def complete(self: RedoJournal, file: ChangedFile) -> None:
        for offset, data in self.writes[self.harmless :]:
            file.write(offset, data)
        for start, stop in self.clears:
            file.clear(start, stop)

    return [(RedoJournal, "complete", complete)]


def _no_sync_before_index() -> list[Patch]:
    def complete(self: RedoJournal, file: ChangedFile) -> None:
        for offset, data in self.writes[self.harmless :]:
            file.write(offset, data)
        if self.clears and len(self.writes) <= self.harmless + 1:
            file.sync()
        for start, stop in self.clears:
            file.clear(start, stop)

    return [(RedoJournal, "complete", complete)]


def _no_sync_before_clears() -> list[Patch]:
    def complete(self: RedoJournal, file: ChangedFile) -> None:
        others = self.writes[self.harmless :]
        if self.harmless and others:
            file.sync()
        for offset, data in others:
            file.write(offset, data)
        for start, stop in self.clears:
            file.clear(start, stop)

    return [(RedoJournal, "complete", complete)]


def _index_first() -> list[Patch]:
    def begin(self: RedoJournal, file: ChangedFile) -> None:
        for offset, data in reversed(self.writes):
            file.write(offset, data)

    return [(RedoJournal, "begin", begin)]


def _journal_goes_first() -> list[Patch]:
    finish = ChangedFile.finish

    def early(self: ChangedFile) -> FileIdentity:
        folder = self.path.parents[2] / ".shardwright-edit"
        for journal in folder.glob("*.journal"):
            recovery_module.delete_durably(journal)
        return finish(self)

    return [(ChangedFile, "finish", early)]


def _no_last_sync() -> list[Patch]:
    finish = ChangedFile.finish

    def without(self: ChangedFile) -> FileIdentity:
        with mock.patch.object(ChangedFile, "sync", _nothing):
            return finish(self)

    return [(ChangedFile, "finish", without)]


def _no_time_of_its_own() -> list[Patch]:
    def finish(self: ChangedFile) -> FileIdentity:
        import os

        os.utime(self._descriptor, ns=(0, self._begun_ns))
        self.sync()
        return FileIdentity.of(self.status())

    return [(ChangedFile, "finish", finish)]


def _discards() -> list[Patch]:
    decide = recovery_module.decide

    def instead(journal: Any, file: Any) -> EditAction:
        action = decide(journal, file)
        return EditAction.DISCARD if action is EditAction.REDO else action

    return [(recovery_module, "decide", instead)]


def _no_shard_lock() -> list[Patch]:
    @contextmanager
    def unlocked(*_: Any, **__: Any) -> Iterator[None]:
        yield

    return [(module, "shard_locked", unlocked) for module in (shard_edit_module, recovery_module)]


def _nothing_expected() -> list[Patch]:
    edit = region_changes_module.edit_shard
    return [(region_changes_module, "edit_shard", lambda *a, expected, **k: edit(*a, **k))]


def _takes_nothing_back() -> list[Patch]:
    return [(RedoJournal, "undo", _nothing)]


@contextmanager
def _unasked(*_: Any) -> Iterator[None]:
    yield


def _kept(self: Any, *_: Any) -> list[Any]:
    return []


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("the journal is not synced", 1000, lambda: _no_sync_of("edit_journal")),
        Mutant("the name of the journal is not durable", 1000, lambda: _no_durable_name_of("edit_journal")),
        Mutant("nothing is synced within an edit", 1000, _no_sync_within),
        Mutant("the index is written before its chunks are durable", 1000, _no_sync_before_index),
        Mutant("old bytes are cleared before the index is durable", 1000, _no_sync_before_clears),
        Mutant("the index is written before its chunks", 1000, _index_first),
        Mutant("the journal is deleted before the last sync", 1000, _journal_goes_first),
        Mutant("no last sync", 1000, _no_last_sync),
        Mutant("an edited file has the time that it had", 1000, _no_time_of_its_own),
        Mutant("journals are discarded", 1000, _discards),
        Mutant(
            "an edit does not recover what it finds",
            1000,
            lambda: [(shard_edit_module, "recover_locked", _nothing)],
        ),
        Mutant("shards are not locked", 1000, _no_shard_lock),
        Mutant("an update does not say what it has read", 1000, _nothing_expected),
        Mutant("nothing is taken back", 1000, _takes_nothing_back),
        Mutant("a copy is not synced", 1000, lambda: _no_sync_of("compact")),
        Mutant("the name of a copy is not durable", 1000, lambda: _no_durable_name_of("compact")),
        Mutant(
            "the deletion of a shard is not durable",
            1000,
            lambda: [(shard_copy_module, "sync_directory", _nothing)],
        ),
        Mutant(
            "a pack replaces what was edited", 1000, lambda: [(SourceShard, "is_as_it_was", lambda _: True)]
        ),
        Mutant(
            "a pack does not look for journals", 1000, lambda: [(pack_module, "check_not_edited", _nothing)]
        ),
        Mutant(
            "an edit writes into what was packed",
            2000,
            lambda: [(shard_edit_module._Edit, "_held", _unasked)],
        ),
        Mutant(
            "copies of dead packs stay",
            1000,
            lambda: [(work_folder_module.WorkFolder, "clear_leftovers", _kept)],
        ),
        Mutant(
            "the record is not kept",
            1000,
            lambda: [(shard_edit_module.ShardSums, "append_changed", _nothing)],
        ),
    )
}
