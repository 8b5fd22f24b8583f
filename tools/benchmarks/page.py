"""tools/bench page: what the status page costs the cameras, in frames a second, rounds interleaved.

    off        a daemon without http
    served     a daemon with its web process, and nobody who looks
    polled     one client that asks what an open page asks, as often: the cost of serving it
    chromium   the page open in a headless Chromium on this machine, which shares its processors with the daemon

In each round a camera in its own process sends as fast as the daemon takes its frames, so that everything that is taken from the daemon shows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

MOST_COST = 0.02
CLI = (sys.executable, "-m", "shardwright.cli")
CONFIG = """\
output: {{root: ./data, create: true, in_memory: true}}
ingest: {{endpoints: ["ipc://./in.sock"]}}
memory: {{budget: 2GiB}}
http: {{enabled: {http}, listen: "127.0.0.1:*", preview_hz: 2}}
"""
CAMERA = "rate"


class Daemon:
    """Started by the constructor, in a folder of its own. ``url`` is None without http."""

    def __init__(self, folder: Path, *, http: bool) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "rig.yaml").write_text(CONFIG.format(http=json.dumps(http)), encoding="utf-8")
        self._process = subprocess.Popen([*CLI, "serve", str(folder / "rig.yaml"), "--log-format", "json"], stdout=subprocess.PIPE, text=True)
        self.url: str | None = None
        wanted = {"ready", "web_ready"} if http else {"ready"}
        assert self._process.stdout is not None
        while wanted:
            event = json.loads(self._process.stdout.readline())
            wanted.discard(event["event"])
            self.url = event["url"] if event["event"] == "web_ready" else self.url
        self._rest = threading.Thread(target=self._process.stdout.read)  # nobody reads the lines, but the pipe must not fill
        self._rest.start()

    def camera(self, frames: int, shape: str) -> float:
        """Frames a second that it took."""
        command = [*CLI, "camera", "--connect", f"ipc://{self.folder}/in.sock", "--name", CAMERA, "--frames", str(frames), "--shape", shape, "--json"]
        receipt = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
        shutil.rmtree(self.folder / "data" / f"{CAMERA}.ome.zarr")
        os.sync()  # what one round leaves to be written must not slow the next
        return float(receipt["camera_frames_per_second"])

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self._rest.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def polled(url: str) -> Iterator[None]:
    """Asks what the page asks, once a second, until it is left."""
    over = threading.Event()

    def ask() -> None:
        after = 0
        while not over.wait(1.0):
            for path in ("api/status", f"api/events?after={after}", f"api/preview/{CAMERA}.png", "api/stores"):
                try:
                    with urllib.request.urlopen(url + path, timeout=5) as answer:
                        body = answer.read()
                except OSError:
                    continue  # no preview yet
                if path.startswith("api/events"):
                    after = max([after, *(event["number"] for event in json.loads(body)["events"])])

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Chromium:
    """One headless browser, which shows nothing between the rounds."""

    def __init__(self) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for switch in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1000"):
            options.add_argument(switch)
        self._driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))

    @contextmanager
    def open(self, url: str) -> Iterator[None]:
        self._driver.get(url)
        yield
        shown = self._driver.execute_script("return document.querySelector('#frames-received').innerText")
        assert "received" in shown, "the page has shown nothing"
        self._driver.get("about:blank")

    def close(self) -> None:
        self._driver.quit()


def parse(arguments: list[str], folder: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench page", description="What the status page costs the cameras.")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each way of looking")
    parser.add_argument("--frames", type=int, default=1500, help="frames of a round")
    parser.add_argument("--shape", default="1024x1024", help="ROWSxCOLUMNS of a frame, uint16")
    parser.add_argument("--only", action="append", choices=["off", "served", "polled", "chromium"], help="repeatable; off is always there")
    parser.add_argument("--folder", type=Path, default=folder, help="where to write; its folder `page` is emptied first")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser.parse_args(arguments)


def measure(names: list[str], options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Frames a second of each round. The order turns from round to round: whoever comes after a slow one is never the same."""
    folder = (options.folder / "page").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    plain, served = Daemon(folder / "off", http=False), Daemon(folder / "on", http=True)
    browser = Chromium() if "chromium" in names else None
    assert served.url is not None
    url = served.url
    rates: dict[str, list[float]] = {name: [] for name in names}
    try:
        for daemon in (plain, served):
            daemon.camera(options.frames // 4, options.shape)  # files, kernels and pages of memory are warm
        for i in range(options.rounds):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                looking: AbstractContextManager[None] = nullcontext()
                if name == "polled":
                    looking = polled(url)
                elif name == "chromium" and browser is not None:
                    looking = browser.open(url)
                with looking:
                    rates[name].append((plain if name == "off" else served).camera(options.frames, options.shape))
                say(f"round {i + 1} of {options.rounds}: {name:<9} {rates[name][-1]:8.1f} frames/s")
    finally:
        if browser is not None:
            browser.close()
        plain.close()
        served.close()
        shutil.rmtree(folder, ignore_errors=True)
    return rates


def summary(rates: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row for each way of looking. ``cost``: the median of the shares lost within each round; ``costs``: each of them."""
    rows = []
    for name, each in rates.items():
        costs = [1 - rate / off for rate, off in zip(each, rates["off"], strict=True)]
        rows.append({"name": name, "frames_per_s": median(each), "least": min(each), "most": max(each), "cost": median(costs), "costs": costs})
    return rows


def main(arguments: list[str], folder: Path) -> int:
    """Exits with 1 when the page costs more than ``MOST_COST``."""
    options = parse(arguments, folder)
    names = ["off", *(name for name in ("served", "polled", "chromium") if options.only is None or name in options.only)]
    rows = summary(measure(names, options, lambda text: print(text, file=sys.stderr, flush=True)))
    if options.json:
        print(json.dumps({"rounds": options.rounds, "frames": options.frames, "shape": options.shape, "rows": rows}))
    else:
        print(f"\n{'':<10}{'frames/s':>10}{'least':>10}{'most':>10}{'cost':>9}")
        for row in rows:
            print(f"{row['name']:<10}{row['frames_per_s']:>10.1f}{row['least']:>10.1f}{row['most']:>10.1f}{row['cost']:>9.2%}")
        print(f"\nAsked: at most {MOST_COST:.0%} for the page.")
    return 1 if any(row["cost"] > MOST_COST for row in rows) else 0
