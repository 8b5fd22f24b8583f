"""The side of a stream that the user's threads and the I/O thread share: who may take slots and numbers when,
what is asked of the daemon, and how the stream ended. Frames and slots themselves are the ``SendQueue``'s.

``_lock`` guards every field (``model/step_lock.py``); what only reads one field may do so without it.

    any number of the user's threads    ``take_slot``, ``take_slots``, ``claim_slot``, ``end_claim``,
                                        ``give_up``, ``add``, ``add_many``, ``drop``, ``drop_many``,
                                        ``flush``, ``update``, ``finish``, ``wait_for_end``
    any thread, at any moment           ``ask_to_finish``
    the ring's thread                   ``swap_ring``
    the I/O thread                      the rest

Pixels are copied outside the lock, or one thread's copy would hold up all others and the I/O thread. The only
I/O under it is the wake-up byte, which never blocks.
"""

from __future__ import annotations

import math
import sys
import time
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from shardwright.array.frame_claim import all_claimed
from shardwright.array.frame_order import Begun, FrameOrder
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    ClosedError,
    MetadataError,
    OverloadError,
    TimedOutError,
    VersionError,
)
from shardwright.model.progress_teller import ProgressTeller
from shardwright.model.receipt import Watermark
from shardwright.model.step_lock import StepLock
from shardwright.wire.controls import AddImage, FlushTo, Update
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_SKIPPED
from shardwright.wire.messages import encode_control

from .send_queue import CLAIMED, COPYING, HELD, SendQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from shardwright.array.frame_check import Columns
    from shardwright.model.progress_teller import OnProgress
    from shardwright.model.receipt import Receipt
    from shardwright.model.write_options import Extent, FlushLevel
    from shardwright.wire.controls import Overload, Updated

    from .frame_ring import FrameRing

    Addition = Begun[Callable[[], None]]  # frames, and later what adds them to the queue

Request = Update | AddImage | FlushTo
WAIT_S = 1.0  # of one wait; the state is checked again after it
_NO_SLOTS = np.zeros(0, np.int64)


def _was_added() -> None:
    """Adds a frame that was alone: does nothing, since its call has added it already."""


