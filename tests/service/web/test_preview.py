"""What people see of a frame: all of its contrast, whatever hot pixels say."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from shardwright.service.web.preview import preview_png, stretched


def decoded(pixels: np.ndarray) -> np.ndarray:
    height, width = pixels.shape
    frame = {"width": width, "height": height, "dtype": pixels.dtype.name, "data": base64.b64encode(pixels.tobytes()).decode()}
    return np.asarray(Image.open(io.BytesIO(preview_png(frame))))


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_ramp_becomes_a_ramp_over_all_greys(dtype: str) -> None:
    ramp = np.tile(np.arange(40, 240, dtype=dtype), (50, 1))
    shown = decoded(ramp)
    assert shown.shape == ramp.shape
    assert shown.dtype == np.uint8
    assert (shown.min(), shown.max()) == (0, 255)
    assert np.all(np.diff(shown[0].astype(int)) >= 0)
    np.testing.assert_allclose(shown[0, 50:150], (ramp[0, 50:150] - 41.0) / 198 * 255, atol=3)


def test_hot_and_dead_pixels_do_not_decide() -> None:
    rng = np.random.default_rng(1)
    cells = rng.integers(400, 500, (100, 100)).astype(np.uint16)
    cells[0, :10], cells[1, :10] = 65535, 0
    assert np.ptp(stretched(cells)[5:]) > 240


@pytest.mark.parametrize("value", [0, 7, 65535])
def test_a_frame_of_one_value_is_grey(value: int) -> None:
    assert np.all(decoded(np.full((9, 5), value, np.uint16)) == 128)


def test_a_few_bright_pixels_on_nothing_are_seen() -> None:
    beads = np.zeros((100, 100), np.uint16)
    beads[50, 50] = 9
    shown = decoded(beads)
    assert (shown[50, 50], shown[0, 0]) == (255, 0)


def test_a_single_pixel() -> None:
    assert decoded(np.full((1, 1), 3, np.uint8)).shape == (1, 1)
