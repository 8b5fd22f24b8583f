"""The inbound byte limit: bounds what a client may send since its last whole message. Ingest thread only.

ZeroMQ limits each part of a message, and keeps the parts until the last has come, however many they are. A
client that keeps to the protocol never has more on the way than its credit: a client that sends more than
that in one message breaks the protocol.

    bytes     over TCP, where the kernel counts them: more than credit and a little
    memory    over any transport: the process has more than its plan, and the client has completed no message
              for a while, though bytes of it wait to be read. A part without content is 2 bytes on the wire
              and 64 in memory, and a Unix socket does not count what came. "A while" is the time that its
              longest permitted message takes on a slow link, and less once that message cannot explain
              the memory
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .client_state import Client
    from .connection_guard import ConnectionId

LOOK_S = 0.1
LOOKED_AT = 64  # clients at a time, in turn
CONTROL_BYTES = 8 << 20  # control messages that wait to be taken
PIXELLESS_BYTES = 32 << 20  # the descriptors of frames without pixels
BEYOND_PLAN_BYTES = 256 << 20  # before a client is held responsible for it
FURTHER_BYTES = 64 << 20  # before the next one is
SILENT_S = 0.2  # since its last whole message: a peer with an endless message completes no other
SLOW_BYTES_PER_S = 8 << 20  # of a link that still carries a camera: 100 Mbit/s
# of a frame that is a message by itself: its header and record, and what ZMTP and CURVE add to each part
FRAME_OVERHEAD_BYTES = 1024
SAFETY = 2  # of credit: frames sent for a session that the daemon has ended may still be on their way


class InboundByteLimit:
    """Finds clients that have sent more than they may. ``bytes_received`` of a client's connection, 0 where
    that is not known; ``waits``: True if bytes of it wait to be read."""

    def __init__(
        self, bytes_received: Callable[[ConnectionId], int], waits: Callable[[ConnectionId], bool]
    ) -> None:
        self._bytes_received = bytes_received
        self._waits = waits
        self._next_look_s = 0.0
        self._turn = 0

    def most_bytes(self, client: Client) -> int:
        return CONTROL_BYTES + (
            PIXELLESS_BYTES + SAFETY * client.most_credit_bytes if client.most_credit_bytes else 0
        )

    def look(self, now_s: float, clients: Collection[Client]) -> list[Client]:
        """Returns the clients that have sent too much. Clients heard between two looks cost nothing."""
        if now_s < self._next_look_s:
            return []
        self._next_look_s = now_s + LOOK_S
        self._turn = self._turn if self._turn < len(clients) else 0
        some = list(clients)[self._turn : self._turn + LOOKED_AT]
        self._turn += LOOKED_AT
        return [client for client in some if self._is_over(client)]

    def _is_over(self, client: Client) -> bool:
        if client.connection is None:
            return False
        if client.silent_since_s != client.last_heard_s:
            client.silent_since_s, client.bytes_when_silent = client.last_heard_s, None
            return False
        bytes_received = self._bytes_received(client.connection)
        if client.bytes_when_silent is None:
            client.bytes_when_silent = bytes_received
        return bytes_received - client.bytes_when_silent > self.most_bytes(client)

    def culprit(self, begin_s: float, beyond_bytes: int, clients: Collection[Client]) -> Client | None:
        """Returns the client that probably fills this process's memory: it is sending, and its message is
        overdue for longest. All messages that were whole by ``begin_s`` were received."""

        def overdue_s(client: Client) -> float:
            return (
                begin_s - client.last_heard_s - SILENT_S - _longest_message_bytes(client) / SLOW_BYTES_PER_S
            )

        def is_suspect(client: Client) -> bool:
            if client.connection is None or begin_s - client.last_heard_s <= SILENT_S:
                return False
            explained_bytes = BEYOND_PLAN_BYTES + _longest_message_bytes(client)
            return (overdue_s(client) > 0 or beyond_bytes > explained_bytes) and self._waits(
                client.connection
            )

        return max(filter(is_suspect, clients), key=overdue_s, default=None)


def _longest_message_bytes(client: Client) -> int:
    """All of its credit at once, or a control message."""
    return CONTROL_BYTES + client.most_credit_bytes
