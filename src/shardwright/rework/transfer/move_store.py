"""A whole store packed into a destination: every file of it, shard by shard, verified; and only then, if
asked for, deleted here.

    locks, claim ──▶ shards, then all other files but ──▶ zarr.json, the deepest first ──▶ record: complete
                                                                                           │ with move
                                          all that an earlier run has sent: read back once more
                                                                                           │ record: deleting
    claim released ◀── locks, folders ◀── shards, other files ◀── zarr.json, the highest ◀─┘

    move_plan       which files there are, and in which phases they are sent
    _send           the upper line: the claim, phase by phase
    _lost           between the lines. A lost file is sent again, until the record says deleting
    delete_source   the lower line

Readers find a store by its zarr.json. So no reader sees one at the destination before all of its shards are
there, and none opens the source while its shards are deleted. A phase begins only when the one before is
complete. A job that was killed is resumed by running it again (see ``move_record``).

A damaged shard is sent as it is, and named. The store there is then what it is here, readable but for that
shard. The destination stays claimed, nothing is deleted, and the next run of the same job sends the shard
once it has been repaired.

A file that an earlier run of the same job has sent and verified is not sent again if both sides are still as
they were then. Sometimes a run sends a shard although an earlier one has sent metadata already: the shard was
damaged and has been repaired, or it changed, or was lost there. Then it deletes the metadata first, so that a
reader finds no store rather than an incomplete one.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import storage_errors, sync_directory
from shardwright.disk.spill_links import spilled_file
from shardwright.model.errors import (
    ConfigError,
    LockedError,
    OutputExistsError,
    StorageError,
    StorageFullError,
)
from shardwright.model.names import DOCUMENT, MOVE_LOCK_NAME, MOVE_PREFIX, PARITY_FOLDER, WORK_FOLDER
from shardwright.rework.change_checks import check_finished, check_not_between_versions
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import UNHURRIED
from shardwright.rework.runtime.work_folder import LOCK_NAME, WORKING_SUFFIX, locked, remove
from shardwright.shard.edit_files import journals_below
from shardwright.store.moved_store import files_and_links, free_moved_name

from .address import open_destination
from .archive_file import ArchiveFile
from .destination import CLAIM_KEY
from .local_folder import LocalFolder
from .move_plan import MoveReport, check_room, depth, plan_move
from .move_record import MoveRecord, SentFile
from .transfer_item import is_as_sent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardwright.rework.runtime.tasks import Results, RunTasks, Task

    from .destination import Destination
    from .move_plan import MoveOptions, MovePlan


def move_store(path: Path, options: MoveOptions, run: RunTasks, *, records: Path | None = None) -> MoveReport:
    """Send a store, and resume what an earlier job to the same destination left. A file that fails is in
    ``failures``; the other files of its phase are sent.

    An interrupt (``KeyboardInterrupt``) while files are sent is in the report. ``records``: the folder of the
    job's record, if not the work folder.

    Raises before anything is sent: ``LockedError`` for a store that is still being written or worked on, and
    for a destination that another job writes to; ``OutputExistsError``; ``ConfigError``;
    ``ShardFormatError``; ``StorageFullError``; ``StorageError``.
    """
    path = beneath.user_path(path)
    destination = open_destination(options.destination)
    check_finished(path)
    with locked(path, MOVE_LOCK_NAME):
        check_finished(path)  # a writer that goes on with it had this lock until its workspace was there
        check_not_between_versions(path)
        move = _StoreMove(path, options, records or path / WORK_FOLDER, destination, run)
        move.run()
    if options.delete_source and move.report.ok and beneath.exists(path):
        remove_empty_folders(path)  # files of another job were in it
    return move.report


class _StoreMove:
    """One run of a move. The caller holds the store's move lock."""

    def __init__(
        self, path: Path, options: MoveOptions, records: Path, destination: Destination, run: RunTasks
    ) -> None:
        self._path = path
        self._options = options
        self._records = records
        self._destination = destination
        self._run_tasks = run
        self.report = MoveReport(str(path), destination.url)

    def run(self) -> None:
        """Run the move; the result is in ``report``."""
        record = _found_record(self._path, self._options, self._records, self._destination)
        if record is None and self._options.delete_source and _nothing_is_left(self._path, self._destination):
            clear_dead_work(self._path, [])  # locks that a power cut brought back
            self._free_name()
            self.report.complete = self.report.nothing_left = True
        elif record is not None and record.deleting:
            self._continue_deleting(record)
        else:
            self._send_and_delete(record)

    def _send_and_delete(self, record: MoveRecord | None) -> None:
        found = {} if record is None else self._destination.sizes()
        if record is not None and record.complete and not self._options.delete_source:
            lost = {sent.key for sent in record.sent.values() if found.get(sent.key) != sent.nbytes}
            if lost:
                record.reopen(without=lost)
        if record is None or not record.complete or self._options.delete_source:
            plan = plan_move(self._path, self._options)
            arrays = [array.path for array in plan.store.arrays]
            with _locked_arrays(arrays):
                record = self._send_until_there(plan, record, found)
                if record is None:
                    return
                self.report.complete = True
                # A file came or was changed while the last ones were sent. The next run sends it, and reads
                # back the rest.
                if self._options.delete_source and not self._delete(arrays, record):
                    record.reopen()
                    return
        self.report.complete = True
        self.report.finished = len(record.unproved)
        self._end(record)

    def _send_until_there(
        self, plan: MovePlan, record: MoveRecord | None, found: dict[str, int]
    ) -> MoveRecord | None:
        """Send what is not there. With ``delete_source``, all that another run has sent is read back first,
        and sent again where it was lost.

        None if the destination is not complete: the report says why.
        """
        while True:
            if record is None or not record.complete:
                record = self._claimed(plan, record, found)
                self._send(plan, record, found)
                self.report.finished = len(record.unproved)
                if not record.complete:
                    return None
            if not self._options.delete_source:
                return record
            found = self._destination.sizes()
            lost = self._lost(record, found)
            self.report.finished = len(record.unproved)
            if self.report.failures or self.report.interrupted:
                self.report.complete = False
                return None
            if not lost:
                return record
            self.report.complete = False
            record.reopen(without=lost)

    def _claimed(self, plan: MovePlan, record: MoveRecord | None, found: dict[str, int]) -> MoveRecord:
        if isinstance(self._destination, (LocalFolder, ArchiveFile)):
            check_room(plan, self._destination, found)
        try:
            return claimed_record(self._records, self._destination, record)
        except OutputExistsError as error:
            if not self._options.delete_source:
                raise
            raise OutputExistsError(
                f"the destination {self._destination.url} is not empty, and nothing is ever overwritten",
                hint="If an earlier run without --move has filled it, check it with `shardwright verify`, "
                "then delete the store here yourself. Otherwise choose another destination",
            ) from error

    def _send(self, plan: MovePlan, record: MoveRecord, found: dict[str, int]) -> None:
        """Send all files of ``plan``. ``found``: bytes of each key at the destination. The record is complete
        afterwards if all files have arrived and no shard is damaged.

        A phase begins only if the one before is complete.
        """
        report, destination = self.report, self._destination
        wanted = {task["key"] for phase in plan.phases for task in phase}
        try:
            gone = record.sent.keys() - wanted  # here, since they were sent
            if not destination.shows_parts:
                found = self._cut(plan, record, found)
            elif gone or not all(_is_finished(task, record, found) for task in plan.data):
                found = self._without_metadata(plan, found)
            for key in gone:
                destination.delete(key)
                record.drop(key)
            for phase in plan.phases:
                self._send_phase(phase, record, found, self._run_tasks if phase is plan.data else _run_here)
                if report.failures or not {task["key"] for task in phase} <= record.sent.keys():
                    return
            destination.finish(wanted)
            report.complete = True
        except KeyboardInterrupt:
            report.interrupted = True
        finally:
            report.damaged = [
                {"key": sent.key, "error": sent.damaged} for sent in record.sent.values() if sent.damaged
            ]
        if report.complete and not report.damaged:
            record.complete = True
            record.save()

    def _cut(self, plan: MovePlan, record: MoveRecord, found: dict[str, int]) -> dict[str, int]:
        """Drop at the destination the first key that is to be sent again, and all behind it: bytes are added
        at the end alone. Data go, too, if metadata are to be sent, which stand in front. Returns what is
        found there then."""
        tasks = [task for phase in plan.phases for task in phase]
        finished = {task["key"] for task in tasks if _is_finished(task, record, found)}
        metadata = {task["key"] for level in plan.metadata for task in level}
        self._destination.cut(finished if metadata <= finished else finished & metadata)
        return self._destination.sizes()

    def _without_metadata(self, plan: MovePlan, found: dict[str, int]) -> dict[str, int]:
        """Delete the metadata that an earlier run has sent, the highest first, so that no reader opens the
        store; returns what is found there then."""
        tasks = (task for level in reversed(plan.metadata) for task in level)
        metadata = [task["key"] for task in tasks if task["key"] in found]
        for key in metadata:
            self._destination.delete(key)
        return {key: nbytes for key, nbytes in found.items() if key not in metadata}

    def _send_phase(
        self, phase: list[dict[str, Any]], record: MoveRecord, found: dict[str, int], run: RunTasks
    ) -> None:
        todo = {task["key"]: task for task in phase if not _is_finished(task, record, found)}
        for key in todo:
            record.drop(key)
        given_up = False
        with closing(run(task for task in todo.values() if not given_up)) as results:
            for result in results:
                self.report.add(result)
                if result["ok"]:
                    facts = {name: result[name] for name in ("key", "source", "nbytes", "crc32c")}
                    order = todo[result["key"]].get("order")
                    record.add(SentFile(**facts, order=order, damaged=result.get("damaged")))
                else:
                    full = result["error"]["code"] == StorageFullError.code  # for the other files as well
                    given_up = given_up or full or not self._can_continue()

    def _can_continue(self) -> bool:
        """Returns whether other files may still be sent: when the destination does not answer, or the claim
        is gone, all would fail."""
        try:
            return self._destination.size(CLAIM_KEY) is not None
        except StorageError:
            return False

    def _lost(self, record: MoveRecord, found: dict[str, int]) -> set[str]:
        """Read back what earlier runs have sent: in between it may have been lost or damaged. Returns the
        keys that are not at the destination any more as they were sent; all of them only if nothing failed
        and the report is not interrupted.

        Only files whose source is still there are checked, and none that this run has sent or checked. Each
        is compared with the crc32c that was recorded when it was sent, so that the source is not needed: a
        run that was killed may have deleted a part of it. ``found``: bytes of each key there.
        """
        files = [sent for sent in left_here(self._path, record) if sent.key in record.unproved]
        lost = {sent.key for sent in files if found.get(sent.key) != sent.nbytes}
        tasks = (
            {
                "kind": "check",
                "destination": self._destination.url,
                "key": sent.key,
                "nbytes": sent.nbytes,
                "crc32c": sent.crc32c,
                "throttle": self._options.throttle.to_dict(),
            }
            for sent in files
            if sent.key not in lost and not self.report.failures
        )
        try:
            with closing(self._run_tasks(tasks)) as results:
                for result in results:
                    if result["ok"] and not result["same"]:
                        lost.add(result["key"])
                    else:
                        self.report.add(result)
                        if result["ok"]:
                            record.unproved.discard(result["key"])
        except KeyboardInterrupt:
            self.report.interrupted = True
        return lost

    def _continue_deleting(self, record: MoveRecord) -> None:
        """An earlier run had sent all and begun to delete: check what is left here against the destination,
        then delete it, or report why not. Nothing is sent any more."""
        if not self._options.delete_source:
            raise ConfigError(
                f"an earlier run with --move has begun to delete {self._path}",
                hint="Run it with --move again: it deletes the rest",
            )
        self.report.deleting = True
        arrays = [(self._path / key).parent for key in record.sent if key.endswith(DOCUMENT)]
        with _locked_arrays(arrays):
            lost = self._lost(record, self._destination.sizes())
            if self.report.failures or self.report.interrupted:
                return
            if lost:
                self.report.failures += [
                    {"key": key, "error": self._is_lost(key).to_dict()} for key in sorted(lost)
                ]
                return
            self.report.complete = True
            if not self._delete(arrays, record):
                return
        self._end(record)

    def _is_lost(self, key: str) -> StorageError:
        return StorageError(
            f"{self._destination.url}/{key} is lost or damaged, and a part of the store here is deleted "
            "already",
            hint=f"The files left in {self._path} were not touched. Copy them into another store with the "
            f"metadata from the destination, or read them by hand",
        )

    def _delete(self, arrays: list[Path], record: MoveRecord) -> bool:
        """Delete the source. False when it was not touched, since files came, changed or went."""
        # Also what an earlier run has finished: each key may be there, and yet no reader open the file.
        self._destination.finish(record.sent.keys())
        self.report.deleted, self.report.kept = delete_source(self._path, record, self._destination.sizes())
        if self.report.kept:
            return False
        clear_dead_work(self._path, arrays)
        return True

    def _end(self, record: MoveRecord) -> None:
        self._destination.release(record.token)
        if self._options.delete_source:
            self._free_name()
        record.delete()

    def _free_name(self) -> None:
        """Nothing of the store is here any more; so no copy to another destination is ever finished,
        either."""
        known = MoveRecord.destinations_in(self._path / WORK_FOLDER)
        self.report.abandoned = [other for other in known if other != self._destination.url]
        with suppress(StorageError):  # such as in a folder that this user may not change
            if free_moved_name(self._path):
                return
        remove_empty_folders(self._path)


