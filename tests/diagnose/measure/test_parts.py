"""The parts of a measurement, each by itself: samples, the scratch folder, stages, the moment from which a
rate counts."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace

import numpy as np
import pytest

import shardwright as sw
from shardwright.acquire.workers import WorkerState
from shardwright.codecs.chain import written_codecs
from shardwright.codecs.decode import decode_chunk_into
from shardwright.config.load import load_config, parse_config
from shardwright.config.plan import make_plan
from shardwright.diagnose import measure, stages
from shardwright.diagnose.measure import OwnFrames, frames_wanted, simulated_sample
from shardwright.diagnose.trial_runs import (
    PREFIX,
    Extent,
    Mark,
    cpu_seconds,
    extent_of,
    private_configuration,
    run,
    scratch_folder,
    steady,
)
from shardwright.ingest.transport.ipc_throughput import ipc_rate
from shardwright.model.errors import FrameShapeError, ShardFormatError, StorageError
from shardwright.storage.choose_io import MeasuredFile


def spec_of(rows=48, columns=80, dtype="uint16", depth=4, **more) -> sw.ArraySpec:
    counts = (("t", None, depth), ("y", rows, 32), ("x", columns, 32))
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=2)
        for name, count, chunk in counts
    ]
    return sw.ArraySpec(dtype=dtype, dimensions=dimensions, **more)


def frames_of(count=6, rows=48, columns=80, dtype=np.uint16) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 200, (count, rows, columns)).astype(dtype)


def test_frames_of_a_numpy_file(tmp_path):
    frames = frames_of()
    np.save(tmp_path / "f.npy", frames.reshape(2, 3, 48, 80))
    own = OwnFrames(tmp_path / "f.npy")
    assert own.fits(spec_of())
    taken = own.sample(spec_of())
    assert np.array_equal(taken.frames, frames)
    assert taken.source == "6 frames of f.npy"


def test_a_corner_of_larger_frames(tmp_path):
    frames = frames_of(rows=64, columns=100)
    np.save(tmp_path / "f.npy", frames)
    taken = OwnFrames(tmp_path / "f.npy").sample(spec_of()).frames
    assert np.array_equal(taken, frames[:, :48, :80])
    assert taken.flags.c_contiguous


def test_frames_of_a_store_that_we_wrote(tmp_path):
    frames = frames_of(10)
    with sw.create(tmp_path / "s.ome.zarr", spec_of()) as writer:
        for frame in frames:
            writer.append(frame)
    taken = OwnFrames(tmp_path / "s.ome.zarr").sample(spec_of())
    assert np.array_equal(taken.frames, frames)
    assert taken.source == "10 frames of s.ome.zarr"


def test_frames_of_a_store_with_more_axes(tmp_path):
    axes = (("t", None, 1), ("z", 3, 1), ("y", 48, 32), ("x", 80, 32))
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[sw.Dimension(name=name, count=count, chunk_size=chunk) for name, count, chunk in axes],
    )
    frames = frames_of(6)
    with sw.create(tmp_path / "s.ome.zarr", spec) as writer:
        for frame in frames:
            writer.append(frame)
    assert np.array_equal(OwnFrames(tmp_path / "s.ome.zarr").sample(spec_of()).frames, frames)


@pytest.mark.parametrize("other", [spec_of(dtype="uint8"), spec_of(rows=49), spec_of(columns=81)])
def test_frames_that_do_not_fit(tmp_path, other):
    np.save(tmp_path / "f.npy", frames_of())
    own = OwnFrames(tmp_path / "f.npy")
    assert not own.fits(other)
    assert "48 x 80 uint16" in str(own.misfit())


def test_what_holds_no_frames_is_refused(tmp_path):
    np.save(tmp_path / "line.npy", np.zeros(5, np.uint16))
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "frames.tif").write_bytes(b"II*\0")
    for name, error in (
        ("line.npy", FrameShapeError),
        ("pickled.npy", StorageError),
        ("text.npy", StorageError),
        ("frames.tif", StorageError),
    ):
        with pytest.raises(error, match=name):
            OwnFrames(tmp_path / name)
    with pytest.raises(StorageError, match=r"none\.npy"):
        OwnFrames(tmp_path / "none.npy")
    with pytest.raises(ShardFormatError):
        OwnFrames(tmp_path)


def test_a_sample_fits_its_memory(monkeypatch):
    assert simulated_sample(spec_of()).frames.shape[1:] == (48, 80)
    monkeypatch.setattr(measure, "SAMPLE_BYTES", 48 * 80 * 2 * 9)
    assert frames_wanted(spec_of()) == 9
    assert frames_wanted(spec_of(depth=20)) == 20  # a slab at least
    monkeypatch.setattr(measure, "MOST_SAMPLE_BYTES", 48 * 80 * 2 * 5)
    assert frames_wanted(spec_of(depth=20)) == 5
    monkeypatch.setattr(measure, "MOST_SAMPLE_BYTES", 1)
    assert frames_wanted(spec_of()) == 1


def test_the_scratch_folder_goes_whatever_happens(tmp_path):
    def interrupted() -> None:
        with scratch_folder(tmp_path) as folder:
            (folder / "deep").mkdir()
            (folder / "deep" / "file").write_bytes(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_what_is_in_use_is_not(tmp_path):
    (tmp_path / f"{PREFIX}dead").mkdir()
    (tmp_path / f"{PREFIX}dead" / "big").write_bytes(b"x")
    (tmp_path / "mine").mkdir()
    with scratch_folder(tmp_path) as one, scratch_folder(tmp_path) as other:
        assert {path.name for path in tmp_path.iterdir()} == {"mine", one.name, other.name}
        descriptor = os.open(one, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)


@pytest.mark.parametrize(
    "codec", [sw.Blosc(cname="lz4", clevel=1, shuffle="shuffle"), sw.Zstd(level=1), None]
)
def test_the_kernel_is_the_one_that_writes(codec):
    """Its chunks decode to the frames, edges included, and the ratio is that of their lengths."""
    spec, frames = spec_of(codec=codec), frames_of(4)
    work, state = stages.SlabKernel(spec, frames), WorkerState()
    slots = [address for first, stop in work.ranges for address in work.encode(0, first, stop, state)]
    assert len(slots) == work.chunks == 6
    codecs = written_codecs(spec)
    out = np.zeros(4 * 32 * 32 * 2, np.uint8)
    encoded = np.ctypeslib.as_array((ctypes.c_uint8 * int(work.encoded_bytes[0])).from_address(int(slots[0])))
    decode_chunk_into(encoded, codecs, out)
    assert np.array_equal(out.view(np.uint16).reshape(4, 32, 32), frames[:, :32, :32])
    state.contexts.close()
    found = stages.kernel(spec, frames, 1e-9)
    assert len(found.encoded_bytes) == 6
    assert found.ratio == pytest.approx(frames.nbytes / sum(found.encoded_bytes))
    assert found.rate.bytes_per_s > 0


def test_the_kernel_makes_the_levels_too():
    spec = spec_of().model_copy(update={"levels": sw.Levels(count=1)})
    found = stages.kernel(spec, frames_of(4), 1e-9)
    assert len(found.encoded_bytes) == len(stages.SlabKernel(spec, frames_of(4)).layout.plane.file) > 6
    assert all(found.encoded_bytes)


def test_a_sample_of_fewer_frames_than_a_slab_is_used_in_turns():
    assert stages.kernel(spec_of(depth=16), frames_of(3), 1e-9).ratio > 1


def test_disk_writes_every_slab_in_place_and_leaves_nothing(tmp_path, monkeypatch):
    written = []
    put = MeasuredFile.put

    def seen(self, offset, data):
        written.append((offset, len(data)))
        put(self, offset, data)

    monkeypatch.setattr(MeasuredFile, "put", seen)
    monkeypatch.setattr(stages, "PIECE_BYTES", 6000)
    monkeypatch.setattr(stages, "LEAST_FILE_BYTES", 6 * 8192)
    rate = stages.disk(tmp_path, "pwrite", [5000, 900, 0, 8000], 8192, 2, 1e-9, room_bytes=4 * 8192)
    # the first two together, the empty one not at all; there is room for one slab
    assert sorted(written) == [(0, 8192), (3 * 8192, 8192)]
    assert rate.bytes_per_s > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(
        MeasuredFile, "sync", lambda self: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(StorageError, match=r"cannot measure pwrite writes.*No space left"):
        stages.disk(tmp_path, "pwrite", [5000], 8192, 1, 1e-9, 8192)


def test_memory_and_transport_move_bytes():
    frames = frames_of(3)
    assert stages.memory_copy(1e-9).bytes_per_s > 0
    assert stages.shared_memory(frames, 1e-9).bytes_per_s > 0
    assert stages.messages(frames, 0.01).bytes_per_s > 0
    _, received = ipc_rate([memoryview(bytes(1000)), memoryview(bytes(500))], 0.01)
    assert received > 0
    assert received % 1500 in (0, 1000), "whole messages, in turns"
    assert ipc_rate([memoryview(bytes(1000))], 0)[1] == 1000, "on a busy machine no time may be left for one"


def test_a_rate_counts_while_the_ring_is_full():
    begin, end = Mark(0.0, 0, 0.0), Mark(12.0, 100, 8.0)
    full = [Mark(float(when), 10 * when, 0.0) for when in range(1, 11)]
    assert steady(begin, full, end, 10, deferred=False) == (full[3], full[9], 60), (
        "opening and sealing are not a part of it"
    )
    assert steady(begin, full, end, 10, deferred=True) == (full[3], end, 70), (
        "what waits in the page cache is; at the mark a ring of 10 was not stored"
    )
    for few in ([], full[:1]):
        assert steady(begin, few, end, 10, deferred=False) == (begin, end, 100), "it fits its ring"
    assert steady(begin, full[:2], end, 10, deferred=False) == (full[0], full[1], 10)


class FakeTarget:
    """Takes a second for each slab."""

    def __init__(self, clock, lose=0) -> None:
        self.clock, self.sent, self.closed, self.lose = clock, 0, 0, lose

    @property
    def receipt(self):
        return SimpleNamespace(
            frames_stored=self.sent - self.lose, bytes_raw=self.sent * 7680, bytes_stored=self.sent * 3840
        )

    def append(self, frame, *, index=None) -> None:
        self.sent += 1
        self.clock[0] += 0.25

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("shardwright.diagnose.trial_runs.time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr("shardwright.diagnose.trial_runs.cpu_seconds", lambda pids: now[0] * 1.5)
    return now


def stream_of(config):
    return make_plan(load_config(config)).streams[0]


@pytest.mark.parametrize(
    ("extent", "frames"),
    [
        # 3 s are over after 12 frames, but eight slabs more than the ring come first
        (Extent(3.0, 1000, 0), 40),
        (Extent(11.0, 1000, 0), 48),
        (Extent(1.0, 1000, 0), 20),  # four times as long as wanted: patience ends
        (Extent(99.0, 12, 0), 12),
        (Extent(99.0, 1000, 1 << 62), 4),  # the disk is low
    ],
)
def test_a_run_ends_when_it_should(config, clock, tmp_path, extent, frames):
    stream = stream_of(config)
    stream = replace(stream, limits=replace(stream.limits, ring_frames=8))
    target = FakeTarget(clock)
    found = run(lambda: target, frames_of(2), stream, extent, tmp_path, (), deferred=False)
    assert (target.sent, found.frames, target.closed) == (frames, frames, 1)
    assert found.seconds == frames / 4
    if frames > 4:  # else what was stored is all there is, and the rate that of the whole
        assert found.sustained_bytes_per_s == pytest.approx(4 * stream.limits.frame_bytes)
        assert found.cpu_s_per_gb == pytest.approx(1.5 / (4 * stream.limits.frame_bytes) * 1e9)


def test_processor_time_is_counted_finer_than_ticks():
    """A short trial on a busy machine takes less than a tick of 10 ms, and still has a floor of it."""
    before_s = time.process_time()
    own_s = cpu_seconds((os.getpid(),))
    assert before_s < own_s < time.process_time()
    with subprocess.Popen([sys.executable, "-c", "input(1)"], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.read(1)  # it runs
        assert cpu_seconds((child.pid, os.getpid())) > own_s + cpu_seconds((child.pid,)) > own_s
        child.stdin.write(b"\n")


def test_frames_that_were_lost_make_no_measurement(config, clock, tmp_path):
    with pytest.raises(StorageError, match="frames were not stored"):
        run(
            lambda: FakeTarget(clock, lose=1),
            frames_of(2),
            stream_of(config),
            Extent(1.0, 8, 0),
            tmp_path,
            (),
            deferred=False,
        )


def test_an_acquisition_that_breaks_is_closed(config, clock, tmp_path):
    target = FakeTarget(clock)
    target.append = lambda frame, **_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(lambda: target, frames_of(2), stream_of(config), Extent(1.0, 8, 0), tmp_path, (), deferred=False)
    assert target.closed == 1


def test_an_extent_has_a_slab_at_least_and_no_more_than_the_array(config):
    stream = stream_of(config)
    assert extent_of(stream, 1.0, 0, 0).most_frames == 4
    assert extent_of(stream, 1.0, 100 * stream.limits.frame_bytes, 0).most_frames == 100
    short = replace(
        stream,
        spec=spec_of().model_copy(
            update={
                "dimensions": (
                    spec_of().dimensions[0].model_copy(update={"count": 6}),
                    *spec_of().dimensions[1:],
                )
            }
        ),
    )
    assert extent_of(short, 1.0, 1 << 40, 0).most_frames == 6


def test_the_private_daemon_acquires_the_largest_image_alone(tmp_path):
    loaded = load_config(Path(__file__).parents[3] / "configs" / "plate.yaml")
    told = private_configuration(
        loaded.config, tmp_path, f"ipc://{tmp_path}/x.sock", "pwrite", {"plate": 8, "two-cameras": 64}
    )
    found = parse_config(json.dumps(told)).config.streams
    assert [stream.acquisition.is_single for stream in found] == [True, True]
    arrays = [stream.acquisition.arrays[0] for stream in found]
    assert arrays == [planned.spec for planned in make_plan(loaded).streams]
    assert [d.name for d in arrays[0].dimensions] == ["z", "c", "y", "x"], "as the frames come"


def test_the_private_daemon_has_the_user_s_limits_and_nobody_else_s_sockets(config, tmp_path):
    config.write_text(
        config.read_text().replace("insecure: true", "insecure: true\n  group: root")
        + "    overload: drop\n    durability: durable\nhttp: {enabled: true}\ncompaction: {enabled: true}\n"
    )
    mine = load_config(config).config
    told = private_configuration(
        mine, tmp_path, f"ipc://{config.parent}/private.sock", "pwrite", {"cam0": 77}
    )
    found = parse_config(json.dumps(told)).config
    assert (found.output.root, found.output.io, found.output.low_water) == (
        tmp_path,
        "pwrite",
        mine.output.low_water,
    )
    assert found.ingest.endpoints == (f"ipc://{config.parent}/private.sock",)
    assert (found.ingest.group, found.ingest.curve, found.control_socket_path) == (None, None, None)
    assert (found.http.enabled, found.compaction.enabled) == (False, False)
    assert (found.workers, found.memory) == (mine.workers, mine.memory)
    (stream,) = found.streams
    assert (stream.array, stream.ring_frames) == (mine.streams[0].array, 77)
    rules = found.reliability_of(stream)
    assert (rules.durability, rules.overload, rules.on_full, rules.store_within_ms) == (
        "durable",
        "block",
        "fail",
        200,
    )
