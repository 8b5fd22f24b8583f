"""A daemon and a client in the middle of a conversation, without sockets, threads or disks: what is given to
them goes the way of a message."""

from __future__ import annotations

import errno
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import zmq
from tests.harness.ack_ranges import encode_ranges
from tests.harness.taken_slot import take_slot

from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.limits import Limits
from shardwright.acquire.measures import Measures
from shardwright.array.acquisition_spec import Image, parse_acquisition
from shardwright.array.grid import Grid
from shardwright.array.spec import ArraySpec, Dimension, parse_spec
from shardwright.client.frame_ring import FrameRing
from shardwright.client.link import Link
from shardwright.client.outbox import Outbox
from shardwright.codecs.degrade import DegradeLevel
from shardwright.config.model import Config, Memory, Output
from shardwright.ingest import IngestServer, StreamSettings
from shardwright.ingest.session import ClientLease, Session
from shardwright.ingest.transport.client_state import Client
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import LostFramesError, ShardwrightError
from shardwright.model.receipt import Receipt, Watermark
from shardwright.model.write_settings import WriteSettings
from shardwright.wire import handover
from shardwright.wire.controls import AddImage, Hello, Open, Opened, Problem, Resume, Update, Updated, Welcome
from shardwright.wire.descriptor import FRAME_DROPPED, FRAME_NOT_HELD, FRAME_SKIPPED, descriptor_dtype
from shardwright.wire.messages import (
    BATCH_PRELUDE,
    CONNECTION,
    DTYPE_CODE,
    Counter,
    Kind,
    Level,
    check_parts,
    decode_control,
    decode_header,
)

if TYPE_CHECKING:
    from random import Random

IDENTITY = "5a" * 16
RING_SLOTS = 16
SHAPE = (4, 6)
SPEC = ArraySpec(
    dtype="uint16",
    dimensions=[
        Dimension(name="t", count=100, chunk_size=2),
        Dimension(name="y", count=SHAPE[0], chunk_size=SHAPE[0]),
        Dimension(name="x", count=SHAPE[1], chunk_size=SHAPE[1]),
    ],
    frame_fields=("pressure", "laser_power"),
    frame_json_bytes=16,
)
RECORD = descriptor_dtype(2, 16)
LIMITS = Limits.derive(SPEC, threads=2, ring_frames=RING_SLOTS)
RECEIPT = Receipt("/data/a", *(range(1, 12)))
MISSING = [(2, 3), (5, 5)]
NEXT = 8  # the sequence of the first frame that is new after a resume


def frames_body(random: Random, first: int, count: int, *, shared: bool) -> tuple[bytes, np.ndarray]:
    """A valid batch; now and then some of its frames have no pixels."""
    records = np.zeros(count, RECORD)
    records["sequence"] = first + np.arange(count)
    records["position"] = records["frame_id"] = records["sequence"]
    records["json"] = [random.choice((b"", b'{"a":1}', '{"a":"µµ"}'.encode())) for _ in range(count)]
    if random.random() < 0.3:
        records["flags"] = [
            random.choice((0, 0, FRAME_DROPPED, FRAME_NOT_HELD, FRAME_SKIPPED)) for _ in range(count)
        ]
    with_pixels = records["flags"] == 0
    places = np.array(random.sample(range(RING_SLOTS), count)) if shared else np.cumsum(with_pixels) - 1
    records["slot"] = np.where(with_pixels, places, 0)
    return BATCH_PRELUDE.pack(DTYPE_CODE["uint16"], *SHAPE, 0) + records.tobytes(), with_pixels


