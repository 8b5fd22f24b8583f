"""The shards that ``acquisition.h5`` names, found without a library of HDF5: a damaged file can end the
process of one. A virtual dataset has the name of each of its files as text that ends with a zero byte.
Nothing else is looked at."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardwright.disk.files import open_regular, storage_errors

if TYPE_CHECKING:
    from pathlib import Path

    from .store import StoredArray

_PIECE_BYTES, _MOST_NAME_BYTES = 4 << 20, 4096


def hdf5_sources(path: Path, array: StoredArray) -> set[str]:
    """Returns the keys of an array's shards that the file at ``path``, in a folder above the array, names.
    Raises ``StorageError``."""
    folder = array.path.relative_to(path.parent).as_posix()
    prefix = b"" if folder == "." else f"{folder}/".encode()
    # behind a byte that is no text: "10/c/0" ends with a name of the array "0"
    name = re.compile(rb"(?<=[^!-~])" + re.escape(prefix) + rb"([c0-9./]+)\0")
    found: set[str] = set()
    with storage_errors("read", path), open_regular(path) as file:
        before = b""
        while piece := file.read(_PIECE_BYTES):
            found.update(match[1].decode() for match in name.finditer(before + piece))
            before = piece[-_MOST_NAME_BYTES:]
    return {key for key in found if array.coordinates_of(key) is not None}
