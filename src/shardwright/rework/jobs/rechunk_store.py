"""The image of one store written as a new store with other chunks. May be interrupted at any point.

    PARENT/.NAME.rechunk          the job's folder (job_folder.py)
    PARENT/.NAME.rechunk/store    the new store; renamed to PARENT/NAME when it is complete, so that readers
                                  see all of it or nothing

The new store has every level of the image (or level 0 and new levels made of it), all attributes, and the
frame table, with its ``frames.parquet``. Groups and arrays that the image's metadata do not name are left
out.

``plan_new_store`` and ``write_new_store`` are the job, whose tasks are those of ``new_shard``. Codecs that
give other values back are refused, unless the user has asked for them (``lossy``).
"""

from __future__ import annotations

import math
import os
import secrets
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

import crc32c

from shardwright.array.document import as_read, check_document, default_keys, understood
from shardwright.array.frame_table_format import PARQUET_PATH, TABLE_PATH
from shardwright.array.level_shapes import fitting_shards
from shardwright.array.metadata import derived_array, inner_codecs
from shardwright.array.ome import how_downsampled, multiscale_of, with_datasets
from shardwright.array.ome_version import axes_of, moved
from shardwright.array.spec import Blosc
from shardwright.disk import beneath
from shardwright.disk.files import (
    AtomicFile,
    DurableFolders,
    make_directories,
    open_regular,
    publish_folder,
    read_range,
    storage_errors,
    sync_directory,
)
from shardwright.model.errors import OutputExistsError, SpecError, StorageError
from shardwright.model.names import REBUILD_SUFFIX, checked_new_store
from shardwright.model.write_options import DTYPES
from shardwright.read.frame_table import frame_table_of
from shardwright.read.store import parse_array, position_above, read_metadata
from shardwright.rework.runtime.job_folder import JobFolder
from shardwright.rework.runtime.job_report import BuildReport, no_progress
from shardwright.rework.runtime.throttle import Throttle, pause_files
from shardwright.rework.runtime.work_folder import remove

from .new_arrays import (
    Build,
    NewArray,
    check_room,
    check_unchanged,
    fingerprint,
    make_arrays,
    publish_group,
    stored_bytes,
)
from .new_shard import DEFAULT_MEMORY_BYTES, plan_shards
from .pyramid_levels import PyramidLevel, PyramidOptions, plan_levels, readable_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.array.spec import Gzip, Zstd
    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.runtime.job_report import OnProgress
    from shardwright.rework.runtime.tasks import RunTasks


KEEP_CODEC = "as it is"
_PIECE_BYTES = 4 << 20  # of a file of the frame table


@dataclass(frozen=True)
class RechunkOptions:
    """The options of a rechunking. ``chunks`` and ``shards``: elements along the axes that they name. Along
    other axes chunks keep their size, and shards as far as they hold whole chunks. ``codec``: None stores
    chunks uncompressed; a list is the codec chain of a chunk, as in zarr.json, which may hold shards within
    shards. ``index_location``: None leaves it where it is; ``index_codecs``: None for ours. ``pyramid``: new
    levels to be made of level 0; None takes over the levels that are there. ``lossy``: codecs may round
    values. ``memory_bytes``: of one worker."""

    chunks: dict[str, int]
    shards: dict[str, int] | None = None
    codec: Blosc | Zstd | Gzip | str | list[Any] | None = KEEP_CODEC
    index_location: Literal["start", "end"] | None = None
    index_codecs: list[Any] | None = None
    pyramid: PyramidOptions | None = None
    lossy: bool = False
    memory_bytes: int = DEFAULT_MEMORY_BYTES


