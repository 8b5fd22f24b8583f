"""Parity of the shard rows of a store, made last: ``compact --parity``.

    lock of the array ──▶ par2 into a folder of the work folder ──▶ each shard read, compared with the record
    ──▶ sync ──▶ right to replace shards: still the same ones? renamed to its place (``shard.parity_set``)

A shard that is changed meanwhile fails its row, and nothing is left of it. Whoever changes one later holds
the same right, and deletes the set first.
"""

from __future__ import annotations

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
from shardwright.shard.parity_set import Content, ParitySet, delete_parity, row_of, set_name
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
    """Makes the parity of all shard rows that lack it, or have less of it, or an old or a damaged one.
    Returns the number of rows that have it now, and the error of each other row. ``on_progress`` gets rows.

    Raises ``LockedError`` while the store is being written or another job is at work on it, ``StorageError``;
    ``ConfigError`` without the extra ``parity``."""
    if store.shard is not None:
        raise ConfigError("parity is of whole shard rows", hint="Give the array or the store, not one shard")
    rows: dict[Path, dict[str, dict[str, tuple[int, ...]]]] = {array.path: {} for array in store.arrays}
    for shard in sealed_shards(store).sealed:
        rows[shard.array.path].setdefault(row_of(shard.key), {})[shard.key] = shard.coordinates
    total, done, failures = sum(map(len, rows.values())), 0, dict[str, ShardwrightError]()
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
                on_progress(done := done + 1, total)
    return total - len(failures), failures


class _NewSet:
    """The set of one row that is to be made. The caller holds the lock of the array."""

    def __init__(self, array: StoredArray, row: str, keys: Mapping[str, tuple[int, ...]]) -> None:
        self.place = array.path / PARITY_FOLDER / row
        self._array, self._row, self._keys = array, row, keys
        self._record = ShardSums(array.path)
        self._identities: dict[str, FileIdentity] = {}
        self._earlier: ParitySet | None = None

    def make(self, percent: int, throttle: Throttle, threads: int) -> None:
        """Makes it, unless there is one that is as good. Raises ``ShardwrightError``."""
        array, place, known = self._array, self.place, self._record.read()
        self._identities = {key: FileIdentity.at(array.path / key) for key in self._keys}
        self._earlier = self._usable(known)
        if self._earlier is not None and self._is_enough(self._earlier, percent):
            return
        with parity_work(array, self._row) as work:
            self._run_par2(work / f"{set_name(self._row, known)}.par2", percent, throttle, threads)
            made = ParitySet.read(work, self._row, known)
            for key, shard in self._keys.items():
                self._check_shard(key, shard, made.shards.get(key), throttle)
            for name in made.names:
                with storage_errors("sync", work / name), open_regular(work / name) as file:
                    reach("parity.before_sync")
                    sync_data(file.fileno())
            sync_directory(work)
            reach("parity.before_publish")
            with self._record.held(create=workspace_of(array.path) is not None):
                check_finished(array.path)
                for key, identity in self._identities.items():
                    check_not_edited(array.path, key)
                    if FileIdentity.at(array.path / key) != identity:
                        raise self._changed(key)
                delete_parity(place)
                make_folder(place.parent)
                publish_folder(work, place)

    def _usable(self, known: dict[str, set[int | None]]) -> ParitySet | None:
        """Returns the set that there is, None if it may not be used. Raises ``ShardFormatError`` if a shard
        of it is missing: a set without that one would end the last hope."""
        try:
            found = ParitySet.read(self.place, self._row, known) if beneath.is_dir(self.place) else None
        except ShardFormatError:
            return None
        if found is not None and (lost := found.shards.keys() - self._keys.keys()):
            raise self._damaged(min(lost))
        return found

    def _is_enough(self, found: ParitySet, percent: int) -> bool:
        return (
            found.is_whole
            and found.blocks * 100 >= percent * found.shard_blocks
            and found.shards.keys() == self._keys.keys()
            and all(
                found.shards[key].nbytes == identity.nbytes and identity.mtime_ns < found.made_ns
                for key, identity in self._identities.items()
            )
        )

    def _run_par2(self, index: Path, percent: int, throttle: Throttle, threads: int) -> None:
        sizes = [identity.nbytes for identity in self._identities.values()]
        if len(sizes) > _MOST_SHARDS:
            raise ShardFormatError(
                f"{self._array.path} has too many files in a shard row for parity",
                expected=f"at most {_MOST_SHARDS}",
                got=len(sizes),
                hint="`shardwright rechunk --shards` makes larger ones",
            )
        block = max(_LEAST_BLOCK_BYTES, -(-sum(sizes) // _BLOCKS // 4096) * 4096)
        count = -(-sum(-(-nbytes // block) for nbytes in sizes) * percent // 100)
        # par2 leaves out files that are not below its base by their names
        root = self._array.path.resolve()
        files = [str(index), *(str(root / key) for key in self._keys)]
        run_par2(
            "c",
            [f"-B{root}", f"-s{block}", f"-c{count}", "-n1", "--", *files],
            index.parent,
            throttle,
            threads=threads,
            most_bytes=count * block + _PACKETS_BYTES,
        )

    def _check_shard(
        self, key: str, shard: tuple[int, ...], made: Content | None, throttle: Throttle
    ) -> None:
        """Reads a shard once more: it must be sound, and the one that par2 has read."""
        earlier, identity = self._earlier, self._identities[key]
        with SourceShard(self._array, shard) as source:
            if not check_recorded(source, self._record, lambda: sum_of(source, *data_crcs(source))):
                decode_all(source)
            found = Content.of(source.file, throttle.take)
            if found != made or source.file.identity != identity or not source.is_as_it_was():
                raise self._changed(key)
        if earlier is not None and identity.mtime_ns < earlier.made_ns:
            if earlier.shards.get(key, found) != found:
                raise self._damaged(key)

    def _damaged(self, key: str) -> ShardFormatError:
        return ShardFormatError(
            f"{self._array.path / key} is missing or damaged, and has parity",
            hint=f"Run `shardwright repair` first. If it was deleted on purpose, delete {self.place}",
        )

    def _changed(self, key: str) -> ShardChangedError:
        return ShardChangedError(
            f"{self._array.path / key} was changed while its parity was made", hint="Run the same again"
        )


def decode_all(source: SourceShard) -> None:
    """Raises ``ShardFormatError`` for a chunk that does not decode, ``StorageError``."""
    room = np.empty(source.array.chunk_bytes, np.uint8)
    for entry in source.index.entries[source.index.live]:
        source.array.decode(source.file.read(int(entry["offset"]), int(entry["nbytes"])), room)


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
