"""The requests on the control socket (CONTROL.md): checks the fields of each, and calls the room that answers
it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardwright.ingest import IngestServer

    from .control import Answer
    from .recent_events import RecentEvents


class Requests:
    """The answers to requests. ``answers`` are called in the control thread. ``status`` takes the snapshot,
    ``drain`` ends the daemon as a signal would."""

    def __init__(
        self,
        server: IngestServer,
        events: RecentEvents,
        *,
        status: Callable[[], dict[str, Any]],
        drain: Callable[[], None],
    ) -> None:
        self._server = server
        self._events = events
        self._status = status
        self._drain = drain

    @property
    def answers(self) -> dict[str, Answer]:
        """The function that answers each request, by the request's name."""
        return {
            "status": self._tell_status,
            "events": self._tell_events,
            "preview": self._show,
            "stop": self._stop,
            "drain": self._end,
        }

    def _tell_status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": self._status()}

    def _tell_events(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"events": self._events.after(_count(request, "after"))}

    def _show(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if ("stream" in request) == ("name" in request):
            raise ProtocolError(
                "a preview is of one stream or of one acquisition", expected='either "stream" or "name"'
            )
        which = "stream" if "stream" in request else "name"
        return {"preview": self._server.preview(**{which: _text(request, which)})}

    def _stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._server.stop_acquisition(_text(request, "name"))
        return {}

    def _end(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._drain()
        return {}


def _count(request: Mapping[str, Any], field: str) -> int:
    """Returns a whole number; 0 where the request has none."""
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
    return ProtocolError(
        f"{field} of a control request is not valid", expected=expected, got=repr(value)[:160]
    )
