"""A configuration that is measured quickly: a ring that is soon full, and shards that are not sealed every
few frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.daemon.conftest import write_config

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(folder: Path) -> Path:
    (folder / "data").mkdir()
    path = write_config(folder)
    text = path.read_text().replace(
        "{name: t, chunk_size: 4, shard_size_chunks: 2}", "{name: t, chunk_size: 4, shard_size_chunks: 64}"
    )
    path.write_text(text + "    ring_frames: 24\n")
    return path
