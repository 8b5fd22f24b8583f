"""The shard sealer's commands on the simulated disk, step by step, as ``acquire.sealer`` carries them out;
and whether each is legal."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np

from shardwright.acquire.assembly import IN_PLACE
from shardwright.acquire.closed_shard_rows import split_by_slab
from shardwright.acquire.commands import (
    Abandon,
    Commit,
    Committed,
    Discard,
    FinishStore,
    Grow,
    NotRecorded,
    NotShown,
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
    StoreFinished,
)
from shardwright.acquire.commit_ledger import LOGGED, STAGED
from shardwright.acquire.reopen import ReopenedShardRow
from shardwright.array.grid import image_of
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    FencedError,
    OutputExistsError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StorageFullError,
    WorkerError,
)
from shardwright.model.frame_status import FrameStatus, Reason

from .disk import ABSENT, REWRITE, Block, Place, final
from .oracle import ViolationError
from .shard_row import (
    NO_RECORDS,
    Files,
    copy_chunk,
    discard_rewrite,
    files_of_slab,
    make_files,
    note_slab,
    rewrite_files,
    seal_files,
    sealed_content,
    sync_files,
    take_names,
)
from .story import FILL
from .workers import NOT_JOINED, STAGING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from shardwright.acquire.commands import SealerCommand, SealerReport
    from shardwright.shard.layout import StoreLayout

    from .disk import Disk

    Steps = Generator[None, None, Any]


class Sealer:
    """``epoch``: of the writer that it belongs to. ``at_files``: how many tasks of workers are at the files
    of a shard row. ``live``: readers see shards grow, so that none gets its name ahead."""

    def __init__(
        self,
        disk: Disk,
        layout: StoreLayout,
        epoch: int,
        at_files: Callable[[Files], int],
        *,
        live: bool,
    ) -> None:
        self.files: dict[int, Files] = {}
        # of split shard rows: stored slabs whose shards are to get their names ahead
        self._not_shown: dict[int, list[int]] = {}
        self._grows_later: dict[int, Grow] = {}
        self._hidden_when_asked: dict[int, set[int]] = {}  # by the id of a command
        self._live = live
        self.dead = False
        self.finished = False
        self.queue: deque[SealerCommand] = deque()
        self.command: SealerCommand | None = None  # that is being carried out
        self._steps: Generator[None, None, SealerReport | None] | None = None
        self._disk = disk
        # a take-over leaves these to us, and goes on with copies
        self._log, self._staging = disk.log, disk.staging
        self._log_failed = False
        self._layout = layout
        self._epoch = epoch
        assert disk.manifest is not None, "a writer has one"
        self._place = Place(disk.manifest.files_epoch)
        self._at_files = at_files

    @property
    def busy(self) -> bool:
        return not self.dead and (self.command is not None or bool(self.queue))

    def has_frames(self, shard_row: int) -> bool:
        return shard_row in self.files and self.files[shard_row].holds_frames

    def put(self, command: SealerCommand) -> None:
        self._check_asked(command)
        self.queue.append(command)
        if isinstance(command, Grow):
            self._hidden_when_asked[id(command)] = self._hidden_slabs(command.image)

    def step(self) -> SealerReport | None:
        """Go on with the command at hand, or begin the next one; its report, once it is done."""
        if self._steps is None:
            self.command = self.queue.popleft()
            try:
                self._disk.call("sealer")
            except StorageError as error:
                self.dead = True
                return SealerFailed(
                    ErrorText(WorkerError, f"the shard sealer's thread died: {error!r}"), dead=True
                )
            self._steps = self._carried_out(self.command)
        try:
            next(self._steps)
        except StopIteration as done:
            self._steps = self.command = None
            report: SealerReport | None = done.value
            return report
        return None

    def run_now(self, command: SealerCommand) -> SealerReport:
        """Before the thread is started."""
        self.queue.append(command)
        while (report := self.step()) is None:
            pass
        return report

    def _carried_out(self, command: SealerCommand) -> Steps:
        try:
            return (yield from self._steps_of(command))
        except ViolationError:
            raise
        except Exception as error:
            return SealerFailed(self._explained(error))

    def _steps_of(self, command: SealerCommand) -> Steps:  # noqa: C901  (one case for each command)
        match command:
            case Prepare():
                return self._prepare(command)
            case Reopen():
                return self._reopen(command)
            case Rewrite():
                return self._rewrite(command)
            case Commit():
                return self._commit(command)
            case Seal():
                return self._seal(command)
            case Discard():
                return self._discard(command)
            case Abandon():
                return self._abandon(command)
            case Record():
                return self._record(command)
            case Show():
                return self._show(command)
            case Grow():
                return self._grow(command)
            case FinishStore():
                return self._finish(command)
            case RemoveStore():
                return self._remove_store()
            case _:
                assert_never(command)

    # ------------------------------------------------------------------ whether a command is legal

    def _check_asked(self, command: SealerCommand) -> None:
        """What may be asked at all, whatever is queued before it."""
        before = [*([] if self.command is None else [self.command]), *self.queue]
        if self.finished or any(isinstance(other, RemoveStore) for other in before):
            raise ViolationError(f"illegal command: {_named(command)} after the store was finished")
        last = {getattr(other, "shard_row", None): other for other in before}
        for shard_row in _shard_rows_of(command):
            end = last.get(shard_row)
            if isinstance(end, Seal | Discard | Abandon) and not isinstance(command, Prepare | Rewrite):
                raise ViolationError(f"illegal command: {_named(command)} while {_named(end)} is asked")
        if isinstance(command, Commit) and any(isinstance(other, Commit) for other in before):
            raise ViolationError("illegal command: two commits at once")
        makes = (Prepare, Reopen, Rewrite)
        if isinstance(command, makes) and isinstance(last.get(command.shard_row), makes):
            raise ViolationError(f"illegal command: {_named(command)} twice")

    def _check_begun(self, command: SealerCommand) -> None:
        """Of the files that it is about."""
        shard_row = getattr(command, "shard_row", None)
        files = None if shard_row is None else self.files.get(shard_row)
        if isinstance(command, Prepare | Reopen):
            if files is not None:
                raise ViolationError(f"illegal command: {_named(command)} of a shard row that has files")
            return
        if isinstance(command, Rewrite | Seal) and files is None:
            raise ViolationError(f"illegal command: {_named(command)} of a shard row without files")
        if (
            isinstance(command, Rewrite | Seal | Discard | Abandon)
            and files is not None
            and self._at_files(files)
        ):
            raise ViolationError(f"illegal command: {_named(command)} while workers are at its files")
        if isinstance(command, Commit) and (
            without := [key for key in command.keys if key >= 0 and key not in self.files]
        ):
            raise ViolationError(f"illegal command: commit of shard rows {without} without files")
        if isinstance(command, FinishStore) and self.files and not command.keep_workspace:
            raise ViolationError(
                f"illegal command: finish while shard rows {sorted(self.files)} have files in progress"
            )

    # ------------------------------------------------------------------ commands

    def _prepare(self, command: Prepare) -> Steps:
        self._check_begun(command)
        try:
            self._restore_ballast()
            files = yield from self._make(command.shard_row)
        except Exception as error:
            return ShardRowPrepared(command.shard_row, command.request, None, self._explained(error))
        self.files[command.shard_row] = files
        return ShardRowPrepared(command.shard_row, command.request, files, None)

    def _reopen(self, command: Reopen) -> Steps:
        self._check_begun(command)
        try:
            self._check_writer()
            made = yield from self._reopened(command)
        except ViolationError:
            raise
        except Exception as error:
            return ShardRowReopened(command.shard_row, None, self._explained(error))
        self.files[command.shard_row] = made.files
        return ShardRowReopened(command.shard_row, made, None)

    def _reopened(self, command: Reopen) -> Steps:
        disk, shard_row = self._disk, command.shard_row
        layout = self._layout.of(shard_row)
        sealed = [disk.names.get(final(shard_row, file)) for file in range(layout.files_of(shard_row))]
        old = [{} if file is None else sealed_content(file) for file in sealed]
        for f, file in enumerate(sealed):
            sums = disk.sums.get((shard_row, f))
            if file is None and sums and None not in sums:
                raise ShardFormatError(
                    f"shard {f} of shard row {shard_row} is not there, though it was sealed"
                )
        new = yield from self._make(shard_row, reopened=True, suffix=REWRITE)
        try:
            made = yield from self._fill_again(command, sealed, old, new)
            for f, file in enumerate(sealed):
                sums = disk.sums.get((shard_row, f))
                if file is not None and sums and old[f] not in sums:
                    raise ShardFormatError(f"shard {f} of shard row {shard_row} is not what was sealed")
            yield from sync_files(disk, new)
            yield from take_names(disk, new, self._check_writer)
        except BaseException:
            discard_rewrite(disk, new, self._check_writer)
            raise
        return made

    def _fill_again(self, command: Reopen, sealed: list[Any], old: list[dict[int, Any]], new: Files) -> Steps:
        disk, slots = self._disk, command.taking.slots
        records, layout = self._log.shard_rows()[command.shard_row], new.layout
        by_slab = split_by_slab(self._layout.grids, records)
        taken, staged = [], []
        for slab in command.taking.slabs:
            mine, places = by_slab[slab]
            if any(file is not None and slab in file.bad for file in sealed):
                continue  # damaged: it stays as it is, and closed
            assert self._staging is not None, "slabs of several frames have one"
            for record, place, slot in zip(records[mine], places.tolist(), slots.tolist(), strict=False):
                disk.call("stage")
                content = old[files_of_slab(layout, slab)[0]]
                token = content[slab][place] if slab in content else FILL
                if self._layout.grids.in_place:
                    for f in files_of_slab(layout, slab):
                        new.slots[f].file.write(("part", slab, place), token)
                else:
                    self._staging.write(("pixels", slot), token)
                self._staging.write(("record", slot), (record.copy(), token))
                yield
            staged.append((records[mine], slots[: mine.size]))
            taken.append(slab)
            slots = slots[mine.size :]
        if taken and self._staging is not None:
            disk.sync_shard_rows_file(self._staging, "sync stage")
            yield
        for slab, (mine, _) in by_slab.items():
            if slab not in taken:
                of_slab = files_of_slab(layout, slab)
                chunks = [old[f].get(slab, ABSENT) for f in of_slab]
                for f, chunk in zip(of_slab, chunks, strict=True):
                    shard, file = new.slots[f], sealed[f]
                    if chunk != ABSENT:
                        copy_chunk(disk, shard, slab, chunk)
                        if slab in file.bad:
                            shard.file.bad.add(slab)
                    yield
                again = records[mine].copy()
                again["slab_frames"] = mine.size
                note_slab(new, slab, again, chunks)
                yield
        used = np.concatenate([command.taking.slots[:0], *(used for _, used in staged)])
        shards = sum(file is not None for file in sealed)
        found = np.concatenate([records[:0], *(found for found, _ in staged)])
        in_place = self._layout.grids.in_place
        return ReopenedShardRow(
            new,
            frozenset(taken),
            found,
            used,
            np.full(used.size, IN_PLACE) if in_place else STAGING + used,
            slots,
            shards,
            shards,
            len(by_slab) - len(taken),
            dict.fromkeys(taken, NOT_JOINED) if in_place else None,
        )  # type: ignore[arg-type]

    def _rewrite(self, command: Rewrite) -> Steps:
        self._check_begun(command)
        shard_row, old = command.shard_row, self.files[command.shard_row]
        saved: set[int] = set()
        lost = NO_RECORDS
        try:
            self._check_writer()
            self._disk.end_intact()
            if old.renamed:
                raise StorageError(
                    f"shard row {shard_row} cannot be rewritten: some of its shards are sealed"
                )
            files, saved, lost = yield from rewrite_files(
                self._disk,
                self._layout.of(shard_row),
                old,
                command.stored_slabs,
                command.held_slabs,
                self._check_writer,
            )
            self.files[shard_row] = files
            if shard_row in self._not_shown:
                self._not_shown[shard_row] = []
            lost["fate"], lost["reason"] = FrameStatus.LOST, Reason.IO_ERROR
            if lost.size:
                yield from self._append(None, lost)
        except Exception as error:
            return ShardRowRewritten(shard_row, None, saved, lost, self._explained(error))
        return ShardRowRewritten(shard_row, files, saved, lost, None)

    def _commit(self, command: Commit) -> Steps:
        self._check_begun(command)
        failed: dict[int, ErrorText] = {}
        for key in sorted(command.keys, reverse=True):
            try:
                self._disk.call("look")
                if key == LOGGED:
                    self._sync_log()
                elif key == STAGED:
                    if self._staging is not None:
                        self._disk.sync_shard_rows_file(self._staging, "sync stage")
                else:
                    yield from sync_files(self._disk, self.files[key])
            except Exception as error:
                failed[key] = self._explained(error, in_sync=True)
            yield
        return Committed(failed, 1)

    def _seal(self, command: Seal) -> Steps:
        self._check_begun(command)
        shard_row, files = command.shard_row, self.files[command.shard_row]
        if self._live or files.is_split:
            self._not_shown.setdefault(shard_row, [])
        try:
            shards = yield from self._with_ballast(lambda: seal_files(self._disk, files, self._check_writer))
            records = files.records()
            yield from self._append(shard_row, records)
            self._sync_log()
            yield
            self._check_writer()
            self._disk.delete(self._place.journal(shard_row))
        except Exception as error:
            return ShardRowSealed(shard_row, 0, files.renamed, self._explained(error), 0, None)
        del self.files[shard_row]
        yield from self._note_shown(shard_row)
        return ShardRowSealed(shard_row, shards, files.renamed, None, 1, records)

    def _discard(self, command: Discard) -> Steps:
        self._check_begun(command)
        files = self.files.pop(command.shard_row, None)
        if files is None:
            return
        self._check_writer()
        self._disk.delete(self._place.journal(command.shard_row))
        self._disk.sync_folder(self._place.folder)
        yield
        self._check_writer()
        for shard in files.slots:
            self._disk.delete(shard.name)
            yield
        yield from self._note_shown(command.shard_row)

    def _abandon(self, command: Abandon) -> Steps:
        self._check_begun(command)
        self.files.pop(command.shard_row, None)
        self._not_shown.pop(command.shard_row, None)
        yield

    def _record(self, command: Record) -> Steps:
        try:
            yield from self._append(None, command.records)
        except StorageFullError as error:
            return NotRecorded(command.records, command.release, command.settled, ErrorText.of(error))
        return Recorded(command.records["sequence"].astype(np.int64), command.release, command.settled)

    def _show(self, command: Show) -> Steps:
        self._check_writer()
        failed: dict[int, ErrorText] = {}
        for shard_row, slabs in command.slabs.items():
            files = self._check_shown(shard_row, slabs)
            if not self._live and files.is_split:
                try:
                    yield from self._named_ahead(files, slabs)
                except (StorageFullError, OutputExistsError):
                    pass
                except StorageError as error:
                    failed[shard_row] = self._explained(error, in_sync=True)
            yield
        return NotShown(failed) if failed else None

    def _check_shown(self, shard_row: int, slabs: Iterable[int]) -> Files:
        """Readers are shown only what is stored, in files that are there."""
        files = self.files.get(shard_row)
        if files is None:
            raise ViolationError(f"illegal command: show slabs of shard row {shard_row} without files")
        table = files.journal.file.data
        for slab in slabs:
            stored = [("chunk", f, slab) in table for f in files_of_slab(files.layout, slab)]
            if ("frames", slab) not in table or not all(stored):
                raise ViolationError(f"illegal command: show slab {slab}, which is not stored")
        return files

    def _named_ahead(self, files: Files, slabs: Iterable[int]) -> Steps:
        waiting = self._not_shown.setdefault(files.shard_row, [])
        waiting += slabs
        numbers = {f for slab in waiting for f in files_of_slab(files.layout, slab)}
        yield from seal_files(self._disk, files, self._check_writer, numbers)
        yield from self._note_shown(files.shard_row)

    def _hides_rows(self, image: int) -> bool:
        return any(row in self.files and image_of(row) == image for row in self._not_shown)

    def _note_shown(self, shard_row: int) -> Steps:
        self._not_shown.pop(shard_row, None)
        image = image_of(shard_row)
        if not self._hides_rows(image) and (command := self._grows_later.pop(image, None)) is not None:
            yield from self._grow(command)

    def _grow(self, command: Grow) -> Steps:
        if self._hides_rows(command.image):
            self._grows_later[command.image] = command
            return
        before = self._disk.extents.get(command.image, (0,) * len(command.extents))
        with suppress(StorageError):
            yield from self._with_ballast(lambda: self._grown(command.image, command.extents))
            self._check_covered(command, before)

    def _hidden_slabs(self, image: int) -> set[int]:
        """Stored slabs whose shards have no final names. Where a shard row takes frames again the older
        ones have them."""
        rows = [files for number, files in self.files.items() if image_of(number) == image]
        return {slab for files in rows if not files.journal.reopened for slab in files.hidden()}

    def _check_covered(self, command: Grow, before: tuple[int, ...]) -> None:
        """Where a shape has begun to cover them, readers find all slabs that were stored when that was asked
        for."""
        image, grid = command.image, self._layout.grids.grids[command.image]
        covered = self._disk.extents.get(image, before)
        if self._live or covered == before:
            return
        for slab in self._hidden_when_asked[id(command)] & self._hidden_slabs(image):
            ends = grid.index_of(grid.last_position_in_slab(slab))
            last = [ends[axis] for axis in grid.growing]
            if all(map(int.__lt__, last, covered)) and not all(map(int.__lt__, last, before)):
                raise ViolationError(
                    f"the shape of image {image} covers {covered}, and readers lack slab {slab}"
                )

    def _grown(self, image: int, extents: tuple[int, ...]) -> Steps:
        covered = self._disk.extents.get(image, (0,) * len(extents))
        grown = tuple(map(max, covered, extents))
        if grown != covered:
            self._disk.take_little("grow")
            yield
            self._check_writer()
            self._disk.check_document(self._epoch)
            self._disk.extents[image] = grown

    def _finish(self, command: FinishStore) -> Steps:
        self._check_begun(command)
        try:
            yield from self._with_ballast(lambda: self._finished(command))
        except Exception as error:
            return StoreFinished(self._explained(error))
        self.finished = not command.keep_workspace
        return StoreFinished(None)

    def _finished(self, command: FinishStore) -> Steps:
        disk = self._disk
        self._check_writer()
        for image, extents in enumerate(command.extents):
            yield from self._grown(image, extents)
        disk.take_little("finish")
        yield
        self._check_writer()
        blocks = self._log.counted()
        stored = np.concatenate(
            [NO_RECORDS, *(block.records for block in blocks if block.shard_row is not None)]
        )["sequence"]
        found_again = [
            (block.records["fate"] == FrameStatus.LOST) & np.isin(block.records["sequence"], stored)
            for block in blocks
        ]  # stored wins
        disk.check_document(self._epoch)
        disk.table = [block.records[~again] for block, again in zip(blocks, found_again, strict=True)]
        yield
        if not command.keep_workspace:
            disk.call("finish")
            self._check_writer()
            disk.drop_manifest(self._epoch)
            yield

    def _remove_store(self) -> Steps:
        try:
            self._check_writer()
            self._disk.drop_manifest(self._epoch)
            self._disk.removed = True
            yield
        except Exception as error:
            return StoreFinished(self._explained(error))
        self.finished = True
        return StoreFinished(None)

    # ------------------------------------------------------------------ their parts

    def _check_writer(self) -> None:
        self._disk.check_writer(self._epoch)

    def _explained(self, error: Exception, *, in_sync: bool = False) -> ErrorText:
        if (
            isinstance(error, StorageError)
            and (in_sync or not isinstance(error, StorageFullError))
            and self._disk.lock == self._epoch
        ):
            self._disk.end_intact()
        if isinstance(error, StorageError):
            try:
                self._check_writer()
            except FencedError as why:
                return ErrorText.of(why)
        if not isinstance(error, ShardwrightError):
            raise ViolationError(f"the sealer met a defect: {error!r}") from error
        return ErrorText.of(error)

    def _make(self, shard_row: int, *, reopened: bool = False, suffix: str = "") -> Steps:
        return make_files(
            self._disk,
            self._place,
            shard_row,
            self._layout.of(shard_row),
            self._check_writer,
            reopened=reopened,
            suffix=suffix,
        )

    def _append(self, shard_row: int | None, records: np.ndarray) -> Steps:
        def append() -> Steps:
            self._check_log()
            try:
                self._disk.take_little("log")
            except StorageFullError:
                raise
            except StorageError:
                self._log_failed = True
                raise
            yield
            self._log.blocks.append(Block(shard_row, records.copy()))
            yield

        return self._with_ballast(append)

    def _check_log(self) -> None:
        if self._log_failed:
            raise StorageError("the frame log failed before and is not written any more")

    def _sync_log(self) -> None:
        self._check_log()
        try:
            self._disk.call("sync log")
        except StorageError:
            self._log_failed = True
            raise
        self._log.synced = len(self._log.blocks)

    def _with_ballast(self, work: Callable[[], Steps]) -> Steps:
        try:
            return (yield from work())
        except StorageFullError:
            if not self._disk.release_ballast():
                raise
            return (yield from work())

    def _restore_ballast(self) -> None:
        if self._disk.ballast:
            return
        self._check_writer()
        if not self._disk.fill_ballast():
            raise StorageFullError("no room to reserve for sealing another shard")


def _shard_rows_of(command: SealerCommand) -> Iterable[int]:
    match command:
        case Commit():
            return command.keys
        case Show():
            return command.slabs
        case _:
            return (getattr(command, "shard_row", -1),)


def _named(command: SealerCommand) -> str:
    shard_row = getattr(command, "shard_row", None)
    return type(command).__name__ + ("" if shard_row is None else f" {shard_row}")
