"""A daemon and cameras in processes of their own, with which the parts of the record are measured. A camera
sends to the daemon or writes by itself.

A camera's process (``python -m benchmarks.testbed FRAMES FACTS``) answers, with times of the monotonic clock,
which all processes share:

{"do": "open", "path": P, "spec": S or null, "settings": {}}   -> {}    settings of create or acquire
{"do": "send", "frames": N, "rate_hz": R or null, "seconds": T or null, "save": FILE or null, "stored": B}
                           -> {"begin_ns": B, "end_ns": E, "sent": N}   first append begun, last one done
{"do": "flush"}            -> {"end_ns": E}                             all that was sent is durable
{"do": "close"}            -> {"end_ns": E, "receipt": R}

``rate_hz``: frame i is due at begin + i / rate; up to ``SLEEP_PER_FRAME_HZ`` the camera sleeps until each,
above it hands over every millisecond the frames that are due, as drivers of fast cameras do. A camera with a
rate stops after ``seconds``. ``save``: int64[2, N] nanoseconds, how long each append took and how long after
its due time it was done; with ``stored`` int64[3, N], how long after its append began it was stored, to a
millisecond.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import shardwright as sw
from shardwright.acquire.limits import Limits, default_threads
from shardwright.client.stream import Stream
from shardwright.config.load import load_config
from shardwright.config.plan import make_plan
from shardwright.writer.writer import Writer

from .cases import Case, Frames, emptied
from .processes import JsonProcess, open_answers, serve

SLEEP_PER_FRAME_HZ = 1000.0
TICK_S = 0.001
Sink = Writer | Stream


@dataclass(frozen=True)
class Places:
    """Two folders of the bench's own: on the disk that is measured, and in memory."""

    disk: Path
    memory: Path

    def folder(self, place: str) -> Path:
        return self.disk if place == "disk" else self.memory


@contextmanager
def empty_places(disk: Path, memory: Path) -> Iterator[Places]:
    """Both folders, emptied first and removed at the end."""
    with emptied(disk.resolve()), emptied(memory.resolve()):
        yield Places(disk.resolve(), memory.resolve())


class Daemon:
    """Started by the constructor; stores go below ``root``. ``streams`` are those of its configuration,
    ``output``: more of that section."""

    def __init__(self, root: Path, streams: list[dict[str, Any]], **output: Any) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._sockets = Path(tempfile.mkdtemp(prefix="shardwright-bench-"))
        self.endpoint = f"ipc://{self._sockets}/ingest.sock"
        self.control = self._sockets / "control.sock"
        config = {
            "output": {"root": str(root), "in_memory": True, **output},
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
    """A camera in a process of its own, whose frames repeat those of the file ``frames``. ``daemon`` None: it
    writes by itself. Every method raises ``ProcessFailedError``."""

    def __init__(self, frames: Path, shape: tuple[int, ...], daemon: Daemon | None, log: Path) -> None:
        facts = {"shape": shape, "endpoint": daemon and daemon.endpoint}
        self._process = JsonProcess("benchmarks.testbed", [str(frames), json.dumps(facts)], log)
        self.close, self.answer = self._process.close, self._process.answer
        try:
            self.answer()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, path: Path, spec: sw.ArraySpec | None, **settings: Any) -> None:
        """Begins an acquisition; through the daemon it has the path's name. ``spec`` None: that of the
        daemon's stream that ``settings`` name."""
        self.ask("open", path=str(path), spec=spec and spec.model_dump(mode="json"), settings=settings)

    def ask(self, what: str, **command: Any) -> dict[str, Any]:
        return self._process.ask({"do": what, **command})

    def begin(self, what: str, **command: Any) -> None:
        """As ``ask``, without waiting for the answer."""
        self._process.send({"do": what, **command})

    def send(self, frames: int, rate_hz: float | None = None, **settings: Any) -> dict[str, Any]:
        return self.ask("send", frames=frames, rate_hz=rate_hz, **settings)

    def held_hz(self, path: Path, case: Case, spec: sw.ArraySpec, shards: int, **settings: Any) -> float:
        """Frames a second, once two shards have filled the ring, until all is sealed and durable; the frames
        that wait in the ring then are stored in this time, too."""
        self.open(path, spec, **settings)
        self.send(2 * case.shard[0])
        begin_ns = self.send(shards * case.shard[0])["begin_ns"]
        seconds = float(self.close_acquisition()["end_ns"] - begin_ns) / 1e9
        return (shards * case.shard[0] + Limits.derive(spec, threads=default_threads()).ring_frames) / seconds

    def close_acquisition(self) -> dict[str, Any]:
        """Its receipt, and when it came."""
        return self.ask("close")


