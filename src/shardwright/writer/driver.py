"""The driver of an in-process writer: hands frames to its acquisition and carries out what comes back, from
the user's threads and from a thread of its own, the helper.

The helper works while no frame is appended (staging, commits, retries on a full disk) and ends the
acquisition when it is asked to. It knows the driver and not the ``Writer``: a writer that is forgotten can be
freed, which asks for the end.

``lock`` guards the acquisition, the ring's tables and the order of frames. A step under it takes
microseconds; pixels are copied without it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardwright.acquire.accounts import SequenceSet
from shardwright.acquire.acquisition import AcquisitionState
from shardwright.acquire.workers import WorkerPool
from shardwright.array.frame_admission import FrameAdmission
from shardwright.array.frame_claim import all_claimed
from shardwright.array.frame_order import Begun, FrameOrder
from shardwright.model.errors import (
    ClosedError,
    OverloadError,
    ShardwrightError,
    StoreGoneError,
    TimedOutError,
)
from shardwright.model.event_text import event_text
from shardwright.model.progress_teller import ProgressTeller
from shardwright.model.step_lock import StepLock, interrupts_package

from .frame_buffers import FrameBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.acquire.acquisition import Acquisition
    from shardwright.array.acquisition_spec import Image
    from shardwright.model.error_text import ErrorText
    from shardwright.model.progress_teller import OnProgress
    from shardwright.model.receipt import Receipt
    from shardwright.model.write_options import Extent, FlushLevel

_POLL_S = 1.0  # interval at which a waiting call checks that the workers live
# dropped frames that wait for the frame log; beyond these even a dropped frame waits
MAX_UNRECORDED_FRAMES = 1 << 16
_CLOCK_S = 0.05  # interval at which the helper checks the clocks when nothing happens
log = logging.getLogger("shardwright")


class Frames(NamedTuple):
    """Complete frames: their records lack the sequence, and the position if they are ``counted``. No slots:
    they are dropped. ``lent``: their memory is the caller's."""

    slots: np.ndarray
    records: np.ndarray
    addresses: np.ndarray
    counted: bool
    lent: bool


