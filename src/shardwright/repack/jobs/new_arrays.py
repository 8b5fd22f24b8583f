"""An array in the making: its folder with a zarr.json, where no reader looks for it, and one task for each of
its shards.

Shards that an earlier, killed run made are there under their names and are not made again; those that turn
out to hold nothing but fill value leave no file, so they are looked at again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError, StorageFullError
from shardwright.read.store import parse_array
from shardwright.storage.files import make_directories, replace_file, storage_errors, sync_directory

from .new_shard import finished

if TYPE_CHECKING:
    from shardwright.read.store import StoredArray

RunTasks = Callable[[Iterable[dict[str, Any]]], Iterator[dict[str, Any]]]
Progress = Callable[[int, int], None]  # decoded bytes of the new arrays made so far, and in all


@dataclass(frozen=True)
class NewArray:
    """``folder`` is where it grows; ``task`` is what all its tasks have in common, but that its throttle are
    the job's (see ``of_one_worker``)."""

    folder: Path
    document: bytes
    task: dict[str, Any]

    def begin(self) -> StoredArray:
        """The array with its zarr.json on disk. Raises ``StorageError``."""
        make_directories(self.folder)
        if not (self.folder / "zarr.json").exists():
            replace_file(self.folder / "zarr.json", self.document)
        return parse_array(self.folder)


@dataclass
class BuildReport:
    """What a job did. ``shards_found``: made by an earlier run; ``failures``: results of tasks that failed;
    ``already``: complete arrays. ``bytes_sent``: to a destination that is no folder."""

    path: str
    made: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    shards_made: int = 0
    shards_found: int = 0
    chunks: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_sent: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def add(self, result: dict[str, Any]) -> None:
        self.bytes_read += int(result["bytes_read"])
        self.bytes_written += int(result["bytes_written"])
        self.peak_bytes = max(self.peak_bytes, int(result.get("peak_bytes", 0)))
        if not result["ok"]:
            self.failures.append(result)
        elif result.get("skipped"):
            self.shards_found += 1
        else:
            self.shards_made += 1
            self.chunks += int(result["chunks"])


class Meter:
    """Counts what was made against what there is to make, in decoded bytes."""

    def __init__(self, total_bytes: int, on_progress: Progress | None) -> None:
        self._done, self._total, self._on_progress = 0, total_bytes, on_progress
        self.add(0)

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def make_array(new: NewArray, run: RunTasks, report: BuildReport, meter: Meter) -> bool:
    """Make every shard that is not there yet; True when all are. One bad shard keeps no other from being
    made."""
    array = new.begin()
    failed = len(report.failures)
    todo, folders = [], set()
    for shard in itertools.product(*map(range, array.grid_shape)):
        if finished(array, shard):
            report.shards_found += 1
            meter.add(_decoded_bytes(array, shard))
            folders |= {new.folder / parent for parent in Path(array.shard_key(shard)).parents}
        else:
            todo.append(shard)
    for folder in sorted(folders):
        # the run that was killed may have had no time to do that after a shard got its name
        sync_directory(folder)
    name = new.folder.name
    common = {**new.task, "throttle": of_one_worker(new.task["throttle"], len(todo))}
    tasks = (
        {**common, "array": str(new.folder), "shard": list(shard), "key": f"{name}/{array.shard_key(shard)}"}
        for shard in todo
    )
    for result in run(tasks):
        report.add(result)
        meter.add(_decoded_bytes(array, tuple(result["shard"])))
    return len(report.failures) == failed


def of_one_worker(throttle: dict[str, Any], tasks: int) -> dict[str, Any]:
    """Throttle of each of ``tasks`` of a job. The job's may name its ``workers``: as many of them as have a
    task share its rate."""
    workers, rate = throttle.get("workers", 1), throttle.get("bytes_per_s")
    share = None if rate is None else rate / max(1, min(workers, tasks))
    return {**{key: value for key, value in throttle.items() if key != "workers"}, "bytes_per_s": share}


def _decoded_bytes(array: StoredArray, shard: tuple[int, ...]) -> int:
    inside = (min(s, n - i * s) for i, s, n in zip(shard, array.shard_shape, array.shape, strict=True))
    return math.prod(inside) * array.dtype.itemsize


def stored_bytes(array: StoredArray) -> int:
    """What the array's shards take on the disk now, their gaps left out where those have been given back."""
    total = 0
    for key, coordinates in array.shard_files():
        if coordinates is not None:
            with storage_errors("look at", array.path / key):
                status = (array.path / key).stat()
            total += min(status.st_size, status.st_blocks * 512)
    return total


def check_room(folder: Path, nbytes: int) -> None:
    """Raises ``StorageFullError`` when so much is expected not to fit."""
    with storage_errors("look at", folder):
        facts = os.statvfs(folder)
    free = facts.f_bavail * facts.f_frsize
    if free < nbytes:
        raise StorageFullError(
            f"not enough room in {folder}",
            expected=f"about {nbytes} bytes",
            got=f"{free} free",
            hint="Free some space; nothing has been begun",
        )


def fingerprint(array: StoredArray) -> str:
    """What tells whether an array is still the one that a job began with: a hash of each shard's key, length,
    time of change and inode.

    Another acquisition under the same name has others, even with shards of the same lengths. Not its device's
    number, which another boot may change.
    """
    digest = hashlib.sha256()
    for key, _ in sorted(array.shard_files()):
        with storage_errors("look at", array.path / key):
            status = (array.path / key).stat()
        digest.update(json.dumps([key, status.st_size, status.st_mtime_ns, status.st_ino]).encode())
    return digest.hexdigest()


def check_unchanged(source: Path, *, same: bool) -> None:
    """Raises ``ShardFormatError`` when what was made may be of two different states of ``source``."""
    if not same:
        raise ShardFormatError(
            f"{source} changed while it was read; nothing was published",
            hint="Wait until nothing compacts or moves it any more, then run this again",
        )
