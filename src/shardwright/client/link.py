"""One session as the I/O thread sees it: what came from the daemon goes into the outbox, what the outbox holds becomes messages. No sockets here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import ProtocolError, ShardwrightError
from shardwright.wire.controls import Finish, Opened, Problem, receipt_from_body
from shardwright.wire.fields import mapping
from shardwright.wire.in_flight import InFlight
from shardwright.wire.messages import BATCH_PRELUDE, DTYPE_CODE, Counter, Header, Kind, Level, decode_control, decode_ranges
from shardwright.wire.session import CLIENT_TABLE, ClientEvent, ClientState, Verdict, step

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from shardwright.array.spec import ArraySpec
    from shardwright.wire.controls import Welcome

    from .frame_ring import FrameRing
    from .outbox import Outbox, SealedBatch

_EVENT_OF_KIND = {Kind.ACK: ClientEvent.ACK, Kind.RECEIPT: ClientEvent.RECEIPT, Kind.ERROR: ClientEvent.ERROR}


class Link:
    """Owned by the I/O thread, except ``ring``: the user's thread sets it once, before the first frame."""

    def __init__(self, session: int, opened: Opened, spec: ArraySpec, welcome: Welcome, outbox: Outbox) -> None:
        self.session = session
        self.opened = opened
        self.spec = spec
        self.outbox = outbox
        self.ring: FrameRing | None = None
        self.state = ClientState.TAKING_RING
        self.stored_frames = 0
        self.durable_frames = 0
        self._counter = Counter(session)
        self._in_flight = InFlight()
        self._run_frames = max(1, welcome.max_message_bytes // spec.frame_bytes)
        height, width = spec.frame_shape
        self._prelude = BATCH_PRELUDE.pack(DTYPE_CODE[spec.dtype], height, width, 0)

    @property
    def over(self) -> bool:
        return self.state in (ClientState.ENDED, ClientState.FAILED)

    # From the daemon ------------------------------------------------------------------------------------------------------------------------

    def receive(self, header: Header, body: bytes) -> list[bytes] | None:
        """Acts on one message of this session. Returns the ERROR to send back when the daemon broke the protocol."""
        try:
            self._counter.accept(header)
            event = _EVENT_OF_KIND.get(header.kind, ClientEvent.UNEXPECTED)
            if header.kind is Kind.OPENED and self.state is ClientState.TAKING_RING and header.sequence == 0:
                return None  # the message that made this link
            verdict, self.state = step(CLIENT_TABLE, self.state, event)
            if verdict is Verdict.REFUSE:
                raise ProtocolError(f"{header.kind.name} came out of turn", expected="the order of PROTOCOL.md")  # noqa: TRY301
            if verdict is Verdict.ACCEPT:
                self._act(event, body)
        except ProtocolError as error:
            self.end(ClientEvent.UNEXPECTED, error)
            return self._counter.control(Kind.ERROR, Problem(error, fatal=True).to_body())
        return None

    def _act(self, event: ClientEvent, body: bytes) -> None:
        if event is ClientEvent.ACK:
            for level, first, last in decode_ranges(body):
                self._acknowledge(level, first, last)
            return
        facts: dict[str, Any] = decode_control(body)
        if event is ClientEvent.RECEIPT:
            self.outbox.settle(receipt_from_body(mapping(facts, "receipt")))
            return
        problem = Problem.from_body(facts)
        if problem.receipt is not None:
            self.outbox.settle(problem.receipt)
        self.outbox.fail(problem.error)

    def _acknowledge(self, level: Level, first: int, last: int) -> None:
        if level is Level.RELEASED:
            self.outbox.release(self._in_flight.release(first, last).tolist())
        elif level is Level.STORED:
            self.stored_frames = last + 1
        else:
            self.durable_frames = last + 1

    def end(self, event: ClientEvent, error: ShardwrightError) -> None:
        """The session is over without a receipt: ``error`` says why."""
        _, self.state = step(CLIENT_TABLE, self.state, event)
        self.outbox.fail(error)

    # To the daemon --------------------------------------------------------------------------------------------------------------------------

    def outgoing(self) -> Iterator[list[Any]]:
        """The messages that are ready to be sent, pixels as memoryviews of the ring."""
        if self.ring is not None:
            _, self.state = step(CLIENT_TABLE, self.state, ClientEvent.READY)
        while self.state is ClientState.RUNNING and (batch := self.outbox.next_batch()) is not None:
            yield self._frames_message(batch)
        if self.state in (ClientState.RUNNING, ClientState.TAKING_RING) and (total := self.outbox.total_when_finished()) is not None:
            _, self.state = step(CLIENT_TABLE, self.state, ClientEvent.FINISH)
            yield self._counter.control(Kind.FINISH, Finish(total).to_body())

    def _frames_message(self, batch: SealedBatch) -> list[Any]:
        slots = np.array(batch.slots, np.uint32)
        self._in_flight.add(batch.first, slots)
        pixels = self._pixel_parts(slots) if self.opened.transport == "message" else []
        message: list[Any] = list(
            self._counter.message(
                Kind.FRAMES,
                [self._prelude + batch.descriptors],
                count=len(slots),
                pixel_parts=len(pixels),
                payload_bytes=sum(len(part) for part in pixels),
            )
        )
        return message + pixels

    def _pixel_parts(self, slots: npt.NDArray[np.uint32]) -> list[memoryview]:
        """One part for each run of neighbouring slots, cut where a part would grow beyond what the daemon takes."""
        assert self.ring is not None
        ends = [*(np.flatnonzero(np.diff(slots.astype(np.int64)) != 1) + 1).tolist(), len(slots)]
        parts: list[memoryview] = []
        start = 0
        for end in ends:
            firsts = range(start, end, self._run_frames)
            parts.extend(self.ring.run(int(slots[first]), min(self._run_frames, end - first)) for first in firsts)
            start = end
        return parts
