"""The status page in a real Chromium, of a real daemon, while a simulated camera sends to it: what people see
is what happens."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys
from tests.harness.daemon import DaemonProcess, start_cli
from tests.harness.json_process import TIMEOUT_S

import shardwright as sw
from shardwright.daemon.control_client import ControlClient
from shardwright.simulate.photons import PhotonFrames

from .browser import RED_OF_IMAGE, Browser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.fork_server import Child

    from shardwright.client import Connection

pytestmark = pytest.mark.browser

SHAPE = (256, 256)
SEED = 11
CONFIG = """\
output: {root: ./data, create: true, in_memory: true}
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
        - {name: t, type: time, unit: second, scale: 0.02, count: 100000, chunk_size: 8, shard_size_chunks: 4}
        - {name: y, type: space, unit: micrometer, scale: 0.325, count: 256, chunk_size: 128, shard_size_chunks: 2}
        - {name: x, type: space, unit: micrometer, scale: 0.325, count: 256, chunk_size: 128, shard_size_chunks: 2}
"""  # noqa: E501


class DaemonWithPage:
    """A daemon with its page, and cameras for it. A context manager that leaves no process behind."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        self.folder = folder
        (folder / "rig.yaml").write_text(config)
        self.daemon = DaemonProcess(folder / "rig.yaml")
        self.url = self.daemon.wait_for("web_ready")["url"]
        self.control = ControlClient(folder / "control.sock", timeout_s=60)
        self._cameras: list[Child] = []
        self._connections: list[Connection] = []

    def camera(self, name: str, frames: int, fps: float) -> Child:
        connect = ["--connect", f"ipc://{self.folder}/in.sock", "--name", name, "--stream", "cam0"]
        pace = ["--frames", str(frames), "--fps", str(fps), "--seed", str(SEED)]
        self._cameras.append(start_cli("camera", *connect, *pace, "--json", stderr=DEVNULL))
        return self._cameras[-1]

    def connect(self) -> Connection:
        """Closed with the served."""
        self._connections.append(sw.connect(f"ipc://{self.folder}/in.sock"))
        return self._connections[-1]

    def __enter__(self) -> DaemonWithPage:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()
        for camera in self._cameras:
            if camera.poll() is None:
                camera.kill()
                camera.communicate()
        self.control.close()
        self.daemon.__exit__()


@pytest.fixture(scope="module")
def served() -> Iterator[DaemonWithPage]:
    with tempfile.TemporaryDirectory(prefix="sw-") as folder, DaemonWithPage(Path(folder)) as served:
        yield served


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(served: DaemonWithPage, chromium: Browser) -> Iterator[Browser]:
    """The page of ``served``, freshly opened and with the first answers shown. Nothing it does may go
    anywhere else, or displease the browser."""
    chromium.open(served.url)
    chromium.wait(lambda: chromium.text("#state") == "serving", "the state")
    yield chromium
    assert chromium.foreign_addresses(served.url) == []
    # 404 until the first frame that was asked for has come
    assert [line for line in chromium.complaints if "/api/preview/" not in line] == []


@pytest.fixture(scope="module")
def running(served: DaemonWithPage) -> str:
    """The name of an acquisition that goes on for an hour: longer than the tests on any machine."""
    served.camera("long", 100_000, fps=20)
    return "long"


@pytest.fixture(scope="module")
def finished(served: DaemonWithPage) -> str:
    """The name of one that is done."""
    camera = served.camera("done", 24, fps=0)
    receipt = json.loads(camera.communicate(timeout=TIMEOUT_S)[0])
    assert receipt["frames_stored"] == 24
    return "done"


def sent_frame(number: int) -> np.ndarray:
    return PhotonFrames(SHAPE, "uint16", SEED).frame(number)


