"""Every thread of the daemon is killed for real: the daemon ends with a non-zero code, never in silence, and
what was stored is there afterwards."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.harness.daemon import DaemonProcess, bring_back
from tests.harness.store_contents import stored

import shardwright as sw
from shardwright.simulate.photons import PhotonFrames

if TYPE_CHECKING:
    from pathlib import Path

# Once the file exists: SystemExit is raised inside the thread of that name, wherever it is (a thread that
# waits dies as soon as it wakes). Python ends such a thread without a word, which is the hardest case.
KILLER = """
import ctypes, threading, time
from pathlib import Path
def kill(order=Path({order!r})):
    while not order.exists():
        time.sleep(0.01)
    name = order.read_text()
    for thread in threading.enumerate():
        if thread.name.startswith(name):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
            break
threading.Thread(target=kill, daemon=True).start()
"""  # noqa: E501
NOTHING_ON_STDOUT = {"events"}


class KillableThreads:
    """A daemon, one camera that has sent 10 frames (two slabs and a half), and a way to kill a thread by
    name."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.folder = folder
        self.source = PhotonFrames((48, 80), seed=1)
        self._order = folder / "order"
        self.daemon = DaemonProcess(config, sabotage=KILLER.format(order=str(self._order)))
        self.connection = sw.connect(self.daemon.endpoint, reconnect_timeout_ms=0)
        self.stream = self.connection.acquire("run", stream="cam0")
        for i in range(10):
            self.stream.append(self.source.frame(i))
        while self.stream.watermark.stored < 10:
            time.sleep(0.01)

    def kill(self, thread: str) -> None:
        temporary = self._order.with_suffix(".new")
        temporary.write_text(thread)
        temporary.rename(self._order)

    def open_stores(self) -> None:
        """Opens one store after another."""
        for number in range(1000):
            self.connection.acquire(f"other{number}", stream="cam0").close()

    def poke(self) -> None:
        """Work for every thread, so that one that waits wakes up, until the daemon has ended; the camera may
        hear of it."""
        frame = 10
        while self.daemon.process.poll() is None:
            with suppress(sw.errors.ShardwrightError):
                sw.connect(self.daemon.endpoint, timeout_ms=500, reconnect_timeout_ms=0).close()  # an event
                self.stream.append(self.source.frame(frame))
                frame += 1


@pytest.mark.parametrize(
    "thread",
    [
        "ingest",
        "shardwright-worker",
        "shardwright-sealer",
        "shardwright-opener",
        "shardwright-planner",
        "events",
    ],
)
def test_the_death_of_a_thread_ends_the_daemon_and_costs_nothing(
    thread: str, config: Path, folder: Path
) -> None:
    threads = KillableThreads(config, folder)
    with threads.daemon as daemon:
        threads.kill(thread)
        if thread in ("shardwright-opener", "shardwright-planner"):
            # the request that wakes it is never answered but by the end; earlier ones may be
            with pytest.raises(sw.errors.ShardwrightError):
                threads.open_stores()
        threads.poke()
        assert daemon.exit_code() == 1
        if thread not in NOTHING_ON_STDOUT:
            assert "thread_died" in daemon.rest()
            (died,) = {event["thread"] for event in daemon.events if event["event"] == "thread_died"}
            assert died in thread or died.startswith(thread)
        else:
            assert "SystemExit" in daemon.errors()
    with suppress(sw.errors.ShardwrightError):
        threads.connection.close()
    bring_back(config)
    pixels = stored(folder / "data" / "run.ome.zarr")
    assert len(pixels) >= 10
    for i in range(10):
        assert (pixels[i] == threads.source.frame(i)).all(), f"frame {i} was stored, and is not there"
