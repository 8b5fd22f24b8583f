"""Serves the stores below the output root, file by file, as far as a Zarr reader over HTTP needs them.

GET, HEAD, ranges and suffix ranges, 404 for chunks that are absent, ETag and 304, CORS. No listing, no hidden
files (a store's workspace), no links out of the root. Files are opened and read in a few threads: a stuck
disk blocks only those; further requests are soon refused, and the page still works.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from .confined import NotServedError, open_in_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.datastructures import Headers
    from starlette.requests import Request

    from shardwright.daemon.web_child import WebSettings

T = TypeVar("T")
A = TypeVarTuple("A")
PREFIX = "/stores/"
THREADS = 8
# well below the limit of connections, so that a stuck disk leaves some for the page
MOST_WAITING = 64
PIECE_BYTES = 256 << 10
PREFLIGHT_SECONDS = 86_400
POLICY = "sandbox; default-src 'none'"  # no browser may run a file of a store as a page of ours
REQUEST_HEADERS = "Range, If-Range, If-None-Match"
ANSWER_HEADERS = "Accept-Ranges, Content-Range, Content-Length, ETag"
_RANGE = re.compile(r"bytes=\s*(?P<first>[0-9]{0,19})-(?P<last>[0-9]{0,19})\s*", re.IGNORECASE)


@dataclass(frozen=True)
class _OpenFile:
    """A file that is being served. Owns its descriptor."""

    descriptor: int
    size: int
    etag: str

    def read(self, start: int, stop: int) -> bytes:
        data = os.pread(self.descriptor, min(stop - start, PIECE_BYTES), start)
        if not data:
            raise OSError(f"the file ended at {start}, expected {stop} bytes")
        return data

    def close(self) -> None:
        os.close(self.descriptor)


class Stores:
    """The endpoint below ``PREFIX``."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._threads = anyio.CapacityLimiter(THREADS)
        self._reads = 0  # running in a thread, or waiting for one

    async def respond(self, request: Request) -> Response:
        response = await self._answer(request)
        response.headers.update(
            {"Content-Security-Policy": POLICY, "Accept-Ranges": "bytes", **self._cors(request)}
        )
        return response

    def _cors(self, request: Request) -> dict[str, str]:
        """Returns the CORS headers: pages of which origins may read the answer."""
        allowed, origin = self._settings.origins, request.headers.get("origin")
        shared = {
            "Access-Control-Expose-Headers": ANSWER_HEADERS,
            "Cross-Origin-Resource-Policy": "cross-origin",
        }
        if "*" in allowed:
            return {"Access-Control-Allow-Origin": "*", **shared}
        if origin is not None and origin in allowed:
            return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", **shared}
        return {"Vary": "Origin"}

    async def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            asked = {
                "Access-Control-Allow-Methods": "GET, HEAD",
                "Access-Control-Allow-Headers": REQUEST_HEADERS,
            }
            return Response(
                status_code=204,
                headers={
                    **asked,
                    "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
                    "Allow": "GET, HEAD, OPTIONS",
                },
            )
        if self._reads >= THREADS + MOST_WAITING:
            return PlainTextResponse(
                "The disk is too slow for more requests at once.\n", 503, {"Retry-After": "2"}
            )
        try:
            file = await self._in_thread(self._open, request.path_params["path"])
        except NotServedError:
            return PlainTextResponse("There is no such file.\n", 404)
        except OSError as error:
            return PlainTextResponse(f"The file cannot be read: {error.strerror}\n", 500)
        return self._file_answer(request, file)

    async def _in_thread(self, work: Callable[[*A], T], *arguments: *A) -> T:
        self._reads += 1
        try:
            return await anyio.to_thread.run_sync(work, *arguments, limiter=self._threads)
        finally:
            self._reads -= 1

    def _open(self, path: str) -> _OpenFile:
        descriptor = open_in_store(self._settings.output_root, self._settings.spill_root, path.split("/"))
        facts = os.fstat(descriptor)
        return _OpenFile(
            descriptor, facts.st_size, f'"{facts.st_ino:x}-{facts.st_size:x}-{facts.st_mtime_ns:x}"'
        )

    def _file_answer(self, request: Request, file: _OpenFile) -> Response:
        """Answers with ``file``, and closes it in the end."""
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
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
        headers |= {
            "Content-Length": str(stop - start),
            "Content-Type": _content_type(request.path_params["path"]),
        }
        if wanted is not None:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
        status = 200 if wanted is None else 206
        if request.method == "HEAD":
            file.close()
            return Response(status_code=status, headers=headers)
        return StreamingResponse(self._pieces(file, start, stop), status, headers)

    async def _pieces(self, file: _OpenFile, start: int, stop: int) -> AsyncIterator[bytes]:
        try:
            while start < stop:
                piece = await self._in_thread(file.read, start, stop)
                yield piece
                start += len(piece)
        finally:
            file.close()


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


def is_unchanged(headers: Headers, etag: str) -> bool:
    """True if the client has the file already."""
    known = headers.get("if-none-match")
    return known is not None and (
        known.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in known.split(","))
    )