class Outbox:
    """The outbox of one stream. ``check_position`` checks a frame that is placed by its own count; ``wake``
    wakes the I/O thread. ``first_sequence`` is the stream's first. ``keep_ring`` gets the ring when the
    stream has ended well and no thread uses it any more; it may be called from any thread. ``held_frames``:
    the most that wait for the rest of their slab when frames come in order; a slot is not released before.
    ``frame_places``: the slots and sequences of each frame; sequences and slots are counted here, not frames.
    ``message_frames``: the most of these in one message, where that is less than a batch.
    """

    def __init__(
        self,
        *,
        slot_count: int,
        batch_frames: int,
        check_position: Callable[[int], int],
        wake: Callable[[], None],
        descriptor: np.dtype[np.void] = DESCRIPTOR,
        first_sequence: int = 0,
        overload: Overload = "block",
        keep_ring: Callable[[FrameRing], None] = lambda _: None,
        held_frames: int = 0,
        frame_places: int = 1,
        message_frames: int | None = None,
    ) -> None:
        # No plain lock: a signal's handler that appends would wait for the very call that it interrupts. Made
        # here, and in a forked child it refuses: the threads that release slots are the parent's.
        self._lock = StepLock("stream", hint="Close it: what came before is sealed")
        # Says which frames get the next numbers; each carries the call that adds it to ``_queue``. Pixels are
        # copied by several threads at once, and a short copy must not overtake a long one that began before.
        self._order: FrameOrder[Callable[[], None]] = FrameOrder()
        # The slots and numbers. Only steps of this class change them: it has no lock of its own.
        self._queue = SendQueue(
            slot_count,
            batch_frames,
            descriptor,
            first_sequence,
            check_position=check_position,
            wake=wake,
            frame_places=frame_places,
            message_frames=message_frames,
        )
        self._places = frame_places
        # With so many claims open, every other slot may hold a frame that waits for the rest of its slab,
        # and that for the claims: a wait for a slot would have no end. It raises instead.
        self._most_claimed = self._claims_beside(held_frames)
        # Written by the ring's thread (``swap_ring``) and at the end (``drop_ring``). A user's thread copies
        # without the lock, so ``add`` compares the ring that it copied into with this one.
        self._ring: FrameRing | None = None
        # These are set here and never again, so they are read without the lock.
        # Called under the lock, and by a finalizer without: it never blocks.
        self._wake = wake
        # As OPENED says, which may differ from what the client asked for: the daemon does its part of
        # ``degrade``, and the client's is to wait.
        self._overload = overload
        # Called without the lock, and only with a ring that nobody writes any more: the next stream's frames
        # lie in the same memory, since the first touch of fresh memory is dear.
        self._keep_ring = keep_ring
        # Not 0 where the acquisition has frames of an earlier client: ``frames`` counts those of this stream.
        self._first_sequence = first_sequence
        # Counted before they have their numbers, for which they may wait behind a longer copy: ``frames`` is
        # then too low for a moment. Counted afterwards it would be too high, and a user would trust it.
        self._dropped = 0
        # Sequences, from ACKs, which only the I/O thread brings. They are the daemon's words: a send that
        # returned means nothing, since a queue of ZeroMQ goes with its connection.
        self._stored = self._durable = self._visible = 0
        self._visible_of: dict[str, int] = {}  # by the image's name; replaced as a whole
        # The highest sequence that any flush waits for. It is never lowered: the I/O thread compares it with
        # ``_durable``, and says FLUSH again after a resume.
        self._flush_to = 0
        # Updates of metadata, and images to add, by request, until they are answered or their caller has
        # given up. A resume sends them again, since the daemon forgets those of an earlier connection.
        self._updates: dict[int, Request] = {}
        # By request of a flush: the sequence before which frames are to be sent before it.
        self._goals: dict[int, int] = {}
        # Of the daemon, as of the connection that there is: it takes FLUSH_TO. Written by the I/O thread.
        self.takes_levels = False
        self._answers: dict[int, ErrorText] = {}  # to those that the daemon refused: taken by their callers
        self._updates_asked = 0  # the next request
        self.extent: Extent = "frames"  # of FINISH; set before that
        # No call begins a frame any more. FINISH goes out once frames that had begun have their numbers.
        self._finishing = False
        # The one field that is written without the lock, which a finalizer may have interrupted. The I/O
        # thread turns it into ``_finishing``.
        self._finish_asked = False
        # Both may be there: an acquisition that failed has a receipt of what was sealed. OverloadError is no
        # end: frames that came before it are still sent, and the receipt follows. As text: an exception would
        # keep alive all that its call held.
        self._error: ErrorText | None = None
        self._receipt: Receipt | None = None
        self._teller: ProgressTeller | None = None  # what ends the stream ends it

    # The user's threads
    # ----------------------------------------------------------------------------------------------------

    @property
    def frames(self) -> int:
        """The number of frames added so far with their pixels."""
        return self._queue.next_sequence - self._first_sequence - self._dropped

    @property
    def claimed(self) -> int:
        """The number of open claims."""
        return self._queue.count(CLAIMED)

    @property
    def next_sequence(self) -> int:
        """The sequence of the frame that is added next."""
        return self._queue.next_sequence

    @property
    def frames_dropped(self) -> int:
        return self._dropped

    @property
    def ring(self) -> FrameRing | None:
        """The ring whose slots are filled now; a new one after the acquisition was resumed. None after the
        end."""
        return self._ring

    @property
    def watermark(self) -> Watermark:
        return Watermark(self._stored, self._durable, self._visible, self._visible_of)

    @property
    def error(self) -> ErrorText | None:
        """The error that ended the stream without a receipt, or beside one."""
        with self._lock.held:
            return self._error

    @property
    def receipt(self) -> Receipt | None:
        return self._receipt

    @property
    def is_over(self) -> bool:
        """True once there is a receipt, or an error in place of it."""
        return self._receipt is not None or (self._error is not None and not self._error.is_a(OverloadError))

    @property
    def is_forked(self) -> bool:
        return self._lock.is_forked

    def check_process(self) -> None:
        """As ``StepLock.check_process``."""
        self._lock.check_process()

    def check_open(self) -> None:
        """Raises ``ForkedError``, ``ClosedError``, or what ended the stream."""
        self._lock.check_process()
        self._check_open()

    def tell_progress(self, on_progress: OnProgress, total: Callable[[], int | None]) -> None:
        """Calls ``on_progress`` from now on, until the stream has ended. The caller keeps it alive."""
        # before: where no thread can be had no step of the stream fails
        teller = ProgressTeller(on_progress, lambda: self._stored // self._places, total)
        with self._lock.turn(also_broken=True), self._lock.anyway:
            self._teller = teller
            self._note_over()

    def take_slot(self, begun: Addition, *, counted: bool = False) -> None:
        """Begins the next frame, with a free slot: ``add``, ``drop`` or ``give_up`` follows. Where there is
        no slot the policy decides: it waits (the back-pressure), returns slots None (the frame is to be
        dropped), or raises ``OverloadError``, now and from now on. ``counted``: the frame has no place but
        its number; raises what ``check_position`` does."""
        with self._lock.turn(), self._lock:
            slot = None
            if self._wait_for_slots(begun, self._places, counted=counted):
                slot = self._queue.take_one(COPYING)
            self._order.begin(begun, get_ident(), slot, self._places)

    def claim_slot(self) -> tuple[int, FrameRing] | None:
        """As ``take_slot``, for a frame that is begun by ``end_claim``; with the ring in which the slot is
        filled."""
        with self._lock.turn(), self._lock:
            if not self._wait_for_slots(Begun(), self._places, counted=False):
                return None
            assert self._ring is not None, "an open stream has a ring"
            return self._queue.take_one(CLAIMED), self._ring

    def end_claim(self, begun: Addition, slot: int | None, *, counted: bool) -> None:
        """Begins the frame of a claimed slot (None: it is to be dropped), as ``take_slot``. Raises before."""
        with self._lock.turn(), self._lock:
            self._check_open()
            if counted:
                self._check_count(self._places)
            if slot is not None:
                self._queue.mark(slot, COPYING)
            self._order.begin(begun, get_ident(), slot, self._places)

    def give_back_claimed(self, slot: int | None) -> None:
        """Returns a claimed slot that was not used; None: the frame was to be dropped."""
        if slot is None:
            return
        with self._lock.turn(also_broken=True), self._lock.anyway:
            if self._lock.broken is None:  # else it may have ended in the step that was interrupted
                self._queue.give_back(slot)
                self._lock.changed.notify_all()

    def take_slots(self, begun: Addition, most: int, *, counted: bool = False) -> None:
        """Begins up to ``most`` frames, never more than a batch's, so that one batch is sent while the next
        is copied. As ``take_slot``; with an empty array of slots, for a batch of frames that are to be
        dropped."""
        with self._lock.turn(), self._lock:
            slots = _NO_SLOTS
            if self._wait_for_slots(begun, most, counted=counted):
                slots = self._queue.take(min(most, self._queue.batch_frames))
            self._order.begin(begun, get_ident(), slots, len(slots) or min(most, self._queue.batch_frames))

    def stand_in_line(self, stack: Addition, frames: int) -> None:
        """Keeps the frames of other threads waiting until ``leave_line``, which follows: those of ``stack``,
        which have no place, come first, though they take slots several times. Raises what ``check_position``
        does if there is no room for all."""
        thread = get_ident()
        with self._lock.turn(), self._lock:
            self._order.stand_in_line(stack, thread)
            while not self._order.is_next(thread):
                self._check_open()
                self._lock.wait(WAIT_S)
            self._check_count(frames)

    def leave_line(self, stack: Addition) -> None:
        with self._lock.turn(also_broken=True), self._lock.anyway:
            self._order.leave_line(stack)
            self._lock.changed.notify_all()

    def _check_count(self, frames: int) -> None:
        """Raises what ``check_position`` does if there is no room for so many more that have no place."""
        self._queue.check_position(self._queue.next_sequence + self._order.frames + frames - 1)

    def _wait_for_slots(self, begun: Addition, frames: int, *, counted: bool) -> bool:
        """Waits until at least one slot is free and it is the turn of this call; returns False when the frame
        is to be dropped. ``counted``: raises as ``_check_count``. Within a step."""
        self._check_open()
        if counted:
            self._check_count(frames)
        thread = get_ident()
        if self._queue.free and self._order.is_next(thread):
            return True
        self._order.stand_in_line(begun, thread)
        try:
            while not self._order.is_next(thread) or not (self._queue.free or self._drops()):
                self._lock.wait(WAIT_S)
                self._check_open()
        finally:
            self._order.leave_line(begun)
            if self._order.is_waiting:
                self._lock.changed.notify_all()
        if counted:
            self._check_count(frames)  # others came meanwhile
        return bool(self._queue.free)

    def _drops(self) -> bool:
        """Returns whether a frame is dropped since no slot is free; False: it waits. Within a step."""
        if self._queue.ends_with_pixels:
            # slots that were not sent are never released; a batch of dropped frames may wait for more of
            # them
            self._queue.seal()
        if self._overload == "drop":
            return True
        if (claimed := self._queue.count(CLAIMED)) and claimed >= self._most_claimed:
            raise all_claimed(claimed, self._queue.slot_count)
        if self._overload == "fail":
            hint = "Close the stream: the frames that it has sent are sealed"
            self._error = ErrorText(
                OverloadError,
                "the daemon could not keep up, and the overload policy of this stream is to fail",
                hint=hint,
            )
            self._raise_over()
        return False

    def give_up(self, begun: Addition) -> bool:
        """Ends frames whose call has failed; their slots are free again. Returns False if they were added
        before."""
        if not begun.serial:
            return True
        with self._lock.turn(also_broken=True), self._lock.anyway:
            if begun.facts is not None:
                return False
            if not begun.is_given_up:
                self._leave_order(begun)
            if begun.slots is not None:
                self._queue.give_back(begun.slots)
            self._lock.changed.notify_all()
        return True

    def add(
        self,
        ring: FrameRing | None,
        begun: Addition,
        position: int | None,
        frame_id: int,
        metadata: Columns,
    ) -> FrameRing | None:
        """Adds the complete frame in the slot of ``ring``. ``position`` None: its own count. ``metadata``:
        the known fields, then the array's own.

        Returns None, or the ring that replaced ``ring``: the frame must be copied there and added again.
        """
        with self._lock.turn(), self._lock:
            self._check_takes(begun)
            if ring is not self._ring:
                return self._ring
            slot = begun.slots
            # before it has a number, too: a ring that replaces this one gets a copy
            self._queue.mark(slot, HELD)
            if not self._finishing and self._order.complete_alone(begun, _was_added):
                self._queue.add(slot, position, frame_id, metadata)
            else:
                self._complete(begun, partial(self._queue.add, slot, position, frame_id, metadata))
        return None

    def add_many(
        self, ring: FrameRing | None, begun: Addition, records: npt.NDArray[np.void], *, counted: bool
    ) -> FrameRing | None:
        """Adds the frames in the slots, as ``add``, with a descriptor for each in ``records`` that lacks only
        sequence, flags and times. If ``counted``, each is placed by its own count. Raises before any is
        added."""
        with self._lock.turn(), self._lock:
            self._check_takes(begun)
            if ring is not self._ring:
                return self._ring
            slots = begun.slots
            self._queue.mark(slots, HELD)
            self._complete(begun, partial(self._queue.add_many, slots, records, counted=counted))
        return None

    def drop(self, begun: Addition, position: int | None, frame_id: int, metadata: Columns) -> None:
        """Adds a frame for which there was no slot: it is counted, and the daemon gets its descriptor."""
        with self._lock.turn(), self._lock:
            self._check_takes(begun)
            self._dropped += self._places
            self._complete(begun, partial(self._queue.add_dropped, position, frame_id, metadata))

    def drop_many(self, begun: Addition, records: npt.NDArray[np.void], *, counted: bool) -> None:
        """Drops as many frames as there are ``records``, which are those of ``add_many``, as ``drop``."""
        with self._lock.turn(), self._lock:
            self._check_takes(begun)
            self._dropped += len(records)
            self._complete(begun, partial(self._queue.add_many_dropped, records, counted=counted))

    def begin_skipped(self, begun: Addition, most: int, *, counted: bool) -> None:
        """As ``take_slots``, for places without a frame: waits until the daemon takes more descriptors."""
        thread = get_ident()
        with self._lock.turn(), self._lock:
            self._check_open()
            if counted:
                self._check_count(most)
            self._order.stand_in_line(begun, thread)
            try:
                while not self._order.is_next(thread) or self._queue.room_without_pixels < self._places:
                    self._queue.seal()  # descriptors that were not sent are never released
                    self._lock.wait(WAIT_S)
                    self._check_open()
            finally:
                self._order.leave_line(begun)
                self._lock.changed.notify_all()
            room = min(self._queue.batch_frames, self._queue.room_without_pixels)
            self._order.begin(begun, thread, _NO_SLOTS, min(most, room // self._places * self._places))

    def skip(self, begun: Addition, records: npt.NDArray[np.void], *, counted: bool) -> None:
        """Adds as many places without a frame as there are ``records``, which are those of ``add_many``."""
        with self._lock.turn(), self._lock:
            self._check_takes(begun)
            add = partial(self._queue.add_many, None, records, counted=counted, flags=FRAME_SKIPPED)
            self._complete(begun, add)

    def _complete(self, begun: Addition, add: Callable[[], None]) -> None:
        self._add_complete(self._order.complete(begun, add))

    def _add_complete(self, complete: list[Addition]) -> None:
        """Numbers frames, in their order. Within a step."""
        for begun in complete:
            assert begun.facts is not None, "they are complete"
            begun.facts()
        if self._finishing and not self._order.has_begun():
            self._queue.seal()
            self._wake()  # the end was waiting for them
        if len(complete) > 1 or self._order.has_begun():
            self._lock.changed.notify_all()  # a flush may wait for them

    def _leave_order(self, begun: Addition) -> None:
        """Gives up frames, and numbers those that waited for them. Within a step, also of a broken stream."""
        if self._lock.broken is not None:
            self._queue.seal()  # the batch that was being filled may be full, or sealed by half
        self._add_complete(self._order.give_up(begun))

    def _check_takes(self, begun: Addition) -> None:
        """Raises if a frame that was begun cannot be added any more; after ``finish`` of another thread it
        can."""
        if self._error is not None or begun.is_given_up:
            self._raise_over()

    def flush(self, level: FlushLevel, timeout_s: float | None) -> None:
        """Waits until everything added before has this level. Raises ``TimedOutError``, ``VisibilityError``,
        or what ended the session; ``VersionError`` for a daemon that does not know ``visible``."""
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock.turn(), self._lock:
            self._check_open()
            if level == "visible" and not self.takes_levels:
                raise VersionError(
                    "the daemon is of an earlier release, which does not tell what readers see",
                    hint="Upgrade it, or flush without a level: frames are then durable",
                )
            self._add_complete(self._order.let_pass(get_ident()))
            last = self._order.last_complete()
            while self._order.has_begun(last):  # their copies end by themselves
                self._lock.wait(WAIT_S)
                if self._error is not None:
                    self._raise_over()
            self._queue.seal()
            target = self._queue.next_sequence
            if level != "durable" and self.takes_levels:
                if getattr(self.watermark, level) < target:
                    self._goals[self._updates_asked] = target
                    make = partial(FlushTo, level=level)
                    self._ask_within(make, sys.maxsize, give_up_s, timeout_s)
                return
            self._flush_to = max(self._flush_to, target)
            self._wake()
            while (self._stored if level == "stored" else self._durable) < target:
                if self._receipt is not None and self._error is None:
                    return  # closed meanwhile: everything is sealed
                if self._error is not None:
                    self._raise_over()
                left_s = WAIT_S if give_up_s is None else give_up_s - time.monotonic()
                if left_s <= 0:
                    expected = f"{target} {level} frames within {timeout_s} s"
                    raise TimedOutError(
                        "the flush is not complete",
                        expected=expected,
                        got=getattr(self.watermark, level),
                        hint="The daemon continues; see .watermark",
                    )
                self._lock.wait(min(left_s, WAIT_S))

    def update(
        self, image: str | None, attributes: dict[str, Any], most_bytes: int, timeout_s: float | None
    ) -> None:
        """Waits until these metadata are durable. Raises ``MetadataError``, ``TimedOutError``, what the
        daemon answers, or what ended the session."""
        self._ask(lambda request: Update(request, image, attributes), most_bytes, timeout_s)

    def add_image(self, image: dict[str, Any], known: int, most_bytes: int, timeout_s: float | None) -> None:
        """Waits until this image is there. ``known``: how many the stream knows. Raises as ``update``."""
        self._ask(lambda request: AddImage(request, known, image), most_bytes, timeout_s)

    def _ask(self, make: Callable[[int], Request], most_bytes: int, timeout_s: float | None) -> None:
        """Waits for the answer to what ``make`` makes with the number of the request."""
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock.turn(), self._lock:
            self._check_open()
            self._ask_within(make, most_bytes, give_up_s, timeout_s)

    def _ask_within(
        self,
        make: Callable[[int], Request],
        most_bytes: int,
        give_up_s: float | None,
        timeout_s: float | None,
    ) -> None:
        """As ``_ask``, within a step."""
        update = make(self._updates_asked)
        if (length := len(encode_control(update.to_body()))) > most_bytes:
            raise MetadataError(
                "the metadata are too long for one message",
                expected=f"at most {most_bytes} bytes of JSON",
                got=f"{length} bytes",
                hint="Send them name by name",
            )
        self._updates_asked += 1
        self._updates[update.request] = update
        self._wake()
        try:
            while update.request in self._updates:
                if isinstance(update, FlushTo) and self._receipt is not None and self._error is None:
                    return  # closed meanwhile: everything is sealed
                if self._error is not None or self._receipt is not None:
                    self._raise_over()
                left_s = WAIT_S if give_up_s is None else give_up_s - time.monotonic()
                if left_s <= 0:
                    raise TimedOutError("the daemon has not done it yet", expected=f"within {timeout_s} s")
                self._lock.wait(min(left_s, WAIT_S))
        finally:
            self._updates.pop(update.request, None)
            self._goals.pop(update.request, None)
            why = self._answers.pop(update.request, None)
        if why is not None:
            raise why.to_error()

    def declare(self, extent: Extent) -> None:
        """Sets the extent of the arrays, unless the end has been asked for."""
        if not (self._finishing or self._finish_asked):
            self.extent = extent

    def finish(self) -> None:
        """Ends the stream: takes no more frames; those begun are sent, but for those of a call that this one
        has interrupted."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            for begun in self._order.unfinished_of(get_ident()):
                if begun.slots is not None:
                    # its copy may go on afterwards: until then the slot is no one's, as a claimed one
                    self._queue.mark(begun.slots, CLAIMED)
                self._leave_order(begun)
            self._finish()

    def ask_to_finish(self) -> None:
        """As ``finish``, soon. From any thread at any moment, also in the middle of a step."""
        self._finish_asked = True
        self._wake()

    def _finish(self) -> None:
        self._finishing = True
        self._queue.seal()
        self._lock.changed.notify_all()  # calls that wait for slots end
        self._wake()

    def wait_for_end(self, timeout_s: float | None = None) -> Receipt:
        """Waits for and returns the receipt, and for the last call of ``tell_progress``. Raises what ended
        the session instead, ``TimedOutError``."""
        try:
            return self._wait_for_receipt(timeout_s)
        finally:  # without the lock: the function may call the stream
            if self._teller is not None and self.is_over:
                self._teller.wait()

    def _wait_for_receipt(self, timeout_s: float | None) -> Receipt:
        give_up_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._lock.turn(also_broken=True), self._lock.anyway:
            while not self.is_over:
                self._wait_anyway(give_up_s)
            if self._error is not None and not self._error.is_a(OverloadError):
                self._raise_over()
            assert self._receipt is not None
            # another thread may still copy a late frame; after this the next stream may use the ring
            while self._queue.count(COPYING) and self._lock.broken is None:
                self._wait_anyway(give_up_s)
            if self._lock.broken is not None:
                raise self._lock.broken.to_error()
            return self._receipt

    def _wait_anyway(self, give_up_s: float) -> None:
        left_s = give_up_s - time.monotonic()
        if left_s <= 0:
            raise TimedOutError("the daemon has not ended the acquisition yet")
        self._lock.wait(min(WAIT_S, left_s), also_broken=True)

    @property
    def is_in_step(self) -> bool:
        """True if this thread was interrupted in the middle of a step: it must not wait for another one."""
        return self._lock.is_mine

    def _check_open(self) -> None:
        if self._error is not None or self._finishing:
            self._raise_over()

    def _raise_over(self) -> NoReturn:
        if self._error is not None:
            raise self._error.to_error()
        raise ClosedError("this stream has ended", hint="Acquire a new one for more frames")

    # The ring's thread
    # ----------------------------------------------------------------------------------------------------

    def swap_ring(self, ring: FrameRing) -> None:
        """Replaces the ring: slots are filled in ``ring`` from now on, and the frames added before are copied
        there. A frame that a user's thread is copying is copied again after ``add``. Must not run while slots
        are released."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            old, self._ring = self._ring, ring
            held = self._queue.held()
        if old is not None and old is not ring:
            for slot in held:
                ring.frames[slot] = old.frames[slot]

    # The I/O thread
    # ----------------------------------------------------------------------------------------------------

    def seal_if_older(self, age_s: float, now_s: float) -> float | None:
        """As ``SendQueue``."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            return self._queue.seal_if_older(age_s, now_s)

    def next_frames(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.void]] | None:
        """As ``SendQueue``."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            return self._queue.next_frames()

    @property
    def sent_to(self) -> int:
        """The sequence of the first frame that was never sent."""
        return self._queue.sent_to

    @property
    def sends_again(self) -> bool:
        """As ``SendQueue``."""
        return self._queue.sends_again

    def resume(self, missing: Iterable[tuple[int, int]]) -> None:
        """As ``SendQueue``. What readers see is what the daemon tells from now on: a power cut may have taken
        from them what was not durable."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            self._queue.resume(missing)
            self._visible, self._visible_of = 0, {}

    def total_when_finished(self) -> int | None:
        """Returns the sequence after the last frame, once the user has finished and every frame was sent;
        None before."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            if self._finish_asked and not self._finishing:
                self._finish()
            # frames of a call that was interrupted in a step are never complete
            waits = self._order.has_begun() and self._lock.broken is None
            ends = self._finishing and self._queue.all_sent and not waits
            return self._queue.next_sequence if ends else None

    def flush_wanted(self) -> int:
        """Returns the sequence before which frames are to be made durable; 0 when no flush waits."""
        return self._flush_to if self._flush_to > self._durable else 0

    def updates_behind(self, request: int) -> list[Request]:
        """Returns the updates of metadata, and images to add, that were asked for after this one and have no
        answer."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            return [update for update in self._updates.values() if update.request > request]

    def has_sent_frames_of(self, flush: FlushTo) -> bool:
        """Returns whether all frames are sent that were added before a flush."""
        return self._goals.get(flush.request, 0) <= self._queue.sent_to

    def updated(self, answer: Updated) -> None:
        with self._lock.turn(also_broken=True), self._lock.anyway:
            if self._updates.pop(answer.request, None) is None:
                return  # the caller has given up, or it was sent twice
            if answer.error is not None:
                self._answers[answer.request] = answer.error
            self._lock.changed.notify_all()

    def take_images(self, held_frames: int) -> None:
        """Takes the most frames that wait for the rest of their slab, with images that were added."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            self._most_claimed = self._claims_beside(held_frames)

    def _claims_beside(self, held_frames: int) -> int:
        slots = self._queue.slot_count // self._places * self._places
        return slots - (held_frames if held_frames < slots else 0)  # so few slots: frames do not wait in them

    def release(self, released: npt.NDArray[np.uint64]) -> None:
        """As ``SendQueue``."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            self._queue.release(released)
            self._lock.changed.notify_all()

    def advance_watermark(self, stored: int | None = None, durable: int | None = None) -> None:
        with self._lock.turn(also_broken=True), self._lock.anyway:
            self._stored = self._stored if stored is None else stored
            self._durable = self._durable if durable is None else durable
            self._lock.changed.notify_all()

    def see(self, frames: int, images: dict[str, int]) -> None:
        """Notes how many frames readers of the files see, and of some images."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            self._visible = frames
            self._visible_of = {**self._visible_of, **images}

    def fail(self, why: ErrorText, receipt: Receipt | None = None) -> None:
        """Ends the stream with an error. ``receipt``: of the frames that are kept. Both are set at once, so
        that a waiting thread does not take the receipt for a good end."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            self._receipt = receipt or self._receipt
            if self._error is None or self._error.is_a(OverloadError):
                self._error = why
            self._note_over()

    def settle(self, receipt: Receipt) -> None:
        with self._lock.turn(also_broken=True), self._lock.anyway:
            self._receipt = receipt
            self._note_over()

    def _note_over(self) -> None:
        if self._teller is not None and self.is_over:
            self._teller.end()
        self._lock.changed.notify_all()

    def drop_ring_at_end(self) -> None:
        """As ``drop_ring``, unless frames are still to be sent of it."""
        if self.is_over:
            self.drop_ring()

    def drop_ring(self) -> None:
        """Drops the ring at the end: a user may keep the stream for its receipt, but not the ring's
        memory."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            ring, self._ring = self._ring, None
            # what a camera may still write into is not for others
            in_use = self._queue.count(COPYING) or self._queue.count(CLAIMED)
            unused = self._receipt is not None and self._error is None and not in_use
        if ring is not None and unused:
            self._keep_ring(ring)
