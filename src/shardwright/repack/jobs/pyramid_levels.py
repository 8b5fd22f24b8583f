"""Pyramid levels added to a store, restartable at any moment.

STORE/0/.compact/lock              held for the whole job, so that nobody repacks the image meanwhile
STORE/0/.compact/levels/job.json   what is being made of which shards; a run that finds something else there
                                   begins anew
STORE/0/.compact/levels/1 ... n    levels in the making, where no reader looks for an array
STORE/0/.compact/levels/work       working files of shards
STORE/1 ... n                      complete levels, renamed to there one by one
STORE/zarr.json                    names them all at the very end, replaced atomically
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.array.consolidated import told_metadata
from shardwright.array.levels import (
    Method,
    derived_array,
    fitting_shards,
    group_document,
    level_dataset,
    multiscale_of,
)
from shardwright.array.metadata import CREATOR_ATTRIBUTE
from shardwright.codecs.parameters import codec_of
from shardwright.kernels.downsample import halved
from shardwright.model.errors import OutputExistsError, ShardFormatError, SpecError
from shardwright.read.store import open_store, parse_array, read_metadata
from shardwright.repack.runtime.pause import pause_files
from shardwright.repack.runtime.work_folder import WorkFolder
from shardwright.storage.failpoints import reach
from shardwright.storage.files import (
    make_directories,
    publish_folder,
    read_regular,
    replace_file,
    storage_errors,
)

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
from .publish_group import check_parents, publish_group
from .region_plan import DEFAULT_MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardwright.read.store import Store, StoredArray

    from .new_arrays import Progress, RunTasks

_JOB = "job.json"


@dataclass(frozen=True)
class PyramidOptions:
    """``levels``: how many there shall be above the image. ``axes``: those to halve; of one element long they
    are left as they are."""

    levels: int
    method: Method = "mean"
    axes: tuple[str, ...] = ("y", "x")
    memory_bytes: int = DEFAULT_MEMORY_BYTES


@dataclass(frozen=True)
class Level:
    """One level to be made from the array in ``source``; its ``dataset`` entry and zarr.json."""

    name: str
    source: str
    factors: tuple[int, ...]
    shape: tuple[int, ...]
    dataset: dict[str, Any]
    document: bytes

    def new_array(
        self, folder: Path, source: Path, work: Path, options: PyramidOptions, throttle: dict[str, Any]
    ) -> NewArray:
        task = {
            "kind": "downsample",
            "source": str(source),
            "work": str(work),
            "memory_bytes": options.memory_bytes,
            "throttle": throttle,
        }
        return NewArray(
            folder, self.document, {**task, "factors": list(self.factors), "method": options.method}
        )


def readable_image(path: Path) -> Store:
    """The store at ``path``, whole and at rest. Raises ``ShardFormatError``."""
    store = open_store(path)
    if store.work_in_progress:
        raise ShardFormatError(
            f"{path} is not finished: an acquisition is still running, or ended without sealing",
            hint="Wait for its end, or bring it back with `shardwright recover`",
        )
    multiscale_of(store.group)
    told_metadata(read_metadata(store.root))  # raises for what could not be written anew
    store.check_references()
    return store


def plan_levels(
    document: dict[str, Any],
    datasets: list[dict[str, Any]],
    shape: tuple[int, ...],
    axes: Sequence[str],
    options: PyramidOptions,
) -> list[Level]:
    """The levels to be made above the last of ``datasets``, whose zarr.json is ``document``. Raises
    ``SpecError``."""
    unknown = [axis for axis in options.axes if axis not in axes]
    if unknown or not options.axes:
        raise SpecError(
            "no such axes to halve",
            expected=f"some of {', '.join(axes)}",
            got=", ".join(options.axes) or "none",
        )
    levels: list[Level] = []
    below = datasets[-1]
    codec_of(document["codecs"][0]["configuration"]["codecs"])  # raises for what cannot be written
    for number in range(len(datasets), options.levels + 1):
        factors = tuple(
            2 if axis in options.axes and n > 1 else 1 for axis, n in zip(axes, shape, strict=True)
        )
        if set(factors) == {1}:
            raise SpecError(
                "so many levels cannot be: nothing is left to halve",
                expected=f"at most {number - 1}",
                got=options.levels,
            )
        shape = halved(shape, factors)
        sharding = document["codecs"][0]["configuration"]
        chunk = tuple(map(min, sharding["chunk_shape"], shape))
        counts = [
            s // c
            for s, c in zip(
                document["chunk_grid"]["configuration"]["chunk_shape"], sharding["chunk_shape"], strict=True
            )
        ]
        shard = fitting_shards(shape, chunk, tuple(c * n for c, n in zip(chunk, counts, strict=True)))
        name = str(number)
        made = {"level": number, "of": below["path"], "method": options.method, "axes": list(options.axes)}
        text = derived_array(
            document,
            shape=shape,
            shard_shape=shard,
            chunk_shape=chunk,
            chunk_codecs=sharding["codecs"],
            made=made,
        )
        dataset = level_dataset(below, name, factors, centred=options.method != "nearest")
        levels.append(Level(name, below["path"], factors, shape, dataset, text))
        below, document = dataset, json.loads(text)
    return levels


def add_levels(
    path: Path,
    options: PyramidOptions,
    run: RunTasks,
    *,
    throttle: dict[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> BuildReport:
    """Make levels up to ``options.levels`` and name them in the store's metadata. Levels that are there
    already are kept, and said to be.

    Raises ``ShardFormatError``, ``SpecError``, ``OutputExistsError``, ``LockedError``, ``StorageError``
    (``StorageFullError`` before it begins).
    """
    begin_s = time.monotonic()
    image = readable_image(path)
    with WorkFolder.take(image.arrays[0].path) as work:
        store = readable_image(path)  # as it is now that nobody else changes it
        report = BuildReport(str(store.root), already=[array.path.name for array in store.arrays[1:]])
        _same_kind(store, options)
        check_parents(store.root)
        group = read_metadata(store.root)
        multiscale = multiscale_of(store.group)
        last = store.arrays[-1]
        axes = [axis["name"] for axis in multiscale["axes"]]
        levels = plan_levels(read_metadata(last.path), multiscale["datasets"], last.shape, axes, options)
        if levels:
            job = _PyramidJob(
                store,
                work.path / "levels",
                levels,
                options,
                {"pause_files": pause_files(work.array_folder), **(throttle or {})},
            )
            if job.make(run, report, on_progress):
                job.publish(
                    group_document(
                        group, [*multiscale["datasets"], *(level.dataset for level in levels)], options.method
                    )
                )
                report.made = [level.name for level in levels]
        else:
            _remove(work.path / "levels")  # of a job that was killed after it had named them
    report.seconds = time.monotonic() - begin_s
    return report


def _same_kind(store: Store, options: PyramidOptions) -> None:
    """Levels that we made before and those that are asked for are of one kind: a multiscale names one
    method."""
    for array in store.arrays[1:]:
        made = read_metadata(array.path).get("attributes", {}).get(CREATOR_ATTRIBUTE)
        wanted = {"method": options.method, "axes": list(options.axes)}
        if isinstance(made, dict) and "method" in made and {key: made.get(key) for key in wanted} != wanted:
            found = {key: made.get(key) for key in wanted}
            raise SpecError(
                f"level {array.path.name} of {store.root} was made in another way", expected=found, got=wanted
            )


class _PyramidJob:
    def __init__(
        self,
        store: Store,
        folder: Path,
        levels: list[Level],
        options: PyramidOptions,
        throttle: dict[str, Any],
    ) -> None:
        self._store = store
        self._folder = folder
        self._levels = levels
        self._options = options
        self._throttle = throttle
        self._source = fingerprint(store.arrays[-1])

    def make(self, run: RunTasks, report: BuildReport, on_progress: Progress | None) -> bool:
        """Every level, the lower first. False when one could not be made whole: what is there of it stays,
        for the next run."""
        self._begin()
        itemsize = self._store.arrays[0].dtype.itemsize
        meter = Meter(sum(math.prod(level.shape) * itemsize for level in self._levels), on_progress)
        for level in self._levels:
            if self._is_published(level):
                meter.add(math.prod(level.shape) * itemsize)
                continue
            new = level.new_array(
                self._folder / level.name,
                self._where(level.source),
                self._folder / "work",
                self._options,
                self._throttle,
            )
            if not make_array(new, run, report, meter):
                return False
        check_unchanged(self._store.arrays[-1].path, same=fingerprint(self._store.arrays[-1]) == self._source)
        return True

    def _begin(self) -> None:
        """Go on with what a run that asked for the same left, or begin anew."""
        image = self._store.arrays[0]
        asked = {
            "source": self._source,
            "levels": [[level.name, json.loads(level.document)] for level in self._levels],
        }
        job = self._folder / _JOB
        with storage_errors("look at", job):
            found = json.loads(read_regular(job)) if job.exists() else {}
        self._check_free(same_source=isinstance(found, dict) and found.get("source") == self._source)
        same = found == asked
        make_directories(self._folder)
        for stale in [self._folder / "work"] if same else sorted(self._folder.iterdir()):
            if stale != job:  # replaced below: it tells what published levels were made of
                _remove(stale)
        make_directories(self._folder / "work")
        if not same:
            check_room(image.path, self._expected_bytes(self._store.arrays[-1]))
            replace_file(job, json.dumps(asked).encode())

    def _check_free(self, *, same_source: bool) -> None:
        """Only levels that a run which was stopped published of this very source may be there already."""
        for level in self._levels:
            path = self._store.root / level.name
            if path.exists() and not (same_source and self._is_published(level)):
                raise OutputExistsError(
                    "there is something else where a level should go",
                    got=path,
                    hint="The metadata does not name it: delete it if it is nobody's",
                )

    def _expected_bytes(self, below: StoredArray) -> int:
        """As dense as the level below."""
        density = stored_bytes(below) / max(1, math.prod(below.shape))
        return int(sum(math.prod(level.shape) for level in self._levels) * density)

    def _is_published(self, level: Level) -> bool:
        """Whether a run that was stopped while it published got so far: only complete levels ever have their
        name."""
        document = self._store.root / level.name / "zarr.json"
        with storage_errors("look at", document):
            return document.is_file() and read_regular(document) == level.document

    def _where(self, name: str) -> Path:
        published = self._store.root / name
        return published if (published / "zarr.json").is_file() else self._folder / name

    def publish(self, group: bytes) -> None:
        """Rename the levels, then name them: before that nothing refers to them."""
        for level in self._levels:
            if not self._is_published(level):
                parse_array(self._folder / level.name)
                publish_folder(self._folder / level.name, self._store.root / level.name)
        publish_group(self._store.root, group, source=self._store.root)
        _remove(self._folder)


def _remove(path: Path) -> None:
    with storage_errors("delete", path):
        if path.exists():
            reach("compact.before_clear")
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
