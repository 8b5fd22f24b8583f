"""The memory in which frames wait: local (message transport), or the daemon's memfd, fetched over its Unix
socket and checked before it is mapped (in a helper thread, see ``rings.py``)."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import ProtocolError, SessionLostError
from shardwright.model.machine import boot_id
from shardwright.wire import handover

if TYPE_CHECKING:
    import numpy.typing as npt

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.wire.controls import Opened, Welcome

HANDOVER_TIMEOUT_S = 10.0


class FrameRing:
    """The slots of a stream: ``frames[slot]`` has the pixels of one, in the form of ``spec.slot_form``. Slots
    are contiguous, so a run of slots is one piece of memory."""

    def __init__(self, buffer: Any, spec: AcquisitionSpec, slot_count: int, *, is_local: bool) -> None:
        name, shape = spec.slot_form
        dtype = np.dtype(name).newbyteorder("<")
        self.frames: npt.NDArray[Any] = np.frombuffer(buffer, dtype).reshape(slot_count, *shape)
        # Itself, not a view of it: the next ring is made of it, and views of views would be a chain that each
        # acquisition makes longer.
        self.memory = buffer
        self._bytes = memoryview(buffer).cast("B")
        self._slot_bytes = spec.grids.slot_bytes
        self._alone = spec.is_single
        self._places = spec.frame_places
        self.is_local = is_local  # else the daemon's: never kept for the next stream

    def put(self, slots: int | npt.NDArray[np.int64], pixels: npt.NDArray[Any]) -> None:
        """Copies a frame (rows, columns), or one for each slot, of an image's own shape and dtype. One of
        colours (channels, rows, columns) goes into as many slots, the first of which may stand alone."""
        if self._places > 1:
            self._put_by_channel(slots, pixels)
            return
        if self._alone:
            self.frames[slots] = pixels
            return
        nbytes = pixels.shape[-2] * pixels.shape[-1] * pixels.itemsize
        views = self.frames[:, 0, :nbytes].view(pixels.dtype)
        views.reshape(len(self.frames), *pixels.shape[-2:])[slots] = pixels

    def _put_by_channel(self, slots: int | npt.NDArray[np.int64], pixels: npt.NDArray[Any]) -> None:
        *_, rows, columns = pixels.shape
        whole = len(self.frames) // self._places * self._places
        memory = np.frombuffer(self._bytes, np.uint8).reshape(len(self.frames), self._slot_bytes)
        views = memory[:whole, : rows * columns * pixels.itemsize].view(pixels.dtype.newbyteorder("<"))
        runs = slots // self._places if isinstance(slots, int) else slots[:: self._places] // self._places
        views.reshape(-1, self._places, rows, columns)[runs] = pixels

    def pixels(self, slot: int, form: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the pixels of one slot, of the shape and dtype of ``form``, uncopied; of colours those of
        as many slots."""
        if self._places > 1:
            planes = np.frombuffer(self._bytes, np.uint8).reshape(len(self.frames), self._slot_bytes)
            planes = planes[slot : slot + self._places, : form.nbytes // self._places]
            return planes.view(form.dtype).reshape(form.shape)
        first = slot * self._slot_bytes
        return np.frombuffer(self._bytes[first : first + form.nbytes], form.dtype).reshape(form.shape)

    @classmethod
    def local(cls, spec: AcquisitionSpec, slot_count: int, spare: FrameRing | None = None) -> FrameRing:
        """Makes a ring in local memory. ``spare``: an unused ring of as many bytes, whose memory is
        reused."""
        if spare is not None:
            return cls(spare.memory, spec, slot_count, is_local=True)
        memory = np.empty(slot_count * spec.grids.slot_bytes, np.uint8)
        # touches every page now: the first touch is the expensive one, and the camera should not wait for it
        memory.fill(0)
        return cls(memory, spec, slot_count, is_local=True)

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes

    def touch(self) -> None:
        """Reads a byte of each page, so that the page table is filled now and not at each frame's first copy.
        The daemon has filled the pages."""
        np.frombuffer(self._bytes, np.uint8)[:: mmap.PAGESIZE].max()

    def run(self, first_slot: int, slot_count: int) -> memoryview:
        """The bytes of adjacent slots, uncopied."""
        return self._bytes[first_slot * self._slot_bytes : (first_slot + slot_count) * self._slot_bytes]


def shared_memory_offered(welcome: Welcome) -> bool:
    """True if a ring can be fetched from here: the daemon runs on Linux under the same kernel, and this
    process can reach its socket."""
    if (
        sys.platform != "linux"
        or welcome.ring_socket is None
        or welcome.boot_id is None
        or welcome.boot_id != boot_id()
    ):
        return False
    try:
        _connected(welcome.ring_socket).close()
    except OSError:
        return False  # another container or user on the same machine
    return True


def ring_for(
    session: int,
    opened: Opened,
    spec: AcquisitionSpec,
    welcome: Welcome,
    current: FrameRing | None,
    spare: FrameRing | None,
) -> FrameRing:
    """Returns the ring of a session. Over message transport that is the current ring, else a new one in
    ``spare`` memory. Raises as ``fetch_ring`` does."""
    if opened.transport == "message":
        return (
            current
            if current is not None and current.is_local
            else FrameRing.local(spec, opened.ring_slots, spare)
        )
    if welcome.ring_socket is None:
        raise ProtocolError(
            "shared memory without a ring socket", expected="a ring_socket in WELCOME", got=None
        )
    return fetch_ring(welcome.ring_socket, session, opened, spec)


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Not settimeout for this: a non-blocking connect fails at once where the backlog of the socket is
        # full.
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(HANDOVER_TIMEOUT_S), 0)
        )
        connection.connect(path)
        connection.settimeout(HANDOVER_TIMEOUT_S)
    except OSError:
        connection.close()
        raise
    return connection


