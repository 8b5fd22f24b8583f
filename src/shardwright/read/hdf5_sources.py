"""The shards that ``acquisition.h5`` names, found without a library of HDF5: a damaged file can end the
process of one. A virtual dataset has the name of each of its files as text between two zero bytes: the first
one is of a number, whose highest byte is last. Nothing else is looked at."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from shardwright.disk.files import open_regular, storage_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .store import StoredArray

_PIECE_BYTES, _MOST_NAME_BYTES = 4 << 20, 4096
# The whole text: a part of "10/c/0" or of "left 1/c/0" is the name of another array's shard.
_NAME = re.compile(rb"(?<=\0)[^\0]{0,4095}[0-9](?=\0)")


def hdf5_sources(path: Path, arrays: Sequence[StoredArray]) -> dict[Path, set[str]]:
    """Returns the keys of shards that the file at ``path``, in a folder above all ``arrays``, names: by the
    array's path. It is read once, since a plate has thousands of arrays. Raises ``StorageError``."""
    found: dict[Path, set[str]] = {array.path: set() for array in arrays}
    folders = {array.path.relative_to(path.parent).as_posix(): array for array in arrays}
    depth = max((folder.count("/") + 1 for folder in folders), default=0)
    with storage_errors("read", path), open_regular(path) as file:
        kept = b""
        while piece := file.read(_PIECE_BYTES):
            text = kept + piece
            for match in _NAME.finditer(text):
                if (shard := _shard(os.fsdecode(match[0]), folders, depth)) is not None:
                    found[shard[0].path].add(shard[1])
            kept = text[-_MOST_NAME_BYTES - 1 :]  # a name that goes on, and the byte before it
    return found


def _shard(name: str, folders: Mapping[str, StoredArray], depth: int) -> tuple[StoredArray, str] | None:
    """Returns the array and the key of a shard's name; None if it is none. ``depth``: names in the longest
    of ``folders``, as a damaged file may have thousands of slashes."""
    parts = name.split("/", depth)
    for i in range(len(parts)):
        array = folders.get("/".join(parts[:i]) or ".")
        if array is not None and array.coordinates_of(key := "/".join(parts[i:])) is not None:
            return array, key
    return None
