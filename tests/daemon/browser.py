"""A real Chromium without a window, and what the tests ask it: elements, keys, screenshots, the network log,
the accessibility tree."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.ui import WebDriverWait
from tests.harness import evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TIMEOUT_S = 60
WIDTH, HEIGHT = 1280, 1000
SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in containers, where Chromium cannot make one
    "--disable-dev-shm-usage",
    "--use-gl=angle",
    "--use-angle=swiftshader",  # WebGL without a graphics card
    "--enable-unsafe-swiftshader",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    # whatever the page asks for elsewhere cannot be had
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    f"--window-size={WIDTH},{HEIGHT}",
)
# of ``image``, as the browser has decoded it
RED_OF_IMAGE = """
const size = [image.naturalHeight, image.naturalWidth];
const pen = new OffscreenCanvas(image.naturalWidth, image.naturalHeight).getContext("2d");
pen.drawImage(image, 0, 0);
const red = Array.from(pen.getImageData(0, 0, size[1], size[0]).data.filter((_, i) => i % 4 === 0));
"""


def programs() -> tuple[str, str]:
    """Chromium and its driver. A system without them fails the test: nothing is left out in silence."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail(
            'the status page is tested in Chromium, which is missing. On Debian, as root: "apt-get '
            'install chromium chromium-driver"'
        )
    return chromium, driver


class Browser:
    """Owns one Chromium. A context manager that leaves no process behind."""

    def __init__(self) -> None:
        chromium, driver = programs()
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for switch in SWITCHES:
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        self.addresses: set[str] = set()
        self.complaints: list[str] = []
        self.started_s = time.monotonic()
        self.ended_s: float | None = None
        self._picture = b""  # PNG, as evidence
        self._console: list[str] = []
        evidence.register(self)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if sys.exc_info()[0] is not None:  # a test fails around it
                self._look()
        finally:
            self.driver.quit()
            self.ended_s = time.monotonic()

    def _look(self) -> None:
        self._picture = self.driver.get_screenshot_as_png()
        self.read_logs()

    def testify(self, folder: Path) -> dict[str, list[str]]:
        """The console of the page, and a picture of it."""
        if self.ended_s is None:
            self._look()
        lines = [*self._console]
        if self._picture:
            path = folder / f"browser-{self.started_s:.1f}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._picture)
            lines.append(f"a picture of the page is {path}")
        return {"the browser's console": lines}

    def open(self, address: str) -> None:
        self.driver.get(address)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value of ``condition``."""
        try:
            return WebDriverWait(self.driver, TIMEOUT_S, poll_frequency=0.1).until(lambda _: condition())
        except TimeoutException:
            pytest.fail(f"{what}: has not come. The page says: {self.text('body')[:1000]}")

    def text(self, selector: str) -> str:
        """Of the first such element as it is shown, empty if there is none."""
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def number(self, selector: str) -> float:
        """NaN while no number stands there."""
        digits = self.text(selector).replace(",", "").split()
        try:
            return float(digits[0])
        except (IndexError, ValueError):
            return float("nan")

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """What has the keyboard, as a person would call it."""
        return self.run(
            "const e = document.activeElement;"
            "return e.getAttribute('aria-label') || "
            "document.getElementById(e.getAttribute('aria-labelledby'))?.innerText || e.innerText.slice(0, "
            "60)"
        )

    def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``, as the system's setting."""
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )

    @contextmanager
    def width(self, pixels: int, height: int = 844) -> Iterator[None]:
        """A context in which the window is so wide, as that of a telephone."""
        size = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def screenshot(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """uint8[rows, columns, 3] of the window."""
        return np.asarray(Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB"))

    def image_pixels(self, selector: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """uint8[rows, columns]: the red of an <img> as the browser has decoded it."""
        size, red = self.run(
            f"const image = document.querySelector(arguments[0]); {RED_OF_IMAGE} return [size, red]", selector
        )
        return np.array(red, np.uint8).reshape(size)

    def accessibility(self) -> list[tuple[str, str]]:
        """(role, name) of everything that a screen reader is told."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def read_logs(self) -> None:
        """Adds to ``addresses`` whatever was asked for on the network, and to ``complaints`` what the console
        holds against the page."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.addresses.add(message["params"]["request"]["url"])
            elif message["method"] == "Network.webSocketCreated":
                self.addresses.add(message["params"]["url"])
        entries = self.driver.get_log("browser")
        self._console += [f"{entry['level']}: {entry['message']}" for entry in entries]
        self.complaints += [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def foreign_addresses(self, own: str) -> list[str]:
        """What was asked of anybody but ``own``."""
        self.read_logs()
        return sorted(
            address for address in self.addresses if not address.startswith((own, "data:", "blob:" + own))
        )
