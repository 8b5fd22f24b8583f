"""How much memory the heap keeps for pixels in messages, and for whom: what a client had at once stays for
its next acquisitions, as its ring does.

    expect      a client is about to send so much: it is made ready in the opener thread
    make_room   somebody else is about to need memory: what nobody uses goes
    forget      the client is gone
    ended       an acquisition is over: what it freed is perhaps still this process's
    tick        what is kept for nobody goes, and what the heap has beyond the plan
    trim        memory is short: what is free goes

What is kept was admitted, and goes before anything is made ready beside it: the budget holds. All of it runs
in the ingest thread; what takes time is submitted. ``in_use_bytes``: of all acquisitions with pixels in
messages, opened or being opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.acquire.limits import RUNTIME_BYTES
from shardwright.storage.message_memory import give_back, resident_bytes, trim

from .endless import FURTHER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.model.promise import Promise


class MessageRoom:
    def __init__(self, submit: Callable[[Callable[[], None]], Promise[None]]) -> None:
        self._submit = submit
        self._peer: object | None = None  # compared by identity: who sent last
        self.kept_bytes = 0
        self._held_bytes = 0  # at the last trim
        self._trimming: Promise[None] | None = None  # the last
        self._ended = False

    def expect(self, peer: object, more_bytes: int, in_use_bytes: int) -> None:
        if peer is not self._peer:
            self.make_room(in_use_bytes)
        self._peer = peer
        self.kept_bytes = max(self.kept_bytes, in_use_bytes + more_bytes)

    def make_room(self, in_use_bytes: int) -> None:
        if self.kept_bytes > in_use_bytes:
            self._held_bytes = self.held_bytes
            self._peer, self.kept_bytes = None, in_use_bytes
            self._trimming = self._submit(trim if in_use_bytes else give_back)

    @property
    def held_bytes(self) -> int:
        """As ``kept_bytes``; what is to go counts until it has gone."""
        return max(self.kept_bytes, self._held_bytes) if self.is_trimming else self.kept_bytes

    @property
    def is_trimming(self) -> bool:
        return self._trimming is not None and not self._trimming.done()

    def trim(self) -> None:
        """Memory is short: what is free goes to the system."""
        self._held_bytes = self.held_bytes
        self._trimming = self._submit(trim)

    def forget(self, peer: object) -> None:
        self._ended = True  # also of what it had begun to send
        if peer is self._peer:
            self._peer = None

    def ended(self) -> None:
        self._ended = True

    def tick(self, in_use_bytes: int, planned_bytes: int, *, acquiring: bool) -> None:
        """``planned_bytes``: what all acquisitions may have. ``acquiring``: some are there, which a trim
        holds up: it has the heap's lock."""
        if self._peer is None:
            self.make_room(in_use_bytes)
        if self._ended and self.beyond_plan(in_use_bytes, planned_bytes) > (
            FURTHER_BYTES if acquiring else 0
        ):
            self._ended = False
            self.trim()

    def beyond_plan(self, in_use_bytes: int, planned_bytes: int) -> int:
        """How much more memory this process has than was promised: measured, not computed. What is in use of
        what is kept is planned already."""
        return resident_bytes() - RUNTIME_BYTES - planned_bytes - max(0, self.held_bytes - in_use_bytes)
