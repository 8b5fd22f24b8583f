"""The rings that are being made, in a helper thread, so that the I/O thread sends heartbeats meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import SessionLostError
from shardwright.model.promise import Promise
from shardwright.wire.session_tables import ClientState

from .frame_ring import ring_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.wire.controls import Opened, Welcome

    from .frame_ring import FrameRing
    from .link import Link

MAX_FAILURES = 5  # in a row, for one stream on connections that seem good


class Rings:
    """The rings that are being made. Owned by the I/O thread. Rings of one stream are made one after another,
    so that none is filled from an incomplete one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # With the session that each is made for: when its connection breaks meanwhile, the next one needs a
        # ring of its own, and this one must not start the link.
        self._being_made: dict[Link, tuple[int, Promise[None]]] = {}
        self._failures: dict[Link, int] = {}  # in a row
        # Local memory of the last stream that ended well, for the next one with pixels in messages: the first
        # touch of fresh memory is dear. Also written by the user's threads (``keep``).
        self._spare: FrameRing | None = None
        self._closed = False
        # one thread, or two could fill rings of one stream at once, the newer from the incomplete older one
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shardwright-rings")

    def make(self, link: Link, session: int, opened: Opened, welcome: Welcome) -> None:
        """Begins to make a ring. ``made`` returns it, unless the connection breaks before."""
        ring: Promise[None] = Promise()
        self._being_made[link] = session, ring
        spare = self._spare_for(link, opened)

        def make() -> None:
            outbox = link.outbox
            try:
                outbox.swap_ring(ring_for(session, opened, link.spec, welcome, outbox.ring, spare))
                ring.keep(None)
            except BaseException as error:  # noqa: BLE001  (travels in the promise, as text)
                ring.fail(
                    ErrorText.of(error, SessionLostError("the ring could not be made", got=repr(error)))
                )
            self._wake()

        try:
            self._thread.submit(make)
        except RuntimeError:  # as the interpreter ends, when no thread can be started
            make()

    def made(self) -> list[tuple[Link, ErrorText | None]]:
        """Returns the links whose ring is made, or has failed."""
        made = []
        for link, (session, ring) in [
            (link, made) for link, made in self._being_made.items() if made[1].done()
        ]:
            del self._being_made[link]
            if link.session == session and link.state is ClientState.TAKING_RING:
                made.append((link, ring.failure()))
                if made[-1][1] is None:
                    self._failures.pop(link, None)
        return made

    def may_try_again(self, link: Link, why: ErrorText) -> bool:
        """True if another connection may succeed."""
        self._failures[link] = self._failures.get(link, 0) + 1
        return why.is_a(SessionLostError) and self._failures[link] < MAX_FAILURES

    def _spare_for(self, link: Link, opened: Opened) -> FrameRing | None:
        """Takes and returns the spare ring if it fits the request, else frees it before a new one is made."""
        if link.outbox.ring is not None:
            return None  # the stream keeps its own
        spare, self._spare = self._spare, None
        fits = (
            spare is not None
            and opened.transport == "message"
            and spare.nbytes == opened.ring_slots * opened.slot_bytes
        )
        return spare if fits else None

    def keep(self, ring: FrameRing) -> None:
        """Keeps the ring of a stream that has ended well, for the next one of this connection. From any
        thread."""
        if ring.is_local:
            self._spare = ring
        if self._closed:
            self._spare = None

    def close(self) -> None:
        self._closed = True  # first: a user's thread may be about to keep a ring
        self._spare = None
        self._thread.shutdown(wait=False, cancel_futures=True)
