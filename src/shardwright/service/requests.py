"""What the daemon answers on its control socket (CONTROL.md): each request's own fields are checked here, and handed to the room that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .control import Answer
    from .recent_events import RecentEvents


def control_answers(*, status: Callable[[], dict[str, Any]], events: RecentEvents, drain: Callable[[], None]) -> dict[str, Answer]:
    """By the name of the request. All are called in the control thread."""

    def answer_status(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": status()}

    def answer_events(request: Mapping[str, Any]) -> dict[str, Any]:
        return {"events": events.after(_count(request, "after"))}

    def answer_drain(_: Mapping[str, Any]) -> dict[str, Any]:
        drain()
        return {}

    return {"status": answer_status, "events": answer_events, "drain": answer_drain}


def _count(request: Mapping[str, Any], field: str) -> int:
    """A whole number; 0 where the request has none."""
    value = request.get(field, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ProtocolError(f"{field} of a control request is not valid", expected="a whole number, 0 or more", got=repr(value)[:160])
    return value
