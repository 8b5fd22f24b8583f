"""One store for the browser of this computer, without a daemon: what ``shardwright view`` serves.

The addresses are those of the web process, on a port of the loopback address and below a secret:
/SECRET/view/STORE, the viewer, and the files of this store. What else lies beside it is not there, and pages
of other origins may not read it.

Every user of this computer reaches the port, also one who may not read the store. Hence the secret, another
one each time. A browser that is started with the address shows it on its command line, to ``ps``.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from shardwright.daemon.web_child import WebSettings
from shardwright.disk import beneath
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import StorageError
from shardwright.model.names import WORKSPACE
from shardwright.read.live_view import LiveView

from .connections import serve
from .finished_stores import FinishedStores, NotViewableError, document_of, find_images
from .guard import LOOPBACK_NAMES, METHODS, Guard
from .live_stores import PREFIX as LIVE
from .live_stores import LiveStores
from .served_files import STORE_MARK, is_plain
from .stores import KEY, Stores
from .viewer import CLIENT, VIEW, viewer_routes
from .viewer_state import view_query
from .web_app import STATIC, StaticFolder, store_routes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

ADDRESS = LOOPBACK_NAMES[1]
ICON = "/icon.svg"


class OnlyStore:
    """Answers 404 for every address that does not begin with ``base``, a slash and a secret, or does not
    belong to one store or the viewer."""

    def __init__(self, app: ASGIApp, base: str, store: str) -> None:
        self._app = app
        self._base = base
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        base, path = scope["path"][: len(self._base)], scope["path"][len(self._base) :]
        kind, _, rest = path.removeprefix("/").partition("/")
        is_ours = kind != "api" and rest.partition("/")[0] == self._store
        is_shown = is_ours or path == ICON or path.startswith(CLIENT)
        if secrets.compare_digest(base.encode(), self._base.encode()) and is_shown:
            await self._app({**scope, "root_path": self._base}, receive, send)
        else:
            await PlainTextResponse("Only one store is shown here.\n", 404)(scope, receive, send)


class StoreForBrowser:
    """A port of this computer on which a browser sees the store at ``path``, a folder and no link; its shards
    may be links to below ``spill_root``, by default to where its acquisition spills them. ``images``: those
    that are shown, by name or folder, all if there are none. Raises ``StorageError`` when a browser cannot
    show it."""

    def __init__(self, path: Path, spill_root: Path | None = None, images: Sequence[str] = ()) -> None:
        self._path = path
        self._images = images
        self._view = _checked(path, images)
        second_root = self._view.second_root_and_folders[0]
        self._base = f"/{secrets.token_urlsafe()}"
        self._listener = socket.create_server((ADDRESS, 0))
        self._settings = WebSettings(
            control_socket="",
            descriptor=self._listener.fileno(),
            hosts=(),
            origins=(),
            preview_hz=1,
            output_root="" if self._is_remote else str(path.parent),
            spill_root=second_root if spill_root is None else str(spill_root),
        )

    @property
    def _is_remote(self) -> bool:
        return isinstance(self._path, RemotePath)

    def _remote_routes(self) -> list[BaseRoute]:
        """Returns the addresses of a store that is itself read at an address: by one view, and no others."""
        live = LiveStores(self._settings)
        live.hold(self._path.name, self._view)
        stores = Route(LIVE + KEY, Stores(self._settings, live.find).respond, methods=METHODS)
        return [stores, *viewer_routes(FinishedStores(self._path.parent), live)]

    @property
    def url(self) -> str:
        """The address that opens the store in the viewer."""
        port = self._listener.getsockname()[1]
        return f"http://{ADDRESS}:{port}{self._base}{VIEW}{quote(self._path.name)}{view_query(self._images)}"

    def serve(self) -> None:
        """Serves until SIGTERM, or Ctrl-C, which is raised again at the end."""
        routes = self._remote_routes() if self._is_remote else store_routes(self._settings)
        app = Starlette(
            routes=[*routes, Route("/{path:path}", StaticFolder(STATIC).respond)],
            middleware=[
                Middleware(Guard, hosts=self._settings.hosts),
                Middleware(OnlyStore, base=self._base, store=self._path.name),
            ],
        )
        with self._listener:
            asyncio.run(serve(app, self._listener))


def _checked(path: Path, images: Sequence[str]) -> LiveView:
    """Returns the view of a store that is shown by now, or may be once it has frames. Raises
    ``StorageError``."""
    if not is_plain(path.name):
        raise StorageError(
            f"{path} is hidden, and not shown in a browser",
            expected="a name that does not begin with a dot",
            hint="Rename the store, or open it with --in napari",
        )
    view = LiveView(path)
    if isinstance(path, RemotePath):
        try:
            find_images(partial(document_of, view), images)
        except NotViewableError as error:
            raise StorageError(f"a browser cannot show {path}", got=str(error)) from None
        return view
    if view.is_finished and not beneath.exists(path / WORKSPACE):
        try:
            find_images(FinishedStores(path.parent).find(path.name).reads.document, images)
        except NotViewableError as error:
            store = _store_of(path)
            hint = None if store == path else f"Give the store that it is a part of: {store}"
            raise StorageError(f"a browser cannot show {path}", got=str(error), hint=hint) from None
    return view


def _store_of(path: Path) -> Path:
    """Returns the store that a folder is a part of, or is."""
    while beneath.exists(path.parent / STORE_MARK):
        path = path.parent
    return path