@dataclass(frozen=True)
class RechunkPlan:
    """The plan of a rechunking. ``arrays``: (name, zarr.json) of each array that is rechunked. ``levels``:
    made of the first one then. ``group``: zarr.json of the new store, None for an array alone, whose name is
    empty."""

    store: Store
    arrays: list[tuple[str, dict[str, Any]]]
    levels: list[PyramidLevel]
    group: dict[str, Any] | None

    @property
    def names(self) -> list[str]:
        """Of all arrays of the new store."""
        return [name for name, _ in self.arrays] + [level.name for level in self.levels]

    @property
    def total_bytes(self) -> int:
        """Decoded bytes of all arrays of the new store."""
        itemsize = self.store.arrays[0].dtype.itemsize
        shapes: list[tuple[int, ...]] = [
            *(tuple(document["shape"]) for _, document in self.arrays),
            *(level.shape for level in self.levels),
        ]
        return sum(map(math.prod, shapes)) * int(itemsize)

    def job(self) -> dict[str, Any]:
        """The source shards and the new arrays, as the job's folder records them."""
        arrays = self.store.arrays[: len(self.arrays)]
        documents = [document for _, document in self.arrays] + [level.document for level in self.levels]
        source = {"path": str(self.store.root), "shards": [fingerprint(array) for array in arrays]}
        return {"source": source, "arrays": documents}


def plan_new_store(path: Path, options: RechunkOptions) -> RechunkPlan:
    """The new store that ``options`` make of the one at ``path``. Changes nothing. Raises
    ``ShardFormatError`` for a store that cannot be read, ``SpecError`` for options that do not fit it."""
    store = readable_image(path, array_alone=True)
    axes = _axes(store)
    for asked in (options.chunks, options.shards or {}):
        unknown = sorted(set(asked) - set(axes))
        if unknown:
            raise SpecError("the image has no such axes", expected=", ".join(axes), got=", ".join(unknown))
    if store.group is None:
        if options.pyramid is not None:
            raise SpecError("levels are made of an image, not of an array alone", got=str(path))
        return RechunkPlan(store, [("", new_document(store.arrays[0], axes, options, None))], [], None)
    if len(axes) < 2:
        raise SpecError("an image has at least two axes", got=len(axes))
    multiscale = multiscale_of(store.group)
    taken = store.arrays if options.pyramid is None else store.arrays[:1]
    arrays = [(array.path.name, new_document(array, axes, options, axes)) for array in taken]
    # the new store has no group above
    placed = moved(multiscale, position_above(store.root, multiscale))
    levels, datasets, made = [], placed["datasets"], None
    if options.pyramid is not None:
        datasets, pyramid = datasets[:1], options.pyramid
        levels = plan_levels(arrays[0][1], datasets, store.arrays[0].shape, axes, options.pyramid)
        datasets = [*datasets, *(level.dataset for level in levels)]
        made = how_downsampled(pyramid.method, pyramid.factors) if levels else None
    return RechunkPlan(
        store,
        arrays,
        levels,
        as_read(with_datasets(understood(read_metadata(store.root)), datasets, made)),
    )


def _axes(store: Store) -> list[str]:
    """The names of the axes: of the image, or of an array alone, by number where it names none."""
    if store.group is not None:
        return [axis["name"] for axis in axes_of(multiscale_of(store.group))]
    (array,) = store.arrays
    names = array.dimension_names or (None,) * len(array.shape)
    return [name or f"dim_{number}" for number, name in enumerate(names)]


