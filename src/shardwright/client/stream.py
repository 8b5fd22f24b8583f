"""One acquisition for the user: append frames, close, read the receipt."""

from __future__ import annotations

import sys
import time
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.frame_claim import FrameClaim
from shardwright.array.frame_intake import FrameIntake, Placed
from shardwright.array.frame_order import Begun
from shardwright.array.update import checked_update
from shardwright.model.errors import (
    ClosedError,
    FrameIndexError,
    SessionLostError,
    ShardwrightError,
    VersionError,
)
from shardwright.model.step_lock import interrupts_package

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    import numpy.typing as npt

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec
    from shardwright.model.receipt import Receipt, Watermark
    from shardwright.wire.controls import Transport

    from .frame_ring import FrameRing
    from .link import Link, Loss
    from .outbox import Outbox


END_S = 10.0  # the longest that streams which nobody closed wait for their daemon


class Patience:
    """The time for which forgotten streams wait for one daemon: together, since a daemon that is silent is
    silent to all of them."""

    def __init__(self) -> None:
        self.left_s = END_S

    def wait(self, outbox: Outbox) -> None:
        """Waits until a stream has ended. Raises as ``Outbox.wait_for_end``."""
        begun_s = time.monotonic()
        try:
            outbox.wait_for_end(self.left_s)
        finally:
            self.left_s = max(0.0, self.left_s - (time.monotonic() - begun_s))


