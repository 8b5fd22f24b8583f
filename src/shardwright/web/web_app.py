"""The addresses of the web process.

    /                        the status page (static/)
    /metrics                 the daemon's snapshot for Prometheus (METRICS.md)
    /healthz, /healthz/live, /healthz/ready    for probes: 200 or 503
    /api/status              the daemon's snapshot, and the newest point of the history
    /api/history             rates of the last three minutes
    /api/events?after=N      events with a higher number than N, each with its sentence
    /api/preview/NAME.png    the newest frame of a running acquisition; of its store once its camera is gone
    /api/stores              the finished stores
    /stores/NAME/...         the files of the stores below the output root
    /live/NAME/...           the same stores as a live view has them, running or finished
    /view/STORE              redirects to neuroglancer with that store
    /neuroglancer/...        neuroglancer

GET, HEAD and OPTIONS only; no request changes anything.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from shardwright.disk.beneath import user_path
from shardwright.read.follow_http import STREAM

from .api import Api, answered_by_the_daemon
from .finished_stores import FinishedStores
from .frame_stream import FrameStreams
from .guard import HEALTH, METHODS, Guard
from .live_stores import PREFIX as LIVE
from .live_stores import LiveStores
from .stored_previews import StoredPreviews
from .stores import KEY, StoreFiles, Stores, is_unchanged
from .stores import PREFIX as FILES
from .viewer import viewer_routes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from shardwright.daemon.web_child import WebSettings

    from .daemon_link import DaemonLink

STATIC = Path(__file__).with_name("static")
INDEX = "index.html"
# Not the machine's own table: a browser's behaviour must not depend on it. Other kinds of files are not
# served.
_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(settings: WebSettings, link: DaemonLink) -> Starlette:
    live = LiveStores(_with_paths(settings))
    api, page = Api(link, StoredPreviews(live)), StaticFolder(STATIC)
    routes = [
        *(Route(HEALTH + path, api.health) for path in ("", "/live", "/ready")),
        Route("/metrics", answered_by_the_daemon(api.metrics)),
        Route("/api/status", answered_by_the_daemon(api.status)),
        Route("/api/history", answered_by_the_daemon(api.history)),
        Route("/api/events", answered_by_the_daemon(api.events)),
        Route("/api/preview/{name}.png", answered_by_the_daemon(api.preview)),
        *store_routes(settings, live),
        Route("/{path:path}", _options, methods=["OPTIONS"]),
        Route("/{path:path}", page.respond),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=settings.hosts)])


def _with_paths(settings: WebSettings) -> WebSettings:
    spill_root = settings.spill_root
    return replace(
        settings,
        output_root=str(user_path(settings.output_root)),
        spill_root=None if spill_root is None else str(user_path(spill_root)),
    )


def store_routes(settings: WebSettings, live: LiveStores | None = None) -> list[BaseRoute]:
    """Returns the addresses that need no daemon: the stores, finished or running, and the viewer for them."""
    settings = _with_paths(settings)
    files, live = StoreFiles(settings), live or LiveStores(settings)
    return [
        Route(FILES + KEY, Stores(settings, files.find).respond, methods=METHODS),
        Route(f"{LIVE}{{store}}/{STREAM}", FrameStreams(settings, live).respond, methods=METHODS),
        Route(LIVE + KEY, Stores(settings, live.find).respond, methods=METHODS),
        *viewer_routes(FinishedStores(Path(settings.output_root)), live),
    ]


async def _options(request: Request) -> Response:
    del request
    return Response(status_code=204, headers={"Allow": ", ".join(METHODS)})


@dataclass(frozen=True)
class _StaticFile:
    content: bytes
    etag: str
    media_type: str


class StaticFolder:
    """An endpoint that answers ``path`` with the file of that name below ``folder``, and no path with
    ``index.html``. The files are read once into memory: serving them touches no disk."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES
        }

    async def respond(self, request: Request) -> Response:
        file = self._files.get(request.path_params["path"] or INDEX)
        if file is None:
            return PlainTextResponse("There is no such page.\n", 404)
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if is_unchanged(request.headers, file.etag):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)


def _read(path: Path) -> _StaticFile:
    content = path.read_bytes()
    return _StaticFile(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"', _TYPES[path.suffix])
