"""What the workers have for large chunks is in the plan of the acquisition that needs it, and goes with
it."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright as sw
from shardwright.acquire.limits import RUNTIME_BYTES, Limits
from shardwright.disk import allocation_reserve

SHAPE, DEEP = (512, 512), 16


@pytest.fixture
def large(spec_of) -> sw.ArraySpec:
    """Each worker needs a whole chunk of scratch, 8 MiB."""
    return sw.ArraySpec.model_validate(
        {**spec_of(chunk=DEEP, shape=SHAPE).model_dump(mode="json"), "codec": "zstd"}
    )


def acquire(connection: sw.Connection, name: str, spec: sw.ArraySpec) -> None:
    with connection.acquire(name, spec) as stream:
        for _ in range(2 * DEEP):
            stream.append(np.ones(SHAPE, np.uint16))
    assert stream.receipt.frames_stored == 2 * DEEP


@pytest.mark.parametrize("reason", ["another acquires", "its client goes"])
def test_large_buffers_go_when_the_acquisition_that_needed_them_has_ended(
    start, pool, large, spec_of, wait, monkeypatch, reason: str
) -> None:
    daemon, scratch_bytes = start(), Limits.derive(large, threads=1).scratch_bytes
    pool.keep_buffers(0, 0)
    with sw.connect(daemon.ipc) as camera, sw.connect(daemon.ipc) as other:
        acquire(camera, "a", large)
        wait(lambda: not daemon.server.acquiring())
        assert pool.buffer_bytes >= scratch_bytes
        monkeypatch.setattr(allocation_reserve, "resident_bytes", lambda: RUNTIME_BYTES + pool.buffer_bytes)
        assert daemon.server._openings.beyond_plan() <= 0, "nobody is held responsible for it"
        if reason == "another acquires":
            other.acquire("b", spec_of()).close()
        else:
            camera.close()
        wait(lambda: pool.buffer_bytes < scratch_bytes)


def test_the_next_acquisition_of_the_same_client_finds_them(start, pool, large) -> None:
    daemon, scratch_bytes = start(), Limits.derive(large, threads=1).scratch_bytes
    pool.keep_buffers(0, 0)
    with sw.connect(daemon.ipc) as camera:
        acquire(camera, "a", large)
        had = {state._scratch.ctypes.data for state in pool._states if state._scratch.size >= scratch_bytes}
        assert had, "of those that have encoded"
        acquire(camera, "b", large)
        assert had <= {state._scratch.ctypes.data for state in pool._states}
