"""A journal that rows share: each row has its own tables in it, and ends by itself; the file goes with the
last one, and what fails is one failure of all of them."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from shardwright.disk import failpoints
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.shard.file_header import file_seed
from shardwright.shard.journal import VALID, JournalLayout
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.shared_journal import SharedJournal, age_of, is_shared, read_header, shared_name

from .sidecars import ARRAY, IDENTITY, RECORD, chunk_entry, frame_record, put

ROWS = (0, 1, LAST := 2)
TABLES = [JournalLayout.of(ARRAY, row, RECORD) for row in ROWS]
EPOCH = 3


@pytest.fixture
def path(tmp_path):
    return tmp_path / shared_name(EPOCH, 7)


@pytest.fixture
def shared(path):
    made = SharedJournal.plan(path, TABLES, IDENTITY, EPOCH)
    made.journals = [made.journal(row, packed=row == 1) for row in ROWS]
    made.make()
    made.begin(ROWS)
    yield made
    for journal in made.journals:
        journal.close()


def header(path, *, identity: bytes = IDENTITY):
    return read_header(path, identity, RECORD.itemsize, lambda row: row in ROWS)


def opened_again(path, row: int):
    other = SharedJournal.open(path, header(path), IDENTITY, read_only=True)
    journal = other.journal_at(TABLES[ROWS.index(row)])
    other.let_go()
    return journal


def test_names_are_known_and_grow():
    assert is_shared(shared_name(2, 1))
    assert not any(
        map(is_shared, ("1.journal", "rows-0-1.journal", "rows-1-2.journal.rewrite", "rows-1-01.journal"))
    )
    assert age_of(shared_name(2, 1)) > age_of(shared_name(1, 10)) > age_of(shared_name(1, 9))


def test_each_row_has_tables_of_its_own(shared, path):
    """Those of one row begin where those of the one before it end, and the file ends with the last one."""
    edges = [
        (each.layout.base + PAGE_BYTES, each.layout.base + each.layout.file_bytes) for each in shared.journals
    ]
    assert edges[0][0] == 2 * PAGE_BYTES
    assert [start for start, _ in edges[1:]] == [stop for _, stop in edges[:-1]]
    assert edges[-1][1] == path.stat().st_size


def test_what_one_row_has_no_other_row_takes(shared, path):
    written = shared.journals[1]
    seed = file_seed(IDENTITY, 1)
    put(written, written.layout.chunk_entry_offset(0, 0), chunk_entry(0, 100, seed))
    for row in ROWS:
        journal = opened_again(path, row)
        states = journal.read_chunks(0)[1]
        assert (states[0] == VALID, bool((states[1:] == VALID).any())) == (row == 1, False)
        assert (journal.packed, journal.reopened, journal.writer_epoch) == (row == 1, False, EPOCH)
        journal.close()


def test_a_record_of_one_row_is_damaged_in_another(shared, path):
    journal = shared.journals[1]
    positions = [n for n in range(40) if journal.layout.belong(np.array([n], [("position", np.int64)]), 0)[0]]
    offset = journal.layout.frame_records_offset(0)
    put(journal, offset, frame_record(file_seed(IDENTITY, 0), sequence=1, position=positions[0]))
    assert not journal.written_frames().size
    put(journal, offset, frame_record(file_seed(IDENTITY, 1), sequence=1, position=positions[0]))
    assert journal.written_frames()["sequence"].tolist() == [1]


def test_a_row_ends_by_itself_and_the_file_goes_with_the_last_one(shared, path):
    for row in (1, 0):
        shared.journals[ROWS.index(row)].delete()
        assert row not in header(path).bases
    assert [*header(path).bases] == [LAST]
    shared.journals[-1].delete()
    assert not path.exists()
    assert shared.file.descriptor == -1


def test_a_row_that_could_not_be_prepared_is_not_there(path):
    made = SharedJournal.plan(path, TABLES, IDENTITY, EPOCH)
    journals = {row: made.journal(row, packed=False) for row in ROWS}
    made.make()
    made.begin((0, LAST))
    journals[1].abandon()
    assert [*header(path).bases] == [0, LAST], "the others keep it"
    for row in (0, LAST):
        journals[row].delete()
    assert not path.exists()


def test_a_file_that_could_not_be_begun_is_gone(path):
    made = SharedJournal.plan(path, TABLES, IDENTITY, EPOCH)
    journals = [made.journal(row, packed=False) for row in ROWS]
    made.make()
    for journal in journals:
        journal.abandon()
    assert not path.exists()


def test_a_row_that_is_given_up_for_good_is_ended_durably(shared, path):
    points = []
    failpoints.watch_all(points.append)
    try:
        shared.journals[0].delete(durably=True)
    finally:
        failpoints.watch_all(None)
    assert points == ["journal.before_end", "journal.before_sync"]


@pytest.mark.parametrize("whole", [False, True])
def test_a_sync_that_fails_is_one_of_all_rows(shared, failing, whole):
    """The kernel tells the one descriptor once."""
    failing("journal.before_sync")
    with pytest.raises(StorageError):
        shared.journals[0].sync(whole=whole)
    failpoints.set_hook("journal.before_sync", None)
    assert all(journal.has_failed for journal in shared.journals)


def test_rows_that_are_synced_side_by_side_do_not_fail_by_that(shared):
    errors: list[StorageError] = []

    def sync(number: int) -> None:
        try:
            shared.journals[number].sync()
        except StorageError as error:
            errors.append(error)

    other = threading.Thread(target=sync, args=(1,))
    begin = failpoints.at_time(1, lambda: (other.start(), other.join(0.2)))
    failpoints.set_hook("journal.before_sync", begin)
    try:
        sync(0)
        other.join()
    finally:
        failpoints.set_hook("journal.before_sync", None)
    assert errors == []


def test_any_flipped_bit_of_the_header_page_is_found(shared, path):
    intact = path.read_bytes()
    for place in [*range(1200), *range(1200, PAGE_BYTES, 61), *range(PAGE_BYTES - 4, PAGE_BYTES)]:
        for bit in range(8):
            with path.open("r+b", buffering=0) as file:
                os.pwrite(file.fileno(), bytes([intact[place] ^ 1 << bit]), place)
                with pytest.raises(ShardFormatError):
                    header(path)
                os.pwrite(file.fileno(), intact[place : place + 1], place)
    assert [*header(path).bases] == [*ROWS]


def test_a_state_that_nobody_wrote_ends_no_row(shared, path):
    shared.journals[0].delete()
    for place in range(PAGE_BYTES, 2 * PAGE_BYTES, 7):
        with path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"S", place)
    assert {1, LAST} <= {*header(path).bases}


@pytest.mark.parametrize("change", ["cut", "longer", "identity", "record", "rows"])
def test_a_file_that_does_not_fit_is_refused(shared, path, change):
    if change in ("cut", "longer"):
        os.truncate(path, path.stat().st_size + (4096 if change == "longer" else -4096))
    with pytest.raises(ShardFormatError):
        read_header(
            path,
            bytes(16) if change == "identity" else IDENTITY,
            RECORD.itemsize + 8 * (change == "record"),
            lambda row: row in ROWS[change == "rows" :],
        )


def test_a_row_behind_the_end_is_refused(shared, path):
    found = header(path)
    far = replace(found, bases={**found.bases, 0: path.stat().st_size - PAGE_BYTES})
    other = SharedJournal.open(path, far, IDENTITY, read_only=True)
    with pytest.raises(ShardFormatError, match="behind its end"):
        other.journal_at(TABLES[0])
    other.let_go()
    assert other.descriptor == -1, "no row of it is open"


def test_a_file_that_was_opened_is_open_while_a_row_or_its_opener_uses_it(shared, path):
    """A row may be opened twice: the one that is closed first leaves the file to the other."""
    other = SharedJournal.open(path, header(path), IDENTITY, read_only=True)
    first, second = other.journal_at(TABLES[0]), other.journal_at(TABLES[0])
    other.let_go()
    first.close()
    first.close()
    assert other.hold(path.stat())
    second.close()
    assert other.descriptor >= 0
    other.let_go()
    assert other.descriptor == -1
    assert not other.hold(path.stat())


def test_a_file_that_was_opened_is_not_that_of_a_name_which_another_one_has_taken(shared, path):
    found = header(path)
    other = SharedJournal.open(path, found, IDENTITY, read_only=True)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    assert not other.hold(path.stat())
    assert other.descriptor == -1
    with pytest.raises(StorageError) as raised:
        SharedJournal.open(path, found, IDENTITY, read_only=True)
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_the_end_of_a_row_is_seen_in_a_file_that_is_open(shared, path):
    other = SharedJournal.open(path, header(path), IDENTITY, read_only=True)
    assert not other.has_ended(1)
    shared.journals[1].delete()
    assert [other.has_ended(row) for row in ROWS] == [False, True, False]
    with pytest.raises(StorageError) as raised:
        other.journal_at(TABLES[1])
    assert isinstance(raised.value.__cause__, FileNotFoundError)
    other.let_go()


def test_a_header_is_the_one_known_only_while_both_pages_and_the_file_are_the_same(shared, path):
    def again(known):
        return read_header(path, IDENTITY, RECORD.itemsize, lambda row: row in ROWS, known)

    known = header(path)
    assert again(known) is known
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    assert again(known).inode == path.stat().st_ino
    with path.open("r+b") as file:
        file.seek(PAGE_BYTES + 8)
        file.write(b"SWENDED\0")
    assert [*again(known).bases] == [0, LAST]
    with path.open("r+b") as file:
        file.write(b"\xff")
    with pytest.raises(ShardFormatError):
        again(known)


def test_no_room_leaves_no_file(path, failing):
    made = SharedJournal.plan(path, TABLES, IDENTITY, EPOCH)
    journals = [made.journal(row, packed=False) for row in ROWS]
    failing("journal.before_preallocate", errno.ENOSPC)
    with pytest.raises(StorageError):
        made.make()
    assert not path.exists()
    for journal in journals:
        journal.abandon()  # as a row that could not be prepared does
