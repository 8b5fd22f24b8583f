"""Taking a store over from a writer that hangs: it may wake up and go on where it was, with what it has open, and with the one call that it was about
to make when it looked at the fence for the last time.

The lock file has been replaced and the writer epoch raised before this. What it has open: log and staging area are replaced by copies, so that it
writes into files that have no name any more. What it may still rename or delete: the groups in progress are copied into a folder of their
own, ``taken-EPOCH``, that counts once the manifest names it, and the names that the old writer knows are deleted, as are the documents that it was
about to put in place.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.array.ome import IMAGE_PATH
from shardwright.shard.group_files import REWRITE_SUFFIX, TAKEN_PREFIX, is_of_a_group
from shardwright.storage.failpoints import reach
from shardwright.storage.files import data_ranges, delete_new_files, make_directories, open_regular, storage_errors, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.shard.group_files import Placement

    from .unfinished import Unfinished

_NUMBERED = tuple(re.compile(pattern) for pattern in (rf"{TAKEN_PREFIX}(\d+)", r"frames\.(\d+)\.building", r".*\.(\d+)\.copy"))
"""What a writer of that epoch leaves in a workspace when it is killed: groups that it took over, a frame table, a copy."""
_PIECE_BYTES = 1 << 20


def take_files(store: Unfinished, still_ours: Callable[[], None]) -> Unfinished:
    """Of a store whose manifest is the new writer's: as it goes on. ``still_ours`` raises ``FencedError`` when somebody has taken it over from us.
    Raises ``StorageError``; the next try clears what this one has copied, unless the manifest names it, and begins again."""
    epoch = store.manifest.writer_epoch
    for placement in store.placements:
        _copy_groups(placement, replace(placement, epoch=epoch))
    for name in ("frames.log", "staging"):
        if (store.workspace / name).exists():
            _replace_by_copy(store.workspace / name, epoch, still_ours)
    sync_directory(store.workspace)
    return store.write(replace(store.manifest, files_epoch=epoch), still_ours)


def clear_older(store: Unfinished, still_ours: Callable[[], None]) -> None:
    """What writers before this one knew of groups in progress, and were about to put in place: none of it counts. And what they had put in place is
    durable. Raises ``StorageError`` or what ``still_ours`` does."""
    epoch = store.manifest.writer_epoch
    for placement in store.placements:
        if not placement.workspace.is_dir():
            continue
        with storage_errors("look into", placement.workspace):
            entries = sorted(placement.workspace.iterdir())
        for entry in entries:
            number = next((int(found[1]) for pattern in _NUMBERED if (found := pattern.fullmatch(entry.name))), None)
            older = number is not None and number < epoch and entry != placement.files
            if older or (placement.epoch and is_of_a_group(entry)):
                still_ours()
                _remove(entry)
        sync_directory(placement.workspace)
    for folder in (store.path, store.path / IMAGE_PATH):
        still_ours()
        delete_new_files(folder / "zarr.json", below=epoch)
        sync_directory(folder)


def _copy_groups(source: Placement, target: Placement) -> None:
    make_directories(target.files)
    for file in sorted(source.files.iterdir()):
        if file.is_file() and is_of_a_group(file) and not file.name.endswith(REWRITE_SUFFIX):
            with storage_errors("copy", file):
                reach("take_over.before_copy")
                _copy_file(file, target.files / file.name)
    sync_directory(target.files)


def _replace_by_copy(file: Path, epoch: int, still_ours: Callable[[], None]) -> None:
    copy = file.with_name(f"{file.name}.{epoch}.copy")
    with storage_errors("copy", file):
        copy.unlink(missing_ok=True)
        _copy_file(file, copy)
        reach("take_over.before_rename")
        still_ours()
        copy.replace(file)


def _remove(path: Path) -> None:
    with storage_errors("delete", path):
        reach("take_over.before_delete")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _copy_file(source: Path, target: Path) -> None:
    """As it reads, and written anew: blocks shared by the filesystem would be what has reached the disk, after a sync that failed less than what was
    acknowledged. As preallocated as the source."""
    with open_regular(source) as reading, target.open("xb") as writing:
        size = os.fstat(reading.fileno()).st_size
        os.posix_fallocate(writing.fileno(), 0, max(size, 1))
        os.ftruncate(writing.fileno(), size)
        for first, last in data_ranges(reading.fileno(), 0, size):
            reading.seek(first)
            writing.seek(first)
            while (left := last - reading.tell()) > 0 and (piece := reading.read(min(left, _PIECE_BYTES))):
                writing.write(piece)
        writing.flush()
        os.fsync(writing.fileno())
