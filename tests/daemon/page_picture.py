"""Makes the README's picture of the status page, in three minutes: ``python -m tests.daemon.page_picture``.

Two cameras send, rest and send again to a daemon of their own; then Chromium looks at its page. The picture
carries the words of the page's controls, by which a test finds that it is of an older page.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tests.harness.daemon import DaemonProcess, start_cli
from tests.web.page_labels import KEY, PICTURE, page_labels

from .browser import Browser

if TYPE_CHECKING:
    from tests.harness.fork_server import Child

WIDTH, HEIGHT = 1280, 1010  # down to the acquisitions
SEND_S, REST_S, LOOK_S = 75, 20, 50
SETTLE_S = 3  # until the page is drawn at another width
CAMERAS = {  # stream: first acquisition and second, frames a second, pixels along an axis
    "lightsheet": (("embryo-42", "embryo-43"), 20, 1024),
    "overview": (("overview-7", "overview-8"), 10, 512),
}
CONFIG = """\
output: {root: ./data, create: true, in_memory: true}
ingest: {endpoints: ["ipc://./in.sock"]}
http: {enabled: true, listen: "127.0.0.1:*"}
"""


def main(narrow: Path | None) -> None:
    """Writes the picture; to ``narrow`` one of the same page on a telephone."""
    with ExitStack() as scene:
        folder = Path(scene.enter_context(tempfile.TemporaryDirectory(prefix="sw-")))
        (folder / "rig.yaml").write_text(CONFIG + streams(), encoding="utf-8")
        daemon = scene.enter_context(DaemonProcess(folder / "rig.yaml"))
        browser = scene.enter_context(Browser())  # before the frames: its start would show in the plots
        browser.prefer("light")
        browser.open(daemon.wait_for("web_ready")["url"])
        for camera in start_cameras(scene, folder, 0):
            assert camera.wait() == 0
        time.sleep(REST_S)
        start_cameras(scene, folder, 1)
        time.sleep(LOOK_S)
        browser.wait(lambda: browser.text("#previews").count("frame") == len(CAMERAS), "the frames")
        words = PngInfo()
        words.add_text(KEY, page_labels())
        with browser.width(WIDTH, HEIGHT):
            time.sleep(SETTLE_S)
            Image.fromarray(browser.screenshot()).save(PICTURE, optimize=True, pnginfo=words)
        if narrow is not None:
            with browser.width(390):
                time.sleep(SETTLE_S)
                Image.fromarray(browser.screenshot()).save(narrow)


def start_cameras(scene: ExitStack, folder: Path, number: int) -> list[Child]:
    """Starts each camera's first acquisition (0) or its second (1), which ends with the scene."""
    started = []
    for stream, (names, hz, _) in CAMERAS.items():
        options = {
            "--connect": f"ipc://{folder}/in.sock",
            "--name": names[number],
            "--stream": stream,
            "--fps": hz,
            "--frames": hz * SEND_S,
            "--seed": hz + number,
        }
        arguments = [str(word) for option in options.items() for word in option]
        camera = start_cli("camera", *arguments, stdout=DEVNULL, stderr=DEVNULL)
        scene.callback(camera.wait)
        scene.callback(camera.kill)
        started.append(camera)
    return started


def streams() -> str:
    """Returns the streams of the configuration."""
    lines = ["streams:"]
    for stream, (_, _, pixels) in CAMERAS.items():
        lines += [f"  - name: {stream}", "    array:", "      dtype: uint16", "      dimensions:"]
        lines.append("        - {name: t, type: time, chunk_size: 4, shard_size_chunks: 16}")
        lines += [
            f"        - {{name: {axis}, type: space, count: {pixels}, chunk_size: 256, shard_size_chunks: "
            f"{pixels // 256}}}"
            for axis in "yx"
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
