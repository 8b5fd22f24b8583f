"""The memory of one more writer, beside the ring and the tables of its plan."""

from __future__ import annotations

import gc
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
from tests.harness.process_status import process_status

import shardwright as sw

if TYPE_CHECKING:
    from pathlib import Path

SHARDS = {"t": 64}  # short files: the disk of tests is in memory
FIRST, MORE = 2, 4  # the first ones load and fill what all share
ASKED_BYTES = 1 << 20


def test_one_more_writer_takes_less_than_a_megabyte_beside_its_plan(tmp_path: Path) -> None:
    frame = np.ones((128, 128), np.uint16)
    sw.release_memory()  # a ring of before would be taken again, unseen
    with ExitStack() as opened:
        before = 0
        for number in range(FIRST + MORE):
            if number == FIRST:
                gc.collect()
                before = process_status(os.getpid()).own_bytes
            writer = opened.enter_context(
                sw.create(tmp_path / f"{number}", shape=(None, 128, 128), dtype="uint16", shards=SHARDS)
            )
            writer.append(frame)
        gc.collect()
        each = (process_status(os.getpid()).own_bytes - before) / MORE
        limits = writer._limits
        assert limits.ring_bytes <= each < limits.ring_bytes + limits.table_bytes + ASKED_BYTES
