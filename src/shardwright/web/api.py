"""The endpoints of the page and of Prometheus: /api/status, /api/history, /api/events, /api/preview/NAME.png
and /metrics, each from answers of the daemon."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from shardwright.model.errors import ProtocolError, ShardwrightError

from .metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from .daemon_link import DaemonLink

    Endpoint = Callable[[Request], Awaitable[Response]]

MOST_DIGITS = 18


class Json(JSONResponse):
    """An answer as JSON that can always be sent: plain ASCII, so that half of a surrogate pair, in a client's
    name or a file's, is only an escape."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def problem(error: ShardwrightError, status: int) -> Json:
    return Json({"error": error.to_dict()}, status)


def answered_by_the_daemon(endpoint: Endpoint) -> Endpoint:
    """Answers 503 where the daemon does not answer."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ShardwrightError as error:
            return problem(error, 503)

    return guarded


class Api:
    """The endpoints."""

    def __init__(self, link: DaemonLink) -> None:
        self._link = link
        self._metrics = Metrics()

    async def status(self, request: Request) -> Response:
        del request
        return Json(await self._link.status())

    async def history(self, request: Request) -> Response:
        del request
        return Json({"points": await self._link.history()})

    async def metrics(self, request: Request) -> Response:
        text, content_type = self._metrics.render(
            await self._link.status(), request.headers.get("accept", "")
        )
        return Response(text, headers={"Content-Type": content_type})

    async def events(self, request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) <= MOST_DIGITS):
            return problem(
                ProtocolError("not the number of an event", expected="after=NUMBER", got=after[:40]), 400
            )
        return Json({"events": await self._link.events(int(after))})

    async def preview(self, request: Request) -> Response:
        preview = await self._link.preview(request.path_params["name"])
        if preview is None:
            return Json(
                {
                    "error": {
                        "code": "no_frame",
                        "message": "no acquisition of this name is running, or it has no frame yet",
                    }
                },
                404,
            )
        facts = bytes(Json(preview.facts).body).decode()
        return Response(preview.png, media_type="image/png", headers={"X-Facts": facts})
