"""All of it, for real and small: every stage and both kinds of acquisition, and a root that is as it was."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from shardwright.config.load import load_config
from shardwright.config.plan import make_plan
from shardwright.diagnose import measure as measuring
from shardwright.diagnose.measure import OwnFrames, codec_text, measure
from shardwright.diagnose.trial_runs import PrivateDaemon
from shardwright.model.errors import FrameShapeError, StorageError

FRAMES_PER_SHARD = 4 * 64  # of every stream


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
    """A second camera like the first, and a third that is written otherwise."""
    text = config.read_text()
    stream = text[text.index("  - name: cam0") :]
    others = stream.replace("cam0", "cam1") + stream.replace("cam0", "cam2").replace(
        "dtype: uint16", "dtype: uint8"
    )
    config.write_text(text.replace("budget: 2GiB", "budget: 3GiB") + others)
    return load_config(config)


def test_every_stream_is_measured_and_nothing_is_left(loaded):
    root, before = loaded.config.output.root, children()
    told = []
    plan = make_plan(loaded)
    found = measure(loaded, plan, None, 1.0, lambda *step: told.append(step))
    index_bytes = {
        stream.name: stream.limits.index_bytes * stream.limits.shard_files_per_shard_row
        for stream in plan.streams
    }
    assert list(root.iterdir()) == []
    assert children() == before
    assert set(found.streams) == {"cam0", "cam1", "cam2"}
    assert found.streams["cam0"] is found.streams["cam1"], "what is written alike is measured once"
    assert found.streams["cam0"] is not found.streams["cam2"]
    for name, rates in found.streams.items():
        assert set(rates.acquisitions) == {"in-process", "shm"}
        assert rates.io in rates.disk
        for runs in rates.acquisitions.values():
            assert len(runs.runs) >= measuring.LEAST_ROUNDS
            assert runs.sustained_bytes_per_s > 0
            assert all(one.frames % 4 == 0 for one in runs.runs), "whole slabs"
            for one in runs.runs:  # on a busy machine of few frames, beside which the index counts
                chunk_bytes = one.stored_bytes - index_bytes[name] * -(-one.frames // FRAMES_PER_SHARD)
                assert one.raw_bytes / chunk_bytes == pytest.approx(rates.kernel.ratio, rel=0.2), (
                    "the same frames by the same codec"
                )
    total = told[0][2]
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert len(told) <= total


def test_own_frames_are_what_is_measured(loaded, tmp_path):
    np.save(tmp_path / "flat.npy", np.full((8, 48, 80), 7, np.uint16))
    found = measure(loaded, make_plan(loaded), OwnFrames(tmp_path / "flat.npy"), 0.3)
    assert found.streams["cam0"].sample == "8 frames of flat.npy"
    assert found.streams["cam0"].kernel.ratio > 10, "nothing compresses better"
    assert found.streams["cam2"].sample != "8 frames of flat.npy", "of another dtype"


def test_own_frames_that_fit_no_stream_are_refused(loaded, tmp_path):
    np.save(tmp_path / "f.npy", np.zeros((8, 48, 80), np.float32))
    with pytest.raises(FrameShapeError, match="fit no stream"):
        measure(loaded, make_plan(loaded), OwnFrames(tmp_path / "f.npy"), 0.3)


@pytest.mark.parametrize("step", ["starting a daemon", "cam0: kernel", "cam0: acquisition shm, warming up"])
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
    monkeypatch.setattr(measuring, "free_bytes", lambda folder: loaded.config.output.low_water + 1)
    with pytest.raises(StorageError, match=r"not enough room below .* to measure stream cam0"):
        measure(loaded, make_plan(loaded), None, 0.3)
    assert list(loaded.config.output.root.iterdir()) == []


def test_a_daemon_that_cannot_start_says_why(loaded, tmp_path):
    with pytest.raises(StorageError, match=r"did not start.*does not exist"):
        PrivateDaemon(loaded.config, tmp_path / "no", "pwrite", {f"cam{i}": 5000 for i in range(3)})


def test_a_faster_codec_is_tried_for_a_camera_that_is_too_fast(loaded):
    plan = make_plan(loaded, frame_rate_hz=1e9)
    found = measure(loaded, plan, None, 0.3)
    own = codec_text(plan.streams[0].spec.codec)
    assert set(found.streams["cam0"].other_codecs) == {
        "blosc:lz4:1:shuffle",
        "blosc:zstd:1:shuffle",
        "none",
    } - {own}
    assert found.streams["cam0"].other_codecs["none"].ratio == pytest.approx(48 * 80 / (64 * 96)), (
        "whole chunks are stored, also at the edges"
    )
