"""The addresses of the web process.

    /                        the status page (static/)
    /metrics                 the daemon's snapshot for Prometheus (METRICS.md)
    /api/status              the daemon's snapshot, and ``full_in_s`` for each disk: the time until it is full
    /api/events?after=N      events with a higher number than N
    /api/preview/NAME.png    the newest frame of a running acquisition
    /api/stores              the finished stores
    /stores/NAME/...         the files of the stores below the output root
    /view/STORE              redirects to neuroglancer with that store
    /neuroglancer/...        neuroglancer

GET, HEAD and OPTIONS only; no request changes anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from .api import Api, answered_by_the_daemon
from .finished import FinishedStores
from .guard import METHODS, Guard
from .static_files import StaticFolder
from .stores import PREFIX, Stores
from .viewer import viewer_routes

if TYPE_CHECKING:
    from starlette.requests import Request

    from shardwright.daemon.web_settings import WebSettings

    from .daemon_link import DaemonLink

STATIC = Path(__file__).with_name("static")


def make_app(settings: WebSettings, link: DaemonLink) -> Starlette:
    api, stores, page = Api(link), Stores(settings), StaticFolder(STATIC)
    routes = [
        Route("/metrics", answered_by_the_daemon(api.metrics)),
        Route("/api/status", answered_by_the_daemon(api.status)),
        Route("/api/events", answered_by_the_daemon(api.events)),
        Route("/api/preview/{name}.png", answered_by_the_daemon(api.preview)),
        Route(PREFIX + "{path:path}", stores.respond, methods=METHODS),
        *viewer_routes(FinishedStores(Path(settings.output_root))),
        Route("/{path:path}", _options, methods=["OPTIONS"]),
        Route("/{path:path}", page.respond),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=settings.hosts)])


async def _options(request: Request) -> Response:
    del request
    return Response(status_code=204, headers={"Allow": ", ".join(METHODS)})
