"""The records of a zip file as they are written: each file stored as it is, each number in its ZIP64 form.

    of each file    header (30)    PK 3 4, 45, flags: UTF-8, method: stored, time, crc32, -1, -1, lengths
                    name
                    extra (20)     1, 16, bytes (8), bytes (8)
                    its bytes
    of each file    entry (46)     PK 1 2, made by, then as the header ..., mode, -1
                    name
                    extra (28)     1, 24, bytes (8), bytes (8), offset of its header (8)
    once            end (56)       PK 6 6, number of files, bytes and offset of the entries
                    locator (20)   PK 6 7, where that is
                    end (22)       PK 5 6, -1 ..., len(comment)
                    comment

-1 is a field of ones: the number is in the ZIP64 one. RFC-9 of OME-Zarr wants that form whatever the sizes.
The times are those of the first day of zip: the same store makes the same bytes.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from shardwright.model.names import DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Iterable

_VERSION, _MADE_BY, _UTF_8, _STORED = 45, 3 << 8 | 45, 0x0800, 0  # 4.5: ZIP64; made on UNIX
_TIME, _DATE = 0, 1 << 5 | 1
_MODE = 0o100644 << 16
_ONES_2, _ONES_4 = 0xFFFF, 0xFFFFFFFF
_HEADER = struct.Struct("<4sHHHHHIIIHH")
_HEADER_EXTRA = struct.Struct("<HHQQ")
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
_ENTRY_EXTRA = struct.Struct("<HHQQQ")
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")


def header(name: str, nbytes: int, crc32: int) -> bytes:
    """Returns what stands before the bytes of a file."""
    encoded = name.encode()
    return (
        _HEADER.pack(
            *(b"PK\3\4", _VERSION, _UTF_8, _STORED, _TIME, _DATE, crc32, _ONES_4, _ONES_4),
            *(len(encoded), _HEADER_EXTRA.size),
        )
        + encoded
        + _HEADER_EXTRA.pack(1, _HEADER_EXTRA.size - 4, nbytes, nbytes)
    )


def header_bytes(name: str) -> int:
    """Returns the length of ``header``."""
    return _HEADER.size + len(name.encode()) + _HEADER_EXTRA.size


def entry_bytes(name: str) -> int:
    """Returns the length of the entry of a file in the directory."""
    return _ENTRY.size + len(name.encode()) + _ENTRY_EXTRA.size


def directory(files: Iterable[tuple[str, int, int, int]], at: int, comment: bytes) -> bytes:
    """Returns what stands behind the bytes of all files, from offset ``at`` on. ``files``: name, offset of
    the header, bytes and crc32 of each, in the order in which readers shall meet them."""
    entries = [_entry(*file) for file in files]
    nbytes, count = sum(map(len, entries)), len(entries)
    end = _END_64.pack(*(b"PK\6\6", _END_64.size - 12, _MADE_BY, _VERSION, 0, 0, count, count, nbytes, at))
    locator = _LOCATOR.pack(b"PK\6\7", 0, at + nbytes, 1)
    last = _END.pack(b"PK\5\6", 0, 0, _ONES_2, _ONES_2, _ONES_4, _ONES_4, len(comment))
    return b"".join((*entries, end, locator, last, comment))


def _entry(name: str, offset: int, nbytes: int, crc32: int) -> bytes:
    encoded = name.encode()
    return (
        _ENTRY.pack(
            *(b"PK\1\2", _MADE_BY, _VERSION, _UTF_8, _STORED, _TIME, _DATE, crc32, _ONES_4, _ONES_4),
            *(len(encoded), _ENTRY_EXTRA.size, 0, 0, 0, _MODE, _ONES_4),
        )
        + encoded
        + _ENTRY_EXTRA.pack(1, _ENTRY_EXTRA.size - 4, nbytes, nbytes, offset)
    )


def order_in_directory(name: str) -> tuple[int, int, str]:
    """Returns the place of a file among others, as RFC-9 wants it: zarr.json first, those of higher groups
    before those below, then all else."""
    is_other = name.rpartition("/")[2] != DOCUMENT
    return (1, 0, name) if is_other else (0, name.count("/"), name)


def archive_comment(ome_version: str) -> bytes:
    """Returns the comment by which readers know the archive, and that they need not look for more zarr.json
    behind the first other file."""
    told = {"ome": {"version": ome_version, "zipFile": {"centralDirectory": {"jsonFirst": True}}}}
    return json.dumps(told).encode()