def _found_record(
    path: Path, options: MoveOptions, records: Path, destination: Destination
) -> MoveRecord | None:
    """The record of an earlier run. One of a release that did not write ``deleting`` shows it by missing
    metadata, which are deleted first."""
    record = MoveRecord.find(records, destination.url)
    if (
        record is not None
        and record.complete
        and options.delete_source
        and not beneath.exists(path / DOCUMENT)
    ):
        record.deleting = True
    return record


@contextmanager
def _locked_arrays(folders: list[Path]) -> Iterator[None]:
    """No other job works on these arrays, until their files are deleted as well: the locks go last."""
    with ExitStack() as locks:
        # Held over the deletion as well: a compaction that began in between would put a copy into a folder
        # that is being emptied.
        for folder in folders:
            if beneath.is_dir(folder):
                locks.enter_context(locked(folder, LOCK_NAME))
        yield


def bytes_to_move(path: Path, options: MoveOptions, *, records: Path | None = None) -> dict[str, int]:
    """The bytes that a job is to send, by key; when an earlier run has begun to delete, those that are still
    to be checked. Raises as ``plan_move`` does."""
    record = _found_record(
        path, options, records or path / WORK_FOLDER, open_destination(options.destination)
    )
    if record is not None and record.deleting:
        return {sent.key: sent.nbytes for sent in left_here(path, record)}
    if beneath.is_dir(path) and _is_empty(path):
        return {}  # moved before, perhaps
    return plan_move(path, options).file_bytes


