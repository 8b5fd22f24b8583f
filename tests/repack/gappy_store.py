"""A small store whose shards have gaps, as the writer leaves them, and what a test wants to know of it
afterwards."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import tensorstore
from tests.harness.writing import how

import shardwright as sw
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store

WAIT_S = 120.0  # only so that a hang becomes a failure
# Each worker stops in the middle of its third shard, until it is told to go on.
STOPS = {"SHARDWRIGHT_FAILPOINTS": "compact.before_index=stop@3,put.before_sync=stop@3"}
SHARDS = 8
FRAMES_PER_SHARD = 4
SIDE = 64
CHUNK = 16  # of 4 x 16 x 16: 16 chunks in a shard, each in a slot of one page


def spec(codec=None) -> sw.ArraySpec:
    plane = [
        sw.Dimension(name=axis, count=SIDE, chunk_size=CHUNK, shard_size_chunks=SIDE // CHUNK)
        for axis in "yx"
    ]
    time_axis = sw.Dimension(name="t", count=None, chunk_size=FRAMES_PER_SHARD, shard_size_chunks=1)
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[time_axis, *plane],
        codec=codec or sw.Blosc(cname="lz4", clevel=1, shuffle="shuffle"),
    )


def pixels(shards: int = SHARDS) -> np.ndarray:
    return np.random.default_rng(7).poisson(50, (shards * FRAMES_PER_SHARD, SIDE, SIDE)).astype(np.uint16)


def write(path: Path, shards: int = SHARDS) -> Path:
    with sw.create(path, spec(), **how(io="mmap")) as writer:
        for frame in pixels(shards):
            writer.append(frame)
    return path


def files(store: Path) -> dict[str, Path]:
    """The shards of the image by key, in order."""
    found = sorted(
        (path for path in (store / "0/c").rglob("*") if path.is_file()),
        key=lambda path: int(path.relative_to(store / "0/c").parts[0]),
    )
    return {path.relative_to(store / "0").as_posix(): path for path in found}


def identity(path: Path) -> tuple[int, int]:
    """Another one for each file that ever had the name."""
    return path.stat().st_ino, path.stat().st_mtime_ns


def identities(store: Path) -> dict[str, tuple[int, int]]:
    return {key: identity(path) for key, path in files(store).items()}


def replaced(store: Path, before: dict[str, tuple[int, int]]) -> set[str]:
    return {key for key, value in identities(store).items() if value != before[key]}


def gaps(store: Path) -> dict[str, int]:
    """Gap bytes of each shard; raises for a shard that is not sound."""
    opened = open_store(store)
    reports = list(inspect_shards(opened, opened.arrays[0]))
    assert [report.problems for report in reports] == [[]] * len(reports)
    return {report.key: report.gap_bytes for report in reports}


def read(array: Path) -> np.ndarray:
    opened = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(array)}}).result()
    return np.asarray(opened.read().result())


def assert_pixels(store: Path, shards: int = SHARDS) -> None:
    np.testing.assert_array_equal(read(store / "0"), pixels(shards))


def assert_packed(store: Path, shards: int = SHARDS) -> None:
    found = gaps(store)
    assert len(found) == shards
    assert set(found.values()) == {0}
    assert_pixels(store, shards)
    assert leftovers(store) == []


def leftovers(store: Path) -> list[str]:
    return sorted(path.name for path in store.rglob(".compact*"))


def compact(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments), "--no-idle"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        **options,
    )


def start_compact(*arguments: object, **options) -> subprocess.Popen[str]:
    return start("compact", *arguments, **options)


def start(*arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND[:-1], *map(str, arguments), "--no-idle"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


COMMAND = [sys.executable, "-m", "shardwright.cli", "compact"]


def wait_until(condition, what: str):
    end = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {WAIT_S:.0f} s for {what}"
        time.sleep(0.01)
    return value


def children(pid: int) -> set[int]:
    """Processes below ``pid`` that run tasks: a spawned process, not multiprocessing's own resource
    tracker."""
    below = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return {child for child in below if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()}


def is_alive(pid: int) -> bool:
    return _state(pid) not in ("", "Z")


def is_stopped(pid: int) -> bool:
    return _state(pid) == "T"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def was_asked_to_end(pid: int) -> bool:
    """SIGTERM waits for a stopped process, or it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    (pending,) = re.findall(r"^ShdPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(int(pending, 16) >> signal.SIGTERM - 1 & 1)
