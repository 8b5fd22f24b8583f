"""Chunks from a worker's buffer into files: only the slots that were filled, rounding zeroed, errors as
errno."""

from __future__ import annotations

import errno
import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.kernels.file_io import write_runs, write_slots

SLOT_BYTES = 64


@pytest.mark.parametrize("alignment", [1, 16])
@given(sizes=st.lists(st.integers(0, SLOT_BYTES), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_write_slots_equals_its_twin(tmp_path_factory, alignment, sizes, seed):
    rng = np.random.default_rng(seed)
    buffer = rng.integers(1, 256, (len(sizes), SLOT_BYTES), dtype=np.uint8)
    before = [rng.bytes(SLOT_BYTES * len(sizes)) for _ in range(2)]
    file = rng.integers(0, 2, len(sizes))
    slot = rng.permutation(len(sizes))
    nbytes = np.array(sizes, np.int64)
    expected = [bytearray(b) for b in before]
    for i, size in enumerate(sizes):
        reference.write_slot(
            expected[file[i]], int(slot[i]) * SLOT_BYTES, buffer[i].tobytes()[:size], alignment
        )
    paths = [tmp_path_factory.mktemp("slots") / "file" for _ in before]
    for path, data in zip(paths, before, strict=True):
        path.write_bytes(data)
    descriptors = [os.open(path, os.O_RDWR) for path in paths]
    try:
        addresses = int(buffer.ctypes.data) + SLOT_BYTES * np.arange(len(sizes), dtype=np.int64)
        assert (
            write_slots(
                np.array(descriptors, np.int64)[file],
                slot.astype(np.int64) * SLOT_BYTES,
                addresses,
                nbytes,
                alignment,
            )
            == 0
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert [path.read_bytes() for path in paths] == expected


def test_a_failed_write_gives_its_errno(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    buffer = np.ones(SLOT_BYTES, np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        one = np.array([descriptor], np.int64)
        assert write_slots(one, 0 * one, 0 * one + buffer.ctypes.data, 0 * one + 8, 1) == errno.EBADF
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"before"


ALIGNMENT = 16
FILES = 3


@given(
    sizes=st.lists(st.tuples(st.integers(0, FILES - 1), st.integers(0, SLOT_BYTES)), min_size=1, max_size=12),
    starts=st.lists(st.integers(0, 4), min_size=FILES, max_size=FILES),
    seed=st.integers(0, 99),
)
def test_write_runs_equals_its_twin(tmp_path_factory, sizes, starts, seed):
    rng = np.random.default_rng(seed)
    sizes.sort(key=lambda chunk: chunk[0])
    files, nbytes = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    buffer = rng.integers(1, 256, SLOT_BYTES * (len(sizes) + 1), np.uint8)
    places = np.array(reference.packed_starts(nbytes.tolist(), files.tolist(), ALIGNMENT), np.int64)
    chunks = [
        (int(f), buffer[a : a + n].tobytes())
        for f, a, n in zip(files, places.tolist(), nbytes.tolist(), strict=True)
    ]
    before = [rng.bytes(SLOT_BYTES * (len(sizes) + 5)) for _ in range(FILES)]
    expected, ends = [bytearray(b) for b in before], [ALIGNMENT * start for start in starts]
    cursors = np.array(ends, np.int64)
    wanted = reference.write_runs(expected, ends, chunks, ALIGNMENT)
    paths = [tmp_path_factory.mktemp("runs") / "file" for _ in before]
    for path, data in zip(paths, before, strict=True):
        path.write_bytes(data)
    descriptors = [os.open(path, os.O_RDWR) for path in paths]
    offsets = np.full(files.size, -1, np.int64)
    try:
        assert (
            write_runs(
                np.array(descriptors, np.int64),
                cursors,
                files,
                buffer.ctypes.data + places,
                nbytes,
                ALIGNMENT,
                offsets,
            )
            == 0
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert [path.read_bytes() for path in paths] == expected
    assert cursors.tolist() == ends
    held = nbytes > 0
    assert offsets[held].tolist() == np.array(wanted)[held].tolist()


def test_runs_of_several_threads_never_overlap(tmp_path):
    threads, runs, run_bytes = 4, 200, 48
    path = tmp_path / "file"
    path.touch()
    cursors, zero = np.zeros(1, np.int64), np.zeros(1, np.int64)
    with path.open("rb+") as file:
        descriptors = np.array([file.fileno()], np.int64)

        def work(number: int) -> list[int]:
            buffer, offsets, places = np.full(run_bytes, number + 1, np.uint8), np.zeros(1, np.int64), []
            for _ in range(runs):
                assert (
                    write_runs(
                        descriptors, cursors, zero, zero + buffer.ctypes.data, zero + run_bytes, 1, offsets
                    )
                    == 0
                )
                places.append(int(offsets[0]))
            return places

        with ThreadPoolExecutor(threads) as pool:
            places = list(pool.map(work, range(threads)))
    assert sorted(itertools.chain(*places)) == list(range(0, threads * runs * run_bytes, run_bytes)), (
        "no room is given twice, none is skipped"
    )
    written = np.fromfile(path, np.uint8).reshape(-1, run_bytes)
    for number, own in enumerate(places):
        assert (written[np.array(own) // run_bytes] == number + 1).all()


def test_a_run_that_fails_gives_its_errno_and_leaves_its_room_unused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    buffer, cursors, zero = np.ones(SLOT_BYTES, np.uint8), np.array([4], np.int64), np.zeros(1, np.int64)
    with path.open("rb") as file:
        descriptors = np.array([file.fileno()], np.int64)
        assert (
            write_runs(descriptors, cursors, zero, zero + buffer.ctypes.data, zero + 8, 4, zero.copy())
            == errno.EBADF
        )
    assert cursors.tolist() == [12]
    assert path.read_bytes() == b"before"
