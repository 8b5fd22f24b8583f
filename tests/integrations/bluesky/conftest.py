"""A rig for each test, and one tiled server for all of a module."""

from __future__ import annotations

import pytest
from tests.harness.daemon import DaemonProcess

from .rig import Rig, running_engine, written_config


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """Its folder has a space: tiled takes paths as they are."""
    folder = tmp_path_factory.mktemp("a rig")
    with DaemonProcess(written_config(folder)) as process:
        yield process
        assert process.stop() == 0, process.errors()


@pytest.fixture
def engine():
    yield from running_engine()


@pytest.fixture
def rig(daemon, engine):
    with Rig(daemon.ready, engine) as made:
        yield made
