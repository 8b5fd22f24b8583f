"""Jobs with compressors that really make errors: they end, name the chunk, and replace nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.broken_compressor import run_broken
from tests.repack.images import write_image

import shardwright as sw

if TYPE_CHECKING:
    from pathlib import Path

JOBS = """
from pathlib import Path
from tests.repack.test_encode_check import JOB
from shardwright.model.errors import ShardwrightError
told = {}
for name, path in asked["stores"].items():
    broken.append(name != "sound")
    try:
        told[name] = [str(JOB[asked["job"]](Path(path))), ""]
    except ShardwrightError as error:
        told[name] = [type(error).__name__, str(error)]
print(json.dumps(told))
"""


def rechunk(path: Path) -> None:
    from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store

    from .images import POLITE, run_here

    made = RechunkOptions(chunks={"y": 5})
    new = path.with_name(f"new-{path.name}")
    write_new_store(plan_new_store(path, made), new, made, run_here, throttle=POLITE)


def add_level(path: Path) -> None:
    from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels

    from .images import POLITE, run_here

    add_levels(path, PyramidOptions(1), run_here, throttle=POLITE)


def update(path: Path) -> None:
    # not one value for all: of so few bytes no compressor is asked
    sw.update(path, {"z": 1}, np.random.default_rng(9).poisson(30, (21, 37)).astype(np.uint16))


JOB = {"rechunk": rechunk, "pyramid": add_level, "update": update}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("job", JOB)
def test_a_job_ends_before_it_replaces_anything(tmp_path: Path, job: str) -> None:
    stores = {name: tmp_path / f"{name}.ome.zarr" for name in ("sound", "broken")}
    for path in stores.values():
        write_image(path, codec="zstd")
    before = files(stores["broken"])
    told = run_broken(JOBS, job=job, stores={name: str(path) for name, path in stores.items()})
    assert told["sound"][0] == "None" or job != "rechunk"
    assert told["sound"][1] == "", "the same without errors"
    assert told["broken"][0] == "ValuesChangedError"
    assert " of a shard of " in told["broken"][1]
    assert "does not decode to its values" in told["broken"][1]
    assert files(stores["broken"]) == before
    assert not list(tmp_path.glob("new-broken*"))
    assert zarr.open_group(stores["sound"], mode="r")["0"].shape == (11, 21, 37)
