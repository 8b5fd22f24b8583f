"""The trial of ``check --measure``: every camera of the configuration at once, at full speed, into a hidden
folder below the output root.

    daemon   one of its own, with the user's configuration and other sockets
    camera   a thread of this process and a connection: through shared memory, as a camera on this machine.
             When its array is full, the next acquisition begins, as on a rig
    pace     cameras send in proportion to their frame rates, as they would on a machine that is just fast
             enough; where one of the rates is not known, each as fast as it can

A camera's rate is counted in frames that became durable, from one sync to a later one: what only fills the
ring or the page cache is no part of it. Bounded by seconds, by ``MOST_BYTES`` and by ``output.low_water``.
Folder and daemon are gone afterwards.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.acquire.limits import Limits
from shardwright.array.grid import Grid
from shardwright.client import connect
from shardwright.config.model import MAX_FRAME_RATE_HZ
from shardwright.daemon.disks import prepare_output_root
from shardwright.disk.choose_io import resolve_io
from shardwright.disk.files import free_bytes, storage_errors
from shardwright.kernels.warm_up import warm_up
from shardwright.model.display_text import format_bytes
from shardwright.model.errors import SessionLostError, StorageError
from shardwright.rework.runtime.child import end_child, start_child, take

from .sample import samples_of
from .verdict import CameraRate, Measured

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from shardwright.array.spec import ArraySpec
    from shardwright.client.connection import Connection
    from shardwright.client.stream import Stream
    from shardwright.config.load import LoadedConfig
    from shardwright.config.model import Config
    from shardwright.config.plan import Plan, StreamPlan
    from shardwright.wire.controls import Transport

    from .sample import OwnFrames, Sample

PREFIX = ".shardwright-plan-"  # of the folder; a leftover of an older release has it as well
MOST_BYTES = 32 << 30  # raw, of all cameras together
# Small frames are sent together, so that threads seldom wait for the interpreter; few enough that rates keep
# their proportion.
BLOCK_BYTES, BLOCK_S = 4 << 20, 0.02
LOOK_S = 0.01  # between two looks at what is durable
WARM_UP = 0.25  # the part of the time after which syncs count
START_TIMEOUT_S = 120.0  # a first start compiles the kernels
_END_TIMEOUT_S = 30.0


def measure(
    loaded: LoadedConfig,
    plan: Plan,
    own_frames: OwnFrames | None,
    seconds: float,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> Measured:
    """Tries every stream of the plan for about ``seconds``, with opening and sealing on top. ``tell`` gets
    (the present step, seconds that are done, of how many).

    Raises ``StorageError`` without room, ``FrameShapeError`` for frames that fit no stream, or the error that
    broke an acquisition.
    """
    config, root = loaded.config, loaded.config.output.root
    assert plan.streams, "a plan without streams has nothing to measure"
    samples = samples_of(own_frames, [stream.spec for stream in plan.streams])
    prepare_output_root(root, create=False, in_memory=config.output.in_memory)
    _check_room(root, plan, config.output.low_water)
    begin_s = time.monotonic()
    tell("loading kernels", 0, int(seconds))
    warm_up()  # so that the daemon need not compile them
    with scratch_folder(root) as folder, ExitStack() as opened:
        tell("starting a daemon", 0, int(seconds))
        daemon = opened.enter_context(PrivateDaemon(config, plan, folder))
        transport: Transport = "shm" if config.ingest.ring_socket_path is not None else "message"
        pace = Pace()
        for stream, sample in zip(plan.streams, samples, strict=True):
            connection = opened.enter_context(daemon.connect(transport))
            pace.cameras.append(Camera(stream, sample, connection, pace))
        rates = _run(pace, seconds, lambda: free_bytes(folder) < config.output.low_water, tell)
    return Measured(transport, rates, time.monotonic() - begin_s)


def _check_room(root: Path, plan: Plan, low_water_bytes: int) -> None:
    needed = plan.disk_reserved_bytes + low_water_bytes + sum(s.limits.slab_bytes for s in plan.streams)
    if (free := free_bytes(root)) < needed:
        raise StorageError(
            f"not enough room below {root} to measure",
            expected=f"{format_bytes(needed)} free, output.low_water included",
            got=format_bytes(free),
            hint="Free some space, or leave out --measure.",
        )


def _run(
    pace: Pace, seconds: float, is_low: Callable[[], bool], tell: Callable[[str, int, int], None]
) -> dict[str, CameraRate]:
    """Lets all cameras send until the time is over, or ``MOST_BYTES`` are sent, or the disk ``is_low``. The
    time begins when every acquisition is open, and has a frame. What is durable before has no time: two such
    looks are nanoseconds apart, and a rate by them would be anything, or a division by zero."""
    start_s, begin_s, now_s = time.monotonic(), None, 0.0
    with ThreadPoolExecutor(len(pace.cameras)) as threads:
        try:
            done = [threads.submit(camera.run) for camera in pace.cameras]
            while not pace.is_over:
                if begin_s is None and all(each.sent for each in pace.cameras):
                    begin_s = time.monotonic()
                if begin_s is not None:
                    now_s = time.monotonic() - begin_s
                    for camera in pace.cameras:
                        camera.look(now_s)
                tell("all cameras at once", int(now_s), int(seconds))
                sent_bytes = sum(each.sent * each.stream.frame_bytes for each in pace.cameras)
                if now_s > seconds or sent_bytes > MOST_BYTES or is_low():
                    break
                time.sleep(LOOK_S)
            tell("sealing", int(seconds), int(seconds))
        finally:
            pace.end()
        for each in done:
            each.result()
    end_s = time.monotonic() - (start_s if begin_s is None else begin_s)
    return {camera.stream.name: camera.rate(now_s, end_s) for camera in pace.cameras}


class Pace:
    """Whose turn it is to send. Any thread may call it."""

    def __init__(self) -> None:
        self.cameras: list[Camera] = []  # complete before the first runs
        self.is_over = False  # under _changed; any thread reads it
        self._changed = threading.Condition()

    def may_send(self, camera: Camera) -> bool:
        """Waits until no other camera is behind by more than the longest block. Returns False once it is
        over, except to a camera that has sent nothing yet."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_over or self._is_due(camera))
            return not self.is_over or not camera.sent

    def _is_due(self, camera: Camera) -> bool:
        if None in (each.stream.frame_rate_hz for each in self.cameras):
            return True
        longest_s = max(each.seconds_of(each.block_frames) for each in self.cameras)
        return camera.sent_s <= min(each.sent_s for each in self.cameras) + longest_s

    def count(self, camera: Camera, frames: int) -> None:
        with self._changed:
            camera.sent += frames
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self.is_over = True
            self._changed.notify_all()


