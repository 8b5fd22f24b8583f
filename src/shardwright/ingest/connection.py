"""One connection of a client that said HELLO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwright.wire.controls import Hello
    from shardwright.wire.messages import Counter


@dataclass(eq=False)
class Client:
    """``unreachable``: why nothing can be sent to it any more. ``gone``: it left or was given up."""

    identity: bytes
    hello: Hello
    counter: Counter
    last_heard_s: float
    unreachable: str | None = None
    unreachable_since_s: float = 0.0
    gone: bool = False
