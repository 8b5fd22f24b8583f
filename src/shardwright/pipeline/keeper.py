"""The shard keeper: one thread per acquisition that does everything slow around shards, off the frame path. The only one that ever syncs.

It prepares groups of shards before they are needed, commits what workers stored (one sync for many frames), seals, rewrites groups whose files met
an I/O error, keeps the frame log, and grows zarr.json behind sealed shards. Commands come from the acquisition's thread and are done in order;
every one of them answers with a report.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import FencedError, ShardwrightError, StorageError, StorageFullError, StoreGoneError, WorkerError
from shardwright.model.fates import Fate, Reason
from shardwright.model.promise import Promise
from shardwright.shard.frame_log import BlockKind
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.group_files import REWRITE_SUFFIX, GroupFiles
from shardwright.shard.rewrite import rewrite_group
from shardwright.storage.failpoints import reach

from .commit_ledger import LOGGED, STAGED
from .evidence import end_intact
from .keeper_reports import Committed, GroupPrepared, GroupReopened, GroupRewritten, GroupSealed, KeeperFailed, NotRecorded, Recorded, StoreFinished
from .measures import BusyClock
from .reopen import reopen_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.shard.layout import ArrayLayout

    from .keeper_reports import KeeperReport
    from .reopen import ReopenedRow, TakingBack
    from .store_folder import StoreFolder


T = TypeVar("T")


class ShardKeeper:
    """The only one at ``folder`` until ``join``; whoever joined closes it, since workers may read the staging area till then. Reports go to
    ``report`` from the keeper's thread."""

    def __init__(self, folder: StoreFolder, layout: ArrayLayout, report: Callable[[KeeperReport], None]) -> None:
        self.folder = folder
        self.busy = BusyClock()
        self._layout = layout
        self._report = report
        self._ballast_given = not folder.ballast.path.exists()  # by the process before this one, perhaps
        self._promises: list[Promise[GroupFiles]] = []
        self._promises_lock = threading.Lock()  # against the thread's death only
        self._dead: ErrorText | None = None
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"shardwright-keeper-{folder.path.name}", daemon=True)

    def start(self) -> None:
        """Once, when everything else that an acquisition is made of is there."""
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    # ------------------------------------------------------------------ commands

    def prepare(self, group: int, *, spill: bool = False) -> Promise[GroupFiles]:
        """Preallocate the files of a group; the promise fails with ``StorageFullError`` or ``StorageError``."""
        promise = self._promise()

        def run() -> None:
            free_bytes, open_ns, begun_ns = 0, None, time.monotonic_ns()
            if promise.done():
                return
            try:
                if not spill:
                    self._restore_ballast()
                files = self._create(group, spill=spill)
                open_ns = time.monotonic_ns() - begun_ns
                free_bytes = self.folder.free_bytes()
            except Exception as error:  # noqa: BLE001  (travels in the promise)
                promise.fail(self._explained(error))
            else:
                promise.keep(files)
            self._report(GroupPrepared(group, free_bytes, open_ns))

        self._commands.put(run)
        return promise

    def reopen(self, group: int, taking: TakingBack) -> Promise[GroupFiles]:
        """Make files that go on with a sealed group; reports ``GroupReopened``. The promise fails with ``ShardFormatError`` when its
        shards cannot be read, ``StorageFullError`` or ``StorageError``."""
        promise = self._promise()

        def run() -> None:
            made: ReopenedRow | None = None
            if promise.done():
                return
            try:
                self.folder.may_rename()
                made = reopen_row(
                    self.folder,
                    self._layout,
                    group,
                    taking,
                    lambda placement: self._create(group, spill=placement.spill is not None, reopened=True, suffix=REWRITE_SUFFIX),
                )
            except Exception as error:  # noqa: BLE001  (told in the promise)
                promise.fail(self._explained(error))
            else:
                promise.keep(made.files)
            self._report(GroupReopened(group, made))

        self._commands.put(run)
        return promise

    def rewrite(self, group: int, old: GroupFiles, stored_slabs: set[int], held_slabs: set[int], *, spill: bool) -> Promise[GroupFiles]:
        """Copy what can be read back of the stored slabs of a group to new files; reports ``GroupRewritten``. ``held_slabs`` cannot be lost."""
        promise = self._promise()

        def run() -> None:
            lost: np.ndarray = np.zeros(0, record_dtype(len(self.folder.spec.frame_fields)))
            saved: set[int] = set()
            error: ErrorText | None = None
            try:
                self.folder.may_rename()
                end_intact(self.folder.workspace)
                if old.renamed:
                    raise StorageError(f"group {group} cannot be rewritten: some of its shards are sealed")  # noqa: TRY301
                files, saved, lost = rewrite_group(
                    self._layout,
                    old,
                    stored_slabs,
                    held_slabs,
                    lambda: self._create(group, spill=spill, packed=old.journal.packed, reopened=old.journal.reopened, suffix=REWRITE_SUFFIX),
                )
                lost["fate"], lost["reason"] = Fate.LOST, Reason.IO_ERROR
                if lost.size:
                    self._log(BlockKind.EVENTS, -1, lost)
                promise.keep(files)
            except Exception as failure:  # noqa: BLE001  (travels in the report)
                error = self._explained(failure)
                promise.fail(error)
            self._report(GroupRewritten(group, saved, lost, error))

        self._commands.put(run)
        return promise

    def commit(self, groups: dict[int, Promise[GroupFiles]], keys: set[int]) -> None:
        """Sync the files of ``groups``, and the staging area and the frame log where ``keys`` names them; reports ``Committed``."""

        def run() -> None:
            failed: dict[int, ErrorText] = {}
            begun_ns = time.monotonic_ns()
            staging = self.folder.staging
            places: dict[int, Callable[[], None]] = {key: partial(files.result().sync, self.busy.step) for key, files in groups.items()}
            if STAGED in keys and staging is not None:
                places[STAGED] = staging.sync
            if LOGGED in keys:
                places[LOGGED] = self.folder.log.sync
            for key, sync in places.items():
                try:
                    reach("keeper.before_commit")
                    self.folder.check_there()  # what is synced in a deleted file is not durable
                    sync()
                except Exception as error:  # noqa: BLE001  (travels in the report)
                    failed[key] = self._explained(error, in_sync=True)
                self.busy.step()
            self._report(Committed(failed, time.monotonic_ns() - begun_ns))

        self._commands.put(run)

    def seal(self, group: int, files: Promise[GroupFiles]) -> None:
        """Seal the files of a group, then let the frame log have its frames; reports ``GroupSealed``."""

        def run() -> None:
            shards, renamed, error, records = 0, False, None, None
            begun_ns = time.monotonic_ns()
            try:
                held = files.result()
                try:
                    sealed = self._with_ballast(lambda: held.seal(self.folder.may_rename, self.busy.step))
                    records = held.frame_records()
                    self._log(BlockKind.GROUP, group, records)
                    self.folder.log.sync()
                    self.folder.may_rename()
                    held.delete_journal()
                    shards = sum(s.path is not None for s in sealed)
                finally:
                    renamed = held.renamed
            except Exception as failure:  # noqa: BLE001  (travels in the report)
                error = self._explained(failure)
            self._report(GroupSealed(group, shards, renamed, error, time.monotonic_ns() - begun_ns, records))

        self._commands.put(run)

    def discard(self, files: Promise[GroupFiles]) -> None:
        """Delete prepared files that no frame came for; if another writer has taken over, they are its own now."""

        def run() -> None:
            if files.failure() is not None:
                return
            try:
                self.folder.may_rename()
            except (FencedError, StoreGoneError):
                files.result().abandon()
                raise
            files.result().discard()

        self._commands.put(run)

    def abandon(self, files: Promise[GroupFiles]) -> None:
        """Close files that failed, leaving them for recovery."""

        def run() -> None:
            if files.failure() is None:
                files.result().abandon()

        self._commands.put(run)

    def record(self, records: np.ndarray, *, release: bool, settled: bool) -> None:
        """Keep the records of frames that are not stored; reports ``Recorded``."""

        def run() -> None:
            try:
                self._log(BlockKind.EVENTS, -1, records)
            except StorageFullError as error:
                self._report(NotRecorded(records, release, settled, ErrorText.of(error)))
            else:
                self._report(Recorded(records["sequence"].astype(np.int64), release, settled))

        self._commands.put(run)

    def grow(self, extent: int) -> None:
        """Let zarr.json cover ``extent`` elements. If that fails, readers see them later: after the next seal, or at the end."""

        def run() -> None:
            with suppress(StorageError):
                self._with_ballast(lambda: self.folder.grow(extent))

        self._commands.put(run)

    def finish(self, extent: int, *, keep_workspace: bool) -> None:
        """End the store, report ``StoreFinished``. After a ``StorageFullError`` it may be asked again; otherwise ``stop`` comes next."""

        def run() -> None:
            error: ErrorText | None = None
            try:
                self._with_ballast(lambda: self.folder.finish(extent, keep_workspace=keep_workspace))
            except Exception as failure:  # noqa: BLE001  (travels in the report)
                error = self._explained(failure)
            self._report(StoreFinished(error))

        self._commands.put(run)

    def remove_store(self) -> None:
        """End a store that never got a frame, and report ``StoreFinished``; ``stop`` comes next."""

        def run() -> None:
            error: ErrorText | None = None
            try:
                self.folder.may_rename()
                self.folder.remove_store()
            except Exception as failure:  # noqa: BLE001  (travels in the report)
                error = self._explained(failure)
            self._report(StoreFinished(error))

        self._commands.put(run)

    def stop(self) -> None:
        """End the thread after what is queued, without finishing the store."""
        self._commands.put(None)

    def join(self) -> None:
        """Also of a thread that could not be started."""
        if self._thread.ident is not None:
            self._thread.join()

    # ------------------------------------------------------------------ the thread

    def _promise(self) -> Promise[GroupFiles]:
        """A promise that is resolved even if this thread dies: somebody may wait for it."""
        promise: Promise[GroupFiles] = Promise()
        with self._promises_lock:
            if self._dead is not None:
                promise.fail(self._dead)
            self._promises = [promise for promise in self._promises if not promise.done()]
            self._promises.append(promise)
        return promise

    def _break_promises(self, why: ErrorText) -> None:
        with self._promises_lock:
            self._dead = why
            for promise in self._promises:
                promise.fail(why)

    def _work(self) -> None:
        """A command that fails ends the acquisition, not this thread: the owner waits for the reports of later commands."""
        try:
            while (command := self._commands.get()) is not None:
                with self.busy:
                    reach("keeper.before_command")
                    try:
                        command()
                    except Exception as error:  # noqa: BLE001  (travels in the report)
                        self._report(KeeperFailed(self._explained(error)))
        except BaseException as error:
            died = ErrorText(WorkerError, f"the shard keeper's thread died: {error!r}")
            self._break_promises(died)
            self._report(KeeperFailed(died, dead=True))
            raise

    def _explained(self, error: Exception, *, in_sync: bool = False) -> ErrorText:
        """An I/O error because another writer has taken the store over, or it is gone, is no disk error: nothing may be
        rewritten then. Any other leaves the store no longer intact."""
        self.folder.note_disk_error(error, in_sync=in_sync)
        if isinstance(error, StorageError):
            try:
                self.folder.may_rename()
            except (FencedError, StoreGoneError) as why:
                return ErrorText.of(why)
            except ShardwrightError:
                return ErrorText.of(error)
        return ErrorText.of(error, WorkerError(f"the shard keeper failed: {error!r}"))

    def _create(self, group: int, *, spill: bool, packed: bool | None = None, reopened: bool = False, suffix: str = "") -> GroupFiles:
        folder = self.folder
        folder.may_rename()  # the names in the workspace are another's then
        return GroupFiles.create(
            folder.placement(spill=spill),
            self._layout,
            group,
            folder.io,
            folder.manifest.identity_bytes,
            folder.manifest.writer_epoch,
            record_dtype(len(folder.spec.frame_fields)).itemsize,
            packed=packed,
            reopened=reopened,
            suffix=suffix,
            step=self.busy.step,
        )

    def _log(self, kind: BlockKind, group: int, records: np.ndarray) -> None:
        self._with_ballast(lambda: self.folder.log.append(kind, group, records))

    def _with_ballast(self, work: Callable[[], T]) -> T:
        """Do what must not fail for want of room: if it does, give the ballast back and do it once more."""
        try:
            return work()
        except StorageFullError:
            if not self.folder.ballast.release():
                raise
            self._ballast_given = True
            return work()

    def _restore_ballast(self) -> None:
        """What sealing took on a full disk is held back again before another group begins: it would have nothing to be sealed with."""
        if self._ballast_given:
            if not self.folder.ballast.fill():
                raise StorageFullError(
                    f"no room below {self.folder.path} to hold back for sealing another shard", hint="Free some space on this filesystem"
                )
            self._ballast_given = False
