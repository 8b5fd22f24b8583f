r"""Sends each frame of a store once it is stored, for ``shardwright.follow`` over HTTP.

GET /live/NAME.ome.zarr/.frames?after=N&met=START-STOP,START-STOP&only_new=1

Left out are all sequences below ``after``, those in [START, STOP) of ``met`` (at most ``MOST_RANGES``), and
with ``only_new`` frames that are stored already. The answer goes on until the acquisition ends. It consists
of lines of JSON, each ended by \n:

    {"met": [[START, STOP], ...]}   first: sequences of frames that are left out, but for those below N
    {"frame": {"index", "image", "row", "dtype", "shape"}}, and at once the bytes of its pixels, C order:
                                    as ``shardwright.follow`` gives them
    {}                              nothing came for a while
    {"end": true}                   last: the acquisition has ended
    {"error": {...}}                last: an error, as ``ShardwrightError.to_dict`` gives it

What a client does not take waits in its connection, until that is cut off (``web.connections``).
"""

from __future__ import annotations

import json
import logging
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, TypeVarTuple
from weakref import WeakSet

import anyio
import anyio.to_thread
import numpy as np
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from shardwright.model.errors import ShardwrightError, StoreChangingError
from shardwright.read.followed_frame import MOST_RANGES

from .served_files import ElsewhereError, NotServedError
from .stores import origin_refusal, preflight, store_headers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from shardwright.daemon.web_child import WebSettings
    from shardwright.read.follow import Follower
    from shardwright.read.followed_frame import FollowedFrame

    from .live_stores import LiveStores

log = logging.getLogger("shardwright")
T = TypeVar("T")
A = TypeVarTuple("A")
MOST_FOLLOWERS = 8
THREADS = 4
LOOK_S = 0.02
QUIET_S = 1.0
_NUMBER = re.compile(r"[0-9]{1,15}")
_RANGE = re.compile(rf"({_NUMBER.pattern})-({_NUMBER.pattern})")


class _Asked(NamedTuple):
    """The parameters of a request."""

    after: int
    met: list[tuple[int, int]]
    only_new: bool

    @classmethod
    def of(cls, parameters: QueryParams) -> _Asked | None:
        """Returns None for parameters that are malformed or exceed the limits."""
        after, met = parameters.get("after", "0"), parameters.get("met")
        found = [] if met is None else [_RANGE.fullmatch(each) for each in met.split(",", MOST_RANGES)]
        if not _NUMBER.fullmatch(after) or len(found) > MOST_RANGES:
            return None
        ranges = [(int(each[1]), int(each[2])) for each in found if each is not None]
        if len(ranges) < len(found) or not all(start < stop for start, stop in ranges):
            return None
        return cls(int(after), ranges, parameters.get("only_new") == "1")


class _Seat:
    """Of one follower; free when nobody has it any more."""


class _FollowerAnswer(StreamingResponse):
    """The answer to a follower. It gives its seat back, and drops its view, as it ends, however it does:
    where the client is gone the error holds both until garbage is collected, on Python 3.13 for minutes."""

    def __init__(self, pieces: AsyncGenerator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(pieces, media_type="application/octet-stream")
        self._pieces, self._ended = pieces, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
            with anyio.CancelScope(shield=True):
                await self._pieces.aclose()


class FrameStreams:
    """The endpoint. Each answer has a view of its own."""

    def __init__(self, settings: WebSettings, stores: LiveStores) -> None:
        self._settings = settings
        self._stores = stores
        self._threads = anyio.CapacityLimiter(THREADS)
        self._followers: WeakSet[_Seat] = WeakSet()

    async def respond(self, request: Request) -> Response:
        response = origin_refusal(self._settings, request)
        if response is None:
            response = preflight() if request.method == "OPTIONS" else await self._answer(request)
        response.headers.update(store_headers(self._settings, request))
        return response

    async def _answer(self, request: Request) -> Response:
        asked = _Asked.of(request.query_params)
        if asked is None:
            return PlainTextResponse(
                f"after=NUMBER and met=START-STOP,... are expected, at most {MOST_RANGES} ranges.\n", 400
            )
        if len(self._followers) >= MOST_FOLLOWERS:
            return PlainTextResponse(
                f"{MOST_FOLLOWERS} others follow at this time.\n", 503, {"Retry-After": "2"}
            )
        seat = _Seat()
        self._followers.add(seat)  # before anything is awaited
        try:
            follower = await self._in_thread(self._follower, request.path_params["store"], asked)
        except (NotServedError, ElsewhereError):
            return PlainTextResponse("There is no such store.\n", 404)
        except StoreChangingError as error:
            return PlainTextResponse(f"{error}\n", 503, {"Retry-After": "1"})
        except (ShardwrightError, OSError) as error:
            return PlainTextResponse(f"It cannot be followed: {error}\n", 500)
        if request.method == "HEAD":
            return Response()
        return _FollowerAnswer(self._pieces(follower), partial(self._followers.discard, seat))

    async def _in_thread(self, work: Callable[[*A], T], *arguments: *A) -> T:
        return await anyio.to_thread.run_sync(work, *arguments, limiter=self._threads)

    def _follower(self, store: str, asked: _Asked) -> Follower:
        from shardwright.read.follow import Follower

        follower = Follower(self._stores.open(store), asked.after)
        follower.met.meet(asked.met)
        if asked.only_new:
            follower.leave_out()
        return follower

    async def _pieces(self, follower: Follower) -> AsyncGenerator[bytes]:
        try:
            yield _line({"met": follower.met.ranges()})
            said_s = time.monotonic()
            while True:
                is_over, frames = await self._in_thread(_look, follower)
                while (piece := await self._in_thread(_next, frames)) is not None:
                    yield piece
                    said_s = time.monotonic()
                if is_over:
                    yield _line({"end": True})
                    return
                if time.monotonic() - said_s > QUIET_S:
                    yield _line({})
                    said_s = time.monotonic()
                await anyio.sleep(LOOK_S)
        except ShardwrightError as error:
            yield _line({"error": error.to_dict()})
        except Exception as error:
            # a stream that only breaks would be asked for again for ever
            log.exception("a follower cannot be served")
            unforeseen = ShardwrightError(
                "the rig failed to read its store", got=repr(error)[:200], hint="Its log says more"
            )
            yield _line({"error": unforeseen.to_dict()})


def _look(follower: Follower) -> tuple[bool, Iterator[FollowedFrame]]:
    return follower.is_over, follower.look()


def _next(frames: Iterator[FollowedFrame]) -> bytes | None:
    """Returns the line and the pixels of the next frame; None without one."""
    frame = next(frames, None)
    if frame is None:
        return None
    pixels = np.ascontiguousarray(frame.pixels, frame.pixels.dtype.newbyteorder("<"))
    facts = {"index": frame.index, "image": frame.image, "row": frame.row}
    form = {"dtype": pixels.dtype.str, "shape": pixels.shape}
    return _line({"frame": facts | form}) + pixels.tobytes()


def _line(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode("ascii") + b"\n"
