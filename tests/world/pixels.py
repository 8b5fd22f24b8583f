"""The pixels of frames. A frame has one value, its token. Where its files are several columns wide each
column adds a number of its own, the same in every frame: no codec shrinks that, so that a chunk spans sectors
and pages, of which a power cut or a kill may take some.

A level has the means of two columns: these add the same number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .story import FILL

MOST_COLUMNS = 3000
TORN = 0xFFFE  # what is found where columns of a file are of different frames, or some are fill value
_LEAST, _STOP = 4096, 0xF000  # a token is less: no column becomes fill value, and none wraps around
_ADDED = np.random.default_rng(33).integers(_LEAST, _STOP, MOST_COLUMNS, dtype=np.uint16)


def spread(token: int, columns: int, width: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Returns the pixels of a frame: uint16[columns], of files of this width."""
    pixels = np.full(columns, token, np.uint16)
    return pixels if width == 1 or token == FILL else pixels + _ADDED[np.arange(columns) // 2]


def tokens(
    pixels: np.ndarray[Any, Any], width: int, *, first: int = 0, level: int = 0
) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Returns the token of each file: uint16[..., files] of pixels [..., columns], which begin with column
    ``first``; TORN where there is not one. Files of a level are as wide as those of the image."""
    if width == 1:
        return pixels.astype(np.uint16, copy=False)
    columns = np.arange(first, first + pixels.shape[-1])
    starts = np.flatnonzero(np.diff(columns // width, prepend=-1))
    plain = pixels.astype(np.uint16, copy=False) - _ADDED[columns if level else columns // 2]
    low, high = (np.minimum.reduceat(plain, starts, axis=-1), np.maximum.reduceat(plain, starts, axis=-1))
    most = np.maximum.reduceat(pixels, starts, axis=-1)
    return np.where(most == FILL, FILL, np.where(low == high, low, TORN)).astype(np.uint16)
