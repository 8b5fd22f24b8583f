"""A whole store packed into another place: every file of it, shard by shard, verified, and only then, if asked for, deleted here.

    lock, claim ──▶ shards, then all other files but ──▶ zarr.json, the deepest first ──▶ record: complete ──▶ claim released
                                                                                                                  │ with move
                                      folders ◀── shards and other files ◀── zarr.json, the highest first ◀───────┘

Readers find a store by its zarr.json. So nobody sees one at the destination before all of its shards are there, and nobody opens the source while its
shards vanish. A phase begins only when all of the one before has arrived; a job that is killed goes on where it was (see ``move_record``).
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ConfigError, LockedError, OutputExistsError, ShardFormatError, StorageError, StorageFullError
from shardwright.read.store import Store, open_store
from shardwright.storage.failpoints import reach
from shardwright.storage.files import make_directories, storage_errors, sync_directory
from shardwright.storage.lock import StoreLock

from .destination import CLAIM_KEY, open_destination
from .local_folder import LocalFolder
from .manners import Manners
from .move import identify
from .move_record import PREFIX, MoveRecord, SentFile
from .source import SourceShard
from .tasks import run_task
from .work_folder import LOCK_NAME, WORK_FOLDER, WORKING_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from .destination import Destination

    Execute = Callable[[Iterable[dict[str, Any]]], Generator[dict[str, Any], None, None]]  # run_task on each task, results as they come

METADATA_NAME = "zarr.json"
MOVE_LOCK_NAME = "move.lock"  # beside the lock of an array's other jobs, which is taken as well


@dataclass(frozen=True)
class MoveOptions:
    """``destination``: a folder or s3://BUCKET/PREFIX. ``delete_source``: once all is there and verified. ``order``: of the chunks in a shard."""

    destination: str
    delete_source: bool = False
    order: str = "row_major"
    manners: Manners = field(default_factory=Manners)


@dataclass
class MoveReport:
    """``verified``: files that an earlier, unfinished job had sent and this one only verified; ``finished``: those it had verified as well.

    ``complete``: all is there. ``deleted``: source files. ``kept``: source files that came or were changed after they were sent; then nothing was
    deleted.
    """

    store: str
    destination: str
    complete: bool = False
    sent: int = 0
    verified: int = 0
    finished: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    interrupted: bool = False
    deleted: int = 0
    kept: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.complete and not self.kept

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def add(self, result: dict[str, Any]) -> None:
        """Count the result of one task."""
        self.bytes_read += result["bytes_read"]
        self.bytes_written += result["bytes_written"]
        if not result["ok"]:
            self.failures.append({"key": result["key"], "error": result["error"]})
        elif result["skipped"]:
            self.verified += 1
        else:
            self.sent += 1


@dataclass(frozen=True)
class MovePlan:
    """What has to be sent: ``data`` in any order, then ``metadata``, level by level. ``file_bytes``: by key, of the source's files."""

    store: Store
    data: list[dict[str, Any]]
    metadata: list[list[dict[str, Any]]]
    file_bytes: dict[str, int]

    @property
    def nbytes(self) -> int:
        return sum(self.file_bytes.values())


def move_store(path: Path, options: MoveOptions, execute: Execute, *, records: Path | None = None) -> MoveReport:
    """Send a store; goes on with what an earlier job to the same destination left. A file that fails is in ``failures``; its phase goes on.

    An interrupt (``KeyboardInterrupt``) while files are sent is told in the report. ``records``: the folder of its record, if not the work folder.

    Raises before anything is sent: ``LockedError`` for a store that is still being written or worked on, and for a destination that another job
    writes to; ``OutputExistsError``; ``ConfigError``; ``ShardFormatError``; ``StorageFullError``; ``StorageError``.
    """
    path = path.absolute()
    destination = open_destination(options.destination)
    if (path / ".shardwright").exists():
        raise LockedError(
            f"{path} is still being written, or its acquisition ended without sealing all shards",
            hint="Wait until it has ended; `shardwright recover` finishes what a daemon that died has left",
        )
    records = records or path / WORK_FOLDER
    with _locked(path, MOVE_LOCK_NAME):
        record = MoveRecord.find(records, destination.url)
        report = MoveReport(str(path), destination.url)
        if record is None and options.delete_source and _has_moved(path, destination):
            report.complete = True  # a job that was killed when only its lock and folders were left
        else:
            _move(path, options, records, record, destination, execute, report)
    if options.delete_source and report.ok:
        _remove_empty_folders(path)  # the last one, in which the record was
    return report


