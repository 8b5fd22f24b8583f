"""A running ingest server for each test, with the real pipeline or with a double that can hold frames back and fail on demand."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zmq

from shardwright.array.grid import Grid
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.ingest import IngestServer, IngestSettings, StreamPolicy
from shardwright.model.errors import OutputExistsError, ShardwrightError
from shardwright.model.receipt import Receipt
from shardwright.pipeline.acquisition import AcquisitionState
from shardwright.pipeline.workers import WorkerPool
from shardwright.wire.controls import Hello
from shardwright.wire.messages import CONNECTION, Counter, Header, Kind, decode_control, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class AcquisitionDouble:
    """Keeps frames in memory. ``holding``: releases nothing. ``error_after``: fails once so many frames have come. ``hold_seal``: never sealed."""

    holding = False
    hold_seal = False
    error_after: int | None = None

    def __init__(self, path: Path, spec: ArraySpec, limits: Any, pool: Any, wake: Callable[[], None]) -> None:
        if path.exists():
            raise OutputExistsError("the output exists", got=str(path))
        path.mkdir()
        self.path, self.spec, self.limits, self.grid, self.wake = path, spec, limits, Grid.of(spec), wake
        self.state, self.error = AcquisitionState.OPEN, None
        self.frames: dict[int, bytes] = {}
        self.descriptors: list[np.ndarray] = []
        self.closed = False
        self._pixels: list[tuple[int, int, int]] = []  # sequence, position, address: read only when they are released
        self._received = 0

    @property
    def stored_watermark(self) -> int:
        return self._received - len(self._pixels)

    durable_watermark = stored_watermark

    @property
    def in_flight(self) -> int:
        return len(self._pixels)

    def submit(self, descriptors: np.ndarray, addresses: np.ndarray) -> None:
        self.descriptors.append(descriptors)
        self._received += len(descriptors)
        self._pixels += zip(descriptors["sequence"].tolist(), descriptors["position"].tolist(), addresses.tolist(), strict=True)
        if self.error_after is not None and self._received >= self.error_after:
            self.state, self.error = AcquisitionState.FAILED, ShardwrightError("the disk of this test broke")
        self.wake()

    def poll(self) -> np.ndarray:
        if self.holding and self.state is AcquisitionState.OPEN:
            return np.zeros(0, np.int64)
        released, self._pixels = self._pixels, []
        for _, position, address in released:
            self.frames.setdefault(position, ctypes.string_at(address, self.spec.frame_bytes))
        if self.state is AcquisitionState.FINISHING and not self.hold_seal:
            self.state = AcquisitionState.SEALED
        return np.array([sequence for sequence, _, _ in released], np.int64)

    def finish(self) -> None:
        if self.state is AcquisitionState.OPEN:
            self.state = AcquisitionState.FINISHING
            self.wake()

    def receipt(self) -> Receipt:
        stored = len(self.frames)
        return Receipt(str(self.path), self._received, stored, stored, 0, self.stored_watermark - stored, 0, stored * self.spec.frame_bytes, 0, 0)

    def close(self) -> None:
        assert self.state in (AcquisitionState.SEALED, AcquisitionState.FAILED)
        self.closed = True


class Daemon:
    """An ingest server in a thread. ``stop`` joins it and raises what ended it."""

    def __init__(self, root: Path, pool: WorkerPool, streams: tuple[StreamPolicy, ...] = (), *, doubled: type | None = None, **changes: Any) -> None:
        self.root = root
        self.acquisitions: list[AcquisitionDouble] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        facts = {
            "endpoints": (f"ipc://{root}/ingest.sock", "tcp://127.0.0.1:*"),
            "output_root": root,
            "memory_budget_bytes": 8 << 30,
            "ring_socket": root / "ring.sock",
            "heartbeat_ms": 50,
            "session_timeout_ms": 5000,
        }
        settings = IngestSettings(**{**facts, **changes})
        opening = {} if doubled is None else {"open_acquisition": self._remember(doubled)}
        self.server = IngestServer(settings, streams, pool, on_event=lambda name, more: self.events.append((name, dict(more))), **opening)
        self.server.bind()
        self.ipc, *more = self.server.endpoints
        self.tcp = more[0] if more else ""
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _remember(self, doubled: type) -> Callable[..., Any]:
        def make(*arguments: Any) -> Any:
            self.acquisitions.append(doubled(*arguments))
            return self.acquisitions[-1]

        return make

    def _run(self) -> None:
        try:
            self.server.run(self._stop)
        except BaseException as error:
            self._error = error

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def event(self, name: str) -> dict[str, Any]:
        """The first event of that name, waited for."""
        return wait_for(lambda: next((facts for event, facts in list(self.events) if event == name), None))

    def count(self, name: str) -> int:
        return sum(event == name for event, _ in self.events)


def wait_for(look: Callable[[], Any]) -> Any:
    """What ``look`` finds, asked again until it is true. Fails after a minute, which only a defect takes."""
    for _ in range(6000):
        if found := look():
            return found
        time.sleep(0.01)
    raise AssertionError("waited a minute in vain")


class RawClient:
    """Speaks the protocol by hand, right or wrong."""

    def __init__(self, endpoint: str, *, hello: bool = True, deaf: bool = False) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        if deaf:  # set before it connects: what it does not read is soon in the daemon's way
            self.socket.rcvhwm, self.socket.rcvbuf = 1, 4096
        self.socket.connect(endpoint)
        self.connection = Counter(CONNECTION)
        if hello:
            self.socket.send_multipart(self.connection.control(Kind.HELLO, Hello("raw", "test", 1).to_body()))
            assert self.receive()[0].kind is Kind.WELCOME

    def send(self, parts: list[Any]) -> None:
        self.socket.send_multipart(parts)

    def receive(self) -> tuple[Header, list[bytes]]:
        """The next message that is no heartbeat."""
        while True:
            assert self.socket.poll(30_000), "the daemon said nothing"
            first, *parts = self.socket.recv_multipart()
            header = decode_header(first)
            if header.kind is not Kind.HEARTBEAT:
                return header, parts

    def receive_error(self, *, until: bool = False) -> tuple[Header, dict[str, Any]]:
        """The next message, which must be an ERROR; with ``until``, acks before it are skipped."""
        header, parts = self.receive()
        while until and header.kind is Kind.ACK:
            header, parts = self.receive()
        assert header.kind is Kind.ERROR, header
        return header, decode_control(parts[0])

    def open(self, name: str, spec: ArraySpec, transport: str = "message") -> tuple[Counter, dict[str, Any]]:
        body = {"request": 1, "name": name, "spec": spec.model_dump(mode="json"), "stream": None, "transport": transport}
        self.send(self.connection.control(Kind.OPEN, body))
        header, parts = self.receive()
        assert header.kind is Kind.OPENED, parts
        return Counter(header.session), decode_control(parts[0])

    def close(self) -> None:
        self._context.destroy(linger=0)


def make_spec(count: int | None = None, shape: tuple[int, int] = (8, 12), dtype: str = "uint16", chunk: int = 2) -> ArraySpec:
    return ArraySpec(
        dtype=dtype,
        dimensions=[
            Dimension(name="t", count=count, chunk_size=chunk, shard_size_chunks=2),
            Dimension(name="y", count=shape[0], chunk_size=shape[0]),
            Dimension(name="x", count=shape[1], chunk_size=shape[1]),
        ],
    )


def make_frames(count: int, shape: tuple[int, int] = (8, 12), dtype: str = "uint16") -> np.ndarray:
    return np.random.default_rng(1).integers(1, 200, (count, *shape)).astype(dtype)


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(2)
    pool.start()
    yield pool
    pool.stop()


@pytest.fixture
def start(tmp_path: Path, pool: WorkerPool) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons; stops them at the end, and fails when one had died."""
    daemons: list[Daemon] = []

    def start(*streams: StreamPolicy, **changes: Any) -> Daemon:
        root = tmp_path / f"d{len(daemons)}"
        daemons.append(Daemon(root, pool, streams, **changes))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def raw() -> Iterator[Callable[..., RawClient]]:
    clients: list[RawClient] = []

    def connect(endpoint: str, **options: Any) -> RawClient:
        clients.append(RawClient(endpoint, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def double() -> type[AcquisitionDouble]:
    """A fresh class, so that a test may set what it does."""
    return type("Double", (AcquisitionDouble,), {})


@pytest.fixture
def spec_of() -> Callable[..., ArraySpec]:
    return make_spec


@pytest.fixture
def frames_of() -> Callable[..., np.ndarray]:
    return make_frames


@pytest.fixture
def wait() -> Callable[[Callable[[], Any]], Any]:
    return wait_for
