"""Simulated camera frames: Poisson photon noise on a fluorescence-like background, any frame from (seed,
index) alone.

    pool       POOL_FRAMES noisy exposures of one sample, drawn once from the seed; the sample wraps around at
               the frame's edges
    frame i    exposure ``i % POOL_FRAMES``, moved cyclically by ``(start + i * STEP_PIXELS) % pixels``
               pixels: the stage drifts
    stamp      the first 64 pixels (fewer in a smaller frame) are the bits of i, lowest first, as pixels of
               value 0 or 1

An exposure is kept twice in a row, so that every cyclic move is one contiguous copy: a frame costs one
memcpy. The stamp works for every dtype and distinguishes frames whose other pixels are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

POOL_FRAMES = 4
STEP_PIXELS = 2039  # a prime near common row lengths: consecutive frames move along rows and columns
STAMP_PIXELS = 64
_OFFSET_COUNTS = 100.0  # a camera's dark level
_BITS = np.arange(STAMP_PIXELS, dtype=np.uint64)


def _background(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns the expected photons for each pixel: dim haze and bright round spots that wrap around the
    edges."""
    rows, columns = (np.arange(n, dtype=np.float64) / n for n in shape)
    image = np.full(shape, 20.0)
    for _ in range(24):
        y, x, brightness = rng.random(), rng.random(), rng.uniform(30.0, 250.0)
        sharpness = rng.uniform(20.0, 400.0)
        # exp of a cosine is a bump on a circle: periodic, so that cyclic moves leave no edge
        bump_y = np.exp(sharpness * (np.cos(2 * np.pi * (rows - y)) - 1))
        bump_x = np.exp(sharpness * (np.cos(2 * np.pi * (columns - x)) - 1))
        image += brightness * np.outer(bump_y, bump_x)
    return image


def _as_pixels(counts: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns photon counts as camera values: one-byte types saturate, bool is a threshold."""
    if dtype.kind == "b":
        counts = counts > np.median(counts)
    elif dtype.kind in "iu":
        counts = np.minimum(counts, np.iinfo(dtype).max)
    return counts.astype(dtype)


class PhotonFrames:
    """The frames of one simulated camera. ``shape`` is (rows, columns); ``frame(i)`` depends only on shape,
    dtype, seed and i."""

    def __init__(self, shape: tuple[int, int], dtype: str = "uint16", seed: int = 0) -> None:
        if min(shape) < 1:
            raise ValueError(f"a frame needs at least one pixel along each axis, got {shape}")
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.seed = seed
        self._pixels = shape[0] * shape[1]
        rng = np.random.default_rng(seed)
        expected = _background(shape, rng)
        offset = 0.0 if self.dtype.itemsize == 1 else _OFFSET_COUNTS
        self._pool = np.empty((POOL_FRAMES, 2 * self._pixels), self.dtype)
        for exposure in self._pool:
            exposure[: self._pixels] = _as_pixels(rng.poisson(expected).ravel() + offset, self.dtype)
            exposure[self._pixels :] = exposure[: self._pixels]
        self._start = int(rng.integers(self._pixels))

    def frame(self, index: int, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Returns frame ``index`` (0 or more), in ``out`` when given: C-contiguous, of this shape and
        dtype."""
        if out is None:
            out = np.empty(self.shape, self.dtype)
        first = (self._start + index * STEP_PIXELS) % self._pixels
        flat = out.reshape(-1)
        flat[:] = self._pool[index % POOL_FRAMES, first : first + self._pixels]
        stamp = min(STAMP_PIXELS, self._pixels)
        flat[:stamp] = (np.uint64(index) >> _BITS[:stamp]) & np.uint64(1)
        return out
