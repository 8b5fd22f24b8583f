"""The first page of a journal and of a staging area, with the file's owner and the sizes of its tables; and
the seed from which every checksum in the file starts.

    page    fields, little-endian | zeros | u32 crc32c of the 4092 bytes before it

A reader knows the expected fields from the manifest and refuses all others: it never takes a size from the
file.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import crc32c

from shardwright.disk.files import open_regular, pieces_of, read_all, storage_errors
from shardwright.model.errors import ShardFormatError

from .index import CHECKSUM_BYTES
from .layout import PAGE_BYTES

if TYPE_CHECKING:
    import struct
    from pathlib import Path

IDENTITY_BYTES = 16

_VERSION_AT = 8  # behind the magic, u32

Values = TypeVar("Values", bound=tuple[int | bytes, ...])


def file_seed(identity: bytes, shard_row: int) -> int:
    """Returns the seed of the checksums of one file: entries of another acquisition or shard row do not
    fit."""
    assert len(identity) == IDENTITY_BYTES, "an identity has 16 bytes"
    return crc32c.crc32c(identity + shard_row.to_bytes(8, "little", signed=True))


def encode_header(form: struct.Struct, values: tuple[int | bytes, ...]) -> bytes:
    """Returns the header page with these fields."""
    body = form.pack(*values).ljust(PAGE_BYTES - CHECKSUM_BYTES, b"\0")
    return body + crc32c.crc32c(body).to_bytes(CHECKSUM_BYTES, "little")


def is_begun(path: Path) -> bool:
    """Returns whether the first page of such a file is written, without which it says nothing. A page that is
    not whole, and nothing behind it, was cut short by a kill: entries come once it is durable. Raises
    ``StorageError``."""
    with (
        storage_errors("read", path),
        suppress(FileNotFoundError),
        open_regular(path, buffering=0) as file,
    ):
        page = read_all(file.fileno(), 0, PAGE_BYTES)
        return any(page[:_VERSION_AT]) and (_is_whole(page) or has_more(file.fileno()))
    return False


def has_more(descriptor: int) -> bool:
    """Returns whether anything is written behind the first page. Raises ``OSError``."""
    return any(piece.strip(b"\0") for _, piece in pieces_of(descriptor, PAGE_BYTES))


def _is_whole(page: bytes, seed: int = 0) -> bool:
    recorded = int.from_bytes(page[-CHECKSUM_BYTES:], "little")
    return len(page) == PAGE_BYTES and crc32c.crc32c(page[:-CHECKSUM_BYTES], seed) == recorded


def version_of(page: bytes, magic: bytes, seed: int = 0) -> int | None:
    """Returns the version in an undamaged first page of this kind of file, None for any other page. Magic,
    version and checksum (started from ``seed``) keep their offsets in every later version, so that each
    release can distinguish another one's files from damaged ones."""
    if not page.startswith(magic) or not _is_whole(page, seed):
        return None
    return int.from_bytes(page[_VERSION_AT : _VERSION_AT + 4], "little")


def decode_header(page: bytes, form: struct.Struct, magic: bytes, path: Path) -> tuple[int | bytes, ...]:
    """Returns the fields of a page. Raises ``ShardFormatError`` if its magic or checksum is wrong."""
    if len(page) != PAGE_BYTES or not page.startswith(magic):
        raise ShardFormatError(f"{path} has the wrong header", expected=magic, got=page[: len(magic)])
    recorded = int.from_bytes(page[-CHECKSUM_BYTES:], "little")
    computed = crc32c.crc32c(page[:-CHECKSUM_BYTES])
    if computed != recorded:
        raise ShardFormatError(
            f"the header of {path} fails its crc32c", expected=f"{recorded:#010x}", got=f"{computed:#010x}"
        )
    return form.unpack_from(page)


def expect_header(found: Values, expected: Values, names: tuple[str, ...], path: Path) -> None:
    """Raises ``ShardFormatError`` for the first field that differs."""
    for name, have, want in zip(names, found, expected, strict=True):
        if have != want:
            raise ShardFormatError(f"{name} in the header of {path} does not fit", expected=want, got=have)