def test_numbers_move_while_frames_come(page: Browser, served: DaemonWithPage, running: str):
    seen = [
        page.wait(
            lambda: page.number("#frames-received") > 0 and page.number("#frames-received"),
            "the first frames",
        )
    ]
    while len(seen) < 4:
        seen.append(
            page.wait(
                lambda: page.number("#frames-received") > seen[-1] and page.number("#frames-received"),
                "more frames",
            )
        )
    status = served.control.ask("status")["status"]
    assert seen[-1] <= status["streams"]["cam0"]["frames_received"], "no more than the daemon has received"
    page.wait(lambda: 0 < page.number("#frame-rate") < 60, "a rate")
    page.wait(lambda: page.number("#frames-durable") > 0, "durable frames")
    row = page.wait(lambda: page.text("#running tbody tr"), "the acquisition's row")
    assert running in row
    assert "of 100,000" in row
    assert page.run("return document.querySelector('#running progress').value") > 0
    drawn = (
        "const c = document.querySelector('#plot-rate'); return c.getContext('2d').getImageData(0, 0, "
        "c.width, c.height).data"
    )
    colour = [23, 104, 95]  # --plot-1, in light
    found = (
        f"{drawn}.some((_, i, all) => i % 4 === 0 && "
        f"{' && '.join(f'Math.abs(all[i + {k}] - {c}) < 12' for k, c in enumerate(colour))})"
    )
    page.wait(lambda: page.run(found), "the line in the plot of the rate")
    assert "now" in page.run("return document.querySelector('#plot-rate').getAttribute('aria-label')")
    assert (
        page.run(
            "return [...document.querySelectorAll('.plots .axis')].map((axis) => axis.innerText.split('\\n'))"
        )
        == [["3 min ago", "now"]] * 4
    )
    assert f"{running}: begun by " in page.text("#events")


def test_the_preview_is_the_frame_that_was_sent(page: Browser, running: str):
    figure = f"#previews figure[data-name={running}]"
    before = page.wait(
        lambda: page.run(f"return document.querySelector('{figure}')?.dataset.frame"), "a frame"
    )
    page.wait(
        lambda: page.run(f"return document.querySelector('{figure}').dataset.frame") != before,
        "the next frame",
    )
    assert_shows_what_was_sent(page, figure)


def assert_shows_what_was_sent(page: Browser, figure: str) -> None:
    shown = newest_shown(page, figure)
    sent = sent_frame(shown.number)
    assert shown.picture.shape == sent.shape
    grey_of = {value: set(shown.picture[sent == value].tolist()) for value in np.unique(sent)}
    assert all(len(greys) == 1 for greys in grey_of.values()), (
        "each value of the frame is one grey: the pictures are the same, place for place"
    )
    greys = [grey.pop() for grey in grey_of.values()]
    assert greys == sorted(greys), "a brighter pixel is never darker"
    assert greys[0] == 0, "contrast from black"
    assert greys[-1] == 255, "to white"
    assert len(set(greys)) > 50
    assert shown.alt.endswith(f", number {shown.number}")
    assert shown.words.startswith(f"frame {shown.number:,}, t {shown.number:,}")
    assert shown.values == f"values {sent.min():,} to {sent.max():,}"


def test_a_picture_and_its_words_change_together(page: Browser, running: str):
    """A picture takes its time to be decoded; what is below it is of the one that is seen."""
    figure = f"#previews figure[data-name={running}]"
    page.wait(lambda: page.text(f"{figure} .range"), "the first picture")
    page.run(
        "window.decoding = 0;"
        "HTMLImageElement.prototype.decode = () => { window.decoding += 1; return new Promise(() => {}); }"
    )
    page.wait(lambda: page.run("return window.decoding"), "the next picture")
    page.wait(lambda: page.run(f"return document.querySelector('{figure} img').complete"), "what is seen")
    assert_shows_what_was_sent(page, figure)


def test_what_is_known_of_a_frame_is_below_its_picture(page: Browser, running: str):
    figure = f"#previews figure[data-name={running}]"
    page.wait(lambda: page.text(f"{figure} .range"), "the values")
    assert page.text(f"{figure} .saturated") == ""
    order = page.run("return [...document.querySelectorAll('main h2')].map((title) => title.id)")
    assert order.index("previews-title") < order.index("plots-title"), "pictures first"


