"""An OPEN in line: what is being prepared for it, what that takes meanwhile, and for how long it waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.model.promise import Promise
    from shardwright.wire.controls import Open

    from .acquisition_like import AcquisitionLike
    from .admission import Admitted
    from .connection import Client
    from .session import Session


@dataclass(eq=False)
class Pending:
    """An OPEN that is not answered yet. ``work``: what a thread prepares for it: a new acquisition for
    ``admitted``, or a ring for ``session``; ``more_bytes`` count against the budget until that is done."""

    client: Client
    request: Open
    work: Promise[Any] | None = None
    admitted: Admitted | None = None
    session: Session | None = None
    recovery: Promise[AcquisitionLike] | None = None
    more_bytes: int = 0
    message_bytes: int = 0  # of them, for pixels in messages
    patient_until_s: float = 0.0  # how long it waits for another process to let go of the store
    next_look_s: float = 0.0
