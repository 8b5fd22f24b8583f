"""One store for the browser of this computer, without a daemon: what ``shardwright view`` serves.

The addresses are those of the web process, on a port of the loopback address: /view/STORE, the viewer, and
the files of this store. What else lies beside it is not there, and pages of other origins may not read it.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from shardwright.daemon.web_child import WebSettings
from shardwright.disk import beneath
from shardwright.model.errors import StorageError
from shardwright.model.names import WORKSPACE
from shardwright.read.live_view import LiveView

from .connections import serve
from .finished_stores import FinishedStores, NotViewableError
from .guard import LOOPBACK_NAMES, Guard
from .served_files import STORE_MARK, is_plain
from .viewer import CLIENT, VIEW
from .web_app import STATIC, StaticFolder, store_routes

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

ADDRESS = LOOPBACK_NAMES[1]
ICON = "/icon.svg"


class OnlyStore:
    """Answers 404 for every address that does not belong to one store or the viewer."""

    def __init__(self, app: ASGIApp, store: str) -> None:
        self._app = app
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        kind, _, rest = path.removeprefix("/").partition("/")
        is_ours = kind != "api" and rest.partition("/")[0] == self._store
        if is_ours or path == ICON or path.startswith(CLIENT):
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse("Only one store is shown here.\n", 404)(scope, receive, send)


class StoreForBrowser:
    """A port of this computer on which a browser sees the store at ``path``, a folder and no link; its shards
    may be links to below ``spill_root``, by default to where its acquisition spills them. Raises
    ``StorageError`` when a browser cannot show it."""

    def __init__(self, path: Path, spill_root: Path | None = None) -> None:
        self._path = path
        second_root = _checked(path).second_root_and_folders[0]
        self._listener = socket.create_server((ADDRESS, 0))
        self._settings = WebSettings(
            control_socket="",
            descriptor=self._listener.fileno(),
            hosts=(),
            origins=(),
            preview_hz=1,
            output_root=str(path.parent),
            spill_root=second_root if spill_root is None else str(spill_root),
        )

    @property
    def url(self) -> str:
        """The address that opens the store in the viewer."""
        return f"http://{ADDRESS}:{self._listener.getsockname()[1]}{VIEW}{quote(self._path.name)}"

    def serve(self) -> None:
        """Serves until SIGTERM, or Ctrl-C, which is raised again at the end."""
        app = Starlette(
            routes=[*store_routes(self._settings), Route("/{path:path}", StaticFolder(STATIC).respond)],
            middleware=[
                Middleware(Guard, hosts=self._settings.hosts),
                Middleware(OnlyStore, store=self._path.name),
            ],
        )
        with self._listener:
            asyncio.run(serve(app, self._listener))


def _checked(path: Path) -> LiveView:
    """Returns the view of a store that is shown by now, or may be once it has frames. Raises
    ``StorageError``."""
    if not is_plain(path.name):
        raise StorageError(
            f"{path} is hidden, and not shown in a browser",
            expected="a name that does not begin with a dot",
            hint="Rename the store, or open it with --in napari",
        )
    view = LiveView(path)
    if view.is_finished and not beneath.exists(path / WORKSPACE):
        try:
            FinishedStores(path.parent).find(path.name)
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
