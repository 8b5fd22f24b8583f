"""The status page in a real Chromium, of a real daemon, while a simulated camera sends to it: what people see is what happens."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys

from shardwright.service.control_client import ControlClient
from shardwright.testing.photons import PhotonFrames

from .browser import Browser
from .daemon_process import CLI, TIMEOUT_S, DaemonProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.browser

SHAPE = (256, 256)
SEED = 11
CONFIG = """\
output: {root: ./data, create: true}
ingest: {endpoints: ["ipc://./in.sock"]}
workers: {threads: 1}
memory: {budget: 1GiB}
http: {enabled: true, listen: "127.0.0.1:*", preview_hz: 5}
reliability: {store_within_ms: 200, sync_interval_ms: 200}
streams:
  - name: cam0
    array:
      dtype: uint16
      dimensions:
        - {name: t, type: time, unit: second, scale: 0.02, count: 4000, chunk_size: 8, shard_size_chunks: 4}
        - {name: y, type: space, unit: micrometer, scale: 0.325, count: 256, chunk_size: 128, shard_size_chunks: 2}
        - {name: x, type: space, unit: micrometer, scale: 0.325, count: 256, chunk_size: 128, shard_size_chunks: 2}
"""


class Rig:
    """A daemon with its page, and cameras for it. A context manager that leaves no process behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "rig.yaml").write_text(CONFIG)
        self.daemon = DaemonProcess(folder / "rig.yaml")
        self.url = self.daemon.wait_for("web_ready")["url"]
        self.control = ControlClient(folder / "control.sock")
        self._cameras: list[subprocess.Popen[str]] = []

    def camera(self, name: str, frames: int, fps: float) -> subprocess.Popen[str]:
        connect = ["--connect", f"ipc://{self.folder}/in.sock", "--name", name, "--stream", "cam0"]
        command = [*CLI, "camera", *connect, "--frames", str(frames), "--fps", str(fps), "--seed", str(SEED), "--json"]
        self._cameras.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return self._cameras[-1]

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        for camera in self._cameras:
            if camera.poll() is None:
                camera.kill()
                camera.communicate()
        self.control.close()
        self.daemon.__exit__()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="sw-") as folder, Rig(Path(folder)) as rig:
        yield rig


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(rig: Rig, chromium: Browser) -> Iterator[Browser]:
    """The page of ``rig``, freshly opened and with the first answers shown. Nothing it does may go anywhere else, or displease the browser."""
    chromium.open(rig.url)
    chromium.wait(lambda: chromium.text("#state") == "serving", "the state")
    yield chromium
    assert chromium.foreign_addresses(rig.url) == []
    assert [line for line in chromium.complaints if "/api/preview/" not in line] == []  # 404 until the first frame that was asked for has come


@pytest.fixture(scope="module")
def running(rig: Rig) -> str:
    """The name of an acquisition that goes on for longer than the tests."""
    rig.camera("long", 4000, fps=20)
    return "long"


@pytest.fixture(scope="module")
def finished(rig: Rig) -> str:
    """The name of one that is done."""
    camera = rig.camera("done", 24, fps=0)
    receipt = json.loads(camera.communicate(timeout=TIMEOUT_S)[0])
    assert receipt["frames_stored"] == 24
    return "done"


def sent_frame(number: int) -> np.ndarray:
    return PhotonFrames(SHAPE, "uint16", SEED).frame(number)


def test_numbers_move_while_frames_come(page: Browser, rig: Rig, running: str):
    seen = [page.wait(lambda: page.number("#frames-received") > 0 and page.number("#frames-received"), "the first frames")]
    while len(seen) < 4:
        seen.append(page.wait(lambda: page.number("#frames-received") > seen[-1] and page.number("#frames-received"), "more frames"))
    status = rig.control.ask("status")["status"]
    assert seen[-1] <= status["streams"]["cam0"]["frames_received"], "no more than the daemon has received"
    page.wait(lambda: 0 < page.number("#frame-rate") < 60, "a rate")
    page.wait(lambda: page.number("#frames-durable") > 0, "durable frames")
    row = page.wait(lambda: page.text("#running tbody tr"), "the acquisition's row")
    assert running in row
    assert "of 4,000" in row
    assert page.run("return document.querySelector('#running progress').value") > 0
    drawn = "const c = document.querySelector('#plot-rate'); return c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
    colour = [23, 104, 95]  # --plot-1, in light
    found = f"{drawn}.some((_, i, all) => i % 4 === 0 && {' && '.join(f'Math.abs(all[i + {k}] - {c}) < 12' for k, c in enumerate(colour))})"
    page.wait(lambda: page.run(found), "the line in the plot of the rate")
    assert "now" in page.run("return document.querySelector('#plot-rate').getAttribute('aria-label')")
    assert "acquisition opened" in page.text("#events")


