"""The endpoints of the page, of Prometheus and of probes: /api/status, /api/history, /api/events,
/api/preview/NAME.png, /metrics and /healthz, each from answers of the daemon."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from shardwright.daemon.service_manager import STUCK_S
from shardwright.model.errors import ProtocolError, ShardwrightError

from .metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from .daemon_link import DaemonLink
    from .stored_previews import StoredPreviews

    Endpoint = Callable[[Request], Awaitable[Response]]

MOST_DIGITS = 18
DEAD_AFTER_S = 3 * STUCK_S  # when systemd's watchdog ends a daemon, too
TAKES_FRAMES = ("serving", "disk_full")  # states; on a full disk cameras wait, and must find the daemon again


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

    def __init__(self, link: DaemonLink, stored: StoredPreviews) -> None:
        self._link = link
        self._stored = stored
        self._metrics = Metrics()

    async def status(self, request: Request) -> Response:
        del request
        return Json(await self._link.status())

    async def health(self, request: Request) -> Response:
        """Answers 200 if the daemon is live (for /healthz/live), or takes acquisitions, else 503. Probes
        expect no other status, and restart what is not live: a daemon that starts or drains is live."""
        try:
            status = await self._link.status()
        except ShardwrightError:
            facts = {"live": False, "ready": False, "state": "silent"}
        else:
            live = status["stall_s"] < DEAD_AFTER_S
            state = status["state"]
            facts = {"live": live, "ready": live and state in TAKES_FRAMES, "state": state}
        is_well = facts["live" if request.url.path.endswith("/live") else "ready"]
        return Json(facts, 200 if is_well else 503)

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
        name = request.path_params["name"]
        preview = await self._link.preview(name)
        if preview is None:
            preview = await self._stored.preview(name, (await self._link.status())["acquisitions"])
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