def test_a_channel_has_its_name_and_saturation_is_told(served: DaemonWithPage, page: Browser):
    dimensions = [
        {"name": "t", "type": "time", "count": None, "chunk_size": 8, "shard_size_chunks": 4},
        {"name": "y", "type": "space", "count": 64, "chunk_size": 64, "shard_size_chunks": 1},
        {"name": "x", "type": "space", "count": 64, "chunk_size": 64, "shard_size_chunks": 1},
    ]
    spec = {"dtype": "uint16", "dimensions": dimensions, "channels": [{"name": "GFP", "color": "00FF00"}]}
    frame = np.tile(np.arange(64, dtype=np.uint16), (64, 1))
    frame[:16] = 4095
    figure = "#previews figure[data-name=bright]"
    with served.connect().acquire("bright", spec, frames_expected=1000) as stream:

        def seen() -> bool:
            stream.append(frame)
            return page.text(f"{figure} .saturated") == "25.0 % saturated"

        page.wait(seen, "the picture, and what is known of it")
        assert page.text(f"{figure} .channel") == "GFP"
        assert page.text(f"{figure} .range") == "values 0 to 4,095"
        picture = page.image_pixels(f"{figure} img")
        rows = "return [...document.querySelectorAll('#running tbody tr')].map((row) => row.innerText)"
        (row,) = [text for text in page.run(rows) if text.startswith("bright")]
        assert "of 1,000" in row, "as many as the client expects"
    assert not picture.any(), "green has no red"


def test_a_page_that_is_opened_late_has_what_was_before(page: Browser, served: DaemonWithPage, running: str):
    points = "return fetch('api/history').then((answer) => answer.json()).then(({points}) => points)"
    known = page.wait(lambda: len(found := page.run(points)) > 3 and found, "some history")
    page.driver.refresh()
    page.wait(lambda: page.text("#state") == "serving", "the state")
    label = "return document.querySelector('#plot-rate').getAttribute('aria-label')"
    page.wait(lambda: "highest" in (page.run(label) or ""), "the plot")
    highest = float(page.run(label).split("three minutes ")[1])
    assert highest >= max(point["frames_per_s"] or 0 for point in known) * 0.99, "at once, not from now on"


def test_each_figure_says_what_it_means(page: Browser):
    asked = page.run(
        "return [...document.querySelectorAll('.what')].map((what) => "
        "[what.querySelector('summary').getAttribute('aria-label'), what.querySelector('p').textContent])"
    )
    assert len(asked) == len({label for label, _ in asked}) == 11
    assert all(label.startswith("What ") and len(text) > 40 for label, text in asked)
    first = "return document.querySelector('.what p').checkVisibility()"
    assert not page.run(first)
    page.run("document.querySelector('.what summary').focus()")
    page.press(Keys.ENTER)
    assert page.run(first), "by keyboard"
    page.press(Keys.ENTER)
    assert not page.run(first)


def test_two_lines_of_a_plot_are_told_apart_without_colour(page: Browser, running: str):
    page.run(
        "window.dashes = []; const pen = CanvasRenderingContext2D.prototype; const set = pen.setLineDash;"
        "pen.setLineDash = function (dash) { window.dashes.push([this.canvas.id, dash.length]); "
        "set.call(this, dash); }"
    )
    page.wait(lambda: page.run("return window.dashes.length >= 5"), "all plots drawn anew")
    drawn = {(plot, dash > 0) for plot, dash in page.run("return window.dashes")}
    assert drawn == {
        ("plot-rate", False),
        ("plot-ring", False),
        ("plot-disk", False),
        ("plot-latency", False),
        ("plot-latency", True),
    }


def test_a_disk_that_does_not_answer_is_not_called_full(page: Browser, running: str):
    pause(page)
    show = (
        "return import(arguments[0]).then(({showDisk}) => showDisk([{role: 'root', free_bytes: "
        "arguments[1], total_bytes: 100, low_water_bytes: 7}]))"
    )
    tiles = []
    for free in (None, 7, 8):
        page.run(show, "/views.js", free)
        tiles.append(
            (
                page.text("#disk-free"),
                page.text("#disk-until"),
                page.run("return document.querySelector('#disk-tile').dataset.level"),
            )
        )
    assert tiles == [
        ("\u2013", "not known", ""),
        ("7", "below the low-water mark", "bad"),
        ("8", "of 100 B", ""),
    ]


