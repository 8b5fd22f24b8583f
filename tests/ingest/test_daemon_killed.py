"""A daemon in a process of its own, killed in the middle of a stream and started again: nothing that was
appended is missing from the store."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.model import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardwright.client import Connection, Stream

DAEMON = """
import json, os, signal, sys, threading
from pathlib import Path
from shardwright.ingest import IngestServer, IngestSettings
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.acquire.settings import WriteSettings
from shardwright.acquire.workers import WorkerPool
from shardwright.storage import failpoints

root, facts = Path(sys.argv[1]), json.loads(sys.argv[2])
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
failpoints.set_hook(facts.pop("dies_at", ""), lambda: os.kill(os.getpid(), signal.SIGKILL))
pool = WorkerPool(2)
pool.start()
settings = IngestSettings(
    endpoints=(f"ipc://{root}/in.sock",), output_root=root / "data", memory_budget_bytes=4 << 30, ring_socket=root / "ring.sock",
    heartbeat_ms=50, write=WriteSettings(**facts.pop("write", {})), **facts,
)
server = IngestServer(settings, (), pool, on_event=lambda name, facts: print(name, dict(facts), file=sys.stderr, flush=True))
server.bind()
server.adopt(unfinished_stores(root / "data"))
print("ready", flush=True)
server.run(stop)
"""  # noqa: E501

CAMERA = """
import sys
import numpy as np
import shardwright as sw
frames = np.load(sys.argv[3])
with sw.connect(sys.argv[1]) as daemon:
    stream = daemon.acquire("a", sw.ArraySpec.model_validate_json(sys.argv[2]))
    for frame in frames:
        stream.append(frame)
    stream.flush()
    print("flushed", flush=True)
    sys.stdin.read()
