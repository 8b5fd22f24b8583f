"""The checks of every request (its host, method and body) and the headers of every answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD", "OPTIONS")
MOST_HEADERS = 100
MOST_HEADER_BYTES = 16 << 10
HEALTH = "/healthz"  # for probes: they call a machine by any name, and learn nothing but a state
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
NEVER = "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"  # of any page
PAGE_POLICY = f"default-src 'self'; img-src 'self' blob: data:; {NEVER}"
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:/@?#\s]+)(:[0-9]{1,5})?")


class Guard:
    """Refuses requests that name other hosts (DNS rebinding: a foreign page whose own name points here),
    except those of ``HEALTH``, and requests that would change anything, or that have a body. Headers set by
    an answer take precedence over those set here."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = {name.strip("[]").lower() for name in (*LOOPBACK_NAMES, *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "no lifespan, no web sockets"
        refusal = self._refusal(scope["method"], scope["path"], Headers(scope=scope))

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", PAGE_POLICY)
                headers.setdefault("Cache-Control", "no-store")
                # no page elsewhere shows it, as an image of its own
                headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, method: str, path: str, headers: Headers) -> Response | None:
        if (
            len(headers.raw) > MOST_HEADERS
            or sum(len(name) + len(value) for name, value in headers.raw) > MOST_HEADER_BYTES
        ):
            return PlainTextResponse("Too many headers.\n", 431, {"Connection": "close"})
        is_probe = path == HEALTH or path.startswith(f"{HEALTH}/")
        if not is_probe and not self._is_ours(headers.get("host", "")):
            hint = (
                "This page answers only requests for its own address; http.allowed_hosts in the "
                "configuration adds others.\n"
            )
            return PlainTextResponse(f"Misdirected request. {hint}", 421, {"Connection": "close"})
        if method not in METHODS:
            return PlainTextResponse(
                "Nothing can be changed here.\n", 405, {"Allow": ", ".join(METHODS), "Connection": "close"}
            )
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return PlainTextResponse("A request without a body is expected.\n", 413, {"Connection": "close"})
        return None

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        return match is not None and match["name"].strip("[]").lower() in self._hosts