def test_the_preview_is_the_frame_that_was_sent(page: Browser, running: str):
    figure = f"#previews figure[data-name={running}]"
    before = page.wait(lambda: page.run(f"return document.querySelector('{figure}')?.dataset.frame"), "a frame")
    page.wait(lambda: page.run(f"return document.querySelector('{figure}').dataset.frame") != before, "the next frame")
    pause(page)
    shown, number = settled_preview(page, figure)
    sent = sent_frame(number)
    assert shown.shape == sent.shape
    grey_of = {value: set(shown[sent == value].tolist()) for value in np.unique(sent)}
    assert all(len(greys) == 1 for greys in grey_of.values()), "each value of the frame is one grey: the pictures are the same, place for place"
    greys = [grey.pop() for grey in grey_of.values()]
    assert greys == sorted(greys), "a brighter pixel is never darker"
    assert greys[0] == 0, "contrast from black"
    assert greys[-1] == 255, "to white"
    assert len(set(greys)) > 50
    assert page.run(f"return document.querySelector('{figure} img').alt") == f"Newest frame of {running}, number {number}"


def pause(page: Browser) -> None:
    """By keyboard: the skip link, then the button. Returns once the page asks for nothing more."""
    page.press(Keys.TAB, Keys.TAB, Keys.SPACE)
    page.wait(lambda: page.run("return document.body.hasAttribute('data-resting')"), "the pause")


def settled_preview(page: Browser, figure: str) -> tuple[np.ndarray, int]:
    """Picture and number of the same frame, once nothing more is under way."""
    while True:
        number = page.run(f"return document.querySelector('{figure}').dataset.frame")
        picture = page.image_pixels(f"{figure} img")
        page.run("return fetch('api/status').then((answer) => answer.text())")
        if page.run(f"return document.querySelector('{figure}').dataset.frame") == number:
            return picture, int(number)


def test_the_viewer_shows_the_image(page: Browser, rig: Rig, finished: str):
    link = page.wait(lambda: page.run(f"return document.querySelector('#finished a[aria-label*=\"{finished} \"]')"), "the link")
    assert "24" in page.text("#finished tbody")
    own_tab = page.driver.current_window_handle
    page.run("arguments[0].focus()", link)
    page.press(Keys.ENTER)
    page.wait(lambda: len(page.driver.window_handles) == 2, "the viewer's tab")
    page.driver.switch_to.window(next(tab for tab in page.driver.window_handles if tab != own_tab))
    try:
        likeness = page.wait(lambda: (seen := likeness_in_viewer(page, sent_frame(0))) > 0.9 and seen, "the image in the viewer")
        assert likeness > likeness_in_viewer(page, sent_frame(1)) + 0.3, "this frame, and not another one"
        page.read_logs()
        assert any(address.startswith(f"{rig.url}stores/{finished}.ome.zarr/0/zarr.json") for address in page.addresses), (
            "read from the daemon's own stores"
        )
    finally:
        page.driver.close()
        page.driver.switch_to.window(own_tab)


def likeness_in_viewer(page: Browser, frame: np.ndarray) -> float:
    """Correlation of what is on the screen with ``frame``, at the place and size that the viewer's address asks for; 0 while nothing is there."""
    panel = page.run(
        "const panel = document.querySelector('.neuroglancer-rendered-data-panel')?.getBoundingClientRect();"
        "return panel && [panel.x, panel.y, panel.width, panel.height]"
    )
    if panel is None:
        return 0.0
    x, y, width, height = panel
    pixels_per_voxel = 800 / max(frame.shape)
    screen = page.screenshot()[..., 0].astype(float)
    rows, columns = (np.arange(8, n - 8) for n in frame.shape)  # not the border line
    down = np.rint(y + height / 2 + (rows + 0.5 - frame.shape[0] / 2) * pixels_per_voxel).astype(int)
    right = np.rint(x + width / 2 + (columns + 0.5 - frame.shape[1] / 2) * pixels_per_voxel).astype(int)
    rows, down = rows[(down > y + 80) & (down < y + height - 120)], down[(down > y + 80) & (down < y + height - 120)]  # below are scale bars
    columns, right = columns[(right > x + 120) & (right < x + width - 60)], right[(right > x + 120) & (right < x + width - 60)]
    seen, expected = screen[np.ix_(down, right)], frame[np.ix_(rows, columns)].astype(float)
    if seen.std() < 1:
        return 0.0
    low, high = np.percentile(expected, (1, 99))
    return float(np.corrcoef(seen.ravel(), np.clip(expected, low, high).ravel())[0, 1])


