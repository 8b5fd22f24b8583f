"""tools/bench page: what the status page costs the cameras, rounds interleaved: in frames a second, and as
what the web process takes of the machine's processors, which says nothing of the disk of the moment.

    off        a daemon without http
    served     a daemon with its web process, and nobody who looks
    polled     one client that asks what an open page asks, as often: the cost of serving it
    chromium   the page open in a headless Chromium on this machine, which shares its processors with the
               daemon

In each round a camera in its own process sends as fast as the daemon takes its frames, so that everything
that is taken from the daemon shows.
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
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Round:
    """``web_share``: of the time of all processors, what the web process took."""

    frames_per_s: float
    web_share: float


class Daemon:
    """Started by the constructor, in a folder of its own. ``url`` is None without http."""

    def __init__(self, folder: Path, *, http: bool) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "rig.yaml").write_text(CONFIG.format(http=json.dumps(http)), encoding="utf-8")
        self._process = subprocess.Popen(
            [*CLI, "serve", str(folder / "rig.yaml"), "--log-format", "json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url: str | None = None
        self._web_pid: int | None = None
        wanted = {"ready", "web_ready"} if http else {"ready"}
        assert self._process.stdout is not None
        while wanted:
            event = json.loads(self._process.stdout.readline())
            wanted.discard(event["event"])
            if event["event"] == "web_ready":
                self.url = event["url"]
                self._web_pid = event["pid"]
        # nobody reads the lines, but the pipe must not fill
        self._rest = threading.Thread(target=self._process.stdout.read)
        self._rest.start()

    def camera(self, frames: int, shape: str) -> Round:
        """A camera that sends as fast as the daemon takes its frames."""
        command = [
            *CLI,
            "camera",
            "--connect",
            f"ipc://{self.folder}/in.sock",
            "--name",
            CAMERA,
            "--frames",
            str(frames),
            "--shape",
            shape,
            "--json",
        ]
        begin_s, before_s = time.monotonic(), self._web_cpu_s()
        receipt = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        )
        web_share = (self._web_cpu_s() - before_s) / (time.monotonic() - begin_s) / (os.cpu_count() or 1)
        shutil.rmtree(self.folder / "data" / f"{CAMERA}.ome.zarr")
        os.sync()  # what one round leaves to be written must not slow the next
        return Round(float(receipt["camera_frames_per_second"]), web_share)

    def _web_cpu_s(self) -> float:
        """User's and kernel's, of all its threads."""
        if self._web_pid is None:
            return 0.0
        return sum(
            map(int, Path(f"/proc/{self._web_pid}/stat").read_text().rpartition(")")[2].split()[11:13])
        ) / os.sysconf("SC_CLK_TCK")

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
            for path in (
                "api/status",
                f"api/events?after={after}",
                f"api/preview/{CAMERA}.png",
                "api/stores",
            ):
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
        for switch in (
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--window-size=1280,1000",
        ):
            options.add_argument(switch)
        self._driver = webdriver.Chrome(
            options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
        )

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
    parser = argparse.ArgumentParser(
        prog="tools/bench page", description="What the status page costs the cameras."
    )
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each way of looking")
    parser.add_argument("--frames", type=int, default=1500, help="frames of a round")
    parser.add_argument("--shape", default="1024x1024", help="ROWSxCOLUMNS of a frame, uint16")
    parser.add_argument(
        "--only",
        action="append",
        choices=["off", "served", "polled", "chromium"],
        help="repeatable; off is always there",
    )
    parser.add_argument(
        "--folder", type=Path, default=folder, help="where to write; its folder `page` is emptied first"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser.parse_args(arguments)


def measure(
    names: list[str], options: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, list[Round]]:
    """The rounds of each. The order turns from round to round: whoever comes after a slow one is never the
    same."""
    folder = (options.folder / "page").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    plain, served = Daemon(folder / "off", http=False), Daemon(folder / "on", http=True)
    browser = Chromium() if "chromium" in names else None
    assert served.url is not None
    url = served.url
    rounds: dict[str, list[Round]] = {name: [] for name in names}
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
                    rounds[name].append(
                        (plain if name == "off" else served).camera(options.frames, options.shape)
                    )
                last = rounds[name][-1]
                say(
                    f"round {i + 1} of {options.rounds}: {name:<9} {last.frames_per_s:8.1f} frames/s web "
                    f"process {last.web_share:6.2%}"
                )
    finally:
        if browser is not None:
            browser.close()
        plain.close()
        served.close()
        shutil.rmtree(folder, ignore_errors=True)
    return rounds


def summary(rounds: dict[str, list[Round]]) -> list[dict[str, Any]]:
    """One row for each way of looking. Costs are medians of the shares lost within each round;
    ``rate_cost_at_least``: its lower quartile."""
    rows = []
    for name, each in rounds.items():
        pairs = list(zip(each, rounds["off"], strict=True))
        rate_costs = sorted(1 - looked.frames_per_s / off.frames_per_s for looked, off in pairs)
        rows.append(
            {
                "name": name,
                "frames_per_s": median(one.frames_per_s for one in each),
                "rate_cost": median(rate_costs),
                "rate_cost_at_least": rate_costs[len(rate_costs) // 4],
                "rate_cost_at_most": rate_costs[-1 - len(rate_costs) // 4],
                "web_share": median(one.web_share for one in each),
            }
        )
    return rows


def main(arguments: list[str], folder: Path) -> int:
    """Exits with 1 when the page costs more than ``MOST_COST`` of the processors, or of the rate in three
    rounds of four."""
    options = parse(arguments, folder)
    names = [
        "off",
        *(name for name in ("served", "polled", "chromium") if options.only is None or name in options.only),
    ]
    rows = summary(measure(names, options, lambda text: print(text, file=sys.stderr, flush=True)))
    if options.json:
        print(
            json.dumps(
                {"rounds": options.rounds, "frames": options.frames, "shape": options.shape, "rows": rows}
            )
        )
    else:
        print(f"\n{'':<10}{'frames/s':>10}{'cost':>9}{'half of the rounds':>22}{'processors':>13}")
        for row in rows:
            middle = f"{row['rate_cost_at_least']:.1%} to {row['rate_cost_at_most']:.1%}"
            print(
                f"{row['name']:<10}{row['frames_per_s']:>10.1f}{row['rate_cost']:>9.1%}{middle:>22}{row['web_share']:>13.2%}"
            )
        print(
            f"\nAsked: at most {MOST_COST:.0%} for the page. A browser on this machine takes processors "
            f"of its own beside that."
        )
    return 1 if any(max(row["web_share"], row["rate_cost_at_least"]) > MOST_COST for row in rows) else 0
