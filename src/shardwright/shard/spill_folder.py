"""The folder of a store's files in progress below its second root.

    SPILL_ROOT/NAME/.shardwright/of-IDENTITY    an empty file

A store of another root may have the same name, and the same second root: of the file's name everybody knows
whose folder it is before reading or removing it. The folders of earlier releases have none, and neither has
one whose creation was killed, which is empty.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import made_in, storage_errors, sync_directory
from shardwright.model.errors import OutputExistsError

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.disk.files import DurableFolders

_OWNER = "of-"


def make_spill_folder(
    workspace: Path, identity: str, folders: DurableFolders, *, is_shared: bool = False
) -> None:
    """Makes the folder for the store of this identity, its name durable. ``is_shared``: shards that lie there
    already are its own. Raises ``OutputExistsError`` if there is one of another store, or are its shards,
    ``StorageError``."""
    make_one = partial(_make_alone, workspace, is_shared=is_shared)
    make = partial(made_in, workspace.parent, make_one, folders.make)
    made_in(workspace, partial(_mark, workspace, identity), lambda _: make())
    with storage_errors("look into", workspace):
        # Between making and marking a refused creation may have removed it, and a third one made it anew:
        # then both are marked, and each sees the other's.
        if len(beneath.names_in(workspace)) > 1:
            reach("store.before_remove_spilled")
            beneath.unlink(workspace / (_OWNER + identity))
            raise _taken(workspace)
    sync_directory(workspace)
    sync_directory(workspace.parent)


def _make_alone(workspace: Path, *, is_shared: bool) -> None:
    # A look before would not do: of two stores that are made at once each would find nothing.
    with storage_errors("create folder", workspace), suppress(FileExistsError):
        reach("store.before_create_spilled")
        beneath.make_folder(workspace)
        if is_shared or beneath.names_in(workspace.parent) == [workspace.name]:
            return
        beneath.remove_folder(workspace)
    raise _taken(workspace)


def _taken(workspace: Path) -> OutputExistsError:
    return OutputExistsError(
        "spilled shards of another store of this name lie below the spill root",
        got=workspace.parent,
        hint="Choose another name or another spill root; if that store is gone, delete this folder",
    )


def _mark(workspace: Path, identity: str) -> None:
    with storage_errors("create", workspace):
        beneath.close(beneath.open_file(workspace / (_OWNER + identity), os.O_WRONLY | os.O_CREAT))


def is_there_for(workspace: Path, identity: str) -> bool:
    """Returns whether the folder is there and no other store's. Raises ``StorageError``."""
    with storage_errors("look into", workspace), suppress(FileNotFoundError):
        if beneath.exists(workspace / (_OWNER + identity)):
            return True
        return not _has_owner(beneath.names_in(workspace))
    return False


def remove_spill_folder(workspace: Path, identity: str, *, had_frames: bool) -> None:
    """Removes the folder unless it is another store's, and that of the store's name above if nothing else is
    in it. One without a mark, of an earlier release, goes with a store that had frames: a creation that was
    refused since it is there has left its manifest, too. Raises ``StorageError``."""
    with storage_errors("remove", workspace):
        reach("store.before_remove_spilled")
        with suppress(FileNotFoundError):
            names = beneath.names_in(workspace)
            unmarked = bool(names) and not _has_owner(names)
            if _OWNER + identity in names or (unmarked and had_frames):
                beneath.remove_tree(workspace)
            elif not names:
                # Perhaps another store has just made it: that one makes it anew if it has gone before it is
                # marked. A file that comes in between keeps it.
                with suppress(OSError):
                    beneath.remove_folder(workspace)
        with suppress(OSError):  # not empty: it holds files of others
            beneath.remove_folder(workspace.parent)


def _has_owner(names: list[str]) -> bool:
    return any(name.startswith(_OWNER) for name in names)
