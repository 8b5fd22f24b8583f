"""Ways to break the writer. The proof must see each of them; ``README.md`` holds the table."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """``apply`` breaks the writer in this process."""

    breaks: str
    found_on: str  # the filesystem on which the quick suite looks for it,
    seed: int  # and from which seed on
    apply: Callable[[], None]
    options: tuple[str, ...] = ()  # of the rounds in which it looks for it


def _nothing(*_: Any, **__: Any) -> None:
    """Stands in for what a mutant takes out."""


def _take_out(name: str) -> None:
    """Replace a function of our own wherever a module of ours holds it."""
    import shardwright.writer.writer  # noqa: F401  (loads all that writes)

    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("shardwright") and hasattr(module, name):
            setattr(module, name, _nothing)


def _no_slot_sync() -> None:
    from shardwright.disk.slot_file import SlotFile

    SlotFile.sync = _nothing


def _no_journal_sync() -> None:
    from shardwright.shard.journal import ShardRowJournal

    ShardRowJournal.sync = _nothing


def _no_staging_sync() -> None:
    from shardwright.shard.staging import StagingArea

    StagingArea.sync = _nothing


def _no_log_sync() -> None:
    from shardwright.shard.frame_log import FrameLog

    FrameLog.sync = _nothing


def _no_image_sync() -> None:
    from shardwright.shard import manifest
    from shardwright.store import store_folder

    def write(workspace: Path, facts: manifest.Manifest, *_: Any) -> None:
        path = manifest.manifest_path(workspace, facts.writer_epoch)
        if not path.exists():  # of a new store
            manifest.write_manifest(workspace, facts)
            return
        new = path.with_name(".not-synced")
        new.write_bytes(manifest.encode_checked(manifest.manifest_facts(facts)))
        new.replace(path)

    store_folder.write_manifest = write


def _no_part_sync() -> None:
    from shardwright.recovery import resume

    goes_on = resume.go_on

    def go_on(*arguments: Any) -> Any:
        syncs = os.fsync, os.fdatasync
        _no_sync()
        try:
            return goes_on(*arguments)
        finally:
            os.fsync, os.fdatasync = syncs

    resume.go_on = go_on


def _table_in_two_steps() -> None:
    from shardwright.model.errors import StorageError
    from shardwright.store import frame_table_writer

    def refuse(*_: Any) -> None:
        raise StorageError("names are not exchanged") from OSError(errno.EINVAL, "")

    frame_table_writer.exchange = refuse


def _no_sync() -> None:
    os.fsync = os.fdatasync = _nothing


MUTANTS = {
    "no-slot-sync": Mutant("the shard file is not synced", "btrfs", 1, _no_slot_sync),
    "no-journal-sync": Mutant("the journal is not synced", "ext4", 1, _no_journal_sync),
    "no-staging-sync": Mutant("the staging area is not synced", "ext4", 1, _no_staging_sync),
    "no-log-sync": Mutant("the frame log is not synced", "ext4", 1, _no_log_sync),
    "no-directory-sync": Mutant("no folder is synced", "xfs", 20, lambda: _take_out("sync_directory")),
    "no-image-sync": Mutant(
        "the manifest with an added image is not synced", "ext4", 1, _no_image_sync, ("--adds-images",)
    ),
    "no-part-sync": Mutant(
        "the next part of a finished store is not synced", "ext4", 1, _no_part_sync, ("--goes-on",)
    ),
    "table-in-two-steps": Mutant(
        "for a moment a store that goes on has no frame table", "xfs", 1, _table_in_two_steps, ("--goes-on",)
    ),
    "no-sync": Mutant("nothing is synced", "ext4", 1, _no_sync),
}
