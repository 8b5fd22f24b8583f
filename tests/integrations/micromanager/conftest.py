"""A running daemon, and Micro-Manager's core with its simulated microscopes."""

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pymmcore_plus import CMMCorePlus

import shardwright as sw

CONFIG = """
output: {{root: {root}}}
ingest: {{endpoints: ["ipc://{sockets}/ingest.sock"]}}
workers: {{threads: 2}}
memory: {{budget: 1GiB}}
"""


def answers(endpoint):
    try:
        sw.connect(endpoint, timeout_ms=1000).close()
    except sw.errors.SessionLostError:
        return False
    return True


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    """Endpoint of a real ``shardwright serve`` in its own process; it must stop cleanly."""
    root = tmp_path_factory.mktemp("stores")
    with tempfile.TemporaryDirectory(prefix="sw-mm-") as sockets:  # pytest's own paths can be too long for a Unix socket
        config = Path(sockets) / "daemon.yaml"
        config.write_text(CONFIG.format(root=root, sockets=sockets), encoding="utf-8")
        log_path = Path(sockets) / "daemon.log"
        with log_path.open("w", encoding="utf-8") as log:
            process = subprocess.Popen([sys.executable, "-m", "shardwright.cli", "serve", str(config)], stdout=log, stderr=log)
            endpoint = f"ipc://{sockets}/ingest.sock"
            try:
                while not answers(endpoint):  # a first start compiles the kernels
                    assert process.poll() is None, log_path.read_text(encoding="utf-8")
                yield endpoint
            finally:
                process.send_signal(signal.SIGTERM)
                code = process.wait(60)
        assert code == 0, log_path.read_text(encoding="utf-8")


@pytest.fixture
def connection(daemon):
    with sw.connect(daemon) as connection:
        yield connection


@pytest.fixture
def core():
    core = CMMCorePlus()
    yield core
    with contextlib.suppress(RuntimeError):
        core.waitForSystem()
    core.unloadAllDevices()