def _move(
    path: Path, options: MoveOptions, records: Path, record: MoveRecord | None, destination: Destination, execute: Execute, report: MoveReport
) -> None:
    if record is None or not record.complete or not _all_there(record, destination):
        plan = plan_move(path, options)
        with ExitStack() as locks:
            for array in plan.store.arrays:
                locks.enter_context(_locked(array.path, LOCK_NAME))
            if isinstance(destination, LocalFolder):
                check_room(plan, destination)
            try:
                record = claimed_record(records, destination)
            except OutputExistsError as error:
                raise (_copied_before(destination) if options.delete_source else error) from error
            _send(plan, record, destination, execute, report)
        if not report.complete:
            return
    report.complete = True
    destination.release(record.token)
    if options.delete_source:
        report.deleted, report.kept = _delete_source(path, record, destination)
        if not report.kept:
            _clear_dead_work(path)
            _remove_empty_folders(path)
    record.delete()


def _has_moved(path: Path, destination: Destination) -> bool:
    """Nothing is left of the source, and the store is at the destination."""
    return next(_remaining(path), None) is None and destination.size(METADATA_NAME) is not None


def plan_move(path: Path, options: MoveOptions) -> MovePlan:
    """Every file of a store as a task. Changes nothing. Raises as ``open_store`` does, and for what cannot travel."""
    store = open_store(path)
    destination = open_destination(options.destination)
    if store.root != path or (options.delete_source and (path.parent / METADATA_NAME).exists()):
        raise ConfigError(f"{path} is a part of a store", hint="A store moves as a whole: give its folder")
    if isinstance(destination, LocalFolder) and destination.root.resolve().is_relative_to(store.root.resolve()):
        raise ConfigError(f"the destination {destination.url} lies in the store itself", hint="Choose a folder outside of it")
    shards: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    metadata: list[dict[str, Any]] = []
    file_bytes = {}
    for file in _files(store.root):
        key = file.relative_to(store.root).as_posix()
        file_bytes[key] = identify(file)[0]
        task = {"kind": "move", "destination": destination.url, "key": key, "file": str(file), "manners": options.manners.to_dict()}
        place = _shard_of(store, file)
        if place is not None:
            shards.append(task | place | {"order": options.order})
        else:
            (metadata if file.name == METADATA_NAME else others).append(task)
    depths = sorted({_depth(task["key"]) for task in metadata}, reverse=True)
    return MovePlan(store, shards + others, [[task for task in metadata if _depth(task["key"]) == depth] for depth in depths], file_bytes)


def check_room(plan: MovePlan, destination: LocalFolder) -> None:
    """Raises ``StorageFullError`` when what is not there yet has no room. How long shards will be is looked up only where that decides it."""
    todo = [task for phase in (plan.data, *plan.metadata) for task in phase if destination.size(task["key"]) is None]
    free = destination.free_bytes()
    if sum(plan.file_bytes[task["key"]] for task in todo) > free and (needed := sum(_sent_bytes(plan, task) for task in todo)) > free:
        raise StorageFullError(
            f"no room for {plan.store.root} in {destination.url}",
            expected=f"{needed} bytes free",
            got=f"{free}",
            hint="Free some space there, or choose another destination",
        )


def _sent_bytes(plan: MovePlan, task: dict[str, Any]) -> int:
    """What a file will be at the destination. A damaged shard counts as it is; sending it will say what is wrong."""
    if "shard" in task:
        array = next(array for array in plan.store.arrays if str(array.path) == task["array"])
        with suppress(ShardFormatError), SourceShard(array, tuple(task["shard"])) as source:
            return source.packing(task["order"]).file_bytes
    return plan.file_bytes[task["key"]]


