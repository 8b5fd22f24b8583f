"""Serves neuroglancer: the client in the wheel ``neuroglancer`` (extra ``viewer``), and addresses that open a
store in it.

    /api/stores                      the finished stores
    /view/STORE                      redirects to the client, with a state that shows that store: its first
                                     frame, or the newest one while it is being written
    /neuroglancer/v/local/           the client; from ``v/TOKEN`` it finds where it was loaded from

The wheel's client is made to follow a Python session, which does not exist here. Its address holds its whole
state, and ``SESSION_STUB`` in the page answers in the session's place. The policy allows requests to this
address only, so that no pixel and no name leaves the rig.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from shardwright.model.errors import ShardwrightError
from shardwright.model.extras import install_line
from shardwright.model.json_text import parse_json
from shardwright.model.names import acquisition_name

from .api import Json
from .contrast import live_windows
from .finished_stores import NotViewableError, find_image
from .live_stores import PREFIX as LIVE
from .served_files import ElsewhereError, NotServedError
from .stores import PREFIX as FILES
from .viewer_state import Window, viewer_fragment, viewer_state

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from shardwright.read.live_view import LiveView

    from .finished_stores import FinishedStores
    from .live_stores import LiveStores
    from .viewer_state import StoredImage

log = logging.getLogger("shardwright")
CLIENT = "/neuroglancer/v/local/"
VIEW = "/view/"
POLICY = "; ".join(
    [
        "default-src 'self'",
        "script-src 'self' 'unsafe-eval'",  # its Blosc decoder is WebAssembly with generated glue
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "connect-src 'self' data: blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
SESSION_STUB = """\
// The client waits for events of a Python session. There is none: connected at once, nothing ever comes.
window.EventSource = class extends EventTarget {
  constructor() { super(); setTimeout(() => this.onopen?.(new Event("open"))); }
  close() {}
};
// Without a state it would ask the session for one.
if (!location.hash) location.replace("#!%7B%7D");
"""
HEAD = '<script src="session_stub.js"></script><link rel="icon" href="/icon.svg">'
MISSING = f"The viewer is not installed. Install the extra viewer:  {install_line('viewer')}\n"
CONTRAST_TIMEOUT_S = 10.0
MOST_REMEMBERED = 256
# the client's file names contain a hash of the content
FOR_EVER = {"Cache-Control": "max-age=31536000, immutable"}


def client_folder() -> Path | None:
    """Returns the wheel's folder of the client, None when it is not installed. Imports nothing of it."""
    found = importlib.util.find_spec("neuroglancer")
    folders = [] if found is None else found.submodule_search_locations or []
    return next(
        (
            client
            for client in (Path(folder, "static", "client") for folder in folders)
            if (client / "index.html").is_file()
        ),
        None,
    )


@dataclass(frozen=True)
class _Viewed:
    """An image of a store that is to be shown. ``view``: of an acquisition that is not finished."""

    path: Path
    changed_ns: int
    image: StoredImage
    image_path: str
    view: LiveView | None = None


