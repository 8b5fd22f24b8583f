"""A few thousand damaged journals and staging areas; a million behind ``python -m tests.fuzz.journal``. And
that the fuzzing has teeth."""

from __future__ import annotations

import os
from types import SimpleNamespace
from unittest.mock import ANY

import numpy as np
import pytest

from shardwright.disk.table_file import TableFile
from shardwright.shard import journal, staging

from .campaign import tally_of
from .journal import run

CHECKED_ROWS = journal.checked_rows


@pytest.mark.parametrize(("parser", "states"), [("journal", 3), ("staging", 2)])
def test_damaged_files_are_judged_as_format_md_says(parser, states):
    tally = tally_of("journal", "--parser", parser, "--inputs", "2000", "--seed", "1")
    assert len(tally["outcomes"]) == 2, "refused and accepted"
    assert min(tally["outcomes"].values()) > 500
    assert len(tally["rows"]) == states
    assert min(tally["rows"].values()) > 500
    assert tally["peak_bytes"] > 0


def _believe_all_that_is_written(rows, seed):
    return journal.written_rows(rows)


def _start_from_no_seed(rows, seed):
    return CHECKED_ROWS(rows, 0)


def _check_no_header(page, form, magic, path):
    return form.unpack_from(page)


def _compare_no_header(found, expected, names, path):
    pass


def _open_any_size(path, kind, nbytes):
    return TableFile(path, kind, nbytes, os.open(path, os.O_RDWR))


def _believe_the_files_size(path, kind, nbytes):
    np.empty(path.stat().st_size, np.uint8)
    return OPEN(path, kind, nbytes)


OPEN = TableFile.open


def _ask_for_no_fit(self, file):
    entries = self._file.read_table(
        self.layout.chunk_entry_offset(file, 0), self.layout.slots[file], journal.CHUNK_ENTRY
    )
    states = np.where(CHECKED_ROWS(entries, self.seed), journal.VALID, journal.TORN)
    states[~journal.written_rows(entries)] = journal.EMPTY
    return entries, states


MUTANTS = {
    "journal: no row's checksum": ("journal", journal, "checked_rows", _believe_all_that_is_written),
    "journal: no seed": ("journal", journal, "checked_rows", _start_from_no_seed),
    "journal: no empty rows": ("journal", journal, "written_rows", lambda rows: np.ones(len(rows), bool)),
    "journal: chunks of any length anywhere": (
        "journal",
        journal.ShardRowJournal,
        "read_chunks",
        _ask_for_no_fit,
    ),
    "packed-journal: chunks of any length anywhere": (
        "packed-journal",
        journal.ShardRowJournal,
        "read_chunks",
        _ask_for_no_fit,
    ),
    "journal: no header checksum": ("journal", journal, "decode_header", _check_no_header),
    "journal: any header": ("journal", journal, "expect_header", _compare_no_header),
    "journal: any size": ("journal", TableFile, "open", _open_any_size),
    "journal: as much memory as the file is long": ("journal", TableFile, "open", _believe_the_files_size),
    "journal: a descriptor left open": ("journal", TableFile, "close", lambda self: None),
    "staging: no record's checksum": ("staging", staging, "checked_rows", _believe_all_that_is_written),
    "staging: no seed": ("staging", staging, "checked_rows", _start_from_no_seed),
    "staging: no pixels' checksum": ("staging", staging, "crc32c", SimpleNamespace(crc32c=lambda data: ANY)),
    "staging: no header checksum": ("staging", staging, "decode_header", _check_no_header),
    "staging: any header": ("staging", staging, "expect_header", _compare_no_header),
    "staging: any size": ("staging", TableFile, "open", _open_any_size),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_parser_that_lacks_a_check_is_caught(monkeypatch, mutant):
    parser, owner, name, broken = MUTANTS[mutant]
    opened = []
    if name == "close":  # what the mutant leaves open is closed here
        monkeypatch.setattr(
            TableFile, "open", lambda *arguments: opened.append(OPEN(*arguments)) or opened[-1]
        )
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Exception) as caught:  # noqa: PT011  (whichever way it shows)
        run(parser, 1000, seed=2)
    assert not isinstance(caught.value, TimeoutError)
    monkeypatch.undo()
    for file in opened:
        file.close()
