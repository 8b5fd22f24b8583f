"""Serves what stores consist of as far as a Zarr reader over HTTP needs it: their files (``StoreFiles``), or
the keys of a live view (``web.live_stores``).

GET, HEAD, ranges and suffix ranges, ETag, 304 and 412, CORS. No listing, no hidden files (a store's
workspace), no links out of the root. Files are opened and read in a few threads: a stuck disk blocks only
those; further requests are soon refused, and the page still works.

A Zarr reader takes 404 for fill value, so that it is the answer only for what was never there. Errors to
every reader are 409, for a file that is not served or was changed while it was read, and for a chunk that an
index has named and nobody has stored, and 410, for a store that is gone. After 503, for a store that changes
faster than it is read, some try again. A file that changes after its first piece was sent ends the
connection: under one tag no body is half old and half new.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from shardwright.disk.read_file import ReadFile
from shardwright.model.errors import (
    LinkError,
    ShardChangedError,
    ShardwrightError,
    StoreChangingError,
    StoreGoneError,
)

from .served_files import ElsewhereError, NotServedError, check_not_gone, open_in_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.datastructures import Headers
    from starlette.requests import Request

    from shardwright.daemon.web_child import WebSettings
    from shardwright.read.live_shard import ComposedShard, KeyBytes, KeyFile

T = TypeVar("T")
A = TypeVarTuple("A")
PREFIX = "/stores/"
_NOT_READ = "This file is not served: it is a link, or may not be read here."  # not where it leads
THREADS = 8
# well below the limit of connections, so that a stuck disk leaves some for the page
MOST_WAITING = 64
PIECE_BYTES = 256 << 10
PREFLIGHT_SECONDS = 86_400
POLICY = "sandbox; default-src 'none'"  # no browser may run a file of a store as a page of ours
REQUEST_HEADERS = "Range, If-Range, If-Match, If-None-Match"
ANSWER_HEADERS = "Accept-Ranges, Content-Range, Content-Length, ETag"
KEY = "{path:store_path}"  # of a route: a store, and a key in it
_RANGE = re.compile(r"bytes=\s*(?P<first>[0-9]{0,19})-(?P<last>[0-9]{0,19})\s*", re.IGNORECASE)


class _StorePath(PathConvertor):
    regex = "(?s:.*)"  # a name may hold a line's end, at which Starlette's own stops


register_url_convertor("store_path", _StorePath())


class Served(Protocol):
    """The resource that a request asks for, open until ``close``. ``etag`` changes whenever its bytes may
    have."""

    @property
    def size(self) -> int: ...

    @property
    def etag(self) -> str: ...

    def has(self, start: int, stop: int) -> bool:
        """Returns whether the bytes [start, stop) are there: not those of a shard of which nothing is stored.
        Raises ``ShardChangedError`` for bytes of a chunk that was never stored."""

    def agrees_with(self, etag: str) -> bool:
        """Returns whether bytes that a client has read under ``etag`` and bytes of now go together."""

    def read(self, start: int, stop: int) -> bytes:
        """Returns at least one and at most PIECE_BYTES of the bytes [start, stop). Raises ``OSError``,
        ``ShardwrightError``."""

    def close(self) -> None: ...


class ServedKey:
    """The bytes of one key of a store, in pieces, whichever form of it has them."""

    def __init__(self, key: KeyFile | KeyBytes | ComposedShard) -> None:
        self.size = key.nbytes
        self.has = key.has
        self._key = key

    def read(self, start: int, stop: int) -> bytes:
        return self._key.read(start, min(stop, start + PIECE_BYTES))


class _OpenFile(ServedKey):
    """A file that is being served. Owns its descriptor."""

    def __init__(self, file: ReadFile) -> None:
        from shardwright.read.live_shard import KeyFile  # takes time to load

        key = KeyFile(file)
        super().__init__(key)
        self.etag = f'"{key.generation}"'
        self._file = file

    def agrees_with(self, etag: str) -> bool:
        return etag == self.etag

    def close(self) -> None:
        self._file.close()


class StoreFiles:
    """The files of the stores below the output root, as they lie."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings

    def find(self, path: str) -> Served:
        """Opens the file at ``path``, which begins with the store. Raises ``NotServedError``, ``OSError``,
        and ``StoreGoneError`` for a chunk of an array that is not there."""
        parts = path.split("/")
        try:
            descriptor = open_in_store(self._settings.output_root, self._settings.spill_root, parts)
        except NotServedError:
            check_not_gone(self._settings.output_root, parts)
            raise
        return _OpenFile(ReadFile(path, descriptor))