class Driver:
    """The methods without a leading underscore are for any thread of the user; ``work``'s own are the
    helper's."""

    def __init__(
        self,
        make: Callable[[WorkerPool, Callable[[], None]], Acquisition],
        threads: int,
        on_progress: OnProgress | None = None,
        memory_bytes: int = sys.maxsize,
    ) -> None:
        """``memory_bytes``: the most memory in use."""
        self._memory_bytes = memory_bytes
        self.lock = StepLock(
            "writer", hint="Close it: what was stored is kept, and `shardwright recover` makes a store of it"
        )
        # Why it wakes the helper does not matter. Not an Event, whose own lock a signal handler or a
        # finalizer could find taken by the call that it interrupts.
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._wake = partial(self._wakes.put, None)  # knows no driver: without a cycle all is freed at once
        self._end_asked = False
        self._extent: Extent = "frames"  # as the first that asked for the end wants it
        self._waits_for_room = True
        self.receipt: Receipt | None = None  # the last one; set by the helper, once
        self._is_over = False  # the helper has freed everything
        self._was_told = False  # the error of the end
        self.order: FrameOrder[Frames] = FrameOrder()
        # frames whose memory is not read any more; None before the first was lent
        self._returned: SequenceSet | None = None
        # updates of metadata whose caller waits, and the answers that came to them
        self._updates_asked: set[int] = set()
        self._answers: dict[int, ErrorText | None] = {}
        with ExitStack() as undo:
            self.pool = WorkerPool(threads)
            undo.callback(self.pool.stop)
            self.pool.start()
            self.acquisition = make(self.pool, self._wake)
            undo.callback(self.acquisition.withdraw)
            self.acquisition.count_writer()
            # frames that the previous process had appended and not stored
            self.acquisition.settle_missing()
            self.next_sequence = self.acquisition.next_sequence
            acquisition = self.acquisition  # and not ``self``: without a cycle, as above
            self._places = places = acquisition.spec.frame_places
            self.admission = FrameAdmission(
                acquisition.spec,
                self.next_sequence,
                lambda image: -(-(int(acquisition.accounts.newest[image]) + 1) // places) * places,
            )
            self.ring = FrameBuffers(acquisition.limits.frame_bytes, acquisition.limits.ring_frames, places)
            undo.callback(self.ring.close)
            self._teller: ProgressTeller | None = None
            if on_progress is not None:
                self._teller = ProgressTeller(
                    on_progress,
                    lambda: acquisition.stored_watermark // places,
                    lambda: acquisition.spec.total_frames,
                )
                undo.callback(self._teller.end)
            self.helper = threading.Thread(
                target=self._work, name=f"shardwright-writer-{self.acquisition.path.name}", daemon=True
            )
            self.helper.start()
            undo.pop_all()

    # ------------------------------------------------------------------ frames of the user

    def check_process(self) -> None:
        """Raises ``ForkedError``."""
        self.lock.check_process()

    def check_open(self) -> None:
        """Raises ``ForkedError``, ``ClosedError``."""
        self.lock.check_process()
        self._check_open()

    def _check_open(self) -> None:
        if self._end_asked:
            raise ClosedError("this writer is closed", hint="Append inside the with block")

    def begin(self, begun: Begun[Frames], most: int, *, counted: bool) -> None:
        """Begins the next frames: takes slots for as many as there is room for, at most ``most``; no slots
        when they are all to be dropped. Waits while none is free, if the policy says so. ``counted`` frames
        have no place but their number; raises where there is none.

        ``complete`` or ``give_up`` follows.
        """
        thread = threading.get_ident()
        with self.lock.turn(), self.lock:
            if counted:  # also of one that is to wait first
                self._check_count(most)
            slots = self._slots_for(begun, thread, most, counted=counted)
            self.ring.begin(slots)
            self.order.begin(begun, thread, slots, slots.size or most)

    def begin_skipped(self, begun: Begun[Frames], most: int, *, counted: bool) -> None:
        """As ``begin``, for places without a frame: at most so many as may wait for the frame log."""
        thread = threading.get_ident()
        with self.lock.turn(), self.lock:
            self._check_open()
            self.order.stand_in_line(begun, thread)
            try:
                while not self.order.is_next(thread) or self._unrecorded_room <= 0:
                    self._collect()
                    self.lock.wait(_POLL_S)
                    self._check_open()
            finally:
                self.order.leave_line(begun)
                self.lock.changed.notify_all()
            if counted:
                self._check_count(most)
            room = max(self._places, self._unrecorded_room // self._places * self._places)
            self.order.begin(begun, thread, np.zeros(0, np.int64), min(most, room))

    @property
    def _unrecorded_room(self) -> int:
        return MAX_UNRECORDED_FRAMES - self.acquisition.unrecorded_frames

    def _check_count(self, frames: int) -> None:
        """Raises ``FrameIndexError`` if so many more frames have no place. Within a step."""
        self.admission.check_count(self.next_sequence + self.order.frames + frames - 1)

    def _slots_for(
        self, begun: Begun[Frames], thread: int, most: int, *, counted: bool = False
    ) -> np.ndarray:
        """Returns free slots once it is the turn of this thread's call. Within a step."""
        self._check_open()
        if self.order.is_next(thread) and (slots := self.ring.take(most)).size:
            return slots
        self.order.stand_in_line(begun, thread)
        try:
            while True:
                self._collect()
                if self.order.is_next(thread):
                    if counted:  # others came while it waited; behind ``take`` the error would lose slots
                        self._check_count(most)
                    slots = self.ring.take(most)
                    if slots.size or self._drops():
                        return slots
                self.lock.wait(_POLL_S)
                self._check_open()
        finally:
            self.order.leave_line(begun)
            self.lock.changed.notify_all()

    def _drops(self) -> bool:
        """Returns whether a frame is dropped since no slot is free; False: it waits. Raises
        ``OverloadError``. Within a step."""
        overload = self.acquisition.settings.overload
        if overload == "drop" and self._unrecorded_room > 0:
            return True
        ring, slots = self.ring, self.acquisition.limits.ring_frames
        if overload == "fail":
            raise OverloadError(
                "the disk cannot keep up", expected="a free frame buffer", got=f"{slots} in use"
            )
        if ring.claimed and ring.claimed + self.acquisition.held_frames >= ring.used:
            raise all_claimed(ring.claimed, slots)
        return False

    def stand_in_line(self, stack: Begun[Frames], frames: int) -> None:
        """Keeps the frames of other threads waiting until ``leave_line``, which follows: those of ``stack``,
        which have no place, come first, though they take slots several times. Raises if there is no room
        for all."""
        thread = threading.get_ident()
        with self.lock.turn(), self.lock:
            self.order.stand_in_line(stack, thread)
            while not self.order.is_next(thread):
                self._check_open()
                self.lock.wait(_POLL_S)
            self.admission.check_count(self.next_sequence + self.order.frames + frames - 1)

    def leave_line(self, stack: Begun[Frames]) -> None:
        with self.lock.turn(also_broken=True), self.lock.anyway:
            self.order.leave_line(stack)
            self.lock.changed.notify_all()

    def complete(self, begun: Begun[Frames], frames: Frames) -> bool:
        """Submits frames that ``begin`` has begun, once every one before has been submitted or given up.
        Returns whether that is now: their records are not used any more. Raises what broke the pipeline,
        ``ClosedError``, and as ``_check_places`` does."""
        with self.lock.turn(), self.lock:
            if begun.is_given_up:  # a signal handler has closed the writer meanwhile
                self._check_open()
            complete = self.order.complete(begun, frames)
            self._submit(complete)
            self._collect(polling=not complete)
            self._check_places()
        self.ring.let_go()
        return bool(complete)

    def give_up(self, begun: Begun[Frames]) -> bool:
        """Frees the slots of frames whose call has failed, such as by Ctrl-C during a copy. Returns False if
        they were complete before: they are stored."""
        if not begun.serial:
            return True
        with self.lock.turn(also_broken=True), self.lock.anyway:
            if begun.facts is not None:
                return False
            if not begun.is_given_up and self.receipt is None:  # else they are gone with the writer
                self.ring.give_back(begun.slots)
                self._submit(self.order.give_up(begun))
                self.lock.changed.notify_all()
        return True

    def claim(self) -> np.ndarray:
        """Takes a slot as ``begin`` does, for a frame that gets its number when it is committed:
        ``begin_claimed`` or ``give_back_claimed`` follows."""
        with self.lock.turn(), self.lock:
            slots = self._slots_for(Begun(), threading.get_ident(), self._places)
            self.ring.claim(slots)
            return slots

    def begin_claimed(self, begun: Begun[Frames], slots: np.ndarray, *, counted: bool) -> None:
        """As ``begin``, for the slot of a claim."""
        with self.lock.turn(), self.lock:
            self._check_open()
            if counted:
                self.admission.check_count(self.next_sequence + self.order.frames)
            self.ring.begin_claimed(slots)
            self.order.begin(begun, threading.get_ident(), slots, self._places)

    def give_back_claimed(self, slots: np.ndarray) -> None:
        """Frees the slots of a claim that is given up. With the writer they are gone."""
        with self.lock.turn(also_broken=True), self.lock.anyway:
            # of a broken one, it may have ended in the step that was interrupted
            if self.receipt is None and self.lock.broken is None:
                self.ring.give_back_claimed(slots)
                self.lock.changed.notify_all()

    def _submit(self, complete: Iterable[Begun[Frames]]) -> None:
        """Numbers complete frames and hands them to the acquisition. Within a step."""
        for begun in complete:
            frames = begun.facts
            assert frames is not None, "they are complete"
            records, count = frames.records, len(frames.records)
            first = self.next_sequence
            self.ring.enter(first, frames.slots)
            self._note_lent(count, lent=frames.lent)
            numbers = first if count == 1 else np.arange(first, first + count)
            records["sequence"] = numbers
            if frames.counted:
                records["position"] = numbers
            self.next_sequence += count
            self.acquisition.submit(records, frames.addresses)
            if self.order.has_begun():
                self.lock.changed.notify_all()  # a flush may wait for these

    def _note_lent(self, frames: int, *, lent: bool) -> None:
        """Notes the next frames for ``released``. Within a step."""
        if lent and self._returned is None:
            self._returned = SequenceSet()
            self._returned.value = self._returned.stop = self.next_sequence
        if self._returned is not None and not lent:
            self._returned.add(np.arange(self.next_sequence, self.next_sequence + frames))

    @property
    def released(self) -> int:
        """As ``Writer.released``."""
        count, returned = self.next_sequence, self._returned  # in this order: the first lent is behind it
        return count if returned is None else returned.value

    # ------------------------------------------------------------------ other calls of the user

    def flush(self, level: FlushLevel, timeout_s: float | None) -> None:
        """As ``Writer.flush``."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        acquisition = self.acquisition
        with self.lock.turn(), self.lock:
            if self.receipt is not None:
                return  # everything is sealed, or ``close`` has told why not
            self._submit(self.order.let_pass(threading.get_ident()))
            last = self.order.last_complete()
            while self.order.has_begun(last):
                self._wait(deadline_s, lambda: "frames are still being copied", timeout_s, level)
            goal = self.next_sequence

            def got() -> str:
                return f"{getattr(acquisition.watermark, level)} of {goal} frames"

            self._await_answer(acquisition.flush(level), timeout_s, deadline_s, got, level)
            self._check_places()

    def _wait(
        self,
        deadline_s: float | None,
        got: Callable[[], str],
        timeout_s: float | None,
        level: FlushLevel = "durable",
    ) -> None:
        """Waits for a change. Raises ``TimedOutError``. Within a step."""
        left_s = _POLL_S if deadline_s is None else min(_POLL_S, deadline_s - time.monotonic())
        if left_s <= 0:
            raise TimedOutError(
                f"not everything is {level} yet", expected=f"everything within {timeout_s} s", got=got()
            )
        self.lock.wait(left_s)

    def update_metadata(self, image: int | None, attributes: dict[str, Any], timeout_s: float | None) -> None:
        """As ``Writer.update_metadata``."""
        with self.lock.turn(), self.lock:
            self._check_open()
            self._await_answer(self.acquisition.update_metadata(image, attributes), timeout_s)

    def add_image(self, image: Image, timeout_s: float | None) -> None:
        """As ``Writer.add_image``."""
        with self.lock.turn(), self.lock:
            self._check_open()
            room_bytes = self._memory_bytes - self.acquisition.limits.memory_bytes
            self._await_answer(self.acquisition.add_image(image, room_bytes), timeout_s)

    def _await_answer(
        self,
        request: int,
        timeout_s: float | None,
        deadline_s: float | None = None,
        got: Callable[[], str] = lambda: "no answer",
        level: FlushLevel = "durable",
    ) -> None:
        """Waits for the answer to a flush, an update of metadata, or an image. Raises what it says. Within a
        step."""
        if deadline_s is None and timeout_s is not None:
            deadline_s = time.monotonic() + timeout_s
        self._updates_asked.add(request)
        try:
            while not self._take_answer(request):
                self._wait(deadline_s, got, timeout_s, level)
            why = self._answers[request]
        finally:  # also after Ctrl-C: its answer, which may still come, is nobody's then
            self._updates_asked.discard(request)
            self._answers.pop(request, None)
        if why is not None:
            raise why.to_error()

    def _take_answer(self, request: int) -> bool:
        """Returns True once a request has its answer. Raises what broke the pipeline. Within a step."""
        self._collect()
        for answered, why in self.acquisition.take_updates():
            if answered in self._updates_asked:
                self._answers[answered] = why
        self.admission.take_images(self.acquisition.spec)
        if request in self._answers:
            self.lock.changed.notify_all()  # the answers of other threads may have been among them
            return True
        if self.receipt is not None:  # closed by another thread, after a failure without an answer
            if self.acquisition.error is not None:
                raise self.acquisition.error
            self._check_open()
        return False

    def _check_places(self) -> None:
        """Raises the error of a duplicate frame, if any. Within a step, or once the acquisition has ended."""
        if (
            self.acquisition.settings.on_duplicate == "fail"
            and (why := self.acquisition.take_duplicates()) is not None
        ):
            raise why.to_error()

    def _collect(self, *, raising: bool = True, polling: bool = True) -> None:
        """Passes on the acquisition's released frames and events, and raises its error. ``polling``: False
        right behind a ``submit``, which has handled the reports. Within a step."""
        if self.receipt is not None:
            return
        # claimed slots are no backlog: how long a camera keeps them says nothing of the workers
        ring = self.ring
        self.acquisition.see_ring(
            ring.submitted, self.acquisition.limits.ring_frames - ring.claimed - ring.copying
        )
        released = self.acquisition.poll() if polling else self.acquisition.take_released()
        ring.release(released)
        if self._returned is not None:
            self._returned.add(released)
        for name, facts in self.acquisition.take_events():
            self._warn_of(name, facts)
        if raising and self.acquisition.error is not None and not self.acquisition.in_flight:
            raise self.acquisition.error from None

    def receipt_so_far(self) -> Receipt:
        self.lock.check_process()
        if self.receipt is not None:
            return self.receipt
        if self.lock.is_mine:
            return self.acquisition.receipt()  # of a step that is interrupted: some counts may be ahead
        with self.lock.held:
            return self.acquisition.receipt()

    # ------------------------------------------------------------------ the end

    def ask_to_end(self, *, waits_for_room: bool = True) -> None:
        """Takes no more frames, and lets the helper seal those that came. Without ``waits_for_room`` a full
        disk ends it, whatever ``on_full`` says. From any thread, also in the middle of a step."""
        self._waits_for_room = self._waits_for_room and waits_for_room
        self._end_asked = True
        self._wake()

    def end(self, extent: Extent = "frames") -> Receipt:
        """As ``Writer.close``."""
        self.lock.check_process()
        if not self._end_asked:
            self._extent = extent
        self.ask_to_end()
        if self.lock.is_mine or threading.current_thread() is self.helper:
            return self.acquisition.receipt()  # to wait here would be for oneself
        with self.lock.turn(also_broken=True), self.lock.anyway:
            # this call has interrupted them: they cannot be completed before it returns
            for begun in self.order.unfinished_of(threading.get_ident()):
                self.ring.abandon(begun.slots)
                self._submit(self.order.give_up(begun))
            self.lock.changed.notify_all()
            # Not by ``join`` alone: after Ctrl-C in it Python 3.11 takes a running thread for an ended one.
            while not self._is_over:
                self.lock.wait(_POLL_S, also_broken=True)
        self.helper.join()
        if self._teller is not None:
            self._teller.wait()
        assert self.receipt is not None, "it is over"
        if not self._was_told:
            self._was_told = True
            if self.lock.broken is not None:
                raise self.lock.broken.to_error()
            if self.acquisition.error is not None:
                raise self.acquisition.error from None
            self._check_places()
        return self.receipt

    def _work(self) -> None:
        """The helper thread: handles reports as they come, and checks the clocks several times a second; ends
        the acquisition when it is asked to."""
        try:
            while not self._end_asked:
                self._await_wake()
                with self.lock.turn(), self.lock:
                    self._collect(raising=False)
                    self.lock.changed.notify_all()
                self.ring.let_go()
            self._finish()
        except BaseException as error:  # noqa: BLE001  (kept as text: every later call raises it)
            self.lock.break_by(error)
            while not self._end_asked:
                self._await_wake()
        finally:
            self._free()

    def _await_wake(self) -> None:
        with suppress(Empty):
            self._wakes.get(timeout=_CLOCK_S)
            while True:
                self._wakes.get_nowait()

    def _finish(self) -> None:
        with self.lock.turn(), self.lock:
            self.lock.changed.notify_all()  # calls that wait for slots end
            while self.order.has_begun():
                self.lock.wait(_POLL_S)
            self.acquisition.finish(keep_empty=False, extent=self._extent)
        while self.acquisition.state not in (AcquisitionState.SEALED, AcquisitionState.FAILED):
            self._await_wake()
            with self.lock.turn(), self.lock:
                if not self._waits_for_room:
                    self.acquisition.wait_for_room_no_longer()
                self._collect(raising=False)

    def _free(self) -> None:
        """Ends the threads and frees the memory. The receipt is final from here on."""
        with self.lock.held:
            self.receipt = receipt = self.acquisition.receipt()
        with ExitStack() as last:
            last.callback(self._note_over)
            last.callback(self.ring.close)
            last.callback(self.acquisition.close)
            # first: no worker reads or writes any more
            last.callback(self.pool.stop)
            self.ring.let_go()
            self._returned = None  # nothing reads a frame any more
        is_there = not isinstance(self.acquisition.error, StoreGoneError)
        if incomplete := receipt.incomplete_facts(is_there=is_there):
            self._warn_of("acquisition_incomplete", incomplete)

    def _warn_of(self, event: str, facts: dict[str, Any]) -> None:
        """Writes an event into Python's log. Handlers find its name and facts at the record."""
        text = event_text(event, {"path": str(self.acquisition.path), **facts})
        log.warning("%s", text, extra={"event": event, "facts": facts})

    def _note_over(self) -> None:
        with self.lock.held:
            self._is_over = True
            if self._teller is not None:
                self._teller.end()
            self.lock.changed.notify_all()


def end_forgotten(driver: Driver) -> None:
    """Seals what came to a writer that nobody closed: the interpreter ends, or the last reference to it is
    gone. Called from any thread, at any moment; in a forked child it does nothing."""
    if driver.lock.is_forked or driver.receipt is not None:
        return
    driver.ask_to_end(waits_for_room=False)
    path = driver.acquisition.path
    if not interrupts_package():  # else the helper goes on alone
        try:
            driver.end()
        except ShardwrightError as error:
            log.warning("%s: not everything that came was sealed: %s", path, error)
    warnings.warn(
        f"the writer of {path} was not closed; the frames that came are sealed. Use a with block, or close()",
        ResourceWarning,
        stacklevel=2,
    )
