"""A session: one acquisition and the client that holds its lease, if any. It acts on the client's messages
and sends what the acquisition reports.

The table in wire/session_tables.py decides what an event means in each state; this class acts on the verdict.
It never blocks and touches no socket. It begins without a client and outlives each of them until the
acquisition has ended. Each open, resume or reopen makes a new lease: messages of an older one no longer find
a session.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.limits import message_overhead_bytes
from shardwright.array.acquisition_spec import parse_image
from shardwright.array.frame_check import checked_update
from shardwright.array.metadata_update import OME, MetadataUpdate
from shardwright.model.disk_full import DISK_FULL
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    ClosedError,
    MetadataError,
    OverloadError,
    ProtocolError,
    SessionLostError,
    ShardwrightError,
    SpecError,
    UnknownImageError,
)
from shardwright.model.names import acquisition_name
from shardwright.wire.controls import (
    MAX_UPDATES,
    AddImage,
    Finish,
    FlushTo,
    Opened,
    Problem,
    Update,
    Updated,
    Visible,
)
from shardwright.wire.messages import Counter, Header, Kind, Level, ack_ranges, decode_batch, decode_control
from shardwright.wire.session_tables import DAEMON_TABLE, DaemonEvent, DaemonState, Verdict, step

from .account import account, described
from .credit import Credit, check_content
from .frame_preview import PreviewTap
from .totals import AcquisitionTotals, FrameRate
from .transport.inbound_byte_limit import FRAME_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import numpy.typing as npt

    from shardwright.acquire.acquisition import Acquisition
    from shardwright.acquire.limits import Limits
    from shardwright.disk.ring import Ring
    from shardwright.model.promise import Promise
    from shardwright.model.receipt import Receipt, Watermark
    from shardwright.model.write_options import FlushLevel
    from shardwright.model.write_settings import WriteSettings
    from shardwright.wire.controls import Open

    from .transport.client_state import Client

    OnEvent = Callable[[str, Mapping[str, Any]], None]
    Send = Callable[["Client", list[bytes]], None]

MAX_KEPT_LOSSES = 1024  # ranges kept for a client that is away; the frame table has them all
MAX_RANGES = 1024  # of one ACK

_EVENT_OF_KIND = {
    Kind.FRAMES: DaemonEvent.FRAMES,
    Kind.FLUSH: DaemonEvent.FLUSH,
    Kind.FLUSH_TO: DaemonEvent.FLUSH,
    Kind.UPDATE: DaemonEvent.UPDATE,
    Kind.ADD_IMAGE: DaemonEvent.UPDATE,
    Kind.FINISH: DaemonEvent.FINISH,
}
_ASKED: dict[Kind, type[Update | AddImage | FlushTo]] = {
    Kind.UPDATE: Update,
    Kind.ADD_IMAGE: AddImage,
    Kind.FLUSH_TO: FlushTo,
}
_ATTACHED = (DaemonState.AWAIT_RING, DaemonState.RUNNING, DaemonState.FINISHING)


class Session:
    """Owned by the ingest thread. Other threads read numbers and set ``stop_asked``; a field of which that is
    true says so."""

    def __init__(
        self,
        acquisition: Acquisition,
        settings: WriteSettings,
        stream: str,
        *,
        recovered: bool,
        on_event: OnEvent,
        room_bytes: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """``room_bytes``: returns how much memory there is for more images."""
        self._room_bytes = room_bytes
        # Called from this thread alone, but while ``paused``. It outlives each client; ``_settle`` closes it.
        self.acquisition = acquisition
        # Those with which it was opened; after a restart, from its manifest. What OPENED promises to a client
        # holds for the next one too, though the configuration may have changed.
        self.settings = settings
        # Totals are kept by it, also after the end. A client that reopens the acquisition may name no other.
        self.stream = stream
        # A store that was being finished when its process died takes no more frames, whoever comes.
        self.state = DaemonState.FINISHING if acquisition.is_finishing else DaemonState.DETACHED
        self.lease: ClientLease | None = None  # None: no client is attached
        # The client that has it, or had it last: it counts against that user's acquisitions while it waits,
        # or a client could open any number by leaving each.
        self.client: Client | None = None
        # The token of the OPEN by which that client got it. The same OPEN may come again, when its answer was
        # lost with a connection, and must get this acquisition, not another.
        self.opening: str | None = None
        # Of this process's clock, which no step of the system's time moves: a client that is away has its
        # full time, also after a restart. ``detached_s`` means nothing while a client is attached.
        self.begun_s = self.detached_s = time.monotonic()
        # Written by ``Openings``, from the hand-over's begin to its end. Busy: one client at a time is
        # prepared for. Paused: the opener thread records a new client in the acquisition, and this thread
        # must not touch it meanwhile.
        self.busy = self.paused = False
        self.stop_asked = False  # set by any thread, never reset
        self.armed_as: Open | None = None  # the request by which another program had armed it
        self.frames_received = 0  # by this process; read from any thread
        self._frames_in_all = acquisition.spec.total_frames
        self.frames_expected = self._frames_in_all  # None: nobody knows
        # Sampled for all sessions at once, also while no frame comes: it must fall to 0 then.
        self.rate = FrameRate(self.begun_s)
        self.preview = PreviewTap(acquisition.spec)  # costs a look at a flag until somebody asks
        self.reason: ErrorText | None = None  # why it ended early; None for a normal end
        # Not the lease's: pixels of a client that is gone are still read, and stay until they are released.
        self.credit = Credit(acquisition.limits.frame_bytes)
        # A recovered acquisition does not count against the budget until a client resumes it: else a daemon
        # with many unfinished stores could open nothing until all of them have ended.
        self._never_attached = recovered
        self._before = acquisition.receipt() if recovered else None  # totals are of this process alone
        # Called by ``tell`` alone, in this thread: an event that went out another way would not say which
        # acquisition it is of.
        self._on_event = on_event
        # Rings of earlier clients, freed once the last frame in them is stored. Never used again: a client
        # that the daemon takes for dead may still write there.
        self._old_rings: list[Ring] = []
        # Claims are open at the end: a driver may write into the ring for as long as it likes, so it is freed
        # and no other acquisition gets its memory.
        self._ring_is_written = False
        # Not told yet. Bounded, since the client may be away for long: the oldest go, and the frame table has
        # them all.
        self._losses: deque[tuple[int, int, ErrorText]] = deque(maxlen=MAX_KEPT_LOSSES)
        # The event of ``end_early``. It decides the last message, and that the ring's memory is freed: the
        # client did not ask for this end and may still copy a frame, which no other acquisition must get.
        self._ended_by: DaemonEvent | None = None
        # By its number at the acquisition: an update, or an image to add. Of the present client only: the
        # numbers by which two clients know theirs may be the same.
        self._updates: dict[int, Update | AddImage | FlushTo] = {}
        # Likewise what others than the client have asked for; each gets its answer, the watermark as of then.
        self._asked: dict[int, Promise[Watermark]] = {}

    @property
    def name(self) -> str:
        """The name by which clients know the acquisition."""
        return acquisition_name(self.acquisition.path.name)

    def tell(self, event: str, facts: Mapping[str, Any]) -> None:
        """Emits an event of this acquisition: the only way to, so that each says which one it is."""
        which = {"name": self.name, "stream": self.stream, "path": str(self.acquisition.path)}
        self._on_event(event, {**which, **facts})

    @property
    def ended(self) -> bool:
        return self.state is DaemonState.ENDED

    @property
    def memory_bytes(self) -> int:
        """Bytes that count against the budget; 0 for a recovered acquisition that no client has resumed."""
        if self._never_attached:
            return 0
        limits = self.acquisition.limits
        spare = limits.ring_bytes if self.lease is None else 0
        kept = sum(ring.ring_bytes for ring in self._old_rings) + self.credit.earlier_bytes()
        messages = message_overhead_bytes(
            self.credit.ring_slots, "message" if self.pixels_in_messages else "shm"
        )
        return (
            limits.acquisition_bytes
            + messages
            + _more_than_ring(limits, self.credit.ring_slots)
            + max(0, kept - spare)
        )

    @property
    def unclaimed_bytes(self) -> int:
        """Bytes of a recovered acquisition that no client has resumed; they do not count against the
        budget."""
        limits = self.acquisition.limits
        return limits.acquisition_bytes - limits.ring_bytes if self._never_attached else 0

    @property
    def pixels_in_messages(self) -> bool:
        """True while a client without a ring is attached."""
        return self.lease is not None and self.lease.ring is None

    @property
    def message_bytes(self) -> int:
        """The most bytes that its client can have on the way in messages, pixels or not."""
        pixels = self.acquisition.limits.frame_bytes if self.pixels_in_messages else 0
        json = self.acquisition.spec.frame_json_bytes
        return self.credit.ring_slots * (pixels + FRAME_OVERHEAD_BYTES + json)

    @property
    def ring_fill(self) -> float:
        """The part of its client's credit that is in use, 0 to 1. From any thread."""
        slots = self.credit.ring_slots
        return min(1.0, self.credit.frames_in_flight / slots) if slots else 0.0

    @property
    def bytes_received(self) -> int:
        """Pixel bytes that came to this process. From any thread."""
        return self.credit.frames_with_pixels * self.acquisition.limits.frame_bytes

    @property
    def why_ended(self) -> ErrorText | None:
        """The reason of its end; None when its client finished it."""
        return self.acquisition.why or self.reason

    def totals(self, receipt: Receipt) -> AcquisitionTotals:
        """The totals of the acquisition in this process. ``receipt``: as of now. From any thread."""
        acquisition = self.acquisition
        failed = acquisition.state is AcquisitionState.FAILED
        frame_bytes = acquisition.limits.frame_bytes
        if receipt.images and receipt.frames_stored:  # which may differ: on average
            frame_bytes = receipt.bytes_raw // receipt.frames_stored
        return AcquisitionTotals.of(
            receipt,
            self._before,
            failed=failed,
            bytes_received=self.bytes_received,
            frame_bytes=frame_bytes,
            measures=acquisition.measures,
        )

    def bytes_to_attach(self, ring_slots: int, transport: str) -> int:
        """Bytes that a client with so many slots adds to ``memory_bytes``."""
        limits = self.acquisition.limits
        messages = message_overhead_bytes(ring_slots, transport)
        if self._never_attached:
            return limits.acquisition_bytes + messages + _more_than_ring(limits, ring_slots)
        earlier = (
            sum(ring.ring_bytes for ring in self._old_rings)
            + self.credit.frames_in_flight * limits.frame_bytes
        )
        return messages + min(limits.ring_bytes, earlier)

    # Clients come and go
    # ----------------------------------------------------------------------------------------------------

    def attach(self, lease: ClientLease, request: Open) -> bool:
        """Attaches a client. Returns False if the acquisition can no longer be resumed; ``lease`` is then
        unused."""
        verdict, then = step(DAEMON_TABLE, self.state, DaemonEvent.ATTACHED)
        if verdict is Verdict.IGNORE:
            return False
        self._retire_ring()
        self._updates.clear()  # a client that comes back asks again
        self.lease, self.state, self._never_attached = lease, then, False
        self.client = lease.client
        self.frames_expected = request.frames_expected or self.frames_expected
        resume, limits, acquisition = request.resume, self.acquisition.limits, self.acquisition
        again: list[tuple[int, int]] = []
        released: list[tuple[int, int]] = []
        if resume is None:
            self.opening = request.opening
            self._write_off_missing()
            self.credit.begin(acquisition.next_sequence, limits.ring_frames)
            self._losses.clear()  # of an earlier client's frames
        else:
            again, released = self.credit.resume(
                resume.next_sequence, acquisition.missing(resume.next_sequence), resume.ring_slots
            )
        opened = Opened(
            request=request.request,
            path=str(acquisition.path),
            # a client of an earlier release refuses them, and none needs them
            spec=acquisition.spec.to_json(for_client=True),
            transport=request.transport,
            credit_bytes=self.credit.ring_slots * limits.frame_bytes,
            ring_slots=self.credit.ring_slots,
            slot_bytes=limits.frame_bytes,
            ring_token=lease.ring_token,
            acquisition=acquisition.identity,
            client_epoch=acquisition.client_epoch,
            next_sequence=self.credit.next_sequence,
            missing=tuple(again),
            # the client's part of ``degrade``
            overload="block" if self.settings.overload == "degrade" else self.settings.overload,
            durability=self.settings.durability,
            added_images=tuple(acquisition.spec.added_json(for_client=True)),
        )
        lease.send(Kind.OPENED, opened.to_body())
        lease.takes_visible = request.visible
        lease.acknowledge(released, 0, 0)
        if lease.ring is None:
            self._step(DaemonEvent.RING_TAKEN)
        return True

    def take_ring(self, token: str) -> Ring | None:
        """Returns the ring, once, for the right token."""
        if self.lease is None or not self.lease.is_ring_token(token):
            return None
        return self.lease.ring if self._step(DaemonEvent.RING_TAKEN) is Verdict.ACCEPT else None

    @property
    def waited_ms(self) -> float:
        """The time without a client; 0 while the acquisition has one, or one is being attached."""
        waits = self.state is DaemonState.DETACHED and not self.busy
        return (time.monotonic() - self.detached_s) * 1000 if waits else 0.0

    def lose_client(self, why: ErrorText) -> None:
        """Detaches a client that vanished: the acquisition stays open for it. An acquisition that was
        finished or has ended goes to its end without a client."""
        if self._step(DaemonEvent.LINK_LOST) is Verdict.ACCEPT:
            self.detached_s = time.monotonic()
            self._retire_ring()
            self.tell("acquisition_detached", {"reason": str(why)})

    def _retire_ring(self) -> None:
        """Keeps the ring as long as frames in it are needed; ``advance`` frees it."""
        if self.lease is not None and self.lease.ring is not None:
            self._old_rings.append(self.lease.ring)
        self.lease = None

    def _write_off_missing(self) -> None:
        """Settles frames that were sent once, were lost in a power cut, and will not come again."""
        if self.acquisition.state is AcquisitionState.OPEN:
            self.acquisition.settle_missing()

    def _step(self, event: DaemonEvent) -> Verdict:
        verdict, self.state = step(DAEMON_TABLE, self.state, event)
        return verdict

    # From the client
    # ----------------------------------------------------------------------------------------------------

    def receive(self, header: Header, body: memoryview, pixels: Sequence[memoryview]) -> None:
        """Acts on one message of this session, whose parts were checked against its header."""
        assert self.lease is not None, "messages are routed by the lease's token"
        first = self.credit.next_sequence
        frames = (first, first + header.count - 1) if header.kind is Kind.FRAMES else None
        try:
            self.lease.accept(header)
            if header.kind is Kind.ERROR:
                self.end_early(DaemonEvent.CLIENT_LEFT, Problem.from_body(decode_control(body)).error)
                return
            event = _EVENT_OF_KIND.get(header.kind, DaemonEvent.UNEXPECTED)
            verdict, then = step(DAEMON_TABLE, self.state, event)
            if verdict is Verdict.REFUSE:
                raise ProtocolError(
                    f"{header.kind.name} came out of turn",
                    expected="the order of PROTOCOL.md",
                    got=self.state.value,
                )
            if verdict is Verdict.IGNORE:
                return
            if event is DaemonEvent.FRAMES:
                self._take_frames(header, body, pixels)
            elif (asked := _ASKED.get(header.kind)) is not None:
                self._take_asked(asked.from_body(decode_control(body)))
            elif event is DaemonEvent.FLUSH:
                self.acquisition.flush(answered=False)  # its ACK is the answer; a client may send any number
            else:
                self._take_finish(Finish.from_body(decode_control(body)))
            self.state = then
        except ShardwrightError as error:
            self.end_early(DaemonEvent.VIOLATION, ErrorText.of(error), frames)

    def _take_frames(self, header: Header, body: memoryview, pixels: Sequence[memoryview]) -> None:
        """Takes all of the batch, or nothing of it and raises."""
        assert self.lease is not None
        acquisition = self.acquisition
        batch = decode_batch(
            header, body, len(acquisition.spec.frame_fields), acquisition.spec.frame_json_bytes
        )
        check_content(batch, acquisition.spec)
        descriptors, addresses, again = self.credit.take(batch.descriptors, pixels, self.lease.ring)
        self.frames_received += len(descriptors)
        if len(descriptors):
            acquisition.submit(descriptors, addresses)
            if self.preview.wanted:
                self.preview.take(descriptors, addresses)
        self.lease.acknowledge(again, 0, 0)

    def _take_asked(self, asked: Update | AddImage | FlushTo) -> None:
        """Begins an update, an image or a flush, or answers what is wrong with it: that never ends an
        acquisition."""
        try:
            _check_room(self._updates)
            if isinstance(asked, Update):
                request = self._update(asked.image, asked.attributes)
            elif isinstance(asked, AddImage):
                request = self.acquisition.add_image(parse_image(asked.image), self._room_bytes())
            else:
                request = self.acquisition.flush(asked.level)
        except (UnknownImageError, MetadataError, SpecError, ClosedError, OverloadError) as error:
            self._send(Kind.UPDATED, Updated(asked.request, ErrorText.of(error)).to_body())
        else:
            self._updates[request] = asked

    def _update(self, image: str | None, attributes: dict[str, Any]) -> int:
        spec = self.acquisition.spec
        number = None if image is None else spec.number_of(image)
        told = MetadataUpdate.of_json(attributes)
        given = {**told.attributes, **({OME: told.ome} if OME in attributes else {})}
        checked = checked_update(given, told.position, spec.array_of(number), told.remove)
        return self.acquisition.update_metadata(number, checked.to_json())

    def flush(self, level: FlushLevel, promise: Promise[Watermark]) -> None:
        """Flushes what has come so far, for a caller that is not its client. ``promise`` is kept once it is
        done, also by the end of the acquisition. Raises ``OverloadError``."""
        if self.ended:
            why = self.acquisition.why  # it failed
            promise.keep(self.watermark) if why is None else promise.fail(why)
        else:
            _check_room(self._asked)
            self._asked[self.acquisition.flush(level)] = promise

    def update_metadata(
        self, image: str | None, attributes: dict[str, Any], promise: Promise[Watermark]
    ) -> None:
        """Updates metadata as UPDATE does, likewise. Raises ``UnknownImageError``, ``MetadataError``,
        ``ClosedError``, ``OverloadError``."""
        _check_room(self._asked)
        self._asked[self._update(image, attributes)] = promise

    @property
    def watermark(self) -> Watermark:
        """The numbers of frames that are stored, durable and visible. From any thread."""
        return self.acquisition.watermark.of_frames(self.acquisition.spec.frame_places)

    def description(self) -> dict[str, Any]:
        """As of ``IngestServer.describe``. From any thread."""
        return described(self.acquisition.path, self.acquisition.spec, self.stream, self.shown_state)

    def account(self) -> dict[str, Any]:
        """As of ``IngestServer.account``. From any thread."""
        acquisition = self.acquisition
        failed = acquisition.state is AcquisitionState.FAILED
        state = ("failed" if failed else "ended") if self.ended else self.shown_state
        receipt = acquisition.receipt()
        return account(acquisition.path, self.stream, state, self.watermark, receipt, self.why_ended)

    @property
    def shown_state(self) -> str:
        """Its state, as people and programs see it. From any thread."""
        return DISK_FULL if self.acquisition.waits_for_disk else self.state.value

    def _answer_updates(self) -> None:
        for request, why in self.acquisition.take_updates():
            if (promise := self._asked.pop(request, None)) is not None:
                promise.fail(why) if why is not None else promise.keep(self.watermark)
            asked, images = self._updates.pop(request, None), None
            if isinstance(asked, AddImage) and why is None:
                spec = self.acquisition.spec
                images = tuple(spec.added_json(for_client=True, first=asked.known))
                self.preview.take_images(spec)
                if self.frames_expected == self._frames_in_all:
                    self.frames_expected = spec.total_frames
                self._frames_in_all = spec.total_frames
            if asked is not None:
                self._send(Kind.UPDATED, Updated(asked.request, why, images).to_body())

    def _take_finish(self, finish: Finish) -> None:
        if finish.frames != self.credit.next_sequence or not self.credit.all_came():
            raise ProtocolError(
                "FINISH counts other frames than those received",
                expected=f"{self.credit.next_sequence} frames",
                got=finish.frames,
            )
        self._ring_is_written |= finish.claimed > 0
        self.acquisition.finish(keep_empty=False, extent=finish.extent)

    # From the daemon
    # ----------------------------------------------------------------------------------------------------

    def end_early(self, event: DaemonEvent, why: ErrorText, frames: tuple[int, int] | None = None) -> None:
        """Ends the session early: what arrived is sealed. A violation is reported at once, a stop when
        everything is sealed."""
        verdict = self._step(event)
        if verdict is Verdict.IGNORE:
            return
        self.reason, self._ended_by = why, event
        self._write_off_missing()
        self.acquisition.finish(keep_empty=False)
        if verdict is Verdict.REFUSE or event is DaemonEvent.FAILED:
            first, last = frames or (None, None)
            receipt = self.acquisition.receipt() if event is DaemonEvent.FAILED else None
            self._send(
                Kind.ERROR, Problem(why, fatal=True, first=first, last=last, receipt=receipt).to_body()
            )

    def stop(self, *, on_request: bool = False) -> None:
        """Stops the session. ``on_request``: a user stopped this acquisition alone; else the daemon stops,
        and cannot wait for room on a full disk."""
        if on_request:
            why = ErrorText(
                SessionLostError, "the acquisition was stopped on request", hint="What arrived is sealed"
            )
        else:
            self.acquisition.wait_for_room_no_longer()
            why = ErrorText(
                SessionLostError,
                "the daemon is stopping",
                hint="What arrived is sealed; acquire again when it is back",
            )
        self.end_early(DaemonEvent.STOPPING, why)

    def time_out(self, patience_ms: int) -> None:
        """Ends the session because no client came back in time."""
        self.end_early(
            DaemonEvent.TIMED_OUT,
            ErrorText(SessionLostError, "no client came back", f"one within {patience_ms} ms"),
        )

    def advance(self) -> None:
        """One round: takes what the pipeline has finished and reports it to the client."""
        acquisition = self.acquisition
        acquisition.see_ring(self.credit.frames_in_flight, self.credit.ring_slots)
        released = self.credit.release(acquisition.poll(), acquisition.stored_watermark)
        # a draining session gets no credit for frames that would be dropped
        if self.lease is not None and self.state in _ATTACHED:
            self.lease.acknowledge(released, acquisition.stored_watermark, acquisition.durable_watermark)
            self.lease.tell_visible(acquisition)
        self._report_losses()
        self._answer_updates()
        for name, facts in acquisition.take_events():
            self.tell(name, facts)
        # without a client it waits for one that can receive the error
        there = self.lease is not None and self.state is not DaemonState.AWAIT_RING
        if (
            there
            and self.settings.on_duplicate == "fail"
            and (why := acquisition.take_duplicates()) is not None
        ):
            self.end_early(DaemonEvent.VIOLATION, why)
        for ring in [ring for ring in self._old_rings if not self.credit.holds(ring)]:
            self._old_rings.remove(ring)
            ring.free()
        if acquisition.state is AcquisitionState.FAILED:
            self.end_early(
                DaemonEvent.FAILED, self.why_ended or ErrorText(ShardwrightError, "the acquisition failed")
            )
        over = acquisition.state in (AcquisitionState.SEALED, AcquisitionState.FAILED)
        if over and acquisition.in_flight == 0 and self.credit.frames_in_flight == 0:
            self._settle()

    def _report_losses(self) -> None:
        self._losses.extend(loss for loss in self.acquisition.take_losses() if loss[1] >= self.credit.first)
        while self._losses and self.lease is not None:
            first, last, why = self._losses.popleft()
            self._send(Kind.ERROR, Problem(why, fatal=False, first=first, last=last).to_body())

    def _send(self, kind: Kind, body: dict[str, Any]) -> None:
        if self.lease is not None:
            self.lease.send(kind, body)

    def _settle(self) -> None:
        """Everything is sealed (or failed) and no worker needs its pixels: frees the memory and sends the
        client the last message."""
        receipt = self.acquisition.receipt()
        self.acquisition.close()
        if self.lease is not None and self.lease.ring is not None:
            ring = self.lease.ring
            # after an end that the client did not ask for, it may still be copying a frame
            ring.free() if self._ended_by is not None or self._ring_is_written else ring.close()
        if self._ended_by is DaemonEvent.STOPPING:
            why = self.why_ended or ErrorText(SessionLostError, "the daemon is stopping")
            self._send(Kind.ERROR, Problem(why, fatal=True, receipt=receipt).to_body())
        elif self.acquisition.state is AcquisitionState.SEALED:
            self._send(Kind.RECEIPT, {"receipt": receipt.to_dict()})
        self._step(DaemonEvent.SETTLED)