def claimed_record(folder: Path, destination: Destination, record: MoveRecord | None = None) -> MoveRecord:
    """The record of this job, not complete, with its claim made. ``record``: the one that was read already,
    if there is one."""
    record = record or MoveRecord.open(folder, destination.url)
    if not record.claimed:
        destination.release(record.token)  # of a job killed before it knew that the destination was empty
    try:
        if destination.size(CLAIM_KEY) is None:
            record.forget()  # before there is a claim again, by which the next run would believe it
        if destination.claim(record.token):
            record.forget()  # nothing is there, also if a user has cleared it since
    except (OutputExistsError, LockedError):
        if not record.claimed:
            record.delete()
        raise
    if not record.claimed:
        record.claimed = True
        record.save()
    return record


def _run_here(tasks: Iterable[Task]) -> Results:
    """Run tasks of small files without a worker, at this process's priority."""
    for task in tasks:
        yield run_task(task | {"throttle": UNHURRIED.to_dict()})


def _is_finished(task: dict[str, Any], record: MoveRecord, found: dict[str, int]) -> bool:
    """Returns whether an earlier run has sent and verified the file, and both sides are as they were then."""
    sent = record.sent.get(task["key"])
    if sent is None or sent.order != task.get("order"):
        return False
    return found.get(sent.key) == sent.nbytes and is_as_sent(Path(task["file"]), sent.source)


