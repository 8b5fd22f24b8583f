"""The image of one store written as a new store with other chunks, restartable at any moment.

    PARENT/.NAME.rechunk/lock        held for the whole job
    PARENT/.NAME.rechunk/job.json    what is being made of which shards; a run that finds something else there
                                     begins anew
    PARENT/.NAME.rechunk/work        working files of shards
    PARENT/.NAME.rechunk/store       the new store; renamed to PARENT/NAME when it is complete: readers see
                                     all of it or nothing

What goes along: every level of the image (or level 0 and new levels made of it), all attributes, the frame
table. Groups and arrays that the image's metadata does not name stay behind.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.array.document import understood
from shardwright.array.frame_table import TABLE_PATH
from shardwright.array.levels import derived_array, fitting_shards, group_document, multiscale_of
from shardwright.codecs.parameters import codec_of, inner_codecs
from shardwright.model.errors import OutputExistsError, SpecError
from shardwright.read.store import parse_array, read_metadata
from shardwright.storage.failpoints import reach
from shardwright.storage.files import (
    make_directories,
    publish_folder,
    read_regular,
    replace_file,
    storage_errors,
)
from shardwright.storage.lock import StoreLock

from .copy_folder import copy_folder
from .new_arrays import (
    BuildReport,
    Meter,
    NewArray,
    check_room,
    check_unchanged,
    fingerprint,
    make_array,
    stored_bytes,
)
from .publish_group import publish_group
from .pyramid_levels import Level, PyramidOptions, plan_levels, readable_image
from .rechunk_shard import plan_rechunk
from .region_plan import DEFAULT_MEMORY_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.spec import Blosc, Gzip, Zstd
    from shardwright.read.store import Store, StoredArray

    from .new_arrays import Progress, RunTasks

KEEP_CODEC = "as it is"


@dataclass(frozen=True)
class RechunkOptions:
    """``chunks`` and ``shards``: elements along the axes that are named; other chunks stay as they are,
    shards as far as whole chunks allow. ``codec``: None stores chunks as they are. ``pyramid``: make new
    levels of level 0; None takes over those that are there."""

    chunks: dict[str, int]
    shards: dict[str, int] | None = None
    codec: Blosc | Zstd | Gzip | str | None = KEEP_CODEC
    pyramid: PyramidOptions | None = None
    memory_bytes: int = DEFAULT_MEMORY_BYTES


@dataclass(frozen=True)
class RechunkPlan:
    """``arrays``: (name, zarr.json) of each array that is rechunked; ``levels`` are then made of the
    first."""

    store: Store
    arrays: list[tuple[str, bytes]]
    levels: list[Level]
    group: bytes

    @property
    def total_bytes(self) -> int:
        itemsize = self.store.arrays[0].dtype.itemsize
        shapes: list[tuple[int, ...]] = [
            *(tuple(json.loads(document)["shape"]) for _, document in self.arrays),
            *(level.shape for level in self.levels),
        ]
        return sum(map(math.prod, shapes)) * int(itemsize)


def plan_new_store(path: Path, options: RechunkOptions) -> RechunkPlan:
    """Raises ``ShardFormatError`` for a store that cannot be read, ``SpecError`` for options that do not fit
    it."""
    store = readable_image(path)
    multiscale = multiscale_of(store.group)
    axes = [axis["name"] for axis in multiscale["axes"]]
    for asked in (options.chunks, options.shards or {}):
        unknown = sorted(set(asked) - set(axes))
        if unknown:
            raise SpecError("the image has no such axes", expected=", ".join(axes), got=", ".join(unknown))
    if len(axes) < 2:
        raise SpecError("an image has two axes or more", got=len(axes))
    taken = store.arrays if options.pyramid is None else store.arrays[:1]
    arrays = [(array.path.name, _document(array, axes, options)) for array in taken]
    levels, datasets, method = [], multiscale["datasets"], None
    if options.pyramid is not None:
        datasets, method = datasets[:1], options.pyramid.method
        levels = plan_levels(json.loads(arrays[0][1]), datasets, store.arrays[0].shape, axes, options.pyramid)
        datasets = [*datasets, *(level.dataset for level in levels)]
    return RechunkPlan(
        store,
        arrays,
        levels,
        group_document(understood(read_metadata(store.root)), datasets, method if levels else None),
    )


def _document(array: StoredArray, axes: list[str], options: RechunkOptions) -> bytes:
    """zarr.json of the new array. Chunks are never longer than the array, shards hold whole chunks."""
    sizes = options.shards or {}
    chunk = tuple(
        max(1, min(options.chunks.get(axis, c), n))
        for axis, c, n in zip(axes, array.chunk_shape, array.shape, strict=True)
    )
    shard = tuple(
        math.ceil(sizes.get(axis, s) / c) * c
        for axis, s, c in zip(axes, array.shard_shape, chunk, strict=True)
    )
    for axis, c, n in zip(axes, chunk, array.shape, strict=True):
        if axis in sizes and sizes[axis] % c and c < n:
            raise SpecError(
                f"shards of axis {axis} do not hold whole chunks",
                expected=f"a multiple of {c}",
                got=sizes[axis],
            )
    codecs = array.codec_metadata
    if not isinstance(options.codec, str):
        codecs = inner_codecs(options.codec, array.dtype.itemsize, array.codecs.checksum)
    codec_of(codecs)  # raises for what cannot be written
    shard = fitting_shards(array.shape, chunk, shard)
    made = {"rechunked_from": {"chunks": list(array.chunk_shape), "shards": list(array.shard_shape)}}
    document = read_metadata(array.path)
    return derived_array(
        document, shape=array.shape, shard_shape=shard, chunk_shape=chunk, chunk_codecs=codecs, made=made
    )


def describe(plan: RechunkPlan) -> bytes:
    """What is made of what: of the same, a restarted run goes on."""
    arrays = plan.store.arrays[: len(plan.arrays)]
    documents = [json.loads(document) for _, document in plan.arrays] + [
        json.loads(level.document) for level in plan.levels
    ]
    source = {"path": str(plan.store.root), "shards": [fingerprint(array) for array in arrays]}
    return json.dumps({"source": source, "arrays": documents}).encode()


def working_folder(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.rechunk")


def write_new_store(
    plan: RechunkPlan,
    destination: Path,
    options: RechunkOptions,
    run: RunTasks,
    *,
    throttle: dict[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> BuildReport:
    """Make the store ``destination``. Without failures it is there, complete, when this returns; with
    failures what was made waits for the next run.

    Raises ``OutputExistsError``, ``LockedError``, ``StorageError`` (``StorageFullError`` before anything is
    begun), ``ShardFormatError`` when the source changed meanwhile.
    """
    begin_s = time.monotonic()
    destination = destination.absolute()
    folder = working_folder(destination)
    if destination.exists() and folder.exists():
        _clear_after_publishing(folder)
    _check_free(destination)
    make_directories(folder)
    lock = StoreLock.take(folder / "lock")
    try:
        _check_free(destination)  # a job that ended while we waited for nothing may have made it
        report = BuildReport(str(destination))
        job = _RechunkJob(plan, folder, options, throttle or {})
        if job.make(run, report, on_progress):
            job.publish(destination)
            report.made = [name for name, _ in plan.arrays] + [level.name for level in plan.levels]
            _remove_lock(lock)
    finally:
        lock.release()
    report.seconds = time.monotonic() - begin_s
    return report


def _clear_after_publishing(folder: Path) -> None:
    """What a job leaves that is killed after its store got its name; it has nothing more to do. Raises
    ``LockedError`` while it is at work."""
    lock = StoreLock.take(folder / "lock")
    try:
        if not (folder / "store").exists():
            _remove(folder / "work")
            _remove(folder / "job.json")
            _remove_lock(lock)
    finally:
        lock.release()


def _remove_lock(lock: StoreLock) -> None:
    """And its folder, if nothing else is in it."""
    lock.delete()
    with suppress(OSError):
        reach("compact.before_remove_work_folder")
        lock.path.parent.rmdir()


def _check_free(destination: Path) -> None:
    if destination.exists() or destination.is_symlink():
        raise OutputExistsError(
            "the output exists already",
            got=destination,
            hint="Choose another name: nothing is ever overwritten",
        )


class _RechunkJob:
    def __init__(
        self, plan: RechunkPlan, folder: Path, options: RechunkOptions, throttle: dict[str, Any]
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._options = options
        self._throttle = throttle
        self._store = folder / "store"
        self._facts = describe(plan)

    def make(self, run: RunTasks, report: BuildReport, on_progress: Progress | None) -> bool:
        self._begin()
        meter = Meter(self._plan.total_bytes, on_progress)
        common = {
            "work": str(self._folder / "work"),
            "memory_bytes": self._options.memory_bytes,
            "throttle": self._throttle,
        }
        complete = True
        for array, (name, document) in zip(self._plan.store.arrays, self._plan.arrays, strict=False):
            new = NewArray(
                self._store / name, document, {**common, "kind": "rechunk", "source": str(array.path)}
            )
            plan_rechunk(array, new.begin(), self._options.memory_bytes)  # raises for a budget that cannot be
            complete = make_array(new, run, report, meter) and complete
        for level in self._plan.levels if complete else ():
            pyramid = self._options.pyramid
            assert pyramid is not None, "levels are planned from it"
            new = level.new_array(
                self._store / level.name,
                self._store / level.source,
                self._folder / "work",
                pyramid,
                self._throttle,
            )
            if not make_array(new, run, report, meter):
                return False
        if complete:
            check_unchanged(self._plan.store.root, same=describe(self._plan) == self._facts)
        return complete

    def _begin(self) -> None:
        job = self._folder / "job.json"
        with storage_errors("look at", job):
            same = job.exists() and read_regular(job) == self._facts
        for stale in (self._folder / "work", *(() if same else (job, self._store))):
            _remove(stale)
        if not same:
            check_room(self._folder, self._expected_bytes())
            replace_file(job, self._facts)
        make_directories(self._folder / "work")
        make_directories(self._store)

    def _expected_bytes(self) -> int:
        """As dense as the source, or decoded where nothing compresses."""
        arrays = self._plan.store.arrays[: len(self._plan.arrays)]
        if self._options.codec is None:
            return self._plan.total_bytes
        stored = sum(map(stored_bytes, arrays))
        elements = sum(math.prod(array.shape) for array in arrays)
        return int(
            stored * (1 + sum(math.prod(level.shape) for level in self._plan.levels) / max(1, elements))
        )

    def publish(self, destination: Path) -> None:
        """The frame table, then the metadata that names the arrays, then the name."""
        for name in [name for name, _ in self._plan.arrays]:
            parse_array(self._store / name)
        table = self._plan.store.root / TABLE_PATH
        if table.is_dir():
            _remove(self._store / TABLE_PATH)
            copy_folder(table, self._store / TABLE_PATH)
        publish_group(self._store, self._plan.group, source=self._plan.store.root)
        _check_free(destination)
        publish_folder(self._store, destination)
        _remove(self._folder / "work")
        _remove(self._folder / "job.json")


def _remove(path: Path) -> None:
    with storage_errors("delete", path):
        reach("compact.before_clear")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