def fetch_ring(path: str, session: int, opened: Opened, spec: AcquisitionSpec) -> FrameRing:
    """Fetches and maps a session's ring. Raises ``SessionLostError`` when the daemon does not answer,
    ``ProtocolError`` when the ring is not as announced."""
    assert opened.ring_token is not None
    try:
        with _connected(path) as connection:
            connection.sendall(handover.encode_request(session, opened.ring_token))
            answer, descriptors, _, _ = socket.recv_fds(connection, handover.ANSWER.size, 1)
    except OSError as error:
        raise SessionLostError(
            "the daemon did not hand over the ring", expected=f"an answer on {path}", got=str(error)
        ) from None
    if not answer:
        raise SessionLostError(
            "the daemon did not hand over the ring",
            expected=f"an answer on {path}",
            got="a closed connection",
        )
    try:
        ring_bytes = handover.decode_answer(answer)
        if (
            len(descriptors) != 1
            or ring_bytes != opened.ring_slots * opened.slot_bytes
            or opened.slot_bytes != spec.grids.slot_bytes
        ):
            raise ProtocolError(
                "a ring that OPENED did not announce",
                expected=opened,
                got=f"{len(descriptors)} descriptors, {ring_bytes} bytes",
            )
        _check_sealed(descriptors[0], ring_bytes)
        ring = FrameRing(mmap.mmap(descriptors[0], ring_bytes), spec, opened.ring_slots, is_local=False)
        ring.touch()
        return ring
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _check_sealed(descriptor: int, ring_bytes: int) -> None:
    """Raises ``ProtocolError`` for a ring that is not sealed or of the wrong size. Call it before the first
    access: a ring that could shrink would kill this process with SIGBUS."""
    import fcntl  # imported here, because Windows has no such module

    needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    seals, size = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.fstat(descriptor).st_size
    if seals & needed != needed or size != ring_bytes:
        expected = f"seals {needed:#x}, {ring_bytes} bytes"
        raise ProtocolError(
            "an unsealed or wrongly sized ring", expected=expected, got=f"seals {seals:#x}, {size} bytes"
        )
