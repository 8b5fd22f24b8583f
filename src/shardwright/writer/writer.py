"""The in-process writer: appends frames without a daemon. One copy into a ring of recycled frame buffers,
or none (``copy=False``, ``claim``), then the daemon's pipeline."""

from __future__ import annotations

import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.array.frame_claim import FrameClaim
from shardwright.array.frame_intake import FrameIntake
from shardwright.array.frame_order import Begun
from shardwright.array.update import checked_update
from shardwright.model.errors import ShardwrightError
from shardwright.model.receipt import Watermark
from shardwright.wire.descriptor import FRAME_DROPPED, JSON_FIELD, METADATA_FIELDS

from .driver import Driver, Frames, end_forgotten
from .frame_buffers import can_be_lent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from shardwright.acquire.acquisition import Acquisition
    from shardwright.acquire.workers import WorkerPool
    from shardwright.array.frame_intake import Placed
    from shardwright.array.spec import ArraySpec
    from shardwright.model.receipt import Receipt

BATCH_BYTES = 8 << 20  # of pixels that ``append_many`` submits at once


def _behind_newest(acquisition: Acquisition) -> Callable[[int], int]:
    """Returns ``first_of`` of a ``FrameIntake``: the place behind an image's newest frame."""
    return lambda image: int(acquisition.accounts.newest[image]) + 1


