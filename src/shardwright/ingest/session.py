"""One client's session: what its messages do to its acquisition, and what the acquisition has to tell the client.

The table in wire/session.py decides what an event means in which state; this class acts on the verdict. It never blocks and touches no socket.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardwright.model.errors import ProtocolError, SessionLostError, ShardwrightError
from shardwright.pipeline.acquisition import AcquisitionState
from shardwright.wire.controls import Finish, Opened, Problem
from shardwright.wire.in_flight import InFlight, ranges_of
from shardwright.wire.messages import Counter, Header, Kind, Level, decode_batch, decode_control, encode_ranges
from shardwright.wire.session import DAEMON_TABLE, DaemonEvent, DaemonState, Verdict, step

from .batch import addresses_in_parts, check_content, check_ring_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from shardwright.array.grid import Grid
    from shardwright.model.receipt import Receipt
    from shardwright.storage.ring import Ring

    from .admission import Admitted

    Send = Callable[[list[bytes]], None]

MAX_RANGES = 1024  # of one ACK


class AcquisitionLike(Protocol):
    """What a session needs of ``pipeline.Acquisition``."""

    grid: Grid
    state: AcquisitionState
    error: ShardwrightError | None

    @property
    def stored_watermark(self) -> int: ...
    @property
    def durable_watermark(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    def submit(self, descriptors: npt.NDArray[Any], addresses: npt.NDArray[Any]) -> None: ...
    def poll(self) -> npt.NDArray[Any]: ...
    def finish(self) -> None: ...
    def receipt(self) -> Receipt: ...
    def close(self) -> None: ...


class Session:
    """Owned by the ingest thread. ``send`` takes a message for the client; it drops it when the client is gone."""

    def __init__(self, token: int, admitted: Admitted, acquisition: AcquisitionLike, ring: Ring | None, send: Send) -> None:
        self.token = token
        self.admitted = admitted
        self.acquisition = acquisition
        self.state = DaemonState.RUNNING if ring is None else DaemonState.AWAIT_RING
        self.frames_received = 0
        self.reason: ShardwrightError | None = None  # why it ended early; None for a normal end
        self._send = send
        self._counter = Counter(token)
        self._ring = ring
        self._ring_token = None if ring is None else secrets.token_hex(16)
        self._in_flight = InFlight()
        self._slot_in_flight = np.zeros(admitted.limits.ring_frames, np.bool_)
        self._told = {Level.STORED: 0, Level.DURABLE: 0}
        self._ended_by: DaemonEvent | None = None

    @property
    def ended(self) -> bool:
        return self.state is DaemonState.ENDED

    @property
    def frames_in_flight(self) -> int:
        return self._in_flight.frames

    # From the client ------------------------------------------------------------------------------------------------------------------------

    def say_opened(self) -> None:
        limits, admitted = self.admitted.limits, self.admitted
        opened = Opened(
            request=admitted.request.request,
            path=str(admitted.path),
            spec=admitted.spec.model_dump(mode="json"),
            transport="message" if self._ring is None else "shm",
            credit_bytes=limits.ring_frames * limits.frame_bytes,
            ring_slots=limits.ring_frames,
            slot_bytes=limits.frame_bytes,
            ring_token=self._ring_token,
            acquisition=getattr(self.acquisition, "identity", None) or secrets.token_hex(16),
            client_epoch=1,
            next_sequence=0,
            missing=(),
            overload=admitted.settings.overload,
            durability=admitted.settings.durability,
        )
        self._send(self._counter.control(Kind.OPENED, opened.to_body()))

    def take_ring(self, token: str) -> Ring | None:
        """The ring, once, for the right token."""
        if self._ring_token is None or not secrets.compare_digest(token, self._ring_token):
            return None
        verdict, self.state = step(DAEMON_TABLE, self.state, DaemonEvent.RING_TAKEN)
        return self._ring if verdict is Verdict.ACCEPT else None

    def receive(self, header: Header, body: memoryview, pixels: Sequence[memoryview]) -> None:
        """Acts on one message of this session, whose parts were checked against its header."""
        frames = (self.frames_received, self.frames_received + header.count - 1) if header.kind is Kind.FRAMES else None
        try:
            self._counter.accept(header)
            if header.kind is Kind.ERROR:
                problem = Problem.from_body(decode_control(body))
                self.end_early(DaemonEvent.CLIENT_LEFT, problem.error)
                return
            event = {Kind.FRAMES: DaemonEvent.FRAMES, Kind.FINISH: DaemonEvent.FINISH}.get(header.kind, DaemonEvent.UNEXPECTED)
            verdict, then = step(DAEMON_TABLE, self.state, event)
            if verdict is Verdict.REFUSE:
                raise ProtocolError(f"{header.kind.name} came out of turn", expected="the order of PROTOCOL.md", got=self.state.value)
            if verdict is Verdict.IGNORE:
                return
            if event is DaemonEvent.FRAMES:
                self._take_frames(header, body, pixels)
            else:
                self._take_finish(Finish.from_body(decode_control(body)))
            self.state = then
        except ShardwrightError as error:
            self.end_early(DaemonEvent.VIOLATION, error, frames)

    def _take_frames(self, header: Header, body: memoryview, pixels: Sequence[memoryview]) -> None:
        """All of the batch, or nothing of it and an error."""
        limits, count = self.admitted.limits, header.count
        batch = decode_batch(header, body, len(self.admitted.spec.frame_fields))
        check_content(batch, self.admitted.spec, self.acquisition.grid, self.frames_received)
        if self._in_flight.frames + count > limits.ring_frames:
            expected = f"at most {limits.ring_frames} frames in flight"
            raise ProtocolError("more frames than credit", expected=expected, got=self._in_flight.frames + count)
        slots = np.ascontiguousarray(batch.descriptors["slot"])
        if self._ring is None:
            addresses = addresses_in_parts(pixels, slots, limits.frame_bytes)
        else:
            if pixels:
                raise ProtocolError("pixels in a message of a shared-memory session", expected="no pixel parts", got=len(pixels))
            check_ring_slots(slots, self._slot_in_flight)
            addresses = self._ring.address + slots.astype(np.int64) * limits.frame_bytes
            self._slot_in_flight[slots] = True
        self._in_flight.add(self.frames_received, slots, keep=pixels)  # the message's memory lives until its last frame is released
        self.frames_received += count
        self.acquisition.submit(batch.descriptors, addresses)

    def _take_finish(self, finish: Finish) -> None:
        if finish.frames != self.frames_received:
            raise ProtocolError("FINISH does not count what came", expected=f"{self.frames_received} frames", got=finish.frames)
        self.acquisition.finish()

    # From the daemon ------------------------------------------------------------------------------------------------------------------------

    def end_early(self, event: DaemonEvent, error: ShardwrightError, frames: tuple[int, int] | None = None) -> None:
        """Ends the session before its time: what arrived is sealed. A violation is told at once, a stop when everything is sealed."""
        verdict, self.state = step(DAEMON_TABLE, self.state, event)
        if verdict is Verdict.IGNORE:
            return
        self.reason, self._ended_by = error, event
        self.acquisition.finish()
        if verdict is Verdict.REFUSE or event is DaemonEvent.FAILED:
            first, last = frames or (None, None)
            receipt = self.acquisition.receipt() if event is DaemonEvent.FAILED else None
            self._send(self._counter.control(Kind.ERROR, Problem(error, fatal=True, first=first, last=last, receipt=receipt).to_body()))

    def stop(self) -> None:
        self.end_early(DaemonEvent.STOPPING, SessionLostError("the daemon is stopping", hint="What arrived is sealed; acquire again when it is back"))

    def advance(self) -> None:
        """One round: takes what the pipeline has finished and tells the client."""
        acquisition = self.acquisition
        self._release(acquisition.poll())
        if acquisition.state is AcquisitionState.FAILED:
            self.end_early(DaemonEvent.FAILED, acquisition.error or ShardwrightError("the acquisition failed"))
        over = acquisition.state in (AcquisitionState.SEALED, AcquisitionState.FAILED)
        if over and acquisition.in_flight == 0 and self._in_flight.frames == 0:
            self._settle()

    def _release(self, sequences: npt.NDArray[Any]) -> None:
        acks: list[tuple[Level, int, int]] = []
        for first, last in ranges_of(sequences.astype(np.uint64)):
            self._slot_in_flight[self._in_flight.release(first, last)] = False
            acks.append((Level.RELEASED, first, last))
        for level, watermark in ((Level.STORED, self.acquisition.stored_watermark), (Level.DURABLE, self.acquisition.durable_watermark)):
            if watermark > self._told[level]:
                acks.append((level, self._told[level], watermark - 1))
                self._told[level] = watermark
        if self.state in (DaemonState.RUNNING, DaemonState.FINISHING):  # a draining session gets no credit for frames that would be dropped
            for start in range(0, len(acks), MAX_RANGES):
                part = acks[start : start + MAX_RANGES]
                self._send(self._counter.message(Kind.ACK, [encode_ranges(part)], count=len(part)))

    def _settle(self) -> None:
        """Everything is sealed (or failed) and no worker needs a pixel of ours: the memory goes, and the client hears its last word."""
        receipt = self.acquisition.receipt()
        self.acquisition.close()
        if self._ring is not None:
            self._ring.close()
        if self._ended_by is DaemonEvent.STOPPING:
            error = self.acquisition.error or self.reason or SessionLostError("the daemon is stopping")
            self._send(self._counter.control(Kind.ERROR, Problem(error, fatal=True, receipt=receipt).to_body()))
        elif self.acquisition.state is AcquisitionState.SEALED:
            self._send(self._counter.control(Kind.RECEIPT, {"receipt": receipt.to_dict()}))
        _, self.state = step(DAEMON_TABLE, self.state, DaemonEvent.SETTLED)
