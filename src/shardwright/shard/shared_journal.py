"""A journal that several shard rows share: rows of one slab, which are prepared together where many images
take turns. For these a journal of each costs more than its row. FORMAT.md, "A shared journal".

    | header, one page | state of each row, one page | tables of the first row | of the second | ... |

The tables of a row are those of its own journal (``journal``), without the header page. A row ends by its
state, and the file goes with its last row.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from shardwright.disk.files import open_regular, read_all, storage_errors
from shardwright.disk.table_file import TableFile
from shardwright.model.errors import ShardFormatError, StorageError

from .file_header import decode_header, encode_header
from .journal import MAGIC, SHARED, ShardRowJournal
from .layout import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from .journal import JournalLayout

MOST_ROWS = 64  # which have their states in a page, and their numbers in another
_NAME = re.compile(r"rows-([1-9][0-9]{0,9})-([1-9][0-9]{0,17})\.journal")
_HEADER, _ROW = struct.Struct("<8sII16sqIIQQ"), struct.Struct("<qq")
_STATES_AT, _STATE_BYTES = PAGE_BYTES, 8
_ENDED = b"SWENDED\0"  # eight bytes: a write of it is never torn
_OPENER = -1  # among the rows that use a file, whoever opened it


def shared_name(epoch: int, number: int) -> str:
    """Returns the name of the shared journal with this number, of the writer of this epoch."""
    return f"rows-{epoch}-{number}.journal"


def is_shared(name: str) -> bool:
    """Returns whether a journal of this name is one that rows share."""
    return _NAME.fullmatch(name) is not None


def age_of(name: str) -> tuple[int, ...]:
    """Returns what grows from each shared journal of a store to the next one."""
    found = _NAME.fullmatch(name)
    assert found, "it is shared"
    return tuple(map(int, found.groups()))


@dataclass(frozen=True)
class SharedHeader:
    """The first two pages of a file. ``bases``: of each row that has not ended, as in ``JournalLayout``;
    ``numbers``: the places of their states; ``packed``: those whose journal says so. ``rows``: all of them,
    ended or not. ``inode``: of the file."""

    bases: dict[int, int]
    numbers: dict[int, int]
    packed: frozenset[int]
    writer_epoch: int
    file_bytes: int
    rows: int
    inode: int
    pages: bytes = field(repr=False)


def read_header(
    path: Path,
    identity: bytes,
    record_bytes: int,
    may_share: Callable[[int], bool],
    known: SharedHeader | None = None,
) -> SharedHeader:
    """Returns the header. ``may_share``: whether there is such a shard row. ``known``: the one that was read
    last, which is returned while the file has the same pages. Raises ``ShardFormatError`` for one that is
    damaged, of another acquisition, or not written yet, ``StorageError``."""
    with storage_errors("read", path), open_regular(path, buffering=0) as file:
        pages, status = read_all(file.fileno(), 0, 2 * PAGE_BYTES), os.fstat(file.fileno())
    if known and (known.pages, known.inode, known.file_bytes) == (pages, status.st_ino, status.st_size):
        return known
    fields = decode_header(pages[:PAGE_BYTES], _HEADER, MAGIC, path)
    expected = MAGIC, SHARED, record_bytes, identity, status.st_size
    epoch, count, packed, there = (int(field) for field in fields[5:])
    if fields[:5] != expected or not 0 < count <= MOST_ROWS or len(pages) < 2 * PAGE_BYTES:
        raise ShardFormatError(f"the header of {path} does not fit", expected=expected, got=fields[:5])
    rows = list(_ROW.iter_unpack(pages[_HEADER.size : _HEADER.size + count * _ROW.size]))
    states = [pages[at : at + _STATE_BYTES] for at in range(_STATES_AT, 2 * PAGE_BYTES, _STATE_BYTES)]
    left = [i for i in range(count) if there >> i & 1 and states[i] != _ENDED]
    bases, numbers = {rows[i][0]: rows[i][1] for i in left}, {rows[i][0]: i for i in left}
    if len(bases) < len(left) or not all(
        may_share(row) and PAGE_BYTES <= base < status.st_size for row, base in bases.items()
    ):
        raise ShardFormatError(f"the header of {path} has shard rows that there are not", got=rows[:4])
    return SharedHeader(
        bases,
        numbers,
        frozenset(rows[i][0] for i in left if packed >> i & 1),
        epoch,
        status.st_size,
        count,
        status.st_ino,
        pages,
    )


class SharedJournal:
    """One open file. Its owner's threads write and sync it for a row each; all else is the owner thread's."""

    def __init__(
        self, path: Path, identity: bytes, writer_epoch: int, file_bytes: int = 2 * PAGE_BYTES
    ) -> None:
        """The file is made, or opened, later."""
        self.path = path
        self.writer_epoch = writer_epoch
        self._identity = identity
        self.file_bytes = file_bytes
        self.opened: TableFile | None = None
        # A sync that fails is one of all rows: ``TableFile`` keeps that, and is no file of several threads.
        # Reentrant: a live row that the collector finds closes its journal wherever that comes.
        self._lock = threading.RLock()
        self.has_failed = False  # a sync of it, or of its filesystem by it
        self._tables: dict[int, JournalLayout] = {}  # of each row, with its base
        self._bases: dict[int, int] = {}  # of a file that was opened: of the rows that had not ended
        self.rows = 0  # in all, ended or not
        self._numbers: dict[int, int] = {}  # of each row: the place of its state
        self._packed: set[int] = set()
        self._left: set[int] = set()  # rows that have not ended
        # The row of each journal that is open, perhaps twice, and ``_OPENER``: the file is open for these.
        # Under ``_lock``. By a key of each, since a journal here would keep its file, and this that.
        self._used: dict[object, int] = {}

    @classmethod
    def plan(
        cls, path: Path, tables: Iterable[JournalLayout], identity: bytes, writer_epoch: int
    ) -> SharedJournal:
        """Returns one for rows that are prepared. ``tables``: as in journals of their own."""
        shared = cls(path, identity, writer_epoch)
        for number, layout in enumerate(tables):
            shared._numbers[layout.shard_row] = number
            shared._tables[layout.shard_row] = replace(layout, base=shared.file_bytes - PAGE_BYTES)
            shared.file_bytes += layout.file_bytes - PAGE_BYTES
        shared.rows = len(shared._tables)
        assert 0 < shared.rows <= MOST_ROWS, "their states have a page"
        return shared

    @classmethod
    def open(
        cls, path: Path, header: SharedHeader, identity: bytes, *, read_only: bool = False
    ) -> SharedJournal:
        """Opens a file whose header was read. ``let_go`` follows: until then, and while a row uses it, it is
        open. Raises ``ShardFormatError`` for another size, ``StorageError``, also if the name is another
        file's by now."""
        shared = cls(path, identity, header.writer_epoch, header.file_bytes)
        shared.opened = TableFile.open(path, "journal", header.file_bytes, read_only=read_only)
        if os.fstat(shared.descriptor).st_ino != header.inode:
            shared.opened.close()
            _raise_gone(path)
        shared._numbers, shared._packed = dict(header.numbers), set(header.packed)
        shared._bases, shared.rows = header.bases, header.rows
        shared._left, shared._used = {*header.bases}, {_OPENER: _OPENER}
        return shared

    def hold(self, status: os.stat_result) -> bool:
        """Keeps a file open until ``let_go``. Returns False if its last row has closed it, or if the name, of
        which this is the ``status``, is another file's: an inode that is open is nobody else's."""
        with self._lock:
            self._used[_OPENER] = _OPENER
            if self.descriptor >= 0 and os.path.samestat(os.fstat(self.descriptor), status):
                return True
            self.let_go()
            return False

    def let_go(self) -> None:
        """Leaves a file that was opened to the rows that use it."""
        self.close(_OPENER)

    def journal_at(self, layout: JournalLayout) -> ShardRowJournal:
        """Returns the journal of a row of a file that was opened; ``layout`` as of a journal of its own.
        Raises ``ShardFormatError`` if it lies outside the file, ``StorageError``, also for a row that has
        ended."""
        row = layout.shard_row
        if self.has_ended(row):
            _raise_gone(self.path)
        layout = replace(layout, base=self._bases[row])
        if layout.base + layout.file_bytes > self.file_bytes:
            raise ShardFormatError(
                f"a shard row of {self.path} lies behind its end",
                expected=self.file_bytes,
                got=layout.base + layout.file_bytes,
            )
        self._tables[row] = layout
        return self.journal(row, packed=row in self._packed)

    def has_ended(self, row: int) -> bool:
        """Returns whether a row of a file that was opened has ended by now, as the file says. Raises
        ``StorageError``."""
        if row not in self._bases:
            return True
        state = np.empty(_STATE_BYTES, np.uint8)
        self.file.read_into(_STATES_AT + self._numbers[row] * _STATE_BYTES, state)
        return state.tobytes() == _ENDED

    @property
    def descriptor(self) -> int:
        return self.file.descriptor

    @property
    def file(self) -> TableFile:
        assert self.opened is not None, "it was made"
        return self.opened

    def journal(self, row: int, *, packed: bool) -> ShardRowJournal:
        """Returns the journal of a row."""
        with self._lock:  # rows are made side by side
            (self._packed.add if packed else self._packed.discard)(row)
            self._left.add(row)
            self._used[use := object()] = row
        file, tables = RowOfShared(self, row, use), self._tables[row]
        return ShardRowJournal(
            file, tables, self._identity, row, self.writer_epoch, packed=packed, shared_by=self.rows
        )

    @property
    def unused(self) -> list[int]:
        """The rows that have not ended, and whose files nobody has opened."""
        return sorted(self._left.difference(self._used.values()))

    def make(self) -> None:
        """Makes the file. Raises ``StorageError``; a failure leaves no file."""
        self.opened = TableFile.make(self.path, "journal", self.file_bytes)

    def begin(self, there: Collection[int]) -> None:
        """Writes the header, once the names of the shards of all rows that are ``there`` are durable. Raises
        ``StorageError``."""
        packed, bits = (
            sum(1 << number for row, number in self._numbers.items() if row in some)
            for some in (self._packed, there)
        )
        record_bytes, rows = next(iter(self._tables.values())).record.itemsize, self._tables.items()
        form = struct.Struct(f"{_HEADER.format}{2 * len(rows)}q")
        facts = (MAGIC, SHARED, record_bytes, self._identity, self.file_bytes, self.writer_epoch, len(rows))
        places = (number for row, layout in rows for number in (row, layout.base))
        self._left &= {*there}
        self.file.begin(encode_header(form, (*facts, packed, bits, *places)))

    def sync(self, *, whole: bool = False) -> None:
        """As ``TableFile.sync``."""
        with self._lock:
            try:
                self.file.sync(whole=whole)
            except StorageError:
                # The kernel tells this descriptor once, and of writes of any row.
                self.has_failed = True
                raise

    def end(self, row: int, *, durably: bool = False) -> None:
        """Ends a row; deletes the file with the last one. Raises ``StorageError``: it may be called again."""
        if self._left > {row} or durably:
            self.file.write(_STATES_AT + self._numbers[row] * _STATE_BYTES, _ENDED, "end")
            if durably:
                self.sync()
        if self._left <= {row}:
            self.file.delete()
        self._left.discard(row)

    def give_up(self, row: int) -> None:
        """Abandons the file if one of its rows could not be begun; not if it began without this row. Raises
        ``StorageError``."""
        if row in self._left and self.opened is not None:
            self.opened.abandon()

    def close(self, use: object) -> None:
        """Closes the file once no row uses it."""
        with self._lock:
            self._used.pop(use, None)
            if not self._used and self.opened is not None:
                self.opened.close()