def left_here(root: Path, record: MoveRecord) -> list[SentFile]:
    """The files that were sent and whose source is still there."""
    return [sent for sent in record.sent.values() if beneath.exists(root / sent.key)]


def _nothing_is_left(path: Path, destination: Destination) -> bool:
    """Returns whether no file is here and a store is there. The folder may as well never have been a store:
    then, too, it holds no data that could be moved."""
    return _is_empty(path) and destination.size(DOCUMENT) is not None


def _is_empty(path: Path) -> bool:
    return next(files_and_links(path), None) is None


def delete_source(root: Path, record: MoveRecord, found: dict[str, int]) -> tuple[int, list[str]]:
    """Delete what was sent and verified: first the zarr.json, the highest first, then shards and other files.
    Only if no file has come, changed or gone since it was sent. May be killed at any point: the record says
    that it has begun, and stays until all is gone.

    ``found``: bytes of each key, as the destination lists them now. Returns the number of deleted files, or
    the files that are not as they were sent, and then nothing was deleted.
    """
    kept = [
        file.relative_to(root).as_posix()
        for file in files_and_links(root)
        if not _may_go(root, file, record, found)
    ]
    if not record.deleting:
        # of an update that began before the move: it may have been killed since
        kept += [journal.relative_to(root).as_posix() for journal in journals_below(root)]
        # erased since: at the destination, where it still is, it would come back
        kept += sorted(key for key in record.sent if not beneath.exists(root / key))
    if kept:
        return 0, kept
    record.begin_deleting()
    metadata = sorted((key for key in record.sent if Path(key).name == DOCUMENT), key=depth)
    others = [key for key in record.sent if Path(key).name != DOCUMENT]
    deleted = 0
    # Each step is durable before the next one: a power cut never undoes a step before a later one.
    for keys in (*(list(same) for _, same in groupby(metadata, key=depth)), others):
        _sync_what_is_left(folder for key in keys for folder in _delete_spilled(root, key))
        deleted += sum(_delete_file(root / key) for key in keys)
        _sync_what_is_left((root / key).parent for key in keys)
    return deleted, []


