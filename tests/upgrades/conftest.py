"""Fixtures of every release, unpacked where a test may change them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harness.daemon import run_cli

from shardwright.acquire.workers import WorkerPool

from .states import CONFIG, RELEASES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def release(request) -> Path:
    """The fixtures of one release."""
    return request.param


@pytest.fixture
def place(disk: Path) -> Iterator[Path]:
    """A folder short enough for Unix sockets; old configurations do not allow one in memory."""
    path = Path(tempfile.mkdtemp(dir=disk, prefix="sw-"))
    yield path
    shutil.rmtree(path)


def contents(folder: Path) -> dict[str, str]:
    """Each file's digest; without locks, whose text says who looked last."""
    files = (
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("lock", "move.lock")
    )
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    return target


@pytest.fixture
def unfinished(release, place) -> Path:
    """The output root of a daemon that was killed."""
    return unpack(release / "unfinished.tar.xz", place / "data")


@pytest.fixture
def config(place) -> Path:
    """Of a daemon for ``unfinished``."""
    path = place / "rig.yaml"
    path.write_text(CONFIG.format(root="./data"))
    return path


@pytest.fixture
def compaction(release, place) -> tuple[Path, Path]:
    """(store, destination) of jobs that were killed. The record of the move has the name that goes with the
    destination."""
    unpack(release / "compaction.tar.xz", place)
    store, destination = place / "data/cells.ome.zarr", place / "archive/cells.ome.zarr"
    before, now = (
        hashlib.sha256(text.encode()).hexdigest()[:16]
        for text in ((release / "moved-to.txt").read_text(), str(destination))
    )
    for file in (store / ".compact").glob(f"move.{before}.*"):
        file.rename(file.with_name(file.name.replace(before, now)))
    for line in map(json.loads, filter(None, (store / "0/.compact/done").read_text().splitlines())):
        # an archive rounds the times that jobs know files by
        os.utime(store / "0" / line["key"], ns=(line["mtime_ns"], line["mtime_ns"]))
    return store, destination


@pytest.fixture
def cli():
    """Runs a command that prints JSON, and must succeed."""

    def run(*arguments: str | Path) -> dict:
        done = run_cli(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    workers = WorkerPool(2)
    workers.start()
    yield workers
    workers.stop()
