"""The frame log: what was appended comes back; torn, flipped and foreign bytes end it or are refused; a full
disk changes nothing."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.python import start_python

from shardwright.array.grid import Grid, Grids
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.disk import failpoints, system
from shardwright.model.errors import ShardFormatError, StorageError, StorageFullError
from shardwright.model.frame_status import FrameStatus
from shardwright.shard import frame_log
from shardwright.shard.frame_log import (
    BLOCK_HEADER_BYTES,
    EXTENT_BYTES,
    HEADER_PAGE_BYTES,
    BlockKind,
    FrameLog,
)
from shardwright.shard.frame_record import record_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORD = record_dtype(2)
IDENTITY = bytes(range(16))
SHARD_ROW, EVENTS = BlockKind.SHARD_ROW, BlockKind.EVENTS


def records(count: int, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng([count, seed]).integers(0, 256, count * RECORD.itemsize, np.uint8)
    return made.view(RECORD)


GRIDS = Grids(
    tuple(
        Grid.of(
            ArraySpec(
                dtype="uint8",
                dimensions=[
                    Dimension(name="t", count=count, chunk_size=2, shard_size_chunks=2),
                    *(Dimension(name=name, count=4, chunk_size=4) for name in "yx"),
                ],
            ),
            image,
        )
        for image, count in enumerate((None, 6))
    )
)


def sound(*positions: int) -> np.ndarray:
    made = np.zeros(len(positions), RECORD)
    made["position"], made["status"] = positions, FrameStatus.STORED
    return made


def contents(log: FrameLog) -> list[tuple[BlockKind, int, bytes]]:
    return [(kind, shard_row, piece.tobytes()) for kind, shard_row, piece in log.blocks()]


def reopened(path: Path) -> Iterator[FrameLog]:
    log = FrameLog.open(path, RECORD, IDENTITY)
    try:
        yield log
    finally:
        log.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "frames.log"


SECOND = GRIDS.grids[1].first
SOUND_BLOCKS = {
    "a row of the first image": (SHARD_ROW, 1, sound(4, 5, 7)),
    "the last row of the second": (SHARD_ROW, SECOND + 1, sound(SECOND + 5, SECOND + 4)),
    "a row without frames": (SHARD_ROW, 0, sound()),
    "places in any image, or none known": (EVENTS, -1, sound(0, SECOND + 5, -1, 1 << 40)),
}
OTHER_STATUS = sound(0)
OTHER_STATUS["status"] = 7
STRANGE_BLOCKS = {
    "a place of another row": (SHARD_ROW, 1, sound(4, 8)),
    "a place of another image": (SHARD_ROW, 1, sound(SECOND + 4)),
    "no place": (SHARD_ROW, 1, sound(-1)),
    "a row of no image": (SHARD_ROW, GRIDS.grids[1].first * 2, sound()),
    "no row": (SHARD_ROW, -1, sound()),
    "a row behind the last": (SHARD_ROW, SECOND + 2, sound()),
    "the greatest row": (SHARD_ROW, 2**63 - 1, sound()),
    "a place behind the last": (EVENTS, -1, sound(SECOND + 6)),
    "the greatest place": (EVENTS, -1, sound(2**63 - 1)),
    "a status that is none": (EVENTS, -1, OTHER_STATUS),
    "a status that is none in a row": (SHARD_ROW, 0, OTHER_STATUS),
}


@pytest.mark.parametrize("block", SOUND_BLOCKS.values(), ids=SOUND_BLOCKS)
def test_blocks_of_the_acquisition_are_found(path, block):
    log = FrameLog.create(path, RECORD, IDENTITY)
    log.append(*block)
    log.close()
    log = FrameLog.open(path, RECORD, IDENTITY, grids=GRIDS, read_only=True)
    assert log.rows == block[2].size
    log.close()


@pytest.mark.parametrize("block", STRANGE_BLOCKS.values(), ids=STRANGE_BLOCKS)
def test_a_block_that_cannot_be_is_an_error_and_stays(path, block):
    """Also of one that comes while a reader looks."""
    log = FrameLog.create(path, RECORD, IDENTITY)
    reader = FrameLog.open(path, RECORD, IDENTITY, grids=GRIDS, read_only=True)
    log.append(*block)
    log.close()
    there = path.read_bytes()
    with pytest.raises(ShardFormatError, match="frames that cannot be in this acquisition"):
        reader.find_more()
    reader.close()
    with pytest.raises(ShardFormatError, match="frames that cannot be in this acquisition"):
        FrameLog.open(path, RECORD, IDENTITY, grids=GRIDS)
    assert path.read_bytes() == there


def test_blocks_that_were_found_before_an_error_are_told_by_the_next_look(path, monkeypatch):
    log = FrameLog.create(path, RECORD, IDENTITY)
    reader = FrameLog.open(path, RECORD, IDENTITY, read_only=True)
    for row in range(2):
        log.append(SHARD_ROW, row, records(3, row))
    with monkeypatch.context() as patched:
        check = reader._check_records
        answers = iter([check, Mock(side_effect=StorageError("no"))])
        patched.setattr(reader, "_check_records", lambda *block: next(answers)(*block))
        with pytest.raises(StorageError):
            reader.find_more()
    assert [row for row, _ in reader.find_more()] == [0, 1]
    assert reader.find_more() == []
    reader.close()
    log.close()


@pytest.mark.parametrize(("count", "writes"), [(3, 1), (EXTENT_BYTES // RECORD.itemsize + 1, 5)])
def test_rows_are_appended_together_while_they_are_few(path, count, writes):
    log, reached = FrameLog.create(path, RECORD, IDENTITY), []
    rows = {row: records(count, row) for row in range(5)}
    failpoints.watch_all(reached.append)
    try:
        log.append_rows(rows)
        log.append_rows({})
    finally:
        failpoints.watch_all(None)
    assert reached.count("log.before_append") == writes
    assert (log.rows, log.shard_rows) == (5 * count, set(rows))
    log.close()
    for log in reopened(path):
        assert log.shard_rows == set(rows)
        assert all(log.shard_row_records(row).tobytes() == rows[row].tobytes() for row in rows)


def make(path: Path, *counts: int) -> list[tuple[BlockKind, int, bytes]]:
    """A log with one block for each count; returns what it must hold."""
    log = FrameLog.create(path, RECORD, IDENTITY)
    for i, count in enumerate(counts):
        log.append(SHARD_ROW if i % 2 == 0 else EVENTS, i if i % 2 == 0 else -1, records(count, i))
    expected = [
        (SHARD_ROW if i % 2 == 0 else EVENTS, i if i % 2 == 0 else -1, records(count, i).tobytes())
        for i, count in enumerate(counts)
    ]
    assert contents(log) == expected
    log.sync()
    log.close()
    return expected


def test_round_trip_and_going_on(path):
    expected = make(path, 3, 1, 40)
    for log in reopened(path):
        assert contents(log) == expected
        assert (log.rows, log.shard_rows, log.torn_bytes) == (44, {0, 2}, 0)
        log.append(EVENTS, -1, records(5, 9))
        assert (log.rows, log.shard_rows) == (49, {0, 2})
    for log in reopened(path):
        assert contents(log) == [*expected, (EVENTS, -1, records(5, 9).tobytes())]


def test_a_new_log_is_empty_and_an_old_one_is_not_made_again(path):
    assert make(path) == []
    for log in reopened(path):
        assert (contents(log), log.rows, log.shard_rows) == ([], 0, set())
    with pytest.raises(StorageError, match="cannot create"):
        FrameLog.create(path, RECORD, IDENTITY)
    assert path.exists()


def test_blocks_come_in_pieces(path, monkeypatch):
    monkeypatch.setattr(frame_log, "ROWS_PER_PIECE", 7)
    log = FrameLog.create(path, RECORD, IDENTITY)
    log.append(SHARD_ROW, 4, records(15))
    assert [piece.size for _, _, piece in log.blocks()] == [7, 7, 1]
    assert np.concatenate([piece for _, _, piece in log.blocks()]).tobytes() == records(15).tobytes()
    log.close()


def test_records_need_not_lie_side_by_side(path):
    log = FrameLog.create(path, RECORD, IDENTITY)
    log.append(SHARD_ROW, 0, records(10)[::3])
    assert contents(log) == [(SHARD_ROW, 0, records(10)[::3].tobytes())]
    log.close()


def test_every_truncation_leaves_the_blocks_before_it(path):
    expected = make(path, 2, 1)
    whole = path.read_bytes()[: HEADER_PAGE_BYTES + 2 * BLOCK_HEADER_BYTES + 3 * RECORD.itemsize]
    second = HEADER_PAGE_BYTES + BLOCK_HEADER_BYTES + 2 * RECORD.itemsize
    for length in range(HEADER_PAGE_BYTES, len(whole) + 1):
        path.write_bytes(whole[:length])
        for log in reopened(path):
            assert contents(log) == expected[: 0 if length < second else 1 if length < len(whole) else 2]
    for length in (0, 1, HEADER_PAGE_BYTES - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ShardFormatError, match="damaged"):
            FrameLog.open(path, RECORD, IDENTITY)


def test_every_flipped_bit_is_found(path):
    """One in the header page is refused; one in a block ends the log before it, and the bytes that are left
    over tell."""
    expected = make(path, 1, 1)
    second = HEADER_PAGE_BYTES + BLOCK_HEADER_BYTES + RECORD.itemsize
    end = second + BLOCK_HEADER_BYTES + RECORD.itemsize
    os.truncate(path, end)  # without the room behind it: this test is about the bytes that mean something
    sound = path.read_bytes()
    for bit in range(8 * end):
        with path.open("r+b") as file:
            file.seek(bit // 8)
            file.write(bytes([sound[bit // 8] ^ 1 << bit % 8]))
        if bit < 8 * HEADER_PAGE_BYTES:
            with pytest.raises(ShardFormatError):
                FrameLog.open(path, RECORD, IDENTITY)
        else:
            for log in reopened(path):
                assert contents(log) == (expected[:1] if bit >= 8 * second else [])
                assert log.torn_bytes > 0
        with path.open("r+b") as file:
            file.seek(bit // 8)
            file.write(sound[bit // 8 : bit // 8 + 1])


def test_what_lay_behind_a_torn_block_does_not_come_back(path):
    """The next block has the torn one's length, so that the old third block would follow it exactly."""
    expected = make(path, 4, 4, 4)
    with path.open("r+b") as file:
        file.seek(HEADER_PAGE_BYTES + BLOCK_HEADER_BYTES + 4 * RECORD.itemsize + 1)
        file.write(b"torn")
    before = path.read_bytes()
    for log in reopened(path):
        assert contents(log) == expected[:1]
        assert log.torn_bytes > 4 * RECORD.itemsize
        assert path.read_bytes() == before, "looking changes nothing"
        log.append(EVENTS, -1, records(4, 7))
    for log in reopened(path):
        assert contents(log) == [*expected[:1], (EVENTS, -1, records(4, 7).tobytes())]
        assert log.torn_bytes == 0


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    damage=st.lists(st.tuples(st.integers(0, 5000), st.binary(min_size=1, max_size=300)), max_size=3),
    cut=st.none() | st.integers(0, 5000),
)
def test_whatever_happens_to_the_tail_the_blocks_before_it_stay(counts, damage, cut):
    """And the log goes on behind them: what is appended then is all there is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frames.log"
        expected = make(path, *counts)
        sound = path.read_bytes()
        damaged = bytearray(sound)
        for place, data in damage:
            damaged[HEADER_PAGE_BYTES + place : HEADER_PAGE_BYTES + place + len(data)] = data
        damaged = damaged if cut is None else damaged[: HEADER_PAGE_BYTES + cut]
        path.write_bytes(damaged)
        kept, end = [], HEADER_PAGE_BYTES
        for block, count in zip(expected, counts, strict=True):
            stop = end + BLOCK_HEADER_BYTES + count * RECORD.itemsize
            if damaged[end:stop] != sound[end:stop]:
                break
            kept, end = [*kept, block], stop
        for log in reopened(path):
            assert contents(log) == kept
            assert (log.rows, log.torn_bytes) == (sum(counts[: len(kept)]), len(damaged[end:].rstrip(b"\0")))
            log.append(EVENTS, -1, records(2, 8))
        for log in reopened(path):
            assert contents(log) == [*kept, (EVENTS, -1, records(2, 8).tobytes())]
            assert log.torn_bytes == 0


@pytest.mark.parametrize(("dtype", "identity"), [(record_dtype(1), IDENTITY), (RECORD, bytes(16))])
def test_a_log_of_another_acquisition(path, dtype, identity):
    make(path, 1)
    with pytest.raises(ShardFormatError, match="no frame log of this acquisition"):
        FrameLog.open(path, dtype, identity)


def test_blocks_of_another_acquisition_are_none(path, tmp_path):
    make(path)
    other = FrameLog.create(tmp_path / "other", RECORD, bytes(16))
    other.append(SHARD_ROW, 0, records(1))
    other.close()
    path.write_bytes(
        path.read_bytes()[:HEADER_PAGE_BYTES] + (tmp_path / "other").read_bytes()[HEADER_PAGE_BYTES:]
    )
    for log in reopened(path):
        assert contents(log) == []
        assert log.torn_bytes > 0


@pytest.mark.parametrize("count", [2, 2**24, 2**60, 2**64 - 1])
def test_a_block_that_claims_more_than_there_is(path, count):
    make(path, 1)
    log = FrameLog.open(path, RECORD, IDENTITY)
    header = log._block_header(SHARD_ROW, 0, count, memoryview(b""))
    log.close()
    with path.open("r+b") as file:
        file.seek(HEADER_PAGE_BYTES)
        file.write(header)
    for log in reopened(path):
        assert (log.rows, contents(log)) == (0, [])


def test_a_file_without_end_is_soon_read(path):
    expected = make(path, 2)
    os.truncate(path, 1 << 43)
    for log in reopened(path):
        assert contents(log) == expected
        assert log.torn_bytes == 0


def test_bytes_far_behind_the_end_are_seen_and_cleared(path):
    expected = make(path, 2)
    with path.open("r+b") as file:
        file.seek(50 << 20)
        file.write(b"left over")
    for log in reopened(path):
        assert contents(log) == expected
        assert log.torn_bytes > 40 << 20
        log.append(SHARD_ROW, 8, records(1))
        assert path.read_bytes().rstrip(b"\0").endswith(records(1).tobytes().rstrip(b"\0"))


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file(path, tmp_path, kind):
    {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda p: p.symlink_to(tmp_path / "elsewhere")}[kind](
        path
    )
    make(tmp_path / "elsewhere", 1)
    with pytest.raises((ShardFormatError, StorageError)):
        FrameLog.open(path, RECORD, IDENTITY)


def test_a_block_damaged_after_opening_is_an_error(path):
    make(path, 3)
    for log in reopened(path):
        with path.open("r+b") as file:
            file.seek(HEADER_PAGE_BYTES + BLOCK_HEADER_BYTES)
            file.write(b"xxxx")
        with pytest.raises(ShardFormatError, match="crc32c"):
            list(log.blocks())


def test_room_is_taken_ahead(path):
    log = FrameLog.create(path, RECORD, IDENTITY)
    for i in range(40):
        before = log.preallocated_bytes
        log.append(SHARD_ROW, i, records(500))
        assert path.stat().st_size == log.preallocated_bytes
        assert before >= HEADER_PAGE_BYTES + EXTENT_BYTES + i * (64 + 500 * RECORD.itemsize), (
            "an extent ahead of every block"
        )
    assert path.stat().st_blocks * 512 >= log.preallocated_bytes
    log.close()


def test_a_full_disk_leaves_the_log_as_it_was_and_usable(path, failing):
    log = FrameLog.create(path, RECORD, IDENTITY)
    log.append(SHARD_ROW, 0, records(10))
    failing("log.before_preallocate", errno.ENOSPC)
    size = path.stat().st_size
    with pytest.raises(StorageFullError):
        log.append(SHARD_ROW, 1, records(2 * size // RECORD.itemsize))
    with pytest.raises(StorageFullError):
        log.reserve(2 * size)
    log.reserve(EXTENT_BYTES)
    log.append(SHARD_ROW, 2, records(EXTENT_BYTES // RECORD.itemsize - 1))
    assert log.shard_rows == {0, 2}
    assert path.stat().st_size == size
    failpoints.set_hook("log.before_preallocate", None)
    log.append(SHARD_ROW, 1, records(2 * size // RECORD.itemsize))
    log.sync()
    log.close()
    for log in reopened(path):
        assert log.shard_rows == {0, 1, 2}


@pytest.mark.parametrize("point", ["log.before_append", "log.before_payload", "log.before_clear"])
def test_a_write_that_finds_no_room_can_be_tried_again(path, failing, point):
    """Even with smaller blocks than the one that did not fit: nothing of that one comes back."""
    log = FrameLog.create(path, RECORD, IDENTITY)
    log.append(SHARD_ROW, 0, records(10))
    for failed_at in ("log.before_payload", point):
        failing(failed_at, errno.ENOSPC)
        with pytest.raises(StorageFullError):
            log.append(SHARD_ROW, 1, records(1000))
        failpoints.set_hook(failed_at, None)
    log.append(EVENTS, -1, records(2))
    log.append(SHARD_ROW, 1, records(3))
    log.sync()
    log.close()
    for log in reopened(path):
        assert log.torn_bytes == 0
        assert contents(log) == [
            (SHARD_ROW, 0, records(10).tobytes()),
            (EVENTS, -1, records(2).tobytes()),
            (SHARD_ROW, 1, records(3).tobytes()),
        ]


def test_a_reader_goes_on_behind_rows_that_found_room_where_others_did_not(path, monkeypatch):
    """As on a copy-on-write filesystem: blocks that were written whole stay, it may have seen them."""
    log = FrameLog.create(path, RECORD, IDENTITY)
    reader = FrameLog.open(path, RECORD, IDENTITY, read_only=True)
    rows, write = {row: records(3, row) for row in range(4)}, system.calls.write

    def half(descriptor: int, data: memoryview, offset: int) -> int:
        if len(data) <= BLOCK_HEADER_BYTES:
            return write(descriptor, data, offset)
        write(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(system.calls, "write", half)
        with pytest.raises(StorageFullError):
            log.append_rows(rows)
        seen = [row for row, _ in reader.find_more()]
    assert seen == [0, 1]
    log.append(EVENTS, -1, records(2))
    log.append_rows(rows)
    log.append_rows({4: records(1)})
    assert [row for row, _ in reader.find_more()] == [*rows, 4]
    assert all(reader.shard_row_records(row).tobytes() == rows[row].tobytes() for row in rows)
    reader.close()
    log.close()
    for log in reopened(path):
        assert (log.torn_bytes, log.shard_rows) == (0, {*rows, 4})


@pytest.mark.parametrize("point", ["log.before_sync", "log.before_clear_sync"])
def test_a_sync_that_finds_no_room_is_final(path, failing, point):
    """What it was to write may be gone, and the next sync would say OK."""
    log = FrameLog.create(path, RECORD, IDENTITY)
    failing("log.before_payload", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        log.append(SHARD_ROW, 1, records(1000))
    failpoints.set_hook("log.before_payload", None)
    failing(point, errno.ENOSPC)
    with pytest.raises(StorageFullError):  # noqa: PT012
        log.append(SHARD_ROW, 1, records(1000))
        log.sync()
    failpoints.set_hook(point, None)
    with pytest.raises(StorageError, match="failed before"):
        log.append(SHARD_ROW, 2, records(1))
    log.close()


@pytest.mark.parametrize("point", ["log.before_append", "log.before_sync"])
def test_a_failed_log_stays_failed(path, failing, point):
    log = FrameLog.create(path, RECORD, IDENTITY)
    log.append(SHARD_ROW, 0, records(1))
    failing(point, errno.EIO)
    with pytest.raises(StorageError, match="Input/output"):  # noqa: PT012
        log.append(SHARD_ROW, 1, records(1))
        log.sync()
    failpoints.set_hook(point, None)
    with pytest.raises(StorageError, match="failed before"):
        log.append(SHARD_ROW, 1, records(1))
    with pytest.raises(StorageError, match="failed before"):
        log.sync()
    log.close()


@pytest.mark.parametrize("point", ["log.before_preallocate", "log.before_sync", "directory.before_sync"])
def test_a_create_that_fails_leaves_nothing(path, failing, point):
    failing(point, errno.ENOSPC)
    with pytest.raises(StorageFullError):
        FrameLog.create(path, RECORD, IDENTITY)
    assert not path.exists()


WRITER = """
import os, sys
from pathlib import Path
import numpy as np
from shardwright.shard.frame_log import BlockKind, FrameLog
from shardwright.shard.frame_record import record_dtype
log = FrameLog.create(Path(sys.argv[1]), record_dtype(2), bytes(range(16)))
for i in range(1_000_000):
    record = np.zeros(1 + i % 50, record_dtype(2))
    record["sequence"] = i
    log.append(BlockKind.SHARD_ROW, i, record)
    os.write(1, b"%d\\n" % i)
"""


def test_what_was_appended_survives_the_kill_of_its_writer(path):
    process = start_python("-c", WRITER, path, stdout=PIPE, text=False)
    for _ in range(200):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    acknowledged = [last, *map(int, process.stdout.read().split(b"\n")[:-1])]
    process.wait()
    process.stdout.close()
    for log in reopened(path):
        assert log.shard_rows >= set(range(acknowledged[-1] + 1))
        assert [shard_row for _, shard_row, _ in log.blocks()] == list(range(len(log.shard_rows)))
        assert all(
            (piece["sequence"] == shard_row).all() and piece.size == 1 + shard_row % 50
            for _, shard_row, piece in log.blocks()
        )
