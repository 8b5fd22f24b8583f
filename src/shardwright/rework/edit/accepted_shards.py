"""Shards that another program has changed, put on record as they are, so that ``verify`` finds nothing wrong
and updates go on.

    job lock of each array ──▶ verify: every chunk decoded ──▶ of a shard that is sound, and not the recorded
    one: its lock, no update in it, still that file ──▶ a line in the record, durable

Only a line is added, and earlier ones stay: a crash leaves the record as it was or with the line. What is
damaged is never recorded.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from shardwright.disk.files import FileIdentity
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import ConfigError, ShardChangedError
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.change_checks import check_at_rest
from shardwright.rework.runtime.work_folder import WorkFolder
from shardwright.shard.edit_files import check_not_edited
from shardwright.shard.shard_sums import ShardSums

from .shard_lock import shard_locked

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from shardwright.read.verify_store import ChangedShard, Progress, VerifyReport

ALL = "all"


def verify_and_accept(
    path: str | os.PathLike[str],
    keys: Collection[str],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """As ``verify_store``; changed shards of ``keys`` (as reports name them) are put on record. ``ALL``: each
    one that is there and is not what another key had; those, and missing ones, need keys of their own.

    A key of which nothing was recorded is a warning, unless its shard is damaged. Raises ``ConfigError`` for
    a store that is not changed here; ``LockedError`` while a job, an update or an acquisition is at work;
    ``ShardChangedError`` for a shard that changes meanwhile; ``StorageError``.
    """
    store = open_store(path)
    if isinstance(store.root, RemotePath):
        raise ConfigError(
            "no shard of a store at an address is accepted",
            got=str(path),
            hint="Accept it where the store is written",
        )
    store.check_spelling()

    def accept(shard: ChangedShard) -> bool:
        if shard.where not in keys and (shard.is_doubtful or ALL not in keys):
            return False
        folder = shard.array.path
        with shard_locked(folder, shard.key):
            check_not_edited(folder, shard.key)
            if FileIdentity.at(folder / shard.key) != shard.identity:
                raise ShardChangedError(
                    f"{folder / shard.key} changed while it was verified",
                    hint="Run it again when no program writes to the store",
                )
            ShardSums(folder).append({shard.key: shard.sum})
        return True

    with ExitStack() as held:
        for array in store.arrays:
            check_at_rest(array.path)
            held.enter_context(WorkFolder.locked(array.path))
        report = verify_store(path, threads=threads, progress=progress, accept=accept)
    told = {ALL, *report.accepted, *(problem.where for problem in report.problems)}
    for key in sorted({*keys} - told):
        report.add_warning(key, "no shard with this key was changed by another program")
    return report