DOT = "return getComputedStyle(document.querySelector('.dot')).backgroundColor"
# --good, --warning, --bad, in light
GREEN, ORANGE, RED = "rgb(29, 122, 79)", "rgb(154, 91, 0)", "rgb(179, 38, 30)"


def test_frames_that_are_not_stored_are_counted_once_and_the_header_is_not_green():
    config = CONFIG.replace("reliability: {", "reliability: {overload: drop, ").replace(
        "- name: cam0\n", "- name: cam0\n    ring_frames: 32\n"
    )
    assert config.count("overload: drop") == config.count("ring_frames") == 1
    with (
        tempfile.TemporaryDirectory(prefix="sw-") as folder,
        DaemonWithPage(Path(folder), config) as served,
        Browser() as page,
    ):
        connection = served.connect()
        page.open(served.url)
        page.wait(lambda: page.text("#state") == "serving", "the state")
        assert page.run(DOT) == GREEN
        with connection.acquire("skips", stream="cam0") as skips:
            skips.append(sent_frame(0), index=[0])
            skips.append(sent_frame(1), index=[3])
        page.wait(lambda: page.text("#frames-not-stored") == "2", "two places for which no frame came")
        assert page.text("#why-not-stored") == "2 skipped"
        page.wait(
            lambda: (page.text("#state"), page.run(DOT)) == ("serving, frames not stored", ORANGE),
            "a header that says so",
        )
        with connection.acquire("drops", stream="cam0") as drops:
            while not drops.frames_dropped:
                drops.append_many(np.broadcast_to(sent_frame(0), (64, *SHAPE)))
        receipt = drops.receipt
        assert (
            receipt.frames_dropped
            == receipt.frames_missing
            == receipt.frames_received - receipt.frames_stored
            > 0
        )
        page.wait(lambda: page.number("#frames-not-stored") == 2 + receipt.frames_dropped, "each frame once")
        assert page.text("#why-not-stored") == f"2 skipped, {receipt.frames_dropped:,} dropped"
        page.wait(
            lambda: (page.text("#state"), page.run(DOT)) == ("serving, frames dropped", RED),
            "a header that says so, and stays",
        )
        page.wait(lambda: "not every frame is in its place" in page.text("#events"), "the receipt's warning")
        told = [event for event in served.control.ask("events")["events"] if event["level"] == "warning"]
        assert [event["event"] for event in told] == [
            "acquisition_incomplete",
            "frames_dropped",
            "acquisition_incomplete",
        ], "no line for each frame"
        assert told[-1]["frames_dropped"] == receipt.frames_dropped
        assert page.foreign_addresses(served.url) == []


def test_what_is_stuck_is_said_once(page: Browser):
    told = [
        page.run(
            "return import('/views.js').then(({problemOf}) => problemOf({stall_s: arguments[0]}))", stall_s
        )
        for stall_s in (1, 6, 70)
    ]
    assert told[0] == {"text": "", "detail": ""}
    assert "stuck" in told[1]["text"]
    assert told[1]["text"] == told[2]["text"], "what changes all the time is not read out"
    assert "1 min 10 s" in told[2]["detail"]


def pause(page: Browser) -> None:
    """By keyboard: the skip link, then the button. Returns once the page asks for nothing more."""
    page.press(Keys.TAB, Keys.TAB, Keys.SPACE)
    page.wait(lambda: page.run("return document.body.hasAttribute('data-resting')"), "the pause")


class Shown(NamedTuple):
    """A picture and what stands below it, of one moment. ``picture``: uint8[rows, columns]."""

    picture: np.ndarray
    number: int
    alt: str
    words: str
    values: str


def newest_shown(page: Browser, figure: str) -> Shown:
    """Asked for in one script: between two of them the page may show the next frame."""
    size, red, number, *texts = page.run(
        f"const figure = document.querySelector('{figure}'), image = figure.querySelector('img');"
        "const text = (selector) => figure.querySelector(selector).innerText;"
        f"{RED_OF_IMAGE}"
        "return [size, red, figure.dataset.frame, image.alt, text('.quiet'), text('.range')]"
    )
    return Shown(np.array(red, np.uint8).reshape(size), int(number), *texts)


