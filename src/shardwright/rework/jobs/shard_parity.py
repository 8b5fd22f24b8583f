"""Parity of the shard rows of a store, made last: ``compact --parity``.

    lock of the array ──▶ par2 into a folder of the work folder ──▶ each shard read, compared with the record
    ──▶ sync ──▶ right to replace shards: still the same ones? renamed to its place (``shard.parity_set``)

A shard that is changed meanwhile fails its row, and nothing is left of it. Whoever changes one later holds
the same right, and deletes the set first.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    FileIdentity,
    free_bytes,
    make_folder,
    publish_folder,
    storage_errors,
    sync_data,
    sync_directory,
    write_file,
)
from shardwright.disk.read_file import ReadFile
from shardwright.model.errors import (
    ConfigError,
    ShardChangedError,
    ShardFormatError,
    ShardwrightError,
    StorageFullError,
)
from shardwright.model.names import PARITY_FOLDER
from shardwright.read.store import workspace_of
from shardwright.rework.change_checks import check_finished, check_not_spilled
from shardwright.rework.runtime.job_report import no_progress
from shardwright.rework.runtime.work_folder import WorkFolder, remove, working_path
from shardwright.rework.shard_record import check_recorded, data_crcs, sum_of
from shardwright.rework.source_shard import SourceShard
from shardwright.shard.edit_files import check_not_edited
from shardwright.shard.parity_set import (
    INDEX_NAME,
    MOST_SHARDS,
    RECORD_NAME,
    CoveredFile,
    ParitySet,
    delete_parity,
    file_crc32c,
    row_of,
)
from shardwright.shard.shard_sums import ShardSums

from .par2 import run_par2
from .sealed_shards import sealed_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.runtime.job_report import OnProgress
    from shardwright.rework.runtime.throttle import Throttle

    OnBytes = Callable[[int], None]

_LEAST_BLOCK_BYTES = 4096  # a page: what a disk loses at once
_BLOCKS = 1000  # of a row: time grows with the product of the blocks that there are and that may be lost
_PACKETS_BYTES = 16 << 20  # of PAR2 files beside their blocks


def make_parity(
    store: Store, percent: int, throttle: Throttle, threads: int, on_progress: OnProgress = no_progress
) -> tuple[int, dict[str, ShardwrightError]]:
    """Makes the parity of all shard rows that lack it, or have less of it, or an old or a damaged one.
    Returns the number of rows that have it now, and the error of each other row. ``on_progress`` gets bytes
    of shards.

    Raises ``LockedError`` while the store is being written or another job is at work on it, ``StorageError``;
    ``ConfigError`` without the extra ``parity``."""
    if store.shard is not None:
        raise ConfigError("parity is of whole shard rows", hint="Give the array or the store, not one shard")
    check_finished(store.root)
    rows: dict[tuple[Path, str], dict[str, tuple[int, ...]]] = {}
    for shard in sealed_shards(store).sealed:
        rows.setdefault((shard.array.path, row_of(shard.key)), {})[shard.key] = shard.coordinates
    sizes = {row: _nbytes(row[0], keys) for row, keys in rows.items()}
    total, done, failures = sum(sizes.values()), 0, dict[str, ShardwrightError]()

    def on_row(nbytes: int) -> None:
        on_progress(done + nbytes, total)

    for array in store.arrays:
        with WorkFolder.locked(array.path) as folder:
            folder.clear_leftovers()
            check_finished(store.root)  # a writer that goes on with it had this lock until it was there
            for path, row in (each for each in rows if each[0] == array.path):
                place, keys = path / PARITY_FOLDER / row, rows[path, row]
                try:
                    new = _NewSet(array, place, keys, percent)
                    if not new.is_there(throttle):
                        new.make(throttle, threads, on_row)
                except ShardwrightError as error:
                    failures[place.relative_to(store.root).as_posix()] = error
                done += sizes[path, row]
                on_row(0)
    return len(rows) - len(failures), failures


def _nbytes(array: Path, keys: Mapping[str, tuple[int, ...]]) -> int:
    return sum(FileIdentity.at(array / key).nbytes for key in keys)


def _earlier_set(place: Path) -> ParitySet | None:
    """Returns the set of a row, None if there is none, or none that may be used."""
    try:
        found = ParitySet.read(place) if beneath.is_dir(place) else None
        record = ShardSums(place.parent.parent)
        return None if found is None or found.stale(record.of_each(found.shards)) else found
    except ShardwrightError:
        return None


class _NewSet:
    """The set of one row that is to be made. The caller holds the lock of the array."""

    def __init__(
        self, array: StoredArray, place: Path, keys: Mapping[str, tuple[int, ...]], percent: int
    ) -> None:
        self._array, self._place, self._keys, self._percent = array, place, keys, percent
        for key in keys:
            check_not_spilled(array.path / key)
        self._identities = {key: FileIdentity.at(array.path / key) for key in keys}
        self._record = ShardSums(array.path)
        self._earlier = _earlier_set(place)
        lost = set() if self._earlier is None else self._earlier.shards.keys() - keys.keys()
        if lost:  # a set without it would end the last hope
            raise self._damaged(min(lost))

    def is_there(self, throttle: Throttle) -> bool:
        """Returns whether the row has this parity, of its shards as they are, and whole."""
        found = self._earlier
        if found is None or found.percent < self._percent or found.shards.keys() != self._keys.keys():
            return False
        throttle.take(sum(file.nbytes for file in found.files.values()))
        states = {key: (each.nbytes, each.mtime_ns) for key, each in self._identities.items()}
        as_covered = {key: (each.nbytes, each.mtime_ns) for key, each in found.shards.items()}
        return states == as_covered and not found.damaged_files()

    def make(self, throttle: Throttle, threads: int, on_progress: OnBytes) -> None:
        if len(self._keys) > MOST_SHARDS:
            raise ShardFormatError(
                f"{self._array.path} has too many files in a shard row for parity",
                expected=f"at most {MOST_SHARDS}",
                got=len(self._keys),
                hint="`shardwright rechunk --shards` makes larger ones",
            )
        with parity_work(self._array, self._place.name) as work:
            self._run_par2(work, throttle, threads, on_progress)
            shards = {key: self._covered(key, shard, throttle) for key, shard in self._keys.items()}
            files = {path.name: _synced(path) for path in beneath.paths_in(work)}
            made = ParitySet(self._place, self._percent, shards, files)
            write_file(work / RECORD_NAME, made.encode())
            sync_directory(work)
            make_folder(self._place.parent)
            reach("parity.before_publish")
            with self._record.held(create=workspace_of(self._array.path) is not None):
                check_finished(self._array.path)
                for key, identity in self._identities.items():
                    check_not_edited(self._array.path, key)
                    if FileIdentity.at(self._array.path / key) != identity:
                        raise self._changed(key)
                delete_parity(self._place)
                make_folder(self._place.parent)  # the deletion of the last set takes it along
                publish_folder(work, self._place)

    def _run_par2(self, work: Path, throttle: Throttle, threads: int, on_progress: OnBytes) -> None:
        sizes = [identity.nbytes for identity in self._identities.values()]
        block = max(_LEAST_BLOCK_BYTES, -(-sum(sizes) // _BLOCKS // 4096) * 4096)
        blocks = sum(-(-nbytes // block) for nbytes in sizes)
        count = -(-blocks * self._percent // 100)
        needed = count * block + _PACKETS_BYTES
        if needed > (free := free_bytes(self._array.path)):
            raise StorageFullError(
                f"no room for the parity of {self._place}", expected=f"{needed} bytes free", got=free
            )
        # par2 leaves out files that are not below its base by their names
        root = self._array.path.resolve()
        files = [str(work / INDEX_NAME), *(str(root / key) for key in self._keys)]
        run_par2(
            "c",
            [f"-B{root}", f"-s{block}", f"-c{count}", "-n1", "--", *files],
            throttle,
            threads=threads,
            most_bytes=2 * needed,
            on_moved=lambda nbytes: on_progress(min(nbytes, sum(sizes))),
        )

    def _covered(self, key: str, shard: tuple[int, ...], throttle: Throttle) -> CoveredFile:
        """Reads a shard once more: it must be the one on record, and the one that par2 has read."""
        with SourceShard(self._array, shard) as source:
            check_recorded(source, self._record, lambda: sum_of(source, *data_crcs(source)))
            found = file_crc32c(source.file, throttle.take)
            if source.file.identity != self._identities[key] or not source.is_as_it_was():
                raise self._changed(key)
            earlier = None if self._earlier is None else self._earlier.shards.get(key)
            is_as = earlier is not None and (earlier.nbytes, earlier.mtime_ns) == self._identities[key][2:]
            if earlier is not None and is_as and found != earlier.crc32c:
                raise self._damaged(key)
            sums = sorted(self._record.of(key), key=lambda value: -1 if value is None else value)
            return CoveredFile(source.file.nbytes, found, source.file.status.st_mtime_ns, tuple(sums))

    def _damaged(self, key: str) -> ShardFormatError:
        return ShardFormatError(
            f"{self._array.path / key} is missing or damaged, and has parity",
            hint=f"Run `shardwright repair` first. If it was deleted on purpose, delete {self._place}",
        )

    def _changed(self, key: str) -> ShardChangedError:
        return ShardChangedError(
            f"{self._array.path / key} was changed while its parity was made", hint="Run the same again"
        )


@contextmanager
def parity_work(array: StoredArray, row: str) -> Iterator[Path]:
    """A folder for par2 in the work folder of an array, deleted at the end unless it was renamed. What a kill
    leaves goes with the next job. Raises ``StorageError``."""
    work = working_path(array, f"parity.{row}")
    make_folder(work, synced=False)
    try:
        yield work
    finally:
        if beneath.is_dir(work):
            remove(work)


def _synced(path: Path) -> CoveredFile:
    with storage_errors("sync", path):
        file = ReadFile.open(path)
        try:
            reach("parity.before_sync")
            sync_data(file.descriptor)
            return CoveredFile(file.nbytes, file_crc32c(file))
        finally:
            file.close()
