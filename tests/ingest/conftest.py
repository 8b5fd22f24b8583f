"""A running ingest server for each test, with the real pipeline or with a double that can hold frames back
and fail on demand."""

from __future__ import annotations

import ctypes
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import zmq
from tests.harness.ingest_daemon import IngestDaemon
from tests.harness.json_process import TIMEOUT_S, wait_for

from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.measures import Measures
from shardwright.acquire.workers import WorkerPool
from shardwright.array.acquisition_spec import AcquisitionSpec, parse_acquisition
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.codecs.degrade import DegradeLevel
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import OutputExistsError, ResumeError, ShardwrightError
from shardwright.model.receipt import COUNTS, Receipt, Watermark
from shardwright.wire.controls import Hello
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_DROPPED, FRAME_NOT_HELD, not_held
from shardwright.wire.in_flight import ranges_of, without
from shardwright.wire.messages import CONNECTION, Counter, Header, Kind, decode_control, decode_header

from .proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardwright.array.acquisition_spec import Image
    from shardwright.ingest import StreamSettings
    from shardwright.model.write_options import Extent, FlushLevel


@dataclass
class Disk:
    """What a killed daemon leaves of an acquisition, and what a sealed one holds."""

    spec: ArraySpec
    identity: str = field(default_factory=lambda: secrets.token_hex(16))
    client_epoch: int = 1
    frames: dict[int, bytes] = field(default_factory=dict)  # by position
    place_of: dict[int, int] = field(default_factory=dict)  # stored sequence -> position, or minus its flags
    sealed: bool = False