def test_the_viewer_shows_the_image(page: Browser, served: DaemonWithPage, finished: str):
    link = page.wait(
        lambda: page.run(f"return document.querySelector('#finished a[aria-label*=\"{finished} \"]')"),
        "the link",
    )
    assert [page.text(f"#finished tbody tr :nth-child({column})") for column in (2, 3)] == ["24", "0"], (
        "frames, and how many of them are missing"
    )
    own_tab = page.driver.current_window_handle
    page.run("arguments[0].focus()", link)
    page.press(Keys.ENTER)
    page.wait(lambda: len(page.driver.window_handles) == 2, "the viewer's tab")
    page.driver.switch_to.window(next(tab for tab in page.driver.window_handles if tab != own_tab))
    try:
        likeness = page.wait(
            lambda: (seen := likeness_in_viewer(page, sent_frame(0))) > 0.9 and seen,
            "the image in the viewer",
        )
        assert likeness > likeness_in_viewer(page, sent_frame(1)) + 0.3, "this frame, and not another one"
        page.read_logs()
        assert any(
            address.startswith(f"{served.url}stores/{finished}.ome.zarr/0/zarr.json")
            for address in page.addresses
        ), "read from the daemon's own stores"
    finally:
        page.driver.close()
        page.driver.switch_to.window(own_tab)


def test_the_picture_of_a_running_acquisition_opens_its_newest_frame_in_the_viewer(
    page: Browser, served: DaemonWithPage
):
    figure = "#previews figure[data-name=seen]"
    with served.connect().acquire("seen", stream="cam0") as stream:
        sent = 0

        def send_one() -> None:
            nonlocal sent
            stream.append(sent_frame(sent))
            sent += 1
            page.wait(lambda: stream.watermark.stored == sent, "the frame")

        page.wait(lambda: send_one() or page.text(f"{figure} .range"), "the picture")
        own_tab = page.driver.current_window_handle
        page.run(f"document.querySelector('{figure} a').focus()")
        page.press(Keys.ENTER)
        page.wait(lambda: len(page.driver.window_handles) == 2, "the viewer's tab")
        page.driver.switch_to.window(next(tab for tab in page.driver.window_handles if tab != own_tab))
        try:
            assert_newest_in_viewer(page, sent - 1)
            send_one()
            page.open(f"{served.url}view/seen.ome.zarr")
            assert_newest_in_viewer(page, sent - 1)
            page.read_logs()
            array = f"{served.url}live/seen.ome.zarr/0/zarr.json"
            assert any(address.startswith(array) for address in page.addresses)
        finally:
            page.driver.close()
            page.driver.switch_to.window(own_tab)


def assert_newest_in_viewer(page: Browser, number: int) -> None:
    likeness = page.wait(
        lambda: (seen := likeness_in_viewer(page, sent_frame(number))) > 0.9 and seen, "the newest frame"
    )
    assert likeness > likeness_in_viewer(page, sent_frame(number - 1)) + 0.3, (
        "this frame, and not another one"
    )


def likeness_in_viewer(page: Browser, frame: np.ndarray) -> float:
    """Correlation of what is on the screen with ``frame``, at the place and size that the viewer's address
    asks for; 0 while nothing is there."""
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
    rows, down = (
        rows[(down > y + 80) & (down < y + height - 120)],
        down[(down > y + 80) & (down < y + height - 120)],
    )  # below are scale bars
    columns, right = (
        columns[(right > x + 120) & (right < x + width - 60)],
        right[(right > x + 120) & (right < x + width - 60)],
    )
    seen, expected = screen[np.ix_(down, right)], frame[np.ix_(rows, columns)].astype(float)
    if seen.std() < 1:
        return 0.0
    low, high = np.percentile(expected, (0.1, 99.9))  # as contrast windows are
    return float(np.corrcoef(seen.ravel(), np.clip(expected, low, high).ravel())[0, 1])


