"""Levels of lower resolution added to a store, each with fewer elements than the one below by a factor for
each axis. May be interrupted at any point.

    STORE/0/.compact/lock     held for the whole job, so that no other job changes the image
    STORE/0/.compact/levels   the job's folder (job_folder.py), with the levels 1 ... n that are being made
    STORE/1 ... n             complete levels, renamed to there one by one
    STORE/zarr.json           names them all at the very end, replaced atomically

``add_levels`` is the job, whose tasks are those of ``new_shard``.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.array.consolidated_metadata import consolidated_metadata
from shardwright.array.document import MAX_METADATA_BYTES, as_read, encode_document
from shardwright.array.level_shapes import HALVED, check_factors, factors_above, fitting_shards
from shardwright.array.metadata import creator_facts, derived_array, how_made
from shardwright.array.ome import how_downsampled, level_dataset, multiscale_of, with_datasets
from shardwright.array.ome_version import axes_of
from shardwright.disk import beneath
from shardwright.disk.files import publish_folder, read_regular, storage_errors
from shardwright.kernels.downsample import shape_above
from shardwright.model.errors import OutputExistsError, ShardFormatError, SpecError
from shardwright.model.names import DOCUMENT
from shardwright.model.write_options import DTYPES
from shardwright.read.store import open_store, parse_array, read_metadata
from shardwright.rework.change_checks import check_not_between_versions
from shardwright.rework.runtime.job_folder import JobFolder
from shardwright.rework.runtime.job_report import BuildReport, no_progress
from shardwright.rework.runtime.throttle import Throttle, pause_files
from shardwright.rework.runtime.work_folder import WorkFolder

from .new_arrays import (
    Build,
    NewArray,
    check_parents,
    check_room,
    check_unchanged,
    fingerprint,
    make_arrays,
    publish_group,
    stored_bytes,
)
from .new_shard import DEFAULT_MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardwright.array.spec import Method
    from shardwright.read.store import Store, StoredArray
    from shardwright.rework.runtime.job_report import OnProgress
    from shardwright.rework.runtime.tasks import RunTasks


Factors = tuple[int, ...]


@dataclass(frozen=True)
class PyramidOptions:
    """The options of a pyramid. ``levels``: how many levels the store has above the image in the end.
    ``factors``: by axis, as those of ``array.spec.Levels``. ``memory_bytes``: of one worker."""

    levels: int
    method: Method = "mean"
    factors: Mapping[str, int] = field(default_factory=lambda: HALVED)
    memory_bytes: int = DEFAULT_MEMORY_BYTES


@dataclass(frozen=True)
class PyramidLevel:
    """A level to be made from the level ``source``. ``factors``: along each axis. ``dataset``: its entry in
    the image's metadata; ``document``: its zarr.json."""

    name: str
    source: str
    factors: Factors
    shape: tuple[int, ...]
    dataset: dict[str, Any]
    document: dict[str, Any]

    def new_array(
        self, folder: Path, source: Path, options: PyramidOptions, *, lossy: bool = True
    ) -> NewArray:
        """``folder``: where it is made; ``source``: where the level below is then. ``lossy``: its codecs may
        round, as those of the image itself do."""
        return NewArray(
            folder, source, self.document, self.factors, options.method, options.memory_bytes, lossy
        )


def readable_image(path: Path, *, array_alone: bool = False) -> Store:
    """The store at ``path``, which must be finished, sound and one image, or an array if ``array_alone``.
    Raises ``ShardFormatError``."""
    store = open_store(path)
    if store.collection is not None:
        one = next((image.root for image in store.collection), None)
        raise ShardFormatError(
            f"{path} is a collection of {len(store.collection)} images",
            expected="the path of one image",
            hint=None if one is None else f"Give one of them at a time, such as {one}",
        )
    if store.work_in_progress:
        raise ShardFormatError(
            f"{path} is not finished: an acquisition is still running, or ended without sealing",
            hint="Wait for its end, or recover it with `shardwright recover`",
        )
    if not array_alone:
        store.check_spelling()
    if store.group is not None or not array_alone:
        multiscale_of(store.group)
        consolidated_metadata(
            read_metadata(store.root)
        )  # raises for metadata that could not be written again
        store.check_references()
    return store


