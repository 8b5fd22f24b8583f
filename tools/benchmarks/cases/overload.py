"""The part ``overload``: a camera that is faster than the codec, under each policy that keeps its frames.

    sustainable    frames a second that the writer holds once its ring is full
    block          a camera at ``TIMES`` that rate: it is made to wait, and a camera that cannot wait loses
                   the frames that it did not hand over
    degrade        the same camera: chunks are written faster, then uncompressed, so that it need not wait

In process, with zstd, which keeps the processors busier than the disk. Some frames of each store are read
back by zarr-python and compared.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import shardwright as sw
from benchmarks.processes import Usage, say
from benchmarks.testbed import Camera, Places, testbed
from shardwright.simulate.photons import POOL_FRAMES

from . import Asked, Case, Frames, saved

CASE = Case(scene="camera", frames=64)
SECONDS = 20.0  # of the camera, under each policy
TIMES = 1.5  # the sustainable rate
TIMED_SHARDS = 8  # of the sustainable rate
CODEC = sw.Zstd(level=3)
POLICIES = ("block", "degrade")
ASKED = (
    Asked(
        "taken_of_due",
        "degrade: a camera faster than the codec (1.5x) need not wait: 99 % of its frames in time",
        0.99,
        at_least=True,
    ),
    Asked("frames_lost", "and none is lost", 0.0),
)
COLUMNS = {
    "sustainable frames/s": "sustainable_hz",
    **{
        f"{policy} {name}": f"runs.{number}.{name}"
        for number, policy in enumerate(POLICIES)
        for name in ("due", "taken", "most_behind", "faster", "uncompressed", "ratio", "cpu_s")
    },
    "lost": "frames_lost",
}


def measure(
    places: Places, quick: bool, *, seconds: float | None = None, times: float = TIMES, case: Case = CASE
) -> dict[str, Any]:
    """One row: the camera under ``degrade``, and beside it under ``block``. Raises ``OSError`` without room
    for the frames. ``case``: another one than the record's, for tests."""
    seconds = seconds or (2.0 if quick else SECONDS)
    # a pool without an exposure twice in a chunk: zstd would find it
    one = replace(case, distinct=POOL_FRAMES, chunk=(1, 1, 1))
    pools = [replace(one, seed=seed).draw() for seed in range(case.distinct // POOL_FRAMES)]
    frames = np.concatenate(pools)
    with saved(frames) as file, testbed(places.disk / "overload") as here:
        camera, store = here.camera(file, case), here.folder / "overload.ome.zarr"
        spec = case.spec().model_copy(update={"codec": CODEC})
        hz = camera.held_hz(store, case, spec, 2 if quick else TIMED_SHARDS, overload="block")
        shutil.rmtree(store)
        needed = int(1.1 * times * hz * seconds * spec.frame_bytes)
        free = shutil.disk_usage(places.disk).free
        if needed > free:
            most = f"a run of {seconds:g} s may take {needed / 1e9:.1f}"
            raise OSError(f"{places.disk} has {free / 1e9:.1f} GB free; {most}")
        runs = []
        for policy in POLICIES:
            say(f"{policy}: {times * hz:.1f} frames a second for {seconds:g} s")
            runs.append(_run(policy, camera, spec, frames, store, times * hz, seconds))
    settings = {"seconds": seconds, "times": times, "codec": CODEC.model_dump()}
    return {"settings": settings, "rows": [row(runs[0], runs[1], hz)]}


def row(block: dict[str, Any], degrade: dict[str, Any], hz: float) -> dict[str, Any]:
    return {
        "name": "degrade disk",
        "headline": True,
        "sustainable_hz": hz,
        "taken_of_due": degrade["taken"] / degrade["due"],
        "frames_lost": sum(one["lost"] + one["taken"] - one["stored"] for one in (block, degrade)),
        "runs": [block, degrade],
    }


def _run(
    policy: str, camera: Camera, spec: sw.ArraySpec, frames: Frames, store: Path, hz: float, seconds: float
) -> dict[str, Any]:
    """A camera whose frame i is there at i / hz, and that hands it over as soon as it may. ``due``: frames
    that it had in its time; ``taken``: those that it could hand over; ``most_behind``: how many it was late
    at most."""
    before, times_file = Usage.of([camera.pid]), store.with_name("times.npy")
    camera.open(store, spec, overload=policy)
    sent = camera.send(int(hz * seconds) + 1, hz, seconds=seconds, save=str(times_file))
    receipt = camera.close_acquisition()["receipt"]
    cpu_s = Usage.of([camera.pid]).cpu_s - before.cpu_s
    took_s = max(seconds, (sent["end_ns"] - sent["begin_ns"]) / 1e9)
    calls_ns, late_ns = np.load(times_file)
    check(store, frames, sent["sent"])
    shutil.rmtree(store)
    os.sync()  # what one run leaves to be written must not slow the next
    return {
        "policy": policy,
        "due": int(took_s * hz),
        "taken": sent["sent"],
        "most_behind": max(0, int((late_ns - calls_ns).max() * hz / 1e9)),
        "seconds": took_s,
        "cpu_s": cpu_s,
        "stored": receipt["frames_stored"],
        "lost": sum(receipt[f"frames_{kind}"] for kind in ("lost", "missing", "dropped")),
        "faster": receipt["frames_faster"],
        "uncompressed": receipt["frames_uncompressed"],
        "raw_bytes": receipt["bytes_raw"],
        "written_bytes": receipt["bytes_stored"],
        "ratio": receipt["bytes_raw"] / max(1, receipt["bytes_stored"]),
    }


def check(store: Path, frames: Frames, count: int) -> None:
    """Reads a frame in each tenth of the time by zarr-python. Raises ``AssertionError``."""
    array = zarr.open_array(store / "0", mode="r")
    assert array.shape[0] == count, f"{array.shape[0]} frames in the array instead of {count}"
    for i in sorted({min(count - 1, tenth * count // 10) for tenth in range(11)}):
        assert np.array_equal(array[i], frames[i % len(frames)]), f"frame {i} reads back as another"
