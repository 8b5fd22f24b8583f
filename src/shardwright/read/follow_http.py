"""Follows an acquisition over HTTP, from any computer: reads the stream of frames that a rig's web process
sends (``web.frame_stream`` says of what it consists), and connects again where it breaks."""

from __future__ import annotations

import http.client
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import (
    ProtocolError,
    ShardwrightError,
    StorageError,
    StoreGoneError,
    TimedOutError,
    error_from_dict,
)
from shardwright.model.json_text import parse_json

from .followed_frame import FollowedFrame, MetSequences

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM = ".frames"  # the last part of its address
SILENCE_S = 5.0  # the server says something every second
AGAIN_S = 0.3
MOST_LINE_BYTES = 16 << 20
MOST_FRAME_BYTES = 1 << 36  # as an array may have
_NOT_HERE, _BUSY = 404, 503
# a rig's address is not one for a proxy
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HttpFollower:
    """One follower of a store at ``url``; one thread's. ``only_new``: frames that are stored when it connects
    for the first time are left out."""

    def __init__(self, url: str, *, only_new: bool) -> None:
        self._url = url.rstrip("/")
        self._only_new = only_new
        self._met = MetSequences()
        self._connected = False

    def frames(self, timeout_ms: float | None) -> Iterator[FollowedFrame]:
        """Yields frames until the acquisition has ended. Raises as ``shardwright.follow``."""
        longest_s = math.inf if timeout_ms is None else timeout_ms / 1000
        waited_from_s = time.monotonic()
        while True:
            try:
                with self._connect() as answer:
                    for frame in self._read(answer):
                        if frame is not None:
                            yield frame
                            waited_from_s = time.monotonic()
                        elif time.monotonic() - waited_from_s > longest_s:
                            break
                    else:
                        return
            except ShardwrightError:
                raise
            except (OSError, http.client.HTTPException) as error:
                if not self._connected:
                    raise StorageError(
                        f"no rig answers at {self._url}",
                        got=str(error),
                        hint="Give the address of a store at a status page: http://RIG:8790/live/NAME.ome.zarr",
                    ) from None
            if time.monotonic() - waited_from_s > longest_s:
                raise TimedOutError(
                    f"no new frame of {self._url} was stored in time",
                    expected=f"one within {timeout_ms:g} ms",
                    hint="Does its rig run, and can it be reached? Follow it again, or wait longer",
                )
            time.sleep(AGAIN_S)

    def _connect(self) -> http.client.HTTPResponse:
        """Raises ``OSError`` when there is no connection or the server is busy."""
        asked: dict[str, int | str] = {"after": self._met.all_before}
        if beyond := self._met.ranges_beyond():  # a frame that was never stored is a hole for good
            asked["met"] = ",".join(f"{start}-{stop}" for start, stop in beyond)
        if self._only_new and not self._connected:
            asked["only_new"] = 1
        address = urllib.parse.quote(self._url, safe=":/[]%")
        try:
            answer: http.client.HTTPResponse = _OPENER.open(
                f"{address}/{STREAM}?{urllib.parse.urlencode(asked, safe=',')}", timeout=SILENCE_S
            )
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(1000).decode(errors="replace").strip()
            if error.code == _BUSY:
                raise ConnectionError(said) from None
            if error.code == _NOT_HERE and self._connected:
                raise StoreGoneError(f"{self._url} was deleted, moved, or ended without a frame") from None
            raise StorageError(
                f"{self._url} cannot be followed", got=f"{error.code}: {said}", hint="Is its name right?"
            ) from None
        return answer

    def _read(self, answer: http.client.HTTPResponse) -> Iterator[FollowedFrame | None]:
        """Yields frames, None where the server says that there is nothing new. Ends with the acquisition.
        Raises ``ConnectionError`` where the stream breaks, ``ProtocolError``, and what the server raised."""
        while True:
            line = answer.readline(MOST_LINE_BYTES)
            if not line.endswith(b"\n"):
                raise ConnectionError("the stream broke")
            try:
                match parse_json(line, may_be_nan=True):
                    case {"met": list(ranges)}:
                        self._met.meet((int(start), int(stop)) for start, stop in ranges)
                        self._connected = True
                    case {"frame": dict(facts)}:
                        frame = _frame(facts, answer)
                        if self._met.new_ones(np.array([frame.row["sequence"]], np.int64)).size:
                            yield frame
                    case {"error": dict(facts)}:
                        raise error_from_dict(facts)
                    case {"end": True}:
                        return
                    case _:
                        yield None
            except (LookupError, OverflowError, TypeError, ValueError) as error:
                if isinstance(error, ShardwrightError):
                    raise
                raise ProtocolError(
                    f"{self._url} sends what is no frame",
                    got=str(error),
                    hint="Does the rig run this release?",
                ) from None


def _frame(facts: dict[str, Any], answer: http.client.HTTPResponse) -> FollowedFrame:
    dtype, (rows, columns) = np.dtype(str(facts["dtype"])), map(int, facts["shape"])
    nbytes = rows * columns * dtype.itemsize
    if dtype.kind not in "biufc" or not 0 < nbytes <= MOST_FRAME_BYTES or rows < 0:
        raise ValueError(f"a frame of {rows} x {columns} pixels of {dtype}")
    pixels = np.empty((rows, columns), dtype)
    view, done = pixels.reshape(-1).view(np.uint8).data, 0
    while done < nbytes:
        count = answer.readinto(view[done:])
        if not count:
            raise ConnectionError("the stream broke")
        done += count
    return FollowedFrame(tuple(map(int, facts["index"])), str(facts["image"]), pixels, dict(facts["row"]))
