"""The sealer: one thread per acquisition that does everything slow around shards, off the frame path. It and
threads that help it with a command are the only ones that sync.

It prepares the files of shard rows before they are needed, commits what workers stored (one sync for many
frames), seals (``seal``), rewrites shard rows whose files met an I/O error, writes the frame log, and grows
zarr.json behind sealed shards. Its commands are data and carried out in order. It owns the files that they
name, and answers with reports.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import image_of
from shardwright.disk.failpoints import reach
from shardwright.disk.files import free_bytes
from shardwright.disk.side_by_side import side_by_side
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    FencedError,
    OutputExistsError,
    ShardwrightError,
    StorageError,
    StorageFullError,
    StoreGoneError,
    WorkerError,
)
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.model.names import REWRITE_SUFFIX
from shardwright.shard.frame_log import BlockKind
from shardwright.shard.frame_record import record_of
from shardwright.shard.intact_mark import end_intact
from shardwright.shard.layout import chunks_of_slab
from shardwright.shard.rewrite import rewrite_shard_row
from shardwright.shard.shard_row_files import ShardRowFiles

from .commands import (
    Abandon,
    Commit,
    Committed,
    Discard,
    FinishStore,
    Grow,
    MetadataUpdated,
    NotRecorded,
    Prepare,
    Record,
    Recorded,
    RemoveStore,
    Reopen,
    Rewrite,
    Seal,
    SealerFailed,
    ShardRowPrepared,
    ShardRowReopened,
    ShardRowRewritten,
    ShardRowSealed,
    Show,
    ShowFailed,
    StoreFinished,
    UpdateMetadata,
)
from .commit_ledger import LOGGED, STAGED
from .measures import BusyClock
from .reopen import reopen_row
from .seal import make_image, name_shards, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardwright.model.write_options import WriteOrder
    from shardwright.shard.layout import SlabChunks, StoreLayout
    from shardwright.store.store_folder import StoreFolder

    from .commands import SealerCommand, SealerReport
    from .encoding import SlabEncoder

MOST_TOGETHER = 64  # shard rows that are made or sealed at once, so that no other command waits long
_FILES_AT_ONCE = 8  # of a store that goes, so that no other command waits long


class Sealer:
    """The only user of ``folder`` until ``join``. The caller of ``join`` closes the folder, since workers may
    read the staging area until then. ``report`` is called from the sealer's threads. Before ``start`` the
    owner may ``prepare`` the first files itself."""

    def __init__(
        self,
        folder: StoreFolder,
        layout: StoreLayout,
        encoders: Sequence[SlabEncoder],
        report: Callable[[SealerReport], None],
        order: WriteOrder = "arrival",
    ) -> None:
        """``order``: of the chunks in each new shard, but in a copy that grows."""
        # What no comment says otherwise belongs to the sealer's thread alone, before ``start`` to the owner.
        self.folder = folder
        # Written here and by helpers after each file, read by the watchdog: a seal of many files on a slow
        # disk takes minutes and must not look like a thread that is stuck.
        self.busy = BusyClock()
        self._layout = layout
        self._encoders = encoders
        self._report = report
        # A copy that grows has its chunks as they came: another order in the file in progress is for nothing.
        self._order: WriteOrder = "arrival" if folder.manifest.live == "append" else order
        # The files of shard rows that are neither sealed nor given up. ``prepare`` adds to it from helping
        # threads, each a key of its own. ``join`` closes what is left, for recovery: no sooner, since workers
        # write by the descriptors and addresses in these files.
        self._files: dict[int, ShardRowFiles] = {}
        # Shard rows of which readers of files lack stored slabs, with the slabs whose shards are to take
        # their names ahead of a split row. While a row is here the shape of its image stays as it is, else
        # readers would take the missing slabs for fill value.
        self._hidden_slabs: dict[int, list[SlabChunks]] = {}
        # By image: the shape that was asked for while one of its shard rows was not shown. Only the largest
        # is kept, since a shape never shrinks.
        self._grows_later: dict[int, Grow] = {}
        # Any thread puts, the sealer's takes. Commands of one shard row depend on each other, and a commit on
        # the writes before it: they are carried out in their order.
        self._commands: SimpleQueue[SealerCommand | None] = SimpleQueue()
        # Taken from the queue and not carried out: the command that ended a group, of another kind.
        self._taken: deque[SealerCommand | None] = deque()
        # Set by ``start``; ``join`` may come without it, when the acquisition could not be opened.
        self._thread: threading.Thread | None = None

    def adopt(self, files: ShardRowFiles) -> None:
        """Takes over files that recovery has opened. Before ``start``."""
        self._files[files.shard_row] = files

    def start(self) -> None:
        """Starts the thread. To be called once, after all other parts of the acquisition are made."""
        thread = threading.Thread(
            target=self._work, name=f"shardwright-sealer-{self.folder.path.name}", daemon=True
        )
        thread.start()
        self._thread = thread

    def put(self, command: SealerCommand) -> None:
        """Queues a command, to be carried out once the thread has started. From any thread."""
        self._commands.put(command)

    def stop(self) -> None:
        """Ends the thread after the queued commands, without finishing the store."""
        self._commands.put(None)

    def join(self) -> None:
        """Waits for the thread, if it was started, and closes files that are not sealed, for recovery. Only
        when no worker uses them."""
        if self._thread is not None:
            self._thread.join()
        for files in self._files.values():
            files.abandon()
        self._files.clear()

    def _work(self) -> None:
        """Carries out commands. One that fails ends the acquisition, not this thread: the owner waits for the
        reports of later commands."""
        try:
            while commands := self._take():
                with self.busy:
                    reach("sealer.before_command")
                    for report in self._execute(commands):
                        self._report(report)
        except BaseException as error:
            self._report(
                SealerFailed(ErrorText(WorkerError, f"the shard sealer's thread died: {error!r}"), dead=True)
            )
            raise

    def _take(self) -> list[SealerCommand]:
        """Returns the next commands; none at the end. It is one command, or several that follow each other
        and all seal, or all make shard rows: these wait for the disk together."""
        commands: list[SealerCommand] = []
        made: set[int] = set()
        while len(commands) < MOST_TOGETHER:
            if not self._taken:
                with suppress(Empty):
                    self._taken.append(self._commands.get(block=not commands))
            command = self._taken[0] if self._taken else None
            if command is None or (commands and type(command) is not type(commands[0])):
                break
            if isinstance(command, Prepare):
                # Of one image one row at a time: on a disk that is nearly full the first one must get the
                # room, since frames come for it first.
                if image_of(command.shard_row) in made:
                    break
                made.add(image_of(command.shard_row))
            commands.append(command)
            self._taken.popleft()
            if not isinstance(command, Prepare | Seal):
                break
        return commands

    def _execute(self, commands: list[SealerCommand]) -> Iterator[SealerReport]:
        try:
            if isinstance(commands[0], Prepare):
                self._prepare_together([each for each in commands if isinstance(each, Prepare)])
            elif isinstance(commands[0], Seal):
                reports = self._seal([each for each in commands if isinstance(each, Seal)])
                # Before shapes grow: a shape that cannot be written delays no frame, and loses no report.
                yield from reports
                for sealed in reports:
                    if sealed.error is None:
                        self._note_visible(sealed.shard_row)
            elif (report := self._do(commands[0])) is not None:
                yield report
        except Exception as error:  # noqa: BLE001  (travels in the report)
            yield SealerFailed(self._explained(error))

    def _do(self, command: SealerCommand) -> SealerReport | None:
        report: SealerReport | None = None
        match command:
            case Reopen():
                report = self._reopen(command)
            case Rewrite():
                report = self._rewrite(command)
            case Commit():
                report = self._commit(command)
            case Record():
                report = self._record(command)
            case FinishStore():
                report = self._finish(command)
            case RemoveStore():
                report = self._remove_store()
            case Show():
                report = self._show(command)
            case Grow():
                self._grow(command)
            case UpdateMetadata():
                report = self._update_metadata(command)
            case Discard():
                self._discard(command.shard_row)
            case Abandon():
                self._abandon(command.shard_row)
        return report

    # ------------------------------------------------------------------ commands

    def prepare(self, command: Prepare) -> ShardRowPrepared:
        """Prepares files in the caller's thread. Before ``start``."""
        with self.busy:
            return self._prepare(command, self._ballast_refused(command))

    def _prepare_together(self, commands: list[Prepare]) -> None:
        """Each is reported as soon as it is done: frames may wait for it. Those that found no room are tried
        once more by themselves: what another had taken meanwhile may be free again."""
        # Not side by side: there is one ballast.
        refused = [self._ballast_refused(command) for command in commands]
        full: list[int] = []

        def prepare(number: int) -> None:
            report = self._prepare(commands[number], refused[number])
            if len(commands) > 1 and report.error is not None and report.error.is_a(StorageFullError):
                full.append(number)
            else:
                self._report(report)

        side_by_side(prepare, len(commands), syncs=True)
        for number in sorted(full):
            self._report(self._prepare(commands[number], refused[number]))

    def _prepare(self, command: Prepare, refused: ErrorText | None) -> ShardRowPrepared:
        begun_ns, row = time.monotonic_ns(), command.shard_row
        try:
            if refused is not None:
                return ShardRowPrepared(row, command.request, None, refused)
            files = self._files[row] = self._create(row, spill=command.spill)
        except Exception as error:  # noqa: BLE001  (travels in the report)
            return ShardRowPrepared(row, command.request, None, self._explained(error))
        open_ns, left_bytes = time.monotonic_ns() - begun_ns, 0
        with suppress(StorageError):
            left_bytes = free_bytes(self.folder.path)
        return ShardRowPrepared(row, command.request, files, None, left_bytes, open_ns)

    def _reopen(self, command: Reopen) -> ShardRowReopened:
        try:
            self.folder.owner.may_rename()
            made = reopen_row(
                self.folder,
                self._layout.of(command.shard_row),
                command.shard_row,
                command.reload,
                lambda placement: self._create(
                    command.shard_row, spill=placement.spill is not None, reopened=True, suffix=REWRITE_SUFFIX
                ),
                self._encoders[image_of(command.shard_row)],
            )
        except Exception as error:  # noqa: BLE001  (travels in the report)
            return ShardRowReopened(command.shard_row, None, self._explained(error))
        self._files[command.shard_row] = made.files
        return ShardRowReopened(command.shard_row, made, None)

    def _rewrite(self, command: Rewrite) -> ShardRowRewritten:
        lost: np.ndarray = np.zeros(0, record_of(self.folder.spec))
        saved: set[int] = set()
        shard_row = command.shard_row
        try:
            old = self._files[shard_row]
            packed, reopened = old.journal.packed, old.journal.reopened
            self.folder.owner.may_rename()
            # The names of the old files go while these may be all that has a frame. After a crash in the
            # middle recovery must not take what it does not find for what was never acknowledged.
            end_intact(self.folder.workspace)
            # Recovery seals the rest of such a row as it is: nothing may be stored in it any more.
            if old.renamed:
                reason = f"shard row {shard_row} cannot be rewritten: some of its shards are sealed"
                raise StorageError(reason)  # noqa: TRY301
            files, saved, lost = rewrite_shard_row(
                self._layout.of(shard_row),
                old,
                command.stored_slabs,
                command.held_slabs,
                lambda: self._create(
                    shard_row,
                    # Below another root they would replace nothing, and recovery would take the old ones.
                    spill=old.placement.spill is not None,
                    packed=packed,
                    reopened=reopened,
                    suffix=REWRITE_SUFFIX,
                    keep=old,
                ),
                self.folder.owner.may_rename,
            )
            self._files[shard_row] = files
            if shard_row in self._hidden_slabs:
                self._hidden_slabs[shard_row] = []  # the owner asks again for those in the new files
            lost["status"], lost["reason"] = FrameStatus.LOST, Reason.IO_ERROR
            if lost.size:
                self._log(BlockKind.EVENTS, -1, lost)
        except Exception as error:  # noqa: BLE001  (travels in the report)
            return ShardRowRewritten(shard_row, None, saved, lost, self._explained(error))
        return ShardRowRewritten(shard_row, files, saved, lost, None)

    def _commit(self, command: Commit) -> Committed:
        failed: dict[int, ErrorText] = {}
        begun_ns = time.monotonic_ns()
        # Shard rows, then what was staged, then the log. Each key is reported by itself: one that fails
        # keeps no other frame from being durable.
        for key in sorted(command.keys, reverse=True):
            try:
                reach("sealer.before_commit")
                # A sync of a deleted file succeeds. Without this look the frames would be told durable.
                self.folder.owner.check_there()
                self._sync(key)
            except Exception as error:  # noqa: BLE001  (travels in the report)
                failed[key] = self._explained(error)
            self.busy.step()
        # A store that this one overwrites goes once a frame here is durable, and no sooner: the log alone may
        # have nothing but frames that were lost. In place a frame's record is staged and its pixels are in a
        # shard: one without the other is no frame.
        durable = set(command.keys) - {LOGGED, *failed}
        if self.folder.spec.grids.in_place:
            durable = set() if STAGED in failed else durable - {STAGED}
        if durable:
            self.folder.remove_replaced(_FILES_AT_ONCE)
        return Committed(failed, time.monotonic_ns() - begun_ns)

    def _sync(self, key: int) -> None:
        if key == LOGGED:
            self.folder.log.sync()
        elif key == STAGED:
            if self.folder.staging is not None:
                self.folder.staging.sync()
        else:
            self._files[key].sync(self.busy.step)

    def _seal(self, commands: list[Seal]) -> list[ShardRowSealed]:
        assert all(command.shard_row in self._files for command in commands), "only files that are ready"
        rows = [self._files[command.shard_row] for command in commands]
        for files in rows:
            # Before the seal, which may fail: readers then lack slabs that a shape was to cover.
            if files.is_seen_early:
                self._hidden_slabs.setdefault(files.shard_row, [])
        reports = seal(rows, self.folder, self._explained, self.busy.step)
        sealed = [report for report in reports if report.error is None]
        for report in sealed:
            del self._files[report.shard_row]
        if any(report.records is not None and report.records.size for report in sealed):
            self.folder.remove_replaced(_FILES_AT_ONCE)
        return reports

    def _show(self, command: Show) -> ShowFailed | None:
        self.folder.owner.may_rename()  # before it makes any file
        failed: dict[int, ErrorText] = {}
        visible: list[int] = []
        rows = [row for row, slabs in command.slabs.items() if self._note_hidden_slabs(row, slabs)]

        def show(number: int) -> None:
            row = rows[number]
            try:
                if self._show_row(self._files[row]):
                    visible.append(row)
            except OutputExistsError:
                pass  # a stranger's file: the seal reports it if it is still there by then
            except StorageFullError as error:
                # They get their names with the next ones: a disk that is full for a while fails no row. No
                # ballast here either, which a seal will need.
                self.folder.note_disk_error(error)
            except StorageError as error:
                failed[row] = self._explained(error)

        side_by_side(show, len(rows), syncs=True)
        for row in visible:
            self._note_visible(row)
        return ShowFailed(failed) if failed else None

    def _note_hidden_slabs(self, shard_row: int, slabs: tuple[int, ...]) -> bool:
        """Notes slabs that readers lack; returns whether there is an array in which they find them."""
        files = self._files.get(shard_row)
        if files is None:
            return False
        waiting = self._hidden_slabs.setdefault(shard_row, [])
        slab_chunks = [chunks_of_slab(self._layout.of(shard_row), slab) for slab in slabs]
        if files.live:
            files.list_stored(slab_chunks)
        else:
            waiting += slab_chunks
        try:
            make_image(self.folder, image_of(shard_row))
        except StorageError:
            return False  # made with the next ones, or when it is sealed
        return True

    def _show_row(self, files: ShardRowFiles) -> bool:
        """Returns whether readers see all that waits."""
        if files.live:
            # What readers see of a live shard is for them alone. Recovery relies on the file in progress, so
            # that an error here fails no row.
            with suppress(StorageError):
                return files.show(self.folder.owner.may_rename, self.busy.step)
            return False
        assert files.journal.layout.is_split, "else every shard has other slabs as well"
        slab_chunks = self._hidden_slabs[files.shard_row]
        numbers = sorted({file for slab in slab_chunks for file in slab.file.tolist()})
        name_shards(files, self.folder.owner.may_rename, self.busy.step, numbers)
        return True

    def _hides_rows(self, image: int) -> bool:
        return any(row in self._files and image_of(row) == image for row in self._hidden_slabs)

    def _note_visible(self, shard_row: int) -> None:
        """Notes that readers see all that was to be shown of a shard row, sealed or not, or never will."""
        self._hidden_slabs.pop(shard_row, None)
        image = image_of(shard_row)
        if not self._hides_rows(image) and (command := self._grows_later.pop(image, None)) is not None:
            self._grow(command)

    def _discard(self, shard_row: int) -> None:
        files = self._files.pop(shard_row, None)
        if files is not None:  # they could be made
            try:
                files.discard(self.folder.owner.may_rename)
            except StorageError as error:
                # What stays holds nothing, and the next row of this number, the end or recovery deletes it.
                self.folder.note_disk_error(error)
                if files.live:
                    raise  # its readers would go on seeing chunks that are lost
        self._note_visible(shard_row)

    def _abandon(self, shard_row: int) -> None:
        if (files := self._files.pop(shard_row, None)) is not None:
            files.abandon()
        self._hidden_slabs.pop(shard_row, None)
        # No shape may cover this row, which readers of files see after recovery. Not as ``_note_visible``:
        # that would let the shape grow now.
        self._grows_later.pop(image_of(shard_row), None)

    def _record(self, command: Record) -> Recorded | NotRecorded:
        try:
            self._log(BlockKind.EVENTS, -1, command.records)
        except StorageFullError as error:
            return NotRecorded(command.records, command.release, command.settled, ErrorText.of(error))
        return Recorded(command.records["sequence"].astype(np.int64), command.release, command.settled)

    def _grow(self, command: Grow) -> None:
        self.folder.owner.may_rename()  # before it makes any file
        if (earlier := self._grows_later.pop(command.image, None)) is not None:
            extents = tuple(map(max, earlier.extents, command.extents))
            command = Grow(command.image, extents)
        # An image that found no room yet has no array whose shape could grow: its row was abandoned with it.
        if self._hides_rows(command.image) or not self.folder.metadata.is_made(command.image):
            self._grows_later[command.image] = command
            return
        try:
            self.folder.ballast.spent_on(lambda: self.folder.metadata.grow(command.image, command.extents))
        except StorageError:
            # With the next shape, or at the end: no frame waits for it.
            self._grows_later[command.image] = command

    def _update_metadata(self, command: UpdateMetadata) -> MetadataUpdated:
        try:
            self.folder.ballast.spent_on(
                lambda: self.folder.metadata.update_metadata(command.image, command.attributes)
            )
        except Exception as error:  # noqa: BLE001  (travels in the report)
            return MetadataUpdated(command.request, self._explained(error))
        return MetadataUpdated(command.request, None)

    def _finish(self, command: FinishStore) -> StoreFinished:
        return self._ended_by(
            lambda: self.folder.ballast.spent_on(
                lambda: self.folder.finish(
                    command.extents, command.frames_durable, keep_workspace=command.keep_workspace
                )
            )
        )

    def _remove_store(self) -> StoreFinished:
        def remove() -> tuple[int, ...]:
            self.folder.owner.may_rename()
            self.folder.remove_store()
            return ()  # nobody expects anything of a store that is gone

        return self._ended_by(remove)

    def _ended_by(self, end: Callable[[], tuple[int, ...]]) -> StoreFinished:
        try:
            unkept = end()
        except Exception as error:  # noqa: BLE001  (travels in the report)
            return StoreFinished(self._explained(error))
        return StoreFinished(None, unkept)

    # ------------------------------------------------------------------ parts of commands

    def _explained(self, error: Exception) -> ErrorText:
        """Returns the cause of an error. If another writer has taken the store over, or it is gone, an I/O
        error is no disk error and nothing may be rewritten, and a name that is taken may have been taken by
        that writer. Any other I/O error ends the intact mark."""
        # Every error comes here, so that none forgets the mark: a sync that fails on a full disk lost frames
        # without it, after a kill and a later power cut.
        self.folder.note_disk_error(error)
        if isinstance(error, (StorageError, OutputExistsError)):
            try:
                self.folder.owner.may_rename()
            except (FencedError, StoreGoneError) as why:
                return ErrorText.of(why)
            except ShardwrightError:
                return ErrorText.of(error)
        return ErrorText.of(error, WorkerError(f"the shard sealer failed: {error!r}"))

    def _create(
        self,
        shard_row: int,
        *,
        spill: bool,
        packed: bool | None = None,
        reopened: bool = False,
        suffix: str = "",
        keep: ShardRowFiles | None = None,
    ) -> ShardRowFiles:
        folder = self.folder
        folder.owner.may_rename()  # raises if the names in the workspace belong to another writer
        return ShardRowFiles.create(
            folder.placement(spill=spill),
            self._layout.of(shard_row),
            shard_row,
            folder.io,
            folder.manifest.identity_bytes,
            folder.manifest.writer_epoch,
            record_of(folder.spec),
            packed=packed,
            reopened=reopened,
            suffix=suffix,
            live=folder.manifest.live,
            keep=keep,
            order=self._order,
            step=self.busy.step,
            may_rename=folder.owner.may_rename,
        )

    def _log(self, kind: BlockKind, shard_row: int, records: np.ndarray) -> None:
        self.folder.ballast.spent_on(lambda: self.folder.log.append(kind, shard_row, records))

    def _ballast_refused(self, command: Prepare) -> ErrorText | None:
        """Returns the reason why a shard row may not begin before the ballast is there again."""
        try:
            if not command.spill:
                self._restore_ballast()
        except Exception as error:  # noqa: BLE001  (travels in the report)
            return self._explained(error)
        return None

    def _restore_ballast(self) -> None:
        """Refills a ballast that this process or an earlier one used on a full disk, before another shard row
        begins: without it that shard row could not be sealed. Raises ``StorageFullError``, ``StorageError``,
        or ``FencedError``."""
        ballast = self.folder.ballast
        if ballast.is_there:
            return
        self.folder.owner.may_rename()  # raises if the room is another writer's to use
        if not ballast.fill():
            raise StorageFullError(
                f"no room below {self.folder.path} to reserve for sealing another shard",
                hint="Free some space on this filesystem",
            )