def _copied_before(destination: Destination) -> OutputExistsError:
    return OutputExistsError(
        f"the destination {destination.url} is not empty, and nothing is ever overwritten",
        hint="If an earlier run without --move has filled it: check it with `shardwright verify`, then delete the store here yourself."
        " Else choose another one",
    )


def _depth(key: str) -> int:
    return key.count("/")


def _files(root: Path) -> Iterator[Path]:
    """Every regular file and link to one, but for what jobs keep. Raises ``StorageError`` for what is neither file nor folder."""
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders[:] = sorted(name for name in folders if name != WORK_FOLDER)
        for name in folders:
            if (Path(folder) / name).is_symlink():
                raise StorageError(f"{Path(folder) / name} is a link to a folder; a store is moved with links to files only")
        for name in sorted(names):
            path = Path(folder) / name
            if not path.is_file():
                what = "a link to a file that is not there: is the second root mounted?" if path.is_symlink() else "neither a file nor a folder"
                raise StorageError(f"{path} is {what}")
            yield path


def _raise(error: OSError) -> None:
    with storage_errors("list", str(error.filename)):
        raise error


def _shard_of(store: Store, file: Path) -> dict[str, Any] | None:
    """Which shard a file is. One outside of its array's grid holds nothing that is read, and travels as it is."""
    for array in store.arrays:
        if file.is_relative_to(array.path):
            coordinates = array.coordinates_of(file.relative_to(array.path).as_posix())
            if coordinates is not None and array.contains_shard(coordinates):
                return {"array": str(array.path), "shard": list(coordinates)}
    return None


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    """The lock in a work folder, and the folder gone at the end if nothing else is in it."""
    if not folder.is_dir():
        raise StorageError(f"no such store: {folder}")
    make_directories(folder / WORK_FOLDER)
    lock = StoreLock.take(folder / WORK_FOLDER / name)
    try:
        yield
    finally:
        lock.delete()
        with suppress(OSError):  # not empty: another job's, or a record of ours
            reach("compact.before_remove_work_folder")
            (folder / WORK_FOLDER).rmdir()


def claimed_record(folder: Path, destination: Destination) -> MoveRecord:
    """The record of this job, its claim made. One that says complete is of an output that is not there any more, and means nothing."""
    record = MoveRecord.find(folder, destination.url)
    if record is not None and record.complete:
        record.delete()
    record = MoveRecord.open(folder, destination.url)
    if not record.claimed:
        destination.release(record.token)  # of a job killed before it knew that the place was empty
    try:
        if destination.claim(record.token):
            record.sent = {}  # nothing is there, also if somebody has cleared it since
    except (OutputExistsError, LockedError):
        if not record.claimed:
            record.delete()
        raise
    if not record.claimed:
        record.claimed = True
        record.save()
    return record


def _send(plan: MovePlan, record: MoveRecord, destination: Destination, execute: Execute, report: MoveReport) -> None:
    """Phase by phase; where one stays incomplete, none of the next begins."""
    wanted: set[str] = set()
    try:
        for phase, run in ((plan.data, execute), *((level, _run_here) for level in plan.metadata)):
            wanted |= {task["key"] for task in phase}
            _send_phase(phase, record, destination, run, report)
            if report.failures or not wanted <= record.sent.keys():
                return
    except KeyboardInterrupt:
        report.interrupted = True
        return
    record.sent = {key: file for key, file in record.sent.items() if key in wanted}
    record.complete = True
    record.save()
    report.complete = True


def _send_phase(phase: list[dict[str, Any]], record: MoveRecord, destination: Destination, execute: Execute, report: MoveReport) -> None:
    todo = {task["key"]: task for task in phase if not _is_finished(task, record, destination)}
    report.finished += len(phase) - len(todo)
    for key in todo:
        record.sent.pop(key, None)
    given_up = False
    with closing(execute(task for task in todo.values() if not given_up)) as results:
        for result in results:
            report.add(result)
            if result["ok"]:
                record.add(SentFile(result["key"], result["source"], result["nbytes"], todo[result["key"]].get("order")))
            else:
                full = result["error"]["code"] == StorageFullError.code  # then so it is for the others
                given_up = given_up or full or not _can_go_on(destination)


