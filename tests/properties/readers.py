"""The independent readers: each opens the image array of a store and returns all of it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorstore
import zarr

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ZARRS_PIPELINE = "zarrs.ZarrsCodecPipeline"
# beside its usual one, whose path is no public name
FUSED_PIPELINE = zarr.config.get("codec_pipeline.path").rpartition(".")[0] + ".FusedCodecPipeline"
IS_FUSED = sys.version_info >= (3, 12)  # zarr-python 3.4 has that, and needs such a Python


def with_zarr_python(array: Path) -> np.ndarray:
    return np.asarray(zarr.open_array(array, mode="r")[...])


def with_zarrs(array: Path) -> np.ndarray:
    with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
        opened = zarr.open_array(array, mode="r")
        assert type(opened.async_array.codec_pipeline).__name__ == "ZarrsCodecPipeline", (
            "zarr-python must not fall back to its own codecs"
        )
        return np.asarray(opened[...])


def with_fused_pipeline(array: Path) -> np.ndarray:
    """zarr-python's own, which fetches and decodes chunks in threads."""
    with zarr.config.set({"codec_pipeline.path": FUSED_PIPELINE}):
        opened = zarr.open_array(array, mode="r")
        assert type(opened.async_array.codec_pipeline).__name__ == "FusedCodecPipeline"
        return np.asarray(opened[...])


def with_tensorstore(array: Path) -> np.ndarray:
    return np.asarray(
        tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{array}/"}})
        .result()
        .read()
        .result()
    )


def regions(array: zarr.Array[Any]) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """Yields the key and the region of each shard of an array, or of each chunk where there are none."""
    sizes = array.shards or array.chunks
    for place in np.ndindex(*(-(-extent // n) for extent, n in zip(array.shape, sizes, strict=True))):
        region = tuple(slice(at * n, (at + 1) * n) for at, n in zip(place, sizes, strict=True))
        yield array.metadata.encode_chunk_key(place), region


def keys_that_zarr_python_misses(path: Path) -> list[str]:
    """As its error names them where none may be missing; without an error it reads what it does else."""
    with zarr.config.set({"array.read_missing_chunks": False}):
        opened = zarr.open_array(path, mode="r")
        try:
            found = np.asarray(opened[...])
        except zarr.errors.ChunkNotFoundError as error:
            return re.findall(r"chunk '(.*?)'", str(error))
    np.testing.assert_array_equal(found.view(np.uint8), with_zarr_python(path).view(np.uint8))
    return []


READERS = {"zarr-python": with_zarr_python, "zarrs": with_zarrs, "tensorstore": with_tensorstore}