class Camera:
    """One camera. ``run`` is its thread; ``look`` and ``rate`` belong to the thread that waits for it."""

    def __init__(self, stream: StreamPlan, sample: Sample, connection: Connection, pace: Pace) -> None:
        self.stream = stream
        most = BLOCK_BYTES // stream.frame_bytes
        self.block_frames = max(1, min(most, int(BLOCK_S * (stream.frame_rate_hz or MAX_FRAME_RATE_HZ))))
        self.sent = 0  # the pace's lock
        self._sample, self._connection, self._pace = sample, connection, pace
        self._stored = self._raw_bytes = self._stored_bytes = 0  # its thread's; of closed acquisitions
        self._open: tuple[int, Stream] | None = None  # its thread's; with the frames before
        self._durable: list[tuple[float, int]] = []  # when it grew, and to how many frames

    @property
    def sent_s(self) -> float:
        """The camera's own time, at its frame rate."""
        return self.seconds_of(self.sent)

    def seconds_of(self, frames: int) -> float:
        assert self.stream.frame_rate_hz is not None
        return frames / self.stream.frame_rate_hz

    def run(self) -> None:
        """Sends one acquisition after the other until the pace ends. Raises what broke one, and
        ``StorageError`` when frames were lost."""
        try:
            for number in itertools.count():
                self._acquire(f"{self.stream.name}-{number}")
                if self._pace.is_over:
                    break
        finally:
            self._pace.end()  # also of the others: what counts is all at once

    def _acquire(self, name: str) -> None:
        with self._connection.acquire(name, stream=self.stream.name) as target:
            self._open = self._stored, target
            sent = self._send(target)
        receipt = target.receipt
        if receipt.frames_stored != sent * target.spec.frame_places:
            raise StorageError(
                f"stream {self.stream.name} could not be measured: frames were not stored",
                expected=f"{sent}",
                got=receipt.frames_stored,
            )
        self._stored += sent
        self._raw_bytes += receipt.bytes_raw
        self._stored_bytes += receipt.bytes_stored

    def _send(self, target: Stream) -> int:
        """Returns the number of frames that were sent: all that the array takes, or until the pace ends."""
        frames, grid = self._sample.frames, regular_grid(self.stream.spec)
        places = self.stream.spec.frame_places
        sent, most = 0, (grid.last_position + 1) // places
        are_placed = Grid.of(self.stream.spec).is_ragged
        while sent < most and self._pace.may_send(self):
            first = sent % len(frames)
            block = frames[first : first + min(self.block_frames, most - sent)]
            stop = sent + len(block)
            indices = [grid.index_of(n * places) for n in range(sent, stop)] if are_placed else None
            if indices is not None and places > 1:
                indices = [index[:-1] for index in indices]
            target.append_many(block, indices=indices)
            self._pace.count(self, len(block))
            sent = stop
        return sent

    def look(self, now_s: float) -> None:
        """Notes what has become durable."""
        if (now := self._open) is None:
            return
        durable = now[0] + now[1].watermark.durable
        if not self._durable or durable > self._durable[-1][1]:
            self._durable.append((now_s, durable))

    def rate(self, over_s: float, closed_s: float) -> CameraRate:
        """``over_s``: when the cameras ended; ``closed_s``: when all was sealed."""
        seconds, frames = steady(self._durable, over_s) or (closed_s, self._stored)
        return CameraRate(
            self._sample.source,
            frames,
            seconds,
            frames * self.stream.frame_bytes / seconds,
            self._raw_bytes / max(self._stored_bytes, 1),
        )


