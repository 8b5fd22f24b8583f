"""One writer for many scenarios, and small disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .disks import FaultyDisk, LoopDisk
from .writer_process import WriterProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def writer() -> Iterator[WriterProcess]:
    with WriterProcess() as running:
        yield running


@pytest.fixture
def small_disk() -> Iterator[LoopDisk]:
    with LoopDisk(nbytes=200 << 20) as disk:
        yield disk


@pytest.fixture
def second_disk() -> Iterator[LoopDisk]:
    with LoopDisk(nbytes=200 << 20) as disk:
        yield disk


@pytest.fixture
def faulty_disk() -> Iterator[FaultyDisk]:
    with FaultyDisk() as disk:
        yield disk
