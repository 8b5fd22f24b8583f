"""What a move sends: every file of a store as a task, in the phases in which they go, and whether there is
room for all of it.

Nothing is changed here. Of a store everything travels but what jobs keep (``.compact``): shards are packed on
their way, links to spilled ones arrive as plain files, anything else goes as it is. Metadata goes last, the
deepest first, since readers find a store by it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ConfigError, ShardFormatError, StorageError, StorageFullError
from shardwright.read.store import Store, open_store
from shardwright.repack.runtime.work_folder import WORK_FOLDER
from shardwright.repack.source_shard import SourceShard
from shardwright.storage.files import storage_errors

from .local_folder import LocalFolder
from .open_destination import open_destination
from .transfer_item import identify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .move_report import MoveOptions

METADATA_NAME = "zarr.json"


@dataclass(frozen=True)
class MovePlan:
    """What has to be sent: ``data`` in any order, then ``metadata``, level by level. ``file_bytes``: by key,
    of the source's files."""

    store: Store
    data: list[dict[str, Any]]
    metadata: list[list[dict[str, Any]]]
    file_bytes: dict[str, int]

    @property
    def phases(self) -> list[list[dict[str, Any]]]:
        return [self.data, *self.metadata]


def plan_move(path: Path, options: MoveOptions) -> MovePlan:
    """Every file of a store as a task. Changes nothing. Raises as ``open_store`` does, and for what cannot
    travel."""
    store = open_store(path)
    store.check_references()
    destination = open_destination(options.destination)
    if store.root != path or (options.delete_source and (path.parent / METADATA_NAME).exists()):
        raise ConfigError(f"{path} is a part of a store", hint="A store moves as a whole: give its folder")
    if isinstance(destination, LocalFolder) and destination.root.resolve().is_relative_to(
        store.root.resolve()
    ):
        raise ConfigError(
            f"the destination {destination.url} lies in the store itself",
            hint="Choose a folder outside of it",
        )
    shards: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    metadata: list[dict[str, Any]] = []
    file_bytes = {}
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
        place = _shard_of(store, file)
        if place is not None:
            shards.append(task | place | {"order": options.order})
        else:
            (metadata if file.name == METADATA_NAME else others).append(task)
    levels = sorted({depth(task["key"]) for task in metadata}, reverse=True)
    return MovePlan(
        store,
        shards + others,
        [[task for task in metadata if depth(task["key"]) == level] for level in levels],
        file_bytes,
    )


def check_room(plan: MovePlan, destination: LocalFolder, found: dict[str, int]) -> None:
    """Raises ``StorageFullError`` when what is not among ``found`` there has no room.

    How long shards will be is looked up only where that decides it.
    """
    todo = [task for phase in plan.phases for task in phase if task["key"] not in found]
    free = destination.free_bytes()
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
    """What a file will be at the destination. A damaged shard counts as it is; sending it will say what is
    wrong."""
    if "shard" in task:
        array = next(array for array in plan.store.arrays if str(array.path) == task["array"])
        with suppress(ShardFormatError), SourceShard(array, tuple(task["shard"])) as source:
            return source.pack_plan(task["order"]).file_bytes
    return plan.file_bytes[task["key"]]


def _shard_of(store: Store, file: Path) -> dict[str, Any] | None:
    """Which shard a file is. One outside of its array's grid holds nothing that is read, and travels as it
    is."""
    for array in store.arrays:
        if file.is_relative_to(array.path):
            coordinates = array.coordinates_of(file.relative_to(array.path).as_posix())
            if coordinates is not None and array.contains_shard(coordinates):
                return {"array": str(array.path), "shard": list(coordinates)}
    return None


def _files(root: Path) -> Iterator[Path]:
    """What travels. Raises ``StorageError`` for what is neither a file nor a link to one."""
    for path in files_and_links(root):
        if not path.is_file():
            if path.is_dir():
                raise StorageError(f"{path} is a link to a folder; a store is moved with links to files only")
            what = (
                "a link to a file that is not there: is the second root mounted?"
                if path.is_symlink()
                else "neither a file nor a folder"
            )
            raise StorageError(f"{path} is {what}")
        yield path


def files_and_links(root: Path) -> Iterator[Path]:
    """All below a store that is no folder, but for what jobs keep; links also when they lead nowhere. Raises
    ``StorageError``."""
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders[:] = sorted(name for name in folders if name != WORK_FOLDER)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from (Path(folder) / name for name in sorted(names + links))


def _raise(error: OSError) -> None:
    with storage_errors("list", str(error.filename)):
        raise error


def depth(key: str) -> int:
    return key.count("/")