def new_document(
    array: StoredArray, axes: list[str], options: RechunkOptions, names: list[str] | None
) -> dict[str, Any]:
    """The zarr.json of a new array, with ``names`` of its dimensions if it had none. New chunks are never
    longer than the array, shards hold whole chunks. Without shards there are none unless their size is
    given."""
    sizes = options.shards or {}
    chunk = tuple(
        # one that is not named stays, however short its axis is: only so are encoded chunks copied
        max(1, min(options.chunks[axis], n)) if axis in options.chunks else c
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
    index_location = options.index_location or array.index_location
    if not array.is_sharded:
        shard, index_location = (shard, options.index_location or "end") if sizes else (chunk, "none")
    shard = fitting_shards(array.shape, chunk, shard)
    made: dict[str, Any] = {
        "rechunked_from": {"chunks": list(array.chunk_shape), "shards": list(array.shard_shape)}
    }
    if options.lossy:  # also so that no later run without it continues this one
        made["lossy"] = True
    document = read_metadata(array.path)
    if array.spelling is not None:
        document["chunk_key_encoding"] = default_keys()
    if names is not None and document.get("dimension_names") is None:
        document["dimension_names"] = names
    return as_read(
        derived_array(
            document,
            shape=array.shape,
            shard_shape=shard,
            chunk_shape=chunk,
            chunk_codecs=_codecs(array, options),
            index_location=index_location,
            made=made,
            index_codecs=options.index_codecs,
        )
    )


def _codecs(array: StoredArray, options: RechunkOptions) -> list[Any]:
    """The codec chain of a new chunk. Where it is to stay as it is, but is not one that every reader knows,
    it becomes that of new stores, if that has the data type."""
    codec = options.codec
    if isinstance(codec, list):
        return codec
    if isinstance(codec, str):
        if array.dtype.name not in DTYPES and array.spelling is not None:
            return _core_chain(array)
        if array.is_ours or array.dtype.name not in DTYPES:
            return array.chain.as_json
        codec = Blosc()
    return inner_codecs(codec, array.dtype.itemsize, array.codecs.checksum)


def _core_chain(array: StoredArray) -> list[Any]:
    """The chain of Zarr v3's own codecs in place of one with codecs of numcodecs."""
    (name,) = {"bytes", "vlen-utf8"} & {*array.chain.names}
    middle: dict[str, Any] = {"name": name}
    # of the array's own elements: those behind a filter may have been single bytes
    if name == "bytes" and array.dtype.byteorder != "|":
        middle["configuration"] = {"endian": "little"}
    return [middle, {"name": "zstd", "configuration": {"level": 3, "checksum": False}}]


def working_folder(destination: Path) -> Path:
    """The job's folder, beside the new store."""
    return destination.with_name(f".{destination.name}{REBUILD_SUFFIX}")


def write_new_store(
    plan: RechunkPlan,
    destination: Path,
    options: RechunkOptions,
    run: RunTasks,
    *,
    throttle: Throttle | None = None,
    on_progress: OnProgress = no_progress,
) -> BuildReport:
    """Make the store ``destination``. It is there, complete and durable, when this returns without failures
    in the report; with failures the shards that were made wait for the next run. The job waits for the pause
    files of the image and the destination, whatever ``throttle`` it is given. ``on_progress`` gets decoded
    bytes.

    Raises ``InvalidNameError``, ``OutputExistsError``, ``ConfigError`` for a place in the source itself,
    ``LockedError``, ``StorageError`` (``StorageFullError`` before anything is begun), ``BudgetError`` for too
    little memory, ``ShardFormatError`` when the source changed meanwhile, ``ValuesChangedError`` for codecs
    that do not give back the values: nothing is left then.
    """
    begin_s = time.monotonic()
    destination = checked_new_store(beneath.user_path(destination, is_new=True))
    if beneath.exists(destination):
        _clear_after_publishing(working_folder(destination))
    _check_free(destination)
    plan.store.check_outside(destination)
    make_directories(destination.parent)
    report = BuildReport(str(destination))
    with JobFolder.locked(working_folder(destination)) as folder:
        _check_free(destination)  # another job may have made it just now
        new, job = folder.path / "store", plan.job()
        for (
            name,
            document,
        ) in plan.arrays:  # raises for codecs that are not understood, before anything is made
            parse_array(new / name, check_document(document))
        folder.begin(job, lambda: check_room(folder.path, _expected_bytes(plan, options)))
        arrays = _new_arrays(plan, new, options)
        throttle = (throttle or Throttle()).waiting_for(pause_files(plan.store.arrays[0].path, destination))
        if make_arrays(arrays, folder, Build(run, throttle, report, on_progress)):
            check_unchanged(plan.store.root, same=plan.job() == job)
            _publish(plan, new, destination)
            folder.clear()
            report.made = plan.names
    report.seconds = time.monotonic() - begin_s
    return report


def _new_arrays(plan: RechunkPlan, new: Path, options: RechunkOptions) -> list[NewArray]:
    """Raises ``BudgetError`` before any shard is made."""
    arrays = []
    for source, (name, document) in zip(plan.store.arrays, plan.arrays, strict=False):
        factors = (1,) * len(source.shape)
        arrays.append(
            NewArray(new / name, source.path, document, factors, None, options.memory_bytes, options.lossy)
        )
        plan_shards(source, arrays[-1].begin(), factors, None, options.memory_bytes)
    for level in plan.levels:
        assert options.pyramid is not None, "levels are planned from it"
        arrays.append(
            level.new_array(new / level.name, new / level.source, options.pyramid, lossy=options.lossy)
        )
    return arrays


def _clear_after_publishing(folder: Path) -> None:
    """Clear the folder of a job that was killed after its store got its name. Raises ``LockedError`` while
    the job is at work."""
    if beneath.exists(folder):
        with JobFolder.locked(folder) as left:
            if not beneath.exists(folder / "store"):
                left.clear()


def _check_free(destination: Path) -> None:
    if beneath.exists(destination):
        raise OutputExistsError(
            "the output exists already",
            got=destination,
            hint="Choose another name: nothing is ever overwritten",
        )


def _expected_bytes(plan: RechunkPlan, options: RechunkOptions) -> int:
    """As dense as the source, or decoded where nothing compresses."""
    if options.codec is None:
        return plan.total_bytes
    arrays = plan.store.arrays[: len(plan.arrays)]
    stored = sum(map(stored_bytes, arrays))
    elements = sum(math.prod(array.shape) for array in arrays)
    return int(stored * (1 + sum(math.prod(level.shape) for level in plan.levels) / max(1, elements)))


def _publish(plan: RechunkPlan, new: Path, destination: Path) -> None:
    """The frame table, then the metadata that name the arrays, then the name."""
    for name, _ in plan.arrays:
        parse_array(new / name)
    if plan.group is not None:
        table = plan.store.root / TABLE_PATH
        if beneath.is_dir(table):
            remove(new / TABLE_PATH)
            _copy_folder(table, new / TABLE_PATH, DurableFolders(new))
            _copy_parquet(plan.store.root, new)
        publish_group(new, plan.group, source=plan.store.root)
    _check_free(destination)
    publish_folder(new, destination)


def _copy_parquet(source: Path, new: Path) -> None:
    """Copies the file that was made of the frame table, if the table records one. Anything else of that name,
    a link or a folder of somebody's, is none of the store's."""
    remove(new / PARQUET_PATH)
    table = frame_table_of(source)
    if table is not None and table.parquet is not None and beneath.is_file(source / PARQUET_PATH):
        _copy_file(source / PARQUET_PATH, new / PARQUET_PATH)


def _copy_folder(source: Path, target: Path, folders: DurableFolders) -> None:
    """Copy plain files to a folder that does not exist, durably, each one read back and compared. Raises
    ``StorageError``."""
    folders.make(target)
    with storage_errors("list", source):
        entries = sorted(beneath.paths_in(source))
    for entry in entries:
        if beneath.is_dir(entry):
            _copy_folder(entry, target / entry.name, folders)
        else:
            _copy_file(entry, target / entry.name)
    sync_directory(target)


def _copy_file(source: Path, target: Path) -> None:
    crc = found = 0

    def parts(file: IO[bytes]) -> Iterator[bytes]:
        nonlocal crc
        while piece := file.read(_PIECE_BYTES):
            crc = crc32c.crc32c(piece, crc)
            yield piece

    with storage_errors("copy", source), open_regular(source, buffering=0) as file:
        nbytes = os.fstat(file.fileno()).st_size
        made = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
        with AtomicFile(made, "copy", called=target) as new:
            came = new.write_parts(parts(file), nbytes)
            new.take_name(target)
    for offset in range(0, nbytes, _PIECE_BYTES):
        found = crc32c.crc32c(read_range(target, offset, _PIECE_BYTES), found)
    if (came, found) != (nbytes, crc):
        raise StorageError(
            f"{target} reads back differently from what was written",
            expected=f"{nbytes} bytes of crc32c {crc:08x}",
            got=f"{came} bytes of crc32c {found:08x}",
        )
