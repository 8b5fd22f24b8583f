"""A small frame as a picture with visible contrast."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Mapping

DARKEST_PERCENT, BRIGHTEST_PERCENT = 0.5, 99.5  # hot and dead pixels must not decide the contrast


@dataclass(frozen=True)
class PreviewPicture:
    """A picture of one frame. ``age_s``: time since the frame was taken, when the daemon was asked."""

    png: bytes
    frame: int
    frame_id: int | None
    age_s: float

    @classmethod
    def of(cls, preview: Mapping[str, Any]) -> PreviewPicture:
        """Makes the picture of a preview from the control socket."""
        return cls(preview_png(preview), preview["frame"], preview["frame_id"], preview["time_s"])


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
    in rows."""
    shape = (int(frame["height"]), int(frame["width"]))
    pixels = np.frombuffer(
        base64.b64decode(frame["data"]), np.dtype(frame["dtype"]).newbyteorder("<")
    ).reshape(shape)
    picture = io.BytesIO()
    Image.fromarray(stretched(pixels)).save(picture, "PNG", compress_level=1)
    return picture.getvalue()