def _run_here(tasks: Iterable[dict[str, Any]]) -> Generator[dict[str, Any], None, None]:
    """Small files, for which no worker need be started; at this process's priority."""
    for task in tasks:
        yield run_task(task | {"manners": Manners(idle=False).to_dict()})


def _can_go_on(destination: Destination) -> bool:
    """Whether a failure was one file's. Where the destination does not answer, or the claim is gone, every other file would fail as well."""
    try:
        return destination.size(CLAIM_KEY) is not None
    except StorageError:
        return False


def _is_finished(task: dict[str, Any], record: MoveRecord, destination: Destination) -> bool:
    """Sent and verified by an earlier job, and both sides are still as they were then."""
    sent = record.sent.get(task["key"])
    if sent is None or sent.order != task.get("order"):
        return False
    return sent.source == identify(Path(task["file"])) and destination.size(sent.key) == sent.nbytes


def _all_there(record: MoveRecord, destination: Destination) -> bool:
    return all(destination.size(sent.key) == sent.nbytes for sent in record.sent.values())


def _delete_source(root: Path, record: MoveRecord, destination: Destination) -> tuple[int, list[str]]:
    """Delete what was sent: how many files, and instead of that which ones are not as they were sent. Then nothing at all is deleted."""
    kept = [file.relative_to(root).as_posix() for file in _remaining(root) if not _may_go(root, file, record, destination)]
    if kept:
        return 0, kept
    metadata = sorted((key for key in record.sent if Path(key).name == METADATA_NAME), key=_depth)
    others = [key for key in record.sent if Path(key).name != METADATA_NAME]
    deleted = 0
    for keys in (metadata, others):
        for key in keys:
            deleted += _delete(root, key)
        for folder in {(root / key).parent for key in keys}:
            if folder.is_dir():
                sync_directory(folder)  # no shard vanishes, also after a power cut, before nobody can open the store any more
    return deleted, []


def _remaining(root: Path) -> Iterator[Path]:
    """Files and links below a store, but for what jobs keep; links also when what they led to is deleted."""
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders[:] = sorted(name for name in folders if name != WORK_FOLDER)
        yield from (Path(folder) / name for name in sorted(names))


def _may_go(root: Path, file: Path, record: MoveRecord, destination: Destination) -> bool:
    sent = record.sent.get(file.relative_to(root).as_posix())
    if sent is None or destination.size(sent.key) != sent.nbytes:
        return False
    return not file.exists() or identify(file) == sent.source


def _delete(root: Path, key: str) -> bool:
    """Of a spilled shard the file behind the link as well, and the folders there that are empty then."""
    path = root / key
    with storage_errors("delete", path):
        if not os.path.lexists(path):
            return False
        target = path.resolve()
        reach("compact.before_delete_source")
        if path.is_symlink() and target.parts[-len(Path(key).parts) :] == Path(key).parts:
            target.unlink(missing_ok=True)
            for folder in target.parents[: len(Path(key).parts)]:
                _clear(folder / WORK_FOLDER, f"*{WORKING_SUFFIX}")
                with suppress(OSError):  # not empty yet
                    folder.rmdir()
        path.unlink()
    return True


def _clear_dead_work(root: Path) -> None:
    """What jobs kept beside the arrays (that one is queued, shards in the making, locks of the killed): it means nothing without them."""
    for folder in sorted(root.rglob(WORK_FOLDER)):
        with suppress(LockedError), _locked(folder.parent, LOCK_NAME), storage_errors("clear", folder):
            _clear(folder, "*")


def _clear(work_folder: Path, pattern: str) -> None:
    """All but locks and the records of moves; the folder as well, if it is empty then."""
    if not work_folder.is_dir():
        return
    for path in work_folder.glob(pattern):
        if path.is_file() and path.name != LOCK_NAME and not path.name.startswith(PREFIX):
            reach("compact.before_clear")
            path.unlink(missing_ok=True)
    with suppress(OSError):  # its lock is in it
        reach("compact.before_remove_work_folder")
        work_folder.rmdir()


def _remove_empty_folders(root: Path) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        with suppress(OSError):  # something is in it that was not sent, for instance another job's work folder
            reach("compact.before_remove_source_folder")
            Path(folder).rmdir()
    if not root.exists():
        sync_directory(root.parent)
