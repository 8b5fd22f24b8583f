"""The arrays that a job makes: folders with a zarr.json, where no reader looks for them, and one task for
each of their shards that the source can fill (``shards_to_make``).

    JobFolder.begin ──▶ make_arrays: every shard, array by array ──▶ check_unchanged: the source
    ──▶ the arrays get their names ──▶ publish_group: the image's metadata name them

Shards that an interrupted run made are there under their names and are not made again. A shard that holds
nothing but fill value leaves no file: whether there is one is found out again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.array.consolidated_metadata import consolidated_metadata, encode_consolidated
from shardwright.array.document import encode_document
from shardwright.disk import beneath
from shardwright.disk.files import (
    free_bytes,
    make_directories,
    replace_file,
    storage_errors,
    sync_directory,
)
from shardwright.model.errors import (
    ShardFormatError,
    StorageFullError,
    ValuesChangedError,
    error_from_dict,
)
from shardwright.model.names import DOCUMENT
from shardwright.read.store import groups_above, parse_array, read_metadata, read_nodes
from shardwright.rework.runtime.job_report import Progress
from shardwright.shard.edit_files import check_not_edited

from .new_shard import is_made
from .shards_to_make import decoded_bytes, shard_coordinates, shards_to_make, written_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt

    from shardwright.array.spec import Method
    from shardwright.read.store import StoredArray
    from shardwright.rework.runtime.job_folder import JobFolder
    from shardwright.rework.runtime.job_report import BuildReport, OnProgress
    from shardwright.rework.runtime.tasks import RunTasks
    from shardwright.rework.runtime.throttle import Throttle


@dataclass(frozen=True)
class Build:
    """One run of a job that makes arrays. ``run`` does its tasks, at the ``throttle`` of the whole job;
    ``report`` counts them, and ``on_progress`` gets decoded bytes."""

    run: RunTasks
    throttle: Throttle
    report: BuildReport
    on_progress: OnProgress


@dataclass(frozen=True)
class NewArray:
    """An array to be made in ``folder`` from the array in ``source``. ``document``: its zarr.json.
    ``factors``: elements of the source for one of it, along each axis, and ``method`` how they become one
    (``MadeValues``). ``memory_bytes``: of one worker. ``lossy``: its codecs may round."""

    folder: Path
    source: Path
    document: dict[str, Any]
    factors: tuple[int, ...]
    method: Method | None
    memory_bytes: int
    lossy: bool

    def begin(self) -> StoredArray:
        """The array with its zarr.json on disk. Raises ``StorageError``."""
        make_directories(self.folder)
        if not beneath.exists(self.folder / DOCUMENT):
            replace_file(self.folder / DOCUMENT, encode_document(self.document))
        return parse_array(self.folder)


@dataclass(frozen=True)
class _BegunArray:
    """A new array whose zarr.json is written, and whose shards are being made. ``shards``: int64[n], the
    numbers of those to make."""

    new: NewArray
    array: StoredArray
    shards: npt.NDArray[np.int64]

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        return (shard_coordinates(self.array, int(number)) for number in self.shards)

    def key(self, shard: tuple[int, ...]) -> str:
        return f"{self.new.folder.name}/{self.array.shard_key(shard)}"


def make_arrays(arrays: list[NewArray], folder: JobFolder, build: Build) -> bool:
    """Make every shard that is not there yet, array by array; True when all are there. A shard that fails
    keeps no other from being made, but an array whose source is not whole is left to the next run.

    Raises ``ValuesChangedError`` as soon as a codec changes a value; nothing of the job is left then, since
    no run can complete it. Raises ``BudgetError`` for too many shards.
    """
    begun = _begin(arrays)
    sizes = (decoded_bytes(one.array, shard) for one in begun for shard in one.coordinates())
    progress = Progress(sum(sizes), build.on_progress)
    incomplete: set[Path] = set()
    try:
        for one in begun:
            if one.new.source in incomplete or not _make_array(one, folder.work, build, progress):
                incomplete.add(one.new.folder)
    except ValuesChangedError:
        folder.clear()
        raise
    return not incomplete


def _begin(arrays: list[NewArray]) -> list[_BegunArray]:
    """Raises ``BudgetError`` for too many shards."""
    begun: dict[Path, _BegunArray] = {}
    for new in arrays:
        array, below = new.begin(), begun.get(new.source)
        source = parse_array(new.source) if below is None else below.array
        # a level below that is made by this job has no files yet
        written = written_shards(source) if below is None else below.coordinates()
        shards = shards_to_make(written, source, array, new.factors, new.memory_bytes)
        begun[new.folder] = _BegunArray(new, array, shards)
    return list(begun.values())


def _make_array(one: _BegunArray, work: Path, build: Build, progress: Progress) -> bool:
    report = build.report
    failed = len(report.failures)
    common = {
        "kind": "make",
        "source": str(one.new.source),
        "array": str(one.new.folder),
        "factors": list(one.new.factors),
        "method": one.new.method,
        "memory_bytes": one.new.memory_bytes,
        "lossy": one.new.lossy,
        "work": str(work),
        "throttle": build.throttle.of_one_worker(len(one.shards)).to_dict(),
    }

    def found(shard: tuple[int, ...]) -> None:
        report.shards_found += 1
        progress.add(decoded_bytes(one.array, shard))

    todo = _missing(one, found)
    for result in build.run({**common, "shard": list(shard), "key": one.key(shard)} for shard in todo):
        if not result["ok"] and result["error"]["code"] == ValuesChangedError.code:
            raise error_from_dict(result["error"])
        report.add(result)
        progress.add(decoded_bytes(one.array, tuple(result["shard"])))
    return len(report.failures) == failed


def _missing(one: _BegunArray, on_found: Callable[[tuple[int, ...]], None]) -> Iterator[tuple[int, ...]]:
    """Yields the shards that are not there yet."""
    synced: set[Path] = set()
    for shard in one.coordinates():
        if not is_made(one.array, shard):
            yield shard
            continue
        # a run that was killed right after a shard got its name has not synced its folder
        parents = {one.new.folder / parent for parent in Path(one.array.shard_key(shard)).parents}
        for folder in sorted(parents - synced):
            sync_directory(folder)
        synced = parents  # shards of a folder come one after the other
        on_found(shard)


def stored_bytes(array: StoredArray) -> int:
    """The bytes that the array's shards take on the disk, without gaps that were given back."""
    total = 0
    for key, coordinates in array.shard_files():
        if coordinates is not None:
            with storage_errors("look at", array.path / key):
                status = beneath.stat(array.path / key)
            total += min(status.st_size, status.st_blocks * 512)
    return total


