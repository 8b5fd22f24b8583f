"""The in-process writer: appends frames without a daemon. One copy into a ring of recycled frame buffers,
or none (``copy=False``, ``claim``), then the daemon's pipeline."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.acquire.accounts import SequenceSet
from shardwright.acquire.acquisition import Acquisition, AcquisitionState
from shardwright.acquire.workers import WorkerPool
from shardwright.array.frame_claim import FrameClaim, all_claimed
from shardwright.array.frame_intake import FrameIntake
from shardwright.array.update import checked_update
from shardwright.model.errors import (
    ClosedError,
    OverloadError,
    ShardwrightError,
    StorageError,
    TimedOutError,
)
from shardwright.model.receipt import Watermark
from shardwright.wire.descriptor import FRAME_DROPPED, JSON_FIELD, METADATA_FIELDS

from .frame_buffers import FrameBuffers, can_be_lent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from shardwright.array.frame_intake import Placed
    from shardwright.array.spec import ArraySpec
    from shardwright.model.error_text import ErrorText
    from shardwright.model.receipt import Receipt

_POLL_S = 1.0  # interval at which a waiting call checks that the workers live
# dropped frames that wait for the frame log; beyond these even a dropped frame waits
MAX_UNRECORDED_FRAMES = 1 << 16
BATCH_BYTES = 8 << 20  # of pixels that ``append_many`` submits at once
_CLOCK_S = 0.05  # interval at which the helper checks the clocks when nothing happens
log = logging.getLogger("shardwright")


def _behind_newest(acquisition: Acquisition) -> Callable[[int], int]:
    """Returns ``first_of`` of a ``FrameIntake``: the place behind an image's newest frame."""
    return lambda image: int(acquisition.accounts.newest[image]) + 1