def test_everything_is_reached_by_keyboard_and_named_for_screen_readers(
    page: Browser, running: str, finished: str
):
    page.wait(
        lambda: page.text("#running tbody") and page.text("#finished tbody") and page.text("#previews b"),
        "the tables",
    )
    reached = []
    for _ in range(60):
        page.press(Keys.TAB)
        reached.append(page.focused())
        if "Status as JSON" in reached[-1]:
            break
    assert reached[:2] == ["Skip to the numbers", "Freeze the page"]
    wanted = [
        "Acquiring",
        "Finished",
        f"Open {finished} in neuroglancer, new tab",
        "Events",
        "Metrics",
        "Status as JSON",
    ]
    places = [next((i for i, what in enumerate(reached) if what.startswith(name)), None) for name in wanted]
    assert None not in places, reached
    assert places == sorted(places), reached
    told = page.accessibility()
    for landmark in ("banner", "main", "contentinfo", "status"):
        assert landmark in {role for role, _ in told}
    assert {
        "Running acquisitions, their progress and missing frames",
        "Finished acquisitions, newest first",
        "Recent events, newest first",
    } <= {name for role, name in told if role == "table"}
    named = {"button", "link", "image", "progressbar", "progressIndicator", "region", "table"}
    assert not [role for role, name in told if role in named and not name]
    assert page.run("return document.documentElement.lang") == "en"


CARD = """
const [table, name] = arguments, row = [...document.querySelectorAll(`#${table} tbody tr`)]
  .find((row) => row.cells[0].innerText === name);
const box = (element) => { const {left, right, width, height} = element.getBoundingClientRect(); return [left, right, width, height]; };
return row && [[...row.cells].map(box), [...row.querySelectorAll("progress, a")].map(box),
  [...row.cells].slice(1).map((cell) => getComputedStyle(cell, "::before").content)];
"""  # noqa: E501


def test_a_narrow_page_shows_all_of_an_acquisition_and_scrolls_down_alone(
    page: Browser, running: str, finished: str
):
    with page.width(390):
        for table, name, labels in (
            (
                "running",
                running,
                ["Stream", "State", "Stored", "Frames/s", "MB/s", "In flight", "Missing", "Time"],
            ),
            ("finished", finished, ["Frames", "Missing", "Image", "Finished", "Look"]),
        ):
            cells, within, shown = page.wait(
                lambda t=table, n=name: page.run(CARD, t, n), f"the card of {name}"
            )
            assert shown == [f'"{label}"' for label in labels]
            assert len(within) == 1, "its progress, or its link"
            for left, right, width, height in (*cells, *within):
                assert 0 <= left < right <= 390, (table, cells, within)
                assert width > 0 < height
        wide = "return [document.documentElement.scrollWidth, document.body.scrollWidth]"
        assert max(page.run(wide)) <= 390
        cut = page.run(
            "const line = document.querySelector('#bytes-received');"
            "line.textContent = '999.99 GB, 19.99 times packed'; return line.scrollWidth > line.clientWidth"
        )
        assert not cut, "the end of a line"
        page.wait(lambda: page.text("#previews b") and page.text("#events tbody"), "the other parts")
        for i in range(page.run("return document.querySelectorAll('.what').length")):
            page.run("document.querySelectorAll('.what')[arguments[0]].open = true", i)
            assert max(page.run(wide)) <= 390, "what a figure means"
        across = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth)"
        assert page.run(f"return {across}.length") == 0
        names = {(role, name) for role, name in page.accessibility() if role in ("table", "columnheader")}
        assert ("table", "Running acquisitions, their progress and missing frames") in names
        assert ("columnheader", "Stored") in names, "a table still, to a screen reader"
        assert hard_to_read(page, least=60) == []


def test_a_camera_that_is_gone_keeps_its_last_picture_over_a_restart(chromium: Browser):
    """The daemon has no frame of it yet; its store has."""
    figure = "#previews figure[data-name=cut]"
    # it waits for its camera until it was looked at
    patient = CONFIG.replace("reliability: {", "reliability: {resume_timeout_ms: 600000, ")
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        with DaemonWithPage(Path(folder), patient) as served:
            camera = served.camera("cut", 100_000, fps=20)
            while not (acquisitions := served.control.ask("status")["status"]["acquisitions"]) or (
                acquisitions[0]["frames_stored"] < 13
            ):
                assert camera.poll() is None
                time.sleep(0.05)
            camera.kill()
            camera.communicate()
            served.daemon.kill()
        with DaemonWithPage(Path(folder), patient) as served:
            chromium.open(served.url)
            chromium.wait(lambda: chromium.text(f"{figure} .range"), "the picture")
            assert_shows_what_was_sent(chromium, figure)
            (kept,) = served.control.ask("status")["status"]["acquisitions"]
            last = newest_shown(chromium, figure).number
            assert (kept["client"], last) == (None, kept["frames_stored"] - 1)
            with served.connect().acquire("cut", stream="cam0", reopen=True) as again:

                def shows_the_next() -> bool:
                    again.append(sent_frame(again.frames))
                    return newest_shown(chromium, figure).number > last

                chromium.wait(shows_the_next, "the daemon's own preview")
                assert_shows_what_was_sent(chromium, figure)
            chromium.open("about:blank")
            chromium.read_logs()
            chromium.complaints.clear()
            chromium.addresses.clear()