def check_room(folder: Path, nbytes: int) -> None:
    """Raises ``StorageFullError`` when ``nbytes`` do not fit the folder's filesystem."""
    free = free_bytes(folder)
    if free < nbytes:
        raise StorageFullError(
            f"not enough room in {folder}",
            expected=f"about {nbytes} bytes",
            got=f"{free} free",
            hint="Free some space; nothing was written",
        )


def fingerprint(array: StoredArray) -> str:
    """A hash of each shard's key, length, time of change and inode, by which a job sees that an array is
    still the one that it began with.

    Another acquisition under the same name differs, even with shards of the same lengths. The number of the
    device is left out: another boot may change it. Raises ``LockedError`` for a shard that is half updated,
    ``StorageError``.
    """
    digest = hashlib.sha256()
    for key, _ in sorted(array.shard_files()):
        check_not_edited(array.path, key)
        with storage_errors("look at", array.path / key):
            status = beneath.stat(array.path / key)
        digest.update(json.dumps([key, status.st_size, status.st_mtime_ns, status.st_ino]).encode())
    return digest.hexdigest()


def check_unchanged(source: Path, *, same: bool) -> None:
    """Raises ``ShardFormatError`` unless ``source`` is the ``same``: the new arrays may be of two states of
    it."""
    if not same:
        raise ShardFormatError(
            f"{source} changed while it was read; nothing was published",
            hint="Wait until no other job compacts or moves it, then run this again",
        )


def publish_group(folder: Path, group: dict[str, Any], *, source: Path) -> None:
    """Replace the zarr.json of an image group, once everything that it names is there. Consolidated again if
    ``source``, the group that it was made from, was. Raises ``ShardFormatError``, ``StorageError``."""
    was_consolidated = consolidated_metadata(read_metadata(source)) is not None
    nodes = read_nodes(folder) if was_consolidated else {}
    document = encode_consolidated(group, nodes) if was_consolidated else encode_document(group)
    replace_file(folder / DOCUMENT, document)


def check_parents(root: Path) -> None:
    """Raises ``ShardFormatError`` when a group above the image has consolidated metadata, which a change of
    the image's own would make wrong."""
    for folder in groups_above(root):
        if consolidated_metadata(read_metadata(folder)) is not None:
            raise ShardFormatError(
                f"{folder} has consolidated metadata, which describe {root.name} as it is now",
                hint="Delete consolidated_metadata from its zarr.json, and consolidate it again "
                "(zarr.consolidate_metadata) afterwards",
            )
