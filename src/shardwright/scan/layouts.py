"""The layouts of the shards of an acquisition, from its specification alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.codecs.parameters import CodecParameters
from shardwright.shard.index import LITTLE_ENDIAN, LITTLE_ENDIAN_CRC32C
from shardwright.shard.layout import ArrayLayout, StoreLayout

if TYPE_CHECKING:
    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.grid import Grid
    from shardwright.array.spec import ArraySpec


def array_layout(spec: ArraySpec, grid: Grid) -> ArrayLayout:
    """Returns the layout of an array."""
    codec = CodecParameters.of(spec, grid.chunk_bytes)
    index = LITTLE_ENDIAN_CRC32C if spec.index_checksum else LITTLE_ENDIAN
    return ArrayLayout.of(grid, codec.max_encoded_bytes, spec.index_place, index)


def store_layout(spec: AcquisitionSpec) -> StoreLayout:
    """Returns the layouts of all images. Images with the same array share its tables."""
    made: dict[int, ArrayLayout] = {}  # by the id of the array's specification
    layouts = []
    for array, grid, path in zip(spec.arrays, spec.grids.grids, spec.paths, strict=True):
        if id(array) not in made:
            made[id(array)] = array_layout(array, grid)
        layouts.append(made[id(array)].image(grid, path))
    return StoreLayout(tuple(layouts), spec.grids)
