"""The source of a move deleted: first what tells readers of the store, the highest first, then its shards and
other files, then its folders.

Only what was sent, and only when nothing of it has changed since. May be killed at any moment: the record of
the move says that it has begun, and stays until all is gone.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.model.errors import LockedError
from shardwright.repack.runtime.work_folder import LOCK_NAME, WORK_FOLDER, WORKING_SUFFIX, locked
from shardwright.storage.failpoints import reach
from shardwright.storage.files import storage_errors, sync_directory

from .move_plan import METADATA_NAME, depth, files_and_links
from .move_record import PREFIX
from .transfer_item import is_as_sent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .move_record import MoveRecord


def delete_source(root: Path, record: MoveRecord, found: dict[str, int]) -> tuple[int, list[str]]:
    """Delete what was sent and verified: how many files, and instead of that which ones are not as they were
    sent. Then nothing at all is deleted.

    ``found``: bytes of each key, as the destination lists them now.
    """
    kept = [
        file.relative_to(root).as_posix()
        for file in files_and_links(root)
        if not _may_go(root, file, record, found)
    ]
    if kept:
        return 0, kept
    record.begin_deleting()
    metadata = sorted((key for key in record.sent if Path(key).name == METADATA_NAME), key=depth)
    others = [key for key in record.sent if Path(key).name != METADATA_NAME]
    deleted = 0
    # Each step durably before the next one: a power cut undoes none of which a later one was seen.
    for keys in (*(list(same) for _, same in groupby(metadata, key=depth)), others):
        _sync_what_is_left(folder for key in keys for folder in _delete_spilled(root, key))
        deleted += sum(_delete(root / key) for key in keys)
        _sync_what_is_left((root / key).parent for key in keys)
    return deleted, []


def _may_go(root: Path, file: Path, record: MoveRecord, found: dict[str, int]) -> bool:
    sent = record.sent.get(file.relative_to(root).as_posix())
    if sent is None or found.get(sent.key) != sent.nbytes:
        return False
    return not file.exists() or is_as_sent(file, sent.source)


def _delete_spilled(root: Path, key: str) -> list[Path]:
    """Of a spilled shard the file behind the link, before the link, and the folders there that are empty
    then: the folders that have changed."""
    path = root / key
    target = path.resolve()
    if not path.is_symlink() or target.parts[-len(Path(key).parts) :] != Path(key).parts:
        return []
    folders = target.parents[: len(Path(key).parts)]
    with storage_errors("delete", target):
        reach("compact.before_delete_spilled")
        target.unlink(missing_ok=True)
        for folder in folders:
            _clear(folder / WORK_FOLDER, f"*{WORKING_SUFFIX}")
            with suppress(OSError):  # not empty yet
                folder.rmdir()
    return [*folders, folders[-1].parent]


def _delete(path: Path) -> bool:
    with storage_errors("delete", path):
        reach("compact.before_delete_source")
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True


def _sync_what_is_left(folders: Iterable[Path]) -> None:
    """A folder that is gone is told by the one that it was in."""
    for folder in sorted(set(folders)):
        if folder.is_dir():
            sync_directory(folder)


def clear_dead_work(root: Path, held: list[Path]) -> None:
    """What jobs kept beside the arrays (that one is queued, shards in the making, locks of the killed): it
    means nothing without them.

    ``held``: folders whose lock the caller holds; it goes when that lets go.
    """
    for folder in sorted(root.rglob(WORK_FOLDER)):
        lock = nullcontext() if folder.parent in held else locked(folder.parent, LOCK_NAME)
        with suppress(LockedError), lock, storage_errors("clear", folder):
            _clear(folder, "*")


def _clear(work_folder: Path, pattern: str) -> None:
    """All but locks and the records of moves; the folder as well, if it is empty then."""
    if not work_folder.is_dir():
        return
    for path in work_folder.glob(pattern):
        if path.is_file() and path.name != LOCK_NAME and not path.name.startswith(PREFIX):
            reach("compact.before_clear")
            path.unlink(missing_ok=True)
    with suppress(OSError):  # its lock is in it
        reach("compact.before_remove_work_folder")
        work_folder.rmdir()


def remove_empty_folders(root: Path) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        # something is in it that was not sent, for instance another job's work folder
        with suppress(OSError):
            reach("compact.before_remove_source_folder")
            Path(folder).rmdir()
    if not root.exists():
        sync_directory(root.parent)
