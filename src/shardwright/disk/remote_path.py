"""The path of what is no file of this computer: an object of a bucket, or behind a server, or one of the
files that a zip file holds (``remote``).

Those who read finished stores have paths, and ask this room what has them. ``beneath.stat``, ``names_in``,
``read_regular``, ``keys_on_disk`` and ``shard.sealed_shard`` hand the question to such a path. All else is
refused: nothing there can be locked, mapped, linked or written.
"""

from __future__ import annotations

import re
from pathlib import PosixPath
from typing import TYPE_CHECKING, Any, NoReturn

from shardwright.model.errors import ConfigError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

_SCHEME = re.compile(r"^([a-z0-9]+:)/(?!/)")


class RemotePath(PosixPath):
    """All methods raise ``FileNotFoundError`` for what is not there, and ``StorageError``.
    ``hint_without_document``: for a user who finds no zarr.json there."""

    hint_without_document = ""

    @property
    def has_lists(self) -> bool:
        """False where only what is named can be found."""
        raise NotImplementedError

    def __str__(self) -> str:
        return _SCHEME.sub(r"\1//", super().__str__())  # pathlib has made one slash of the two

    def __fspath__(self) -> NoReturn:
        raise ConfigError(
            f"{self} is an address",
            expected="the path of a file or folder of this computer",
            hint="At an address finished stores are read, and nothing else. Copy the store here first",
        )

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns kind, size and time; the inode stands for the version of an object."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """Returns the names in a folder, in no order."""
        raise NotImplementedError

    def keys_below(self) -> Iterator[str]:
        """Yields the paths of all files below a folder, relative to it."""
        raise NotImplementedError

    def present(self, keys: Iterable[str]) -> Iterator[str]:
        """Yields those of these paths, relative to a folder, that are files, some asked for at once."""
        raise NotImplementedError

    def listed_bytes(self) -> int:
        """Returns the size of a file: as it was listed last, without asking again."""
        raise NotImplementedError

    def content(self, most_bytes: int) -> bytes:
        """Returns all of a file. Raises ``ShardFormatError`` for one of more than ``most_bytes``."""
        raise NotImplementedError

    def open_shard(self, size: Any = None) -> Any:
        """Returns the bytes of a shard (``shard.sealed_shard.ShardBytes``), which are asked for when they are
        read. ``size``: as ``remote.object_shard.ObjectRanges`` has it."""
        raise NotImplementedError
