"""Memory and open files of acquisitions of many images: as planned, whatever their number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.harness.process_status import ProcessPeak, ProcessStatus, process_status

import shardwright as sw
from shardwright.acquire import limits as limits_module
from shardwright.acquire.limits import OWN_DESCRIPTORS, SPARE_DESCRIPTORS, Limits, default_threads
from shardwright.disk import side_by_side
from shardwright.read.verify_store import verify_store
from shardwright.store import store_metadata

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
CHECKOUT = Path(__file__).parents[2]
MORE_BYTES = 8 << 20  # of the allocator and of Python, as they come and go


def test_the_documents_that_are_open_at_once_are_planned():
    """Beside them ring, lock, staging, ballast, frame table, and a folder for each thread that makes one."""
    assert OWN_DESCRIPTORS >= store_metadata._MOST_OPEN + 12 + side_by_side.MOST_THREADS


def positions(count: int, times: int | None, *, chunk: int = 1, shard: int = 4, **more) -> sw.AcquisitionSpec:
    dimensions = [sw.Dimension(name="t", count=times, chunk_size=chunk, shard_size_chunks=shard)]
    dimensions += [sw.Dimension(name=name, count=32, chunk_size=32) for name in "yx"]
    array = sw.ArraySpec(dtype="uint16", dimensions=tuple(dimensions))
    return sw.AcquisitionSpec(array=array, images=[f"p{i}" for i in range(count)], **more)


def pixels(number: int) -> np.ndarray:
    return np.full((32, 32), number % 65521 + 1, np.uint16)


def warmed_up(folder: Path) -> None:
    """What the first acquisition of a process compiles, loads and keeps."""
    with sw.create(folder / "first.ome.zarr", positions(3, 8)) as writer:
        for t in range(8):
            for image in writer.images.names:
                writer.append(pixels(t), image=image, index=(t,))
    sw.release_memory()


def check(path: Path, spec: sw.AcquisitionSpec, images: list[int], times: int) -> None:
    assert verify_store(path).ok
    for number in images:
        found = zarr.open_array(path / spec.paths[number], mode="r")[...]
        assert np.array_equal(found[:, 0, 0], [pixels(number * times + t)[0, 0] for t in range(times)])
    assert {name.name for name in path.iterdir() if name.name.isdecimal()} == set(map(str, images))


def written(path: Path, spec: sw.AcquisitionSpec, images: list[int], times: int) -> sw.Receipt:
    """Frames that go through all images at each time, held to the plan."""
    before = process_status(os.getpid())
    planned = Limits.derive(spec, threads=default_threads())
    with ProcessPeak(os.getpid()) as peak, sw.create(path, spec) as writer:
        for t in range(times):
            for number in images:
                writer.append(pixels(number * times + t), image=spec.names[number], index=(t,))
        writer.flush()
    assert peak.own_bytes - before.own_bytes <= planned.acquisition_bytes + MORE_BYTES
    assert peak.descriptors - before.descriptors <= planned.descriptors
    assert writer.receipt.trouble == {}
    assert writer.receipt.frames_stored == len(images) * times
    return writer.receipt


def test_hundreds_of_images_open_at_once_take_what_is_planned(tmp_path):
    warmed_up(tmp_path)
    spec = positions(400, 2, shard=2)
    receipt = written(tmp_path / "a.ome.zarr", spec, list(range(400)), 2)
    assert receipt.shards == 400
    check(tmp_path / "a.ome.zarr", spec, list(range(400)), 2)


def test_ten_thousand_images_declared_cost_little(tmp_path):
    """Of which a few are visited, in any order."""
    warmed_up(tmp_path)
    spec, visited = positions(10_000, 4, shard=1), [7, 9_999, 0]
    planned = Limits.derive(spec, threads=default_threads())
    assert planned.descriptors < 1000
    assert planned.acquisition_bytes < 64 << 20
    written(tmp_path / "a.ome.zarr", spec, visited, 4)
    check(tmp_path / "a.ome.zarr", spec, sorted(visited), 4)


def test_a_chunk_of_one_frame_holds_none_of_other_images():
    """Only chunks that wait for another frame count, and only shards that do."""
    alone, many = (Limits.derive(positions(count, 8, shard=1), threads=1) for count in (1, 400))
    assert many.held_frames == alone.held_frames
    assert many.open_shard_rows < 100
    assert Limits.derive(positions(400, 8, chunk=4), threads=1).held_frames == 1600
    assert Limits.derive(positions(400, 8, shard=4), threads=1).open_shard_rows > 400


@pytest.mark.parametrize("chunk", [1, 3])
def test_with_few_descriptors_shards_are_sealed_and_opened_again(tmp_path, monkeypatch, chunk):
    """No frame is late for an image whose shard had to make room for those of others."""
    warmed_up(tmp_path)
    monkeypatch.setattr(limits_module, "most_descriptors", lambda: SPARE_DESCRIPTORS + OWN_DESCRIPTORS + 30)
    spec = positions(13, 6, chunk=chunk, shard=6 // chunk)
    assert Limits.derive(spec, threads=2).open_shard_rows == 9
    written(tmp_path / "a.ome.zarr", spec, list(range(13)), 6)
    check(tmp_path / "a.ome.zarr", spec, list(range(13)), 6)


SHORT = """
import json, os, sys, threading
import numpy as np
import shardwright as sw
from tests.harness.process_status import process_status

def acquire(count):
    for _ in range(count):
        layout = {"chunks": {"t": 1024}, "shards": {"t": 1 << 15}, "axes": "tyx", "dtype": "uint16"}
        with sw.create(sys.argv[1], shape=(None, 8, 8), **layout, overwrite=True) as writer:
            writer.append(np.ones((8, 8), np.uint16))
    return process_status(os.getpid())._replace(threads=threading.active_count())

print(json.dumps([acquire(60), acquire(100)]))
"""


def test_short_acquisitions_one_after_the_other_leave_nothing_behind(tmp_path):
    """No memory, thread or open file, of a process that does nothing else. A shard row has room for many more
    frames than come."""
    command = [sys.executable, "-c", SHORT, str(tmp_path / "a.ome.zarr")]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    before, after = (ProcessStatus(*status) for status in json.loads(done.stdout))
    assert after.own_bytes - before.own_bytes < MORE_BYTES // 2
    assert (after.threads, after.descriptors) == (before.threads, before.descriptors)


def test_the_end_of_a_shard_row_takes_no_memory_for_frames_that_did_not_come(tmp_path):
    layout = {"chunks": {"t": 1024}, "shards": {"t": 1 << 16}, "axes": "tyx", "dtype": "uint16"}
    with sw.create(tmp_path / "a.ome.zarr", shape=(None, 8, 8), **layout) as writer:
        writer.append(np.ones((8, 8), np.uint16))
        writer.flush()
        tracemalloc.start()
        writer.close()
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most_bytes < MORE_BYTES // 4, "a table of the records of all frames has 8 MB"