class StrictAcquisition:
    """Takes what the session lets through, and asserts what the pipeline relies on."""

    why = None
    is_finishing = waits_for_disk = False
    stored_watermark = durable_watermark = in_flight = visible_changes = visible_watermark = 0
    watermark = Watermark(0, 0)
    client_epoch = 1
    identity = IDENTITY
    measures = Measures()
    slabs_used = 0
    degrade_level = DegradeLevel.CONFIGURED
    sealer_busy_s = 0.0

    def __init__(self) -> None:
        self.spec = parse_acquisition(SPEC)
        self.path, self.limits, self.grids, self.state = (
            Path("/data/a"),
            LIMITS,
            self.spec.grids,
            AcquisitionState.OPEN,
        )
        self.seen: set[int] = set(range(NEXT)) - {2, 3, 5}
        self.memory: list[tuple[int, int]] = []  # (address, bytes) that may be read
        self.updates = self.answered = 0

    next_sequence = 7

    def missing(self, stop: int) -> list[tuple[int, int]]:
        return MISSING

    def visible_of_images(self) -> dict[int, int]:
        return {}

    def settle_missing(self) -> None:
        pass

    def submit(self, descriptors: np.ndarray, addresses: np.ndarray) -> None:
        assert descriptors.dtype == RECORD
        for text in descriptors["json"].tolist():
            assert text.decode() == "" or text[:1] + text[-1:] == b"{}"
        sequences = descriptors["sequence"].tolist()
        assert not self.seen & set(sequences)
        self.seen.update(sequences)
        assert max(self.seen) < NEXT + 2000, "a sequence far ahead costs memory"
        for flags, position, address in zip(
            descriptors["flags"].tolist(), descriptors["position"].tolist(), addresses.tolist(), strict=True
        ):
            assert flags in (0, FRAME_DROPPED, FRAME_NOT_HELD, FRAME_SKIPPED)
            assert (-1 if flags == FRAME_NOT_HELD else 0) <= position < 100
            inside = any(
                start <= address and address + SPEC.frame_bytes <= start + nbytes
                for start, nbytes in self.memory
            )
            assert inside if flags == 0 else address == 0

    def see_ring(self, used_frames: int, ring_frames: int) -> None:
        assert used_frames >= 0

    def poll(self) -> np.ndarray:
        return np.zeros(0, np.int64)

    def take_losses(self) -> list[Any]:
        return []

    take_events = take_losses

    def update_metadata(self, image: int | None, attributes: dict[str, Any]) -> int:
        assert image is None
        assert "ome" not in attributes
        json.dumps(attributes, ensure_ascii=False, allow_nan=False).encode()
        self.updates += 1
        return self.updates

    def add_image(self, image: Image, room_bytes: int) -> int:
        assert isinstance(image, Image)
        assert image.path is None or not image.path.startswith((".", "/"))
        self.updates += 1
        return self.updates

    def take_updates(self) -> list[tuple[int, ErrorText | None]]:
        done, self.answered = self.answered, self.updates
        return [(number, None) for number in range(done + 1, self.updates + 1)]

    def flush(self, level: str = "durable", *, answered: bool = True) -> int:
        assert level in ("stored", "durable", "visible")
        self.updates += answered
        return self.updates

    def finish(self, *, keep_empty: bool = True, extent: str = "frames") -> None:
        assert extent in ("frames", "declared")
        self.state = AcquisitionState.FINISHING

    def receipt(self) -> Receipt:
        return RECEIPT

    def close(self) -> None:
        pass


class _NoGuard:
    """For a conversation without sockets: there is no connection to watch."""

    @staticmethod
    def welcome(descriptor: int) -> None:
        pass


class _Part:
    """A message's part, as far as ZeroMQ says which connection it came over: one without keys."""

    @staticmethod
    def get(property_: str | int) -> int:
        if property_ != zmq.SRCFD:
            raise zmq.ZMQError(errno.EINVAL)
        return 0


