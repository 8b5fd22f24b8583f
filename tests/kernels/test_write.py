"""Chunks from a worker's buffer into files: only the slots that were filled, rounding zeroed, errors as errno."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.kernels import reference
from shardwright.kernels.write import write_slots

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
        reference.write_slot(expected[file[i]], int(slot[i]) * SLOT_BYTES, buffer[i].tobytes()[:size], alignment)
    paths = [tmp_path_factory.mktemp("slots") / "file" for _ in before]
    for path, data in zip(paths, before, strict=True):
        path.write_bytes(data)
    descriptors = [os.open(path, os.O_RDWR) for path in paths]
    try:
        addresses = int(buffer.ctypes.data) + SLOT_BYTES * np.arange(len(sizes), dtype=np.int64)
        assert write_slots(np.array(descriptors, np.int64)[file], slot.astype(np.int64) * SLOT_BYTES, addresses, nbytes, alignment) == 0
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
