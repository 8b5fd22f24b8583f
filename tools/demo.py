"""The main job once, for real: daemon, camera in another process, ZeroMQ between them, then every pixel
compared through an independent reader.

shardwright serve configs/demo.yaml  ◀── ZeroMQ, shared memory ──  shardwright camera
          │
.cache/demo/data/demo.ome.zarr  ──▶  tensorstore  ──▶  compared with frames drawn again from the seed
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from rich.console import Console
from rich.progress import track
from rich.table import Table

import shardwright as sw
from shardwright.config.load import load_config
from shardwright.model.names import store_name
from shardwright.simulate.photons import PhotonFrames

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "demo.yaml"
NAME = "demo"
START_TIMEOUT_S = 180  # the very first start compiles the kernels
STOP_TIMEOUT_S = 60
COMPARED_AT_ONCE = 32  # frames

messages = Console(stderr=True, highlight=False)


class DemoError(Exception):
    """Something did not work; the message says what and where to look."""


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Two demos in one checkout would share a socket and an output."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError("another demo is running in this checkout") from None
        yield


@contextlib.contextmanager
def daemon(endpoint: str, log_path: Path) -> Iterator[None]:
    """The real daemon, ready; stopped by SIGTERM at the end, and its exit code checked."""
    with log_path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "shardwright.cli", "serve", str(CONFIG)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        try:
            wait_until_ready(process, endpoint, log_path)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
    if code != 0:
        raise DemoError(f"the daemon ended with code {code}:\n{tail(log_path)}")


def wait_until_ready(process: subprocess.Popen[bytes], endpoint: str, log_path: Path) -> None:
    """Until the daemon answers a client's hello."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoError(f"the daemon did not start (code {process.returncode}):\n{tail(log_path)}")
        try:
            sw.connect(endpoint, timeout_ms=1000).close()
        except sw.errors.SessionLostError:
            continue
        return
    raise DemoError(f"the daemon was not ready within {START_TIMEOUT_S} s:\n{tail(log_path)}")


def tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def run_camera(endpoint: str, frames: int, seed: int, fps: float) -> dict[str, Any]:
    """The camera process; its progress goes to our standard error. Returns its receipt."""
    command = [
        sys.executable,
        "-m",
        "shardwright.cli",
        "camera",
        "--connect",
        endpoint,
        "--name",
        NAME,
        "--stream",
        "demo",
    ]
    command += ["--frames", str(frames), "--seed", str(seed), "--fps", str(fps), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"the camera ended with code {done.returncode}: {done.stdout.strip()}")
    receipt = json.loads(done.stdout)
    assert isinstance(receipt, dict)
    return receipt


def differing_frames(store: Path, frames: int, seed: int) -> int:
    """Read the array ``0`` of the store with tensorstore and compare it, pixel by pixel, with the frames
    drawn again."""
    array = tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store / "0")}}
    ).result()
    if array.shape[0] != frames:
        raise DemoError(f"the array holds {array.shape[0]} frames, not {frames}")
    rows, columns = array.shape[1:]
    source = PhotonFrames((rows, columns), array.dtype.name, seed)
    differing = 0
    starts = range(0, frames, COMPARED_AT_ONCE)
    for first in track(starts, "comparing", console=messages, transient=True):
        images = array[first : min(first + COMPARED_AT_ONCE, frames)].read().result()
        for i, image in enumerate(images, first):
            differing += not np.array_equal(image, source.frame(i))
    return differing


def demo(frames: int, seed: int, fps: float) -> dict[str, Any]:
    """Run it all; returns the report."""
    config = load_config(CONFIG).config
    endpoint, data = config.ingest.endpoints[0], config.output.root
    store = data / store_name(NAME)
    with only_one(data.parent):
        if store.exists():
            shutil.rmtree(store)  # the last demo's own output: nothing else has this name in this folder
        messages.print("starting the daemon (the first start compiles its kernels)")
        with daemon(endpoint, data.parent / "daemon.log"):
            messages.print(f"streaming {frames} frames from a camera process")
            receipt = run_camera(endpoint, frames, seed, fps)
        messages.print("daemon stopped; reading the store back with tensorstore")
        differing = differing_frames(store, frames, seed)
    return {
        "frames": receipt["frames_stored"],
        "frames_durable": receipt["frames_durable"],
        "frames_missing": receipt["frames_missing"],
        "frames_differing": differing,
        "gb_per_s": receipt["camera_bytes_per_second"] / 1e9,
        "ratio": receipt["bytes_raw"] / receipt["bytes_stored"],
        "transport": receipt["transport"],
        "path": str(store),
    }


def is_right(report: dict[str, Any], frames: int) -> bool:
    return bool(
        report["frames"] == report["frames_durable"] == frames
        and report["frames_missing"] == report["frames_differing"] == 0
    )


def print_report(report: dict[str, Any]) -> None:
    table = Table(show_header=False)
    for label, text in (
        ("frames", f"{report['frames']:,} stored, {report['frames_durable']:,} durable"),
        ("missing", f"{report['frames_missing']:,}"),
        ("differing", f"{report['frames_differing']:,} (every pixel compared)"),
        ("speed", f"{report['gb_per_s']:.2f} GB/s as the camera saw it, by {report['transport']}"),
        ("ratio", f"{report['ratio']:.2f}"),
        ("path", report["path"]),
    ):
        table.add_row(label, text)
    Console(soft_wrap=True).print(table)


def main() -> int:
    """Exits with 0 only if every frame is there and every pixel is right."""
    parser = argparse.ArgumentParser(
        prog="tools/demo",
        description="Stream frames through the daemon into a store and compare every pixel.",
    )
    parser.add_argument(
        "--frames", type=int, default=500, help="frames to stream (default 500: the last shard stays ragged)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--fps", type=float, default=0.0, help="frames per second, 0 for as fast as the daemon takes them"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    try:
        report = demo(options.frames, options.seed, options.fps)
    except (DemoError, sw.errors.ShardwrightError) as error:
        messages.print(f"demo failed: {error}", style="red", markup=False)
        return 1
    if options.json:
        print(json.dumps(report))
    else:
        print_report(report)
    return 0 if is_right(report, options.frames) else 1


if __name__ == "__main__":
    sys.exit(main())
