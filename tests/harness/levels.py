"""Whether the levels of a store are what its images say: each made of the level below, as zarr-python reads
both."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import numpy as np
import zarr

from shardwright.kernels.downsample import downsample, shape_above

if TYPE_CHECKING:
    from pathlib import Path


def level_problems(store: Path) -> list[str]:
    """Says which levels differ from what the level below makes of them, for all images of a store."""
    return [
        problem
        for document in sorted(store.rglob("zarr.json"))
        for problem in _of_image(document.parent, json.loads(document.read_text())["attributes"])
    ]


def _of_image(folder: Path, attributes: dict) -> list[str]:
    problems = []
    for multiscale in attributes.get("ome", {}).get("multiscales", ()):
        axes = [axis["name"] for axis in multiscale["axes"]]
        for below, level in itertools.pairwise(each["path"] for each in multiscale["datasets"]):
            made = zarr.open_array(folder / level, mode="r")
            how = made.attrs["shardwright"]
            asked = how.get("factors") or dict.fromkeys(how["axes"], 2)
            source = np.ascontiguousarray(zarr.open_array(folder / below, mode="r")[...])
            factors = tuple(max(1, min(asked.get(a, 1), n)) for a, n in zip(axes, source.shape, strict=True))
            expected = np.empty(shape_above(source.shape, factors), source.dtype)
            downsample(source, expected, factors, multiscale["type"])
            if not np.array_equal(made[...], expected, equal_nan=expected.dtype.kind == "f"):
                problems.append(f"{folder / level} is not made of {below}")
    return problems