def plan_levels(
    document: dict[str, Any],
    datasets: list[dict[str, Any]],
    shape: tuple[int, ...],
    axes: Sequence[str],
    options: PyramidOptions,
) -> list[PyramidLevel]:
    """The levels to be made above the last of ``datasets``, an array of ``shape`` whose zarr.json is
    ``document``. Raises ``SpecError``."""
    try:
        check_factors(axes, options.factors)
    except ValueError as error:
        raise SpecError(str(error)) from None
    dtype = parse_array(Path(datasets[-1]["path"]), document).dtype
    if dtype.name not in DTYPES:
        raise SpecError("levels are not made of this data type", expected=", ".join(DTYPES), got=dtype.name)
    levels: list[PyramidLevel] = []
    below = datasets[-1]
    for number in range(len(datasets), options.levels + 1):
        factors = factors_above(axes, shape, options.factors)
        if max(factors) == 1:
            raise SpecError(
                "too many levels: no axis is left to reduce",
                expected=f"at most {number - 1}",
                got=options.levels,
            )
        level = _level_above(number, below, document, shape_above(shape, factors), factors, options)
        levels.append(level)
        below, document, shape = level.dataset, level.document, level.shape
    return levels


def _level_above(
    number: int,
    below: dict[str, Any],
    document: dict[str, Any],
    shape: tuple[int, ...],
    factors: Factors,
    options: PyramidOptions,
) -> PyramidLevel:
    """Level ``number``, with chunks and shards as those of the level ``below`` as far as its shape allows."""
    source = parse_array(Path(below["path"]), document)
    chunk = tuple(map(min, source.chunk_shape, shape))
    shard = tuple(c * n for c, n in zip(chunk, source.shard_chunks, strict=True))
    made = derived_array(
        document,
        shape=shape,
        shard_shape=fitting_shards(shape, chunk, shard),
        chunk_shape=chunk,
        chunk_codecs=source.chain.as_json,
        index_location=source.index_location,
        made={"level": number, "of": below["path"], **how_made(options.method, options.factors)},
    )
    dataset = level_dataset(below, str(number), factors, centred=options.method != "nearest")
    return PyramidLevel(str(number), below["path"], factors, shape, dataset, as_read(made))


def add_levels(
    path: Path,
    options: PyramidOptions,
    run: RunTasks,
    *,
    throttle: Throttle | None = None,
    on_progress: OnProgress = no_progress,
) -> BuildReport:
    """Make levels up to ``options.levels`` and name them in the store's metadata. Levels that are there
    already stay, and are in the report. The job waits for the pause files of the image, whatever ``throttle``
    it is given. ``on_progress`` gets decoded bytes.

    Raises ``ShardFormatError``, ``SpecError``, ``OutputExistsError``, ``LockedError``, ``StorageError``
    (``StorageFullError`` before it begins).
    """
    begin_s = time.monotonic()
    image = readable_image(path)
    with WorkFolder.locked(image.arrays[0].path) as work:
        store = readable_image(path)  # as it is now that no other job changes it
        report = BuildReport(str(store.root), already=[array.path.name for array in store.arrays[1:]])
        _check_same_kind(store, options)
        check_not_between_versions(store.root)
        check_parents(store.root)
        group, multiscale, last = read_metadata(store.root), multiscale_of(store.group), store.arrays[-1]
        axes = [axis["name"] for axis in axes_of(multiscale)]
        levels = plan_levels(read_metadata(last.path), multiscale["datasets"], last.shape, axes, options)
        folder = JobFolder(work.path / "levels")
        throttle = (throttle or Throttle()).waiting_for(pause_files(work.array_folder))
        new = _NewLevels(store, folder, levels)
        if not levels:
            folder.clear()  # a job that was killed after it had named its levels left its folder
        elif new.make(options, Build(run, throttle, report, on_progress)):
            datasets = [*multiscale["datasets"], *(level.dataset for level in levels)]
            made = how_downsampled(options.method, options.factors)
            new.publish(as_read(with_datasets(group, datasets, made)))
            report.made = [level.name for level in levels]
    report.seconds = time.monotonic() - begin_s
    return report