class AcquisitionDouble:
    """Keeps frames in memory. ``holding``: releases nothing. ``error_after``: fails once so many frames have
    come. ``hold_seal``: never sealed.

    A frame is stored when its pixels are released; what was not is lost when the daemon is killed. Its
    methods are called as those of ``Acquisition`` are, which a test holds it to.
    """

    holding = False
    hold_seal = False
    error_after: int | None = None
    disks: ClassVar[dict[Path, Disk]]
    is_finishing = False
    waits_for_room = True
    waits_for_disk = False
    left_to_recovery = False
    slabs_used = 0
    degrade_level = DegradeLevel.CONFIGURED
    sealer_busy_s = 0.0

    def __init__(
        self,
        path: Path,
        spec: ArraySpec,
        limits: Any,
        pool: Any,
        wake: Callable[[], None],
        settings: Any,
        disk: Disk | None = None,
        *,
        stream: str | None = None,
        frames_expected: int | None = None,
    ) -> None:
        if disk is None:
            if path.exists():
                raise OutputExistsError("the output exists", got=str(path))
            path.mkdir()
            disk = Disk(spec)
        spec = parse_acquisition(spec)
        self.path, self.spec, self.limits, self.grids, self.wake, self.settings = (
            path,
            spec,
            limits,
            spec.grids,
            wake,
            settings,
        )
        self.state, self.why, self.measures = AcquisitionState.OPEN, None, Measures()
        self.disk = self.disks[path] = disk
        self.descriptors: list[np.ndarray] = []
        self.submitted: list[int] = []
        self.ring_seen: list[tuple[int, int]] = []  # at each poll
        self.flushes = 0
        self.metadata: list[tuple[int | None, dict[str, Any]]] = []
        self.metadata_answered = 0
        self.update_error: ErrorText | None = None
        self.closed = False
        self.losses: list[tuple[int, int, ErrorText]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.duplicates: ErrorText | None = None
        # sequence, position, address: read only when they are released
        self._pixels: list[tuple[int, int, int]] = []
        self._seen = set(disk.place_of)

    @classmethod
    def resume(
        cls,
        path: Path,
        pool: Any,
        wake: Callable[[], None],
        settings: Any,
        limits_of: Callable[[ArraySpec], Any],
        *,
        goes_on: bool = False,
    ) -> AcquisitionDouble:
        disk = cls.disks.get(path)
        if disk is None or disk.sealed:
            raise ResumeError("nothing unfinished", got=str(path))
        return cls(path, disk.spec, limits_of(disk.spec), pool, wake, settings, disk)

    @property
    def identity(self) -> str:
        return self.disk.identity

    def warn_below(self, low_water_bytes: int) -> None:
        self.settings = replace(self.settings, low_water_bytes=low_water_bytes)

    def wait_for_room_no_longer(self) -> None:
        self.waits_for_room = False

    @property
    def client_epoch(self) -> int:
        return self.disk.client_epoch

    @property
    def frames(self) -> dict[int, bytes]:
        return self.disk.frames

    @property
    def next_sequence(self) -> int:
        return max(self._seen, default=-1) + 1

    @property
    def stored_watermark(self) -> int:
        return next(s for s in range(len(self.disk.place_of) + 1) if s not in self.disk.place_of)

    durable_watermark = visible_watermark = stored_watermark
    visible_changes = 0

    def visible_of_images(self) -> dict[int, int]:
        return {}

    @property
    def watermark(self) -> Watermark:
        return Watermark(*[self.stored_watermark] * 3)

    @property
    def in_flight(self) -> int:
        return len(self._pixels)

    def missing(self, stop: int) -> list[tuple[int, int]]:
        come = np.array(sorted(s for s in self._seen if s < stop), np.int64)
        return without((0, stop - 1), ranges_of(come)) if stop else []

    def new_client(self, stream: str | None, frames_expected: int | None) -> int:
        self.disk.client_epoch += 1
        return self.disk.client_epoch

    def submit(self, descriptors: np.ndarray, addresses: np.ndarray) -> None:
        self.descriptors.append(descriptors)
        sequences = descriptors["sequence"].tolist()
        assert not self._seen & set(sequences), "the session drops what came before"
        self._seen.update(sequences)
        self.submitted += sequences
        told = descriptors["flags"] != 0
        assert not addresses[told].any()
        self.disk.place_of.update((int(d["sequence"]), -int(d["flags"])) for d in descriptors[told])
        kept = descriptors[~told]
        self._pixels += zip(
            kept["sequence"].tolist(), kept["position"].tolist(), addresses[~told].tolist(), strict=True
        )
        if self.error_after is not None and len(self._seen) >= self.error_after:
            self.state, self.why = (
                AcquisitionState.FAILED,
                ErrorText(ShardwrightError, "the disk of this test broke"),
            )
        self.wake()

    def see_ring(self, used_frames: int, ring_frames: int) -> None:
        self.ring_seen.append((used_frames, ring_frames))

    def poll(self) -> np.ndarray:
        if self.holding and self.state is AcquisitionState.OPEN:
            return np.zeros(0, np.int64)
        released, self._pixels = self._pixels, []
        for sequence, position, address in released:
            self.frames.setdefault(position, ctypes.string_at(address, self.limits.frame_bytes))
            self.disk.place_of[sequence] = position
        if self.state is AcquisitionState.FINISHING and not self.hold_seal:
            self.state = AcquisitionState.SEALED
            self.disk.sealed = True
        return np.array([sequence for sequence, _, _ in released], np.int64)

    def settle_missing(self) -> None:
        for first, last in self.missing(self.next_sequence):
            self.submit(not_held(first, last + 1 - first, DESCRIPTOR), np.zeros(last + 1 - first, np.int64))

    def flush(self, level: FlushLevel = "durable", *, answered: bool = True) -> int:
        self.flushes += 1
        return 0 if level == "durable" else self.update_metadata(None, {"flush": level})

    def finish(self, *, keep_empty: bool = True, extent: Extent = "frames") -> None:
        if self.state is AcquisitionState.OPEN:
            self.state = AcquisitionState.FINISHING
            self.wake()

    def update_metadata(self, image: int | None, attributes: dict[str, Any]) -> int:
        self.metadata.append((image, attributes))
        self.wake()
        return len(self.metadata)

    def add_image(self, image: Image, room_bytes: int) -> int:
        self.spec = self.spec.with_images((image,))
        return self.update_metadata(None, {"added": image.name, "room_bytes": room_bytes})

    def take_updates(self) -> list[tuple[int, ErrorText | None]]:
        done, self.metadata_answered = self.metadata_answered, len(self.metadata)
        return [(number, self.update_error) for number in range(done + 1, len(self.metadata) + 1)]

    def take_losses(self) -> list[tuple[int, int, ErrorText]]:
        return _taken(self.losses)

    def take_duplicates(self) -> ErrorText | None:
        duplicates, self.duplicates = self.duplicates, None
        return duplicates

    def take_events(self) -> list[tuple[str, dict[str, Any]]]:
        return _taken(self.events)

    def receipt(self) -> Receipt:
        facts: dict[str, Any] = dict.fromkeys(COUNTS, 0)
        places = list(self.disk.place_of.values())
        stored = sum(place >= 0 for place in places)
        unique = len(self.frames)
        facts |= {
            "path": str(self.path),
            "frames_received": len(self._seen),
            "frames_stored": unique,
            "frames_durable": unique,
        }
        facts |= {"frames_duplicate": stored - unique, "bytes_raw": unique * self.limits.frame_bytes}
        if "frames_dropped" in facts:
            facts |= {
                "frames_dropped": places.count(-FRAME_DROPPED),
                "frames_lost": places.count(-FRAME_NOT_HELD),
            }
        return Receipt(**facts)

    def close(self) -> None:
        assert self.state in (AcquisitionState.SEALED, AcquisitionState.FAILED)
        self.closed = True


def _taken(told: list[Any]) -> list[Any]:
    """A test may add to it meanwhile: the list stays the same one."""
    return [told.pop(0) for _ in range(len(told))]


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
            assert self.socket.poll(1000 * TIMEOUT_S), "the daemon said nothing"
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

    def ask_to_open(
        self,
        name: str,
        spec: ArraySpec | AcquisitionSpec | None,
        transport: str = "message",
        **more: Any,
    ) -> None:
        facts = spec.to_json() if isinstance(spec, AcquisitionSpec) else spec and spec.model_dump(mode="json")
        body = {"request": 1, "name": name, "spec": facts, "stream": None, "transport": transport, **more}
        self.send(self.connection.control(Kind.OPEN, body))

    def open(
        self, name: str, spec: ArraySpec | None, transport: str = "message", **more: Any
    ) -> tuple[Counter, dict[str, Any]]:
        """``more``: resume or reopen."""
        self.ask_to_open(name, spec, transport, **more)
        header, parts = self.receive()
        assert header.kind is Kind.OPENED, parts
        return Counter(header.session), decode_control(parts[0])

    def close(self) -> None:
        self._context.destroy(linger=0)


def make_spec(
    count: int | None = None,
    shape: tuple[int, int] = (8, 12),
    dtype: str = "uint16",
    chunk: int = 2,
    shard: int = 2,
) -> ArraySpec:
    return ArraySpec(
        dtype=dtype,
        dimensions=[
            Dimension(name="t", count=count, chunk_size=chunk, shard_size_chunks=shard),
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
def start(tmp_path: Path, pool: WorkerPool) -> Iterator[Callable[..., IngestDaemon]]:
    """Starts daemons; stops them at the end, and fails when one had died."""
    daemons: list[IngestDaemon] = []

    def start(*streams: StreamSettings, root: Path | None = None, **changes: Any) -> IngestDaemon:
        streams = tuple(replace(stream, spec=parse_acquisition(stream.spec)) for stream in streams)
        daemons.append(IngestDaemon(root or tmp_path / f"d{len(daemons)}", pool, streams, **changes))
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
def proxy() -> Iterator[Callable[[str], Proxy]]:
    """Makes links that can be cut."""
    proxies: list[Proxy] = []

    def make(target: str) -> Proxy:
        proxies.append(Proxy(target))
        return proxies[-1]

    yield make
    for each in proxies:
        each.close()


@pytest.fixture
def double() -> type[AcquisitionDouble]:
    """A fresh class, so that a test may set what it does."""
    return type("Double", (AcquisitionDouble,), {"disks": {}})


@pytest.fixture
def spec_of() -> Callable[..., ArraySpec]:
    return make_spec


@pytest.fixture
def frames_of() -> Callable[..., np.ndarray]:
    return make_frames


@pytest.fixture
def wait() -> Callable[[Callable[[], Any]], Any]:
    return wait_for
