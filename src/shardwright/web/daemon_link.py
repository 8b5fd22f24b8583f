"""Requests to the daemon: one thread, one connection to its control socket. However many clients there are, a
request is not sent twice within a moment, and no picture is fetched twice. To the answers it adds what the
page needs: the last minutes (history.py), the sentence of each event (``text``), and the preview as a picture
with visible contrast."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from PIL import Image, ImageOps

from shardwright.daemon.control_client import ControlClient
from shardwright.model.errors import ShardwrightError
from shardwright.model.event_text import event_text

from .history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
STATUS_FRESH_S = 0.2
EVENTS_FRESH_S = 0.5
MOST_EVENTS = 1000
WATCH_S = 2.0
DARKEST_PERCENT, BRIGHTEST_PERCENT = 0.5, 99.5  # hot and dead pixels must not decide the contrast


class Recent(Generic[T]):
    """The result or error of ``ask``, called in the link's thread. It is shared by all callers for
    ``fresh_s``."""

    def __init__(self, ask: Callable[[], T], fresh_s: float, executor: ThreadPoolExecutor) -> None:
        self._ask = ask
        self._fresh_s = fresh_s
        self._executor = executor
        self._answer: asyncio.Future[T] | None = None
        self._answered_s = 0.0

    async def get(self) -> T:
        answer = self._answer
        if answer is None or (answer.done() and time.monotonic() - self._answered_s >= self._fresh_s):
            answer = self._answer = asyncio.get_running_loop().run_in_executor(self._executor, self._ask)
            answer.add_done_callback(self._note)
        return await asyncio.shield(answer)

    def _note(self, answer: asyncio.Future[T]) -> None:
        self._answered_s = time.monotonic()
        if not answer.cancelled():
            answer.exception()  # marks it as retrieved: the caller may be gone


class DaemonLink:
    """The web process's connection to the daemon. Owned by the event loop. Raises what ``ControlClient``
    raises."""

    def __init__(self, socket_path: str, preview_hz: float) -> None:
        self._client = ControlClient(socket_path)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="control")
        self._status = Recent(lambda: self._ask_for("status"), STATUS_FRESH_S, self._executor)
        self._history = History()
        self._known_events: tuple[dict[str, Any], ...] = ()
        self._events = Recent(self._take_new_events, EVENTS_FRESH_S, self._executor)
        self._preview_fresh_s = 1 / preview_hz
        self._previews: dict[str, Recent[PreviewPicture | None]] = {}

    async def status(self) -> dict[str, Any]:
        """Returns the daemon's snapshot, with what ``History`` adds."""
        return self._history.added_to(await self._status.get())

    async def history(self) -> list[dict[str, float | None]]:
        """Returns the points of the last minutes, oldest first."""
        await self.status()  # of this daemon, not of one before
        return self._history.points()

    async def keep_watching(self) -> None:
        """Requests the status every ``WATCH_S``, so that the history does not begin with the first client."""
        while True:
            with contextlib.suppress(ShardwrightError):
                await self.status()
            await asyncio.sleep(WATCH_S)

    async def events(self, after: int) -> list[dict[str, Any]]:
        """Returns the events with a higher number, oldest first."""
        return [event for event in await self._events.get() if event["number"] > after]

    async def preview(self, name: str) -> PreviewPicture | None:
        """Returns the newest frame of a running acquisition, reduced; None while there is none. Drawn once
        for all clients."""
        running = {acquisition["name"] for acquisition in (await self._status.get())["acquisitions"]}
        self._previews = {known: recent for known, recent in self._previews.items() if known in running}
        if name not in running:
            return None
        if name not in self._previews:
            self._previews[name] = Recent(
                lambda: self._take_preview(name), self._preview_fresh_s, self._executor
            )
        return await self._previews[name].get()

    def _ask_for(self, what: str) -> Any:
        return self._client.ask(what)[what]

    def _take_preview(self, name: str) -> PreviewPicture | None:
        preview = self._client.ask("preview", name=name)["preview"]
        return None if preview is None else PreviewPicture.of(preview)

    def _take_new_events(self) -> tuple[dict[str, Any], ...]:
        """Fetches new events and returns all that are kept. Only the link's thread binds ``_known_events``,
        to a new tuple each time."""
        while new := self._client.ask(
            "events", after=self._known_events[-1]["number"] if self._known_events else 0
        )["events"]:
            told = ({**event, "text": event_text(event["event"], event)} for event in new)
            self._known_events = (*self._known_events, *told)[-MOST_EVENTS:]
        return self._known_events


@dataclass(frozen=True)
class PreviewPicture:
    """A picture of one frame. ``facts``: what the control socket says of it beside its pixels."""

    png: bytes
    facts: dict[str, Any]

    @classmethod
    def of(cls, preview: Mapping[str, Any]) -> PreviewPicture:
        """Makes the picture of a preview from the control socket."""
        return cls(preview_png(preview), {name: fact for name, fact in preview.items() if name != "data"})


def stretched(pixels: np.ndarray) -> np.ndarray:
    """Returns uint8 pixels with the contrast of all but the darkest and brightest; a frame of one value is
    mid-grey."""
    low, high = np.percentile(pixels, (DARKEST_PERCENT, BRIGHTEST_PERCENT))
    if high <= low:
        low, high = float(pixels.min()), float(pixels.max())
    if high <= low:
        return np.full(pixels.shape, 128, np.uint8)
    scaled = (pixels.astype(np.float32) - low) * (255 / (high - low))
    grey: np.ndarray = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    return grey


def preview_png(frame: Mapping[str, Any]) -> bytes:
    """Returns the PNG of a preview from the control socket: ``width``, ``height``, ``dtype``, base64 ``data``
    in rows; in the colour of its ``channel`` where it has one."""
    shape = (int(frame["height"]), int(frame["width"]))
    pixels = np.frombuffer(
        base64.b64decode(frame["data"]), np.dtype(frame["dtype"]).newbyteorder("<")
    ).reshape(shape)
    image = Image.fromarray(stretched(pixels))
    color = (frame["channel"] or {}).get("color")
    if color is not None:
        image = ImageOps.colorize(image, "black", f"#{color}")
    picture = io.BytesIO()
    image.save(picture, "PNG", compress_level=1)
    return picture.getvalue()
