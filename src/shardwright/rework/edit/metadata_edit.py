"""``shardwright.update_metadata``."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from shardwright.model.extras import naming_missing_extra

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping


def update_metadata(
    path: str | os.PathLike[str],
    attributes: Mapping[str, Any] = MappingProxyType({}),
    *,
    image: str | None = None,
    remove: Iterable[str] = (),
) -> None:
    """Changes the metadata of a finished store, or of an ``image`` in it, by its name or folder.

    ``attributes`` and ``remove``: as ``Writer.update_metadata`` takes them, with additions to the ``ome`` of
    an image. One zarr.json changes, in one step, and is durable when this returns. Where groups above an
    image have consolidated metadata, these are left out first and written again at last. Other updates wait
    for each other.

    Raises ``UnknownImageError``, ``MetadataError``, ``ShardFormatError`` for what is no store of images,
    ``FormatVersionError``; ``LockedError`` while the store is written, moved, repacked or upgraded, or one
    of these was interrupted; ``LinkError``, ``StorageError``. Needs ``shardwright[daemon]`` (``ConfigError``
    where that is not installed).

    Examples
    --------
    >>> sw.update_metadata("embryo.ome.zarr", {"stain": "DAPI"}, remove=["draft"])
    >>> sw.update_metadata("embryo.ome.zarr", {"ome": {"omero": {"channels": [{"color": "00FF00"}]}}})
    """
    with naming_missing_extra("shardwright.update_metadata"):
        from .metadata_changes import change_metadata
    change_metadata(path, attributes, image, remove)
