"""What the jobs work on: a small image with gaps, a level beside it, a frame table, and one shard that was
spilled; and what becomes of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from tests.repack.images import write_image

from .jobs import JOBS, MOVED, RECHUNKED, STORE, WHOLE, run_job

SPILLED = "0/c/1/0/0"
_SHARD = re.compile(r"/\d+/c(/\d+)+$")

Values = dict[str, dict[str, np.ndarray]]  # store -> level -> pixels
Identities = dict[tuple[int, int], str]  # (inode, mtime_ns) of a file -> where it is


def prepare() -> None:
    """Run every job once, so that whoever forks later finds all modules and kernels loaded."""
    for job in JOBS:
        with tempfile.TemporaryDirectory() as folder:
            write_store(Path(folder) / "warm", is_spilled=job not in WHOLE)
            run_job(job, Path(folder) / "warm")


def write_store(folder: Path, *, is_sharded: bool = True, is_spilled: bool = True) -> None:
    """Two shards along z, of chunks that hardly fill their slots; or a file for each chunk."""
    folder.mkdir(parents=True)
    shard_chunks = (2, 2, 2) if is_sharded else None
    write_image(folder / STORE, shape=(7, 13, 29), chunks=(2, 8, 16), shard_chunks=shard_chunks)
    if not is_spilled:
        return
    link = folder / STORE / SPILLED
    file = folder / "spill" / STORE / SPILLED
    file.parent.mkdir(parents=True)
    link.rename(file)
    link.symlink_to(os.path.relpath(file, link.parent))


@dataclass(frozen=True)
class Ground:
    """``before``: where every trial begins, with what readers see there (``begin``). What the job makes of it
    when nothing happens: the storage calls (``points``), all paths that are left (``tree``), what readers see
    then (``end``)."""

    job: str
    before: Path
    points: list[str]
    tree: set[str]
    begin: Values
    end: Values

    @classmethod
    def of(cls, job: str, folder: Path, *, is_sharded: bool = True) -> Ground:
        before, after = folder / "before", folder / "after"
        write_store(before, is_sharded=is_sharded, is_spilled=job not in WHOLE)
        shutil.copytree(before, after, symlinks=True)
        points, report = run_job(job, after)
        assert report["ok"], report
        return cls(job, before, points, tree_of(after), read_stores(before), read_stores(after))

    def lay(self, folder: Path) -> None:
        """The state before the job, in a new folder."""
        shutil.copytree(self.before, folder, symlinks=True)


def read_stores(folder: Path) -> Values:
    """Every level of every store that a reader finds, as zarr-python reads it."""
    return {
        name: read_levels(folder / name)
        for name in (STORE, MOVED, RECHUNKED)
        if (folder / name / "zarr.json").exists()
    }


def read_levels(store: Path) -> dict[str, np.ndarray]:
    attributes = json.loads((store / "zarr.json").read_text())["attributes"]
    names = [dataset["path"] for dataset in attributes["ome"]["multiscales"][0]["datasets"]]
    return {name: np.asarray(zarr.open_array(store / name, mode="r")[...]) for name in names}


def tree_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def shards_in(folder: Path) -> Identities:
    """Files that have the name of a shard of the image, of whatever level, also of one in the making."""
    found = {}
    for path in folder.rglob("*"):
        if _SHARD.search(path.as_posix()) and path.is_file() and not path.is_symlink():
            status = path.stat()
            found[status.st_ino, status.st_mtime_ns] = path.relative_to(folder).as_posix()
    return found
