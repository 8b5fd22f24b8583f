"""Files that grow (``live: append``), read by a viewer's library on the same disk."""

from __future__ import annotations

import base64
import json
import subprocess

import numpy as np
import pytest
from tests.acquire.live_reader import frame
from tests.acquire.test_live_files import APPEND, LIVE, sees, send, spec
from tests.harness.writing import how

import shardwright as sw
from shardwright.model.errors import LayoutWarning

from .test_images import HERE, zarrita

__all__ = ["zarrita"]


def test_zarrita_reads_a_copy_that_grows(tmp_path, zarrita):
    """It finds an index only at the end."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**APPEND)) as writer:
        send(writer, 0, 6)
        sees(path, 6)
        command = ["node", HERE / "zarrita.mjs", zarrita, path, "/0"]
        (line,) = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.splitlines()
    found = json.loads(line)
    pixels = np.frombuffer(base64.b64decode(found["data"]), found["dtype"]).reshape(found["shape"])
    assert len(pixels) == 6
    assert all(np.array_equal(seen, frame(i)) for i, seen in enumerate(pixels))


def test_zarrita_shows_an_index_at_the_start_as_the_warning_says(tmp_path, zarrita):
    """Zeros without an error while the file grows: what lies at its end is read as an index. Once sealed, an
    error."""
    path = tmp_path / "a.ome.zarr"
    command = ["node", HERE / "zarrita.mjs", zarrita, path, "/0"]
    with pytest.warns(LayoutWarning, match="zeros, without an error, and fails on a finished one"):
        writer = sw.create(path, spec(), **how(**LIVE))
    with writer:
        send(writer, 0, 6)
        sees(path, 6)
        (line,) = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.splitlines()
    found = json.loads(line)
    assert not any(base64.b64decode(found["data"])), "it shows the frames: the warning is out of date"
    assert subprocess.run(command, capture_output=True, timeout=120).returncode, "likewise"
