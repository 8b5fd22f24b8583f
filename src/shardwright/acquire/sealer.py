"""The sealer: one thread per acquisition that does everything slow around shards, off the frame path. It and
threads that help it with a command are the only ones that sync.

It prepares the files of shard rows before they are needed, commits what workers stored (one sync for many
frames), seals (``seal``), rewrites shard rows whose files met an I/O error, writes the frame log, and grows
zarr.json behind sealed shards. Its commands are data and carried out in their order, but for seals, which
pass commands that make other rows. It owns the files that they name, and answers with reports.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import image_of
from shardwright.disk import beneath
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
from shardwright.shard.journal import JournalLayout
from shardwright.shard.layout import StoreLayout, chunks_of_slab
from shardwright.shard.rewrite import rewrite_shard_row
from shardwright.shard.shard_row_files import ShardRowFiles
from shardwright.shard.shared_journal import SharedJournal, shared_name

from .commands import (
    Abandon,
    Commit,
    Committed,
    Discard,
    FinishStore,
    Grow,
    Grown,
    ImageAdded,
    MetadataUpdated,
    MoreImages,
    NotRecorded,
    Prepare,
    Record,
    Recorded,
    RecordImage,
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
    Shown,
    StoreFinished,
    UpdateMetadata,
)
from .commit_ledger import LOGGED, STAGED
from .encoding import SlabEncoder
from .limits import check_room
from .measures import BusyClock
from .prepare import prepare
from .reopen import reopen_row
from .seal import make_images, name_shards, seal
from .together import Together

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from shardwright.model.write_options import WriteOrder
    from shardwright.shard.layout import SlabChunks
    from shardwright.store.store_folder import StoreFolder

    from .commands import SealerCommand, SealerReport

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
        shared_journal_rows: int,
        order: WriteOrder = "arrival",
    ) -> None:
        """``shared_journal_rows``: as in ``Limits``. ``order``: of the chunks in each new shard, but in a
        copy that grows."""
        # What no comment says otherwise belongs to the sealer's thread alone, before ``start`` to the owner.
        self.folder = folder
        # Written here and by helpers after each file, read by the watchdog: a seal of many files on a slow
        # disk takes minutes and must not look like a thread that is stuck.
        self.busy = BusyClock()
        # Frozen: the threads that help with a command read it without a lock. Replaced between two commands,
        # by one that has the arrays of more images.
        self._layout = layout
        # Likewise. Used to join checksums of frames that lie in a row that opens again: workers encode. The
        # owner takes them from here once it is told of more images.
        self.encoders = encoders
        # Memory of the acquisition with the last image that was recorded. Several may be asked for at once,
        # each with the room that there was before any of them. This thread's only.
        self._recorded_bytes = 0
        # Called by this thread and by helpers, in no order among these, so the receiver takes it from any
        # thread. A row that is ready is reported while its neighbours are made: frames may wait for it.
        self._report = report
        # A copy that grows has its chunks as they came: another order in the file in progress is for nothing.
        self._order: WriteOrder = "arrival" if folder.manifest.live == "append" else order
        # Shared journals so far, each of which has a number.
        self._shared_journals, self._shared_journal_rows = 0, shared_journal_rows
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
        # Shapes that have grown since the last report of them.
        self._has_grown: dict[int, tuple[int, ...]] = {}
        # Any thread puts, the sealer's takes. Commands of one shard row depend on each other, and a commit on
        # the writes before it: ``_take`` says which may pass another.
        self._commands: SimpleQueue[SealerCommand | None] = SimpleQueue()
        # Taken from the queue and not carried out, in the order in which they are to be.
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
        """Returns the next commands; none at the end. It is one command, or several that all seal, make shard
        rows, or grow shapes: these wait for the disk together. Seals come ahead of commands that make other
        rows: where images take turns these commands do so, too, and each would wait by itself. Not the other
        way round: a seal gives room back, which a new row may need."""
        with suppress(Empty):
            while True:
                self._taken.append(self._commands.get(block=not self._taken))
        if (first := self._taken.popleft()) is None:
            return []
        commands = [first]
        passed_over: deque[SealerCommand | None] = deque()
        made = {image_of(first.shard_row)} if isinstance(first, Prepare) else set()
        while isinstance(first, Prepare | Seal | Grow) and self._taken and len(commands) < MOST_TOGETHER:
            command = self._taken[0]
            if isinstance(first, Seal) and isinstance(command, Prepare):
                passed_over.append(command)
            elif type(command) is not type(first):
                break
            elif isinstance(command, Prepare) and image_of(command.shard_row) in made:
                # Of one image one row at a time: on a disk that is nearly full the first one must get the
                # room, since frames come for it first.
                passed_over.append(command)
            else:
                commands.append(command)
                if isinstance(command, Prepare):
                    made.add(image_of(command.shard_row))
            self._taken.popleft()
        self._taken.extendleft(reversed(passed_over))
        return commands

    def _execute(self, commands: list[SealerCommand]) -> Iterator[SealerReport]:
        try:
            if isinstance(commands[0], Prepare):
                yield from self._prepare_together([each for each in commands if isinstance(each, Prepare)])
            elif isinstance(commands[0], Seal):
                reports = self._seal([each for each in commands if isinstance(each, Seal)])
                # Before shapes grow: a shape that cannot be written delays no frame, and loses no report.
                yield from reports
                for sealed in reports:
                    if sealed.error is None:
                        self._note_visible(sealed.shard_row)
                yield from self._grown(0)
            elif isinstance(commands[0], Grow):
                self._grow([each for each in commands if isinstance(each, Grow)])
                yield from self._grown(len(commands))
            elif isinstance(commands[0], Show):
                yield self._show(commands[0])
                yield from self._grown(0)
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
            case UpdateMetadata():
                report = self._update_metadata(command)
            case RecordImage():
                report = self._record_image(command)
            case Discard():
                self._discard(command.shard_row)
            case Abandon():
                self._abandon(command.shard_row)
        return report

    # ------------------------------------------------------------------ commands

    def prepare(self, command: Prepare) -> ShardRowPrepared:
        """Prepares files in the caller's thread. Before ``start``."""
        with self.busy:
            (report,) = self._prepare([command])
        return report

    def _prepare_together(self, commands: list[Prepare]) -> list[ShardRowPrepared]:
        """Those that found no room are tried once more by themselves: what another had taken meanwhile may be
        free again."""
        reports = self._prepare(commands)
        if len(commands) == 1:
            return reports
        return [
            report
            if report.error is None or not report.error.is_a(StorageFullError)
            else self._prepare([command])[0]
            for command, report in zip(commands, reports, strict=True)
        ]

    def _prepare(self, commands: list[Prepare]) -> list[ShardRowPrepared]:
        begun_ns = time.monotonic_ns()
        by_row = {command.shard_row: command for command in commands}
        here = [row for row, each in by_row.items() if not each.spill]
        why = self._ballast_refused() if here else None  # one look: there is one ballast
        refused = {} if why is None else dict.fromkeys(here, why)
        going = [row for row in by_row if row not in refused]
        alike = [row for row in going if row in here and self._layout.of(row).grid.has_one_slab(row)]
        shared = self._shared_journal(alike)
        leftovers: frozenset[str] | None = None
        if shared is not None:  # one look for all its rows
            with suppress(OSError):
                leftovers = frozenset(beneath.names_in(shared.path.parent))

        def create(row: int) -> ShardRowFiles:
            if shared is not None and row in alike:
                return self._create(row, spill=False, shared=shared, leftovers=leftovers)
            return self._create(row, spill=by_row[row].spill)

        found = prepare(
            going,
            create,
            self._explained,
            self.folder.owner.may_rename,
            shared,
        )
        open_ns, left_bytes = time.monotonic_ns() - begun_ns, 0
        with suppress(StorageError):
            left_bytes = free_bytes(self.folder.path)
        reports = []
        for row, command in by_row.items():
            files = found.get(row) or refused[row]
            if isinstance(files, ErrorText):
                reports.append(ShardRowPrepared(row, command.request, None, files))
            else:
                self._files[row] = files
                reports.append(
                    ShardRowPrepared(row, command.request, files, None, left_bytes, open_ns // len(found))
                )
        return reports

    def _reopen(self, command: Reopen) -> ShardRowReopened:
        try:
            self.folder.owner.may_rename()
            made = reopen_row(
                self.folder,
                self._layout.of(command.shard_row),
                command.shard_row,
                command.reload,
                lambda placement: self._create_alone(
                    command.shard_row, spill=placement.spill is not None, reopened=True, suffix=REWRITE_SUFFIX
                ),
                self.encoders[image_of(command.shard_row)],
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
                lambda: self._create_alone(
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
        begun_ns = time.monotonic_ns()
        # Shard rows, then what was staged, then the log. Each key is reported by itself: one that fails
        # keeps no other frame from being durable.
        keys = sorted(command.keys, reverse=True)
        rows = Together([self._files[key] for key in keys if key >= 0], self._explained)
        # A sync of a deleted file succeeds. Without this look the frames would be told durable.
        rows.at_once(self._look_before_commit)
        rows.sync_all(self.busy.step)
        failed = rows.failed
        for key in (key for key in keys if key < 0):
            try:
                self._look_before_commit()
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

    def _look_before_commit(self) -> None:
        reach("sealer.before_commit")
        self.folder.owner.check_there()

    def _sync(self, key: int) -> None:
        if key == LOGGED:
            self.folder.log.sync()
        elif self.folder.staging is not None:
            self.folder.staging.sync()

    def _seal(self, commands: list[Seal]) -> list[ShardRowSealed]:
        assert all(command.shard_row in self._files for command in commands), "only files that are ready"
        rows = [self._files[command.shard_row] for command in commands]
        for files in rows:
            # Before the seal, which may fail: readers then lack slabs that a shape was to cover.
            if files.is_seen_early or self.folder.manifest.live != "none":
                self._hidden_slabs.setdefault(files.shard_row, [])
        reports = seal(rows, self.folder, self._explained, self.busy.step)
        sealed = [report for report in reports if report.error is None]
        for report in sealed:
            del self._files[report.shard_row]
        if any(report.records is not None and report.records.size for report in sealed):
            self.folder.remove_replaced(_FILES_AT_ONCE)
        return reports

    def _show(self, command: Show) -> Shown:
        self.folder.owner.may_rename()  # before it makes any file
        rows = [files for row in command.slabs if (files := self._files.get(row)) is not None]
        for files in rows:
            self._note_hidden_slabs(files, command.slabs[files.shard_row])
        # One without an array, in which readers find it, is shown with the next ones, or when it is sealed.
        made = Together(rows, self._explained)
        made.in_one(lambda rows: make_images(self.folder, {image_of(files.shard_row) for files in rows}))
        live = [files for files in made.going if files.live]
        visible: list[int] = []

        def show(number: int) -> None:
            # What readers see of a live shard is for them alone. Recovery relies on the file in progress, so
            # that an error here fails no row.
            with suppress(StorageError):
                if live[number].show(self.folder.owner.may_rename, self.busy.step):
                    visible.append(live[number].shard_row)

        side_by_side(show, len(live), syncs=True)
        # No ballast here, which a seal will need.
        whole = Together([files for files in made.going if not files.live], self._explained)
        numbers = {files.shard_row: self._files_of_hidden_slabs(files) for files in whole.going}
        name_shards(whole, self.folder.owner.may_rename, self.busy.step, numbers)
        shown: list[int] = []
        for row in (*visible, *(files.shard_row for files in whole.going)):
            shown += (slab.slab for slab in self._hidden_slabs.get(row, ()))
            self._note_visible(row)
        # With a stranger's file the seal reports it, if it is still there by then. On a disk that is full for
        # a while they get their names with the next ones.
        failed = {
            row: error
            for row, error in whole.failed.items()
            if not error.is_a(OutputExistsError) and not error.is_a(StorageFullError)
        }
        return Shown(tuple(shown), failed)

    def _files_of_hidden_slabs(self, files: ShardRowFiles) -> list[int]:
        layout = files.journal.layout
        assert layout.is_split or layout.slabs == 1, "else every shard has other slabs as well"
        slab_chunks = self._hidden_slabs[files.shard_row]
        return sorted({file for slab in slab_chunks for file in slab.file.tolist()})

    def _note_hidden_slabs(self, files: ShardRowFiles, slabs: tuple[int, ...]) -> None:
        """Notes slabs that readers lack."""
        shard_row = files.shard_row
        slab_chunks = [chunks_of_slab(self._layout.of(shard_row), slab) for slab in slabs]
        self._hidden_slabs.setdefault(shard_row, []).extend(slab_chunks)
        if files.live:
            files.list_stored(slab_chunks)

    def _hides_rows(self, image: int) -> bool:
        return any(row in self._files and image_of(row) == image for row in self._hidden_slabs)

    def _note_visible(self, shard_row: int) -> None:
        """Notes that readers see all that was to be shown of a shard row, sealed or not, or never will."""
        self._hidden_slabs.pop(shard_row, None)
        image = image_of(shard_row)
        if not self._hides_rows(image) and (command := self._grows_later.pop(image, None)) is not None:
            self._grow([command])

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

    def _grow(self, commands: Iterable[Grow]) -> None:
        self.folder.owner.may_rename()  # before it makes any file
        asked: dict[int, tuple[int, ...]] = {}
        for command in commands:
            image, extents = command.image, command.extents
            if (earlier := self._grows_later.pop(image, None)) is not None:
                extents = tuple(map(max, earlier.extents, extents))
            # An image that found no room yet has no array whose shape could grow: its row was abandoned with
            # it.
            if self._hides_rows(image) or not self.folder.metadata.is_made(image):
                self._grows_later[image] = Grow(image, extents)
            else:
                asked[image] = tuple(map(max, asked.get(image, extents), extents))
        try:
            self.folder.ballast.spent_on(lambda: self.folder.metadata.grow(asked))
            self._has_grown.update(asked)
        except StorageError:
            # With the next shape, or at the end: no frame waits for it.
            self._grows_later.update((image, Grow(image, extents)) for image, extents in asked.items())

    def _grown(self, commands: int) -> Iterator[Grown]:
        """Yields the report of shapes that have grown, and of so many commands."""
        if self._has_grown or commands:
            metadata, images = self.folder.metadata, self._has_grown
            self._has_grown = {}
            yield Grown({image: metadata.extents_of(image) for image in images}, commands)

    def _update_metadata(self, command: UpdateMetadata) -> MetadataUpdated:
        try:
            self.folder.ballast.spent_on(
                lambda: self.folder.metadata.update_metadata(command.image, command.attributes)
            )
        except Exception as error:  # noqa: BLE001  (travels in the report)
            return MetadataUpdated(command.request, self._explained(error))
        return MetadataUpdated(command.request, None)

    def _record_image(self, command: RecordImage) -> ImageAdded:
        """Records an image before any frame of it can come: its owner knows it from the report on."""
        folder, images = self.folder, None
        try:
            spec = folder.with_image(command.image)
            if spec is not folder.spec:
                samples = folder.metadata.samples
                more_bytes = command.limits.check_more_images(folder.spec, spec)
                more_bytes += max(0, samples.bytes_with(spec) - samples.memory_bytes)
                asked_bytes = command.limits.memory_bytes  # without images that were recorded since
                check_room(more_bytes, command.room_bytes - max(0, self._recorded_bytes - asked_bytes))
                encoders = SlabEncoder.of_more_images(self.encoders, folder.spec, spec)
                folder.ballast.spent_on(lambda: folder.record_images(spec))
                self._recorded_bytes = max(self._recorded_bytes, asked_bytes) + more_bytes
                self.encoders = encoders
                self._layout = StoreLayout(tuple(encoder.layout for encoder in encoders), spec.grids)
                images = MoreImages(spec, self._layout, more_bytes)
        except Exception as error:  # noqa: BLE001  (travels in the report)
            return ImageAdded(command.request, None, self._explained(error))
        return ImageAdded(command.request, images, None)

    def _finish(self, command: FinishStore) -> StoreFinished:
        return self._ended_by(
            lambda: self.folder.ballast.spent_on(
                lambda: self.folder.finish(
                    command.extents,
                    command.frames_durable,
                    keep_workspace=command.keep_workspace,
                    counts=command.counts,
                )
            )
        )

    def _remove_store(self) -> StoreFinished:
        def remove() -> None:
            self.folder.owner.may_rename()
            self.folder.remove_store()

        return self._ended_by(remove)

    def _ended_by(self, end: Callable[[], None]) -> StoreFinished:
        try:
            end()
        except Exception as error:  # noqa: BLE001  (travels in the report)
            return StoreFinished(self._explained(error))
        return StoreFinished(None)

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
        shared: SharedJournal | None = None,
        leftovers: Container[str] | None = None,
    ) -> ShardRowFiles:
        """Makes files for a shard row, of a writer that has just looked at the owner."""
        folder = self.folder
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
            live=self._layout.of(shard_row).live(folder.manifest.live),
            keep=keep,
            order=self._order,
            step=self.busy.step,
            may_rename=folder.owner.may_rename,
            shared=shared,
            leftovers=leftovers,
        )

    def _shared_journal(self, rows: list[int]) -> SharedJournal | None:
        """Returns a journal for rows, which is not made yet; None where each has its own."""
        manifest = self.folder.manifest
        if not 1 < len(rows) <= manifest.journal_rows:
            return None
        # An image that nobody visits for a while keeps a file of 64 rows. The room of those that have ended
        # could be punched out, but a reader that has the file open would take their slabs for unwritten.
        journals = (files.journal for files in self._files.values())
        there = {journal.path: max(1, journal.shared_by) for journal in journals}
        if sum(there.values()) + len(rows) > self._shared_journal_rows:
            return None
        self._shared_journals += 1
        record, placement = record_of(self.folder.spec), self.folder.placement(spill=False)
        path = placement.files / shared_name(manifest.writer_epoch, self._shared_journals)
        tables = [JournalLayout.of(self._layout.of(row), row, record) for row in rows]
        return SharedJournal.plan(path, tables, manifest.identity_bytes, manifest.writer_epoch)

    def _create_alone(self, shard_row: int, **how: Any) -> ShardRowFiles:
        self.folder.owner.may_rename()  # raises if the names in the workspace belong to another writer
        files = self._create(shard_row, **how)
        files.begin_alone(self.folder.owner.may_rename)
        return files

    def _log(self, kind: BlockKind, shard_row: int, records: np.ndarray) -> None:
        self.folder.ballast.spent_on(lambda: self.folder.log.append(kind, shard_row, records))

    def _ballast_refused(self) -> ErrorText | None:
        """Returns the reason why no shard row may begin here before the ballast is there again."""
        try:
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
