"""The zarr.json of an image group, replaced once everything that it tells of has its name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardwright.array.consolidated import consolidated, told_metadata
from shardwright.array.levels import encode
from shardwright.model.errors import ShardFormatError
from shardwright.read.store import read_metadata, read_nodes
from shardwright.storage.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path


def publish_group(folder: Path, group: bytes, *, source: Path) -> None:
    """``group`` for ``folder``, consolidated anew where ``source``, the group that it was made from, was.
    Raises ``ShardFormatError``, ``StorageError``."""
    if told_metadata(read_metadata(source)) is not None:
        group = encode(consolidated(json.loads(group), read_nodes(folder)))
    replace_file(folder / "zarr.json", group)


def check_parents(root: Path) -> None:
    """Raises ``ShardFormatError`` when a group above the image has a copy of its metadata, which a change of
    them would make untrue."""
    for folder in root.parents:
        if not (folder / "zarr.json").is_file():
            return
        if told_metadata(read_metadata(folder)) is not None:
            raise ShardFormatError(
                f"{folder} has consolidated metadata, which tell of {root.name} as it is now",
                hint="Delete consolidated_metadata from its zarr.json, and consolidate it again "
                "(zarr.consolidate_metadata) afterwards",
            )
