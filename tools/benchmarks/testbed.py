"""What the parts of the record are measured with: a daemon in a process of its own, cameras in theirs, which
send to it or write by themselves."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shardwright import ArraySpec
from shardwright.config.load import load_config
from shardwright.config.plan import make_plan

from .cases import Frames
from .processes import JsonProcess, cpu_seconds, unreclaimable_bytes


@dataclass(frozen=True)
class Places:
    """Two folders of the bench's own: on the disk that is measured, and in memory."""

    disk: Path
    memory: Path

    def folder(self, place: str) -> Path:
        return self.disk if place == "disk" else self.memory


class Daemon:
    """Started by the constructor; stores go below ``root``. ``streams`` are those of its configuration."""

    def __init__(self, root: Path, streams: list[dict[str, Any]]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._sockets = Path(tempfile.mkdtemp(prefix="shardwright-bench-"))
        self.endpoint = f"ipc://{self._sockets}/ingest.sock"
        config = {
            "output": {"root": str(root), "in_memory": True},
            "ingest": {"endpoints": [self.endpoint]},
            "log": {"level": "warning"},
            "streams": streams,
        }
        path = self._sockets / "bench.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.planned_memory_bytes = make_plan(load_config(path)).memory_peak_bytes
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shardwright.cli", "serve", str(path)], stdout=sys.stderr
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._sockets)


class Camera:
    """A camera in a process of its own, which has drawn nothing itself: its frames are in ``frames``.
    ``endpoint`` None: it writes by itself."""

    def __init__(
        self, frames: Path, shape: tuple[int, ...], endpoint: str | None, log: Path, transport: str = "shm"
    ) -> None:
        facts = {"shape": shape, "endpoint": endpoint, "transport": transport}
        self._process = JsonProcess("benchmarks.camera", [str(frames), json.dumps(facts)], log)
        try:
            self._process.answer()
        except BaseException:
            self._process.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, path: Path, spec: ArraySpec, **settings: Any) -> None:
        """An acquisition; through the daemon it has the path's name."""
        self.ask(do="open", path=str(path), spec=spec.model_dump(mode="json"), settings=settings)

    def ask(self, meanwhile: Callable[[], None] = lambda: None, /, **command: Any) -> dict[str, Any]:
        return self._process.ask(command, meanwhile)

    def say(self, **command: Any) -> None:
        self._process.say(command)

    def answer(self) -> dict[str, Any]:
        return self._process.answer()

    def close_acquisition(self) -> dict[str, Any]:
        """Its receipt, and when it came: ``end_ns`` of the monotonic clock, which all processes share."""
        return self.ask(do="close")

    def close(self) -> None:
        self._process.close()


@dataclass(frozen=True)
class Usage:
    """What some processes have used so far."""

    cpu_s: float
    memory_bytes: int

    @classmethod
    def of(cls, pids: list[int]) -> Usage:
        return cls(sum(map(cpu_seconds, pids)), sum(map(unreclaimable_bytes, pids)))


class Rig:
    """Everything one measurement starts, ended together. ``folder`` is emptied when it is left."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._started = 0

    def daemon(self, streams: list[dict[str, Any]] | None = None, name: str = "daemon") -> Daemon:
        daemon = Daemon(self.folder / name, streams or [])
        self._stack.callback(daemon.stop)
        return daemon

    def camera(self, frames: Path, shape: tuple[int, ...], daemon: Daemon | None = None) -> Camera:
        self._started += 1
        log = self.folder / f"camera-{self._started}.log"
        camera = Camera(frames, shape, None if daemon is None else daemon.endpoint, log)
        self._stack.callback(camera.close)
        return camera


@contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Rig(folder, stack)


@contextmanager
def saved(frames: Frames) -> Iterator[Path]:
    """Frames where every camera's process can read them, in memory."""
    with tempfile.NamedTemporaryFile(prefix="shardwright-frames-", dir="/dev/shm") as file:
        frames.tofile(file)
        file.flush()
        yield Path(file.name)


def delete_stores(root: Path) -> None:
    """Every store below ``root``, between two measurements."""
    for store in root.glob("*.ome.zarr"):
        shutil.rmtree(store)


def percentiles(values: np.ndarray) -> dict[str, float]:
    """p50, p99, p99.9 and the largest."""
    p50, p99, p99_9 = np.percentile(values, [50, 99, 99.9])
    return {"p50": float(p50), "p99": float(p99), "p99_9": float(p99_9), "max": float(values.max())}
