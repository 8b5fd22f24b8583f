"""One rig for many scenarios, small disks, and folders short enough for a socket's path."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .disks import FaultyDisk, LoopDisk
from .rig_process import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    with Rig() as running:
        yield running


@pytest.fixture
def folder() -> Iterator[Path]:
    """pytest's own temporary folders have names too long for Unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="sw-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopDisk]:
    with LoopDisk(tmp_path_factory.mktemp("small"), nbytes=24 << 20) as disk:
        yield disk


@pytest.fixture(scope="module")
def second_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopDisk]:
    with LoopDisk(tmp_path_factory.mktemp("second"), nbytes=24 << 20) as disk:
        yield disk


@pytest.fixture
def faulty_disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    with FaultyDisk(tmp_path) as disk:
        yield disk
