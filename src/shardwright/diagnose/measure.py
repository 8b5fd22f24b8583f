"""Measures the rates that this machine can hold for a configuration, with the arrays of its streams.

    frames to measure with   the user's own, or simulated ones
    each stage alone         stages.py
    real acquisitions        trial_runs.py: in this process and through a daemon of their own

Bounded by a budget of seconds, memory for a few frames, and ``output.low_water`` of the disk. Stages come
first, then rounds of acquisitions, every kind in each round, so that a slow moment of the disk meets every
kind. The first round warms up and does not count.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.acquire.limits import Limits
from shardwright.array.grid import Grid
from shardwright.array.spec import Blosc, Codec, Gzip, Zstd
from shardwright.config.quantities import format_bytes
from shardwright.daemon.disks import prepare_output_root
from shardwright.kernels.warm_up import warm_up
from shardwright.model.errors import FrameShapeError, StorageError
from shardwright.model.write_settings import WriteSettings
from shardwright.read.store import open_store
from shardwright.repack.jobs.region_reader import RegionReader
from shardwright.repack.runtime.throttle import Throttle
from shardwright.simulate.photons import PhotonFrames
from shardwright.storage.choose_io import offered_io, resolve_io
from shardwright.storage.files import free_bytes, sync_directory
from shardwright.writer.in_process import create

from . import stages
from .trial_runs import PrivateDaemon, extent_of, run, scratch_folder
from .verdict import Acquisitions, Measured, StreamRates, Transport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.config.load import LoadedConfig
    from shardwright.config.model import Config
    from shardwright.config.plan import Plan, StreamPlan
    from shardwright.model.write_options import IoMode
    from shardwright.read.store import StoredArray

    from .trial_runs import Target
    from .verdict import AcquisitionRun, KernelRate, StageRate

ROUNDS, LEAST_ROUNDS = 3, 2  # fewer where the machine is so slow that time runs out
SAMPLE_BYTES = 64 << 20  # more than the caches hold
MOST_SAMPLE_BYTES = 256 << 20
SIMULATED = "simulated photon noise"
MOST_ROUND_BYTES = 16 << 30  # raw, of one acquisition
_STAGE_PART, _ACQUISITION_PART = 0.25, 0.55  # of the seconds; the rest is for opening, sealing and deleting
_STAGES = 6  # kernel, three ways of writing, two transports: about as long each
OTHER_CODECS: tuple[Codec | None, ...] = (
    Blosc(cname="lz4", clevel=1, shuffle="shuffle"),
    Blosc(cname="zstd", clevel=1, shuffle="shuffle"),
    None,
)


@dataclass
class _Steps:
    """Reports progress to ``tell``: (the present step, the number of steps that are done, of how many)."""

    tell: Callable[[str, int, int], None]
    total: int
    done: int = 0

    def begin(self, what: str) -> None:
        self.tell(what, self.done, self.total)
        self.done += 1


def measure(
    loaded: LoadedConfig,
    plan: Plan,
    own_frames: OwnFrames | None,
    seconds: float,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> Measured:
    """Measures this machine for every stream of the plan, in about ``seconds``. Raises ``StorageError``
    without room, or the error that broke a measurement."""
    config = loaded.config
    assert plan.streams, "a plan without streams has nothing to measure"
    if own_frames is not None and not any(own_frames.fits(stream.spec) for stream in plan.streams):
        raise own_frames.misfit()
    root = config.output.root
    prepare_output_root(root, create=False, in_memory=config.output.in_memory)
    begin_s = time.monotonic()
    streams = [_with_small_ring(stream, plan.threads) for stream in plan.streams]
    kinds = _kinds(streams)
    modes = tuple(mode for mode in offered_io(root))
    transport: Transport = "shm" if config.ingest.ring_socket_path is not None else "message"
    steps = _Steps(tell, 3 + len(kinds) * (len(modes) + 3 + (ROUNDS + 1) * 2))
    steps.begin("loading kernels")
    warm_up()
    with scratch_folder(root) as folder, ExitStack() as opened:
        io = resolve_io(config.output.io, [folder])
        bench = _Bench(config, plan, folder, io, modes, transport, seconds / len(kinds), steps)
        steps.begin("copying memory")
        copy = stages.memory_copy(min(0.3, seconds / 20))
        steps.begin("starting a daemon")
        daemon = opened.enter_context(
            PrivateDaemon(config, bench.daemon_root(), io, {s.name: s.limits.ring_frames for s in streams})
        )
        found = {
            names[0]: bench.stream(stream, _sample(own_frames, stream.spec), daemon)
            for stream, names in kinds
        }
    rates = {name: found[names[0]] for _, names in kinds for name in names}
    return Measured(stages.cores(), copy, transport, rates, time.monotonic() - begin_s)


def _with_small_ring(stream: StreamPlan, threads: int) -> StreamPlan:
    """Returns the plan with the smallest ring that works: it is full, and the rate steady, sooner."""
    least = Limits.derive(stream.spec, threads=threads)
    return stream if stream.limits.ring_frames <= least.ring_frames else replace(stream, limits=least)


def _kinds(streams: list[StreamPlan]) -> list[tuple[StreamPlan, list[str]]]:
    """Returns (one stream, the names of all like it) for each kind: streams that are written alike are
    measured once."""
    kinds: list[tuple[StreamPlan, list[str]]] = []
    for stream in streams:
        same = (
            names
            for other, names in kinds
            if (other.spec, other.limits, other.reliability)
            == (stream.spec, stream.limits, stream.reliability)
        )
        if (names := next(same, None)) is not None:
            names.append(stream.name)
        else:
            kinds.append((stream, [stream.name]))
    return kinds


def _sample(own_frames: OwnFrames | None, spec: ArraySpec) -> Sample:
    if own_frames is not None and own_frames.fits(spec):
        return own_frames.sample(spec)
    return simulated_sample(spec)


@dataclass(frozen=True)
class _Bench:
    """The parts that the measurements of all streams share. ``seconds``: of one stream."""

    config: Config
    plan: Plan
    folder: Path
    io: IoMode
    modes: tuple[IoMode, ...]
    transport: Transport
    seconds: float
    steps: _Steps

    def daemon_root(self) -> Path:
        root = self.folder / "daemon"
        root.mkdir()
        return root

    def stream(self, stream: StreamPlan, sample: Sample, daemon: PrivateDaemon) -> StreamRates:
        room_bytes = self._room_bytes(stream)
        stage_s = self.seconds * _STAGE_PART / _STAGES
        self.steps.begin(f"{stream.name}: kernel")
        kernel = stages.kernel(stream.spec, sample.frames, stage_s)
        disk: dict[IoMode, StageRate] = {}
        for mode in self.modes:
            self.steps.begin(f"{stream.name}: disk, {mode}")
            disk[mode] = stages.disk(
                self.folder,
                mode,
                kernel.encoded_bytes,
                stream.limits.slot_bytes,
                self.plan.threads,
                stage_s,
                room_bytes,
            )
        self.steps.begin(f"{stream.name}: shared memory")
        transport: dict[Transport, StageRate] = {"shm": stages.shared_memory(sample.frames, stage_s)}
        self.steps.begin(f"{stream.name}: messages")
        transport["message"] = stages.messages(sample.frames, stage_s)
        acquisitions = self._acquisitions(stream, sample, daemon, room_bytes)
        others = self._other_codecs(stream, sample, stage_s, acquisitions)
        return StreamRates(sample.source, kernel, disk, self.io, transport, acquisitions, others)

    def _room_bytes(self, stream: StreamPlan) -> int:
        """Returns the bytes that one acquisition may write beside those that it reserves. Raises
        ``StorageError`` when that is less than a slab."""
        low_water = self.config.output.low_water
        needed = stream.disk_reserved_bytes + low_water + stream.limits.slab_bytes
        free = free_bytes(self.folder)
        if free < needed:
            raise StorageError(
                f"not enough room below {self.folder.parent} to measure stream {stream.name}",
                expected=f"{format_bytes(needed)} free, output.low_water included",
                got=format_bytes(free),
                hint="Free some space, or leave out --measure.",
            )
        return min(free - stream.disk_reserved_bytes - low_water, MOST_ROUND_BYTES)

    def _acquisitions(
        self, stream: StreamPlan, sample: Sample, daemon: PrivateDaemon, room_bytes: int
    ) -> dict[Transport, Acquisitions]:
        runs: dict[Transport, list[AcquisitionRun]] = {"in-process": [], self.transport: []}
        seconds = self.seconds * _ACQUISITION_PART / (len(runs) * (ROUNDS + 0.5))
        until_s = time.monotonic() + 1.5 * self.seconds * _ACQUISITION_PART
        with daemon.connect(self.transport) as connection:
            for number in range(ROUNDS + 1):
                if number > LEAST_ROUNDS and time.monotonic() > until_s:
                    break
                extent = extent_of(
                    stream, seconds if number else seconds / 2, room_bytes, self.config.output.low_water
                )
                for transport, done in runs.items():
                    self.steps.begin(
                        f"{stream.name}: acquisition {transport}, "
                        + (f"round {number} of {ROUNDS}" if number else "warming up")
                    )
                    name = f"{stream.name}-{number}"
                    if transport == "in-process":
                        opening: Callable[[], Target] = partial(
                            self._create, self.folder / f"{name}.ome.zarr", stream
                        )
                        pids: tuple[int, ...] = (os.getpid(),)
                    else:
                        opening, pids = (
                            partial(connection.acquire, name, stream=stream.name),
                            (os.getpid(), daemon.pid),
                        )
                    done.append(
                        run(
                            opening,
                            sample.frames,
                            stream,
                            extent,
                            self.folder,
                            pids,
                            deferred=self.io != "direct",
                        )
                    )
                    self._clear(name)
        return {transport: Acquisitions(transport, tuple(done[1:])) for transport, done in runs.items()}

    def _create(self, path: Path, stream: StreamPlan) -> Target:
        rules = stream.reliability
        return create(
            path,
            stream.spec,
            threads=self.plan.threads,
            settings=WriteSettings(
                io=self.io,
                durability=rules.durability,
                store_within_ms=rules.store_within_ms,
                sync_interval_ms=rules.sync_interval_ms,
            ),
        )

    def _clear(self, name: str) -> None:
        """Deletes the store of an acquisition, and syncs that, before the next one."""
        for store in (*self.folder.glob(f"{name}.*"), *(self.folder / "daemon").glob(f"{name}.*")):
            shutil.rmtree(store)
        sync_directory(self.folder)

    def _other_codecs(
        self, stream: StreamPlan, sample: Sample, seconds: float, acquisitions: dict[Transport, Acquisitions]
    ) -> dict[str, KernelRate]:
        """Measures other codecs, only for a camera that is too fast for its own."""
        needed = stream.data_rate_bytes_per_s
        if needed is None or acquisitions[self.transport].sustained_bytes_per_s > needed:
            return {}
        others: dict[str, Codec | None] = {
            codec_text(codec): codec for codec in OTHER_CODECS if codec != stream.spec.codec
        }
        return {
            text: stages.kernel(stream.spec.model_copy(update={"codec": codec}), sample.frames, seconds / 2)
            for text, codec in others.items()
        }


def codec_text(codec: Codec | None) -> str:
    """Returns the codec as ``shardwright camera --codec`` takes it."""
    if isinstance(codec, Blosc):
        return f"blosc:{codec.cname}:{codec.clevel}:{codec.shuffle}"
    if isinstance(codec, Zstd | Gzip):
        return f"{'zstd' if isinstance(codec, Zstd) else 'gzip'}:{codec.level}"
    return "none"


@dataclass(frozen=True)
class Sample:
    """``frames``: of the stream's shape and dtype, C-contiguous. ``source``: where they come from, for
    people."""

    frames: np.ndarray[Any, Any]
    source: str


def simulated_sample(spec: ArraySpec) -> Sample:
    camera = PhotonFrames(spec.frame_shape, spec.dtype)
    frames = np.empty((frames_wanted(spec), *spec.frame_shape), camera.dtype)
    for i, frame in enumerate(frames):
        camera.frame(i, out=frame)
    return Sample(frames, SIMULATED)


def frames_wanted(spec: ArraySpec) -> int:
    """A slab, and enough that caches cannot hold them; within the memory that a sample may take."""
    slab = Grid.of(spec).frames_per_slab
    return max(1, min(max(slab, SAMPLE_BYTES // spec.frame_bytes), MOST_SAMPLE_BYTES // spec.frame_bytes))


class OwnFrames:
    """The user's file: a .npy file or a store. Raises ``StorageError``, ``ShardFormatError`` or
    ``FrameShapeError`` for what holds no frames."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numpy: np.ndarray[Any, Any] | None = None
        self._stored: StoredArray | None = None
        if path.suffix == ".npy":
            self._numpy = _open_numpy(path)
            shape, self._dtype = self._numpy.shape, self._numpy.dtype
        elif path.is_dir():
            self._stored = open_store(path).arrays[0]
            shape, self._dtype = self._stored.shape, self._stored.dtype
        else:
            hint = "Save some frames with numpy.save, or name a store that shardwright has written."
            raise StorageError(
                f"no frames can be read from {path}", expected="a .npy file or a Zarr v3 store", hint=hint
            )
        if len(shape) < 2 or 0 in shape:
            raise FrameShapeError(
                f"{path} holds no frames",
                expected="rows and columns, with any number of axes before them",
                got=shape,
            )
        self._shape = shape

    def fits(self, spec: ArraySpec) -> bool:
        """The same dtype, and at least as many rows and columns: a corner of larger frames is taken."""
        rows, columns = spec.frame_shape
        return (
            bool(self._dtype == np.dtype(spec.dtype))
            and self._shape[-2] >= rows
            and self._shape[-1] >= columns
        )

    def misfit(self) -> FrameShapeError:
        rows, columns = self._shape[-2:]
        return FrameShapeError(
            f"the frames in {self.path} fit no stream of the configuration",
            expected="a stream's dtype, and at least its rows and columns",
            got=f"{rows} x {columns} {self._dtype.name}",
        )

    def sample(self, spec: ArraySpec) -> Sample:
        """The first frames, as many as are wanted and there. Raises ``ShardFormatError`` or ``StorageError``
        where they cannot be read."""
        rows, columns = spec.frame_shape
        count = min(frames_wanted(spec), math.prod(self._shape[:-2]))
        frames = (
            self._read(count) if self._numpy is None else self._numpy.reshape(-1, *self._shape[-2:])[:count]
        )
        frames = frames[:, :rows, :columns]
        return Sample(
            np.ascontiguousarray(frames, np.dtype(spec.dtype).newbyteorder("<")),
            f"{len(frames)} frames of {self.path.name}",
        )

    def _read(self, count: int) -> np.ndarray[Any, Any]:
        """A box that holds at least ``count`` frames, or all there are: whole along the last axes, so that
        each chunk is decoded once."""
        assert self._stored is not None
        extent: list[int] = []
        wanted = count
        for length in reversed(self._shape[:-2]):
            extent.insert(0, min(length, wanted))
            wanted = -(-wanted // extent[0])
        box = np.empty((*extent, *self._shape[-2:]), self._stored.dtype)
        RegionReader(self._stored, Throttle(idle=False)).read((0,) * box.ndim, box)
        return box.reshape(-1, *self._shape[-2:])[:count]


def _open_numpy(path: Path) -> np.ndarray[Any, Any]:
    try:
        found: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StorageError(
            f"cannot read {path}",
            expected="an array that numpy.save has written",
            got=str(error) or "nothing",
        ) from None
    return found
