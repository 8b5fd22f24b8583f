"""One acquisition in the I/O thread: messages of the daemon update the outbox, and the outbox's frames become
messages. No sockets and no frames here.

A link outlives connections, as its outbox does. After a resume the frames that the daemon does not have are
sent again before anything new.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardwright.array.acquisition_spec import parse_acquisition, parse_image
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ProtocolError, ResumeError, SpecError, VersionError
from shardwright.wire.controls import (
    MAX_UPDATES,
    AddImage,
    Finish,
    FlushTo,
    Open,
    Opened,
    Problem,
    Resume,
    Update,
    Updated,
    Visible,
    mapping,
    receipt_from_body,
)
from shardwright.wire.in_flight import NO_SLOT
from shardwright.wire.messages import (
    BATCH_PRELUDE,
    DTYPE_CODE,
    Counter,
    Header,
    Kind,
    Level,
    decode_acks,
    decode_control,
)
from shardwright.wire.session_tables import CLIENT_TABLE, ClientEvent, ClientState, Verdict, step

from .outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.frame_admission import FrameAdmission
    from shardwright.model.errors import ShardwrightError
    from shardwright.wire.controls import Welcome

    from .frame_ring import FrameRing

_EVENT_OF_KIND = {
    Kind.ACK: ClientEvent.ACK,
    Kind.VISIBLE: ClientEvent.VISIBLE,
    Kind.UPDATED: ClientEvent.UPDATED,
    Kind.RECEIPT: ClientEvent.RECEIPT,
}
_OLD_DAEMON = ErrorText(VersionError, "the daemon that answers now is of an earlier release, without levels")
_KINDS: dict[type, Kind] = {Update: Kind.UPDATE, AddImage: Kind.ADD_IMAGE, FlushTo: Kind.FLUSH_TO}
MAX_LOSSES = 4096  # ranges that are kept for the user; the frame table has them all
BATCH_BYTES = 32 << 20  # of pixels: enough that the cost of a message is small


class Loss(NamedTuple):
    """Frames ``first`` to ``last``, counted over the acquisition, that the daemon could not keep."""

    first: int
    last: int
    why: ErrorText

    @property
    def error(self) -> ShardwrightError:
        """The error, a new one at each access."""
        return self.why.to_error()


class Link:
    """The link of one stream. Owned by the I/O thread; the user's threads read ``opened``, ``losses`` and
    ``reconnects``."""

    def __init__(
        self,
        request: Open,
        session: int,
        opened: Opened,
        spec: AcquisitionSpec,
        welcome: Welcome,
        outbox: Outbox,
    ) -> None:
        self.request = request  # the user's, from which each resumption is made
        # Replaced at each resume: messages of an earlier session find no link, so that what a broken
        # connection still delivers changes nothing.
        self.session = session
        self.opened = opened
        # Replaced by the I/O thread when images were added. Whoever places frames learns it from the thread,
        # before the call returns that has added one.
        self.spec = spec
        self.admission: FrameAdmission | None = None
        self.outbox = outbox
        self.state = ClientState.TAKING_RING
        # Read by the user's threads without a lock: to append to a deque, and to copy it, are one step each.
        self.losses: deque[Loss] = deque(maxlen=MAX_LOSSES)
        self.reconnects = 0
        # Over this connection. An acquisition that ended by its FINISH while the connection broke has ended
        # well: the daemon refuses to resume it, and that answer brings the receipt.
        self.finish_sent = False
        self._counter = Counter(session)
        # Releases that come while the ring is exchanged wait for its end. The ring's thread is copying the
        # slots of those frames: if one were free, a user could fill it, and the copy would overwrite it.
        self._early: list[npt.NDArray[np.uint64]] = []
        self._flushed = 0  # the sequence of the last FLUSH over this connection
        self._use(welcome)
        dtype, (height, width) = spec.slot_form
        self._prelude = BATCH_PRELUDE.pack(DTYPE_CODE[dtype], height, width, 0)

    def _use(self, welcome: Welcome) -> None:
        self._updates_sent = -1  # the last request over this connection
        # Requests over this connection. The outbox forgets one whose caller has given up, but the daemon
        # counts it until it has answered, and refuses more than ``MAX_UPDATES``.
        self._updates_unanswered: set[int] = set()
        # Images asked for over this connection, by request: also one whose caller has given up may be there.
        self._asked: dict[int, AddImage] = {}
        self.welcome = welcome  # read by the user's threads
        self.outbox.takes_levels = welcome.flush_levels
        self._run_frames = max(1, welcome.max_message_bytes // self.opened.slot_bytes)

    @property
    def over(self) -> bool:
        return self.state in (ClientState.ENDED, ClientState.FAILED)

    # Connections come and go
    # ----------------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """Detaches the link from a broken connection; frames that were not released are kept."""
        self._step(ClientEvent.LINK_DOWN)

    def resumption(self, request: int) -> Open:
        """Returns the OPEN that resumes this stream."""
        opened = self.opened
        resume = Resume(opened.acquisition, opened.client_epoch, self.outbox.sent_to, opened.ring_slots)
        # the name that the store got: the daemon may have numbered it
        name = PurePosixPath(opened.path).name
        return replace(self.request, request=request, name=name, spec=None, reopen=False, resume=resume)

    def resumed(self, session: int, opened: Opened, welcome: Welcome) -> None:
        """Attaches the link to a resumed session. Raises ``ResumeError`` when the daemon resumed something
        else."""
        ours, theirs = (
            [getattr(o, key) for key in ("acquisition", "client_epoch", "ring_slots", "slot_bytes")]
            for o in (self.opened, opened)
        )
        if ours != theirs or opened.next_sequence != self.outbox.sent_to:
            raise ResumeError(
                "the daemon resumed something else",
                expected=[*ours, self.outbox.sent_to],
                got=[*theirs, opened.next_sequence],
            )
        verdict = self._step(ClientEvent.RESUMED)
        if verdict is not Verdict.ACCEPT:
            return
        self.session, self.opened = session, opened
        self._counter = Counter(session)
        self._use(welcome)
        self.outbox.resume(opened.missing)
        self._early.clear()
        self._flushed = 0
        self.finish_sent = False
        self.reconnects += 1

    def ready(self) -> list[bytes] | None:
        """Starts the link once its ring is ready, with every frame that was not released in its slot. Returns
        the ERROR to send when the daemon broke the protocol."""
        if self._step(ClientEvent.READY) is Verdict.ACCEPT:
            early, self._early = self._early, []
            try:
                for ranges in early:
                    self.outbox.release(ranges)
            except ProtocolError as error:
                return self.give_up(ErrorText.of(error), ClientEvent.UNEXPECTED)
        return None

    def _step(self, event: ClientEvent) -> Verdict:
        verdict, self.state = step(CLIENT_TABLE, self.state, event)
        return verdict

    # From the daemon
    # ----------------------------------------------------------------------------------------------------

    def receive(self, header: Header, body: bytes) -> list[bytes] | None:
        """Acts on one message of this session. Returns the ERROR to send back when the daemon broke the
        protocol."""
        try:
            self._counter.accept(header)
            if header.kind is Kind.OPENED and self.state is ClientState.TAKING_RING and header.sequence == 0:
                return None  # the message that made this link, or resumed it
            problem = Problem.from_body(decode_control(body)) if header.kind is Kind.ERROR else None
            event = _EVENT_OF_KIND.get(header.kind, ClientEvent.UNEXPECTED)
            if problem is not None:
                event = ClientEvent.ERROR if problem.fatal else ClientEvent.LOSS
            verdict = self._step(event)
            if verdict is Verdict.REFUSE:
                raise ProtocolError(  # noqa: TRY301
                    f"{header.kind.name} came out of turn", expected="the order of PROTOCOL.md"
                )
            if verdict is Verdict.ACCEPT:
                self._act(event, body, problem)
        except ProtocolError as error:
            return self.give_up(ErrorText.of(error), ClientEvent.UNEXPECTED)
        return None

    def _act(self, event: ClientEvent, body: bytes, problem: Problem | None) -> None:
        if event is ClientEvent.ACK:
            self._acknowledge(decode_acks(body))
        elif event is ClientEvent.VISIBLE:
            visible = Visible.from_body(decode_control(body))
            names = self.spec.names
            images = {names[image]: count for image, count in visible.images.items() if image < len(names)}
            self.outbox.see(visible.frames, images)
        elif event is ClientEvent.RECEIPT:
            self.outbox.settle(receipt_from_body(mapping(decode_control(body), "receipt")))
        elif event is ClientEvent.UPDATED:
            answer = Updated.from_body(decode_control(body))
            self._updates_unanswered.discard(answer.request)
            if answer.images and (asked := self._asked.pop(answer.request, None)) is not None:
                self._take_images(asked.known, answer.images)
            self.outbox.updated(answer)
        elif event is ClientEvent.LOSS:
            assert problem is not None
            if problem.first is not None and problem.last is not None:
                places = self.spec.frame_places
                loss = Loss(problem.first // places, problem.last // places, problem.error)
                if places == 1 or loss not in self.losses:  # the channels of a frame are lost one by one
                    self.losses.append(loss)
        else:
            assert problem is not None
            self.outbox.fail(problem.error, problem.receipt)

    def _take_images(self, first: int, images: tuple[Any, ...]) -> None:
        """Learns of images with the numbers from ``first`` on. Raises ``ProtocolError`` for what cannot
        be."""
        names = self.spec.names
        if first > len(names):
            raise ProtocolError("images with other numbers than before", expected=len(names), got=first)
        try:
            new = [parse_image(facts) for facts in images[len(names) - first :]]
            spec = self.spec.with_images(new)
        except SpecError as error:
            raise ProtocolError("an image that cannot be", got=str(error)[:240]) from None
        if len(spec.names) != max(len(names), first + len(images)):
            raise ProtocolError("an image twice", got=images[-1])
        if spec.grids.slot_bytes != self.opened.slot_bytes:
            raise ProtocolError("an image whose frames fit no slot", expected=self.opened.slot_bytes)
        self.spec = spec
        self.outbox.take_images(spec.grids.held_frames)
        if self.admission is not None:
            self.admission.take_images(spec)

    def _acknowledge(self, acks: npt.NDArray[np.void]) -> None:
        stored, durable = (acks["last"][acks["level"] == level] for level in (Level.STORED, Level.DURABLE))
        if len(stored) or len(durable):
            self.outbox.advance_watermark(
                *(int(lasts[-1]) + 1 if len(lasts) else None for lasts in (stored, durable))
            )
        released = acks[acks["level"] == Level.RELEASED]
        if not len(released):
            return
        ranges = np.stack((released["first"], released["last"]), axis=1)
        if self.state is ClientState.TAKING_RING:
            self._early.append(ranges)
        else:
            self.outbox.release(ranges)

    def refused(self, problem: Problem) -> None:
        """Handles an error as the answer to a resumption. If everything had been finished, it brings the
        receipt that was missed, and stands for the acknowledgements that were."""
        if problem.receipt is not None and problem.error.code == "closed" and self.finish_sent:
            self.outbox.advance_watermark(self.outbox.sent_to, self.outbox.sent_to)
            self.outbox.settle(problem.receipt)
            self._step(ClientEvent.RECEIPT)
            return
        self.outbox.fail(problem.error, problem.receipt)
        self.end(ClientEvent.ERROR, problem.error)

    def give_up(self, why: ErrorText, event: ClientEvent = ClientEvent.ERROR) -> list[bytes]:
        """Ends the session from this side. Returns the ERROR to send to the daemon."""
        self.end(event, why)
        return self._counter.control(Kind.ERROR, Problem(why, fatal=True).to_body())

    def end(self, event: ClientEvent, why: ErrorText) -> None:
        """Ends the session without a receipt."""
        self._step(event)
        self.outbox.fail(why)

    # To the daemon
    # ----------------------------------------------------------------------------------------------------

    def outgoing(self) -> Iterator[list[Any]]:
        """Yields the messages that are ready to be sent, pixels as memoryviews of the ring."""
        while self.state is ClientState.RUNNING and (frames := self.outbox.next_frames()) is not None:
            yield self._message(*frames)
        if self.state is not ClientState.RUNNING or self.outbox.sends_again:
            return
        wanted = self.outbox.flush_wanted()
        if self._flushed < wanted <= self.outbox.sent_to:
            self._flushed = wanted
            yield self._counter.message(Kind.FLUSH, [])
        for update in self.outbox.updates_behind(self._updates_sent):
            if len(self._updates_unanswered) >= MAX_UPDATES:
                return  # it and the end wait for an answer
            if isinstance(update, FlushTo):
                if not self.outbox.has_sent_frames_of(update):
                    return  # they go first
                if not self.welcome.flush_levels:  # the daemon before this one did
                    self.outbox.updated(Updated(update.request, _OLD_DAEMON))
                    continue
            self._updates_sent = update.request
            self._updates_unanswered.add(update.request)
            if isinstance(update, AddImage):
                self._asked[update.request] = update
            yield self._counter.control(_KINDS[type(update)], update.to_body())
        total = self.outbox.total_when_finished()
        if total is not None:
            self._step(ClientEvent.FINISH)
            self.finish_sent = True
            finish = Finish(total, self.outbox.claimed, self.outbox.extent)
            yield self._counter.control(Kind.FINISH, finish.to_body())

    def _message(self, slots: npt.NDArray[np.uint32], records: npt.NDArray[np.void]) -> list[Any]:
        with_pixels = slots != NO_SLOT
        shared = self.opened.transport == "shm"
        numbers = slots if shared else np.cumsum(with_pixels) - 1
        records["slot"] = np.where(with_pixels, numbers, 0)
        pixels = [] if shared else self._pixel_parts(slots[with_pixels])
        payload_bytes = sum(len(part) for part in pixels)
        body = self._prelude + records.tobytes()
        message: list[Any] = list(
            self._counter.message(
                Kind.FRAMES, [body], count=len(slots), pixel_parts=len(pixels), payload_bytes=payload_bytes
            )
        )
        return message + pixels

    def _pixel_parts(self, slots: npt.NDArray[np.uint32]) -> list[memoryview]:
        """Returns one part for each run of adjacent slots, split where a part would exceed the daemon's
        limit."""
        ring = self.outbox.ring
        assert ring is not None
        if len(slots) == 0:
            return []
        ends = [*(np.flatnonzero(np.diff(slots.astype(np.int64)) != 1) + 1).tolist(), len(slots)]
        parts: list[memoryview] = []
        start = 0
        for end in ends:
            firsts = range(start, end, self._run_frames)
            parts.extend(ring.run(int(slots[first]), min(self._run_frames, end - first)) for first in firsts)
            start = end
        return parts


def new_link(
    request: Open,
    session: int,
    opened: Opened,
    welcome: Welcome,
    *,
    wake: Callable[[], None],
    keep_ring: Callable[[FrameRing], None],
) -> Link:
    """Makes a link. ``wake`` wakes the I/O thread; ``keep_ring`` gets the ring when the stream has ended
    well. Raises ``ProtocolError``, or the error of the array."""
    spec = parse_acquisition(opened.spec).with_images(map(parse_image, opened.added_images))
    slot_bytes = spec.grids.slot_bytes
    if opened.slot_bytes != slot_bytes or opened.credit_bytes != opened.ring_slots * opened.slot_bytes:
        raise ProtocolError(
            "OPENED whose sizes contradict each other",
            expected=f"slots of {slot_bytes} bytes",
            got=opened,
        )
    outbox = Outbox(
        slot_count=opened.ring_slots,
        batch_frames=batch_frames(opened, welcome, spec.frame_places),
        check_position=spec.grids.grids[0].check_count,
        wake=wake,
        descriptor=spec.frame_descriptor,
        first_sequence=opened.next_sequence,
        overload=opened.overload,
        keep_ring=keep_ring,
        held_frames=spec.grids.held_frames,
        frame_places=spec.frame_places,
        message_frames=welcome.max_batch_frames,
    )
    return Link(request, session, opened, spec, welcome, outbox)


def batch_frames(opened: Opened, welcome: Welcome, frame_places: int) -> int:
    """The number of places in a batch: up to 32 MiB of pixels, at most a quarter of the ring (so that
    filling, sending, storing and release overlap). Of whole frames, so that one of colours is in one message,
    unless a daemon takes no message so long."""
    by_bytes = max(1, BATCH_BYTES // opened.slot_bytes)
    by_ring = max(1, opened.ring_slots // 4)
    most = min(by_bytes, by_ring, welcome.max_batch_frames, 1024)
    return max(frame_places, most // frame_places * frame_places)
