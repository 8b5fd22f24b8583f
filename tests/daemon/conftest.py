"""The configuration of these tests' daemons."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harness.daemon import DaemonProcess, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = """\
output: {{root: {root}, create: {create}, in_memory: true}}
ingest:
  endpoints: ["ipc://./in.sock", "tcp://127.0.0.1:*"]
  insecure: true
  heartbeat_ms: 200
  session_timeout_ms: 30000
workers: {{threads: 2}}
memory: {{budget: 2GiB}}
reliability: {{resume_timeout_ms: 5000, store_within_ms: 200, sync_interval_ms: 200}}
streams:
  - name: cam0
    array:
      dtype: uint16
      dimensions:
        - {{name: t, chunk_size: 4, shard_size_chunks: 2}}
        - {{name: y, count: 48, chunk_size: 32, shard_size_chunks: 1}}
        - {{name: x, count: 80, chunk_size: 32, shard_size_chunks: 3}}
"""


@pytest.fixture
def config(folder: Path) -> Path:
    (folder / "data").mkdir()
    return write_config(folder)


def write_config(folder: Path, *, root: str = "./data", create: bool = False) -> Path:
    path = folder / "rig.yaml"
    path.write_text(CONFIG.format(root=root, create=str(create).lower()))
    return path


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """One daemon for all tests that leave it as it is."""
    with tempfile.TemporaryDirectory(prefix="sw-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        with serving(write_config(folder)) as daemon:
            yield daemon
