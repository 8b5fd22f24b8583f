"""How much memory the heap keeps for pixels in messages, and for whom: what a client had at once stays for its next acquisitions, as its ring does.

    expect      a client is about to send so much: it is made ready in the opener thread
    make_room   somebody else is about to need memory: what nobody uses goes
    forget      the client is gone
    tick        what is kept for nobody goes

What is kept was admitted, and goes before anything is made ready beside it: the budget holds. All of it runs in the ingest thread; what takes time is
submitted. ``in_use_bytes``: of all acquisitions with pixels in messages, opened or being opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.storage.message_memory import give_back, trim

if TYPE_CHECKING:
    from collections.abc import Callable


class MessageRoom:
    def __init__(self, submit: Callable[[Callable[[], None]], Any]) -> None:
        self._submit = submit
        self._peer: object | None = None  # compared by identity: who sent last
        self.kept_bytes = 0

    def expect(self, peer: object, more_bytes: int, in_use_bytes: int) -> None:
        if peer is not self._peer:
            self.make_room(in_use_bytes)
        self._peer = peer
        self.kept_bytes = max(self.kept_bytes, in_use_bytes + more_bytes)

    def make_room(self, in_use_bytes: int) -> None:
        if self.kept_bytes > in_use_bytes:
            self._peer, self.kept_bytes = None, in_use_bytes
            self._submit(trim if in_use_bytes else give_back)

    def forget(self, peer: object) -> None:
        if peer is self._peer:
            self._peer = None

    def tick(self, in_use_bytes: int) -> None:
        if self._peer is None:
            self.make_room(in_use_bytes)