class Stores:
    """An endpoint whose ``path`` is a store and a key in it. ``find`` finds what it is; it raises
    ``NotServedError``, ``OSError``, ``ShardwrightError``."""

    def __init__(self, settings: WebSettings, find: Callable[[str], Served]) -> None:
        self._settings = settings
        self._find = find
        self._threads = anyio.CapacityLimiter(THREADS)
        self._reads = 0  # running in a thread, or waiting for one

    async def respond(self, request: Request) -> Response:
        response = await self._answer(request)
        response.headers.update({"Accept-Ranges": "bytes", **store_headers(self._settings, request)})
        return response

    async def _answer(self, request: Request) -> Response:
        if (refusal := origin_refusal(self._settings, request)) is not None:
            return refusal
        if request.method == "OPTIONS":
            return preflight()
        if self._reads >= THREADS + MOST_WAITING:
            return PlainTextResponse(
                "The disk is too slow for more requests at once.\n", 503, {"Retry-After": "2"}
            )
        try:
            file = await self._in_thread(self._find, request.path_params["path"])
            return await self._file_answer(request, file)
        except NotServedError:
            return PlainTextResponse("There is no such file.\n", 404)
        except (LinkError, PermissionError) as error:
            why = str(error) if isinstance(error, ElsewhereError) else _NOT_READ
            return PlainTextResponse(f"{why}\n", 409)
        except StoreGoneError as error:
            return PlainTextResponse(f"{error}\n", 410)
        except ShardChangedError as error:
            return PlainTextResponse(f"{error}\n", 409)
        except StoreChangingError as error:
            return PlainTextResponse(f"{error}\n", 503, {"Retry-After": "1"})
        except (OSError, ShardwrightError) as error:
            what = error if isinstance(error, ShardwrightError) else error.strerror
            return PlainTextResponse(f"The file cannot be read: {what}\n", 500)

    async def _in_thread(self, work: Callable[[*A], T], *arguments: *A) -> T:
        self._reads += 1
        try:
            return await anyio.to_thread.run_sync(work, *arguments, limiter=self._threads)
        finally:
            self._reads -= 1

    async def _file_answer(self, request: Request, file: Served) -> Response:
        """Answers with ``file``, and closes it in the end."""
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if is_another(request.headers, file):
            file.close()
            return PlainTextResponse("The file is another one by now.\n", 412, headers)
        if is_unchanged(request.headers, file.etag):
            file.close()
            return Response(status_code=304, headers=headers)
        try:
            wanted = wanted_range(request.headers, file.etag, file.size)
        except UnsatisfiableRangeError:
            file.close()
            return PlainTextResponse(
                "The file has no such bytes.\n", 416, {**headers, "Content-Range": f"bytes */{file.size}"}
            )
        start, stop = wanted or (0, file.size)
        if not file.has(start, stop):
            file.close()
            raise NotServedError
        headers |= {
            "Content-Length": str(stop - start),
            "Content-Type": _content_type(request.path_params["path"]),
        }
        if wanted is not None:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
        status = 200 if wanted is None else 206
        if request.method == "HEAD" or start == stop:
            file.close()
            return Response(status_code=status, headers=headers)
        try:
            first = await self._in_thread(file.read, start, stop)  # an error still has its status
        except BaseException:
            file.close()
            raise
        return StreamingResponse(self._pieces(file, first, start, stop), status, headers)

    async def _pieces(self, file: Served, piece: bytes, start: int, stop: int) -> AsyncIterator[bytes]:
        try:
            yield piece
            while (start := start + len(piece)) < stop:
                piece = await self._in_thread(file.read, start, stop)
                yield piece
        finally:
            file.close()


def origin_refusal(settings: WebSettings, request: Request) -> Response | None:
    """Returns the refusal of a request that a browser makes for a page of another origin; None for one that
    is allowed, and for all that are not made for a page: those name no origin."""
    origin = request.headers.get("origin")
    if origin is None or _may_read(settings, request, origin):
        return None
    hint = "`http.allowed_origins` in the configuration adds it"
    return PlainTextResponse(f"Pages of {origin[:200]} may not read stores from here: {hint}.\n", 403)


def _may_read(settings: WebSettings, request: Request, origin: str) -> bool:
    """By the host alone for pages of ours: a proxy may have another scheme."""
    is_ours = origin.partition("://")[2] == request.headers["host"]
    return is_ours or "*" in settings.origins or origin in settings.origins


def store_headers(settings: WebSettings, request: Request) -> dict[str, str]:
    """Returns the headers of every answer that is of a store: no browser may run it, and pages of which
    origins may read it (CORS)."""
    allowed, origin = settings.origins, request.headers.get("origin")
    policy = {"Content-Security-Policy": POLICY}
    shared = {
        "Access-Control-Expose-Headers": ANSWER_HEADERS,
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    if "*" in allowed:  # also for what names no origin, so that a cache may keep it for all
        return {**policy, "Access-Control-Allow-Origin": "*", **shared}
    if origin is not None and origin in allowed:
        return {**policy, "Access-Control-Allow-Origin": origin, "Vary": "Origin", **shared}
    return {**policy, "Cross-Origin-Resource-Policy": "same-origin", "Vary": "Origin"}


def preflight() -> Response:
    """Returns the answer to OPTIONS."""
    headers = {
        "Access-Control-Allow-Methods": "GET, HEAD",
        "Access-Control-Allow-Headers": REQUEST_HEADERS,
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
        "Allow": "GET, HEAD, OPTIONS",
    }
    return Response(status_code=204, headers=headers)


def _content_type(path: str) -> str:
    return "application/json" if path.endswith(".json") else "application/octet-stream"


class UnsatisfiableRangeError(Exception):
    """The file has no such bytes."""


def wanted_range(headers: Headers, etag: str, size: int) -> tuple[int, int] | None:
    """Returns the byte range that a request wants (RFC 9110, section 14): its first byte and the one after
    the last. Returns None for the whole file, also when there are
    several ranges or none that is valid.

    Raises ``UnsatisfiableRangeError``.
    """
    match = _RANGE.fullmatch(headers.get("range", ""))
    if match is None or headers.get("if-range", etag) != etag:
        return None
    first, last = match["first"], match["last"]
    if first:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    elif last:
        start, stop = max(0, size - int(last)), size
    else:
        return None
    if start >= size or start >= stop:
        raise UnsatisfiableRangeError
    return start, stop


def is_another(headers: Headers, file: Served) -> bool:
    """True if the client wants bytes only of a version that ``file`` does not go together with (RFC 9110,
    section 13.1.1)."""
    wanted = headers.get("if-match", "*").strip()
    return wanted != "*" and not any(file.agrees_with(tag.strip()) for tag in wanted.split(","))


def is_unchanged(headers: Headers, etag: str) -> bool:
    """True if the client has the file already."""
    known = headers.get("if-none-match")
    return known is not None and (
        known.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in known.split(","))
    )