def _check_same_kind(store: Store, options: PyramidOptions) -> None:
    """Raises ``SpecError`` when levels that were made before are of another method or other factors: a
    multiscale names one method."""
    wanted = how_made(options.method, options.factors)
    for array in store.arrays[1:]:
        made = creator_facts(read_metadata(array.path))
        found = {key: made[key] for key in ("method", "axes", "factors") if key in made}
        if "method" in made and found != wanted:
            raise SpecError(
                f"level {array.path.name} of {store.root} was made with another method or other factors",
                expected=found,
                got=wanted,
            )


class _NewLevels:
    """The levels of one job, in its folder or already in the store. The job holds the image's lock."""

    def __init__(self, store: Store, folder: JobFolder, levels: list[PyramidLevel]) -> None:
        self._store = store
        self._folder = folder
        self._levels = levels

    def make(self, options: PyramidOptions, build: Build) -> bool:
        """Every level, the lower first. False when one could not be made whole: its shards wait for the next
        run."""
        below = self._store.arrays[-1]
        source = fingerprint(below)
        documents = [[level.name, level.document] for level in self._levels]
        found = self._folder.found()
        # An interrupted run may have published some levels. They stay only if it made them of this source:
        # another acquisition of the same name has levels with the same zarr.json.
        self._check_free(same_source=found is not None and found.get("source") == source)
        self._folder.begin({"source": source, "levels": documents}, lambda: self._check_room(below))
        arrays = [
            level.new_array(self._folder.path / level.name, self._where(level.source), options)
            for level in self._levels
            if not self._is_published(level)
        ]
        if not make_arrays(arrays, self._folder, build):
            return False
        check_unchanged(below.path, same=fingerprint(below) == source)
        return True

    def _check_free(self, *, same_source: bool) -> None:
        """Raises ``OutputExistsError`` unless every level is new, or was published by an interrupted run that
        made it of this source."""
        # A folder that no metadata name may be a user's own: what is not ours byte for byte is never
        # replaced.
        for level in self._levels:
            path = self._store.root / level.name
            if beneath.exists(path) and not (same_source and self._is_published(level)):
                raise OutputExistsError(
                    "the folder of a new level exists already",
                    got=path,
                    hint="The store's metadata does not name it: delete it if you do not need it",
                )

    def _check_room(self, below: StoredArray) -> None:
        """For levels that are as dense as the one below."""
        density = stored_bytes(below) / max(1, math.prod(below.shape))
        elements = sum(math.prod(level.shape) for level in self._levels)
        check_room(self._store.arrays[0].path, int(elements * density))

    def _is_published(self, level: PyramidLevel) -> bool:
        """Returns whether an interrupted run has given the level its name, which only complete levels
        have."""
        file, made = self._store.root / level.name / DOCUMENT, encode_document(level.document)
        with storage_errors("look at", file):
            return beneath.is_file(file) and read_regular(file, MAX_METADATA_BYTES) == made

    def _where(self, name: str) -> Path:
        published = self._store.root / name
        return published if beneath.is_file(published / DOCUMENT) else self._folder.path / name

    def publish(self, group: dict[str, Any]) -> None:
        """Rename the levels, then name them in the metadata: before that no reader looks for them."""
        # A kill in between leaves levels that no metadata name: the next run finds them by the bytes of their
        # zarr.json, and names them.
        for level in self._levels:
            if not self._is_published(level):
                parse_array(self._folder.path / level.name)
                publish_folder(self._folder.path / level.name, self._store.root / level.name)
        publish_group(self._store.root, group, source=self._store.root)
        self._folder.clear()
