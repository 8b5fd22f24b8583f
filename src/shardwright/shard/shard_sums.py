"""The checksums of an array's shards when they were made: ARRAY/shards.crc32c, JSON lines, to detect shards
that were altered, swapped or deleted.

    {"version": 1, "key": "c/0/0/0", "crc32c": 439041101, "check": 2779187741}

``crc32c`` is over 16 bytes for each present chunk, in the order of their numbers: the number (u32), the
crc32c of the encoded bytes without an inner crc32c at their end (u32), the bytes in the index (u64),
little-endian. It does not cover the offsets of chunks, so that packing and moving keep it. null: the shard
has no file, since it is all fill value, or an update is about to make it, or it was damaged before it had its
name. ``check``: crc32c of ``KEY CRC32C`` as text; a line that does not fit it is ignored. The lines of
updates have ``"edited": true`` as well.

A line is durable before its shard gets its name, and none is ever deleted: a crash may leave a line too many.
So a key may have several lines, and a shard must fit one of them. A key without a line is of a shard that was
made by an earlier release, or by another program.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import numpy.typing as npt

from shardwright.disk import beneath
from shardwright.disk.files import append_file, file_held, read_regular, storage_errors
from shardwright.model.errors import ShardFormatError
from shardwright.model.json_text import parse_json
from shardwright.model.names import DOCUMENT
from shardwright.model.versions import check_version

from .index import CHECKSUM_BYTES, EMPTY
from .journal import VALID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from .journal import ShardRowJournal

SUMS_NAME = "shards.crc32c"
VERSION = 1
MAX_BYTES = 256 << 20  # of three million shards
_CHUNK = np.dtype([("number", "<u4"), ("data_crc", "<u4"), ("nbytes", "<u8")])

Sum = int | None


def shard_sum(numbers: npt.NDArray[Any], nbytes: npt.NDArray[Any], data_crcs: npt.NDArray[Any]) -> int:
    """Returns the sum of one shard from its chunks, given in any order."""
    chunks = np.zeros(len(numbers), _CHUNK)
    chunks["number"], chunks["nbytes"], chunks["data_crc"] = numbers, nbytes, data_crcs
    return int(crc32c.crc32c(chunks[np.argsort(chunks["number"])].tobytes()))


def data_crc(chunk: bytes | memoryview, *, has_inner: bool, inner_is_believed: bool = False) -> int:
    """Returns the crc32c of an encoded chunk without the inner crc32c at its end, if it has one.
    ``inner_is_believed``: that is the number, and the last bytes of the chunk are enough."""
    if has_inner and inner_is_believed:
        return int.from_bytes(chunk[-CHECKSUM_BYTES:], "little")
    return int(crc32c.crc32c(chunk[:-CHECKSUM_BYTES] if has_inner else chunk))


def sum_of_journaled(entries: npt.NDArray[np.void], journal: ShardRowJournal, file: int) -> Sum:
    """Returns the sum of a shard in progress, from its future index and the checksums in its shard row's
    journal; None when all of it is fill value.

    Raises ``StorageError``, and ``ShardFormatError`` when the journal does not have every chunk.
    """
    numbers = np.flatnonzero(entries["offset"] != EMPTY)
    if not numbers.size:
        return None
    live, (journaled, states) = entries[numbers], journal.read_chunks(file)
    found = journaled[states == VALID]
    if not _are_alike(found, live):  # more than these, or in another order
        found = found[np.argsort(found["offset"], kind="stable")]
        rows = np.searchsorted(found["offset"], live["offset"])
        found = found[rows[rows < found.size]]
        if not _are_alike(found, live):
            raise ShardFormatError(f"{journal.path} lacks entries for chunks of its shards")
    return shard_sum(numbers, live["nbytes"], found["data_crc"])


def _are_alike(journaled: npt.NDArray[np.void], entries: npt.NDArray[np.void]) -> bool:
    # field by field: to compare records takes NumPy as long as all the rest
    return journaled.size == entries.size and all(
        (journaled[field] == entries[field]).all() for field in ("offset", "nbytes")
    )


def sum_lines(sums: Mapping[str, Sum], *, edited: bool = False) -> bytes:
    """Returns the lines of a record for the sums of shards by key. ``edited``: by an update."""
    further = {"edited": True} if edited else {}
    facts = (
        {"version": VERSION, "key": key, "crc32c": value, "check": _check(key, value), **further}
        for key, value in sums.items()
    )
    lines = "".join(f"{json.dumps(line)}\n" for line in facts)
    # a line end in front too: it ends a line that a crash cut short
    return f"\n{lines}".encode()


def changed_lines(text: bytes, path: Path, key: str, value: Sum, *, is_new: bool) -> bytes:
    """Returns the lines that the record ``text`` gets for the sum that a shard is about to have. ``is_new``:
    there is none of this key; then it is on record as absent too, since a crash may leave it so. Raises
    ``FormatVersionError``."""
    absent = b"" if not is_new or _sums_in(text, [key], path)[key] else sum_lines({key: None}, edited=True)
    return absent + sum_lines({key: value}, edited=True)


class ShardSums:
    """The record of one array. Every process that makes or changes shards appends to it, also several at
    once."""

    def __init__(self, array_folder: Path) -> None:
        self.path = array_folder / SUMS_NAME

    def exists(self) -> bool:
        return beneath.exists(self.path)

    def append(self, sums: Mapping[str, Sum], *, synced: bool = True) -> None:
        """Appends lines, durably unless the caller syncs many records at once (``synced``). Raises
        ``StorageError`` (``StorageFullError``)."""
        if sums:
            append_file(self.path, sum_lines(sums), "sums", synced=synced)

    def append_changed(self, key: str, value: Sum, *, is_new: bool) -> None:
        """As ``append``, for a shard that is about to change (``changed_lines``). Raises as ``read`` does."""
        append_file(self.path, changed_lines(self._text(), self.path, key, value, is_new=is_new), "sums")

    def held(self, *, create: bool = True) -> AbstractContextManager[None]:
        """A context with the exclusive right to replace or delete a shard that has its final name; the old
        shard must be checked inside. A compaction and an acquisition with a reopened shard row may both be
        about to do so. Only for the duration of a rename. Raises ``StorageError``.

        ``create``: also in an array without a record, where an acquisition may be active. Otherwise an array
        without a record is held by its zarr.json.
        """
        path = self.path if create or self.exists() else self.path.with_name(DOCUMENT)
        return file_held(path, "sums", create=create)

    def read(self, on_damaged: Callable[[int], None] = lambda line: None) -> dict[str, set[Sum]]:
        """Returns all sums by key. ``on_damaged`` is called with the number of each damaged line, except
        those that a crash has cut short.

        Raises ``ShardFormatError``, ``FormatVersionError``, ``StorageError``.
        """
        found: dict[str, set[Sum]] = {}
        for number, line in enumerate(self._text().split(b"\n"), 1):
            sound = False
            for key, value in _parsed(line, self.path):
                found.setdefault(key, set()).add(value)
                sound = True
            if not sound and line.endswith(b"}"):
                on_damaged(number)
        return found

    def of(self, key: str) -> set[Sum]:
        """Returns the sums of one shard, without parsing those of all. Raises as ``read`` does."""
        return self.of_each([key])[key]

    def of_each(self, keys: Iterable[str]) -> dict[str, set[Sum]]:
        """Returns the sums of some shards, an empty set for one without a line. Raises as ``read`` does."""
        return _sums_in(self._text(), keys, self.path)

    def was_edited(self) -> bool:
        """Returns whether an update was about to change a shard. Raises ``StorageError``."""
        return b'"edited": true' in self._text()

    def _text(self) -> bytes:
        with storage_errors("read", self.path):
            try:
                return read_regular(self.path, MAX_BYTES)
            except (FileNotFoundError, NotADirectoryError):
                return b""


def _sums_in(text: bytes, keys: Iterable[str], path: Path) -> dict[str, set[Sum]]:
    known: dict[str, set[Sum]] = {key: set() for key in keys}
    wanted = {key.encode() for key in known}
    for line in text.splitlines():
        if not wanted.isdisjoint(line.split(b'"')):
            for key, value in _parsed(line, path):
                known.get(key, set()).add(value)
    return known


def _check(key: str, value: Sum) -> int:
    # a key may be half of a pair of surrogates, in a line of nobody's
    return int(crc32c.crc32c(f"{key} {value}".encode(errors="surrogatepass")))


def _parsed(line: bytes, path: Path) -> Iterator[tuple[str, Sum]]:
    try:
        facts = parse_json(line)
    except ValueError:
        return
    if isinstance(facts, dict) and {"version", "key", "crc32c", "check"} <= facts.keys():
        check_version(facts["version"], VERSION, path)
        key, value = facts["key"], facts["crc32c"]
        if (
            isinstance(key, str)
            and (value is None or type(value) is int)
            and facts["check"] == _check(key, value)
        ):
            yield key, value