def _check_room(waiting: Collection[int]) -> None:
    if len(waiting) >= MAX_UPDATES:
        raise OverloadError(
            "too many updates of metadata at once",
            expected=f"at most {MAX_UPDATES} without an answer",
            hint="Wait for an answer, then ask again",
        )


def _more_than_ring(limits: Limits, ring_slots: int) -> int:
    """Bytes beyond the ring of today's configuration: a client that comes back after a restart keeps its
    slots."""
    return max(0, ring_slots * limits.frame_bytes - limits.ring_bytes)


class ClientLease:
    """The part of a session that one client has, from OPENED until it goes: the token of its messages, its
    ring, the numbers of its messages, and what it was told. ``ring`` None: message transport. ``send`` takes
    a message for a client, and drops it when the client is gone."""

    def __init__(self, client: Client, ring: Ring | None, send: Send) -> None:
        # Not to be guessed, and of this lease alone: a message of another client, or of the same one over an
        # earlier connection, finds no session.
        self.token = secrets.randbits(63) | 1 << 63
        self.client = client
        self.ring = ring
        # The ring is handed over on another socket, where nothing else says who asks.
        self.ring_token = None if ring is None else secrets.token_hex(16)
        self._send = send
        self._counter = Counter(self.token)
        # Watermarks, so that an ACK says only what is new. From 0 at each lease: a resumed client may have
        # missed any of them.
        self._acknowledged = {Level.STORED: 0, Level.DURABLE: 0}
        self.takes_visible = False  # as its OPEN says
        # As of the last VISIBLE: what may have changed it, the frames, and those of each image.
        self._looked = (-1, -1)
        self._visible, self._visible_of = 0, dict[int, int]()

    def accept(self, header: Header) -> None:
        """Raises ``ProtocolError`` unless this is the very next message of this session."""
        self._counter.accept(header)

    def is_ring_token(self, token: str) -> bool:
        return self.ring_token is not None and secrets.compare_digest(token, self.ring_token)

    def send(self, kind: Kind, body: dict[str, Any]) -> None:
        """Sends a control message of this session."""
        self._send(self.client, self._counter.control(kind, body))

    def acknowledge(self, released: npt.ArrayLike, stored: int, durable: int) -> None:
        """Acknowledges released frames, as (first, last) pairs int64[n, 2], and both watermarks where they
        have moved."""
        acks = [ack_ranges(Level.RELEASED, released)]
        for level, watermark in ((Level.STORED, stored), (Level.DURABLE, durable)):
            if watermark > self._acknowledged[level]:
                acks.append(ack_ranges(level, (self._acknowledged[level], watermark - 1)))
                self._acknowledged[level] = watermark
        ranges = np.concatenate(acks)
        for start in range(0, len(ranges), MAX_RANGES):
            part = ranges[start : start + MAX_RANGES]
            self._send(self.client, self._counter.message(Kind.ACK, [part.tobytes()], count=len(part)))

    def tell_visible(self, acquisition: Acquisition) -> None:
        """Tells a client that wants to know how many frames readers of the files see, if there are more."""
        looked = acquisition.visible_changes, acquisition.stored_watermark
        if not self.takes_visible or looked == self._looked:
            return
        self._looked = looked
        images = {
            image: count
            for image, count in acquisition.visible_of_images().items()
            if count > self._visible_of.get(image, 0)
        }
        visible = acquisition.visible_watermark
        if visible > self._visible or images:
            self.send(Kind.VISIBLE, Visible(visible, images).to_body())
            self._visible = visible
            self._visible_of.update(images)