class DaemonSide:
    """A server with one client and one resumed session, over shared memory or messages in turn."""

    def __init__(self) -> None:
        root = Path(tempfile.gettempdir())
        settings = replace(
            Config(output=Output(root=root), memory=Memory(budget=8 << 30)).ingest_settings(None),
            streams=(StreamSettings("cam0", parse_acquisition(SPEC), None, WriteSettings()),),
            max_descriptors=1 << 20,
        )
        pool: Any = SimpleNamespace(threads=2)
        self._server = IngestServer(settings, pool)
        self._openings = self._server._openings
        self._server._connections.send = lambda client, parts: decode_header(parts[0])  # type: ignore[method-assign, assignment]
        self._server._connections._guard = cast("Any", _NoGuard)
        self._ring_memory = np.zeros((RING_SLOTS, *SHAPE), np.uint16)
        self._turn = 0

    def begin(self) -> None:
        self._turn += 1
        shared = self._turn % 2 == 0
        self._server._connections.by_identity.clear()
        for session in self._server._sessions:
            self._server._sessions.forget(session)
        self.client = Client(b"fuzz", Hello("fuzz", "here", 1), Counter(CONNECTION), 0.0)
        self._server._connections.by_identity[b"fuzz"] = self.client
        address = self._ring_memory.ctypes.data
        ring: Any = (
            SimpleNamespace(address=address, ring_bytes=self._ring_memory.nbytes, free=lambda: None)
            if shared
            else None
        )
        self._acquisition = StrictAcquisition()
        self._acquisition.memory = [(address, self._ring_memory.nbytes)] if shared else []
        self._session = Session(
            self._acquisition, WriteSettings(), "cam0", recovered=False, on_event=lambda name, facts: None
        )  # type: ignore[arg-type]
        self._server._sessions.add(self._session)
        lease = ClientLease(self.client, ring, lambda client, parts: None)
        resume = Resume(IDENTITY, 1, NEXT, RING_SLOTS)
        transport = "shm" if shared else "message"
        self._session.attach(lease, Open(1, "a", None, None, transport, resume))  # type: ignore[arg-type]
        self._server._sessions.attached(self._session, lease)
        if shared:
            self._session.take_ring(lease.ring_token or "")
        self._shared, self._token = shared, lease.token

    def message(self, random: Random) -> list[bytes]:
        """A valid one for where the conversation is."""
        session, connection = Counter(self._token), Counter(CONNECTION)
        spec = SPEC.model_dump(mode="json")
        match random.randrange(12):
            case 0:
                return connection.control(Kind.HELLO, Hello("fuzz", "here", 1).to_body())
            case 1:
                return connection.control(Kind.OPEN, Open(3, "b", spec, None, "message").to_body())
            case 2:
                return connection.control(
                    Kind.OPEN,
                    Open(3, "b", None, "cam0", "shm", Resume(IDENTITY, 1, NEXT, RING_SLOTS)).to_body(),
                )
            case 3:
                return connection.control(
                    Kind.ERROR,
                    Problem(ErrorText(LostFramesError, "x"), fatal=True, receipt=RECEIPT).to_body(),
                )
            case 4:
                update = Update(0, None, {"x": [1, "µ", None]}).to_body()
                return random.choice(
                    (
                        connection.control(Kind.HEARTBEAT),
                        session.control(Kind.FLUSH),
                        session.control(Kind.UPDATE, update),
                        session.control(
                            Kind.ADD_IMAGE,
                            AddImage(1, 1, {"name": "b", "array": spec, "position": {"x": 1.5}}).to_body(),
                        ),
                    )
                )
            case 5:
                return session.control(Kind.FINISH, {"frames": NEXT})
            case 6:
                return session.control(
                    Kind.ERROR, Problem(ErrorText(LostFramesError, "x"), fatal=True).to_body()
                )
            case 7:
                return [handover.encode_request(self._token, self._session.lease.ring_token or "00" * 16)]  # type: ignore[union-attr]
        first, count = random.choice(((0, 12), (2, 4), (0, 8), (2, 8)))
        body, with_pixels = frames_body(random, first, count, shared=self._shared)
        pixels = (
            []
            if self._shared or not with_pixels.any()
            else [bytes(SPEC.frame_bytes) * int(with_pixels.sum())]
        )
        nbytes = sum(map(len, pixels))
        return [
            *session.message(Kind.FRAMES, [body], count=count, pixel_parts=len(pixels), payload_bytes=nbytes),
            *pixels,
        ]

    def take(self, parts: list[bytes]) -> str:
        views = [memoryview(part) for part in parts]
        if not self._shared:
            self._acquisition.memory = [
                (np.frombuffer(part, np.uint8).ctypes.data, len(part)) for part in parts[2:] if part
            ]
        if parts[0][:4] == handover.MAGIC:
            return self._take_ring_request(parts[0])
        before = len(self._acquisition.seen)
        self._server._receive(b"fuzz", views, cast("zmq.Frame", _Part))
        self._session.advance()
        refused = self._admit()
        if refused is not None:
            return refused
        if not self._server._connections:
            return "connection given up"
        return (
            "frames taken"
            if len(self._acquisition.seen) > before
            else (f"session {self._session.state.value}")
        )

    def _take_ring_request(self, data: bytes) -> str:
        try:
            session, token = handover.decode_request(data)
        except ShardwrightError:
            return "ring request refused"
        return "ring given" if self._server._take_ring(session, token) is not None else "ring refused"

    def _admit(self) -> str | None:
        """What the opener would decide about an OPEN that was well-formed, up to the disk."""
        pending, self._openings._pending = self._openings._pending, []
        for each in pending:
            try:
                admission = self._openings._admission
                admission.admit(admission.plan(each.request), each.request, 0, 0, 0)
            except ShardwrightError:
                return "open refused"
            return "open admitted"
        return None


