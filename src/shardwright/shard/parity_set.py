"""PAR2 files that restore the lost bytes of a shard row: ARRAY/.shardwright-parity/ROW/ (FORMAT.md).

    row.par2, row.vol000+NN.par2   of every shard of the row, by its key
    parity.json                    what they were made of: without it they are never used

ROW is the first coordinate of the shards. A set is made in the work folder of the array and renamed to its
place, and is deleted before a shard of it is changed or replaced, both within the right to replace shards
(``ShardSums.held``). So a set is of shards as they are. Where another program has changed one all the same,
the sums on record differ from those in parity.json: such a set is stale, and never applied.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import crc32c

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import read_all, storage_errors, sync_directory
from shardwright.disk.read_file import ReadFile
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.names import PARITY_FOLDER, is_visible_key
from shardwright.model.versions import check_version

from .checked_json import encode_checked, read_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .shard_sums import Sum

RECORD_NAME, INDEX_NAME = "parity.json", "row.par2"
VERSION = 1
MOST_SHARDS = 4096  # of a row: all are named on the command line of par2
_MOST_BYTES = 16 << 20
_PIECE_BYTES = 4 << 20
_FILE_NAME = re.compile(r"row(\.vol[0-9]+\+[0-9]+)?\.par2")


def row_of(key: str) -> str:
    """Returns the name of the row of a shard: its first coordinate, however the array spells keys."""
    parts = key.replace("/", ".").split(".")
    return parts[parts[0] == "c" and len(parts) > 1]


def file_crc32c(file: ReadFile, take: Callable[[int], None] = lambda nbytes: None) -> int:
    """Returns the crc32c of a whole file. ``take`` is called with the bytes of each piece before it is read.
    Raises ``StorageError``."""
    found = 0
    for offset in range(0, file.nbytes, _PIECE_BYTES):
        take(min(_PIECE_BYTES, file.nbytes - offset))
        with storage_errors("read", file.path):
            piece = read_all(file.descriptor, offset, min(_PIECE_BYTES, file.nbytes - offset))
        found = crc32c.crc32c(piece, found)
    return found


@dataclass(frozen=True)
class CoveredFile:
    """A file as it was when the parity was made. ``sums``: those that were on record, of a shard."""

    nbytes: int
    crc32c: int
    mtime_ns: int = 0
    sums: tuple[Sum, ...] = ()

    @classmethod
    def parse(cls, facts: Any) -> CoveredFile:
        """Raises ``ValueError``, ``TypeError``, ``KeyError``."""
        found = cls(facts["nbytes"], facts["crc32c"], facts["mtime_ns"], tuple(facts["sums"]))
        numbers = (
            found.nbytes,
            found.crc32c,
            found.mtime_ns,
            *(each for each in found.sums if each is not None),
        )
        if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
            raise ValueError(f"a number that is none, or out of bounds: {facts}"[:200])
        return found

    def is_as(self, path: Path, take: Callable[[int], None] = lambda nbytes: None) -> bool:
        """Returns whether the file with this name has exactly these bytes. Raises ``StorageError``."""
        with storage_errors("open", path):
            try:
                file = ReadFile.open(path)
            except FileNotFoundError:
                return False
        try:
            return file.nbytes == self.nbytes and file_crc32c(file, take) == self.crc32c
        finally:
            file.close()


@dataclass(frozen=True)
class ParitySet:
    """The parity of one shard row. ``percent``: of the bytes of the row that may be lost. ``shards``: by key.
    ``files``: the PAR2 files, by name."""

    folder: Path
    percent: int
    shards: dict[str, CoveredFile]
    files: dict[str, CoveredFile]

    def encode(self) -> bytes:
        """Returns the bytes of its record."""
        facts = {
            name: {key: {**asdict(file), "sums": list(file.sums)} for key, file in files.items()}
            for name, files in (("shards", self.shards), ("files", self.files))
        }
        return encode_checked({"version": VERSION, "percent": self.percent, **facts})

    @classmethod
    def read(cls, folder: Path) -> ParitySet:
        """Returns the set in a folder. Raises ``ShardFormatError`` for a record that is damaged, or says what
        none does, ``FormatVersionError``, ``StorageError``."""
        path = folder / RECORD_NAME
        facts = read_checked(path, _MOST_BYTES)
        check_version(facts.get("version"), VERSION, path)
        try:
            shards = {key: CoveredFile.parse(each) for key, each in facts["shards"].items()}
            files = {name: CoveredFile.parse(each) for name, each in facts["files"].items()}
            percent = int(facts["percent"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ShardFormatError(f"{path} is damaged: {error!r}") from None
        named = all(is_visible_key(key) and row_of(key) == folder.name for key in shards)
        if not named or len(shards) > MOST_SHARDS or not all(map(_FILE_NAME.fullmatch, files)):
            raise ShardFormatError(f"{path} is damaged: it names other files than those of its shard row")
        return cls(folder, percent, shards, files)

    def stale(self, record: Mapping[str, set[Sum]]) -> list[str]:
        """Returns the shards that were changed since. ``record``: all sums of the array, by key."""
        return [key for key, shard in self.shards.items() if record.get(key, set()) != set(shard.sums)]

    def damaged_files(self) -> list[str]:
        """Returns the PAR2 files that are not as they were made. Raises ``StorageError``."""
        return [name for name, file in self.files.items() if not file.is_as(self.folder / name)]


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
    """Deletes a set, durably, its record first: what a kill leaves of it is not used. Raises
    ``StorageError``."""
    with storage_errors("delete", folder):
        if not beneath.is_dir(folder):
            return
        reach("parity.before_delete")
        beneath.unlink(folder / RECORD_NAME, missing_ok=True)
        sync_directory(folder)
        reach("parity.before_remove")
        beneath.remove_tree(folder)
    sync_directory(folder.parent)
    with suppress(StorageError, OSError):  # of another row
        reach("parity.before_remove_folder")
        beneath.remove_folder(folder.parent)