class Stream:
    """A stream made by ``Connection.acquire``.

    Any thread may call it, several at once. Frames that name no place are counted in the order in which their
    calls began. A call that waits for a slot holds nothing: others go on, and ``close`` ends it with
    ``ClosedError``. A signal handler or a finalizer may call it too, unless it has interrupted the same
    thread in the middle of a step (``NestedCallError``); a ``close`` then returns at once and the stream ends
    meanwhile. In a forked child every call raises ``ForkedError``.

    If nobody closes it, what came is sealed when the last reference goes or the interpreter ends
    (``ResourceWarning``): that waits for the daemon, at most 10 s.
    """

    def __init__(
        self,
        link: Link,
        forget: Callable[[Stream], None],
        owner: object = None,
        patience: Patience | None = None,
    ) -> None:
        """``owner`` lives as long as the stream."""
        self._link = link
        self._owner = owner
        self._outbox = link.outbox
        self._images = link.spec
        self._intake = FrameIntake(link.spec, link.opened.next_sequence, partial(_first_of, link))
        self._forget = forget
        self._closed = False
        self._forgotten = weakref.finalize(
            self, _end_forgotten, link.outbox, link.opened.path, patience or Patience()
        )
        self._scratch: npt.NDArray[np.uint8] | None = None  # for claims whose frames are to be dropped

    @property
    def path(self) -> str:
        """The folder in which the daemon writes, on the daemon's machine."""
        return self._link.opened.path

    @property
    def images(self) -> AcquisitionSpec:
        return self._images

    @property
    def spec(self) -> ArraySpec:
        """The specification of the array; of the first one if there are several images."""
        return self._images.arrays[0]

    @property
    def transport(self) -> Transport:
        """The transport of the pixels: ``"shm"`` or ``"message"``."""
        return self._link.opened.transport

    @property
    def _own(self) -> Outbox:
        """The outbox. Raises ``ForkedError``."""
        self._outbox.check_process()
        return self._outbox

    @property
    def frames_sent(self) -> int:
        """The number of frames given to this stream, without the dropped ones."""
        return self._own.frames

    @property
    def frames_dropped(self) -> int:
        """The number of frames that the overload policy ``drop`` has dropped here; each is named in the frame
        table."""
        return self._own.frames_dropped

    @property
    def watermark(self) -> Watermark:
        """The watermark in the daemon's last message: frames counted without holes from the acquisition's
        first, also that of an earlier client."""
        return self._own.watermark

    @property
    def frames_stored(self) -> int:
        """The number of frames from the first on, without holes, that a kill of the daemon cannot lose."""
        return self._own.watermark.stored

    @property
    def frames_durable(self) -> int:
        """The number of frames from the first on, without holes, that a power cut cannot lose."""
        return self._own.watermark.durable

    @property
    def reconnects(self) -> int:
        """The number of times that this stream was resumed after the daemon or the link had died."""
        self._outbox.check_process()
        return self._link.reconnects

    @property
    def losses(self) -> list[Loss]:
        """The frames that the daemon had accepted and could not keep (the last 4,096 ranges); the frame table
        names each."""
        self._outbox.check_process()
        return list(self._link.losses)

    @property
    def receipt(self) -> Receipt:
        """The daemon's receipt, once the stream has closed. Raises ``SessionLostError`` while there is
        none."""
        receipt = self._own.receipt
        if receipt is None:
            raise SessionLostError(
                "there is no receipt",
                hint="It comes when the stream closes; a session that was lost has none",
            )
        return receipt

    def append(
        self,
        frame: npt.ArrayLike,
        *,
        image: str | None = None,
        index: Sequence[int] | None = None,
        frame_id: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Sends one frame (rows, columns); it is copied before this returns. When the daemon is slow or not
        connected, the stream's overload policy decides: ``block`` waits (back-pressure), ``drop`` drops this
        frame, counted and recorded, ``fail`` raises ``OverloadError``.

        ``index`` places it (over the axes before the frame's own, in acquisition order); else ``frame_id``
        does, counted from 0; else the number of frames of the acquisition before it. With several images
        ``image`` names its own; then the frames of that image without an index are counted, and after
        ``reopen`` each needs one. With an ``order`` of the acquisition no frame need name anything.

        ``metadata``: ``delta_t``, ``exposure_time`` in seconds, ``position_x/y/z`` in micrometres, and what
        the array's ``frame_fields`` name; anything else that is JSON, text included, where the array has
        ``frame_json_bytes``. If that is longer, the frame is kept without it (``frame_json_dropped``).

        Raises ``FrameShapeError``, ``FrameDtypeError``, ``FrameIndexError``, ``UnknownImageError``,
        ``MetadataError`` for a frame that is not sent (the stream continues), ``ClosedError`` after
        ``close``, ``SessionLostError`` or the daemon's own error when the session has ended.
        """
        pixels = frame if type(frame) is np.ndarray else np.asarray(frame)
        placed = self._intake.one(pixels, image, index, frame_id, metadata)
        begun: Begun[Callable[[], None]] = Begun()
        try:
            self._outbox.take_slot(begun, counted=placed.position is None)
            ring = self._outbox.ring
            # without a ring the stream has ended, and add will raise
            if ring is not None and begun.slots is not None:
                ring.put(begun.slots, pixels)
            self._add_one(ring, begun, pixels, placed, frame_id)
        except BaseException:
            self._give_up(begun, placed)
            raise

    def _give_up(self, begun: Begun[Callable[[], None]], placed: Placed) -> None:
        """Gives back the slot and the place of a frame that is not sent."""
        if self._outbox.give_back(begun) and not placed.named and placed.position is not None:
            self._intake.give_back([placed.position])

    def _add_one(
        self,
        ring: FrameRing | None,
        begun: Begun[Callable[[], None]],
        pixels: npt.NDArray[Any],
        placed: Placed,
        frame_id: int | None,
    ) -> None:
        """Adds the frame that lies in its slot of ``ring``, or drops one without a slot; it is copied to a
        ring that replaces that one."""
        position, columns, _ = placed
        frame_id = -1 if frame_id is None else frame_id
        if begun.slots is None:
            self._outbox.drop(begun, position, frame_id, columns)
            return
        while (newer := self._outbox.add(ring, begun, position, frame_id, columns)) is not None:
            newer.put(begun.slots, pixels)
            ring = newer

    def claim(
        self,
        *,
        image: str | None = None,
        index: Sequence[int] | None = None,
        frame_id: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> FrameClaim:
        """Claims memory for one frame, into which a camera's driver writes: it is sent without a copy.

            with stream.claim(index=(7, 0)) as pixels:  # (rows, columns) of the image's dtype, any content
                camera.read_into(pixels)

        Leaving the block sends the frame as ``append`` does, with ``metadata`` as they are then; an exception
        gives the memory back. Several may be claimed at once, by any thread, and committed in any order:
        frames that name no place are counted as they are committed. ``pixels`` must not be written after the
        block.

        While the ring is full, ``block`` waits here and ``fail`` raises; with ``drop`` the frame goes into
        memory that is not kept, and is recorded as dropped at the end of the block. Raises as ``append``
        does, here what is wrong already, at the end of the block what becomes wrong meanwhile;
        ``OverloadError`` also where the ring is full of claims, and frames that may wait for them. Claims
        that are open when the stream is closed are given back: a later commit raises ``ClosedError``. Over a
        reconnection claims stay open.
        """
        self._outbox.check_process()
        form = self._intake.form(image, index, frame_id, metadata)
        if self._images.is_single and index is None and frame_id is None:
            self._intake.check_count(self._outbox.next_sequence)
        claimed = self._outbox.claim_slot()
        slot, ring = (None, None) if claimed is None else claimed
        return FrameClaim(
            self._scratch_of(form) if claimed is None else claimed[1].pixels(claimed[0], form),
            partial(self._commit, slot, ring, image, index, frame_id, metadata),
            partial(self._outbox.give_back_claimed, slot),
        )

    def _scratch_of(self, form: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns pixels in memory that all frames which are to be dropped share."""
        if self._scratch is None:
            self._scratch = np.empty(self._images.grids.slot_bytes, np.uint8)
        return self._scratch[: form.nbytes].view(form.dtype).reshape(form.shape)

    def _commit(
        self,
        slot: int | None,
        ring: FrameRing | None,
        image: str | None,
        index: Sequence[int] | None,
        frame_id: int | None,
        metadata: Mapping[str, Any] | None,
        pixels: npt.NDArray[Any],
    ) -> None:
        begun: Begun[Callable[[], None]] = Begun()
        placed = None
        try:
            self._outbox.check_process()
            placed = self._intake.one(pixels, image, index, frame_id, metadata)
            self._outbox.end_claim(begun, slot, counted=placed.position is None)
            self._add_one(ring, begun, pixels, placed, frame_id)
        except BaseException:
            if not begun.serial:
                self._outbox.give_back_claimed(slot)
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
    ) -> None:
        """Appends each of ``frames`` (count, rows, columns) in turn, with one copy and no Python for each:
        for small frames at a high rate. It may return while the last of them wait to be sent, and waits,
        drops or fails as ``append`` does.

        ``indices``: integers (count, axes); ``frame_ids``: integers (count,); each value of ``metadata``: one
        for all, or a list or array of one for each. All are of one ``image``, or without its name the next
        ones in the acquisition's ``order``. Raises as ``append`` does. A fault of one frame is raised before
        any of them is sent.
        """
        self._outbox.check_process()
        pixels, records, counted, named = self._intake.many(frames, image, indices, frame_ids, metadata)
        done = 0
        stack: Begun[Callable[[], None]] = Begun()
        stands = counted and len(pixels) > 0
        try:
            if stands:
                self._outbox.stand_in_line(stack, len(pixels))
            while done < len(pixels):
                done += self._append_part(pixels[done:], records[done:], counted=counted)
        except BaseException:
            if not named:
                self._intake.give_back(records["position"][done:].tolist())
            raise
        finally:
            if stands:
                self._outbox.leave_line(stack)

    def _append_part(self, pixels: npt.NDArray[Any], records: npt.NDArray[np.void], *, counted: bool) -> int:
        """Sends the first of these frames, as many as a batch holds and there is room for, or drops as many.
        Returns how many."""
        begun: Begun[Callable[[], None]] = Begun()
        try:
            self._outbox.take_slots(begun, len(pixels), counted=counted)
            pixels, records = pixels[: begun.frames], records[: begun.frames]
            if not len(begun.slots):
                self._outbox.drop_many(begun, records, counted=counted)
                return begun.frames
            ring = self._outbox.ring
            while True:
                if ring is not None:
                    ring.put(begun.slots, pixels)
                ring = self._outbox.add_many(ring, begun, records, counted=counted)
                if ring is None:
                    return begun.frames
        except BaseException:
            self._outbox.give_back(begun)
            raise

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until every frame appended before is durable: it survives a power cut. Raises
        ``TimedOutError`` after ``timeout_s``, or what ended the session."""
        self._own.flush(timeout_s)

    def update_metadata(
        self, attributes: Mapping[str, Any], *, image: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Adds JSON to the attributes in the zarr.json of the store's group, or of an ``image``'s; a name
        that is there gets the new value. Once it returned, a kill of the daemon or a power cut loses nothing
        of it; while the daemon is away it waits, and while 64 others of this stream have no answer yet.

        Raises ``UnknownImageError``, ``MetadataError`` (no JSON, names of ours, too long for a message, or
        with all before more than 1 MiB), ``StorageError`` when the daemon cannot write them (the stream
        continues), ``TimedOutError``, ``VersionError`` for a daemon of an earlier release, ``ClosedError``,
        or what ended the session. An image that never gets a frame has no folder: its metadata go at the
        end, and the daemon's event ``image_metadata_dropped`` names it.
        """
        self._outbox.check_process()
        if image is not None:
            self._images.number_of(image)
        plain = checked_update(attributes)
        if not self._link.takes_updates:
            raise VersionError(
                "the daemon is of an earlier release, which cannot update metadata",
                hint="Upgrade it, or give attributes when the acquisition begins",
            )
        self._outbox.update(image, plain, self._link.max_control_bytes, timeout_s)

    def close(self) -> None:
        """Ends the acquisition and waits until everything is sealed; ``receipt`` is set afterwards. Later
        calls do nothing.

        Raises the error that ended the session, if it was lost before.
        """
        self._outbox.check_process()
        if self._closed:
            return
        if self._outbox.is_in_step:  # to wait here would be for oneself
            self._outbox.ask_to_finish()
            return
        self._outbox.finish()
        try:
            self._outbox.wait_for_end()
        finally:
            if self._outbox.is_over:  # else it was interrupted, and may be called again
                self._closed = True
                self._forgotten.detach()
                self._forget(self)
            self._outbox.drop_ring_at_end()  # frees its memory

    def __enter__(self) -> Stream:
        if self._closed:
            raise ClosedError("this stream has ended", hint="Acquire a new one for more frames")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the stream. After an exception in the body the frames that arrived are still sealed, and
        that exception propagates."""
        if error is None:
            self.close()
            return
        try:
            self.close()
        except ShardwrightError as closing:
            error.add_note(f"closing the stream also failed: {closing}")


def _first_of(link: Link, _image: int) -> int:
    """As ``FrameIntake`` asks. Raises ``FrameIndexError`` where only the daemon knows how many frames the
    image has."""
    if link.request.reopen:
        raise FrameIndexError(
            "a frame without a place after a reopen of several images", expected="an index for each frame"
        )
    return 0


def _end_forgotten(outbox: Outbox, path: str, patience: Patience) -> None:
    """Ends a stream that nobody closed: the interpreter ends, or the last reference to it is gone. Called
    from any thread, at any moment; in a forked child it does nothing."""
    if outbox.is_forked or outbox.is_over:
        return
    outbox.ask_to_finish()
    if not interrupts_package():  # else the I/O thread goes on alone
        try:
            patience.wait(outbox)
        except ShardwrightError as error:
            if outbox.receipt is None:
                unstored = outbox.next_sequence - outbox.watermark.stored
                sys.stderr.write(f"{path}: {unstored:,} frames are not known to be stored: {error}\n")
        outbox.drop_ring_at_end()
    warnings.warn(
        f"the stream of {path} was not closed; the frames that came are sealed. Use a with block, or close()",
        ResourceWarning,
        stacklevel=2,
    )
