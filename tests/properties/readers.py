"""The independent readers: each opens the image array of a store and returns all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorstore
import zarr

if TYPE_CHECKING:
    from pathlib import Path

ZARRS_PIPELINE = "zarrs.ZarrsCodecPipeline"


def with_zarr_python(array: Path) -> np.ndarray:
    return np.asarray(zarr.open_array(array, mode="r")[...])


def with_zarrs(array: Path) -> np.ndarray:
    with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
        opened = zarr.open_array(array, mode="r")
        assert type(opened.async_array.codec_pipeline).__name__ == "ZarrsCodecPipeline", (
            "zarr-python must not fall back to its own codecs"
        )
        return np.asarray(opened[...])


def with_tensorstore(array: Path) -> np.ndarray:
    return np.asarray(
        tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{array}/"}})
        .result()
        .read()
        .result()
    )


READERS = {"zarr-python": with_zarr_python, "zarrs": with_zarrs, "tensorstore": with_tensorstore}
