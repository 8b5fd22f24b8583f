"""One acquisition as the user sees it: append frames, close, read the receipt."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import Grid
from shardwright.model.errors import ClosedError, FrameDtypeError, FrameIndexError, FrameShapeError, SessionLostError, ShardwrightError
from shardwright.wire.descriptor import METADATA_FIELDS
from shardwright.wire.messages import MAX_POSITION
from shardwright.wire.metadata import checked_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    import numpy.typing as npt

    from shardwright.array.spec import ArraySpec
    from shardwright.model.receipt import Receipt
    from shardwright.wire.controls import Transport

    from .frame_ring import FrameRing
    from .link import Link

_NO_METADATA = (math.nan,) * len(METADATA_FIELDS)


class Stream:
    """Made by ``Connection.acquire``. ``append`` may be called from several threads; frames are then numbered in the order they were complete."""

    def __init__(self, link: Link, ring: FrameRing, forget: Callable[[Stream], None]) -> None:
        self._link = link
        self._outbox = link.outbox
        self._frames: npt.NDArray[Any] | None = ring.frames
        self._dtype = ring.frames.dtype
        self._shape = link.spec.frame_shape
        self._grid = Grid.of(link.spec)
        self._forget = forget
        self._closed = False

    @property
    def path(self) -> str:
        """Where the daemon writes, on the daemon's machine."""
        return self._link.opened.path

    @property
    def spec(self) -> ArraySpec:
        return self._link.spec

    @property
    def transport(self) -> Transport:
        """How the pixels travel: ``"shm"`` or ``"message"``."""
        return self._link.opened.transport

    @property
    def frames_sent(self) -> int:
        return self._outbox.frames

    @property
    def frames_stored(self) -> int:
        """Frames from the first on, without holes, that a kill of the daemon cannot lose."""
        return self._link.stored_frames

    @property
    def frames_durable(self) -> int:
        """Frames from the first on, without holes, that a power cut cannot lose."""
        return self._link.durable_frames

    @property
    def receipt(self) -> Receipt:
        """The daemon's account, once the stream has closed. ``SessionLostError`` while there is none."""
        receipt = self._outbox.receipt
        if receipt is None:
            raise SessionLostError("there is no receipt", hint="It comes when the stream closes; a session that was lost has none")
        return receipt

    def append(
        self,
        frame: npt.ArrayLike,
        *,
        index: Sequence[int] | None = None,
        frame_id: int | None = None,
        metadata: Mapping[str, float] | None = None,
    ) -> None:
        """Sends one frame (rows, columns); it is copied before this returns. Waits while the daemon is behind (back-pressure).

        ``index`` places it (over the axes before the frame's own, in acquisition order); else ``frame_id`` does, counted from 0; else the number of
        frames appended before. ``metadata``: ``delta_t``, ``exposure_time`` in seconds, ``position_x/y/z`` in micrometres.
        Raises ``FrameShapeError``, ``FrameDtypeError``, ``FrameIndexError``, ``MetadataError`` for a frame that is not sent (the stream goes on),
        ``ClosedError`` after ``close``, ``SessionLostError`` or the daemon's own error when the session has ended.
        """
        pixels = frame if type(frame) is np.ndarray else np.asarray(frame)
        if pixels.shape != self._shape:
            raise FrameShapeError("wrong frame shape", expected=self._shape, got=pixels.shape)
        if pixels.dtype != self._dtype:
            raise FrameDtypeError("wrong frame dtype", expected=self._dtype.name, got=pixels.dtype.str)
        position = self._position(index, frame_id)
        columns = _NO_METADATA
        if metadata is not None:
            values = checked_metadata(metadata)
            columns = tuple(values.get(name, math.nan) for name in METADATA_FIELDS)
        slot = self._outbox.take_slot()
        try:
            assert self._frames is not None, "take_slot raises after close"
            self._frames[slot] = pixels
            self._outbox.add(slot, position, -1 if frame_id is None else frame_id, columns)
        except BaseException:
            self._outbox.give_back(slot)
            raise

    def _position(self, index: Sequence[int] | None, frame_id: int | None) -> int | None:
        """Where the frame goes; None for its own count."""
        if frame_id is not None and not 0 <= operator.index(frame_id) <= MAX_POSITION:
            raise FrameIndexError("frame id outside the array", expected="0 or more", got=frame_id)
        if index is not None:
            position = self._grid.position_of(tuple(operator.index(i) for i in index))
        elif frame_id is not None:
            position = self._grid.check_position(operator.index(frame_id))
        else:
            return None
        return position

    def close(self) -> None:
        """Ends the acquisition and waits until everything is sealed; the receipt is there afterwards. Later calls do nothing.

        Raises what ended the session when it was lost before.
        """
        if self._closed:
            return
        self._closed = True
        self._outbox.finish()
        try:
            self._outbox.wait_for_end()
        finally:
            self._forget(self)
            self._frames = None  # the I/O thread drops the other reference: the ring's memory goes

    def __enter__(self) -> Stream:
        if self._closed:
            raise ClosedError("this stream has ended", hint="Acquire a new one for more frames")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Closes. After an exception in the body what arrived is still sealed, and that exception goes on."""
        if error is None:
            self.close()
            return
        try:
            self.close()
        except ShardwrightError as closing:
            error.add_note(f"closing the stream also failed: {closing}")
