"""What the daemon answers on its control socket (CONTROL.md): each request's own fields are checked here, and handed to the room that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .control import Answer
    from .recent_events import RecentEvents


def control_answers(
    *, status: Callable[[], dict[str, Any]], events: RecentEvents, stop: Callable[[str], None], drain: Callable[[], None]
) -> dict[str, Answer]:
    """By the name of the request. All are called in the control thread."""

    def answer_status(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": status()}

    def answer_events(request: Mapping[str, Any]) -> dict[str, Any]:
        return {"events": events.after(_count(request, "after"))}

    def answer_stop(request: Mapping[str, Any]) -> dict[str, Any]:
        stop(_text(request, "name"))
        return {}

    def answer_drain(_: Mapping[str, Any]) -> dict[str, Any]:
        drain()
        return {}

    return {"status": answer_status, "events": answer_events, "stop": answer_stop, "drain": answer_drain}


def _count(request: Mapping[str, Any], field: str) -> int:
    """A whole number; 0 where the request has none."""
    value = request.get(field, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _invalid(field, value, "a whole number, 0 or more")
    return value


def _text(request: Mapping[str, Any], field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str):
        raise _invalid(field, value, "text")
    return value


def _invalid(field: str, value: object, expected: str) -> ProtocolError:
    return ProtocolError(f"{field} of a control request is not valid", expected=expected, got=repr(value)[:160])
