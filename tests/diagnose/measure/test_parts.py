"""The parts of a trial, each by itself: frames, the hidden folder, whose turn it is, the syncs from which a
rate counts, the daemon's configuration."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import shardwright as sw
from shardwright.config.load import load_config, parse_config
from shardwright.config.plan import make_plan
from shardwright.diagnose import sample
from shardwright.diagnose.sample import SIMULATED, OwnFrames, frames_wanted, samples_of, simulated_sample
from shardwright.diagnose.trial import (
    PREFIX,
    Camera,
    Pace,
    private_configuration,
    regular_grid,
    scratch_folder,
    steady,
)
from shardwright.model.errors import FrameShapeError, ShardFormatError, StorageError


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
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 48 * 80 * 2 * 9)
    assert frames_wanted(spec_of()) == 9
    assert frames_wanted(spec_of(depth=20)) == 20  # a slab at least
    monkeypatch.setattr(sample, "MOST_SAMPLE_BYTES", 48 * 80 * 2 * 5)
    assert frames_wanted(spec_of(depth=20)) == 5
    monkeypatch.setattr(sample, "MOST_SAMPLE_BYTES", 1)
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


def test_cameras_that_look_alike_share_their_frames(tmp_path):
    np.save(tmp_path / "f.npy", frames_of())
    own = OwnFrames(tmp_path / "f.npy")
    mine, other, same = samples_of(own, [spec_of(), spec_of(dtype="uint8"), spec_of(depth=2)])
    assert mine is same
    assert (mine.source, other.source) == ("6 frames of f.npy", SIMULATED)
    with pytest.raises(FrameShapeError, match="fit no stream"):
        samples_of(own, [spec_of(dtype="uint8")])


def test_a_rate_counts_from_sync_to_sync_once_the_cameras_are_warm():
    durable = [(0.1, 0), (1.2, 50), (2.2, 60), (3.2, 80), (3.9, 90)]
    assert steady(durable, 4.0) == (pytest.approx(3.9 - 1.2), 40), "what filled the ring is no part of it"
    assert steady(durable, 8.0) == (pytest.approx(0.7 + 1.0), 30)
    assert steady(durable, 15.0) is None, "one sync says nothing"
    assert steady([], 4.0) is None


class FakeCamera:
    def __init__(self, pace, frame_rate_hz, block_frames=1) -> None:
        self.stream, self.block_frames = SimpleNamespace(frame_rate_hz=frame_rate_hz), block_frames
        self.sent, self.pace = 0, pace
        pace.cameras.append(self)

    seconds_of, sent_s = Camera.seconds_of, Camera.sent_s

    @property
    def is_due(self) -> bool:
        return self.pace._is_due(self)

    def send(self) -> None:
        assert self.pace.may_send(self)
        self.pace.count(self, self.block_frames)


def test_cameras_send_in_proportion_to_their_frame_rates():
    """The one at a frame a second sends the 100 that the other one sends in 10 s, and never is further than
    a block ahead of it."""
    pace = Pace()
    slow, fast = FakeCamera(pace, 1.0), FakeCamera(pace, 10.0, block_frames=2)
    for _ in range(600):
        for camera in (slow, fast) if _ % 3 else (fast, slow):
            if camera.is_due:
                camera.send()
        assert abs(slow.sent_s - fast.sent_s) <= 2.2
    assert slow.sent > 100
    while fast.is_due:
        fast.send()
    waiting = threading.Thread(target=fast.send)
    waiting.start()
    while slow.is_due and waiting.is_alive():
        slow.send()
    waiting.join(60)
    assert not waiting.is_alive(), "its turn comes when the other has sent"


def test_a_camera_of_unknown_rate_lets_all_send_as_fast_as_they_can():
    pace = Pace()
    known, unknown = FakeCamera(pace, 1.0), FakeCamera(pace, None)
    for _ in range(50):
        known.send()
    assert unknown.is_due
    assert known.is_due


def test_when_it_is_over_nobody_sends_but_for_a_first_time():
    """Each camera has a rate, however short the trial."""
    pace = Pace()
    some, none = FakeCamera(pace, 1.0), FakeCamera(pace, 1.0)
    some.send()
    pace.end()
    assert not pace.may_send(some)
    assert pace.may_send(none)


def test_an_axis_without_a_count_ends_with_its_first_shard():
    counts = (("p", None, 1, 1), ("t", None, 2, 3), ("y", 32, 32, 1), ("x", 32, 32, 1))
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for name, count, chunk, shard in counts
    ]
    grid = regular_grid(sw.ArraySpec(dtype="uint8", dimensions=dimensions))
    assert [grid.index_of(position) for position in (0, 5, 6)] == [(0, 0), (0, 5), (1, 0)]


def test_the_private_daemon_acquires_the_largest_image_alone(tmp_path):
    loaded = load_config(Path(__file__).parents[3] / "configs" / "plate.yaml")
    plan = make_plan(loaded)
    told = private_configuration(loaded.config, plan, tmp_path, f"ipc://{tmp_path}/x.sock")
    found = parse_config(json.dumps(told)).config.streams
    assert [stream.acquisition.is_single for stream in found] == [True, True]
    arrays = [stream.acquisition.arrays[0] for stream in found]
    assert arrays == [planned.spec for planned in plan.streams]
    assert [d.name for d in arrays[0].dimensions] == ["z", "c", "y", "x"], "as the frames come"


@pytest.mark.parametrize(("live", "place"), [("none", "end"), ("append", "end"), ("index", "start")])
def test_the_private_daemon_is_read_while_it_writes_as_the_user_s(config, tmp_path, live, place):
    config.write_text(config.read_text().replace("output: {", f"output: {{live: {live}, "))
    loaded = load_config(config)
    assert loaded.config.output.live == live
    told = private_configuration(loaded.config, make_plan(loaded), tmp_path, f"ipc://{tmp_path}/x.sock")
    mine = parse_config(json.dumps(told)).config
    (array,) = mine.acquisition_of(mine.streams[0]).arrays
    assert array.actual_index_location == place


def test_the_private_daemon_has_the_user_s_limits_and_nobody_else_s_sockets(config, tmp_path):
    config.write_text(
        config.read_text().replace("insecure: true", "insecure: true\n  group: root")
        + "    overload: drop\n    durability: durable\nhttp: {enabled: true}\ncompaction: {enabled: true}\n"
    )
    loaded = load_config(config)
    mine = loaded.config
    told = private_configuration(mine, make_plan(loaded), tmp_path, f"ipc://{config.parent}/private.sock")
    found = parse_config(json.dumps(told)).config
    assert (found.output.root, found.output.io, found.output.low_water) == (
        tmp_path,
        mine.output.io,
        mine.output.low_water,
    )
    assert found.ingest.endpoints == (f"ipc://{config.parent}/private.sock",)
    assert (found.ingest.group, found.ingest.curve, found.control_socket_path) == (None, None, None)
    assert (found.http.enabled, found.compaction.enabled) == (False, False)
    assert (found.workers, found.memory) == (mine.workers, mine.memory)
    (stream,) = found.streams
    assert (stream.array, stream.ring_frames) == (mine.streams[0].array, 24)
    rules = found.reliability_of(stream)
    assert (rules.durability, rules.overload, rules.on_full, rules.store_within_ms) == (
        "durable",
        "block",
        "fail",
        200,
    )