class ClientSide:
    """A link that was just resumed, with frames in flight."""

    def begin(self) -> None:
        self._welcome = Welcome(None, None, 1000, 10_000, 4000, 1 << 18, 1024, "fuzz", 60_000)
        facts: dict[str, Any] = SPEC.model_dump(mode="json")
        nbytes = SPEC.frame_bytes
        self._opened = Opened(
            1,
            "/data/a",
            facts,
            "message",
            RING_SLOTS * nbytes,
            RING_SLOTS,
            nbytes,
            None,
            IDENTITY,
            1,
            0,
            (),
            "block",
            "stored",
        )
        outbox = Outbox(
            slot_count=RING_SLOTS,
            batch_frames=4,
            check_position=Grid.of(SPEC).check_position,
            wake=lambda: None,
            descriptor=RECORD,
            overload="drop",
        )
        outbox.swap_ring(FrameRing.local(parse_acquisition(SPEC), RING_SLOTS))
        self._link = Link(
            Open(1, "a", None, None, "message"),
            7,
            self._opened,
            parse_acquisition(SPEC),
            self._welcome,
            outbox,
        )
        self._link.ready()
        self._link._asked[1] = AddImage(1, 1, {"name": "b"})  # whose answer may come
        for _ in range(10):
            begun = take_slot(outbox)
            assert begun.slots is not None
            outbox.add(outbox.ring, begun, None, -1, (*(math.nan,) * 7, b""))
        self._sent = list(self._link.outgoing())
        assert len(self._sent) == 2
        self._opened = Opened(**{**self._opened.__dict__, "next_sequence": 8, "missing": ((2, 3), (5, 5))})
        self._link.detach()
        self._link.resumed(9, self._opened, self._welcome)

    def message(self, random: Random) -> list[bytes]:
        session, connection = Counter(9), Counter(CONNECTION)
        match random.randrange(9):
            case 0:
                return connection.control(Kind.WELCOME, self._welcome.to_body())
            case 1:
                return session.control(Kind.OPENED, self._opened.to_body())
            case 2:
                answer = Updated(0, ErrorText(LostFramesError, "x")).to_body()
                receipt = session.control(Kind.RECEIPT, {"receipt": RECEIPT.to_dict()})
                added = Updated(1, None, ("b", {"name": "c", "path": "d/e"})).to_body()
                updated = (session.control(Kind.UPDATED, body) for body in (answer, added))
                return random.choice((receipt, *updated))
            case 3:
                return session.control(
                    Kind.ERROR,
                    Problem(ErrorText(LostFramesError, "x"), fatal=False, first=0, last=3).to_body(),
                )
            case 4:
                return session.control(
                    Kind.ERROR,
                    Problem(ErrorText(LostFramesError, "x"), fatal=True, receipt=RECEIPT).to_body(),
                )
            case 5:
                return [handover.encode_answer(handover.GIVEN, 4096)]
        ranges = [(Level.RELEASED, 0, 1), (Level.RELEASED, 6, 7), (Level.STORED, 0, 4), (Level.DURABLE, 0, 2)]
        return session.message(Kind.ACK, [encode_ranges(ranges)], count=len(ranges))

    def take(self, parts: list[bytes]) -> str:
        if parts[0][:4] == handover.MAGIC:
            try:
                return f"ring of {handover.decode_answer(parts[0]) > 0}"
            except ShardwrightError:
                return "no ring"
        try:
            header = decode_header(parts[0])
            check_parts(header, [len(part) for part in parts[1:]])
            body = parts[1] if len(parts) > 1 else b""
            if header.session == CONNECTION:
                Counter(CONNECTION).accept(header)
                Welcome.from_body(decode_control(body)) if header.kind is Kind.WELCOME else Problem.from_body(
                    decode_control(body)
                )
                return "connection"
            if header.kind is Kind.OPENED:
                opened = Opened.from_body(decode_control(body))
                parse_spec(opened.spec)
        except ShardwrightError:
            return "refused"
        self._link.receive(header, body)
        self._link.ready()
        for message in self._link.outgoing():
            check_parts(decode_header(message[0]), [len(part) for part in message[1:]])
        assert len(self._link.outbox._queue.free) <= RING_SLOTS
        assert len(set(self._link.outbox._queue.free)) == len(self._link.outbox._queue.free)
        return self._link.state.value
