"""A running daemon, and Micro-Manager's core with its simulated microscopes."""

import contextlib
import tempfile
from pathlib import Path

import pytest
from pymmcore_plus import CMMCorePlus
from tests.harness.daemon import serving

import shardwright as sw

CONFIG = """
output: {root: data, create: true, in_memory: true}
ingest: {endpoints: ["ipc://ingest.sock"]}
workers: {threads: 2}
memory: {budget: 1GiB}
"""


@pytest.fixture(scope="session")
def daemon():
    """The endpoint of a daemon that all these tests share."""
    # pytest's own paths can be too long for a Unix socket
    with tempfile.TemporaryDirectory(prefix="sw-mm-") as folder:
        config = Path(folder) / "daemon.yaml"
        config.write_text(CONFIG, encoding="utf-8")
        with serving(config) as daemon:
            yield daemon.endpoint


@pytest.fixture
def connection(daemon):
    with sw.connect(daemon) as connection:
        yield connection


@pytest.fixture
def core():
    core = CMMCorePlus()
    # triggered by hardware, the engine now and then reads a frame fewer from this camera than it asked for
    core.mda.engine.use_hardware_sequencing = False
    yield core
    with contextlib.suppress(RuntimeError):
        core.waitForSystem()
    core.unloadAllDevices()


@pytest.fixture
def demo_camera(core):
    """Frames of noise: no two are equal."""
    core.loadSystemConfiguration()
    core.setProperty("Camera", "Mode", "Noise")
    core.setProperty("Camera", "OnCameraCCDXSize", "256")
    core.setProperty("Camera", "OnCameraCCDYSize", "192")
    core.snapImage()
    return core
