"""The last picture of an acquisition whose camera is gone and of which the daemon has no preview, as after a
restart: of the newest frame in its store."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio.to_thread

from shardwright.model.errors import ShardwrightError

from .daemon_link import PreviewPicture
from .served_files import NotServedError

if TYPE_CHECKING:
    from .live_stores import LiveStores

log = logging.getLogger("shardwright")
AGAIN_S = 10.0  # after a store could not be read


class _Kept(NamedTuple):
    """The picture of a store. ``frames``: stored when it was read, at ``read_s``. ``taken_s``: when the frame
    came. Both times are of the monotonic clock."""

    frames: int
    read_s: float
    picture: PreviewPicture | None = None
    taken_s: float = 0.0

    def is_current(self, frames: int) -> bool:
        may_be_tried = self.picture is None and time.monotonic() - self.read_s > AGAIN_S
        return self.frames == frames and not may_be_tried


class StoredPreviews:
    """One picture for each store, drawn once. Owned by the event loop."""

    def __init__(self, live: LiveStores) -> None:
        self._live = live
        self._kept: dict[str, _Kept] = {}
        # One store at a time, in one thread, however many clients ask: each read decodes a slab.
        self._turn = asyncio.Lock()

    async def preview(self, name: str, acquisitions: list[dict[str, Any]]) -> PreviewPicture | None:
        """``acquisitions``: of the daemon's status. None for one that has no frame or cannot be read; of one
        that has a camera nothing is read, since the daemon soon has its next frame."""
        running = {each["name"]: each for each in acquisitions}
        self._kept = {known: kept for known, kept in self._kept.items() if known in running}
        if name not in running:
            return None
        known, kept = running[name], self._kept.get(name)
        if known["client"] is None and known["frames_stored"]:
            async with self._turn:
                kept = self._kept.get(name)  # another client may have read it meanwhile
                if kept is None or not kept.is_current(known["frames_stored"]):
                    kept = await anyio.to_thread.run_sync(_read, self._live, known)
                    self._kept[name] = kept
        if kept is None or kept.picture is None:
            return None
        age_s = time.monotonic() - kept.taken_s
        return PreviewPicture(kept.picture.png, {**kept.picture.facts, "time_s": age_s})


def _read(live: LiveStores, acquisition: dict[str, Any]) -> _Kept:
    kept = _Kept(acquisition["frames_stored"], time.monotonic())
    try:
        picture, taken_s = _newest(live, Path(acquisition["path"]).name)
    except (NotServedError, OSError, ShardwrightError) as error:
        log.warning("no last picture of %s: %s", acquisition["path"], error)
        return kept
    return kept._replace(picture=picture, taken_s=taken_s)


def _newest(live: LiveStores, store: str) -> tuple[PreviewPicture | None, float]:
    # here: the room costs time and memory, and is needed only once a camera is gone
    from shardwright.ingest.frame_preview import FramePreview

    view = live.open(store)
    acquiring, record = view.steady(lambda now: (now, None if now is None else now.newest_record()))
    if acquiring is None or record is None:
        return None, 0.0
    spec, position = acquiring.spec, int(record["position"])
    grid = spec.grids.of(position)
    index = grid.stored(grid.index_of(position))
    (frame,) = view.read_frames(spec.paths[grid.image], [index], recorded=True)
    age_s = max(0.0, time.time() - int(record["arrival_ns"]) / 1e9)
    preview = FramePreview.of(spec, record, frame, time.monotonic() - age_s)
    return PreviewPicture.of(preview.to_dict()), preview.taken_s
