"""What a frame and a shard cost does not depend on how many came before, nor what a batch costs on how many
frames are in it. Counted, not timed."""

from __future__ import annotations

import gc
import pathlib
import sys
import threading
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.acquire.test_core import Drive, of, prepared
from tests.harness import document_oracle

import shardwright
from shardwright.acquire import core
from shardwright.acquire.accounts import SequenceSet
from shardwright.acquire.acquisition import Acquisition, AcquisitionState
from shardwright.acquire.commands import Commit, Encode, Prepare, Seal, SlabEncoded
from shardwright.acquire.limits import Limits
from shardwright.acquire.workers import WorkerPool
from shardwright.array.acquisition_spec import AcquisitionSpec, Image
from shardwright.array.grid import Grid
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.disk import failpoints
from shardwright.model.write_settings import WriteSettings
from shardwright.wire.descriptor import DESCRIPTOR

SOURCE = str(Path(shardwright.__file__).parent)
# else the number of commits is a matter of time
NO_CLOCKS = WriteSettings(store_within_ms=3_600_000, sync_interval_ms=3_600_000)


class Lines:
    """Counts the lines of shardwright's Python that run in any thread that begins while it is installed, and
    in this one."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Lines:
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        threading.settrace(None)
        sys.settrace(None)

    def _enter(self, frame, event, argument):
        return self._step if frame.f_code.co_filename.startswith(SOURCE) else None

    def _step(self, frame, event, argument):
        self.count += 1
        return self._step


def interleaved(frames_per_slab: int, channels: int) -> ArraySpec:
    """Frames of neighbouring sequences lie in different slabs when there are several channels."""
    return ArraySpec(
        dtype="uint8",
        dimensions=[
            Dimension(name="t", chunk_size=frames_per_slab, shard_size_chunks=2),
            Dimension(name="c", count=channels, chunk_size=1, shard_size_chunks=channels),
            Dimension(name="y", count=4, chunk_size=4),
            Dimension(name="x", count=4, chunk_size=4),
        ],
    )


def lines_of_a_run(path: Path, frames_per_slab: int, channels: int, *, late: bool) -> int:
    """Eight slabs of each channel, two batches a slab, then all of them again if ``late``; sealed."""
    spec, total = interleaved(frames_per_slab, channels), 8 * frames_per_slab * channels
    pixels = np.random.default_rng(1).integers(1, 200, (total, 16), np.uint8)
    with Lines() as lines:
        pool = WorkerPool(1)
        pool.start()
        reported = threading.Event()
        limits = Limits.derive(spec, threads=1, ring_frames=2 * total)
        acquisition = Acquisition(path, spec, limits, pool, reported.set, NO_CLOCKS)
        batch_frames, sequence = frames_per_slab // 2, 0
        for first in [*range(0, total, batch_frames)] * (1 + late):
            descriptors = np.zeros(batch_frames, DESCRIPTOR)
            descriptors["sequence"] = np.arange(sequence, sequence + batch_frames)
            descriptors["position"] = np.arange(first, first + batch_frames)
            acquisition.submit(descriptors, pixels.ctypes.data + 16 * np.arange(first, first + batch_frames))
            sequence += batch_frames
            acquisition.poll()
        acquisition.finish()
        while acquisition.state is not AcquisitionState.SEALED:
            reported.wait()
            reported.clear()
            acquisition.poll()
        acquisition.close()
        pool.stop()
    receipt = acquisition.receipt()
    assert (receipt.frames_stored, receipt.frames_duplicate) == (total, total if late else 0)
    return lines.count


_MANY = 16384  # frames a slab


@pytest.mark.parametrize(
    ("channels", "late"),
    [(1, False), (3, False), (1, True)],
    ids=["in order", "interleaved", "every frame twice"],
)
def test_no_line_runs_for_each_frame(tmp_path, channels, late):
    lines_of_a_run(tmp_path / "first", 16, channels, late=late)  # what is done once in a process
    # So many that a line for every fourth of them is far more than the 10,000 by which two runs differ: how
    # often the threads meet is open.
    few, many = (
        lines_of_a_run(tmp_path / str(frames), frames, channels, late=late) for frames in (16, _MANY)
    )
    more_frames = 8 * channels * (_MANY - 16) * (1 + late)
    assert many - few < more_frames / 4, (
        f"{few} lines for {8 * 16 * channels} frames, {many} for {8 * _MANY * channels}"
    )


def lines_of_an_append(spec: ArraySpec, sealing: int) -> int:
    """While so many shard rows, each with frames that no sync makes durable, wait to be sealed."""
    drive = Drive(spec)
    for row in range(sealing):
        asked = drive.send(2 * row, 2 * row + 1)
        answers = [prepared(command) for command in of(Prepare, asked)]
        stored = [SlabEncoded(slab.row, 10, None) for slab in of(Encode, asked)]
        assert of(Seal, drive.tell(*answers, *stored)) == [Seal(row)]
    drive.core.tick(drive.now(2000))
    assert not of(Commit, drive.core.take_commands()), "their seals make them durable"
    with Lines() as lines:
        drive.send(2 * sealing)
    return lines.count


def test_no_line_of_an_append_runs_for_each_open_shard_row(spec_of):
    """A plate has one for each of many images."""
    spec = spec_of(chunk=1, shard=2)
    few, many = (lines_of_an_append(spec, sealing) for sealing in (4, 40))
    assert 100 < few == many


@pytest.mark.parametrize("images", [4, 400])
def test_the_images_of_one_array_derive_their_grid_once(images, monkeypatch):
    spec, made = interleaved(4, 2), []
    monkeypatch.setattr(Grid, "_open_at_once", lambda grid, step: made.append(step) or 1)
    names = [Image(name=str(image)) for image in range(images)]
    grids = AcquisitionSpec(array=spec, images=names).grids.grids
    assert [grid.open_slabs + grid.open_shard_rows for grid in grids] == [2] * images
    assert [grid.image for grid in grids] == list(range(images))
    assert len(made) == 2, "slabs, and shard rows"


class Calls:
    """Storage calls by the name of their point."""

    def __init__(self) -> None:
        self.by_point: Counter[str] = Counter()
        failpoints.watch_all(lambda point: self.by_point.update((point,)))

    def take(self) -> Counter[str]:
        taken, self.by_point = self.by_point, Counter()
        return taken


@pytest.fixture
def calls():
    yield Calls()
    failpoints.watch_all(None)


def held() -> tracemalloc.Snapshot:
    """What code of the package has allocated, itself or in a library that it calls; what other threads of
    this process do meanwhile does not count, nor Python's table of interned strings, which pathlib adds to
    and which has 8 MB when it grows late in a long process."""
    gc.collect()
    ours = tracemalloc.Filter(True, "*/src/shardwright/*", all_frames=True)
    interned = tracemalloc.Filter(False, pathlib.__file__)
    oracle = tracemalloc.Filter(False, document_oracle.__file__)  # which remembers each zarr.json
    return tracemalloc.take_snapshot().filter_traces([ours, interned, oracle])


def test_shards_leave_nothing_behind(tmp_path, drive_of, spec_of, calls, monkeypatch):
    """Two slabs of 8 frames a shard; the first shards are for whatever has a size of its own."""
    monkeypatch.setattr(core, "SHOW_INTERVAL_S", 0.0)  # the shape grows with each shard, whatever time it is
    pool = WorkerPool(1)  # a second one might get its memory only after the first shards
    pool.start()
    drive = drive_of(tmp_path / "a", spec_of(chunk=8, shard=2, y=(8, 8, 1), x=(8, 8, 1)), pool, NO_CLOCKS)

    def write(shards: int) -> tuple[Counter[str], tracemalloc.Snapshot]:
        """Storage calls by their points, and what is held afterwards."""
        calls.take()
        for shard in range(drive.submitted // 16, drive.submitted // 16 + shards):
            drive.submit(*range(16 * shard, 16 * shard + 16))
            drive.until(lambda shard=shard: drive.acquisition.receipt().shards == shard + 1)
        drive.still()
        assert drive.released == Counter(range(drive.submitted - 16 * shards, drive.submitted))
        drive.released.clear()
        drive.acquisition.take_events()
        return calls.take(), held()

    tracemalloc.start(12)
    try:
        write(30)
        early_calls, early = write(30)
        write(60)
        late_calls, late = write(30)
    finally:
        tracemalloc.stop()
    points = early_calls.keys() | late_calls.keys()
    assert {
        point: late_calls[point] - early_calls[point]
        for point in points
        if abs(late_calls[point] - early_calls[point]) > 2
    } == {}
    grown = late.compare_to(early, "lineno")
    assert sum(line.size_diff for line in grown) < 90 * 160, (
        f"not 10 bytes a frame, for the number of each shard row in the frame log: {grown[:5]}"
    )
    drive.released.update(range(drive.submitted))
    assert drive.finish().shards == 150
    pool.stop()


def test_a_hole_that_was_filled_leaves_a_set_of_sequences_as_small_as_before():
    mark = SequenceSet()
    mark.add(np.arange(1, 100_000))
    mark.add(np.array([0]))
    for first in range(100_000, 110_000, 500):
        mark.add(np.arange(first, first + 500))
    assert (mark.value, mark.stop) == (110_000, 110_000)
    assert mark._held.size <= 2048
