"""Shards restored from their parity (``shard.parity_set``), and the store verified: ``shardwright repair``,
and the scrubbing of the daemon.

    each shard of a set is read: as it was when the parity was made?
        all are                       nothing is to be done
        its sums on record differ     the set is stale: never applied
        it decodes, was written to, and
        is not the recorded one       another program has changed it: left as it is, as is its row
        any other, or none            damaged
    damaged ones ──▶ par2 in a folder of the work folder ──▶ copied, synced, read back, compared
    ──▶ right to replace shards: still the damaged ones? renamed over them ──▶ the whole store is verified

par2 never sees a name of the store that it could write to: in its folder a shard is a symbolic link, which it
renames before it makes a new file. All shards of a row are restored, or none: where more is lost than there
is parity, nothing changes.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
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
    make_directories,
    open_regular,
    pieces_of,
    storage_errors,
    sync_directory,
    truncate,
    write_all,
)
from shardwright.disk.working_file import WorkingFile, WriteBehind
from shardwright.model.errors import (
    ShardChangedError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StorageFullError,
)
from shardwright.model.names import DOCUMENT, EDIT_FOLDER
from shardwright.read.store import open_store, workspace_of
from shardwright.read.verify_store import verify_store
from shardwright.rework.change_checks import check_finished, check_not_spilled
from shardwright.rework.name_changes import own_path
from shardwright.rework.runtime.job_report import no_progress
from shardwright.rework.runtime.throttle import pause_files
from shardwright.rework.runtime.work_folder import WorkFolder, working_path
from shardwright.rework.shard_record import data_crcs, sum_of
from shardwright.rework.source_shard import SourceShard
from shardwright.shard.edit_files import check_not_edited
from shardwright.shard.parity_set import ParitySet, parity_folders
from shardwright.shard.shard_sums import ShardSums

from .par2 import BEYOND, run_par2
from .shard_parity import parity_work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.runtime.job_report import OnProgress
    from shardwright.rework.runtime.throttle import Throttle
    from shardwright.shard.parity_set import CoveredFile

_MOST_SHIFTED_BYTES = 1 << 20  # par2 finds blocks that bytes in front of them have moved


@dataclass
class RepairReport:
    """The report of a repair. ``rows``: shard rows with parity. ``damaged``: shards that are not as their
    parity has them; ``restored``: those of them that are again, or with ``dry_run`` can be. ``failures``:
    rows of which nothing was changed, and why. ``problems``: of the store, verified last."""

    path: str
    dry_run: bool
    rows: int = 0
    damaged: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[dict[str, Any]] = field(default_factory=list)
    problems_not_kept: int = 0
    warnings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.problems and not (self.dry_run and self.damaged)

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def repair_store(
    path: Path,
    throttle: Throttle,
    threads: int,
    *,
    dry_run: bool = False,
    changed: bool = False,
    on_progress: OnProgress = no_progress,
) -> RepairReport:
    """Restores the damaged shards of a finished store from their parity, and verifies all of it. ``dry_run``:
    only says which can be restored. ``changed``: also those that another program may have changed.
    ``on_progress`` gets bytes of shards.

    Raises ``LockedError`` while the store is being written or another job is at work on it, ``ConfigError``
    without the extra ``parity``, and as ``verify_store`` does."""
    path = own_path(path, "A store in one file (.ozx) has no parity")
    check_finished(path)
    store = open_store(path)
    throttle = throttle.waiting_for([file for array in store.arrays[:1] for file in pause_files(array.path)])
    report = RepairReport(str(store.root), dry_run)
    for array in store.arrays:
        if not parity_folders(array.path):
            continue
        with WorkFolder.locked(array.path) as folder:
            folder.clear_leftovers()
            check_finished(path)  # a writer that goes on with it had this lock until it was there
            for place in parity_folders(array.path):
                report.rows += 1
                name = place.relative_to(store.root).as_posix()
                try:
                    _RowRepair(store, array, ParitySet.read(place), report, throttle).run(
                        threads, changed=changed
                    )
                except ShardwrightError as error:
                    report.failures[name] = error.to_dict()

    moved = 0

    def progress(done: int, total: int) -> None:
        nonlocal moved
        throttle.take(done - moved)
        moved = done
        on_progress(done, total)

    found = verify_store(path, threads=threads, progress=progress)
    report.problems, report.problems_not_kept = list(map(asdict, found.problems)), found.problems_not_kept
    report.warnings = list(map(asdict, found.warnings))
    return report


class _RowRepair:
    """The repair of one row. The caller holds the lock of the array."""

    def __init__(
        self, store: Store, array: StoredArray, parity: ParitySet, report: RepairReport, throttle: Throttle
    ) -> None:
        self._root, self._array, self._parity = store.root, array, parity
        self._report, self._throttle = report, throttle
        self._known = ShardSums(array.path).of_each(parity.shards)

    def run(self, threads: int, *, changed: bool) -> None:
        shards, parity = self._parity.shards, self._parity
        if stale := parity.stale(self._known):
            raise ShardFormatError(
                f"{parity.folder} is not used: {stale[0]} was changed after its parity was made",
                hint="`shardwright compact --parity` makes it again",
            )
        damaged: dict[str, FileIdentity] = {}
        for key, shard in shards.items():
            check_not_spilled(self._array.path / key)
            identity = FileIdentity.at(self._array.path / key)
            if not self._is_as(key, shard):
                damaged[key] = identity
        self._report.damaged += map(self._name, damaged)
        for key in damaged:
            if not changed and self._is_changed(key, shards[key]):
                raise ShardFormatError(
                    f"{self._name(key)} was changed by another program after its parity was made",
                    hint="It is left as it is, with its row. If it was damaged, or the older shard is "
                    "wanted: `shardwright repair --changed`",
                )
        if damaged:
            self._restore(damaged, threads)

    def _name(self, key: str) -> str:
        return (self._array.path / key).relative_to(self._root).as_posix()

    def _is_as(self, key: str, shard: CoveredFile) -> bool:
        try:
            return shard.is_as(self._array.path / key, self._throttle.take)
        except StorageError as error:
            if isinstance(error.__cause__, OSError) and beneath.is_file(self._array.path / key):
                return False  # it cannot be read: a bad sector
            raise

    def _is_changed(self, key: str, shard: CoveredFile) -> bool:
        """Returns whether a shard is sound in itself, and was written to. Bytes that decay change no time."""
        coordinates = self._array.coordinates_of(key)
        if coordinates is None:
            raise ShardFormatError(f"{self._parity.folder} names {key!r}, which is no shard of its array")
        if FileIdentity.at(self._array.path / key).mtime_ns in (0, shard.mtime_ns):
            return False
        room = np.empty(self._array.chunk_bytes, np.uint8)
        try:
            with SourceShard(self._array, coordinates) as source:
                for entry in source.index.entries[source.index.live]:
                    self._array.decode(source.file.read(int(entry["offset"]), int(entry["nbytes"])), room)
                return sum_of(source, *data_crcs(source)) not in self._known[key]
        except (ShardFormatError, StorageError):
            return False

    def _restore(self, damaged: dict[str, FileIdentity], threads: int) -> None:
        shards = self._parity.shards
        with parity_work(self._array, self._parity.folder.name) as work:
            # a copy of the damaged one, what par2 makes of it, and a copy of that
            needed = 3 * sum(shards[key].nbytes for key in damaged)
            if not self._report.dry_run and needed > (free := free_bytes(work)):
                raise StorageFullError(
                    f"no room to repair {self._array.path}", expected=f"{needed} bytes free", got=free
                )
            self._fill(work, damaged)
            # each of its files says what the set is of, and leads par2 to the others
            found = [str(work / name) for name in sorted(self._parity.files) if beneath.exists(work / name)]
            code = (
                BEYOND
                if not found
                else run_par2(
                    "v" if self._report.dry_run else "r",
                    [f"-B{work}", "--", found[0]],
                    self._throttle,
                    threads=threads,
                    most_bytes=max(shard.nbytes for shard in shards.values()),
                )
            )
            if code == BEYOND:
                raise ShardFormatError(
                    f"more is lost than the parity of {self._parity.percent}% restores: "
                    f"{', '.join(map(self._name, damaged))}",
                    hint="Nothing was changed. Put back one of these files from a copy, and run this again",
                )
            for key, identity in damaged.items():
                if not self._report.dry_run:
                    self._put_back(key, work / key, identity)
                self._report.restored.append(self._name(key))

    def _fill(self, work: Path, damaged: dict[str, FileIdentity]) -> None:
        """Gives par2 copies of its own files, where it follows no links, and of the damaged shards, as far as
        they can be read, and links to the others."""
        for name, file in self._parity.files.items():
            _copy_readable(self._parity.folder / name, work / name, file.nbytes)
        for key, shard in self._parity.shards.items():
            make_directories((work / key).parent, synced=False)
            if key in damaged:
                _copy_readable(self._array.path / key, work / key, shard.nbytes)
            else:
                beneath.make_link(work / key, self._array.path.resolve() / key)

    def _put_back(self, key: str, source: Path, identity: FileIdentity) -> None:
        """Copies what par2 has made to a file that takes the place of the damaged one. Raises
        ``StorageError`` where it is not what the parity was made of."""
        path, shard = self._array.path / key, self._parity.shards[key]
        with storage_errors("look at", path):
            like = beneath.stat(path if identity != NO_FILE else self._array.path / DOCUMENT)
        DurableFolders(self._array.path).make(path.parent)
        with WorkingFile(working_path(self._array, key), shard.nbytes, like) as working:
            with open_regular(source) as file, WriteBehind(working, 0) as out:
                for piece in iter(lambda: file.read(4 << 20), b""):
                    self._throttle.take(2 * len(piece))
                    out.append(np.frombuffer(piece, np.uint8))
            if identity != NO_FILE:
                with open_regular(path) as old:
                    working.copy_attributes(old.fileno())
            working.finish(shard.nbytes)
            found = 0
            for _, read in working.read_pieces():
                self._throttle.take(read.size)
                found = crc32c.crc32c(read.data, found)
            if found != shard.crc32c:
                raise StorageError(
                    f"{path} could not be restored: its copy is not what its parity was made of",
                    expected=f"crc32c {shard.crc32c:08x}",
                    got=f"{found:08x}",
                    hint="The shard is left as it is. Check the disk",
                )
            with storage_errors("set the time of", working.path):
                reach("parity.before_time")
                os.utime(working.path, ns=(shard.mtime_ns, shard.mtime_ns), follow_symlinks=False)
            working.replace(path, self._held(key, identity))

    @contextmanager
    def _held(self, key: str, identity: FileIdentity) -> Iterator[None]:
        """The right to replace the damaged shard. Raises ``ShardChangedError`` when it is not the one that
        was read, or went on record since."""
        array, record = self._array.path, ShardSums(self._array.path)
        with record.held(create=workspace_of(array) is not None):
            check_finished(array)
            check_not_edited(array, key)
            if FileIdentity.at(array / key) != identity or record.of(key) != self._known[key]:
                raise ShardChangedError(f"{array / key} was changed while it was repaired")
            # an edit that died may have deleted its journal unsynced: it would come back to another file
            edits = array / EDIT_FOLDER
            sync_directory(edits if beneath.is_dir(edits) else array)
            reach("parity.before_put_back")
            yield


def _copy_readable(source: Path, target: Path, nbytes: int) -> None:
    """Copies a file of about ``nbytes``, if there is one, without the pages that the disk does not give back.
    Raises ``StorageError``."""
    with storage_errors("copy", source), suppress(FileNotFoundError), open_regular(source) as old:
        reach("parity.before_copy")
        descriptor = beneath.open_file(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for offset, piece in pieces_of(old.fileno(), skip_unreadable=True):
                if offset > nbytes + _MOST_SHIFTED_BYTES:
                    break  # it may be of any length by now
                write_all(descriptor, offset, piece)
            truncate(descriptor, min(os.fstat(old.fileno()).st_size, nbytes + 2 * _MOST_SHIFTED_BYTES))
        finally:
            beneath.close(descriptor)
