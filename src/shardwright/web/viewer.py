"""Serves neuroglancer: the client in the wheel ``neuroglancer`` (extra ``viewer``), and addresses that open a
store in it.

    /api/stores                      the finished stores
    /view/STORE                      redirects to the client, with a state that shows that store: the first
                                     frame of its first image, or the newest one while it is being written
    /view/STORE?all                  the same with all its images, side by side
    /view/STORE?image=NAME           with this one, or several
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
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
from .finished_stores import NotViewableError, document_of, find_image, find_images
from .guard import NEVER
from .live_stores import PREFIX as LIVE
from .served_files import ElsewhereError, NotServedError
from .stores import PREFIX as FILES
from .viewer_state import MOST_SHOWN, ShownImage, Window, viewer_fragment, viewer_state

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        NEVER,
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
# relative: all addresses may lie below another one (``one_store``)
HEAD = '<script src="session_stub.js"></script><link rel="icon" href="../../../icon.svg">'
MISSING = f"The viewer is not installed. Install the extra viewer:  {install_line('viewer')}\n"
CONTRAST_TIMEOUT_S = 10.0
MOST_REMEMBERED = 256
MOST_ADDRESS_BYTES = 200_000  # Chromium takes 256 KiB of headers
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
    """The images of a store that are to be shown, each with its folder. ``view``: of an acquisition that is
    not finished."""

    path: Path
    changed_ns: int
    images: list[tuple[StoredImage, str]]
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
        self._windows: dict[tuple[str | int, ...], list[list[Window | None]]] = {}
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
        names = request.query_params.getlist("image")[:MOST_SHOWN]
        several = names if names or "all" in request.query_params else None
        try:
            async with self._one_at_a_time:
                found = await anyio.to_thread.run_sync(self._find, store, several, limiter=self._thread)
                windows = await self._windows_of(found)
        except NotViewableError as error:
            return PlainTextResponse(f"{error}\n", 404)
        base, prefix = request.scope.get("root_path", ""), FILES if found.view is None else LIVE
        newest = found.view is not None and not self._live.holds(store)
        title = acquisition_name(store)
        url = f"{request.url.scheme}://{request.headers['host']}{base}{prefix}{quote(store, safe='')}/"
        shown = []
        for (image, folder), of_image in zip(found.images, windows, strict=True):
            name = image.name or folder
            if len(found.images) == 1:
                name = title = f"{title} · {name}" if folder else title
            shown.append(ShownImage(image, name, f"{url}{quote(folder)}/" if folder else url, of_image))
        return RedirectResponse(base + CLIENT + _fragment(title, shown, newest=newest), 302)

    def _find(self, store: str, several: Sequence[str] | None) -> _Viewed:
        """``several``: None for the first image, else as of ``find_images``. Raises ``NotViewableError``."""
        try:
            view = self._live.view(store)
            if self._live.holds(store) or not view.is_finished:
                read = partial(document_of, view)
                images = [find_image(read)] if several is None else find_images(read, several)
                return _Viewed(view.path, 0, images, view)
        except ElsewhereError as error:
            raise NotViewableError(str(error)) from None
        except (NotServedError, OSError, ShardwrightError):
            pass
        found = self._stores.find(store)
        images = [(found.image, found.image_path)]
        if several is not None:
            images = find_images(found.reads.document, several)
        return _Viewed(found.path, found.changed_ns, images)

    async def _windows_of(self, store: _Viewed) -> list[list[Window | None]]:
        """Returns the initial window of each of the first channels of each image; none if they cannot be
        found in time."""
        folders = [folder for _, folder in store.images]
        if store.view is not None:
            found = [
                await anyio.to_thread.run_sync(_live_windows, store.view, folder, limiter=self._thread)
                for folder in folders
            ]
            return found if any(found) else await _find_windows(store.path, folders)  # finished by now
        key: tuple[str | int, ...] = (store.path.name, store.changed_ns, *folders)
        windows = self._windows.get(key, [])
        if not windows:
            windows = await _find_windows(store.path, folders)
            if all(map(any, windows)):
                while len(self._windows) >= MOST_REMEMBERED:
                    del self._windows[next(iter(self._windows))]
                self._windows[key] = windows
        return windows


def _fragment(title: str, shown: list[ShownImage], *, newest: bool) -> str:
    """Returns the end of the client's address, with the first images where all would make it too long. The
    title says so."""
    named = f"{title} · first {len(shown)} images" if len(shown) >= MOST_SHOWN else title
    fragment = viewer_fragment(viewer_state(named, shown, newest=newest))
    while len(fragment) > MOST_ADDRESS_BYTES and len(shown) > 1:
        shown = shown[: max(1, min(len(shown) - 1, len(shown) * MOST_ADDRESS_BYTES // len(fragment)))]
        named = f"{title} · first {len(shown)} images"
        fragment = viewer_fragment(viewer_state(named, shown, newest=newest))
    return fragment


def _live_windows(view: LiveView, image_path: str) -> list[Window | None]:
    try:
        return live_windows(view, image_path)
    except ShardwrightError as error:
        log.warning("no contrast window of %s: %s", view.path, error)
        return []


async def _find_windows(path: Path, folders: Sequence[str]) -> list[list[Window | None]]:
    program = [sys.executable, "-m", f"{__package__}.contrast", str(path), *folders]
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*program, stdin=nowhere, stdout=pipe, stderr=nowhere)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), CONTRAST_TIMEOUT_S)
        return [
            [None if window is None else (window[0], window[1]) for window in of_image]
            for of_image in parse_json(output, may_be_nan=True)
        ]
    except (TimeoutError, ValueError):
        return [[] for _ in folders]
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
