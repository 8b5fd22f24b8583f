"""Chunk entries, frame records and staged frames in files: byte for byte what the twins write, whatever the
order, and errors as errno."""

from __future__ import annotations

import errno
import os
import resource
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.kernels import journal_kernels
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.journal import CHUNK_ENTRY

FILE_BYTES = 4096
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Run a kernel on a file of random bytes; returns what the file held before and after."""

    def run(write, seed: int = 0) -> tuple[bytearray, bytes]:
        before = np.random.default_rng(seed).bytes(FILE_BYTES)
        path = tmp_path_factory.mktemp("journal") / "file"
        path.write_bytes(before)
        descriptor = os.open(path, os.O_RDWR)
        try:
            assert write(descriptor) == 0
        finally:
            os.close(descriptor)
        return bytearray(before), path.read_bytes()

    return run


def test_the_format_and_the_kernels_agree_on_sizes():
    assert (
        CHUNK_ENTRY.itemsize == journal_kernels.CHUNK_ENTRY_BYTES == len(reference.chunk_entry(0, 1, 2, 3, 4))
    )
    assert CHUNK_ENTRY.names[-1] == "entry_crc"
    for further in (0, 1, 5):
        record = record_dtype(further)
        assert record.names[-2:] == ("pixels_crc", "record_crc")
        assert record.fields["record_crc"][1] == record.itemsize - journal_kernels.RECORD_CRC_BYTES
        assert (
            record.fields["pixels_crc"][1]
            == record.itemsize - journal_kernels.RECORD_CRC_BYTES - journal_kernels.PIXELS_CRC_BYTES
        )


@given(
    rows=st.permutations(range(12)).flatmap(lambda order: st.integers(0, 12).map(lambda n: order[:n])),
    runs=st.booleans(),
    sizes=st.lists(st.sampled_from([0, 1, 4096, 2**40, 2**63 - 1]), min_size=12, max_size=12),
    crc=seeds,
    writer_epoch=seeds,
    seed=seeds,
)
def test_journal_chunks_equals_its_twin(written, guarded, rows, runs, sizes, crc, writer_epoch, seed):
    rows = sorted(rows) if runs else rows
    places = [64 + 32 * row for row in rows]
    offsets = [2**44 * i + 4096 for i in range(len(rows))]
    nbytes = sizes[: len(rows)]
    crcs = [(crc + i) % 2**32 for i in range(len(rows))]
    scratch = guarded(32 * len(rows))

    def write(descriptor: int) -> int:
        columns = (np.array(column, np.int64) for column in (places, offsets, nbytes))
        return journal_kernels.journal_chunks(
            descriptor, *columns, np.array(crcs, np.uint32), writer_epoch, seed, scratch.view
        )

    expected, found = written(write)
    reference.journal_chunks(expected, places, offsets, nbytes, crcs, writer_epoch, seed)
    assert found == expected
    assert scratch.untouched_outside()


@given(filled=st.lists(st.booleans(), min_size=1, max_size=5), further=st.integers(0, 3), seed=seeds)
def test_journal_frames_equals_its_twin(written, guarded, filled, further, seed):
    record_bytes = record_dtype(further).itemsize
    records = np.random.default_rng(seed).integers(0, 256, (len(filled), record_bytes), np.uint8)
    given_records = records.copy()
    scratch = guarded(records.size)

    def write(descriptor: int) -> int:
        return journal_kernels.journal_frames(descriptor, 40, records, np.array(filled), seed, scratch.view)

    expected, found = written(write)
    reference.journal_frames(expected, 40, [record.tobytes() for record in records], filled, seed)
    assert found == expected
    assert scratch.untouched_outside()
    assert (records == given_records).all(), "the caller's records stay as they were"


@given(
    slots=st.permutations(range(4)),
    count=st.integers(0, 4),
    frame_bytes=st.integers(1, 300),
    further=st.integers(0, 2),
    seed=seeds,
)
def test_stage_frames_equals_its_twin(written, guarded, slots, count, frame_bytes, further, seed):
    record_bytes = record_dtype(further).itemsize
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (count, record_bytes), np.uint8)
    before = [record.tobytes() for record in records]
    frames = [guarded(frame_bytes) for _ in range(count)]
    for frame in frames:
        frame.view[:] = rng.integers(0, 256, frame_bytes, np.uint8)
    data_offsets = [1024 + 512 * slot for slot in slots[:count]]
    entry_offsets = [200 * slot for slot in slots[:count]]

    def write(descriptor: int) -> int:
        addresses = np.array([frame.address for frame in frames], np.int64)
        return journal_kernels.stage_frames(
            descriptor,
            addresses,
            frame_bytes,
            np.array(data_offsets, np.int64),
            np.array(entry_offsets, np.int64),
            records,
            seed,
        )

    expected, found = written(write)
    reference.stage_frames(
        expected, [frame.view.tobytes() for frame in frames], data_offsets, entry_offsets, before, seed
    )
    assert found == expected
    sealed = [bytes(expected[place : place + record_bytes]) for place in entry_offsets]
    assert [record.tobytes() for record in records] == sealed, (
        "the caller's records now carry their checksums"
    )


def every_kernel(descriptor: int) -> dict[str, int]:
    """What each kernel returns for one chunk or frame into a descriptor."""
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    records, pixels = np.zeros((1, 128), np.uint8), np.zeros(64, np.uint8)
    return {
        "chunks": journal_kernels.journal_chunks(
            descriptor, zero, zero, one, np.zeros(1, np.uint32), 1, 0, np.zeros(32, np.uint8)
        ),
        "frames": journal_kernels.journal_frames(
            descriptor, 0, records, np.ones(1, np.bool_), 0, np.zeros(128, np.uint8)
        ),
        "stage": journal_kernels.stage_frames(
            descriptor, zero + pixels.ctypes.data, pixels.size, zero, zero + 64, records, 0
        ),
    }


def test_a_failed_write_gives_its_errno(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert set(every_kernel(descriptor).values()) == {errno.EBADF}
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"before"


def test_a_write_that_stops_half_way_gives_its_errno(tmp_path):
    """The file may not grow beyond 16 bytes: the first part of a write succeeds, the rest does not."""
    path = tmp_path / "file"
    path.touch()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    descriptor = os.open(path, os.O_RDWR)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, limit[1]))
        numbers = every_kernel(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
        os.close(descriptor)
    assert set(numbers.values()) == {errno.EFBIG}
    assert path.stat().st_size == 16


def test_scratch_that_is_too_small_is_our_own_mistake():
    one = np.ones(1, np.int64)
    with pytest.raises(AssertionError):
        journal_kernels.journal_chunks(-1, one, one, one, np.ones(1, np.uint32), 1, 0, np.zeros(31, np.uint8))
    with pytest.raises(AssertionError):
        journal_kernels.journal_frames(
            -1, 0, np.zeros((1, 128), np.uint8), np.ones(1, np.bool_), 0, np.zeros(127, np.uint8)
        )
