"""Attributes that other programs write: zarr-python writes NaN there, which JSON does not have."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw

if TYPE_CHECKING:
    from pathlib import Path

FRAMES = np.arange(1, 6 * 8 * 8 + 1, dtype=np.uint16).reshape(6, 8, 8)


@pytest.mark.parametrize("consolidated", [False, True], ids=["plain", "consolidated"])
def test_nan_of_others_neither_hinders_an_end_nor_is_lost(tmp_path: Path, consolidated: bool) -> None:
    path = tmp_path / "a.ome.zarr"
    spec = sw.default_layout(shape=(None, 8, 8), dtype="uint16", axes="tyx")
    with sw.create(path, spec, **how(store_within_ms=1)) as writer:
        writer.append_many(FRAMES[:3])
        writer.flush()
        zarr.open_group(path, mode="r+").attrs["drift"] = {"mean": math.nan, "most": math.inf}
        if consolidated:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of our workspace, and that version 3 has none
                zarr.consolidate_metadata(path)
        writer.update_metadata({"note": "b"})
        writer.append_many(FRAMES[3:])
    group = zarr.open_group(path, mode="r")
    assert np.array_equal(group["0"][:], FRAMES)
    assert math.isnan(group.attrs["drift"]["mean"])
    assert group.attrs["note"] == "b"
    assert np.array_equal(zarr.open_group(sw.LiveStore(path), mode="r")["0"][:], FRAMES)


def test_a_store_of_chunks_hands_it_out_and_takes_it_back(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, shape=FRAMES.shape, dtype="uint16", axes="tyx", **how()) as writer:
        writer.append_many(FRAMES)
    array = zarr.open_group(sw.ChunkStore(path), mode="r+")["0"]
    array.attrs["drift"] = math.nan
    again = zarr.open_group(sw.ChunkStore(path), mode="r")["0"]
    assert math.isnan(again.attrs["drift"])
    assert np.array_equal(again[:], FRAMES)
    assert math.isnan(zarr.open_group(path, mode="r")["0"].attrs["drift"])