def test_pause_stops_the_numbers_and_goes_on(page: Browser, served: DaemonWithPage, running: str):
    page.wait(lambda: page.number("#frames-received") > 0, "frames")
    pause(page)
    assert page.run("return document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
    stands_at = page.number("#frames-received")
    page.wait(
        lambda: served.control.ask("status")["status"]["streams"]["cam0"]["frames_received"] > stands_at + 40,
        "the daemon goes on",
    )
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
const page = numbers(getComputedStyle(document.documentElement).backgroundColor);
const opacity = (element) => (element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1);
const faded = (rgb, part) => rgb.slice(0, 3).map((c, i) => c * part + page[i] * (1 - part));
return [...document.querySelectorAll("body *")]
  .filter((e) => e.checkVisibility() && [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((e) => {
    const [a, b] = [numbers(getComputedStyle(e).color), behind(e)].map((rgb) => luminance(faded(rgb, opacity(e)))).sort((x, y) => x - y);
    return [e.innerText.slice(0, 40), (b + 0.05) / (a + 0.05)];
  });
"""  # noqa: E501


@pytest.mark.parametrize(
    ("scheme", "is_its_own"), [("light", lambda mean: mean > 200), ("dark", lambda mean: mean < 60)]
)
def test_light_and_dark_are_both_easy_to_read(
    page: Browser, running: str, finished: str, scheme: str, is_its_own
):
    page.wait(lambda: page.text("#running tbody") and page.text("#finished tbody"), "the tables")
    page.prefer(scheme)
    try:
        assert is_its_own(page.screenshot().mean())
        assert hard_to_read(page, least=60) == []
    finally:
        page.prefer("light")


def hard_to_read(page: Browser, *, least: int) -> list[tuple[str, float]]:
    """Texts whose contrast is below that of WCAG 2.2, 1.4.3, of at least so many."""
    contrasts = page.run(CONTRASTS)
    assert len(contrasts) > least
    return [(text, round(contrast, 2)) for text, contrast in contrasts if contrast < 4.5]


def test_a_daemon_that_is_gone_is_said_at_once_and_once(chromium: Browser):
    with tempfile.TemporaryDirectory(prefix="sw-") as folder, DaemonWithPage(Path(folder)) as served:
        chromium.open(served.url)
        chromium.wait(lambda: chromium.text("#state") == "serving", "the state")
        assert served.daemon.stop() == 0
        chromium.wait(lambda: chromium.text("#state") == "not answering", "that it does not answer")
        assert "does not answer" in chromium.text("#problem")
        for scheme in ("dark", "light"):
            chromium.prefer(scheme)
            assert hard_to_read(chromium, least=30) == [], scheme
        chromium.wait(
            lambda: "Failed to fetch" in chromium.text("#problem [role=alert]"), "the last word on it"
        )
        chromium.run(
            "window.told = 0; const options = {subtree: true, childList: true, characterData: true};"
            "new MutationObserver(() => { window.told += 1; }).observe(document.querySelector('#problem "
            "[role=alert]'), options)"
        )
        before = chromium.text("#problem-detail")
        chromium.wait(lambda: chromium.text("#problem-detail") != before, "that the numbers grow older")
        assert chromium.run("return window.told") == 0, "a screen reader says it once, and not every second"
        chromium.open("about:blank")
        chromium.read_logs()
        chromium.complaints.clear()  # of requests that nobody answered
        chromium.addresses.clear()
