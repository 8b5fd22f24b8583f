"""Shards restored from their parity (``shard.parity_set``), and the store verified: ``shardwright repair``,
and the scrubbing of the daemon.

    the record has changed since: the set is stale, and never applied
    each shard of the row is read: all sound? nothing is to be done
    ──▶ par2 in a folder of the work folder, with links to sound shards and copies of the others
    ──▶ each that it made: was the old one written to since, and decodes? another program's: the row is left
    ──▶ copied, synced, read back, compared
    ──▶ right to replace shards: still the damaged ones? renamed over them ──▶ the whole store is verified

par2 never sees a name of the store that it could write to: in its folder a sound shard is a symbolic link.
All shards of a row are restored, or none: where more is lost than there is parity, nothing changes.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    NO_FILE,
    DurableFolders,
    FileIdentity,
    free_bytes,
    keys_on_disk,
    make_directories,
    open_regular,
    pieces_of,
    storage_errors,
    truncate,
    write_all,
)
from shardwright.disk.typed_errors import says_nothing
from shardwright.disk.working_file import WorkingFile, WriteBehind
from shardwright.model.errors import (
    LinkError,
    ShardChangedError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
)
from shardwright.model.names import DOCUMENT
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.change_checks import check_finished
from shardwright.rework.name_changes import own_path
from shardwright.rework.runtime.job_report import no_progress
from shardwright.rework.runtime.throttle import pause_files
from shardwright.rework.runtime.work_folder import WorkFolder, working_path
from shardwright.rework.source_shard import SourceShard
from shardwright.shard.parity_set import ParitySet, parity_folders, row_of
from shardwright.shard.shard_sums import ShardSums

from .pack_shard import may_replace
from .par2 import run_par2
from .shard_parity import check_sound, decode_all, parity_work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.read.store import StoredArray
    from shardwright.rework.runtime.job_report import OnProgress
    from shardwright.rework.runtime.throttle import Throttle


@dataclass
class RepairReport:
    """The report of a repair. ``rows``: shard rows with parity. ``restored``: shards. ``failures``: rows of
    which nothing was changed, and why. ``problems``: of the store, verified last; ``warnings``: not of its
    frames."""

    path: str
    rows: int = 0
    restored: list[str] = field(default_factory=list)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def repair_store(
    path: Path, throttle: Throttle, *, dry_run: bool = False, on_progress: OnProgress = no_progress
) -> RepairReport:
    """Restores the damaged shards of a finished store from their parity, and verifies all of it. ``dry_run``:
    only verifies. ``on_progress`` gets bytes of shards.

    Raises ``LockedError`` while the store is being written or another job is at work on it, ``ConfigError``
    without the extra ``parity``, and as ``verify_store`` does."""
    path = own_path(path, "A store in one file (.ozx) has no parity")
    check_finished(path)
    store = open_store(path)
    report = RepairReport(str(store.root))
    for array in store.arrays:
        throttle = throttle.waiting_for(pause_files(array.path))
        if dry_run or not parity_folders(array.path):
            continue
        with WorkFolder.locked(array.path) as work:
            work.clear_leftovers()
            check_finished(path)  # a writer that goes on with it had this lock until it was there
            for folder in parity_folders(array.path):
                try:
                    restored = _RowRepair(array, folder, throttle).run()
                    report.restored += [each.relative_to(store.root).as_posix() for each in restored]
                except ShardwrightError as error:
                    report.failures[folder.relative_to(store.root).as_posix()] = error.to_dict()

    moved = 0

    def progress(done: int, total: int) -> None:
        nonlocal moved
        throttle.take(done - moved)
        moved = done
        on_progress(done, total)

    found = verify_store(path, threads=1, progress=progress)
    report.rows, report.problems = found.parity_rows, list(map(asdict, found.problems))
    report.warnings = list(map(asdict, found.warnings))
    return report


class _RowRepair:
    """The repair of one row. The caller holds the lock of the array."""

    def __init__(self, array: StoredArray, folder: Path, throttle: Throttle) -> None:
        """Raises ``ShardFormatError`` for parity that must not be used, ``StorageError``."""
        self._array, self._throttle, self._row = array, throttle, folder.name
        self._record = ShardSums(array.path)
        self._known = self._record.read()
        self._parity = ParitySet.read(folder, self._known)

    def run(self) -> list[Path]:
        """Returns the shards that were restored. Raises ``ShardwrightError``."""
        array = self._array
        files = (key for key, _ in array.shard_files() if self._is_of_row(key))
        there = {key: FileIdentity.at(array.path / key) for key in files}
        unsound = {key for key in there if not self._is_sound(key)}
        recorded = {key: sums for key, sums in self._known.items() if row_of(key) == self._row}
        if recorded and not unsound and all(key in there or None in recorded[key] for key in recorded):
            return []
        with parity_work(array, self._row) as work:
            for file in self._parity.files:
                _copy_readable(file, work / file.name)
            for key in there:
                make_directories((work / key).parent, synced=False)
                if key in unsound:
                    _copy_readable(array.path / key, work / key)
                else:
                    with storage_errors("link", work / key):
                        reach("parity.before_link")
                        beneath.make_link(work / key, beneath.user_path(array.path) / key)
            names = [str(work / file.name) for file in self._parity.files]
            if not run_par2("r", [f"-B{work}", "--", *names], self._throttle, most_bytes=free_bytes(work)):
                raise ShardFormatError(
                    f"more is lost than {self._parity.blocks} blocks of parity restore, among it "
                    f"{', '.join(sorted(unsound | (recorded.keys() - there.keys())))}",
                    hint="Nothing was changed. Put back one of these files from a copy, and run this again",
                )
            made = [key for key in keys_on_disk(work, "") if self._is_of_row(key, in_shape=key not in there)]
            # par2 has given what it replaces, also a link, another name
            made = [key for key in made if key not in there or beneath.exists(work / f"{key}.1")]
            for key in made:
                self._check_not_changed(key, there.get(key, NO_FILE))
            for key in made:
                self._put_back(key, work / key, there.get(key, NO_FILE))
        return [array.path / key for key in made]

    def _is_of_row(self, key: str, *, in_shape: bool = False) -> bool:
        coordinates = self._array.coordinates_of(key)
        is_shard = coordinates is not None and (not in_shape or self._array.contains_shard(coordinates))
        return is_shard and row_of(key) == self._row

    def _is_sound(self, key: str, *, decodes: bool = False) -> bool:
        """Returns whether a shard is the recorded one, or with ``decodes`` any that can be decoded. Raises
        ``StorageError`` where neither can be said."""
        coordinates = self._array.coordinates_of(key)
        assert coordinates is not None
        try:
            with SourceShard(self._array, coordinates) as source:
                self._throttle.take(source.file.nbytes)
                decode_all(source) if decodes else check_sound(source, self._record)
        except ShardFormatError:
            return False
        except StorageError as error:
            if isinstance(error, LinkError) or says_nothing(error):
                raise
            return False  # it cannot be read: a bad sector
        return True

    def _check_not_changed(self, key: str, identity: FileIdentity) -> None:
        """Raises ``ShardFormatError`` for a shard that is sound in itself, and was written to. Bytes that
        decay change no time."""
        if identity.mtime_ns >= self._parity.made_ns and self._is_sound(key, decodes=True):
            raise ShardFormatError(
                f"{self._array.path / key} was changed by another program after its parity was made",
                hint="It is left as it is, with its row. To have the older one, delete it first",
            )

    def _put_back(self, key: str, source: Path, identity: FileIdentity) -> None:
        """Copies what par2 has made, and compared with its MD5, to a file that takes the place of the damaged
        one. Raises ``StorageError``."""
        path = self._array.path / key
        with storage_errors("look at", path):
            like = beneath.stat(path if identity != NO_FILE else self._array.path / DOCUMENT)
        DurableFolders(self._array.path).make(path.parent)
        nbytes, wanted, found = FileIdentity.at(source).nbytes, 0, 0
        with WorkingFile(working_path(self._array, key), nbytes, like) as working:
            with open_regular(source) as file, WriteBehind(working, 0) as out:
                for piece in iter(lambda: file.read(4 << 20), b""):
                    self._throttle.take(3 * len(piece))  # read, written, read back
                    wanted = crc32c.crc32c(piece, wanted)
                    out.append(np.frombuffer(piece, np.uint8))
            if identity != NO_FILE:
                with open_regular(path) as old:
                    working.copy_attributes(old.fileno())
            working.finish(nbytes)
            for _, read in working.read_pieces():
                found = crc32c.crc32c(read.data, found)
            if found != wanted:
                raise StorageError(
                    f"{path} could not be restored: its copy is read back with other bytes",
                    hint="The shard is left as it is. Check the disk",
                )
            with storage_errors("set the time of", working.path), open_regular(working.path) as made:
                descriptor, before_ns = (
                    made.fileno(),
                    self._parity.made_ns - 1,
                )  # nobody has written to it since
                reach("parity.before_time")
                os.utime(descriptor, ns=(before_ns, before_ns))
            working.replace(path, self._held(key, identity))

    @contextmanager
    def _held(self, key: str, identity: FileIdentity) -> Iterator[None]:
        """The right to replace the damaged shard. Raises ``ShardChangedError`` when it is not the one that
        was read, or went on record since."""
        with may_replace(self._array.path, key):
            check_finished(self._array.path)
            path, known = self._array.path / key, self._known.get(key, set())
            if FileIdentity.at(path) != identity or self._record.of(key) != known:
                raise ShardChangedError(f"{path} was changed while it was repaired")
            reach("parity.before_put_back")
            yield


def _copy_readable(source: Path, target: Path) -> None:
    """Copies a file without the pages that the disk does not give back, at which par2 would end. Raises
    ``StorageError``."""
    with storage_errors("copy", source), open_regular(source) as old:
        reach("parity.before_copy")
        descriptor = beneath.open_file(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for offset, piece in pieces_of(old.fileno(), skip_unreadable=True):
                write_all(descriptor, offset, piece)
            truncate(descriptor, os.fstat(old.fileno()).st_size)
        finally:
            beneath.close(descriptor)
