"""The helper thread of the I/O thread: fetches rings and fills them with the frames that were not released,
so that heartbeats continue meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import SessionLostError
from shardwright.model.promise import Promise
from shardwright.wire.session_tables import ClientState

from .frame_ring import FrameRing, ring_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.wire.controls import Opened, Welcome

    from .link import Link

MAX_FAILURES = 5  # in a row, for one stream on connections that seem good


class Rings:
    """The rings that are being made. Owned by the I/O thread. Rings of one stream are made one after another,
    so that none is filled from an incomplete one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._being_made: dict[Link, tuple[int, Promise[None]]] = {}  # with the session of each
        self._failures: dict[Link, int] = {}
        # of the last stream that ended well, for the next one with pixels in messages
        self._spare: FrameRing | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shardwright-rings")

    def make(self, link: Link, session: int, opened: Opened, welcome: Welcome) -> None:
        """Begins to make a ring. ``made`` returns it, unless the connection breaks before."""
        ring: Promise[None] = Promise()
        self._being_made[link] = session, ring
        self._thread.submit(
            _make, ring, self._wake, link, session, opened, welcome, self._spare_for(link, opened)
        )

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


def _make(
    ring: Promise[None],
    wake: Callable[[], None],
    link: Link,
    session: int,
    opened: Opened,
    welcome: Welcome,
    spare: FrameRing | None,
) -> None:
    try:
        link.outbox.swap_ring(ring_for(session, opened, link.spec, welcome, link.outbox.ring, spare))
        ring.keep(None)
    except BaseException as error:  # noqa: BLE001  (travels in the promise, as text)
        ring.fail(ErrorText.of(error, SessionLostError("the ring could not be made", got=repr(error))))
    wake()
