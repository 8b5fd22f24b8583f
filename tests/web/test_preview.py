"""What people see of a frame: all of its contrast, whatever hot pixels say."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardwright.daemon.control_client import ControlClient
from shardwright.web import daemon_link
from shardwright.web.daemon_link import DaemonLink, preview_png, stretched


def answer(pixels: np.ndarray) -> dict[str, Any]:
    """A preview as the control socket gives it."""
    height, width = pixels.shape
    facts = {"frame": 4, "frame_id": None, "time_s": 0.5, "channel": None}
    return {
        "width": width,
        "height": height,
        "dtype": pixels.dtype.name,
        "data": base64.b64encode(pixels.tobytes()).decode(),
        **facts,
    }


def decoded(pixels: np.ndarray) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(preview_png(answer(pixels)))))


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


def test_a_channel_with_a_colour_is_shown_in_it() -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8), (4, 1))
    grey = answer(ramp) | {"channel": {"name": "phase", "color": None}}
    green = answer(ramp) | {"channel": {"name": "GFP", "color": "00FF40"}}
    assert np.asarray(Image.open(io.BytesIO(preview_png(grey)))).shape == ramp.shape
    shown = np.asarray(Image.open(io.BytesIO(preview_png(green))))
    assert shown[0, 0].tolist() == [0, 0, 0]
    assert shown[0, 255].tolist() == [0, 255, 64]
    assert not shown[..., 0].any()
    assert (np.diff(shown[0, :, 1].astype(int)) >= 0).all()


def test_a_single_pixel() -> None:
    assert decoded(np.full((1, 1), 3, np.uint8)).shape == (1, 1)


def test_a_picture_is_drawn_once_however_many_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "status": {"uptime_s": 1.0, "pid": 1, "streams": {}, "disks": [], "acquisitions": [{"name": "a"}]},
        "preview": answer(np.eye(20, dtype=np.uint16)),
    }
    drawn = []
    monkeypatch.setattr(ControlClient, "ask", lambda client, do, **facts: told)
    monkeypatch.setattr(
        daemon_link, "preview_png", lambda frame: drawn.append(preview_png(frame)) or drawn[-1]
    )

    async def ask_many() -> None:
        link = DaemonLink("nobody.sock", preview_hz=1e-3)
        pictures = [await link.preview("a") for _ in range(3)] + await asyncio.gather(
            *(link.preview("a") for _ in range(50))
        )
        assert {picture.png for picture in pictures if picture} == {drawn[0]}
        assert pictures[0] is not None
        assert {name: pictures[0].facts[name] for name in ("frame", "frame_id", "time_s", "width")} == {
            "frame": 4,
            "frame_id": None,
            "time_s": 0.5,
            "width": 20,
        }
        assert "data" not in pictures[0].facts
        assert await link.preview("b") is None

    asyncio.run(ask_many())
    assert len(drawn) == 1
