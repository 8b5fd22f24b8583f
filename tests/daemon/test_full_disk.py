"""A disk that has no room for the next shards, as everybody sees it: a state of its own in the status, on the
page and in the metrics, with one event when it begins and one when it ends."""

from __future__ import annotations

import json
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess, run_cli
from tests.harness.json_process import wait_for
from tests.harness.store_contents import stored

import shardwright as sw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = """\
output: {{root: {folder}/data, create: true, in_memory: true}}
ingest: {{endpoints: ["ipc://./in.sock"]}}
workers: {{threads: 1}}
memory: {{budget: 2GiB}}
http: {{enabled: true, listen: "127.0.0.1:*"}}
reliability: {{store_within_ms: 50, sync_interval_ms: 50}}
streams:
  - name: cam0
    array:
      dtype: uint16
      dimensions:
        - {{name: t, chunk_size: 2, shard_size_chunks: 2}}
        - {{name: y, count: 8, chunk_size: 8, shard_size_chunks: 1}}
        - {{name: x, count: 12, chunk_size: 12, shard_size_chunks: 1}}
"""
# no shard is preallocated while the file is there
FULL = """
import errno, os
from shardwright.disk import failpoints
def full():
    if os.path.exists({file!r}):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
failpoints.set_hook("shard.before_preallocate", full)
"""
FRAMES = np.arange(24 * 96, dtype=np.uint16).reshape(24, 8, 12)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.config, self.full = folder / "rig.yaml", folder / "full"
        self.config.write_text(CONFIG.format(folder=folder))
        self.daemon = DaemonProcess(self.config, sabotage=FULL.format(file=str(self.full)))
        self.url = ""  # once it is served

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(run_cli("status", self.config, "--json").stdout)
        return answer

    def wait_for_metric(self, line: str) -> None:
        """The page's numbers are those of a moment ago."""

        def is_there() -> bool:
            with urllib.request.urlopen(f"{self.url}metrics") as answer:
                return line in answer.read().decode().splitlines()

        wait_for(is_there, line)

    def fill(self, stream: Any) -> None:
        """Sends until the disk is full; of its cameras, ``stream`` alone waits."""
        self.full.touch()
        for frame in FRAMES[:12]:
            stream.append(frame)
        full = self.daemon.wait_for("disk_full")
        assert (full["name"], full["stream"], full["level"]) == ("a", "cam0", "warning")
        assert "free some space" in full["hint"]


@contextmanager
def room_at_last(rig: Rig) -> Iterator[None]:
    """So that a failure is no hang: a stream that closes waits for room."""
    try:
        yield
    finally:
        rig.full.unlink(missing_ok=True)


@pytest.fixture
def rig(folder: Path) -> Iterator[Rig]:
    rig = Rig(folder)
    with rig.daemon:
        rig.url = rig.daemon.wait_for("web_ready")["url"]
        yield rig
        assert rig.daemon.stop() == 0, rig.daemon.errors()


def test_everybody_sees_that_it_begins_and_that_it_ends(rig: Rig) -> None:
    with sw.connect(rig.daemon.endpoint) as connection:
        other = connection.acquire("b", stream="cam0")
        other.append(FRAMES[0])
        other.flush()  # it has its shards, and the next ones, before the disk is full
        with connection.acquire("a", stream="cam0") as stream, room_at_last(rig):
            assert rig.status()["state"] == "serving"
            rig.fill(stream)
            status = rig.status()
            assert status["state"] == "disk_full"
            states = {one["name"]: one["state"] for one in status["acquisitions"]}
            assert states == {"a": "disk_full", "b": "running"}
            assert "disk full" in run_cli("status", rig.config).stdout
            rig.wait_for_metric('shardwright_state{state="disk_full"} 1.0')
            rig.wait_for_metric('shardwright_acquisitions_disk_full{stream="cam0"} 1.0')
            rig.full.unlink()
            assert rig.daemon.wait_for("disk_has_room")["name"] == "a"
            wait_for(lambda: rig.status()["state"] == "serving", "the disk to have room")
            rig.wait_for_metric('shardwright_acquisitions_disk_full{stream="cam0"} 0.0')
            for frame in FRAMES[12:]:
                stream.append(frame)
        other.close()
    assert stream.receipt.frames_stored == len(FRAMES)
    assert np.array_equal(stored(stream.receipt.path), FRAMES)


@pytest.mark.browser
def test_the_page_has_a_banner(rig: Rig) -> None:
    from .browser import Browser

    with sw.connect(rig.daemon.endpoint) as connection, Browser() as page:
        page.open(rig.url)
        page.wait(lambda: page.text("#state") == "serving", "the state")
        assert not page.text("#problem-text")
        with connection.acquire("a", stream="cam0") as stream, room_at_last(rig):
            rig.fill(stream)
            page.wait(lambda: page.text("#state") == "disk full", "the state")
            page.wait(lambda: page.text("#problem-text"), "the banner")
            assert page.text("#problem-text") == (
                "The disk is full: a waits for room, and so do the cameras. Free some space."
            )
            assert "are free in" in page.text("#problem-detail")
            assert "disk full" in page.text("#running")
            rig.full.unlink()
            page.wait(lambda: page.text("#state") == "serving", "the state")
            page.wait(lambda: not page.text("#problem-text"), "the banner to go")
