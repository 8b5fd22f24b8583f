"""Buffers that outlive their acquisition: taken over when they fit, given up when they do not, never in two hands."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright as sw
from shardwright.storage.spare_memory import LEAST_BYTES, SpareMemory

PAGE_BYTES = 4096
MIDDLE = LEAST_BYTES * 8 // 5


@pytest.mark.parametrize("nbytes", [0, 1, PAGE_BYTES, LEAST_BYTES + 5])
def test_a_block_has_the_size_asked_for_and_begins_at_a_page(nbytes):
    block = SpareMemory().take(nbytes)
    assert block.size == nbytes
    assert nbytes == 0 or block.ctypes.data % PAGE_BYTES == 0
    assert not block.any()


def test_the_smallest_block_that_fits_is_taken_over_by_one():
    spare = SpareMemory()
    large, small = spare.take(3 * LEAST_BYTES), spare.take(2 * LEAST_BYTES)
    for block in (large, small):
        spare.give_back(block)
    first, second = spare.take(MIDDLE), spare.take(MIDDLE)
    assert (first.ctypes.data, second.ctypes.data) == (small.ctypes.data, large.ctypes.data)
    assert spare.kept_bytes == 0
    third = spare.take(MIDDLE)
    assert third.ctypes.data not in (small.ctypes.data, large.ctypes.data)


@pytest.mark.parametrize("nbytes", [4 * LEAST_BYTES + 1, 2 * LEAST_BYTES - 1])
def test_what_does_not_fit_a_request_is_given_up(nbytes):
    """So that no process holds more than what it uses and one acquisition's worth."""
    spare = SpareMemory()
    spare.give_back(spare.take(4 * LEAST_BYTES))
    spare.take(nbytes)
    assert spare.kept_bytes == 0


def test_small_blocks_come_and_go_without_touching_what_is_kept():
    spare = SpareMemory()
    spare.give_back(spare.take(LEAST_BYTES))
    spare.give_back(spare.take(LEAST_BYTES - 1))
    assert spare.kept_bytes == LEAST_BYTES


class Counting(SpareMemory):
    made_bytes = 0

    def fresh(self, nbytes):
        self.made_bytes += nbytes if nbytes >= LEAST_BYTES else 0
        return super().fresh(nbytes)


def test_a_writer_takes_over_the_buffers_of_the_one_before(tmp_path, monkeypatch):
    spare = Counting()
    monkeypatch.setattr("shardwright.pipeline.writer.spare_memory", spare)
    monkeypatch.setattr("shardwright.pipeline.workers.spare_memory", spare)
    frame = [sw.Dimension(name=name, count=256, chunk_size=256) for name in "yx"]
    spec = sw.ArraySpec(dtype="uint16", dimensions=[sw.Dimension(name="t", count=None, chunk_size=16), *frame], codec=None)
    made = []
    for name in ("one", "two", "three"):
        with sw.create(tmp_path / name, spec, threads=1, io="pwrite") as writer:
            for i in range(33):
                writer.append(np.full((256, 256), i, np.uint16))
        made.append(spare.made_bytes)
    assert made[0] >= writer.limits.ring_bytes + writer.limits.buffer_bytes
    assert made[1:] == made[:1] * 2, "the second and third touched no fresh memory"
    sw.release_memory()
    assert spare.kept_bytes == 0
