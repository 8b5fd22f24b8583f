"""Parity of the shard rows of a store, made last: ``compact --parity``.

    lock of the array ──▶ par2 into a folder of the work folder ──▶ each shard read, compared with the record
    ──▶ sync ──▶ right to replace shards: still the same ones? renamed to its place (``shard.parity_set``)

A shard that is changed meanwhile fails its row, and nothing is left of it. Whoever changes one later holds
the same right, and deletes the set first.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    FileIdentity,
    make_folder,
    open_regular,
    publish_folder,
    replace_by_rename,
    storage_errors,
    sync_data,
    sync_directory,
)
from shardwright.model.errors import ConfigError, ShardChangedError, ShardFormatError, ShardwrightError
from shardwright.model.names import PARITY_FOLDER
from shardwright.read.store import workspace_of
from shardwright.rework.change_checks import check_finished
from shardwright.rework.runtime.job_report import no_progress
from shardwright.rework.runtime.work_folder import WorkFolder, remove, working_path
from shardwright.rework.shard_record import check_recorded, data_crcs, sum_of
from shardwright.rework.source_shard import SourceShard
from shardwright.shard.edit_files import check_not_edited
from shardwright.shard.parity_set import ParitySet, delete_parity, file_crc32c, row_of, set_name
from shardwright.shard.shard_sums import ShardSums

from .par2 import run_par2
from .sealed_shards import sealed_shards

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.runtime.job_report import OnProgress
    from shardwright.rework.runtime.throttle import Throttle

_LEAST_BLOCK_BYTES = 4096  # a page: what a disk loses at once
_BLOCKS = 1000  # of a row: time grows with the product of the blocks that there are and that may be lost
_MOST_SHARDS = 4096  # of a row: all are named on the command line of par2
_PACKETS_BYTES = 32 << 20  # of PAR2 files beside their blocks


def make_parity(
    store: Store, percent: int, throttle: Throttle, threads: int, on_progress: OnProgress = no_progress
) -> tuple[int, dict[str, ShardwrightError]]:
    """Makes the parity of all shard rows that lack it, or have less of it, or an old one.
    Returns the number of rows that have it now, and the error of each other row. ``on_progress`` gets bytes
    of shards.

    Raises ``LockedError`` while the store is being written or another job is at work on it, ``StorageError``;
    ``ConfigError`` without the extra ``parity``."""
    if store.shard is not None:
        raise ConfigError("parity is of whole shard rows", hint="Give the array or the store, not one shard")
    rows: dict[Path, dict[str, dict[str, tuple[int, ...]]]] = {array.path: {} for array in store.arrays}
    sealed = sealed_shards(store).sealed
    for shard in sealed:
        rows[shard.array.path].setdefault(row_of(shard.key), {})[shard.key] = shard.coordinates
    total, done = sum(FileIdentity.at(shard.path).nbytes for shard in sealed), 0
    failures: dict[str, ShardwrightError] = {}
    for array in store.arrays:
        with WorkFolder.locked(array.path) as folder:
            folder.clear_leftovers()
            check_finished(store.root)  # a writer that goes on with it had this lock until it was there
            for row, keys in rows[array.path].items():
                new = _NewSet(array, row, keys)
                try:
                    new.make(percent, throttle, threads)
                except ShardwrightError as error:
                    failures[new.place.relative_to(store.root).as_posix()] = error
                done += sum(FileIdentity.at(array.path / key).nbytes for key in keys)
                on_progress(min(done, total), total)
    return sum(map(len, rows.values())) - len(failures), failures


class _NewSet:
    """The set of one row that is to be made. The caller holds the lock of the array."""

    def __init__(self, array: StoredArray, row: str, keys: Mapping[str, tuple[int, ...]]) -> None:
        self.place = array.path / PARITY_FOLDER / row
        self._array, self._keys = array, keys
        # par2 leaves out files that are not below its base by their names
        self._root = beneath.user_path(array.path)
        self._record = ShardSums(array.path)

    def make(self, percent: int, throttle: Throttle, threads: int) -> None:
        """Makes it, unless there is one that is as good. Raises ``ShardwrightError``."""
        array, place, known = self._array, self.place, self._record.read()
        identities = {key: FileIdentity.at(array.path / key) for key in self._keys}
        sizes = [identity.nbytes for identity in identities.values()]
        block = max(_LEAST_BLOCK_BYTES, -(-sum(sizes) // _BLOCKS // 4096) * 4096)
        count = -(-sum(-(-nbytes // block) for nbytes in sizes) * percent // 100)
        if len(sizes) > _MOST_SHARDS:
            raise ShardFormatError(
                f"{array.path} has too many files in a shard row for parity",
                expected=f"at most {_MOST_SHARDS}",
                got=len(sizes),
                hint="`shardwright rechunk --shards` makes larger ones",
            )
        if (earlier := self._usable(known)) is not None:
            made_ns = max(identity.mtime_ns for identity in identities.values())
            if made_ns < earlier.made_ns and earlier.blocks >= count:
                return
            throttle.take(sum(sizes))
            if not run_par2("v", [f"-B{self._root}", "--", *map(str, earlier.files)], throttle):
                raise ShardFormatError(
                    f"a shard of {place} is missing, damaged or changed: new parity would not restore it",
                    hint=f"Run `shardwright repair` first. If that was done on purpose, delete {place}",
                )
        with parity_work(array, place.name) as work:
            index = work / f"{set_name(place.name, known)}.par2"
            files = [str(index), *(str(self._root / key) for key in self._keys)]
            run_par2(
                "c",
                [f"-B{self._root}", f"-s{block}", f"-c{count}", "-n1", "--", *files],
                throttle,
                threads=threads,
                most_bytes=count * block + _PACKETS_BYTES,
            )
            for key, shard in self._keys.items():
                throttle.take(identities[key].nbytes)
                with SourceShard(array, shard) as source:
                    check_sound(source, self._record)
            _finish(work, array.path)
            with storage_errors("write", place):
                reach("parity.before_publish")
            with self._record.held(create=workspace_of(array.path) is not None):
                check_finished(array.path)
                for key, identity in identities.items():
                    check_not_edited(array.path, key)
                    if FileIdentity.at(array.path / key) != identity:
                        raise ShardChangedError(
                            f"{array.path / key} was changed while its parity was made",
                            hint="Run the same again",
                        )
                delete_parity(place)
                make_folder(place.parent)
                _give_to_owner(place.parent, array.path)
                publish_folder(work, place)

    def _usable(self, known: dict[str, set[int | None]]) -> ParitySet | None:
        """Returns the set that there is, None if it may not be used."""
        try:
            return ParitySet.read(self.place, known) if beneath.is_dir(self.place) else None
        except ShardFormatError:
            return None


def check_sound(source: SourceShard, record: ShardSums) -> None:
    """Raises ``ShardFormatError`` for a shard that is not on record or, if the record has none of its key,
    has a chunk that does not decode; ``StorageError``."""
    if not check_recorded(source, record, lambda: sum_of(source, *data_crcs(source))):
        decode_all(source)


def decode_all(source: SourceShard) -> None:
    """Raises ``ShardFormatError`` for a chunk that does not decode, ``StorageError``."""
    room = np.empty(source.array.chunk_bytes, np.uint8)
    for entry in source.index.entries[source.index.live]:
        source.array.decode(source.file.read(int(entry["offset"]), int(entry["nbytes"])), room)


def _finish(work: Path, array: Path) -> None:
    """Makes the files of a set durable; that with recovery blocks gets its checksum into its name."""
    for path in sorted(beneath.paths_in(work)):
        _give_to_owner(path, array)
        with storage_errors("sync", path), open_regular(path) as file:
            reach("parity.before_sync")
            sync_data(file.fileno())
        if ".vol" in path.name:
            replace_by_rename(path, path.with_suffix(f".{file_crc32c(path):08x}.par2"))
    _give_to_owner(work, array)
    sync_directory(work)


def _give_to_owner(path: Path, array: Path) -> None:
    """Gives what root has made to the owner of the array, who is to delete it. Raises ``StorageError``."""
    with storage_errors("give to the owner of its array", path):
        owner = beneath.stat(array)
        if os.geteuid() != 0:
            return
        descriptor = beneath.open_file(path, os.O_RDONLY)
        try:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        finally:
            beneath.close(descriptor)


@contextmanager
def parity_work(array: StoredArray, row: str) -> Iterator[Path]:
    """A folder for par2 in the work folder of an array, deleted at the end unless it was renamed. What a kill
    leaves goes with the next job. Raises ``StorageError``."""
    work = working_path(array, f"parity.{row}")
    make_folder(work, synced=False)
    try:
        yield work
    finally:
        remove(work)