class Writer:
    """The in-process writer, made by ``shardwright.create`` or ``shardwright.resume``; a context manager.

    Any thread may call it, several at once. Frames that name no place are counted in the order in which their
    calls began. A call that waits for a free frame buffer holds nothing: others go on, and ``close`` ends it
    with ``ClosedError``. A signal handler or a finalizer may call it too, unless it has interrupted the same
    thread in the middle of a step (``NestedCallError``): a ``close`` then returns the receipt so far and
    seals meanwhile, what only reads works always. In a forked child every call raises ``ForkedError``.

    If nobody closes it, what came is sealed when the last reference goes or the interpreter ends
    (``ResourceWarning``).
    """

    def __init__(self, make: Callable[[WorkerPool, Callable[[], None]], Acquisition], threads: int) -> None:
        try:
            self._driver = driver = Driver(make, threads)
        except ShardwrightError as error:
            raise error from None  # the error is complete: one traceback is enough
        self._forgotten = weakref.finalize(self, end_forgotten, driver)
        self._acquisition = acquisition = driver.acquisition
        self._ring = driver.ring
        self.images = acquisition.spec
        self.limits = acquisition.limits
        self._intake = FrameIntake(self.images, driver.count, _behind_newest(acquisition))
        # descriptors and addresses of single frames: as many as threads append at once
        self._spare: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._copied = 0  # frames of copy=False that could not be read as they lie

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
        self._driver.lock.check_process()
        return self._driver.count

    @property
    def released(self) -> int:
        """The number of frames, as ``frames`` counts them, from the first on without a hole, whose memory is
        not read any more: the caller may change that of frames below it. With ``copy=True`` that is every
        frame whose ``append`` has returned."""
        self._driver.lock.check_process()
        return self._driver.released

    @property
    def copied(self) -> int:
        """The number of frames that were given with ``copy=False`` and had to be copied all the same."""
        self._driver.lock.check_process()
        return self._copied

    @property
    def receipt(self) -> Receipt:
        """The receipt so far; final once the writer is closed."""
        return self._driver.receipt_so_far()

    @property
    def watermark(self) -> Watermark:
        """The number of frames from the first on, without holes, that a kill of this process (``stored``) or
        a power cut (``durable``) cannot lose."""
        self._driver.lock.check_process()
        durable = self._acquisition.durable_watermark  # first: ``stored`` is then at least as much
        return Watermark(self._acquisition.stored_watermark, durable)

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
        ``frame_json_bytes``. If that is longer, the frame is kept without it (``frame_json_dropped``).

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
        self._driver.check_open()
        pixels = np.asarray(frame)
        placed = self._intake.one(pixels, image, index, frame_id, metadata)
        counted = placed.position is None
        begun: Begun[Frames] = Begun()
        try:
            record, address = described = self._described(placed, frame_id)
            self._driver.begin(begun, 1, counted=counted, check_count=self._intake.check_count)
            lent = self._put(begun.slots, pixels, record, address, copy=copy)
            if self._driver.complete(begun, Frames(begun.slots, record, address, counted, lent)):
                self._spare.append(described)
        except BaseException:
            self._give_up(begun, placed)
            raise

    def _give_up(self, begun: Begun[Frames], placed: Placed) -> None:
        """Gives back the slot and the place of a frame that is not stored."""
        if self._driver.give_up(begun) and not placed.named and placed.position is not None:
            self._intake.give_back([placed.position])

    def _put(
        self, slots: np.ndarray, pixels: np.ndarray, record: np.ndarray, address: np.ndarray, *, copy: bool
    ) -> bool:
        """Sets the address of a frame: in its slot, or where it lies. Returns whether it is lent."""
        if not slots.size:
            record["flags"] = FRAME_DROPPED
            return False
        if not copy and can_be_lent(pixels):
            address[:] = self._ring.lend(slots, pixels[None])
            return True
        self._copied += not copy
        address[0] = self._ring.put(slots.item(), pixels)
        return False

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
        self._driver.check_open()
        form = self._intake.form(image, index, frame_id, metadata)
        if self.images.is_single and index is None and frame_id is None:
            self._intake.check_count(self._driver.count)
        slots = self._driver.claim()
        return FrameClaim(
            self._ring.pixels(slots, form),
            partial(self._commit, slots, image, index, frame_id, metadata),
            partial(self._driver.give_back_claimed, slots),
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
        begun: Begun[Frames] = Begun()
        placed = None
        try:
            self._driver.check_open()
            placed = self._intake.one(pixels, image, index, frame_id, metadata)
            record, address = described = self._described(placed, frame_id)
            if slots.size:
                address[0] = self._ring.address_of(slots.item())
            else:
                record["flags"] = FRAME_DROPPED
            counted = placed.position is None
            check_count = self._intake.check_count
            self._driver.begin_claimed(begun, slots, counted=counted, check_count=check_count)
            if self._driver.complete(begun, Frames(slots, record, address, counted, lent=False)):
                self._spare.append(described)
        except BaseException:
            if not begun.serial:
                self._driver.give_back_claimed(slots)
            if placed is not None:
                self._give_up(begun, placed)
            raise

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
        self._driver.check_open()
        pixels, records, counted, named = self._intake.many(frames, image, indices, frame_ids, metadata)
        lent = not copy and can_be_lent(pixels)
        done = 0
        stack: Begun[Frames] = Begun()
        stands = counted and len(pixels) > 0
        try:
            if stands:
                self._driver.stand_in_line(stack, len(pixels), self._intake.check_count)
            while done < len(pixels):
                done += self._append_part(
                    pixels[done:], records[done:], counted=counted, copy=copy, lent=lent
                )
        except BaseException:
            if not named:
                self._intake.give_back(records["position"][done:].tolist())
            raise
        finally:
            if stands:
                self._driver.leave_line(stack)

    def _append_part(
        self, pixels: np.ndarray, records: np.ndarray, *, counted: bool, copy: bool, lent: bool
    ) -> int:
        """Appends the first of these frames, as many as there is room for, or drops as many. Returns how
        many."""
        # parts, so that workers begin while the rest is copied
        most = max(self.limits.frames_per_slab, BATCH_BYTES // self.limits.frame_bytes)
        most = min(most, len(records))
        begun: Begun[Frames] = Begun()
        try:
            self._driver.begin(begun, most, counted=counted, check_count=self._intake.check_count)
            slots, records = begun.slots, records[: begun.frames]
            dropped = not slots.size
            addresses = np.zeros(len(records), np.int64)
            if not dropped:
                put = self._ring.lend if lent else self._ring.put_many
                addresses = put(slots, pixels[: slots.size])
            records["flags"] = FRAME_DROPPED if dropped else 0
            records["camera_ns"], records["monotonic_ns"] = time.time_ns(), time.monotonic_ns()
            self._copied += slots.size if not (copy or lent) else 0
            self._driver.complete(begun, Frames(slots, records, addresses, counted, lent and not dropped))
        except BaseException:
            self._driver.give_up(begun)
            raise
        return len(records)

    def _described(self, placed: Placed, frame_id: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the descriptor of one frame, without its sequence, nor its position if that is its count;
        and room for its address. ``_spare`` gets both back."""
        try:
            records, address = self._spare.pop()
        except IndexError:
            records, address = np.zeros(1, self.images.frame_descriptor), np.zeros(1, np.int64)
        record, values = records[0], placed.columns
        for name, value in zip(METADATA_FIELDS, values, strict=False):  # the array's own come behind them
            record[name] = value
        if self.images.frame_fields:
            record["further"] = values[len(METADATA_FIELDS) :][: len(self.images.frame_fields)]
        if self.images.frame_json_bytes:
            record[JSON_FIELD] = values[-1]
        if placed.position is not None:
            record["position"] = placed.position
        record["frame_id"] = -1 if frame_id is None else frame_id
        record["camera_ns"] = time.time_ns()
        record["monotonic_ns"] = time.monotonic_ns()
        record["flags"] = 0
        return records, address

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until every frame appended so far is durable. Raises ``TimedOutError``, or what broke the
        pipeline; ``DuplicateFrameError`` as ``append`` does, once the others are durable."""
        self._driver.flush(timeout_s)

    def update_metadata(self, attributes: Mapping[str, Any], *, image: str | None = None) -> None:
        """Adds JSON to the attributes in the zarr.json of the store's group, or of an ``image``'s; a name
        that is there gets the new value. Once it returned, a kill or a power cut loses nothing of it.

        Raises ``UnknownImageError``, ``MetadataError`` (no JSON, names of ours, or with all before more than
        1 MiB), ``ClosedError``, ``StorageError``, or what broke the pipeline. An image that never gets a
        frame has no folder: its metadata go at the end, with a warning that names it.
        """
        self._driver.lock.check_process()
        number = None if image is None else self.images.number_of(image)
        self._driver.update_metadata(number, checked_update(attributes))

    def close(self) -> Receipt:
        """Seals every shard and writes the final metadata; idempotent. A store that never got a frame is
        removed. Raises what broke the pipeline; ``DuplicateFrameError`` as ``append`` does, once everything
        is sealed."""
        receipt = self._driver.end()
        if self._driver.receipt is not None:
            self._forgotten.detach()
        return receipt

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
