"""The requests of the control socket, each with the function that answers it (CONTROL.md)."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from shardwright.model.errors import ProtocolError
from shardwright.model.write_options import FlushLevel
from shardwright.wire.controls import Open, mapping, one_of, optional_text

from .control import Later, Watch
from .events import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardwright.ingest import IngestServer
    from shardwright.model.receipt import Watermark

    from .control import Answer
    from .events import RecentEvents

ARMED_S, MOST_ARMED_S = 3600.0, 86400.0  # how long an armed acquisition waits for its camera
WATCHED_S, LEAST_WATCHED_S, MOST_WATCHED_S = 0.05, 0.01, 60.0  # between two looks of a watch


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
            "status": self._reply_status,
            "events": self._reply_events,
            "preview": self._reply_preview,
            "stop": self._stop,
            "drain": self._end,
            "arm": self._arm,
            "describe": self._describe,
            "counts": self._count,
            "watch": self._watch,
            "flush": self._flush,
            "set_metadata": self._set_metadata,
        }

    def _reply_status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": self._status()}

    def _reply_events(self, request: Mapping[str, Any]) -> dict[str, Any]:
        least = one_of({"least": "debug", **request}, "least", tuple(LEVELS))
        return {"events": self._events.after(_count(request, "after"), least)}

    def _reply_preview(self, request: Mapping[str, Any]) -> dict[str, Any]:
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

    # Version 2
    # ----------------------------------------------------------------------------------------------------

    def _arm(self, request: Mapping[str, Any]) -> Later:
        waits_s = _seconds(request, "timeout_s", ARMED_S, most=MOST_ARMED_S)
        opening = Open.from_body({**_own(request), "request": 0, "transport": "message"})
        before_s = _seconds(request, "before_s", math.inf)
        return Later(self._server.arm(opening, waits_s, before_s), lambda made: _description(made()))

    def _describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return _description(self._server.describe(_text(request, "name")))

    def _count(self, request: Mapping[str, Any]) -> dict[str, Any] | Later:
        name = _text(request, "name")
        if (account := self._server.account(name)) is not None:
            return _account(account)
        return Later(self._server.stored_account(name), _account)

    def _watch(self, request: Mapping[str, Any]) -> Watch | Later:
        name = _text(request, "name")
        every_s = _seconds(request, "every_s", WATCHED_S, LEAST_WATCHED_S, MOST_WATCHED_S)
        if self._server.account(name) is None:
            return Later(self._server.stored_account(name), _account)  # its only line, and its last
        return Watch(partial(self._look, name), every_s)

    def _look(self, name: str) -> tuple[dict[str, Any], bool]:
        account = self._server.watched_account(name)
        return _account(account), account["ended"]

    def _flush(self, request: Mapping[str, Any]) -> Later:
        level = one_of({"level": "durable", **request}, "level", get_args(FlushLevel))
        return Later(self._server.flush(_text(request, "name"), level), _watermark)

    def _set_metadata(self, request: Mapping[str, Any]) -> Later:
        facts = dict(request)
        name, image = _text(request, "name"), optional_text(facts, "image")
        return Later(self._server.update_metadata(name, image, mapping(facts, "attributes")), lambda _: {})


def _own(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of ``arm`` that an OPEN has, too; all others of it are the camera's."""
    return {name: request[name] for name in ("name", "stream", "spec", "frames_expected") if name in request}


def _description(description: dict[str, Any]) -> dict[str, Any]:
    return {"description": description}


def _account(account: dict[str, Any]) -> dict[str, Any]:
    return {"acquisition": account}


def _watermark(watermark: Watermark) -> dict[str, Any]:
    return {"watermark": dict(vars(watermark))}


def _seconds(
    request: Mapping[str, Any], field: str, usual: float, least: float = 0.0, most: float = math.inf
) -> float:
    value = request.get(field, usual)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise _invalid(field, value, f"seconds from {least:g} to {most:g}")
    return float(value)


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