"""


class Rig:
    """``start`` and ``kill`` daemons over one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "data").mkdir()
        self.endpoint = f"ipc://{root}/in.sock"
        self._daemon: subprocess.Popen[str] | None = None

    def start(self, **facts: Any) -> None:
        command = [sys.executable, "-c", DAEMON, str(self.root), json.dumps(facts)]
        self._daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._daemon.stdout is not None
        assert self._daemon.stdout.readline() == "ready\n"

    def kill(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.communicate()
            self._daemon = None

    def stop(self) -> None:
        """SIGTERM; it may die of it."""
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Until it has ended by itself: its exit code."""
        assert self._daemon is not None
        self._daemon.communicate(timeout=60)
        code, self._daemon = self._daemon.returncode, None
        return int(code)

    def pause(self) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGCONT)

    def stored(self, name: str = "a") -> np.ndarray:
        return np.asarray(zarr.open_group(self.root / "data" / f"{name}.ome.zarr", mode="r")["0"])


@pytest.fixture
def rig(folder: Path) -> Iterator[Rig]:
    rig = Rig(folder)
    yield rig
    rig.kill()


@pytest.mark.parametrize("transport", ["shm", "message"])
@pytest.mark.parametrize("durability", ["stored", "durable"])
def test_a_stream_goes_on_over_kills_of_its_daemon(
    rig: Rig,
    spec_of: Callable[..., sw.ArraySpec],
    frames_of: Callable[..., np.ndarray],
    transport: str,
    durability: str,
):
    frames = frames_of(1200, (32, 48))
    write = {"durability": durability, "store_within_ms": 50, "sync_interval_ms": 50}
    rig.start(write=write)
    with sw.connect(rig.endpoint, transport=transport) as connection:
        with connection.acquire("a", spec_of(shape=(32, 48), chunk=16)) as stream:
            for kill in range(3):
                for frame in frames[kill * 300 : kill * 300 + 150]:
                    stream.append(frame)
                camera = threading.Thread(
                    target=lambda first=kill * 300 + 150: [
                        stream.append(frame) for frame in frames[first : first + 150]
                    ]
                )
                camera.start()
                before = stream.watermark
                rig.kill()
                rig.start(write=write)
                camera.join()
                stream.flush()
                assert stream.watermark.durable == (kill + 1) * 300 > before.stored
            for frame in frames[900:]:
                stream.append(frame)
        assert stream.reconnects >= 3
    np.testing.assert_array_equal(rig.stored(), frames)
    receipt = stream.receipt
    assert (receipt.frames_received, receipt.frames_stored, receipt.frames_durable) == (1200, 1200, 1200)
    assert (receipt.frames_missing, receipt.frames_duplicate, receipt.frames_lost) == (0, 0, 0)


def test_a_paused_daemon_is_waited_for(
    rig: Rig, spec_of: Callable[..., sw.ArraySpec], frames_of: Callable[..., np.ndarray]
):
    frames = frames_of(60)
    rig.start(session_timeout_ms=400)
    with sw.connect(rig.endpoint) as connection, connection.acquire("a", spec_of()) as stream:
        for frame in frames[:30]:
            stream.append(frame)
        rig.pause()
        camera = threading.Thread(target=lambda: [stream.append(frame) for frame in frames[30:]])
        camera.start()
        threading.Event().wait(1.0)  # more than its session timeout: both sides give the connection up
        rig.go_on()
        camera.join()
    np.testing.assert_array_equal(rig.stored(), frames)


def test_a_killed_camera_is_replaced_by_another(
    rig: Rig, spec_of: Callable[..., sw.ArraySpec], frames_of: Callable[..., np.ndarray], tmp_path: Path
):
    frames = frames_of(50)
    np.save(tmp_path / "frames.npy", frames[:21])
    rig.start()
    command = [
        sys.executable,
        "-c",
        CAMERA,
        rig.endpoint,
        spec_of().model_dump_json(),
        str(tmp_path / "frames.npy"),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as camera:
        assert camera.stdout is not None
        assert camera.stdout.readline() == "flushed\n"
        camera.kill()
    with sw.connect(rig.endpoint) as connection:
        stream = reopened(connection)
        assert stream.spec == spec_of()
        for frame in frames[21:40]:
            stream.append(frame)
        stream.flush()
        rig.kill()
        rig.start()
        for frame in frames[40:]:
            stream.append(frame)
        stream.close()
    np.testing.assert_array_equal(rig.stored(), frames)
    assert stream.receipt.frames_stored == 50


@pytest.mark.parametrize(
    ("end", "point"),
    [
        ("its client was gone for too long", "log.before_append"),
        ("the daemon was stopped", "table.before_create"),
    ],
)
def test_another_client_goes_on_after_an_end_that_was_cut_short(
    rig: Rig, spec_of: Callable[..., sw.ArraySpec], frames_of: Callable[..., np.ndarray], end: str, point: str
):
    """The daemon dies while it seals what the first client had sent, a slab and a shard of it half full; the
    next frames come in order."""
    frames = frames_of(40)
    gone = end == "its client was gone for too long"
    rig.start(dies_at=point, **({"resume_timeout_ms": 100} if gone else {}))
    with sw.connect(rig.endpoint, reconnect_timeout_ms=0) as connection:
        stream = connection.acquire("a", spec_of(chunk=8))
        for frame in frames[:10]:
            stream.append(frame)
        stream.flush()
        if not gone:
            rig.stop()
            assert rig.wait() == -signal.SIGKILL
        with contextlib.suppress(errors.ShardwrightError):
            connection.close()
    if gone:
        assert rig.wait() == -signal.SIGKILL
    rig.start()
    with sw.connect(rig.endpoint) as connection:
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
    np.testing.assert_array_equal(rig.stored(), frames)


def reopened(connection: Connection) -> Stream:
    """As soon as the daemon has noticed that the first client is gone."""
    for _ in range(600):
        try:
            return connection.acquire("a", reopen=True)
        except errors.LockedError:
            threading.Event().wait(0.05)
    raise AssertionError("the first client is never missed")
