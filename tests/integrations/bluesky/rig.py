"""A rig for bluesky: a daemon, its camera as a user's logics drive it, and a run engine whose documents are
kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
from bluesky.run_engine import RunEngine
from ophyd_async.core import DetectorAcquireLogic, DetectorTriggerLogic

import shardwright as sw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.integrations.bluesky import ShardwrightDataLogic

CONFIG = """\
output: {root: data, create: true, in_memory: true, live: append}
ingest: {endpoints: ["ipc://./in.sock"], heartbeat_ms: 50}
workers: {threads: 2}
memory: {budget: 1GiB}
streams:
  - name: cam
    array:
      dtype: uint16
      dimensions:
        - {name: t, chunk_size: 1, shard_size_chunks: 4}
        - {name: y, count: 32, chunk_size: 32}
        - {name: x, count: 48, chunk_size: 48}
"""


def written_config(folder: Path) -> Path:
    path = folder / "rig.yaml"
    path.write_text(CONFIG)
    return path


class Camera(DetectorAcquireLogic):
    """A camera that takes ``asked`` frames each time that it is started. ``sent``: its frames. ``before``: is
    called before each, with its number, in the camera's thread."""

    def __init__(self, endpoint: str, shape: tuple[int, ...] = (32, 48)) -> None:
        self.asked = 1
        self.sent: list[np.ndarray] = []
        self.before = lambda number: None
        self.data: ShardwrightDataLogic | None = None  # of its detector
        self.receipts: list[sw.Receipt] = []
        self._endpoint, self._shape = endpoint, shape
        self._rng = np.random.default_rng(1)
        self._daemon: sw.Connection | None = None
        self._stream: sw.Stream | None = None
        self._exposure: asyncio.Task[None] | None = None

    async def start_acquiring(self) -> None:
        self._exposure = asyncio.create_task(asyncio.to_thread(self._expose, self.asked))

    async def wait_for_idle(self) -> None:
        if self._exposure is not None:
            await self._exposure

    async def ensure_stopped(self) -> None:
        if self._exposure is not None:
            await asyncio.wait([self._exposure])
        await asyncio.to_thread(self._close)

    def _expose(self, frames: int) -> None:
        if self._stream is None:
            self._daemon = self._daemon or sw.connect(self._endpoint)
            self._stream = self._daemon.acquire(self.data.armed.name, stream="cam")
        for _ in range(frames):
            self.before(len(self.sent))
            frame = self._rng.integers(0, 4000, self._shape, np.uint16)
            self.sent.append(frame)
            self._stream.append(frame)

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self.receipts.append(stream.close())


class CameraTrigger(DetectorTriggerLogic):
    """Tells the camera how many frames it is to take."""

    def __init__(self, camera: Camera) -> None:
        self._camera = camera

    async def prepare_internal(self, num: int, livetime: float, deadtime: float) -> None:
        self._camera.asked = num


class Documents:
    """The documents of a run engine that were kept, in their order."""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, name: str, document: dict[str, Any]) -> None:
        self.all.append((name, dict(document)))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [document for kind, document in self.all if kind == name]


def running_engine() -> Iterator[RunEngine]:
    """A run engine; its loop ends with it."""
    engine = RunEngine(call_returns_result=True)
    try:
        yield engine
    finally:
        if engine.state != "idle":
            engine.halt()
        engine.loop.call_soon_threadsafe(engine.loop.stop)
        engine._th.join()
        engine.loop.close()