class Testbed:
    """All that one measurement starts, ended together. ``folder`` is emptied when it is left."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._started = 0

    def daemon(
        self, streams: list[dict[str, Any]] | None = None, name: str = "daemon", **output: Any
    ) -> Daemon:
        daemon = Daemon(self.folder / name, streams or [], **output)
        self._stack.callback(daemon.stop)
        return daemon

    def camera(self, frames: Path, case: Case, daemon: Daemon | None = None) -> Camera:
        """``frames``: the saved ones of the case."""
        self._started += 1
        log = self.folder / f"camera-{self._started}.log"
        camera = Camera(frames, (case.distinct, *case.shape), daemon, log)
        self._stack.callback(camera.close)
        return camera


@contextmanager
def testbed(folder: Path) -> Iterator[Testbed]:
    with emptied(folder), ExitStack() as stack:
        yield Testbed(folder, stack)


def delete_stores(root: Path) -> None:
    """Deletes every store below ``root``, between two measurements."""
    for store in root.glob("*.ome.zarr"):
        shutil.rmtree(store)


def send(
    sink: Sink,
    frames: Frames,
    count: int,
    rate_hz: float | None,
    seconds: float | None,
    save: str | None,
    stored: bool | None = None,
) -> dict[str, int]:
    """As fast as the sink takes the frames, or at a rate. A late frame is handed over at once."""
    if rate_hz is not None:
        stored_ns = np.zeros(count if stored else 0, np.int64)
        watch = threading.Thread(target=_watch_stored, args=(sink, stored_ns), daemon=True)
        watch.start()
        times, answer = send_paced(sink, frames, count, rate_hz, seconds)
        watch.join()
        if stored:
            begun_ns = answer["begin_ns"] + (np.arange(count) * 1e9 / rate_hz).astype(np.int64)
            times = np.vstack((times, stored_ns - begun_ns - times[1] + times[0]))
        if save is not None:
            np.save(save, times)
        return answer
    append, distinct = sink.append, len(frames)
    begin_ns = time.monotonic_ns()
    for i in range(count):
        append(frames[i % distinct])
    return {"begin_ns": begin_ns, "end_ns": time.monotonic_ns(), "sent": count}


def _watch_stored(sink: Sink, stored_ns: np.ndarray) -> None:
    """Sets when each frame was stored; ends when all are."""
    done = 0
    while done < len(stored_ns):
        stored = sink.watermark.stored
        stored_ns[done:stored] = time.monotonic_ns()
        done = max(done, stored)
        time.sleep(TICK_S)


def send_paced(
    sink: Sink, frames: Frames, count: int, rate_hz: float, seconds: float | None = None
) -> tuple[np.ndarray, dict[str, int]]:
    clock, times, sent = time.monotonic_ns, np.zeros((2, count), np.int64), 0
    one_by_one = rate_hz <= SLEEP_PER_FRAME_HZ
    begin_ns = clock()
    stop_ns = None if seconds is None else begin_ns + int(seconds * 1e9)
    while sent < count and (stop_ns is None or clock() < stop_ns):
        ahead_ns = begin_ns + int(sent * 1e9 / rate_hz) - clock()
        if ahead_ns > 0:
            time.sleep(ahead_ns / 1e9 if one_by_one else TICK_S)
            continue
        due = sent + 1 if one_by_one else min(count, int((clock() - begin_ns) * rate_hz / 1e9) + 1)
        start_ns = clock()
        _hand_over(sink, frames, sent, due)
        end_ns = clock()
        times[0, sent:due] = (end_ns - start_ns) // (due - sent)
        times[1, sent:due] = end_ns - begin_ns - (np.arange(sent, due) * 1e9 / rate_hz).astype(np.int64)
        sent = due
    return times[:, :sent], {"begin_ns": begin_ns, "end_ns": clock(), "sent": sent}


def _hand_over(sink: Sink, frames: Frames, first: int, stop: int) -> None:
    """Frames [first, stop), several in a call where the sink takes that."""
    if stop - first == 1 or not isinstance(sink, Stream):
        for i in range(first, stop):
            sink.append(frames[i % len(frames)])
        return
    while first < stop:
        place = first % len(frames)
        count = min(stop - first, len(frames) - place)
        sink.append_many(frames[place : place + count])
        first += count


def main() -> None:
    frames_path, facts_json = sys.argv[1:]
    answers, facts = open_answers(), json.loads(facts_json)
    frames = np.fromfile(frames_path, np.uint16).reshape(facts["shape"])
    endpoint = facts["endpoint"]
    connection = None if endpoint is None else sw.connect(endpoint, timeout_ms=60_000, transport="shm")
    sink: Sink | None = None

    def handle(command: dict[str, Any]) -> dict[str, Any]:
        nonlocal sink
        if command["do"] == "open":
            path, settings = Path(command["path"]), command["settings"]
            spec = command["spec"] and sw.ArraySpec.model_validate(command["spec"])
            if connection is None:
                sink = sw.create(path, spec, **settings)
            else:
                sink = connection.acquire(path.name.removesuffix(".ome.zarr"), spec, **settings)
            return {}
        assert sink is not None, "opened first"
        if command["do"] == "send":
            return send(
                sink, frames, command["frames"], *map(command.get, ("rate_hz", "seconds", "save", "stored"))
            )
        if command["do"] == "flush":
            sink.flush()
            return {"end_ns": time.monotonic_ns()}
        sink.close()
        return {"end_ns": time.monotonic_ns(), "receipt": asdict(sink.receipt)}

    serve(answers, {}, handle)
    if connection is not None:
        connection.close()


if __name__ == "__main__":
    main()
