"""The loop of a simulated camera: frames of one source into one writer or stream, paced like a sensor."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.array.frame_sink import FrameSink

    from .photons import PhotonFrames


@dataclass(frozen=True)
class CameraRun:
    """The result of a run. ``frames_behind``: frames sent more than one frame time late, because the writer
    blocked."""

    frames: int
    seconds: float
    bytes_raw: int
    frames_behind: int

    @property
    def frames_per_second(self) -> float:
        return self.frames / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.bytes_raw / self.seconds if self.seconds else 0.0


def run_camera(
    target: FrameSink,
    source: PhotonFrames,
    frames: int,
    *,
    fps: float = 0.0,
    frame_places: int = 1,
    on_frame: Callable[[int], None] = lambda sent: None,
) -> CameraRun:
    """Sends ``frames`` frames with ids from 0; ``fps`` 0 is as fast as the target takes them. Above 1,
    ``frame_places`` columns of the source side by side are the channels of a pixel.

    ``on_frame`` gets the number of frames sent after each. Like a sensor, the loop keeps its schedule: late
    frames are sent without a pause.
    """
    period_s = 1.0 / fps if fps > 0 else 0.0
    buffer = np.empty(source.shape, source.dtype)
    frame = buffer if frame_places == 1 else buffer.reshape(len(buffer), -1, frame_places)
    behind = 0
    start_s = time.monotonic()
    for i in range(frames):
        source.frame(i, out=buffer)
        if period_s:
            early_s = start_s + i * period_s - time.monotonic()
            if early_s > 0:
                time.sleep(early_s)
            elif -early_s > period_s:
                behind += 1
        metadata = {"delta_t": i * period_s, "exposure_time": period_s} if period_s else None
        target.append(frame, frame_id=i, metadata=metadata)
        on_frame(i + 1)
    return CameraRun(frames, time.monotonic() - start_s, frames * buffer.nbytes, behind)
