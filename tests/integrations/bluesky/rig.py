"""A rig for bluesky: a daemon, a camera that a user's logics drive as hardware is driven, and a run engine
whose documents are kept."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import bluesky.plan_stubs as bps
import numpy as np
import zarr
from bluesky.preprocessors import run_decorator, stage_decorator
from bluesky.run_engine import RunEngine
from ophyd_async.core import (
    AutoIncrementFilenameProvider,
    DetectorAcquireLogic,
    DetectorTriggerLogic,
    TriggerInfo,
)

import shardwright as sw
from shardwright.integrations.bluesky import ShardwrightDataLogic, ShardwrightDetector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bluesky.utils import Msg

SHAPE = (32, 48)
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
FILE = "file://localhost"
names = AutoIncrementFilenameProvider("run")  # of acquisitions, no two of which are the same


def written_config(folder: Path) -> Path:
    path = folder / "rig.yaml"
    path.write_text(CONFIG)
    return path


class Camera(DetectorAcquireLogic):
    """Takes ``asked`` frames each time that it is started; its acquisition stays open until it is stopped.

    ``sent``: its frames. ``before``: called in its thread before each, with its number. ``append``: what it
    does with a frame.
    """

    def __init__(self, endpoint: str, shape: tuple[int, ...] = SHAPE) -> None:
        self.asked = 1
        self.sent: list[np.ndarray] = []
        self.before: Callable[[int], object] = lambda number: None
        self.append: Callable[[sw.Stream, np.ndarray], object] = lambda stream, frame: stream.append(frame)
        self.data: ShardwrightDataLogic | None = None
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
        await asyncio.to_thread(self.close_stream)

    def close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(sw.errors.SessionLostError):
                stream.close()

    def disconnect(self) -> None:
        if self._daemon is not None:
            self._daemon.close()

    def _expose(self, frames: int) -> None:
        if self._stream is None:
            self._daemon = self._daemon or sw.connect(self._endpoint, reconnect_timeout_ms=0)
            self._stream = self._daemon.acquire(self.data.armed.name)
        for _ in range(frames):
            self.before(len(self.sent))
            frame = self._rng.integers(0, 4000, self._shape, np.uint16)
            self.sent.append(frame)
            self.append(self._stream, frame)


class CameraTrigger(DetectorTriggerLogic):
    """Tells the camera how many frames it is to take."""

    def __init__(self, camera: Camera) -> None:
        self._camera = camera

    async def prepare_internal(self, num: int, livetime: float, deadtime: float) -> None:
        self._camera.asked = num


class Documents:
    """The documents of a run engine, in their order. What a ``stream_datum`` announces is read at once, as
    any reader of the files reads it: ``seen`` has its arrays by data key."""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, Any]]] = []
        self.seen: dict[str, list[np.ndarray]] = {}
        self._resources: dict[str, dict[str, Any]] = {}

    def __call__(self, name: str, document: dict[str, Any]) -> None:
        self.all.append((name, dict(document)))
        if name == "stream_resource":
            self._resources[document["uid"]] = dict(document)
        elif name == "stream_datum":
            resource = self._resources[document["stream_resource"]]
            array = zarr.open_array(resource["uri"].removeprefix(FILE), mode="r")
            begin, end = document["indices"]["start"], document["indices"]["stop"]
            assert end <= array.shape[0]
            self.seen.setdefault(resource["data_key"], []).append(array[begin:end])

    def of(self, name: str) -> list[dict[str, Any]]:
        return [document for kind, document in self.all if kind == name]

    def ranges(self) -> list[tuple[int, int]]:
        return [(d["indices"]["start"], d["indices"]["stop"]) for d in self.of("stream_datum")]

    def numbers(self) -> list[tuple[int, int]]:
        return [(d["seq_nums"]["start"], d["seq_nums"]["stop"]) for d in self.of("stream_datum")]

    def pixels(self, key: str = "det") -> np.ndarray:
        return np.concatenate(self.seen[key])


class Rig:
    """``ready``: the event of that name, of the daemon."""

    def __init__(self, ready: dict[str, Any], engine: RunEngine) -> None:
        self.root = Path(ready["output_root"])
        self.control = ready["control_socket"]
        self.engine = engine
        self.documents = Documents()
        engine.subscribe(self.documents)
        self._endpoint = ready["endpoints"][0]
        self._cameras: list[Camera] = []

    def detector(
        self, spec: Any = None, *, shape: tuple[int, ...] = SHAPE, trigger: bool = True
    ) -> tuple[ShardwrightDetector, Camera]:
        """A detector of the stream, or of ``spec``. ``shape``: of a frame."""
        camera = Camera(self._endpoint, shape)
        self._cameras.append(camera)
        stream = "cam" if spec is None else None
        camera.data = ShardwrightDataLogic(self.control, names, spec, stream=stream)
        logics = (camera, CameraTrigger(camera)) if trigger else (camera,)
        return ShardwrightDetector(camera.data, *logics, name="det"), camera

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for camera in self._cameras:
            camera.disconnect()


def stepping(
    detector: ShardwrightDetector, events: int = 1, *, frames: int = 1, timeout_s: float = 60.0
) -> Iterator[Msg]:
    """A plan of ``events`` of so many ``frames``, each triggered."""
    info = TriggerInfo(collections_per_event=frames, exposure_timeout=timeout_s)

    @stage_decorator([detector])
    @run_decorator()
    def plan() -> Iterator[Msg]:
        yield from bps.prepare(detector, info, wait=True)
        for _ in range(events):
            yield from bps.trigger_and_read([detector])

    return plan()


def flying(detector: ShardwrightDetector, events: int, *, frames: int = 1) -> Iterator[Msg]:
    """A plan of ``events`` that the camera times, announced while it runs."""
    info = TriggerInfo(number_of_events=events, collections_per_event=frames, exposure_timeout=60)

    @stage_decorator([detector])
    @run_decorator()
    def plan() -> Iterator[Msg]:
        yield from bps.prepare(detector, info, wait=True)
        yield from bps.declare_stream(detector, name="primary", collect=True)
        yield from bps.kickoff(detector, wait=True)
        both = [detector], [detector]
        yield from bps.collect_while_completing(*both, flush_period=0.02, stream_name="primary")

    return plan()


def running_engine() -> Iterator[RunEngine]:
    """A run engine; its loop ends with it."""
    engine = RunEngine(call_returns_result=True)
    try:
        yield engine
    finally:
        if engine.state != "idle":
            engine.halt()
        end_loop(engine)


def end_loop(engine: RunEngine) -> None:
    engine.loop.call_soon_threadsafe(engine.loop.stop)
    engine._th.join()
    engine.loop.close()