class Writer:
    """The in-process writer, made by ``shardwright.create`` or ``shardwright.resume``; a context manager. Its
    methods may be called from one thread at a time.

    A helper thread works while no frame is appended: staging, commits, retries on a full disk. ``_lock``
    guards the acquisition and the ring between the two; it is held for microseconds.
    """

    def __init__(self, make: Callable[[WorkerPool, Callable[[], None]], Acquisition], threads: int) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._receipt: Receipt | None = None
        self._ended = False
        self._copied = 0  # frames of copy=False that could not be read as they lie
        # under _lock: frames whose memory is not read any more; None before the first was lent
        self._returned: SequenceSet | None = None
        # under _lock: updates of metadata whose caller waits, and the answers that came to them
        self._updates_asked: set[int] = set()
        self._answers: dict[int, ErrorText | None] = {}
        try:
            self._begin(make, threads)
        except ShardwrightError as error:
            raise error from None  # the error is complete: one traceback is enough

    def _begin(self, make: Callable[[WorkerPool, Callable[[], None]], Acquisition], threads: int) -> None:
        with ExitStack() as undo:
            self._pool = WorkerPool(threads)
            undo.callback(self._pool.stop)
            self._pool.start()
            self._acquisition = make(self._pool, self._wake.set)
            undo.callback(self._acquisition.take_back)
            self.images = self._acquisition.spec
            self.limits = self._acquisition.limits
            self._count = self._acquisition.next_sequence
            self._intake = FrameIntake(self.images, self._count, _behind_newest(self._acquisition))
            self._descriptor = np.zeros(1, self.images.frame_descriptor)
            self._address = np.zeros(1, np.int64)
            self._ring = FrameBuffers(self.limits.frame_bytes, self.limits.ring_frames)
            undo.callback(self._ring.close)
            self._acquisition.settle_missing()  # frames that the previous process had appended and not stored
            self._helper = threading.Thread(
                target=self._look_after, name=f"shardwright-writer-{self.path.name}", daemon=True
            )
            self._helper.start()
            undo.pop_all()

    @property
    def path(self) -> Path:
        return self._acquisition.path

    @property
    def spec(self) -> ArraySpec:
        """The specification of the array; of the first one if there are several images."""
        return self.images.arrays[0]

    @property
    def frames(self) -> int:
        """The number of frames appended to this acquisition so far, also before a crash: the number that the
        next one gets."""
        return self._count

    @property
    def released(self) -> int:
        """The number of frames, as ``frames`` counts them, from the first on without a hole, whose memory is
        not read any more: the caller may change that of frames below it. With ``copy=True`` that is every
        frame whose ``append`` has returned."""
        with self._lock:
            return self._count if self._returned is None else self._returned.value

    @property
    def copied(self) -> int:
        """The number of frames that were given with ``copy=False`` and had to be copied all the same."""
        return self._copied

    @property
    def receipt(self) -> Receipt:
        """The receipt so far; final once the writer is closed."""
        if self._receipt is not None:
            return self._receipt
        with self._lock:
            return self._acquisition.receipt()

    @property
    def watermark(self) -> Watermark:
        """The number of frames from the first on, without holes, that a kill of this process (``stored``) or
        a power cut (``durable``) cannot lose."""
        with self._lock:
            return Watermark(self._acquisition.stored_watermark, self._acquisition.durable_watermark)

    def append(
        self,
        frame: npt.ArrayLike,
        *,
        image: str | None = None,
        index: tuple[int, ...] | None = None,
        frame_id: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        copy: bool = True,
    ) -> None:
        """Stores one frame. Its place is ``index`` (acquisition order, the axes before the frame's own), else
        ``frame_id``, else the count of appends. With several images ``image`` names its own; then the frames
        of that image without an index are counted, after ``resume`` from behind its newest one. With an
        ``order`` of the acquisition no frame need name anything.

        A frame whose place is taken raises ``DuplicateFrameError`` (unless ``on_duplicate`` is ``count``):
        from this call, or where frames had to wait for their place from a later one, at the latest ``flush``
        or ``close``. It is not stored, the first one is, and the writer continues.

        ``metadata``: ``delta_t``, ``exposure_time`` in seconds, ``position_x/y/z`` in micrometres, and what
        the array's ``frame_fields`` name; anything else that is JSON, text included, where the array has
        ``frame_json_bytes``.

        The frame is copied before this returns. With ``copy=False`` it is not: the writer reads the caller's
        memory until the frame is stored (durable, with that ``durability``) and keeps a reference to it as
        long; the caller must not change it before ``released`` has passed the frame. It takes a place of the
        ring like any other. A frame that cannot be read as it lies (not in C order, not aligned, in a mapped
        file, which may be truncated) is copied and counted (``copied``).

        While the ring is full the call waits (``block``, ``degrade``), drops the frame (counted and recorded)
        or fails, as ``overload`` says. Raises ``FrameShapeError``, ``FrameDtypeError``, ``FrameIndexError``,
        ``UnknownImageError``, ``MetadataError`` (nothing is stored then), ``OverloadError``, ``ClosedError``,
        or what broke the pipeline.
        """
        pixels = np.asarray(frame)
        placed = self._describe(pixels, image, index, frame_id, metadata)
        lent = False
        try:
            with self._changed:
                slots = self._free_slots()
            if slots.size:
                lent = self._put(slots, pixels, copy=copy)
            else:
                self._descriptor["flags"], self._address[0] = FRAME_DROPPED, 0
        except BaseException:
            if not placed.named:
                self._intake.give_back([int(self._descriptor["position"][0])])
            raise
        self._submit(slots, self._descriptor, self._address, lent=lent)

    def claim(
        self,
        *,
        image: str | None = None,
        index: tuple[int, ...] | None = None,
        frame_id: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> FrameClaim:
        """Claims memory for one frame, into which a camera's driver writes: no copy is made.

            with writer.claim(index=(7, 0)) as pixels:  # (rows, columns) of the image's dtype, any content
                camera.read_into(pixels)

        Leaving the block stores the frame as ``append`` does, with ``metadata`` as they are then; an
        exception gives the memory back. Several may be claimed at once and committed in any order: frames
        that name no place are counted as they are committed. ``pixels`` must not be written after the block.

        While the ring is full, ``block`` and ``degrade`` wait here; with ``drop`` the frame goes into memory
        that is not kept, and is recorded as dropped at the end of the block. Raises as ``append`` does, here
        what is wrong already, at the end of the block what becomes wrong meanwhile; ``OverloadError`` also
        where the ring is full of claims, and frames that may wait for them. Claims that are open when the
        writer is closed are given back: a later commit raises ``ClosedError``.
        """
        self._check_open()
        form = self._intake.form(image, index, frame_id, metadata)
        if self.images.is_single and index is None and frame_id is None:
            self._intake.check_count(self._count)
        with self._changed:
            slots = self._free_slots()
        return FrameClaim(
            self._ring.pixels(slots, form),
            partial(self._commit, slots, image, index, frame_id, metadata),
            partial(self._give_back, slots),
        )

    def _commit(
        self,
        slots: np.ndarray,
        image: str | None,
        index: tuple[int, ...] | None,
        frame_id: int | None,
        metadata: Mapping[str, Any] | None,
        pixels: np.ndarray,
    ) -> None:
        try:
            self._describe(pixels, image, index, frame_id, metadata)
        except BaseException:
            self._give_back(slots)
            raise
        if slots.size:
            self._address[0] = self._ring.address_of(slots.item())
        else:
            self._descriptor["flags"], self._address[0] = FRAME_DROPPED, 0
        self._submit(slots, self._descriptor, self._address, lent=False)

    def _check_open(self) -> None:
        if self._receipt is not None:
            raise ClosedError("this writer is closed", hint="Append inside the with block")

    def append_many(
        self,
        frames: npt.ArrayLike,
        *,
        image: str | None = None,
        indices: npt.ArrayLike | None = None,
        frame_ids: npt.ArrayLike | None = None,
        metadata: Mapping[str, Any] | None = None,
        copy: bool = True,
    ) -> None:
        """Appends each of ``frames`` (count, rows, columns) in turn, with one copy and almost no Python for
        each: for small frames at a high rate.

        ``indices``: integers (count, axes); ``frame_ids``: integers (count,); each value of ``metadata``: one
        for all, or a list or array of one for each. All are of one ``image``, or without its name the next
        ones in the acquisition's ``order``. ``copy``: as for ``append``; the whole stack is kept while any
        of its frames is read. Raises as ``append`` does. A fault of one frame is raised before
        any of them is stored.
        """
        self._check_open()
        pixels, records, counted, named = self._intake.many(frames, image, indices, frame_ids, metadata)
        if counted and len(pixels):
            self._intake.check_count(self._count + len(pixels) - 1)
            records["position"] = np.arange(self._count, self._count + len(pixels))
        # parts, so that workers begin while the rest is copied
        most = max(self.limits.frames_per_slab, BATCH_BYTES // self.limits.frame_bytes)
        done = 0
        lent = not copy and can_be_lent(pixels)
        try:
            while done < len(pixels):
                part = slice(done, done + min(most, len(pixels) - done))
                done += self._append_part(pixels[part], records[part], copy=copy, lent=lent)
        except BaseException:
            if not named:
                self._intake.give_back(records["position"][done:].tolist())
            raise

    def _put(self, slots: np.ndarray, pixels: np.ndarray, *, copy: bool) -> bool:
        """Sets the address of a frame: in its slot, or where it lies. Returns whether it is lent."""
        try:
            if not copy and can_be_lent(pixels):
                self._address[:] = self._ring.lend(slots, pixels[None])
                return True
            self._copied += not copy
            self._address[0] = self._ring.put(slots.item(), pixels)
        except BaseException:
            self._give_back(slots)
            raise
        return False

    def _note_lent(self, frames: int, *, lent: bool) -> None:
        """Notes the next frames for ``released``. Under the lock."""
        if lent and self._returned is None:
            self._returned = SequenceSet()
            self._returned.value = self._returned.stop = self._count
        if self._returned is not None and not lent:
            self._returned.add(np.arange(self._count, self._count + frames))

    def _append_part(self, pixels: np.ndarray, records: np.ndarray, *, copy: bool, lent: bool) -> int:
        """Appends the first of these frames, as many as there is room for, or drops all of them. Returns how
        many."""
        with self._changed:
            slots = self._free_slots(len(pixels))
        dropped = not slots.size
        records = records if dropped else records[: slots.size]
        addresses = np.zeros(len(records), np.int64)
        if not dropped:
            try:
                put = self._ring.lend if lent else self._ring.put_many
                addresses = put(slots, pixels[: slots.size])
            except BaseException:
                self._give_back(slots)
                raise
        records["flags"] = FRAME_DROPPED if dropped else 0
        records["sequence"] = np.arange(self._count, self._count + len(records))
        records["camera_ns"], records["monotonic_ns"] = time.time_ns(), time.monotonic_ns()
        self._copied += slots.size if not (copy or lent) else 0
        self._submit(slots, records, addresses, lent=lent and not dropped)
        return len(records)

    def _submit(self, slots: np.ndarray, records: np.ndarray, addresses: np.ndarray, *, lent: bool) -> None:
        """Submits the next frames, which are in ``slots``, or are dropped if there are none."""
        with self._changed:
            self._ring.enter(self._count, slots)
            self._note_lent(len(records), lent=lent)
            self._count += len(records)
            self._acquisition.submit(records, addresses)
            self._collect()
            self._check_places()
        self._ring.let_go()

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until every frame appended so far is durable. Raises ``TimedOutError``, or what broke the
        pipeline; ``DuplicateFrameError`` as ``append`` does, once the others are durable."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            goal = self._count
            self._acquisition.flush()
            while self._acquisition.durable_watermark < goal:
                self._collect()
                if self._acquisition.flush_is_stuck:
                    raise StorageError(
                        "frames of an unfinished slab cannot be made durable: no room to stage them"
                    )
                left_s = _POLL_S if deadline_s is None else min(_POLL_S, deadline_s - time.monotonic())
                if left_s <= 0:
                    durable = self._acquisition.durable_watermark
                    raise TimedOutError(
                        "not everything is durable yet",
                        expected=f"{goal} frames within {timeout_s} s",
                        got=f"{durable} frames",
                    )
                self._changed.wait(left_s)
            self._check_places()

    def update_metadata(self, attributes: Mapping[str, Any], *, image: str | None = None) -> None:
        """Adds JSON to the attributes in the zarr.json of the store's group, or of an ``image``'s; a name
        that is there gets the new value. Once it returned, a kill or a power cut loses nothing of it.

        Raises ``UnknownImageError``, ``MetadataError`` (no JSON, names of ours, or with all before more than
        1 MiB), ``ClosedError``, ``StorageError``, or what broke the pipeline. An image that never gets a
        frame has no folder: its metadata go at the end, with a warning that names it.
        """
        if self._receipt is not None:
            raise ClosedError("this writer is closed", hint="Update metadata inside the with block")
        number = None if image is None else self.images.number_of(image)
        plain = checked_update(attributes)
        with self._changed:
            request = self._acquisition.update_metadata(number, plain)
            self._updates_asked.add(request)
            try:
                while not self._take_answer(request):
                    self._changed.wait(_POLL_S)
                why = self._answers[request]
            finally:  # also after Ctrl-C: its answer, which may still come, is nobody's then
                self._updates_asked.discard(request)
                self._answers.pop(request, None)
            if why is not None:
                raise why.to_error()

    def _take_answer(self, request: int) -> bool:
        """Returns True once an update of metadata has its answer. Raises what broke the pipeline. Under the
        lock."""
        self._collect()
        for answered, why in self._acquisition.take_updates():
            if answered in self._updates_asked:
                self._answers[answered] = why
        if request in self._answers:
            self._changed.notify_all()  # the answers of other threads may have been among them
            return True
        if self._receipt is not None:  # closed by another thread, after a failure without an answer
            raise self._acquisition.error or ClosedError("this writer is closed")
        return False

    def close(self) -> Receipt:
        """Seals every shard and writes the final metadata; idempotent. A store that never got a frame is
        removed. Raises what broke the pipeline; ``DuplicateFrameError`` as ``append`` does, once everything
        is sealed."""
        if self._receipt is None:
            with self._changed:
                self._acquisition.finish(keep_empty=False)
                while self._acquisition.state not in (AcquisitionState.SEALED, AcquisitionState.FAILED):
                    self._changed.wait(_POLL_S)
                    self._collect(raising=False)  # the helper does so too, and much sooner, while it lives
                self._receipt = self._acquisition.receipt()
                self._ended = True
            self._wake.set()
            self._helper.join()
            self._ring.let_go()
            self._acquisition.close()
            self._pool.stop()
            self._ring.close()
            self._returned = None  # nothing reads a frame any more
            if trouble := self._receipt.trouble:
                log.warning(
                    "%s: not every frame is in its place: %s",
                    self.path.name,
                    ", ".join(f"{name} {n:,}" for name, n in trouble.items()),
                )
            if self._acquisition.error is not None:
                raise self._acquisition.error from None
            self._check_places()
        return self._receipt

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as closing:
            if error is None:
                raise
            error.add_note(f"closing the writer also failed: {closing}")

    def _look_after(self) -> None:
        """The helper thread: handles reports as they come, and checks the clocks several times a second."""
        while not self._ended:
            self._wake.wait(_CLOCK_S)
            self._wake.clear()
            with self._changed:
                if not self._ended:
                    self._collect(raising=False)
                self._changed.notify_all()
            self._ring.let_go()

    def _describe(
        self,
        pixels: np.ndarray,
        image: str | None,
        index: tuple[int, ...] | None,
        frame_id: int | None,
        metadata: Mapping[str, Any] | None,
    ) -> Placed:
        """Checks the next frame, finds its place and fills its descriptor. Raises as ``append`` does."""
        self._check_open()
        placed = self._intake.one(pixels, image, index, frame_id, metadata)
        position, values = placed.position, placed.columns
        if position is None:
            position = self._intake.check_count(self._count)
        record = self._descriptor[0]
        for name, value in zip(METADATA_FIELDS, values, strict=False):  # the array's own come behind them
            record[name] = value
        if self.images.frame_fields:
            record["further"] = values[len(METADATA_FIELDS) :][: len(self.images.frame_fields)]
        if self.images.frame_json_bytes:
            record[JSON_FIELD] = values[-1]
        record["flags"] = 0
        record["sequence"] = self._count
        record["position"] = position
        record["frame_id"] = -1 if frame_id is None else frame_id
        record["camera_ns"] = time.time_ns()
        record["monotonic_ns"] = time.monotonic_ns()
        return placed

    def _free_slots(self, most: int = 1) -> np.ndarray:
        """Returns slots for frames, int64[n]: as many as are free, at most ``most``; none when they are to be
        dropped. Under the lock."""
        overload = self._acquisition.settings.overload
        slots = self._ring.take(most)
        while not slots.size:
            self._collect()
            slots = self._ring.take(most)
            if slots.size or (
                overload == "drop" and self._acquisition.unrecorded_frames < MAX_UNRECORDED_FRAMES
            ):
                break
            if overload == "fail":
                raise OverloadError(
                    "the disk cannot keep up",
                    expected="a free frame buffer",
                    got=f"{self.limits.ring_frames} in use",
                )
            if self._ring.claimed and self._ring.claimed + self._acquisition.held_frames >= self._ring.used:
                raise all_claimed(self._ring.claimed, self.limits.ring_frames)
            self._changed.wait(_POLL_S)
        return slots

    def _give_back(self, slots: np.ndarray) -> None:
        """Frees slots whose frames are not submitted: those of a claim that is given up, or after Ctrl-C
        during a copy. With the writer they are gone."""
        with self._changed:
            if not self._ended:
                self._ring.give_back(slots)

    def _check_places(self) -> None:
        """Raises the error of a duplicate frame, if any. Under the lock, or once the acquisition has
        ended."""
        if (
            self._acquisition.settings.on_duplicate == "fail"
            and (why := self._acquisition.take_duplicates()) is not None
        ):
            raise why.to_error()

    def _collect(self, *, raising: bool = True) -> None:
        """Passes on the acquisition's released frames and events, and raises its error. Under the lock."""
        # claimed slots are no backlog: how long a camera keeps them says nothing of the workers
        self._acquisition.see_ring(self._ring.submitted, self.limits.ring_frames - self._ring.claimed)
        released = self._acquisition.poll()
        self._ring.release(released)
        if self._returned is not None:
            self._returned.add(released)
        for name, facts in self._acquisition.take_events():
            log.warning("%s: %s %s", self.path.name, name, facts)
        if (
            raising
            and self._acquisition.error is not None
            and self._receipt is None
            and not self._acquisition.in_flight
        ):
            raise self._acquisition.error from None
