"""A program that is not the camera takes part in an acquisition, over the control socket of a real daemon."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess, serving
from tests.harness.store_contents import stored

import shardwright as sw
from shardwright.daemon.control_client import ControlClient

from .conftest import write_config

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAME = np.ones((48, 80), np.uint16)


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """One daemon for all tests that leave it as it is."""
    with tempfile.TemporaryDirectory(prefix="sw-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        with serving(write_config(folder)) as daemon:
            yield daemon


@pytest.fixture
def control(daemon: DaemonProcess) -> Iterator[ControlClient]:
    with ControlClient(daemon.ready["control_socket"], timeout_s=60) as client:
        yield client


def test_a_camera_takes_up_what_was_armed_for_its_stream(
    daemon: DaemonProcess, control: ControlClient
) -> None:
    described = control.arm("run-1", stream="cam0")
    path = daemon.config.parent / "data" / "run-1.ome.zarr"
    assert (described["state"], described["uri"]) == ("armed", path.as_uri())
    (image,) = described["images"]
    assert (image["path"], image["dtype"], image["axes"]) == ("0", "uint16", ["t", "y", "x"])
    assert (image["shape"], image["chunks"], image["shards"]) == ([None, 48, 80], [4, 32, 32], [8, 32, 96])
    assert not path.exists()
    watching = control.watch("run-1")
    assert next(watching)["state"] == "armed"
    with sw.connect(daemon.endpoint) as connection, connection.acquire(stream="cam0") as stream:
        assert stream.path == str(path)
        for _ in range(10):
            stream.append(FRAME)
        stream.flush("stored")
        assert control.flush("run-1")["durable"] == 10
        with pytest.raises(sw.errors.VisibilityError):
            control.flush("run-1", "visible")
        assert control.describe("run-1")["state"] == "running"
        control.set_metadata("run-1", {"plan": {"uid": "abc"}})
    last = list(watching)[-1]
    assert (last["state"], last["ended"], last["error"]) == ("ended", True, None)
    assert last["watermark"] == {"stored": 10, "durable": 10, "visible": 10, "images": {}}
    assert last["receipt"]["frames_durable"] == 10
    assert control.counts("run-1") == last
    assert stored(path).shape == (10, 48, 80)
