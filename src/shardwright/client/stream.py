"""One acquisition for the user: append frames, close, read the receipt."""

from __future__ import annotations

import sys
import time
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.frame_admission import FrameAdmission
from shardwright.array.frame_order import Begun
from shardwright.array.frame_sink import FrameSink
from shardwright.array.metadata_update import MetadataUpdate
from shardwright.model.errors import FrameIndexError, SessionLostError, ShardwrightError, VersionError
from shardwright.model.step_lock import interrupts_package

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from shardwright.array.acquisition_spec import Image
    from shardwright.array.frame_admission import AdmittedFrame
    from shardwright.model.progress_teller import OnProgress
    from shardwright.model.receipt import Receipt, Watermark
    from shardwright.model.write_options import Extent
    from shardwright.wire.controls import Transport

    from .frame_ring import FrameRing
    from .link import Link, Loss
    from .outbox import Addition, Outbox

    Claimed = tuple[int, FrameRing] | tuple[None, None]  # None: the frame is to be dropped

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


def _older(spelled: str, read: Callable[[Outbox], int]) -> property:
    """A property of release 0.2, which works for one release with a warning: now ``spelled``."""

    def get(stream: Stream) -> int:
        warnings.warn(f"write {spelled}: the next release has that alone", DeprecationWarning, stacklevel=2)
        return read(stream._own) // stream._places  # noqa: SLF001

    return property(get)


