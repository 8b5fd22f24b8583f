"""All of it, for real and small: every camera, and a root that is as it was."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shardwright.config.load import load_config
from shardwright.config.plan import make_plan
from shardwright.diagnose import trial
from shardwright.diagnose.sample import SIMULATED, OwnFrames
from shardwright.diagnose.trial import PrivateDaemon, measure
from shardwright.model.errors import FrameShapeError, OutputExistsError, StorageError

A_DAY_S = 86_400


def children() -> set[str]:
    """Processes that this one has started and that still run."""
    return {
        path.name
        for path in Path("/proc").iterdir()
        if path.name.isdecimal() and _parent(path) == os.getpid()
    }


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture
def loaded(config):
    """A second camera like the first, and a third of other pixels, whose array is soon full."""
    text = config.read_text()
    stream = text[text.index("  - name: cam0") :]
    short = (
        stream.replace("cam0", "cam2").replace("uint16", "uint8").replace("{name: t,", "{name: t, count: 8,")
    )
    others = stream.replace("cam0", "cam1") + short
    config.write_text(text.replace("budget: 2GiB", "budget: 3GiB") + others)
    return load_config(config)


def test_every_stream_is_tried_and_nothing_is_left(loaded, monkeypatch):
    """It ends when the disk is low, as it is here once the camera of the short array has begun its second
    acquisition."""
    root, before = loaded.config.output.root, children()
    monkeypatch.setattr(
        trial, "free_bytes", lambda folder: 0 if (folder / "cam2-1.ome.zarr").exists() else 1 << 60
    )
    told = []
    found = measure(loaded, make_plan(loaded), None, A_DAY_S, lambda *step: told.append(step))
    assert list(root.iterdir()) == []
    assert children() == before
    assert (set(found.streams), found.transport) == ({"cam0", "cam1", "cam2"}, "shm")
    for rate in found.streams.values():
        assert rate.frames > 0
        assert rate.sample == SIMULATED
        assert rate.ratio > 0
    assert [what for what, _, _ in told[:3]] == [
        "loading kernels",
        "starting a daemon",
        "all cameras at once",
    ]
    assert told[-1] == ("sealing", A_DAY_S, A_DAY_S)


def test_own_frames_are_what_is_measured(loaded, tmp_path):
    np.save(tmp_path / "flat.npy", np.full((8, 48, 80), 7, np.uint16))
    found = measure(loaded, make_plan(loaded), OwnFrames(tmp_path / "flat.npy"), 0.3)
    assert found.streams["cam0"].sample == "8 frames of flat.npy"
    assert found.streams["cam0"].ratio > 5, "nothing compresses better"
    assert found.streams["cam2"].sample != "8 frames of flat.npy", "of another dtype"


def test_a_colour_camera_is_tried_with_frames_of_colours(config):
    text = config.read_text().replace("ring_frames: 24", "ring_frames: 48")
    text = text.replace("dtype: uint16", "dtype: uint16\n      interleaved: true")
    config.write_text(
        text.replace(
            "{name: y,", "{name: c, count: 3, chunk_size: 1, shard_size_chunks: 1}\n        - {name: y,"
        )
    )
    loaded = load_config(config)
    plan = make_plan(loaded)
    (rate,) = measure(loaded, plan, None, 0.3).streams.values()
    assert (rate.sample, rate.frames > 0) == (SIMULATED, True)
    assert rate.bytes_per_s == rate.frames * 3 * plan.streams[0].limits.frame_bytes / rate.seconds


def test_own_frames_that_fit_no_stream_are_refused(loaded, tmp_path):
    np.save(tmp_path / "f.npy", np.zeros((8, 48, 80), np.float32))
    with pytest.raises(FrameShapeError, match="fit no stream"):
        measure(loaded, make_plan(loaded), OwnFrames(tmp_path / "f.npy"), 0.3)


@pytest.mark.parametrize("step", ["starting a daemon", "all cameras at once", "sealing"])
def test_an_interrupt_leaves_nothing(loaded, step):
    root, before = loaded.config.output.root, children()

    def interrupt(what: str, done: int, total: int) -> None:
        if what == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(loaded, make_plan(loaded), None, 0.3, interrupt)
    assert list(root.iterdir()) == []
    assert children() == before


def test_without_room_nothing_is_begun(loaded, monkeypatch):
    monkeypatch.setattr(trial, "free_bytes", lambda folder: loaded.config.output.low_water + 1)
    with pytest.raises(StorageError, match=r"not enough room below .* to measure"):
        measure(loaded, make_plan(loaded), None, 0.3)
    assert list(loaded.config.output.root.iterdir()) == []


def test_it_ends_early_where_it_has_written_enough(loaded, monkeypatch):
    monkeypatch.setattr(trial, "MOST_BYTES", 1 << 20)
    found = measure(loaded, make_plan(loaded), None, A_DAY_S)
    assert all(rate.frames > 0 for rate in found.streams.values())


class Sender:
    """A camera of frames of a byte, as ``_run`` sees it. ``sent``: from its first moment."""

    def __init__(self, pace: trial.Pace, sent: int) -> None:
        self.stream = SimpleNamespace(frame_bytes=1, name=f"sends {sent}")
        self.sent, self.pace, self.looked = sent, pace, []

    def run(self) -> None:
        with self.pace._changed:
            self.pace._changed.wait_for(lambda: self.pace.is_over)

    def look(self, now_s: float) -> None:
        self.looked.append(now_s)

    def rate(self, over_s: float, closed_s: float) -> tuple[float, float]:
        return over_s, closed_s


def test_no_time_is_noted_before_every_camera_has_a_frame(monkeypatch):
    """Looks before were nanoseconds apart, and a rate by them was a division by zero."""
    pace = trial.Pace()
    pace.cameras = first, last = [Sender(pace, 1), Sender(pace, 0)]
    looks = iter(range(9))
    monkeypatch.setattr(trial, "LOOK_S", 0)
    found = trial._run(pace, A_DAY_S, lambda: next(looks) == 3, lambda *step: None)
    assert first.looked == last.looked == []
    ((over_s, closed_s), other) = found.values()
    assert over_s == 0 < closed_s
    assert other == (over_s, closed_s)


def test_an_acquisition_that_breaks_ends_all_of_them_and_says_why(loaded):
    root = loaded.config.output.root

    def spoil(what: str, done: int, total: int) -> None:
        if what == "starting a daemon":
            (folder,) = root.glob(f"{trial.PREFIX}*")
            (folder / "cam1-0.ome.zarr").mkdir()

    with pytest.raises(OutputExistsError, match="cam1-0"):
        measure(loaded, make_plan(loaded), None, A_DAY_S, spoil)
    assert list(root.iterdir()) == []


def test_a_daemon_that_cannot_start_says_why(loaded, tmp_path):
    with pytest.raises(StorageError, match=r"did not start.*does not exist"):
        PrivateDaemon(loaded.config, make_plan(loaded), tmp_path / "no")