def test_everything_is_reached_by_keyboard_and_named_for_screen_readers(page: Browser, running: str, finished: str):
    page.wait(lambda: page.text("#running tbody") and page.text("#finished tbody") and page.text("#previews b"), "the tables")
    reached = []
    for _ in range(40):
        page.press(Keys.TAB)
        reached.append(page.focused())
        if "Status as JSON" in reached[-1]:
            break
    assert reached[:2] == ["Skip to the numbers", "Pause"]
    wanted = ["Acquiring", "Finished", f"Open {finished} in neuroglancer, new tab", "Events", "Metrics", "Status as JSON"]
    places = [next((i for i, what in enumerate(reached) if what.startswith(name)), None) for name in wanted]
    assert None not in places, reached
    assert places == sorted(places), reached
    told = page.accessibility()
    for landmark in ("banner", "main", "contentinfo", "status"):
        assert landmark in {role for role, _ in told}
    assert {"Running acquisitions, their progress and missing frames", "Finished acquisitions, newest first", "Recent events, newest first"} <= {
        name for role, name in told if role == "table"
    }
    named = {"button", "link", "image", "progressbar", "progressIndicator", "region", "table"}
    assert not [role for role, name in told if role in named and not name]
    assert page.run("return document.documentElement.lang") == "en"


def test_pause_stops_the_numbers_and_goes_on(page: Browser, rig: Rig, running: str):
    page.wait(lambda: page.number("#frames-received") > 0, "frames")
    pause(page)
    assert page.run("return document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
    stands_at = page.number("#frames-received")
    page.wait(lambda: rig.control.ask("status")["status"]["streams"]["cam0"]["frames_received"] > stands_at + 40, "the daemon goes on")
    assert page.number("#frames-received") == stands_at
    page.press(Keys.SPACE)
    page.wait(lambda: page.number("#frames-received") > stands_at, "the page goes on")


CONTRASTS = """
const luminance = (rgb) => rgb.slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const numbers = (text) => text.match(/[0-9.]+/g).map(Number);
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = numbers(getComputedStyle(e).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")]
  .filter((e) => e.checkVisibility() && [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((e) => {
    const [a, b] = [luminance(numbers(getComputedStyle(e).color)), luminance(behind(e))].sort();
    return [e.innerText.slice(0, 40), (b + 0.05) / (a + 0.05)];
  });
"""


@pytest.mark.parametrize(("scheme", "is_its_own"), [("light", lambda mean: mean > 200), ("dark", lambda mean: mean < 60)])
def test_light_and_dark_are_both_easy_to_read(page: Browser, running: str, finished: str, scheme: str, is_its_own):
    page.wait(lambda: page.text("#running tbody") and page.text("#finished tbody"), "the tables")
    page.prefer(scheme)
    try:
        assert is_its_own(page.screenshot().mean())
        contrasts = page.run(CONTRASTS)
    finally:
        page.prefer("light")
    assert len(contrasts) > 60
    assert [(text, round(contrast, 2)) for text, contrast in contrasts if contrast < 4.5] == [], "WCAG 2.2, 1.4.3"


def test_a_daemon_that_is_gone_is_said_at_once(chromium: Browser):
    with tempfile.TemporaryDirectory(prefix="sw-") as folder, Rig(Path(folder)) as rig:
        chromium.open(rig.url)
        chromium.wait(lambda: chromium.text("#state") == "serving", "the state")
        assert rig.daemon.stop() == 0
        chromium.wait(lambda: chromium.text("#state") == "not answering", "that it does not answer")
        assert "does not answer" in chromium.text("#problem")
        chromium.open("about:blank")
        chromium.read_logs()
        chromium.complaints.clear()  # of requests that nobody answered
        chromium.addresses.clear()