def _may_go(root: Path, file: Path, record: MoveRecord, found: dict[str, int]) -> bool:
    sent = record.sent.get(file.relative_to(root).as_posix())
    if sent is None or found.get(sent.key) != sent.nbytes:
        return False
    try:
        return is_as_sent(file, sent.source)
    except StorageError as error:  # a link whose file was deleted before it
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        _file_of(file, sent.key)
        return True


def _file_of(link: Path, key: str) -> Path:
    """Returns the path of a spilled shard's file. Raises ``StorageError`` if the second root is not there:
    the file is not found then, and has not been deleted."""
    with storage_errors("look at", link):
        target = spilled_file(link)
    second_root = target.parents[len(Path(key).parts)]
    if not beneath.is_dir(second_root):
        raise StorageError(
            f"{link} leads into {second_root}, which is not there",
            hint="Mount the second root, then try again",
        )
    return target


def _delete_spilled(root: Path, key: str) -> list[Path]:
    """Delete the file of a spilled shard, before the link to it, and the folders there that are empty then.
    Returns the folders that have changed."""
    if not beneath.is_link(root / key):
        return []
    # The link is all that tells where the file is, so it goes last: a kill in between leaves a link to
    # nothing, and the next run deletes it.
    target = _file_of(root / key, key)
    folders = target.parents[: len(Path(key).parts)]
    with storage_errors("delete", target):
        reach("compact.before_delete_spilled")
        beneath.unlink(target, missing_ok=True)
        for folder in folders:
            _clear(folder / WORK_FOLDER, f"*{WORKING_SUFFIX}")
            with suppress(OSError):  # not empty yet
                beneath.remove_folder(folder)
    return [*folders, folders[-1].parent]


def _delete_file(path: Path) -> bool:
    """False when it was gone already."""
    with storage_errors("delete", path):
        reach("compact.before_delete_source")
        try:
            beneath.unlink(path)
        except FileNotFoundError:
            return False
    return True


def _sync_what_is_left(folders: Iterable[Path]) -> None:
    """Sync the folders that are still there; of one that is gone, the folder that it was in is among them."""
    for folder in sorted(set(folders)):
        if beneath.is_dir(folder):
            sync_directory(folder)


def clear_dead_work(root: Path, held: list[Path]) -> None:
    """Delete what jobs kept beside the arrays, which means nothing without them: entries of the compaction
    queue, working files, locks of jobs that were killed, parity.

    ``held``: folders whose lock the caller holds; it is deleted when the caller lets go.
    """
    with storage_errors("look into", root):
        below = list(beneath.all_below(root))
    for parity in (path for path in below if path.name == PARITY_FOLDER):
        remove(parity)
    for folder in sorted(path for path in below if path.name == WORK_FOLDER):
        lock = nullcontext() if folder.parent in held else locked(folder.parent, LOCK_NAME)
        with suppress(LockedError), lock, storage_errors("clear", folder):
            _clear(folder, "*")


def _clear(work_folder: Path, pattern: str) -> None:
    """Delete files of a work folder but for its lock and the records of moves; the folder as well, if it is
    empty then."""
    if not beneath.is_dir(work_folder):
        return
    for path in beneath.matching(work_folder, pattern):
        if beneath.is_file(path) and path.name != LOCK_NAME and not path.name.startswith(MOVE_PREFIX):
            remove(path)
    with suppress(OSError):  # its lock is in it
        reach("compact.before_remove_work_folder")
        beneath.remove_folder(work_folder)


def remove_empty_folders(root: Path) -> None:
    """Below a store that was deleted, and its own."""
    for folder, _, _ in beneath.walk(root, top_down=False):
        with suppress(OSError):  # it holds something that was not sent, such as another job's work folder
            reach("compact.before_remove_source_folder")
            beneath.remove_folder(folder)
    if not beneath.exists(root):
        sync_directory(root.parent)
