"""``shardwright.update`` and ``shardwright.erase``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.model.extras import naming_missing_extra

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from .edit_plan import Strategy
    from .region import Region
    from .region_changes import OnProgress, RegionReport


def update(
    path: str | os.PathLike[str],
    region: Region,
    values: npt.ArrayLike,
    *,
    image: str | None = None,
    strategy: Strategy = "auto",
    max_unused: float = 0.25,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> RegionReport:
    """Gives a region of a finished store new values, in the image and in its levels.

    ``region``: by the name of an axis a number, a slice or (start, stop), within the array; other axes are
    taken whole. Or frames in the order of acquisition, as `inspect --missing` numbers them: a number, a slice
    or (start, stop). ``values``: of the region's shape in storage order (of frames: count, rows, columns),
    with or without the axes of a single number; or one value for all; of an array of text str or bytes. They
    may be mapped from a file. ``image``: its name or folder, in a store that has several. ``strategy`` and
    ``max_unused``: how chunks get into their shards (``edit_shard``); levels take ``auto`` where a strategy
    is not possible. ``dry_run`` changes nothing. ``on_progress`` is called with the number of shards done,
    and of all.

    Raises ``FrameIndexError`` (``UnknownImageError``), ``FrameShapeError``, ``FrameDtypeError``,
    ``ShardFormatError``, ``SpecError`` and ``StrategyError`` before anything is changed; ``LockedError``
    while the store is acquired or moved, ``ShardChangedError`` for a shard that others keep changing,
    ``StorageError``. Needs ``shardwright[daemon]`` (``ConfigError`` where that is not installed).
    """
    with naming_missing_extra("shardwright.update"):
        from .region_changes import RegionChanges, TargetImage
    target = TargetImage.of(path, image)
    boxes = target.boxes_of(region, values)
    return RegionChanges(target, boxes, strategy, max_unused).run(on_progress, dry_run=dry_run)


def erase(
    path: str | os.PathLike[str],
    region: Region,
    *,
    image: str | None = None,
    strategy: Strategy = "auto",
    max_unused: float = 0.25,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> RegionReport:
    """Gives a region of a finished store the fill value, in the image and in its levels. Chunks of nothing
    else are removed, and shards without a chunk.

    The arguments and the errors are those of ``update``.
    """
    with naming_missing_extra("shardwright.erase"):
        from .region_changes import RegionChanges, TargetImage
    target = TargetImage.of(path, image)
    boxes = target.boxes_of(region)
    return RegionChanges(target, boxes, strategy, max_unused).run(on_progress, dry_run=dry_run)
