"""Shards restored from their parity (``shard.parity_set``), and the store verified: ``shardwright repair``,
and the scrubbing of the daemon.

    each shard of a set is read: as it was when the parity was made?
        all are                       nothing is to be done
        its record differs            the set is stale: never applied
        it decodes, and was written
        to since                      another program has changed it: left as it is, as is its row
        any other, or none            damaged
    damaged ones ──▶ par2 in a folder of the work folder ──▶ copied, synced, read back, compared
    ──▶ right to replace shards: still the damaged ones? renamed over them ──▶ the whole store is verified

par2 never sees a name of the store that it could write to: in its folder a sound shard is a symbolic link.
All shards of a row are restored, or none: where more is lost than there is parity, nothing changes.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    NO_FILE,
    DurableFolders,
    FileIdentity,
    make_directories,
    open_regular,
    pieces_of,
    storage_errors,
    truncate,
    write_all,
)
from shardwright.disk.read_file import ReadFile
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
from shardwright.shard.parity_set import Content, ParitySet, parity_folders
from shardwright.shard.shard_sums import ShardSums

from .pack_shard import may_replace
from .par2 import run_par2
from .shard_parity import decode_all, parity_work

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
        folders = parity_folders(array.path)
        report.rows += len(folders)
        if not folders or dry_run:
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
    report.problems = list(map(asdict, found.problems))
    report.warnings = list(map(asdict, found.warnings))
    return report


class _RowRepair:
    """The repair of one row. The caller holds the lock of the array."""

    def __init__(self, array: StoredArray, folder: Path, throttle: Throttle) -> None:
        """Raises ``ShardFormatError`` for parity that must not be used, ``StorageError``."""
        self._array, self._throttle = array, throttle
        self._record = ShardSums(array.path)
        self._known = self._record.read()
        self._parity = ParitySet.read(folder, folder.name, self._known)

    def run(self) -> list[Path]:
        """Returns the shards that were restored. Raises ``ShardwrightError``."""
        damaged: dict[str, FileIdentity] = {}
        for key, content in self._parity.shards.items():
            identity = FileIdentity.at(self._array.path / key)
            if not self._is_as(self._array.path / key, content):
                self._check_not_changed(key, identity)
                damaged[key] = identity
        if damaged:
            self._restore(damaged)
        return [self._array.path / key for key in damaged]

    def _is_as(self, path: Path, content: Content) -> bool:
        try:
            with storage_errors("open", path), closing(ReadFile.open(path)) as file:
                return file.nbytes == content.nbytes and Content.of(file, self._throttle.take) == content
        except StorageError as error:
            if isinstance(error, LinkError) or says_nothing(error):
                raise
            return False  # there is none, or it cannot be read: a bad sector

    def _check_not_changed(self, key: str, identity: FileIdentity) -> None:
        """Raises ``ShardFormatError`` for a shard that is sound in itself, and was written to. Bytes that
        decay change no time."""
        coordinates = self._array.coordinates_of(key)
        if coordinates is None:
            raise ShardFormatError(f"{self._parity.folder} is of {key!r}, which is no shard of its array")
        if identity.mtime_ns < self._parity.made_ns:
            return
        try:
            with SourceShard(self._array, coordinates) as source:
                decode_all(source)
        except ShardFormatError:
            return
        except StorageError as error:
            if says_nothing(error):
                raise
            return
        raise ShardFormatError(
            f"{self._array.path / key} was changed by another program after its parity was made",
            hint="It is left as it is, with its row. To have the older one, delete it first",
        )

    def _restore(self, damaged: dict[str, FileIdentity]) -> None:
        parity = self._parity
        with parity_work(self._array, parity.folder.name) as work:
            # copies, without the pages that the disk does not give back, at which par2 would end
            for name in parity.names:
                _copy_readable(parity.folder / name, work / name, None)
            for key, content in parity.shards.items():
                make_directories((work / key).parent, synced=False)
                if key in damaged:
                    _copy_readable(self._array.path / key, work / key, content.nbytes)
                else:
                    beneath.make_link(work / key, self._array.path.resolve() / key)
            is_restored = run_par2(
                "r",
                [f"-B{work}", "--", *(str(work / name) for name in parity.names)],
                work,
                self._throttle,
                threads=1,
                most_bytes=sum(parity.shards[key].nbytes for key in damaged),
            )
            if not is_restored:
                raise ShardFormatError(
                    f"more is lost than {parity.blocks} blocks of parity restore: {', '.join(damaged)}",
                    hint="Nothing was changed. Put back one of these files from a copy, and run this again",
                )
            for key, identity in damaged.items():
                self._put_back(key, work / key, identity)

    def _put_back(self, key: str, source: Path, identity: FileIdentity) -> None:
        """Copies what par2 has made to a file that takes the place of the damaged one. Raises
        ``StorageError`` where it is not what the parity was made of."""
        path, content = self._array.path / key, self._parity.shards[key]
        with storage_errors("look at", path):
            like = beneath.stat(path if identity != NO_FILE else self._array.path / DOCUMENT)
        DurableFolders(self._array.path).make(path.parent)
        with WorkingFile(working_path(self._array, key), content.nbytes, like) as working:
            with open_regular(source) as file, WriteBehind(working, 0) as out:
                for piece in iter(lambda: file.read(4 << 20), b""):
                    self._throttle.take(3 * len(piece))  # read, written, read back
                    out.append(np.frombuffer(piece, np.uint8))
            if identity != NO_FILE:
                with open_regular(path) as old:
                    working.copy_attributes(old.fileno())
            working.finish(content.nbytes)
            found = hashlib.md5(usedforsecurity=False)
            for _, read in working.read_pieces():
                found.update(read)
            if found.digest() != content.md5:
                raise StorageError(
                    f"{path} could not be restored: its copy is not what its parity was made of",
                    hint="The shard is left as it is. Check the disk",
                )
            with storage_errors("set the time of", working.path):
                reach("parity.before_time")
                before_ns = self._parity.made_ns - 1  # nobody has written to it since
                os.utime(working.path, ns=(before_ns, before_ns), follow_symlinks=False)
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


def _copy_readable(source: Path, target: Path, nbytes: int | None) -> None:
    """Copies the first ``nbytes`` (None: all) of a file, if there is one, without the pages that cannot be
    read. Raises ``StorageError``."""
    with storage_errors("copy", source), suppress(FileNotFoundError), open_regular(source) as old:
        reach("parity.before_copy")
        size = os.fstat(old.fileno()).st_size
        nbytes = size if nbytes is None else min(size, nbytes)
        descriptor = beneath.open_file(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for offset, piece in pieces_of(old.fileno(), skip_unreadable=True):
                if offset >= nbytes:
                    break
                write_all(descriptor, offset, piece[: nbytes - offset])
            truncate(descriptor, nbytes)
        finally:
            beneath.close(descriptor)