def steady(durable: Sequence[tuple[float, int]], over_s: float) -> tuple[float, int] | None:
    """Returns (seconds, frames) from the first sync after the cameras had warmed up to the last one; None
    without two of them: then the acquisition counts as a whole."""
    counted = [each for each in durable if each[0] >= WARM_UP * over_s]
    if len(counted) < 2:
        return None
    (first_s, before), (last_s, frames) = counted[0], counted[-1]
    return last_s - first_s, frames - before


def regular_grid(spec: ArraySpec) -> Grid:
    """Returns the grid of a trial: an axis without a count other than the first ends with its first shard."""
    grid = Grid.of(spec)
    counts = (
        size if axis and axis in grid.growing else count
        for axis, (count, size) in enumerate(zip(grid.counts, grid.shard_row_frames, strict=True))
    )
    return replace(grid, counts=tuple(counts), growing=grid.growing[:1])


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """A hidden folder below an output root, held by a lock while it is in use. Folders that a killed run
    left are removed. Raises ``StorageError``."""
    remove_stale(root)
    with storage_errors("make a folder to measure in below", root):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_stale(root: Path) -> None:
    """Removes folders that no process holds: theirs was killed."""
    for folder in root.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # another run, or one that is about to hold it
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def private_configuration(config: Config, plan: Plan, root: Path, endpoint: str) -> dict[str, Any]:
    """Returns the configuration of such a daemon: the user's, but for the sockets, and the ring where it is
    larger than needed, as it would only take longer to fill. It acquires alone: of each stream the image with
    the largest frames."""
    facts = config.model_dump(mode="json")
    io, spill_root = config.output.io, config.output.spill_root
    if spill_root is not None and resolve_io(io, [config.output.root, spill_root]) == "pwrite":
        io = "pwrite"  # what auto means depends on both
    facts["output"] |= {"root": str(root), "io": io, "create": False, "spill_root": None, "in_memory": True}
    facts["ingest"] |= {
        "endpoints": [endpoint],
        "ring_socket": "auto",
        "group": None,
        "curve": None,
        "insecure": False,
    }
    facts["control"] = {"socket": "none"}
    facts["compaction"] = {"enabled": False}
    facts["http"] = {"enabled": False}
    facts["log"] = {"format": "json", "level": "error"}
    facts["reliability"] |= {"overload": "block", "on_full": "fail"}
    for stream, planned in zip(facts["streams"], plan.streams, strict=True):
        needed = Limits.derive(planned.spec, threads=plan.threads).ring_frames
        stream |= {"overload": None, "on_full": None}
        stream |= {"ring_frames": min(needed, planned.limits.ring_frames)}
        stream |= {"images": [], "plate": None, "order": None}
        stream["array"] = planned.spec.model_dump(mode="json")
    return facts


class PrivateDaemon:
    """Started by the constructor, ended by ``close``, or with this process. A context manager; the thread
    that makes it must outlive it.

    Raises ``StorageError`` when it does not start.
    """

    def __init__(self, config: Config, plan: Plan, root: Path) -> None:
        self._sockets = Path(tempfile.mkdtemp(prefix="sw-"))  # short enough for a socket's address
        self._endpoint = f"ipc://{self._sockets}/ingest.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = b""
        try:
            path = self._sockets / "rig.yaml"
            path.write_text(
                json.dumps(private_configuration(config, plan, root, self._endpoint)),
                encoding="utf-8",
            )  # JSON is YAML
            self._process = start_child([sys.executable, "-m", "shardwright.cli", "serve", str(path)])
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def connect(self, transport: Transport) -> Connection:
        """A camera's connection. Raises ``SessionLostError``."""
        return connect(self._endpoint, transport=transport, reconnect_timeout_ms=0)

    def why(self) -> str:
        """Returns its last line of output."""
        process = self._process
        if (
            process is not None
            and process.stdout is not None
            and process.stderr is not None
            and not process.stderr.closed
        ):
            self._errors += take(process.stdout) + take(process.stderr)
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def close(self) -> None:
        if self._process is not None:
            end_child(self._process, _END_TIMEOUT_S)
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def __enter__(self) -> PrivateDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_until_ready(self) -> None:
        until_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                connect(self._endpoint, timeout_ms=200, reconnect_timeout_ms=0).close()
            except SessionLostError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > until_s:
                    raise StorageError(
                        "the daemon to measure with did not start",
                        got=self.why(),
                        hint="Does `shardwright serve` start with this configuration?",
                    ) from None
            else:
                return
