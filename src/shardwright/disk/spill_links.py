"""Spilled shards, read through the store: the key of one is a link to a file of the same name below the spill
root.

    STORE/0/c/3/0/0 ──▶ SPILL/STORE/0/c/3/0/0

That is the only link below a store that is followed, for reading alone, only at a shard's key, and only to a
regular file whose path ends in the store's name and that key, in folders that are no Zarr nodes: a link may
not make a reader open another file (``user/.ssh/id_rsa`` of a store named ``user``), nor a shard of another
store. Only a move deletes the file behind such a link, once it has arrived elsewhere. What else changes
spilled shards names them by the manifest's spill root, never through the link.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISLNK
from typing import TYPE_CHECKING

from shardwright.model.errors import LinkError
from shardwright.model.names import DOCUMENT

from . import beneath

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHARD = re.compile(r"(.+/)?c(/[0-9]+)+")


def open_shard(path: Path, flags: int = os.O_RDONLY | os.O_NONBLOCK) -> int:
    """Returns a descriptor of a shard to read, spilled or not; the caller asks whether it is a regular file.
    Raises ``OSError``, ``LinkError``."""
    try:
        return beneath.open_file(path, flags)
    except LinkError:
        if not beneath.is_link(path):
            raise
    with _behind(path):
        return beneath.open_file(spilled_file(path), flags)


def shard_status(path: Path) -> os.stat_result:
    """Returns the status of a shard's file, spilled or not. Raises ``OSError``, ``LinkError``."""
    status = beneath.stat(path)
    if not S_ISLNK(status.st_mode):
        return status
    with _behind(path):
        return beneath.stat(spilled_file(path))


@contextmanager
def _behind(link: Path) -> Iterator[None]:
    """A context for a look at the file of a spilled shard. Raises ``LinkError`` if only the link is there:
    its shard is not absent, as one without a link is, which a reader takes for fill value."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if not beneath.is_link(link):
            raise
        raise LinkError(
            f"{link} is a link to a file that does not exist: is the second root mounted?"
        ) from error


def spilled_file(link: Path) -> Path:
    """Returns the path that a spilled shard's link leads to. Raises ``LinkError`` for any other link, also
    for one that is at no shard's key."""
    # by its text alone: no folder above the link is itself one
    target = Path(os.path.normpath(link.parent / beneath.read_link(link)))
    store = _store_of(link)
    tail = link.parts[len(store.parent.parts) :]
    is_shard = _SHARD.fullmatch(link.relative_to(store).as_posix())
    if is_shard and target.parts[-len(tail) :] == tail:
        # links above the spilled store are the user's own
        file = beneath.user_path(Path(*target.parts[: -len(tail)])).joinpath(*tail)
        # no other store's: its folders hold documents, spilled shards stand alone
        if not any(beneath.exists(folder / DOCUMENT) for folder in file.parents[: len(tail)]):
            return file
    raise LinkError(
        f"{link} is a symbolic link, which is not followed",
        expected=f"a shard, or a link to a spilled one: SPILL_ROOT/{Path(*tail)}",
        got=str(target),
        hint="It could lead out of the store: replace it by the shard, or delete it",
    )


def _store_of(link: Path) -> Path:
    """Returns the outermost folder above a shard that is a node of Zarr; the array's, if a move has deleted
    all of their documents."""
    nodes = [folder for folder in link.parents if beneath.exists(folder / DOCUMENT)]
    array = next((folder.parent for folder in link.parents if folder.name == "c"), link.parent)
    return nodes[-1] if nodes else array
