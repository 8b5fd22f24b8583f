"""One connection of a client, as the daemon knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.wire.controls import Hello
from shardwright.wire.messages import CONNECTION, Counter

if TYPE_CHECKING:
    from typing import Any

    from .connection_guard import ConnectionId


@dataclass(eq=False)
class Client:
    """One connection of a client that said HELLO. ``public_key`` as Z85 and ``key_name``, its name in the
    allow list: None where connections have no keys. ``unreachable``: why nothing can be sent to it any more.
    ``gone``: it left or was given up. ``most_credit_bytes``: the most that all its sessions had at once.
    ``silent_since_s`` and ``bytes_when_silent`` are those of ``inbound_byte_limit.py``."""

    identity: bytes
    hello: Hello
    counter: Counter
    last_heard_s: float
    public_key: str | None = None
    connection: ConnectionId | None = None
    key_name: str | None = None
    unreachable: str | None = None
    unreachable_since_s: float = 0.0
    gone: bool = False
    most_credit_bytes: int = 0
    silent_since_s: float = 0.0
    bytes_when_silent: int | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The client, for events."""
        key = {} if self.key_name is None else {"client_key": self.key_name}
        return {"host": self.hello.host, "pid": self.hello.pid, **key}

    def is_same_user(self, other: Client) -> bool:
        """True where both count as one client: connections with one key, else the same connection."""
        return self is other or (self.public_key is not None and self.public_key == other.public_key)


def stranger(identity: bytes) -> Client:
    """A stand-in for a peer that never said HELLO, to answer it."""
    return Client(identity, Hello("", "", 0), Counter(CONNECTION), 0.0)
