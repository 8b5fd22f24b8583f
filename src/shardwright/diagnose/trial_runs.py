"""Short real acquisitions at full speed: the only measurement in which all stages share the machine as in
use.

They are written to a hidden folder below the output root, in this process or through a daemon with the user's
configuration and sockets of its own. Folder and daemon are gone afterwards.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shardwright.array.grid import Grid
from shardwright.client import connect
from shardwright.daemon.child import end_child, start_child, take
from shardwright.model.errors import SessionLostError, ShardwrightError, StorageError
from shardwright.storage.files import free_bytes, storage_errors

from .verdict import AcquisitionRun

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from types import TracebackType

    import numpy as np

    from shardwright.array.spec import ArraySpec
    from shardwright.client.connection import Connection
    from shardwright.config.model import Config
    from shardwright.config.plan import StreamPlan
    from shardwright.model.receipt import Receipt
    from shardwright.model.write_options import IoMode

    from .verdict import Transport

PREFIX = ".shardwright-plan-"  # of the folder; a leftover of an older release has it as well
LEAST_SLABS = 8
PATIENCE = 4.0
START_TIMEOUT_S = 120.0  # a first start compiles the kernels
_END_TIMEOUT_S = 30.0


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


class Target(Protocol):
    """A ``Writer`` or a ``Stream``."""

    @property
    def receipt(self) -> Receipt: ...
    def append(self, frame: np.ndarray[Any, Any], /, *, index: tuple[int, ...] | None = None) -> None: ...
    def close(self) -> object: ...


@dataclass(frozen=True)
class Mark:
    """A moment of an acquisition: how many frames were sent, and what CPU time its processes had taken."""

    when_s: float
    sent: int
    cpu_s: float


@dataclass(frozen=True)
class Extent:
    """How long one acquisition is: ``seconds``, but until its ring was full for ``LEAST_SLABS``, unless that
    takes ``PATIENCE`` times as long.

    It ends after a whole slab, before it has more than ``most_frames``, and when less than
    ``low_water_bytes`` of the disk are free.
    """

    seconds: float
    most_frames: int
    low_water_bytes: int


def extent_of(stream: StreamPlan, seconds: float, room_bytes: int, low_water_bytes: int) -> Extent:
    """``room_bytes``: what may be written. At least a slab, at most what the array takes."""
    grid = _regular(stream.spec)
    frames = max(grid.frames_per_slab, room_bytes // stream.limits.frame_bytes)
    return Extent(seconds, min(frames, grid.last_position + 1), low_water_bytes)


def _regular(spec: ArraySpec) -> Grid:
    """Returns the grid of a trial: an axis without a count other than the first ends with its first shard."""
    grid = Grid.of(spec)
    counts = (
        size if axis and axis in grid.growing else count
        for axis, (count, size) in enumerate(zip(grid.counts, grid.shard_row_frames, strict=True))
    )
    return replace(grid, counts=tuple(counts), growing=grid.growing[:1])


def run(
    open_target: Callable[[], Target],
    frames: np.ndarray[Any, Any],
    stream: StreamPlan,
    extent: Extent,
    folder: Path,
    pids: tuple[int, ...],
    *,
    deferred: bool,
) -> AcquisitionRun:
    """Open, append ``frames`` in turns until ``extent`` is reached, close. ``folder``: on the disk written
    to; ``pids``: whose CPU time counts; ``deferred``: chunks go through the page cache, so that the disk has
    its share only once all is synced.

    Raises what broke the acquisition, and ``StorageError`` when frames were lost.
    """
    begin = Mark(time.perf_counter(), 0, cpu_seconds(pids))
    target = open_target()
    try:
        marks, sent = _append(target, frames, stream, extent, folder, pids, begin.when_s)
        target.close()
    except BaseException:
        with suppress(ShardwrightError):
            target.close()
        raise
    end = Mark(time.perf_counter(), sent, cpu_seconds(pids))
    receipt = target.receipt
    if receipt.frames_stored != sent:
        raise StorageError(
            f"stream {stream.name} could not be measured: frames were not stored",
            expected=f"{sent}",
            got=receipt.frames_stored,
        )
    first, last, count = steady(begin, marks, end, stream.limits.ring_frames, deferred=deferred)
    raw_bytes = count * stream.limits.frame_bytes
    return AcquisitionRun(
        frames=sent,
        raw_bytes=receipt.bytes_raw,
        stored_bytes=receipt.bytes_stored,
        seconds=end.when_s - begin.when_s,
        sustained_bytes_per_s=raw_bytes / max(last.when_s - first.when_s, 1e-9),
        cpu_s_per_gb=(last.cpu_s - first.cpu_s) / raw_bytes * 1e9,
    )


def _append(
    target: Target,
    frames: np.ndarray[Any, Any],
    stream: StreamPlan,
    extent: Extent,
    folder: Path,
    pids: tuple[int, ...],
    begin_s: float,
) -> tuple[list[Mark], int]:
    """(a mark after each slab since the ring was full once, frames that were sent)."""
    slab, ring, distinct = stream.limits.frames_per_slab, stream.limits.ring_frames, len(frames)
    regular = _regular(stream.spec) if Grid.of(stream.spec).is_ragged else None
    marks: list[Mark] = []
    sent = 0
    while sent < extent.most_frames:
        index = None if regular is None else regular.index_of(sent)
        target.append(frames[sent % distinct], index=index)
        sent += 1
        if sent % slab == 0:
            now_s = time.perf_counter()
            if sent >= ring:
                marks.append(Mark(now_s, sent, cpu_seconds(pids)))
            so_far = (now_s - begin_s) / extent.seconds
            if (
                so_far > (1 if len(marks) > LEAST_SLABS else PATIENCE)
                or free_bytes(folder) < extent.low_water_bytes
            ):
                break
    return marks, sent


def steady(
    begin: Mark, marks: list[Mark], end: Mark, ring_frames: int, *, deferred: bool
) -> tuple[Mark, Mark, int]:
    """(from when, until when, frames stored meanwhile) of the time that decides the rate: from a quarter of
    the way after the ring was full until the last frame was taken. The ring is full at both, so that as many
    were stored as were sent. ``deferred``: until all is sealed and synced.

    All of it for an acquisition that fits its ring: no ``marks``, or one.
    """
    if len(marks) < 2:
        return begin, end, end.sent
    after_s = marks[0].when_s + (marks[-1].when_s - marks[0].when_s) / 4
    first = next(mark for mark in marks[:-1] if mark.when_s >= after_s or mark is marks[-2])
    if deferred:
        return first, end, end.sent - max(0, first.sent - ring_frames)
    return first, marks[-1], marks[-1].sent - first.sent


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """User and system time of these processes so far, by their own clocks (``clock_getcpuclockid(3)``,
    ``include/linux/posix-timers.h``): ``/proc/PID/stat`` counts ticks of 10 ms, and a trial may take none."""
    scheduled = 2  # CPUCLOCK_SCHED
    return sum(time.clock_gettime((~pid << 3) | scheduled) for pid in pids)


def private_configuration(
    config: Config, root: Path, endpoint: str, io: IoMode, ring_frames: dict[str, int]
) -> dict[str, Any]:
    """Returns the configuration of such a daemon: the user's limits except the rings; no other client may
    connect, and it only acquires: of each stream the image with the largest frames, alone."""
    facts = config.model_dump(mode="json")
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
    for stream, configured in zip(facts["streams"], config.streams, strict=True):
        stream |= {"overload": None, "on_full": None, "ring_frames": ring_frames[configured.name]}
        stream |= {"images": [], "plate": None, "order": None}
        stream["array"] = configured.largest_array.model_dump(mode="json")
        if config.output.live != "none":
            stream["array"]["index_location"] = "start"
    return facts


class PrivateDaemon:
    """Started by the constructor, ended by ``close``, or with this process. A context manager; the thread
    that makes it must outlive it.

    Raises ``StorageError`` when it does not start.
    """

    def __init__(self, config: Config, root: Path, io: IoMode, ring_frames: dict[str, int]) -> None:
        self._sockets = Path(tempfile.mkdtemp(prefix="sw-"))  # short enough for a socket's address
        self._endpoint = f"ipc://{self._sockets}/ingest.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = b""
        try:
            path = self._sockets / "rig.yaml"
            path.write_text(
                json.dumps(private_configuration(config, root, self._endpoint, io, ring_frames)),
                encoding="utf-8",
            )  # JSON is YAML
            self._process = start_child([sys.executable, "-m", "shardwright.cli", "serve", str(path)])
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def connect(self, transport: Transport) -> Connection:
        """A camera's connection. Raises ``SessionLostError``."""
        assert transport != "in-process"
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
