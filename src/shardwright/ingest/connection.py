"""One connection of a client that said HELLO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.wire.controls import Hello
    from shardwright.wire.messages import Counter

    from .doorkeeper import Door


@dataclass(eq=False)
class Client:
    """``public_key`` as Z85, and ``key_name``, what the allow-list calls it: None where connections have no
    keys. ``unreachable``: why nothing can be sent to it any more. ``gone``: it left or was given up.
    ``most_credit_bytes``: of all its sessions, as much as they ever had at once. ``silent_since_s`` and
    ``bytes_when_silent`` are those of ``endless.py``."""

    identity: bytes
    hello: Hello
    counter: Counter
    last_heard_s: float
    public_key: str | None = None
    door: Door | None = None
    key_name: str | None = None
    unreachable: str | None = None
    unreachable_since_s: float = 0.0
    gone: bool = False
    most_credit_bytes: int = 0
    silent_since_s: float = 0.0
    bytes_when_silent: int | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Who it is, for events."""
        key = {} if self.key_name is None else {"client_key": self.key_name}
        return {"host": self.hello.host, "pid": self.hello.pid, **key}

    def is_same_user(self, other: Client) -> bool:
        """Whether what both use counts together: connections with one key, else one connection."""
        return self is other or (self.public_key is not None and self.public_key == other.public_key)
