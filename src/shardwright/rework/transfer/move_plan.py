"""The plan of a move: every file of a store as a task, in the phases in which they are sent, and whether
there is room for all of it; also the options and the report.

Planning changes nothing. All of a store is sent but what jobs keep (``.compact``): shards are packed on their
way, links to spilled ones arrive as plain files, any other file is sent as it is. Metadata are sent last, the
deepest first, since readers find a store by them; those of an image that has its position from a group above
get it on their way.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.array.ome import moved_document
from shardwright.array.ome_version import ome_in
from shardwright.disk import beneath
from shardwright.disk.files import storage_errors
from shardwright.disk.spill_links import shard_status
from shardwright.model.errors import ConfigError, ShardFormatError, StorageError, StorageFullError
from shardwright.model.names import DOCUMENT
from shardwright.read.store import Store, open_store, position_above, read_metadata
from shardwright.rework.runtime.throttle import Throttle
from shardwright.rework.source_shard import SourceShard
from shardwright.shard.edit_files import JOURNAL_SUFFIX, check_not_edited, journals_below
from shardwright.store.moved_store import files_and_links

from .address import open_destination
from .archive_file import ArchiveFile
from .local_folder import LocalFolder
from .transfer_item import identify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class MoveOptions:
    """The options of a move. ``destination``: a folder, NAME.ozx or s3://BUCKET/PREFIX. ``delete_source``:
    once all is there and verified. ``order``: of the chunks in a shard. ``throttle``: of each worker."""

    destination: str
    delete_source: bool = False
    order: str = "row_major"
    throttle: Throttle = field(default_factory=Throttle)


@dataclass
class MoveReport:
    """The result of a move, or of a run of it.

    ``sent``: files. ``verified``: files that an earlier, unfinished job had sent and this one only verified;
    ``finished``: those that it had verified as well. ``complete``: all is there. ``deleted``: source files.

    ``damaged``: shards that were sent as they are. ``kept``: source files that came, changed or went
    after they were sent. With either of these two nothing was deleted, but for what an earlier run had
    deleted if it had begun to: ``deleting``. ``unpacked``: shards that were sent as they are since they hold
    more than the array (``unknown_bytes``): nothing is wrong with them. ``nothing_left``: no file is here and
    a store is at the destination, as after a move that failed or was killed when it removed the folders.
    ``abandoned``: other destinations, where a copy that was interrupted can never be continued now.
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
    nothing_left: bool = False
    deleting: bool = False
    deleted: int = 0
    damaged: list[dict[str, Any]] = field(default_factory=list)
    unpacked: list[dict[str, Any]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.complete and not self.damaged and not self.kept

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def add(self, result: dict[str, Any]) -> None:
        """Count the result of one task."""
        self.bytes_read += result["bytes_read"]
        self.bytes_written += result["bytes_written"]
        if not result["ok"]:
            self.failures.append({"key": result["key"], "error": result["error"]})
            return
        if "unpacked" in result:
            self.unpacked.append({"key": result["key"], "error": result["unpacked"]})
        if result["skipped"]:
            self.verified += 1
        else:
            self.sent += 1


@dataclass(frozen=True)
class MovePlan:
    """The tasks of a move: ``data`` in any order, then ``metadata``, level by level. ``file_bytes``: of the
    source's files, by key. ``metadata_first``: into one file, where they stand in front."""

    store: Store
    data: list[dict[str, Any]]
    metadata: list[list[dict[str, Any]]]
    file_bytes: dict[str, int]
    metadata_first: bool = False

    @property
    def phases(self) -> list[list[dict[str, Any]]]:
        return [*self.metadata, self.data] if self.metadata_first else [self.data, *self.metadata]


def plan_move(path: Path, options: MoveOptions) -> MovePlan:
    """The plan for the store at ``path``. Raises as ``open_store`` does, ``ConfigError`` for a part of a
    store or a destination inside of it, ``LockedError`` for a shard that is being updated, or of
    which an update was interrupted, ``StorageError`` for a file that cannot be sent."""
    store = open_store(path)
    store.check_references()
    store.check_spelling()
    # The journal of an update is not sent: a shard that is half updated would stay so at the destination. One
    # at work may yet be killed.
    for journal in journals_below(store.root):
        check_not_edited(journal.parent.parent, journal.name.removesuffix(JOURNAL_SUFFIX))
    destination = open_destination(options.destination)
    # A move out of a store would leave metadata that name what is gone; a copy of a whole store below another
    # one leaves that as it is.
    if store.root != path or (options.delete_source and beneath.exists(path.parent / DOCUMENT)):
        raise ConfigError(f"{path} is a part of a store", hint="A store is sent as a whole: give its folder")
    if isinstance(destination, (LocalFolder, ArchiveFile)):
        store.check_outside(destination.root)
    shards: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    metadata: list[dict[str, Any]] = []
    file_bytes = {}
    position = _position_above(store)
    for file in _files(store.root):
        key = file.relative_to(store.root).as_posix()
        file_bytes[key] = identify(file)[0]
        task = {
            "kind": "move",
            "destination": destination.url,
            "key": key,
            "file": str(file),
            "throttle": options.throttle.to_dict(),
        }
        of_shard = _shard_of(store, file)
        if of_shard is not None:
            shards.append(task | of_shard | {"order": options.order})
        elif file.name == DOCUMENT:
            metadata.append(task | _moved(file, position))
        else:
            others.append(task)
    if isinstance(destination, ArchiveFile):
        destination.check_store(store.group, file_bytes)
    # In a stable order: the same store makes the same file.
    for tasks in (others, metadata):
        tasks.sort(key=lambda task: str(task["key"]))
    shards.sort(key=lambda task: (str(task["array"]), tuple(task["shard"])))
    levels = sorted({depth(task["key"]) for task in metadata}, reverse=destination.shows_parts)
    return MovePlan(
        store,
        shards + others,
        [[task for task in metadata if depth(task["key"]) == level] for level in levels],
        file_bytes,
        metadata_first=not destination.shows_parts,
    )


def _position_above(store: Store) -> dict[str, float]:
    """Returns the position, by axis, that an image has by the scene of a group above, which is not sent;
    empty without one, and for what is no image."""
    if store.group is None or store.collection is not None:
        return {}
    at = position_above(store.root, store.group["ome"]["multiscales"][0])
    return at if any(at.values()) else {}


def _moved(file: Path, position: dict[str, float]) -> dict[str, Any]:
    """Returns what the task of a zarr.json says of the position that an image loses. Raises
    ``ShardFormatError`` for metadata that cannot have it."""
    if not position or not ome_in(document := read_metadata(file.parent, foreign=True)).get("multiscales"):
        return {}
    moved_document(document, position)
    return {"moved": position}


def check_room(plan: MovePlan, destination: LocalFolder | ArchiveFile, found: dict[str, int]) -> None:
    """Raises ``StorageFullError`` when the files that are not ``found`` there have no room. The length of
    packed shards is looked up only when it decides that."""
    todo = [task for phase in plan.phases for task in phase if task["key"] not in found]
    free = destination.free_bytes()
    # Packed shards are shorter, but only their indexes say by how much: none is read if the files fit as they
    # are.
    if (
        sum(plan.file_bytes[task["key"]] for task in todo) > free
        and (needed := sum(_sent_bytes(plan, task) for task in todo)) > free
    ):
        raise StorageFullError(
            f"no room for {plan.store.root} in {destination.url}",
            expected=f"{needed} bytes free",
            got=f"{free}",
            hint="Free some space there, or choose another destination",
        )


def _sent_bytes(plan: MovePlan, task: dict[str, Any]) -> int:
    """The bytes of a file at the destination. A damaged shard counts as it is; sending it reports the
    fault."""
    if "shard" in task:
        array = next(array for array in plan.store.arrays if str(array.path) == task["array"])
        with suppress(ShardFormatError), SourceShard(array, tuple(task["shard"])) as source:
            if array.container is not None:
                return plan.file_bytes[task["key"]]
            return source.pack_plan(task["order"]).file_bytes
    return plan.file_bytes[task["key"]]


def _shard_of(store: Store, file: Path) -> dict[str, Any] | None:
    """The shard that a file is. One outside of its array's grid holds nothing that is read, and is sent as it
    is."""
    for array in store.arrays:
        if file.is_relative_to(array.path):
            coordinates = array.coordinates_of(file.relative_to(array.path).as_posix())
            if coordinates is not None and array.contains_shard(coordinates):
                return {"array": str(array.path), "shard": list(coordinates)}
    return None


def _files(root: Path) -> Iterator[Path]:
    """The files that are sent. Raises ``StorageError`` for anything that is neither a file nor a link to a
    spilled shard."""
    for path in files_and_links(root):
        with storage_errors("look at", path):
            mode = shard_status(path).st_mode
        if not stat.S_ISREG(mode):
            raise StorageError(f"{path} is neither a file nor a folder")
        yield path


def depth(key: str) -> int:
    return key.count("/")
