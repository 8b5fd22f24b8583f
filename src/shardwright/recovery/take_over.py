"""Taking a store over from a writer that hangs: it may wake up and go on where it was, with what it has open, and with the one call that it was about
to make when it looked at the fence for the last time.

The lock file has been replaced and the writer epoch raised before this. All that is in progress is copied into a folder of its own, ``taken-EPOCH``,
that counts, as a whole, once the manifest names it. Then the names that the old writer knows are deleted, so that it writes into files that have none
and finds nothing to rename, and the documents that it was about to put in place.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.array.ome import IMAGE_PATH
from shardwright.shard.group_files import JOURNAL_SUFFIX, LOG_NAME, REWRITE_SUFFIX, STAGING_NAME, TAKEN_PREFIX, WORKING_SUFFIX, is_in_progress
from shardwright.storage.failpoints import reach
from shardwright.storage.files import data_ranges, delete_new_files, make_directories, open_regular, storage_errors, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .unfinished import Unfinished

_NUMBERED = tuple(re.compile(pattern) for pattern in (rf"{TAKEN_PREFIX}(\d+)", r"frames\.(\d+)\.building"))
"""What a writer of that epoch leaves in a workspace when it is killed: what it took over, a frame table."""
_PIECE_BYTES = 1 << 20


def take_files(store: Unfinished, still_ours: Callable[[], None]) -> Unfinished:
    """Of a store whose manifest is the new writer's: as it goes on. ``still_ours`` raises ``FencedError`` when somebody has taken it over from us.
    Raises ``StorageError``; the next try clears what this one has copied, unless the manifest names it, and begins again."""
    epoch = store.manifest.writer_epoch
    for placement in store.placements:
        _copy_files(placement.files, replace(placement, epoch=epoch).files)
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
            if older or (placement.epoch and is_in_progress(entry)):
                still_ours()
                _remove(entry)
        sync_directory(placement.workspace)
    for folder in (store.path, store.path / IMAGE_PATH):
        still_ours()
        delete_new_files(folder / "zarr.json", below=epoch)
        sync_directory(folder)


def _copy_files(source: Path, target: Path) -> None:
    """In the order in which the old writer hands frames on while they are copied, so that none is missed: it uses a staging slot again once a journal
    has the slab, journals what is in a shard, and deletes a journal once the log has its frames."""
    make_directories(target)
    files = [file for file in source.iterdir() if file.is_file() and is_in_progress(file) and not file.name.endswith(REWRITE_SUFFIX)]
    for file in sorted(files, key=_hands_on):
        with storage_errors("copy", file), suppress(FileNotFoundError):  # then it has got its final name since, or the log has all of it
            reach("take_over.before_copy")
            _copy_file(file, target / file.name)
    sync_directory(target)


def _hands_on(file: Path) -> tuple[int, str]:
    kind = [file.name == STAGING_NAME, file.name.endswith(JOURNAL_SUFFIX), file.name.endswith(WORKING_SUFFIX), file.name == LOG_NAME].index(True)
    return kind, file.name


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
