"""PAR2 files that restore the lost bytes of a shard row: ARRAY/.shardwright-parity/ROW/ (FORMAT.md).

    row-RECORD.par2, row-RECORD.vol000+NN.par2   of every shard of the row, by its key

ROW is the first coordinate of the shards, RECORD the crc32c of all that their record (``shard_sums``) had for
the row. A set is made in the work folder of the array and renamed to its place, and is deleted before a shard
of it is changed or replaced, both within the right to replace shards (``ShardSums.held``). So a set is of
shards as they are, and what a kill leaves of one, too. A release that knows no parity changes a shard and its
record: such a set is stale, and never applied.

All else is in the packets of the PAR2 files (Parity Volume Set 2.0), each with its MD5. Little-endian:

    0       8        16      32       48         64
    "PAR2\\0PKT" bytes   MD5     set      type       body, to a multiple of 4
                         of all behind it
    Main        u64 bytes of a block, ...
    FileDesc    id [16], MD5 of the file [16], MD5 of its front [16], u64 bytes, name padded with zeros
    RecvSlic    u32 exponent, a block
"""

from __future__ import annotations

import errno
import hashlib
import json
import struct
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import crc32c

from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import pieces_of, read_all, storage_errors, sync_directory
from shardwright.disk.read_file import ReadFile
from shardwright.model.errors import ShardFormatError
from shardwright.model.names import PARITY_FOLDER, is_visible_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from .shard_sums import Sum

_MAGIC, _HEADER = b"PAR2\0PKT", struct.Struct("<8sQ16s16s16s")
_MAIN, _FILE, _RECOVERY = (b"PAR 2.0\0" + kind for kind in (b"Main\0\0\0\0", b"FileDesc", b"RecvSlic"))
_FILE_BODY = struct.Struct("<16x16s16xQ")
_MOST_KEPT_BYTES = 1 << 16  # of a body; the longest are read past
_PIECE_BYTES = 4 << 20


def row_of(key: str) -> str:
    """Returns the name of the row of a shard: its first coordinate, however the array spells keys."""
    parts = key.replace("/", ".").split(".")
    return parts[parts[0] == "c" and len(parts) > 1]


def set_name(row: str, record: Mapping[str, set[Sum]]) -> str:
    """Returns the name, without its suffix, of the files of a set. ``record``: all sums of the array."""
    sums = sorted((key, *sorted(map(str, known))) for key, known in record.items() if row_of(key) == row)
    return f"row-{crc32c.crc32c(json.dumps(sums).encode()):08x}"


class Content(NamedTuple):
    """The bytes of a shard."""

    nbytes: int
    md5: bytes

    @classmethod
    def of(cls, file: ReadFile, take: Callable[[int], None] = lambda nbytes: None) -> Content:
        """``take`` is called with the bytes of each piece before it is read. Raises ``StorageError``."""
        found = hashlib.md5(usedforsecurity=False)
        for offset in range(0, file.nbytes, _PIECE_BYTES):
            take(_PIECE_BYTES)
            with storage_errors("read", file.path):
                found.update(read_all(file.descriptor, offset, min(_PIECE_BYTES, file.nbytes - offset)))
        return cls(file.nbytes, found.digest())


@dataclass(frozen=True)
class ParitySet:
    """The parity of one shard row. ``shards``: what is in them, by key. ``names``: of its files. ``blocks``:
    those of recovery that are sound; ``shard_blocks``: those of all shards. ``is_whole``: nothing of its
    files is damaged. ``made_ns``: a shard that was written to since then is another program's."""

    folder: Path
    names: tuple[str, ...]
    shards: dict[str, Content]
    blocks: int
    shard_blocks: int
    is_whole: bool
    made_ns: int

    @classmethod
    def read(cls, folder: Path, row: str, record: Mapping[str, set[Sum]]) -> ParitySet:
        """Returns the set in a folder. Raises ``ShardFormatError`` for one that is stale, or does not say of
        which shards it is, ``StorageError``."""
        shards: dict[str, Content] = {}
        blocks, block_bytes, is_whole, made_ns = 0, 0, True, 1 << 63
        with storage_errors("look into", folder):
            names = tuple(sorted(path.name for path in beneath.paths_in(folder)))
        if any(name.partition(".")[0] != set_name(row, record) for name in names):
            raise ShardFormatError(f"a shard of {folder} was changed after the parity was made")
        for name in names:
            with storage_errors("read", folder / name), closing(ReadFile.open(folder / name)) as file:
                made_ns = min(made_ns, file.status.st_mtime_ns)
                for kind, body in _packets(file):
                    is_whole = is_whole and kind is not None
                    if kind == _RECOVERY:
                        blocks += 1
                    elif kind == _MAIN:
                        block_bytes = int.from_bytes(body[:8], "little")
                    elif kind == _FILE and len(body) > _FILE_BODY.size:
                        md5, nbytes = _FILE_BODY.unpack_from(body)
                        key = body[_FILE_BODY.size :].rstrip(b"\0").decode(errors="replace")
                        shards[key] = Content(nbytes, md5)
        if not shards or not block_bytes:
            raise ShardFormatError(f"no file in {folder} tells of which shards it is")
        if wrong := [key for key in shards if not is_visible_key(key) or row_of(key) != row]:
            raise ShardFormatError(f"{folder} is of {wrong[0]!r}, which is no shard of its row")
        total = sum(-(-shard.nbytes // block_bytes) for shard in shards.values())
        # the file without recovery blocks, and that with them
        return cls(folder, names, shards, blocks, total, is_whole and len(names) == 2, made_ns)


def _packets(file: ReadFile) -> Iterator[tuple[bytes | None, bytes]]:
    """Yields type and body of each sound packet, long bodies cut short; type None for bytes that are in none.
    Raises ``OSError``."""
    at = 0
    while at < file.nbytes:
        kind, nbytes, body = _packet_at(file, at)
        yield kind, body
        at = at + nbytes if kind is not None else _next_magic(file, at + 1)


def _packet_at(file: ReadFile, at: int) -> tuple[bytes | None, int, bytes]:
    """Raises ``OSError``, but for pages that cannot be read."""
    with suppress(struct.error):  # it ends within the header
        try:
            head = read_all(file.descriptor, at, _HEADER.size)
            magic, nbytes, md5, _, kind = _HEADER.unpack(head)
            if magic == _MAGIC and _HEADER.size <= nbytes <= file.nbytes - at:
                found, body = hashlib.md5(head[32:], usedforsecurity=False), b""
                for start in range(at + _HEADER.size, at + nbytes, _PIECE_BYTES):
                    piece = read_all(file.descriptor, start, min(_PIECE_BYTES, at + nbytes - start))
                    found.update(piece)
                    body = body or piece[:_MOST_KEPT_BYTES]
                if found.digest() == md5:
                    return kind, nbytes, body
        except OSError as error:
            if error.errno != errno.EIO:
                raise
    return None, 0, b""


def _next_magic(file: ReadFile, begin: int) -> int:
    tail = b""
    for offset, piece in pieces_of(file.descriptor, begin, skip_unreadable=True):
        if (found := (tail + piece).find(_MAGIC)) >= 0:
            return offset - len(tail) + found
        tail = piece[1 - len(_MAGIC) :]
    return file.nbytes


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