class Viewer:
    """The endpoints of the viewer, for the stores in ``stores``, and in ``live`` while they are written."""

    def __init__(self, stores: FinishedStores, live: LiveStores) -> None:
        self._stores = stores
        self._live = live
        self._folder = client_folder()
        self._files = (
            {}
            if self._folder is None
            else {path.name: path for path in self._folder.iterdir() if path.name != "index.html"}
        )
        self._windows: dict[tuple[str, int], list[Window | None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._thread = anyio.CapacityLimiter(1)  # its own: a stuck disk blocks the viewer, and not the page

    async def stores(self, request: Request) -> Response:
        """Lists the finished stores, and where each can be viewed."""
        del request
        stores = await self._stores.listed()
        return Json(
            {"viewer": None if self._folder is None else VIEW, "stores": stores, "more": self._stores.more}
        )

    async def client(self, request: Request) -> Response:
        name = request.path_params["path"]
        if self._folder is None:
            return PlainTextResponse(MISSING, 404)
        if name in ("", "index.html"):
            return self._index(self._folder)
        if name == "session_stub.js":
            return Response(
                SESSION_STUB, media_type="text/javascript", headers={"Content-Security-Policy": POLICY}
            )
        file = self._files.get(name)
        if file is None:
            return PlainTextResponse("The viewer has no such file.\n", 404)
        return FileResponse(file, headers={"Content-Security-Policy": POLICY, **FOR_EVER})

    def _index(self, folder: Path) -> Response:
        page = (folder / "index.html").read_text(encoding="utf-8")
        page = page.replace("<head>", f"<head>{HEAD}", 1)
        return Response(
            page,
            media_type="text/html",
            headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"},
        )

    async def view(self, request: Request) -> Response:
        """Redirects to the client. The state is made at each call: a store may have been compacted or
        deleted."""
        store = request.path_params["store"]
        if self._folder is None:
            return PlainTextResponse(MISSING, 404)
        try:
            async with self._one_at_a_time:
                found = await anyio.to_thread.run_sync(self._find, store, limiter=self._thread)
                windows = await self._windows_of(found)
        except NotViewableError as error:
            return PlainTextResponse(f"{error}\n", 404)
        host, prefix = request.headers["host"], FILES if found.view is None else LIVE
        name = acquisition_name(store)
        url = f"{request.url.scheme}://{host}{prefix}{quote(store, safe='')}/"
        if found.image_path:
            url, name = f"{url}{quote(found.image_path)}/", f"{name} · {found.image.name or found.image_path}"
        state = viewer_state(found.image, name, url, windows, newest=found.view is not None)
        return RedirectResponse(CLIENT + viewer_fragment(state), 302)

    def _find(self, store: str) -> _Viewed:
        """Raises ``NotViewableError``."""
        try:
            view = self._live.view(store)
            if not view.is_finished:
                image, image_path = find_image(lambda *folder: _known(view.document("/".join(folder))))
                return _Viewed(view.path, 0, image, image_path, view)
        except ElsewhereError as error:
            raise NotViewableError(str(error)) from None
        except (NotServedError, OSError, ShardwrightError):
            pass
        found = self._stores.find(store)
        return _Viewed(found.path, found.changed_ns, found.image, found.image_path)

    async def _windows_of(self, store: _Viewed) -> list[Window | None]:
        """Returns the initial window of each of the first channels; none if they cannot be found in time."""
        if store.view is not None:
            found = await anyio.to_thread.run_sync(
                _live_windows, store.view, store.image_path, limiter=self._thread
            )
            return found or await _find_windows(store.path, store.image_path)  # it is finished by now
        key = (store.path.name, store.changed_ns)
        windows = self._windows.get(key, [])
        if not windows and any(windows := await _find_windows(store.path, store.image_path)):
            while len(self._windows) >= MOST_REMEMBERED:
                del self._windows[next(iter(self._windows))]
            self._windows[key] = windows
        return windows


def _known(document: dict[str, Any] | None) -> dict[str, Any]:
    if document is None:
        raise NotServedError
    return document


def _live_windows(view: LiveView, image_path: str) -> list[Window | None]:
    try:
        return live_windows(view, image_path)
    except ShardwrightError as error:
        log.warning("no contrast window of %s: %s", view.path, error)
        return []


async def _find_windows(path: Path, image_path: str) -> list[Window | None]:
    program = [sys.executable, "-m", f"{__package__}.contrast", str(path), image_path]
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*program, stdin=nowhere, stdout=pipe, stderr=nowhere)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), CONTRAST_TIMEOUT_S)
        return [
            None if window is None else (window[0], window[1])
            for window in parse_json(output, may_be_nan=True)
        ]
    except (TimeoutError, ValueError):
        return []
    finally:
        with contextlib.suppress(ProcessLookupError):
            if process.returncode is None:
                process.kill()


def viewer_routes(stores: FinishedStores, live: LiveStores) -> list[BaseRoute]:
    viewer = Viewer(stores, live)
    endpoints = {
        "/api/stores": viewer.stores,
        VIEW + "{store}": viewer.view,
        CLIENT + "{path:path}": viewer.client,
    }
    return [Route(path, endpoint) for path, endpoint in endpoints.items()]
