"""Metadata that were updated while an acquisition runs: a file of the workspace for the store's group and for
each image's, which holds all updates of it until they are in the final zarr.json.

    .shardwright/metadata.json      of the store's group
    .shardwright/metadata.K.json    of the group of image K

A JSON object with ``format``, ``attributes`` and ``crc32c`` (``checked_json``), replaced as a whole,
atomically and synced. The attributes have a position that was told below a name of ours
(``stage_position.with_position``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shardwright.array.stage_position import split_position, with_position
from shardwright.disk import beneath
from shardwright.disk.files import delete_new_files, replace_file, storage_errors
from shardwright.model.errors import MetadataError, ShardFormatError
from shardwright.model.versions import check_version

from .checked_json import encode_checked, read_checked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.array.stage_position import StagePosition

FORMAT = 1
_NAME = re.compile(r"metadata(?:\.(0|[1-9][0-9]{0,5}))?\.json")
MOST_BYTES = 8 << 20  # of attributes that take at most 1 MiB in zarr.json


def is_of_updates(name: str) -> bool:
    """Returns whether a file of this name has updates of metadata, also one with a number behind it."""
    return _NAME.match(name) is not None


def updates_path(workspace: Path, image: int | None) -> Path:
    return workspace / ("metadata.json" if image is None else f"metadata.{image}.json")


def updated_groups(workspace: Path) -> set[int | None]:
    """Returns the images whose groups have updates, and None if the store's has. Raises ``StorageError``."""
    with storage_errors("look into", workspace):
        found = list(map(_NAME.fullmatch, beneath.names_in(workspace)))
    return {None if name[1] is None else int(name[1]) for name in found if name}


def read_updates(workspace: Path, image: int | None) -> tuple[dict[str, Any], StagePosition | None]:
    """Returns the updated attributes of a group that has some, and the position of its image if that was
    told. Raises ``ShardFormatError`` when they are damaged,
    ``FormatVersionError`` when they are of another version, ``StorageError``."""
    path = updates_path(workspace, image)
    facts = read_checked(path, MOST_BYTES)
    check_version(facts.get("format"), FORMAT, path)
    attributes = facts.get("attributes")
    if not isinstance(attributes, dict):
        raise ShardFormatError(f"{path} has no attributes", got=repr(attributes)[:80])
    try:
        return split_position(attributes)
    except MetadataError as error:
        raise ShardFormatError(f"{path}: {error.message}", got=error.got) from None


def write_updates(
    workspace: Path,
    image: int | None,
    attributes: dict[str, Any],
    position: StagePosition | None,
    may_replace: Callable[[], None],
    *,
    writer: int,
) -> None:
    """Replaces the updates of a group, as ``disk.files.replace_file`` does and raises."""
    data = encode_checked({"format": FORMAT, "attributes": with_position(attributes, position)})
    replace_file(updates_path(workspace, image), data, may_replace, writer=writer)


def delete_new_updates(workspace: Path, *, below: int) -> None:
    """Deletes updates that earlier writers were about to put in place. Raises ``StorageError``."""
    with storage_errors("look into", workspace):
        found = {entry.name[1:].rsplit(".", 2)[0] for entry in beneath.matching(workspace, ".metadata*.new")}
    for name in sorted(found):
        delete_new_files(workspace / name, below=below)
