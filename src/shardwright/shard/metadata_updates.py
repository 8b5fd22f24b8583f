"""Metadata that were updated while an acquisition runs: a file of the workspace for the store's group and for
each image's, which holds all updates of it until they are in the final zarr.json.

    .shardwright/metadata.json      of the store's group
    .shardwright/metadata.K.json    of the group of image K

A JSON object with ``format``, ``attributes`` and ``crc32c`` (``checked_json``), replaced as a whole,
atomically and synced. ``attributes``: an update as JSON (``array.metadata_update``). Format 1 has attributes
of users and a position alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shardwright.array.metadata_update import MetadataUpdate
from shardwright.disk import beneath
from shardwright.disk.files import delete_new_files, replace_file, storage_errors
from shardwright.model.errors import MetadataError, ShardFormatError
from shardwright.model.versions import check_version

from .checked_json import encode_checked, read_checked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMAT = 2
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


def read_updates(workspace: Path, image: int | None) -> MetadataUpdate:
    """Returns what was updated of the metadata of a group, if there is something. Raises
    ``ShardFormatError`` when the file is damaged, ``FormatVersionError`` when it is of another version,
    ``StorageError``."""
    path = updates_path(workspace, image)
    return parsed_updates(path, read_checked(path, MOST_BYTES))


def parsed_updates(path: Path, facts: dict[str, Any]) -> MetadataUpdate:
    """Returns the updates in a file at ``path``. Raises ``ShardFormatError``, ``FormatVersionError``."""
    check_version(facts.get("format"), FORMAT, path)
    attributes = facts.get("attributes")
    if not isinstance(attributes, dict):
        raise ShardFormatError(f"{path} has no attributes", got=repr(attributes)[:80])
    try:
        return MetadataUpdate.of_json(attributes)
    except MetadataError as error:
        raise ShardFormatError(f"{path}: {error.message}", got=error.got) from None


def write_updates(
    workspace: Path,
    image: int | None,
    updates: MetadataUpdate,
    may_replace: Callable[[], None] = lambda: None,
    *,
    writer: int | None = None,
) -> None:
    """Replaces the updates of a group, as ``disk.files.replace_file`` does and raises."""
    facts = {"format": 1 if updates.is_plain else FORMAT, "attributes": updates.to_json()}
    replace_file(updates_path(workspace, image), encode_checked(facts), may_replace, writer=writer)


def delete_new_updates(workspace: Path, *, below: int) -> None:
    """Deletes updates that earlier writers were about to put in place. Raises ``StorageError``."""
    with storage_errors("look into", workspace):
        found = {entry.name[1:].rsplit(".", 2)[0] for entry in beneath.matching(workspace, ".metadata*.new")}
    for name in sorted(found):
        delete_new_files(workspace / name, below=below)
