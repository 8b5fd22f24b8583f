"""A daemon in a process of its own that is stopped, or killed and started again, and cameras that come and go
meanwhile: nothing that was appended is missing. Kills at any moment are scenes of ``tests/crash/kills``."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.camera import CameraProcess, Script
from tests.harness.frames import array_spec, in_order, pixels
from tests.harness.restarted_daemon import RestartedDaemon

import shardwright as sw
from shardwright.model import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardwright.client import Connection, Stream


@pytest.fixture
def daemon(folder: Path) -> Iterator[RestartedDaemon]:
    daemon = RestartedDaemon(folder)
    yield daemon
    daemon.kill()


def test_a_paused_daemon_is_waited_for(
    daemon: RestartedDaemon, spec_of: Callable[..., sw.ArraySpec], frames_of: Callable[..., np.ndarray]
):
    frames = frames_of(60)
    daemon.start(session_timeout_ms=400)
    with sw.connect(daemon.endpoint) as connection, connection.acquire("a", spec_of()) as stream:
        for frame in frames[:30]:
            stream.append(frame)
        daemon.signal(signal.SIGSTOP)
        camera = threading.Thread(target=lambda: [stream.append(frame) for frame in frames[30:]])
        camera.start()
        threading.Event().wait(1.0)  # more than its session timeout: both sides give the connection up
        daemon.signal(signal.SIGCONT)
        camera.join()
    np.testing.assert_array_equal(daemon.stored(), frames)


def test_a_killed_camera_is_replaced_by_another(daemon: RestartedDaemon):
    frames = np.stack([pixels(i) for i in range(50)])
    daemon.start()
    with CameraProcess(Script(daemon.endpoint, "a", in_order(21), close=False)) as camera:
        camera.wait_until(lambda facts: facts["stored"] == 21)
        camera.kill()
    with sw.connect(daemon.endpoint) as connection:
        stream = reopened(connection)
        assert stream.spec == array_spec()
        for frame in frames[21:40]:
            stream.append(frame)
        stream.flush()
        daemon.kill()
        daemon.start()
        for frame in frames[40:]:
            stream.append(frame)
        stream.close()
    np.testing.assert_array_equal(daemon.stored(), frames)
    assert stream.receipt.frames_stored == 50


def test_another_client_goes_on_after_an_end_that_was_cut_short(
    daemon: RestartedDaemon, spec_of: Callable[..., sw.ArraySpec], frames_of: Callable[..., np.ndarray]
):
    """The first client was gone for too long, and the daemon dies while it seals what that had sent, a slab
    and a shard of it half full; the next frames come in order."""
    frames = frames_of(40)
    daemon.start(dies_at="log.before_append", resume_timeout_ms=100)
    with sw.connect(daemon.endpoint, reconnect_timeout_ms=0) as connection:
        stream = connection.acquire("a", spec_of(chunk=8))
        for frame in frames[:10]:
            stream.append(frame)
        stream.flush()
        with contextlib.suppress(errors.ShardwrightError):
            connection.close()
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    with sw.connect(daemon.endpoint) as connection:
        stream = reopened(connection)
        for frame in frames[10:]:
            stream.append(frame)
        stream.close()
    receipt = stream.receipt
    assert receipt is not None
    assert (receipt.frames_stored, receipt.frames_late, receipt.frames_duplicate, receipt.frames_lost) == (
        40,
        0,
        0,
        0,
    )
    np.testing.assert_array_equal(daemon.stored(), frames)


def reopened(connection: Connection) -> Stream:
    """As soon as the daemon has noticed that the first client is gone."""
    for _ in range(600):
        try:
            return connection.acquire("a", reopen=True)
        except errors.LockedError:
            threading.Event().wait(0.05)
    raise AssertionError("the first client is never missed")