def _raise_gone(path: Path) -> NoReturn:
    """Raises the ``StorageError`` of a journal that was deleted: for a row that has ended in a file that is
    there for others."""
    with storage_errors("open", path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


class RowOfShared:
    """The file of one row's journal, as ``TableFile``."""

    def __init__(self, shared: SharedJournal, row: int, use: object) -> None:
        self.shared = shared
        self._row, self._use = row, use

    @property
    def path(self) -> Path:
        return self.shared.path

    @property
    def descriptor(self) -> int:
        return self.shared.descriptor

    @property
    def has_failed(self) -> bool:
        return self.shared.has_failed

    def read_table(self, offset: int, count: int, dtype: np.dtype[np.void]) -> np.ndarray:
        return self.shared.file.read_table(offset, count, dtype)

    def written_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        yield start, stop  # a page or two: to ask for holes costs more

    def write(self, offset: int, data: bytes, what: str) -> None:
        self.shared.file.write(offset, data, what)

    def sync(self, *, whole: bool = False) -> None:
        self.shared.sync(whole=whole)

    def rename(self, path: Path) -> None:
        raise AssertionError(f"a shared journal keeps its name: {path}")

    def begin(self, first_page: bytes) -> None:
        raise AssertionError(f"its rows begin together, with {first_page!r:.20}")

    def begin_alone(self, first_page: bytes) -> None:
        self.begin(first_page)

    def abandon(self) -> None:
        self.shared.give_up(self._row)
        self.close()

    def close(self) -> None:
        self.shared.close(self._use)

    def delete(self, *, durably: bool = False) -> None:
        self.shared.end(self._row, durably=durably)
        self.close()
