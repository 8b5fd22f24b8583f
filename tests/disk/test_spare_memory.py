"""Buffers that outlive their acquisition: taken over when they fit, given up when they do not, never in two
hands."""

from __future__ import annotations

import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk.spare_memory import LEAST_BYTES, SpareMemory

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
    large, small = spare.take(MIDDLE + LEAST_BYTES // 9), spare.take(MIDDLE)
    for block in (large, small):
        spare.give_back(block)
    first, second = spare.take(MIDDLE), spare.take(MIDDLE)
    assert (first.ctypes.data, second.ctypes.data) == (small.ctypes.data, large.ctypes.data)
    assert spare.kept_bytes == 0
    third = spare.take(MIDDLE)
    assert third.ctypes.data not in (small.ctypes.data, large.ctypes.data)


def test_a_block_stays_as_large_as_it_was_made():
    """Else a small view would pin a large block, and nobody would know."""
    spare = SpareMemory()
    made = spare.take(8 * LEAST_BYTES)
    spare.give_back(made)
    again = spare.take(8 * LEAST_BYTES - 5)
    assert (again.ctypes.data, again.size) == (made.ctypes.data, made.size)
    spare.give_back(again)
    assert spare.kept_bytes == made.size


def test_no_more_is_kept_than_was_ever_in_use_at_once():
    spare = SpareMemory()
    for nbytes in (LEAST_BYTES, 4 * LEAST_BYTES, 2 * LEAST_BYTES, 8 * LEAST_BYTES):
        spare.give_back(spare.take(nbytes))
        assert spare.kept_bytes == nbytes
    three = [spare.take(n * LEAST_BYTES) for n in (2, 3, 4)]
    for block in three:
        spare.give_back(block)
    assert spare.kept_bytes == 9 * LEAST_BYTES
    held = spare.take(3 * LEAST_BYTES)
    fresh = spare.take(6 * LEAST_BYTES)
    assert spare.kept_bytes == 0
    spare.give_back(fresh)
    assert spare.kept_bytes == 6 * LEAST_BYTES
    spare.give_back(held)
    assert spare.kept_bytes == 9 * LEAST_BYTES


@pytest.mark.parametrize("nbytes", [4 * LEAST_BYTES + 1, 3 * LEAST_BYTES])
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
    for module in ("writer.frame_buffers", "acquire.workers", "writer.in_process"):
        monkeypatch.setattr(f"shardwright.{module}.spare_memory", spare)
    frame = [sw.Dimension(name=name, count=256, chunk_size=256) for name in "yx"]
    spec = sw.ArraySpec(
        dtype="uint16", dimensions=[sw.Dimension(name="t", count=None, chunk_size=16), *frame], codec=None
    )
    made = []
    for name in ("one", "two", "three"):
        with sw.create(tmp_path / name, spec, threads=1, **how(io="pwrite")) as writer:
            for i in range(33):
                writer.append(np.full((256, 256), i, np.uint16))
        made.append(spare.made_bytes)
    assert made[0] >= writer._limits.ring_bytes + writer._limits.buffer_bytes
    assert made[1:] == made[:1] * 2, "the second and third touched no fresh memory"
    sw.release_memory()
    assert spare.kept_bytes == 0
