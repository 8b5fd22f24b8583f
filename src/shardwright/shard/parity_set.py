"""PAR2 files that restore the lost bytes of a shard row: ARRAY/.shardwright-parity/ROW/ (FORMAT.md).

    row-RECORD.par2                   of which shards the set is, by their keys
    row-RECORD.vol000+NN.CRC.par2     the same, and NN recovery blocks; CRC: the crc32c of this file

ROW is the first coordinate of the shards, RECORD the crc32c of all that their record (``shard_sums``) had for
the row. A set is made in the work folder of the array and renamed to its place, and is deleted before a shard
of it is changed or replaced, both within the right to replace shards (``ShardSums.held``). So a set is of
shards as they are, and what a kill leaves of one, too. A release that knows no parity changes a shard and its
record: such a set is stale, and never applied.
"""

from __future__ import annotations

import json
import re
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import crc32c

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import FileIdentity, read_all, storage_errors, sync_directory
from shardwright.disk.read_file import ReadFile
from shardwright.model.errors import ShardFormatError
from shardwright.model.names import PARITY_FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .shard_sums import Sum

_VOLUME = re.compile(r"\.vol[0-9]+\+([0-9]+)\.([0-9a-f]{8})\.par2")
_PIECE_BYTES = 4 << 20


def row_of(key: str) -> str:
    """Returns the name of the row of a shard: its first coordinate, however the array spells keys."""
    parts = key.replace("/", ".").split(".")
    return parts[parts[0] == "c" and len(parts) > 1]


def set_name(row: str, record: Mapping[str, set[Sum]]) -> str:
    """Returns the beginning of the names of a set's files. ``record``: all sums of the array."""
    sums = sorted((key, *sorted(map(str, known))) for key, known in record.items() if row_of(key) == row)
    return f"row-{crc32c.crc32c(json.dumps(sums).encode()):08x}"


def file_crc32c(path: Path) -> int:
    """Returns the crc32c of a file. Raises ``StorageError``."""
    found = 0
    with storage_errors("read", path), closing(ReadFile.open(path)) as file:
        for offset in range(0, file.nbytes, _PIECE_BYTES):
            found = crc32c.crc32c(read_all(file.descriptor, offset, _PIECE_BYTES), found)
    return found


@dataclass(frozen=True)
class ParitySet:
    """The parity of one shard row. ``files``: its PAR2 files. ``blocks``: those of recovery. ``made_ns``: a
    shard that was written to since then is another program's."""

    files: tuple[Path, ...]
    blocks: int
    made_ns: int

    @classmethod
    def read(cls, folder: Path, record: Mapping[str, set[Sum]]) -> ParitySet:
        """Returns the set in a folder. Raises ``ShardFormatError`` for one that is stale, or empty,
        ``StorageError``."""
        with storage_errors("look into", folder):
            files = tuple(sorted(beneath.paths_in(folder)))
        if not files:
            raise ShardFormatError(f"there are no files in {folder}")
        name = set_name(folder.name, record)
        if not all(file.name.startswith(f"{name}.") for file in files):
            raise ShardFormatError(f"a shard of {folder} was changed after the parity was made")
        volumes = [_VOLUME.fullmatch(file.name, len(name)) for file in files]
        blocks = sum(int(volume[1]) for volume in volumes if volume)
        return cls(files, blocks, min(FileIdentity.at(file).mtime_ns for file in files))

    def is_whole(self) -> bool:
        """Returns whether its recovery blocks are as they were made. Raises ``StorageError``."""
        checked = [(file, _VOLUME.search(file.name)) for file in self.files]
        return self.blocks > 0 and all(
            file_crc32c(file) == int(volume[2], 16) for file, volume in checked if volume
        )


def parity_folders(array_folder: Path) -> list[Path]:
    """Returns the folders of the sets of an array. Raises ``StorageError``."""
    folder = array_folder / PARITY_FOLDER
    with storage_errors("look into", folder):
        return sorted(beneath.paths_in(folder)) if beneath.is_dir(folder) else []


def forget_parity(array_folder: Path, shard: Path) -> None:
    """Deletes the parity of a shard's row, durably, before the shard is changed or replaced. The caller holds
    the right to do so. A spilled shard has none. Raises ``StorageError``."""
    if shard.is_relative_to(array_folder):
        delete_parity(array_folder / PARITY_FOLDER / row_of(shard.relative_to(array_folder).as_posix()))


def delete_parity(folder: Path) -> None:
    """Deletes a set, durably. Raises ``StorageError``."""
    with storage_errors("delete", folder):
        if not beneath.is_dir(folder):
            return
        reach("parity.before_delete")
        beneath.remove_tree(folder)
        reach("parity.before_delete_sync")
    sync_directory(folder.parent)
    with suppress(OSError):  # of another row
        reach("parity.before_remove_folder")
        beneath.remove_folder(folder.parent)