class Stream(FrameSink):
    """Sends an acquisition to a daemon; made by ``Connection.acquire``.

    One that nobody closes waits at most 10 s for the daemon.
    """

    def __init__(
        self,
        link: Link,
        forget: Callable[[Stream], None],
        owner: object = None,
        patience: Patience | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """``owner`` lives as long as the stream."""
        unknown = len(link.spec.names) if link.request.reopen else 0
        admission = FrameAdmission(link.spec, link.opened.next_sequence, partial(_first_of, unknown))
        link.admission = admission
        super().__init__(link.outbox, admission)
        self._link = link
        self._owner = owner  # the connection knows its streams weakly, so that one can be forgotten
        self._outbox = link.outbox
        self._forget = forget
        self._closed = False  # the outbox has ended, and ``close`` has told it
        # It holds the outbox and never the stream, which would then live for ever.
        self._forgotten = weakref.finalize(
            self, _end_forgotten, link.outbox, link.opened.path, patience or Patience()
        )
        # For claims whose frames are to be dropped. Several may write into it at once: nobody reads it.
        self._scratch: npt.NDArray[np.uint8] | None = None
        self._on_progress = on_progress  # which nothing else keeps alive
        if on_progress is not None:
            expected = link.request.frames_expected
            link.outbox.tell_progress(on_progress, lambda: expected or link.spec.total_frames)

    @property
    def _own(self) -> Outbox:
        """The outbox. Raises ``ForkedError``."""
        self._outbox.check_process()
        return self._outbox

    @property
    def path(self) -> str:
        return self._link.opened.path

    @property
    def frames_dropped(self) -> int:
        return self._own.frames_dropped // self._places

    @property
    def released(self) -> int:
        return self.frames

    @property
    def watermark(self) -> Watermark:
        return self._own.watermark.of_frames(self._places)

    @property
    def receipt(self) -> Receipt:
        receipt = self._own.receipt
        if receipt is None:
            raise SessionLostError(
                "there is no receipt",
                hint="It comes when the stream closes; a session that was lost has none",
            )
        return receipt

    @property
    def transport(self) -> Transport:
        """The transport of the pixels: ``"shm"`` or ``"message"``."""
        return self._link.opened.transport

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

    frames_sent = _older("stream.frames, which counts dropped and earlier ones, too", lambda own: own.frames)
    frames_stored = _older("stream.watermark.stored", lambda own: own.watermark.stored)
    frames_durable = _older("stream.watermark.durable", lambda own: own.watermark.durable)

    def _take(
        self,
        begun: Addition,
        claimed: Claimed | None,
        pixels: npt.NDArray[Any],
        admitted: AdmittedFrame,
        frame_id: int | None,
        *,
        copy: bool,
    ) -> None:
        position, columns, _ = admitted
        frame_id = -1 if frame_id is None else frame_id
        if claimed is None:
            self._outbox.take_slot(begun, counted=position is None)
            ring = self._outbox.ring
            # without a ring the stream has ended, and add will raise
            if ring is not None and begun.slots is not None:
                ring.put(begun.slots, pixels)
                if not copy:
                    self._copied += 1
        else:
            slot, ring = claimed
            self._outbox.end_claim(begun, slot, counted=position is None)
        if begun.slots is None:
            self._outbox.drop(begun, position, frame_id, columns)
            return
        while (newer := self._outbox.add(ring, begun, position, frame_id, columns)) is not None:
            newer.put(begun.slots, pixels)  # it replaces the ring in which the frame lies
            ring = newer

    def _claim(self, form: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Claimed, Callable[[], None]]:
        slot, ring = claimed = self._outbox.claim_slot() or (None, None)
        if slot is not None and ring is not None:
            pixels = ring.pixels(slot, form)
        else:  # in memory that all frames which are to be dropped share
            if self._scratch is None:
                self._scratch = np.empty(self.images.grids.slot_bytes * self._places, np.uint8)
            pixels = self._scratch[: form.nbytes].view(form.dtype).reshape(form.shape)
        return pixels, claimed, partial(self._outbox.give_back_claimed, slot)

    def _take_part(
        self, pixels: npt.NDArray[Any], records: npt.NDArray[np.void], *, counted: bool, copy: bool
    ) -> int:
        begun: Addition = Begun()
        try:
            self._outbox.take_slots(begun, len(records), counted=counted)
            pixels, records = pixels[: begun.frames // self._places], records[: begun.frames]
            if not len(begun.slots):
                self._outbox.drop_many(begun, records, counted=counted)
                return begun.frames
            ring = self._outbox.ring
            while True:
                if ring is not None:
                    ring.put(begun.slots, pixels)
                ring = self._outbox.add_many(ring, begun, records, counted=counted)
                if ring is None:
                    if not copy:
                        self._copied += begun.frames // self._places
                    return begun.frames
        except BaseException:
            self._outbox.give_up(begun)
            raise

    def _skip_part(self, records: npt.NDArray[np.void], *, counted: bool) -> int:
        begun: Addition = Begun()
        try:
            self._outbox.begin_skipped(begun, len(records), counted=counted)
            self._outbox.skip(begun, records[: begun.frames], counted=counted)
        except BaseException:
            self._outbox.give_up(begun)
            raise
        return begun.frames

    def _check_declares(self) -> None:
        if not self._link.welcome.declares:
            raise VersionError(
                "the daemon is of an earlier release, which skips no places and declares no extent",
                hint="Upgrade it; places to which no frame comes stay empty there as well",
            )

    def _update(self, image: int | None, attributes: dict[str, Any], timeout_s: float | None) -> None:
        what = "" if self._link.welcome.updates else "update metadata"
        if not self._link.welcome.removes and not MetadataUpdate.of_json(attributes).is_plain:
            what = what or "remove metadata, or add to those of OME-Zarr"
        if what:
            raise VersionError(
                f"the daemon is of an earlier release, which cannot {what}",
                hint="Upgrade it, or give attributes when the acquisition begins",
            )
        name = None if image is None else self.images.names[image]
        self._outbox.update(name, attributes, self._link.welcome.max_control_bytes, timeout_s)

    def _add(self, image: Image, timeout_s: float | None) -> None:
        if not self._link.welcome.adds_images:
            raise VersionError(
                "the daemon is of an earlier release, which adds no images to a running acquisition",
                hint="Upgrade it, or declare all images when the acquisition begins",
            )
        known = len(self.images.names)
        self._outbox.add_image(image.to_json(), known, self._link.welcome.max_control_bytes, timeout_s)

    def close(self, *, extent: Extent = "frames") -> Receipt | None:
        self._outbox.check_process()
        if self._closed:
            return self._outbox.receipt
        if extent != "frames":
            self._check_declares()
            self._outbox.declare(extent)
        if self._outbox.is_in_step:  # to wait here would be for oneself
            self._outbox.ask_to_finish()
            return self._outbox.receipt
        self._outbox.finish()
        try:
            return self._outbox.wait_for_end()
        finally:
            if self._outbox.is_over:  # else it was interrupted, and may be called again
                self._closed = True
                self._forgotten.detach()
                self._forget(self)
            self._outbox.drop_ring_at_end()  # frees its memory


def _first_of(unknown: int, image: int) -> int:
    """As ``FrameAdmission`` asks. Raises ``FrameIndexError`` for the first ``unknown`` images: only the
    daemon knows how many frames they have."""
    if image < unknown:
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
